"""JSON and JSON lines: every value on a line of its own, after the path to it.

Each passage of a deep document then shows its subject. A list of flat objects becomes a table.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import orjson

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings, plain_text
from almanac.knowledge.parsers.text_builder import TextBuilder

MAX_JSON_DEPTH = 60  # deeper values stay JSON
MAX_TABLE_COLUMNS = 40  # a list of objects with more keys does not become a table
MAX_LIST_LINE_CHARS = 500  # a list of short values up to this length stays on one line
BROKEN = "The file is not valid JSON, so it was parsed as plain text."


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = encodings.decode(path.read_bytes())
    builder = TextBuilder()
    try:
        _write(orjson.loads(text), "", builder)
    except orjson.JSONDecodeError:
        return _parse_lines(text)
    return builder.finish()


def _parse_lines(text: str) -> ParsedFile:
    """One record on each line. If most lines are not JSON, the file is plain text."""
    builder = TextBuilder()
    invalid = valid = 0
    for line in filter(str.strip, text.split("\n")):
        try:
            builder.add_text("\n".join(_lines(orjson.loads(line), "")))
            valid += 1
        except orjson.JSONDecodeError:
            builder.add_text(line)
            invalid += 1
    if invalid <= valid:
        return builder.finish(warnings=[f"{invalid} of {invalid + valid} lines are not valid JSON."] if invalid else [])
    return ParsedFile(text, tuple(plain_text.paragraphs(text, 0, len(text))), warnings=(BROKEN,))


def _write(value: Any, path: str, builder: TextBuilder) -> None:
    """Write a value. Each member of an object and each element of a list becomes a block."""
    if rows := as_table(value):
        builder.add_text(f"{path}:" if path else "")
        builder.add_table(rows)
    elif isinstance(value, dict) and value and not path:
        members = cast("dict[str, Any]", value)
        scalars = {key: member for key, member in members.items() if not isinstance(member, dict | list)}
        builder.add_text("\n".join(_lines(scalars, "")) if scalars else "")
        for key, member in members.items():
            if key not in scalars:
                _write(member, key, builder)
    elif isinstance(value, list) and value:
        for index, element in enumerate(cast("list[Any]", value)):
            builder.add_text("\n".join(_lines(element, f"{path}[{index}]")))
    else:
        builder.add_text("\n".join(_lines(value, path)))


def as_table(value: Any) -> list[list[str]]:
    """The rows of a list of objects with the same keys and only scalar values; empty for any other value."""
    elements = cast("list[Any]", value) if isinstance(value, list) else []
    if len(elements) < 2 or not all(isinstance(element, dict) for element in elements):
        return []
    keys = list(cast("dict[str, Any]", elements[0]))
    if not 2 <= len(keys) <= MAX_TABLE_COLUMNS or not all(_is_row(element, keys) for element in elements):
        return []
    return [keys, *([_as_text(element.get(key)) for key in keys] for element in elements)]


def _is_row(element: dict[str, Any], keys: list[str]) -> bool:
    return all(key in keys for key in element) and not any(isinstance(v, dict | list) for v in element.values())


def _lines(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict | list) and value and depth > MAX_JSON_DEPTH:
        yield f"{path}: {orjson.dumps(value).decode()}"
    elif isinstance(value, dict) and value:
        for key, member in cast("dict[str, Any]", value).items():
            yield from _lines(member, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list) and value:
        yield from _list_lines(cast("list[Any]", value), path, depth)
    else:
        yield f"{path}: {_as_text(value)}" if path else _as_text(value)


def _list_lines(elements: list[Any], path: str, depth: int) -> Iterator[str]:
    """A list of short scalars on one line; other lists element by element."""
    has_scalars = all(not isinstance(element, dict | list) for element in elements)
    if has_scalars and sum(len(_as_text(element)) for element in elements) < MAX_LIST_LINE_CHARS:
        yield f"{path}: {', '.join(map(_as_text, elements))}"
        return
    for index, element in enumerate(elements):
        yield from _lines(element, f"{path}[{index}]", depth + 1)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
