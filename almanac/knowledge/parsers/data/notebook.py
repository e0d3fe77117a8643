"""Notebooks: their prose, their code, and what the code printed."""

from pathlib import Path
from typing import Any, cast

import orjson

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text import markdown
from almanac.knowledge.parsers.text_builder import TextBuilder

LONGEST_OUTPUT = 5_000  # characters kept of what one cell printed
BROKEN = "The notebook is damaged and cannot be read; save it again and add that."


def parse(path: Path, name: str) -> ParsedFile:
    try:
        notebook = _object(orjson.loads(path.read_bytes()))
    except orjson.JSONDecodeError:
        raise UnreadableFile("corrupt", BROKEN) from None
    draft = TextBuilder()
    for cell in _cells(notebook):
        _write(cell, draft)
    language = _object(_object(notebook.get("metadata")).get("kernelspec")).get("language")
    return draft.parsed(metadata={"programming_language": language} if isinstance(language, str) else {})


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells; notebooks before version 4 keep them in worksheets."""
    sheets = [_object(each) for each in _list(notebook.get("worksheets"))]
    found = _list(notebook.get("cells")) or [cell for sheet in sheets for cell in _list(sheet.get("cells"))]
    return [_object(cell) for cell in found]


def _write(cell: dict[str, Any], draft: TextBuilder) -> None:
    text = _joined(cell.get("source", cell.get("input")))
    if cell.get("cell_type") == "code":
        draft.code(text)
        for output in _list(cell.get("outputs")):
            draft.text(_printed(_object(output))[:LONGEST_OUTPUT])
    elif cell.get("cell_type") == "heading":
        draft.heading(text, cell["level"] if isinstance(cell.get("level"), int) else 1)
    else:
        draft.paste(text, markdown.blocks(text))


def _printed(output: dict[str, Any]) -> str:
    """What a reader sees of an output as text; pictures and formatted forms are left out."""
    return _joined(output.get("text")) or _joined(_object(output.get("data")).get("text/plain"))


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _joined(value: Any) -> str:
    lines = value if isinstance(value, str) else "".join(each for each in _list(value) if isinstance(each, str))
    return lines.replace("\r\n", "\n").replace("\r", "\n")
