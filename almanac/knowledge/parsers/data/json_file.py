"""JSON and JSON lines: every value on a line of its own, behind the path that leads to it.

A piece of a deep document then still says what it is about. A list of flat objects becomes a table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings, plain_text
from almanac.knowledge.parsers.text_builder import TextBuilder

MAX_JSON_DEPTH = 60  # levels; what lies deeper stays JSON
MAX_TABLE_COLUMNS = 40  # columns; objects with more keys are no table
BROKEN = "The file is not valid JSON, so it was read as plain text."


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = encodings.decode(path.read_bytes())
    draft = TextBuilder()
    try:
        _write(orjson.loads(text), "", draft)
    except orjson.JSONDecodeError:
        return _parse_lines(text)
    return draft.parsed()


def _parse_lines(text: str) -> ParsedFile:
    """One record to a line; if most are none, no JSON at all."""
    draft = TextBuilder()
    broken = whole = 0
    for line in filter(str.strip, text.split("\n")):
        try:
            draft.text("\n".join(_lines(orjson.loads(line), "")))
            whole += 1
        except orjson.JSONDecodeError:
            draft.text(line)
            broken += 1
    if broken <= whole:
        return draft.parsed(warnings=[f"{broken} of {broken + whole} lines are not valid JSON."] if broken else [])
    return ParsedFile(text, tuple(plain_text.paragraphs(text, 0, len(text))), warnings=(BROKEN,))


def _write(value: Any, path: str, draft: TextBuilder) -> None:
    """The parts of a document, each a block: the members of an object, the elements of a list."""
    if table := as_table(value):
        draft.text(f"{path}:" if path else "")
        draft.table(table)
    elif isinstance(value, dict) and value and not path:
        members = cast("dict[str, Any]", value)
        scalars = {key: each for key, each in members.items() if not isinstance(each, dict | list)}
        draft.text("\n".join(_lines(scalars, "")) if scalars else "")
        for key, each in members.items():
            if key not in scalars:
                _write(each, key, draft)
    elif isinstance(value, list) and value:
        for number, each in enumerate(cast("list[Any]", value)):
            draft.text("\n".join(_lines(each, f"{path}[{number}]")))
    else:
        draft.text("\n".join(_lines(value, path)))


def as_table(value: Any) -> list[list[str]]:
    """A list of objects that have the same keys and only plain values, as rows; empty if it is none."""
    elements = cast("list[Any]", value) if isinstance(value, list) else []
    if len(elements) < 2 or not all(isinstance(each, dict) for each in elements):
        return []
    keys = list(cast("dict[str, Any]", elements[0]))
    if not 2 <= len(keys) <= MAX_TABLE_COLUMNS or not all(_is_row(each, keys) for each in elements):
        return []
    return [keys, *([_shown(each.get(key)) for key in keys] for each in elements)]


def _is_row(value: dict[str, Any], keys: list[str]) -> bool:
    return all(key in keys for key in value) and not any(isinstance(each, dict | list) for each in value.values())


def _lines(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict | list) and value and depth > MAX_JSON_DEPTH:
        yield f"{path}: {orjson.dumps(value).decode()}"
    elif isinstance(value, dict) and value:
        for key, each in cast("dict[str, Any]", value).items():
            yield from _lines(each, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list) and value:
        yield from _list_lines(cast("list[Any]", value), path, depth)
    else:
        yield f"{path}: {_shown(value)}" if path else _shown(value)


def _list_lines(value: list[Any], path: str, depth: int) -> Iterator[str]:
    """A list of short values on one line; of anything else, an element at a time."""
    if all(not isinstance(each, dict | list) for each in value) and sum(len(_shown(each)) for each in value) < 500:
        yield f"{path}: {', '.join(map(_shown, value))}"
        return
    for number, each in enumerate(value):
        yield from _lines(each, f"{path}[{number}]", depth + 1)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
