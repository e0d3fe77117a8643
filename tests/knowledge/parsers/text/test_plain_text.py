"""Plain text: paragraphs and underlined headings."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings, plain_text
from tests.knowledge.parsers.test_parse_file import assert_valid


def test_paragraphs_and_underlined_headings_are_found(tmp_path: Path):
    file = tmp_path / "x.rst"
    file.write_text("Tides\n=====\n\nFirst\nparagraph.\n \n\nLow water\n---------\nSecond one.\n", "utf-8")
    parsed = plain_text.parse(file, "x.rst")
    assert [(block.kind, block.level, parsed.text[block.start : block.end]) for block in parsed.blocks] == [
        ("heading", 1, "Tides\n====="),
        ("text", 0, "First\nparagraph."),
        ("heading", 2, "Low water\n---------"),
        ("text", 0, "Second one."),
    ]
    assert parsed.title == "Tides"


@given(st.binary(max_size=400))
def test_any_bytes_can_be_parsed(content: bytes):
    text, _ = encodings.decode(content)
    assert_valid(ParsedFile(text, tuple(plain_text.sections(text))))


@given(st.text(alphabet="ab =-#\n\t\u3000*~", max_size=200))
def test_blocks_contain_all_of_any_text(text: str):
    assert_valid(ParsedFile(text, tuple(plain_text.sections(text))))
