"""Rich Text Format: control words, encodings, tables and broken groups."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.office import rtf
from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from tests.knowledge.parsers.test_parse_file import assert_valid


def parse(body: str) -> ParsedFile:
    reader = rtf.RtfReader()
    reader.read(r"{\rtf1\ansi\ansicpg1252 " + body + "}")
    reader.finish()
    parsed = reader.builder.finish()
    assert_valid(parsed)
    return parsed


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (r"one\par two\line three", "one\n\ntwo\nthree"),
        (r"caf\'e9 \u8364? \emdash\~x \{\\\}", "café € — x {\\}"),
        (r"\uc2\u20013ab x", "中 x"),
        (r"\uc0\u-10180\u-8391  and", "🌹 and"),
        (r"{\fonttbl{\f0 Arial;}{\f1\fcharset204 Times;}}{\f1 \'d1\'ea\'eb\'e0\'e4} x", "Склад x"),
        (r"{\fonttbl{\f0\fcharset128 M;}}\f0 \'83A\'83C", "アイ"),
        (r"shown{\v hidden}{\deleted gone} too", "shown too"),
        (r"{\pict\wmetafile8 0a0b}{\*\unknown x}{\*\shpinst{\sp{\sn a}}{\shptxt box\par}}after", "box\n\nafter"),
        (r"text{\footnote\pard A note.\par} goes on", "text[^1] goes on\n\n[^1]: A note."),
        (
            r"{\stylesheet{\s1 heading 1;}{\s2\outlinelevel1 Mine;}}\s1 One\par\pard\s2 Two\par\pard x",
            "# One\n\n## Two\n\nx",
        ),
        (r"\bin5 {}{}}after", "after"),
        (r"{\header no}{\info{\title T}{\author A}}yes", "yes"),
        (r"{\listtext 1.\tab}a\par{\listtext 2.\tab}b\par\pard c", "1. a\n2. b\n\nc"),
    ],
)
def test_control_words_have_their_effect(body: str, expected: str):
    assert parse(body).text == expected


def test_rows_become_a_table_and_merged_cells_are_repeated():
    row = r"\trowd\cellx1\cellx2\intbl "
    body = (
        row
        + r"a\cell b\cell\row "
        + row
        + r"c\cell d\cell\row \trowd\clvmrg\cellx1\cellx2\intbl \cell e\cell\row\pard x"
    )
    assert parse(body).text == "| a | b |\n| --- | --- |\n| c | d |\n| c | e |\n\nx"


def test_title_and_author_come_from_the_document_information(tmp_path: Path):
    file = tmp_path / "x.rtf"
    file.write_bytes(rb"{\rtf1{\info{\title A \'fcber}{\author Me}}text}")
    parsed = rtf.parse(file, "x.rtf")
    assert (parsed.title, parsed.metadata) == ("A über", {"author": "Me"})


def test_groups_nested_too_deeply_are_refused():
    with pytest.raises(UnreadableFile):
        parse("{" * 1_000)


WORDS = st.sampled_from(["par", "cell", "row", "intbl", "u-10179", "u20013", "footnote", "pard", "trowd", "stylesheet",
                         "s1", "bin3", "*", "'e9", "info", "title", "listtext"])  # fmt: skip
PARTS = st.builds("\\{} ".format, WORDS) | st.sampled_from(["{", "}", "x", "\\", "\n"])


@given(st.lists(PARTS, max_size=40))
def test_control_words_in_any_order_can_be_parsed(parts: list[str]):
    parse("".join(parts))
