"""Word documents: computed numbers, deleted text, duplicates and notes."""

import zipfile
from pathlib import Path

import pytest

from almanac.knowledge.parsers.office import docx
from almanac.knowledge.parsers.office.numbering import Level, Numbering, format_number
from almanac.knowledge.parsers.parsed_file import ParsedFile

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"


def parse(folder: Path, body: str, namespace: str = WORD, **parts: str) -> ParsedFile:
    file = folder / "x.docx"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{namespace}"><w:body>{body}</w:body></w:document>')
        relations = "".join(f'<Relationship Id="{k}" Type="x/{k}" Target="{k}.xml"/>' for k in parts)
        archive.writestr("word/_rels/document.xml.rels", f"<Relationships>{relations}</Relationships>")
        for name, content in parts.items():
            archive.writestr(f"word/{name}.xml", f'<w:{name} xmlns:w="{namespace}">{content}</w:{name}>')
    return docx.parse(file, "x.docx")


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


@pytest.mark.parametrize("namespace", [WORD, STRICT])
def test_deleted_text_is_omitted(namespace: str, tmp_path: Path):
    body = (
        f"<w:p>{run('kept')}<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:ins>{run(' added')}</w:ins></w:p>"
    )
    assert parse(tmp_path, body, namespace).text == "kept added"


def test_a_text_box_that_is_stored_twice_is_written_once(tmp_path: Path):
    box = f"<w:txbxContent><w:p>{run('boxed')}</w:p></w:txbxContent>"
    both = f"<AlternateContent><Choice>{box}</Choice><Fallback>{box}</Fallback></AlternateContent>"
    assert parse(tmp_path, f"<w:p>{run('around')}<w:r>{both}</w:r></w:p>").text == "around\n\nboxed"
    assert parse(tmp_path, f"<w:p><w:r><Fallback>{box}</Fallback></w:r></w:p>").text == "boxed"


def test_headings_are_recognised_by_the_name_or_the_level_of_their_style(tmp_path: Path):
    styles = (
        '<w:style w:styleId="a"><w:name w:val="heading 2"/></w:style>'
        '<w:style w:styleId="b"><w:name w:val="Mine"/><w:basedOn w:val="a"/></w:style>'
        '<w:style w:styleId="c"><w:name w:val="Circle"/><w:basedOn w:val="c"/></w:style>'
        '<w:style w:styleId="d"><w:name w:val="toc 1"/></w:style>'
    )
    body = "".join(f'<w:p><w:pPr><w:pStyle w:val="{s}"/></w:pPr>{run(s)}</w:p>' for s in "abcd")
    body += f'<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr>{run("e")}</w:p>'
    assert parse(tmp_path, body, styles=styles).text == "## a\n\n## b\n\nc\n\n# e"


def test_list_items_have_the_numbers_that_readers_see(tmp_path: Path):
    numbering = (
        '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:start w:val="3"/><w:numFmt w:val="decimal"/>'
        '<w:lvlText w:val="%1."/></w:lvl><w:lvl w:ilvl="1"><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%1.%2)"/>'
        '</w:lvl></w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>'
    )

    def item(text: str, level: int) -> str:
        numbering = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="1"/></w:numPr>'
        return f"<w:p><w:pPr>{numbering}</w:pPr>{run(text)}</w:p>"

    body = item("a", 0) + item("b", 1) + item("c", 1) + item("d", 0) + item("e", 1) + f"<w:p>{run('end')}</w:p>"
    parsed = parse(tmp_path, body, numbering=numbering)
    assert parsed.text == "3. a\n  3.a) b\n  3.b) c\n4. d\n  4.a) e\n\nend"


def test_notes_follow_at_the_end_in_the_order_of_their_references(tmp_path: Path):
    notes = "".join(
        f'<w:footnote w:id="{n}"><w:p>{run(text)}</w:p></w:footnote>' for n, text in ((5, "five"), (2, "two"))
    )
    body = f'<w:p>{run("x")}<w:r><w:footnoteReference w:id="2"/></w:r><w:r><w:footnoteReference w:id="5"/></w:r></w:p>'
    assert parse(tmp_path, body, footnotes=notes).text == "x[^1][^2]\n\n[^1]: two\n\n[^2]: five"


@pytest.mark.parametrize(
    ("number", "form", "expected"),
    [
        (4, "decimal", "4"),
        (28, "lowerLetter", "bb"),
        (3, "upperLetter", "C"),
        (1994, "lowerRoman", "mcmxciv"),
        (0, "x", "0"),
    ],
)
def test_numbers_are_formatted(number: int, form: str, expected: str):
    assert format_number(number, form) == expected


def test_an_undefined_list_has_no_label():
    numbering = Numbering({"1": "a"}, {("a", 0): Level("decimal", "(%1)")})
    labels = [numbering.next_label("2", 0), numbering.next_label("1", 99), numbering.next_label("1", 0)]
    assert labels == ["", "", "(1)"]
