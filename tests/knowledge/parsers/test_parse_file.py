"""Every file of the corpus, parsed as in a sandboxed child."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from almanac.knowledge.parsers import file_signatures, file_types, parse_file, parse_message
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage, UnreadableFile
from tests.knowledge.corpus.expected import EXPECTED, FILES, GOLDEN, REFUSED, SCANS, opened
from tests.knowledge.corpus.goldens import golden, passages


def parsed(name: str) -> ParsedFile:
    with opened(FILES / name) as content:
        return parse_file.parse(content, name, file_types.detect_file_type(content, name))


def parse_and_split(file: Path) -> bytes:
    with opened(file) as content:
        return parse_file.parse_and_split([content], file.name, {})


def assert_valid(parsed: ParsedFile) -> None:
    """The rules for blocks and pages that every parser keeps."""
    end = 0
    for block in parsed.blocks:
        assert end <= block.start < block.end <= len(parsed.text)
        assert not parsed.text[end : block.start].strip()
        assert block.kind != "table" or block.start < block.header_end <= block.end
        end = block.end
    assert not parsed.text[end:].strip()
    assert "\r" not in parsed.text
    assert "\x00" not in parsed.text
    if parsed.pages:
        assert (parsed.pages[0].start, parsed.pages[-1].end) == (0, len(parsed.text))
        assert all(before.end == after.start for before, after in pairwise(parsed.pages))


def test_every_file_of_the_corpus_has_an_expected_result():
    assert {file.name for file in FILES.iterdir()} == {*EXPECTED, *REFUSED, *SCANS}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_has_its_type_text_and_metadata(name: str):
    expected = EXPECTED[name]
    document = parse_message.unpack(parse_and_split(FILES / name))
    assert (document.mime_type, document.source_type) == (expected.mime_type, expected.source_type)
    assert document.extension == expected.extension
    position = 0
    for phrase in expected.contains:
        assert phrase in document.text[position:], f"{phrase!r} is not in {document.text[position:]!r}"
        position = document.text.index(phrase, position) + 1
    assert not [phrase for phrase in expected.omits if phrase in document.text]
    if document.mime_type != "application/pdf":
        assert document.title == expected.title
    assert {key: document.metadata.get(key) for key in expected.metadata} == expected.metadata


@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_are_in_order_contain_all_text_and_have_their_kinds(name: str):
    expected, file = EXPECTED[name], parsed(name)
    assert_valid(file)
    if expected.blocks is not None:
        assert tuple(block.kind for block in file.blocks if block.kind != "text") == expected.blocks
    assert expected.symbols == tuple(block.name for block in file.blocks if block.kind == "code" and block.name)


@pytest.mark.parametrize("name", [name for name in EXPECTED if EXPECTED[name].on_page])
def test_text_is_on_its_page(name: str):
    document = parse_message.unpack(parse_and_split(FILES / name))
    for phrase, number in EXPECTED[name].on_page.items():
        position = document.text.index(phrase)
        assert [page.number for page in document.pages if page.start <= position < page.end] == [number]
    assert not EXPECTED[name].sheets or tuple(page.name for page in document.pages) == EXPECTED[name].sheets


def test_text_boxes_nested_tables_and_macros_of_office_files():
    for name in ("report.docx", "report.odt", "report.rtf"):
        assert "Box: the breakwater is closed on Mondays." in parsed(name).text
    for name in ("report.docx", "report.odt"):
        assert "| Fish quay | cutters, free; trawlers, half price | ask the harbour master |" in parsed(name).text
    assert parsed("macros.docm").warnings == ("The macros in the file were left out.",)


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_parsed_gives_the_reason(name: str):
    with pytest.raises(UnreadableFile) as refused:
        parse_and_split(FILES / name)
    assert refused.value.code == REFUSED[name]
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize("name", GOLDEN)
def test_passages_equal_the_golden_file(name: str):
    assert passages(name) == golden(name)


def test_the_same_file_gives_the_same_message_byte_for_byte():
    file = FILES / "report.docx"
    assert parse_and_split(file) == parse_and_split(file)


def test_a_wrong_name_changes_nothing(tmp_path: Path):
    disguised = tmp_path / "holiday.txt"
    disguised.write_bytes((FILES / "report.docx").read_bytes())
    assert parse_and_split(disguised) == parse_and_split(FILES / "report.docx")


@pytest.mark.parametrize(
    "name", ["report.docx", "talk.pptx", "budget.xlsx", "budget.ods", "handbook.epub", "handbook.odt"]
)
def test_a_truncated_file_is_corrupt(name: str, tmp_path: Path):
    content = (FILES / name).read_bytes()
    broken = tmp_path / name
    broken.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UnreadableFile) as refused:
        parse_and_split(broken)
    assert refused.value.code == "corrupt"


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty"), (b" \n\t \n", "empty"), (b"<html><p> </p></html>", "empty")]
)
def test_a_file_without_text_is_empty(content: bytes, code: str, tmp_path: Path):
    file = tmp_path / "blank"
    file.write_bytes(content)
    with pytest.raises(UnreadableFile) as refused:
        parse_and_split(file)
    assert refused.value.code == code


def test_every_parser_of_a_file_type_exists():
    assert file_signatures.PARSERS
    for parser in file_signatures.PARSERS:
        assert callable(parse_file.load(parser))


def test_sanitising_replaces_characters_that_cannot_be_stored_and_keeps_offsets():
    dirty = ParsedFile(
        "a\x00b\ud800c\rd", (Block("text", 0, 7),), title="t\x00\n t", metadata={"k\x00": "v\udfff", "e": " "}
    )
    dirty = replace(
        dirty, blocks=(Block("heading", 0, 7, 1, "n\x00m"),), pages=(TextPage(1, 0, 7, name="p\r" + "x" * 600),)
    )
    file = parse_file.sanitise(dirty)
    assert file.text == "a b\ufffdc\nd"
    assert (file.blocks[0].name, file.pages[0].name) == ("n m", "p " + "x" * 498)
    assert (file.title, file.metadata) == ("t t", {"k": "v\ufffd"})


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parse_message, "MAX_TEXT_CHARS", 10)
    with pytest.raises(UnreadableFile, match="more than 10 characters") as refused:
        parse_file.sanitise(ParsedFile("x" * 11, ()))
    assert refused.value.code == "too_large"


def test_a_memory_error_in_a_parser_is_left_to_the_child_process(monkeypatch: pytest.MonkeyPatch):
    def run_out_of_memory(path: Path, name: str) -> ParsedFile:
        raise MemoryError

    def load(name: str) -> Any:
        return run_out_of_memory

    monkeypatch.setattr(parse_file, "load", load)
    with pytest.raises(MemoryError):
        parse_file.parse(FILES / "shop.json", "shop.json", file_signatures.JSON)
