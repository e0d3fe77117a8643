"""The message from a parser to the server: the server accepts only valid messages."""

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from almanac.knowledge.parsers import file_signatures, parse_message
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage, UnreadableFile
from tests.knowledge.corpus.expected import FILES
from tests.knowledge.parsers.test_parse_file import parse_and_split


def message(**changes: Any) -> bytes:
    """A valid message with these fields replaced."""
    return orjson.dumps(orjson.loads(parse_and_split(FILES / "talk.pptx")) | changes)


def page(number: int, start: int, end: int, **changes: Any) -> dict[str, Any]:
    return {"number": number, "start": start, "end": end, "width": None, "height": None, "name": ""} | changes


def passage(**changes: Any) -> list[dict[str, Any]]:
    valid: dict[str, Any] = {
        "start": 0,
        "end": 5,
        "text": "# Bee",
        "kind": "text",
        "headings": [],
        "page": 1,
        "boxes": [],
        "parent": None,
    }
    return [valid | changes]


def test_a_valid_message_is_unpacked():
    document = parse_message.unpack(message(passages=passage(boxes=[[1, 0, 0.5, 10, 20]])))
    assert document.passages[0].boxes == ((1, 0, 0.5, 10, 20),)
    assert document.pages[0] == TextPage(1, 0, document.pages[0].end)


@pytest.mark.parametrize(
    "changes",
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
        {"pages": [page(0, 0, 1)]},
        {"pages": [page(1, 0, 10_000)]},
        {"pages": [page(1, 5, 2)]},
        {"pages": [page(1, 0, 5), page(1, 5, 6)]},
        {"pages": [page(1, 0, 5), page(2, 3, 6)]},
        {"pages": [page(1, 0, 5, width=-1.0)]},
        {"pages": [page(1, 0, 5, width=1e300)]},
        {"pages": [page(1, 0, 5, name="n" * 501)]},
        {"pages": [{"number": 1, "start": 0}]},
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
def test_a_message_with_one_invalid_field_is_refused(changes: dict[str, Any]):
    with pytest.raises(UnreadableFile) as refused:
        parse_message.unpack(message(**changes))
    assert (refused.value.code, refused.value.message) == ("parser_crashed", parse_message.INVALID_PARSER_OUTPUT)
    assert refused.value.__cause__ is refused.value.__context__ is None  # that error would quote the document


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(content: bytes):
    with pytest.raises(UnreadableFile):
        parse_message.unpack(content)


@settings(max_examples=200)
@given(st.integers(0, 3000), st.binary(min_size=1, max_size=4))
def test_a_damaged_message_is_refused_or_still_valid(offset: int, damage: bytes):
    whole = message()
    offset %= len(whole)
    try:
        document = parse_message.unpack(whole[:offset] + damage + whole[offset + len(damage) :])
    except UnreadableFile:
        return
    assert all(0 <= passage.start < passage.end <= len(document.text) for passage in document.passages)


def test_unpacking_returns_the_packed_values():
    parsed = replace(ParsedFile("one two", (Block("text", 0, 7),)), pages=(TextPage(1, 0, 7, 595.0, 842.0, "front"),))
    document = parse_message.unpack(parse_message.pack(file_signatures.PLAIN, parsed, []))
    assert (document.text, document.pages, document.extension) == (parsed.text, parsed.pages, "txt")
