"""Spreadsheets: limits that do not trust the sheet, passwords, and the text of values."""

import datetime
import zipfile
from pathlib import Path
from string import ascii_letters

import pytest

from almanac.knowledge.parsers.office import spreadsheets
from almanac.knowledge.parsers.parsed_file import UnreadableFile
from tests.knowledge.parsers.handmade_files import compound

SCHEMAS = "http://schemas.openxmlformats.org"
MAIN = f"{SCHEMAS}/spreadsheetml/2006/main"
OFFICE = f"{SCHEMAS}/officeDocument/2006/relationships"


def relation(kind: str, target: str) -> str:
    row = f'<Relationship Id="r" Type="{OFFICE}/{kind}" Target="{target}"/>'
    return f'<Relationships xmlns="{SCHEMAS}/package/2006/relationships">{row}</Relationships>'


PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{SCHEMAS}/package/2006/content-types"/>',
    "_rels/.rels": relation("officeDocument", "xl/workbook.xml"),
    "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>'
    '<sheet name="Sheet1" sheetId="1" r:id="r"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": relation("worksheet", "worksheets/sheet1.xml"),
}


def xlsx(folder: Path, cells: dict[str, str], extra: str = "") -> Path:
    rows = "".join(
        f'<row r="{cell.lstrip(ascii_letters)}"><c r="{cell}" t="inlineStr"><is><t>{text}</t></is></c></row>'
        for cell, text in cells.items()
    )
    file = folder / "x.xlsx"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in PARTS.items():
            archive.writestr(name, content)
        archive.writestr(
            "xl/worksheets/sheet1.xml", f'<worksheet xmlns="{MAIN}">{extra}<sheetData>{rows}</sheetData></worksheet>'
        )
    return file


def test_two_cells_in_opposite_corners_are_refused(tmp_path: Path):
    file = xlsx(tmp_path, {"A1": "here", "XFD1048576": "there"})
    assert file.stat().st_size < 4_000
    with pytest.raises(UnreadableFile) as refused:
        spreadsheets.parse(file, "x.xlsx")
    assert refused.value.code == "too_large"


@pytest.mark.parametrize("cell", ["A4294967295", "A1048577", "XFE1", "ZZZZZZZ1", "A" + "9" * 5_000])
def test_a_cell_beyond_the_last_of_any_sheet_is_refused(cell: str, tmp_path: Path):
    with pytest.raises(UnreadableFile) as refused:
        spreadsheets.parse(xlsx(tmp_path, {"A1": "here", cell: "there"}), "x.xlsx")
    assert refused.value.code == "corrupt"


def test_a_row_beyond_the_last_of_any_sheet_is_refused_even_if_its_cells_have_no_position(tmp_path: Path):
    row = '<row r="4294967295"><c t="inlineStr"><is><t>there</t></is></c></row>'
    with pytest.raises(UnreadableFile) as refused:
        spreadsheets.parse(xlsx(tmp_path, {"A1": "here"}, f"<sheetData>{row}</sheetData>"), "x.xlsx")
    assert refused.value.code == "corrupt"


def test_columns_may_be_named_in_lower_case(tmp_path: Path):
    with pytest.raises(UnreadableFile) as refused:
        spreadsheets.parse(xlsx(tmp_path, {"A1": "here", "xfd1048576": "there"}), "x.xlsx")
    assert refused.value.code == "too_large"


def test_the_last_cell_of_a_sheet_is_allowed(tmp_path: Path):
    assert spreadsheets.parse(xlsx(tmp_path, {"XFD1048576": "there"}), "x.xlsx").text == "there"


@pytest.mark.parametrize(
    ("head", "has_password"),
    [
        (b"\x09\x08\x04\x00\x00\x06\x05\x00\x2f\x00\x36\x00", True),
        (b"\x09\x08\x04\x00\x00\x06\x05\x00\x86\x00\x00\x00\x2f\x00\x36\x00", True),
        (b"\x09\x08\x04\x00\x00\x06\x05\x00\x42\x00\x00\x00\x2f\x00\x36\x00", False),
        (b"\x2f\x00\x36\x00", False),
        (b"", False),
        (b"\x00" * 512, False),
    ],
)
def test_a_password_is_detected_in_the_first_records_of_an_old_workbook(
    head: bytes, has_password: bool, tmp_path: Path
):
    file = tmp_path / "x"
    content = compound("Workbook")
    file.write_bytes(content[:1536] + head.ljust(512, b"\x00") + content[2048:])
    assert spreadsheets.has_password(file) is has_password


def test_the_claimed_size_of_a_sheet_is_ignored(tmp_path: Path):
    file = xlsx(tmp_path, {"A1": "here"}, '<dimension ref="A1:XFD1048576"/>')
    assert spreadsheets.parse(file, "x.xlsx").text == "here"


def test_a_sheet_without_filled_cells_is_empty(tmp_path: Path):
    with pytest.raises(UnreadableFile) as refused:
        spreadsheets.parse(xlsx(tmp_path, {}), "x.xlsx")
    assert refused.value.code == "empty"


def test_too_many_repeated_cells_of_an_opendocument_sheet_are_refused(tmp_path: Path):
    row = (
        '<table:table-row table:number-rows-repeated="1000000"><table:table-cell table:number-columns-repeated="1000" '
        'office:value-type="string"><text:p>x</text:p></table:table-cell></table:table-row>'
    )
    file = tmp_path / "x.ods"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        archive.writestr("content.xml", f"<office:spreadsheet><table:table>{row}</table:table></office:spreadsheet>")
    with pytest.raises(UnreadableFile) as refused:
        spreadsheets.parse(file, "x.ods")
    assert refused.value.code == "too_large"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "3"),
        (-0.5, "-0.5"),
        (0.1 + 0.2, "0.3"),
        (1e20, "1e+20"),
        (123456789012.0, "123456789012"),
        (True, "TRUE"),
        (" text ", "text"),
        (datetime.datetime(2026, 3, 31), "2026-03-31"),
        (datetime.datetime(2026, 3, 31, 9, 5), "2026-03-31 09:05"),
        (datetime.date(2026, 3, 31), "2026-03-31"),
        (datetime.time(9, 5), "09:05"),
        (datetime.timedelta(hours=30), "1 day, 6:00:00"),
    ],
)
def test_values_are_formatted_as_people_write_them(value: spreadsheets.Value, text: str):
    assert spreadsheets.format_value(value) == text
