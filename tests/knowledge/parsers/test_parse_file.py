"""Every file of the corpus through the front door of the parsers, and what the server believes of their answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from almanac.knowledge.parsers import file_types, parse_file
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage, UnreadableFile
from tests.knowledge.corpus.expected import EXPECTED, FILES, GOLDEN, REFUSED, SCANS, opened
from tests.knowledge.corpus.goldens import golden, passages


def parsed(name: str) -> ParsedFile:
    with opened(FILES / name) as content:
        return parse_file.parse(content, name, file_types.detect_file_type(content, name))


def read(file: Path) -> bytes:
    with opened(file) as content:
        return parse_file.parse_and_split(content, file.name, {})


def assert_sound(found: ParsedFile) -> None:
    """What every parser promises of blocks and pages."""
    end = 0
    for block in found.blocks:
        assert end <= block.start < block.end <= len(found.text)
        assert not found.text[end : block.start].strip()
        assert block.kind != "table" or block.start < block.header_end <= block.end
        end = block.end
    assert not found.text[end:].strip()
    assert "\r" not in found.text
    assert "\x00" not in found.text
    if found.pages:
        assert (found.pages[0].start, found.pages[-1].end) == (0, len(found.text))
        assert all(a.end == b.start for a, b in zip(found.pages, found.pages[1:], strict=False))


def test_every_file_of_the_corpus_is_expected_to_be_something():
    assert {file.name for file in FILES.iterdir()} == {*EXPECTED, *REFUSED, *SCANS}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_is_what_it_is_and_says_what_it_says(name: str):
    expected = EXPECTED[name]
    found = parse_file.unpack(read(FILES / name))
    assert (found.mime_type, found.source_type) == (expected.mime_type, expected.source_type)
    assert found.extension == expected.extension
    place = 0
    for stretch in expected.says:
        assert stretch in found.text[place:], f"{stretch!r} is not in {found.text[place:]!r}"
        place = found.text.index(stretch, place) + 1
    assert not [stretch for stretch in expected.omits if stretch in found.text]
    if found.mime_type != "application/pdf":
        assert found.title == expected.title
    assert {key: found.metadata.get(key) for key in expected.metadata} == expected.metadata


@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_are_in_order_hold_everything_and_have_their_kinds(name: str):
    expected, found = EXPECTED[name], parsed(name)
    assert_sound(found)
    if expected.blocks is not None:
        assert tuple(block.kind for block in found.blocks if block.kind != "text") == expected.blocks
    assert expected.symbols == tuple(block.name for block in found.blocks if block.kind == "code" and block.name)


@pytest.mark.parametrize("name", [name for name in EXPECTED if EXPECTED[name].on_page])
def test_what_is_said_is_on_the_page_it_is_on(name: str):
    found = parse_file.unpack(read(FILES / name))
    for stretch, number in EXPECTED[name].on_page.items():
        place = found.text.index(stretch)
        assert [page.number for page in found.pages if page.start <= place < page.end] == [number]
    assert not EXPECTED[name].sheets or tuple(page.name for page in found.pages) == EXPECTED[name].sheets


def test_details_that_only_the_office_formats_have_are_kept():
    for name in ("report.docx", "report.odt", "report.rtf"):
        assert "Box: the breakwater is closed on Mondays." in parsed(name).text
    for name in ("report.docx", "report.odt"):
        assert "| Fish quay | cutters, free; trawlers, half price | ask the harbour master |" in parsed(name).text
    assert parsed("macros.docm").warnings == ("The macros in the file were left out.",)


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_not_read_says_why(name: str):
    with pytest.raises(UnreadableFile) as refused:
        read(FILES / name)
    assert refused.value.code == REFUSED[name]
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize("name", GOLDEN)
def test_passages_are_those_that_were_looked_at(name: str):
    assert passages(name) == golden(name)


def test_the_same_file_gives_the_same_answer_byte_for_byte():
    file = FILES / "report.docx"
    assert read(file) == read(file)


def test_a_wrong_name_changes_nothing(tmp_path: Path):
    disguised = tmp_path / "holiday.txt"
    disguised.write_bytes((FILES / "report.docx").read_bytes())
    assert read(disguised) == read(FILES / "report.docx")


@pytest.mark.parametrize(
    "name", ["report.docx", "talk.pptx", "budget.xlsx", "budget.ods", "handbook.epub", "handbook.odt"]
)
def test_a_file_cut_short_is_corrupt(name: str, tmp_path: Path):
    content = (FILES / name).read_bytes()
    broken = tmp_path / name
    broken.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UnreadableFile) as refused:
        read(broken)
    assert refused.value.code == "corrupt"


@pytest.mark.parametrize(
    ("content", "code"), [(b"", "empty"), (b" \n\t \n", "empty"), (b"<html><p> </p></html>", "empty")]
)
def test_a_file_without_text_is_empty(content: bytes, code: str, tmp_path: Path):
    file = tmp_path / "blank"
    file.write_bytes(content)
    with pytest.raises(UnreadableFile) as refused:
        read(file)
    assert refused.value.code == code


def test_every_parser_that_a_kind_names_exists():
    assert file_types.PARSERS
    for parser in file_types.PARSERS:
        assert callable(parse_file.load(parser))


def test_cleaning_replaces_what_cannot_be_stored_and_moves_nothing():
    dirty = ParsedFile(
        "a\x00b\ud800c\rd", (Block("text", 0, 7),), title="t\x00\n t", metadata={"k\x00": "v\udfff", "e": " "}
    )
    dirty = replace(
        dirty, blocks=(Block("heading", 0, 7, 1, "n\x00m"),), pages=(TextPage(1, 0, 7, name="p\r" + "x" * 600),)
    )
    found = parse_file.sanitise(dirty)
    assert found.text == "a b\ufffdc\nd"
    assert (found.blocks[0].name, found.pages[0].name) == ("n m", "p " + "x" * 498)
    assert (found.title, found.metadata) == ("t t", {"k": "v\ufffd"})


def test_too_much_text_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parse_file, "LONGEST_TEXT", 10)
    with pytest.raises(UnreadableFile, match="more than 10 characters") as refused:
        parse_file.sanitise(ParsedFile("x" * 11, ()))
    assert refused.value.code == "too_large"


def test_a_parser_that_runs_out_of_memory_leaves_it_to_its_process_to_say_so(monkeypatch: pytest.MonkeyPatch):
    def burst(path: Path, name: str) -> ParsedFile:
        raise MemoryError

    def load(name: str) -> Any:
        return burst

    monkeypatch.setattr(parse_file, "load", load)
    with pytest.raises(MemoryError):
        parse_file.parse(FILES / "shop.json", "shop.json", file_types.JSON)


# What the server believes


def message(**changes: Any) -> bytes:
    """An answer as a parser gives it, but for the changes."""
    return orjson.dumps(orjson.loads(read(FILES / "talk.pptx")) | changes)


def passage(**changes: Any) -> list[dict[str, Any]]:
    sound: dict[str, Any] = {
        "start": 0,
        "end": 5,
        "text": "# Bee",
        "kind": "text",
        "headings": [],
        "page": 1,
        "boxes": [],
        "parent": None,
    }
    return [sound | changes]


def test_a_sound_answer_is_unpacked():
    found = parse_file.unpack(message(passages=passage(boxes=[[1, 0, 0.5, 10, 20]])))
    assert found.passages[0].boxes == ((1, 0, 0.5, 10, 20),)
    assert found.pages[0] == TextPage(1, 0, found.pages[0].end)


@pytest.mark.parametrize(
    "change",
    [
        {"text": ""},
        {"text": "nul \x00"},
        {"text": 7},
        {"mime_type": "text/html\r\nset-cookie: x"},
        {"mime_type": "TEXT"},
        {"extension": "../../etc"},
        {"extension": "a b"},
        {"source_type": "program"},
        {"title": "t" * 501},
        {"metadata": {"k": 1}},
        {"metadata": {str(n): "v" for n in range(101)}},
        {"warnings": ["w" * 501]},
        {"pages": [[0, 0, 1, None, None, ""]]},
        {"pages": [[1, 0, 10_000, None, None, ""]]},
        {"pages": [[1, 5, 2, None, None, ""]]},
        {"pages": [[1, 0, 5, None, None, ""], [1, 5, 6, None, None, ""]]},
        {"pages": [[1, 0, 5, None, None, ""], [2, 3, 6, None, None, ""]]},
        {"pages": [[1, 0, 5, -1.0, None, ""]]},
        {"pages": [[1, 0, 5]]},
        {"passages": passage(start=-1)},
        {"passages": passage(end=100_000)},
        {"passages": passage(start=5)},
        {"passages": passage(start=True)},
        {"passages": passage(start="0")},
        {"passages": passage(text="")},
        {"passages": passage(text="x" * 200_001)},
        {"passages": passage(kind="picture")},
        {"passages": passage(headings="abc")},
        {"passages": passage(page=0)},
        {"passages": passage(parent=0)},
        {"passages": passage(boxes=[[1, 0, 0, 1]])},
        {"passages": passage(boxes=[[1, 0, 0, 1e300, 1]])},
        {"passages": passage(boxes=[[0, 0, 0, 1, 1]])},
        {"passages": None},
    ],
)
def test_an_answer_that_makes_no_sense_is_refused_whole(change: dict[str, Any]):
    with pytest.raises(UnreadableFile) as refused:
        parse_file.unpack(message(**change))
    assert refused.value.code == "parser_failed"
    assert refused.value.__cause__ is None


@given(st.binary(max_size=200))
def test_bytes_that_are_no_answer_are_refused(content: bytes):
    with pytest.raises(UnreadableFile):
        parse_file.unpack(content)


@settings(max_examples=200)
@given(st.integers(0, 3000), st.binary(min_size=1, max_size=4))
def test_an_answer_damaged_on_its_way_is_refused_or_still_sound(place: int, damage: bytes):
    whole = message()
    place %= len(whole)
    try:
        found = parse_file.unpack(whole[:place] + damage + whole[place + len(damage) :])
    except UnreadableFile:
        return
    assert all(0 <= each.start < each.end <= len(found.text) for each in found.passages)


def test_what_is_unpacked_is_what_was_packed():
    kind = file_types.PLAIN
    body = replace(ParsedFile("one two", (Block("text", 0, 7),)), pages=(TextPage(1, 0, 7, 595.0, 842.0, "front"),))
    found = parse_file.unpack(parse_file.pack(kind, body, []))
    assert (found.text, found.pages, found.extension) == (body.text, body.pages, "txt")
