"""OpenDocument texts with excessive repetitions."""

import zipfile
from pathlib import Path

from almanac.knowledge.parsers.office import opendocument


def test_repetitions_of_cells_rows_and_spaces_are_limited(tmp_path: Path):
    cell = '<c:table-cell c:number-columns-repeated="100000000"><p>x</p></c:table-cell>'
    table = f'<c:table><c:table-row c:number-rows-repeated="100000000">{cell}</c:table-row></c:table>'
    content = f'<d xmlns:c="urn:c"><text>{table}<p>a<s c:c="99999999"/>b</p></text></d>'
    file = tmp_path / "x.odt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("content.xml", content)
    assert len(opendocument.parse(file, "x.odt").text) < 100_000
