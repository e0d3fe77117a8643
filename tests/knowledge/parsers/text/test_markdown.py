"""Markdown: blocks, headings, tables and front matter."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import markdown
from tests.knowledge.parsers.test_parse_file import assert_valid


def blocks_of(text: str) -> list[tuple[str, int, str]]:
    blocks = tuple(markdown.blocks(text))
    assert_valid(ParsedFile(text, blocks))
    return [(block.kind, block.level, block.name or text[block.start : block.end]) for block in blocks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# One #\ntext", [("heading", 1, "One"), ("text", 0, "text")]),
        ("### A *b* `c` [d](e) {#id}", [("heading", 3, "A b c d")]),
        ("Title\n=====\n\nSub\n---\n", [("heading", 1, "Title"), ("heading", 2, "Sub")]),
        ("a\nb\n---\nc", [("text", 0, "a\nb\n---\nc")]),
        ("#hashtag and #more", [("text", 0, "#hashtag and #more")]),
        ("- item\n---", [("text", 0, "- item\n---")]),
        (
            "```\n# no heading\n\n| no | table |\n```\nx",
            [("code", 0, "```\n# no heading\n\n| no | table |\n```"), ("text", 0, "x")],
        ),
        ("~~~~ py\n~~~\n~~~~", [("code", 0, "~~~~ py\n~~~\n~~~~")]),
        ("```\nnever closed\n\n", [("code", 0, "```\nnever closed")]),
        ("a | b\n--|--\n1 | 2\n\nafter", [("table", 0, "a | b\n--|--\n1 | 2"), ("text", 0, "after")]),
        ("| a |\n| - |\n| 1 |\nnot a row", [("table", 0, "| a |\n| - |\n| 1 |"), ("text", 0, "not a row")]),
        ("    # four spaces", [("text", 0, "# four spaces")]),
        ("#\n\n##", [("text", 0, "#"), ("text", 0, "##")]),
    ],
)
def test_blocks_are_found(text: str, expected: list[tuple[str, int, str]]):
    assert blocks_of(text) == expected


def test_the_header_of_a_table_ends_after_the_dashes():
    text = "before\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    table = next(block for block in markdown.blocks(text) if block.kind == "table")
    assert text[table.start : table.header_end] == "| a | b |\n|---|---|\n"


def test_front_matter_is_metadata(tmp_path: Path):
    file = tmp_path / "x.md"
    file.write_text("---\ntitle: 'A note'\ntags:\n  - sea\n  - salt\nDate: 2026-01-02\n---\n\nBody\n", "utf-8")
    parsed = markdown.parse(file, "x.md")
    assert (parsed.title, parsed.metadata) == ("A note", {"tags": "sea, salt", "date": "2026-01-02"})
    assert parsed.text.strip() == "Body"


def test_a_rule_at_the_beginning_is_not_front_matter(tmp_path: Path):
    file = tmp_path / "x.md"
    file.write_text("---\n\nBody without an end\n", "utf-8")
    assert "Body without an end" in markdown.parse(file, "x.md").text


@given(st.text(alphabet="ab#|-=`~ \n:>*", max_size=120))
def test_blocks_contain_all_of_any_text(text: str):
    assert_valid(ParsedFile(text, tuple(markdown.blocks(text))))
