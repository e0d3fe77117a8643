"""Jupyter notebooks: their prose, their code, and its printed output."""

from pathlib import Path
from typing import Any, cast

import orjson

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text import markdown
from almanac.knowledge.parsers.text_builder import TextBuilder

MAX_OUTPUT_CHARS = 5_000  # of one output of a cell; the rest is omitted
BROKEN = "The notebook is damaged and cannot be parsed. Save it again and add that copy."


def parse(path: Path, name: str) -> ParsedFile:
    try:
        notebook = _as_dict(orjson.loads(path.read_bytes()))
    except orjson.JSONDecodeError:
        raise UnreadableFile("corrupt", BROKEN) from None
    builder = TextBuilder()
    for cell in _cells(notebook):
        _write_cell(cell, builder)
    language = _as_dict(_as_dict(notebook.get("metadata")).get("kernelspec")).get("language")
    return builder.finish(metadata={"programming_language": language} if isinstance(language, str) else {})


def _cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells; notebooks before version 4 keep them in worksheets."""
    worksheets = [_as_dict(worksheet) for worksheet in _as_list(notebook.get("worksheets"))]
    cells = _as_list(notebook.get("cells")) or [cell for w in worksheets for cell in _as_list(w.get("cells"))]
    return [_as_dict(cell) for cell in cells]


def _write_cell(cell: dict[str, Any], builder: TextBuilder) -> None:
    text = _join_lines(cell.get("source", cell.get("input")))
    if cell.get("cell_type") == "code":
        builder.add_code(text)
        for output in _as_list(cell.get("outputs")):
            builder.add_text(_output_text(_as_dict(output))[:MAX_OUTPUT_CHARS])
    elif cell.get("cell_type") == "heading":
        builder.add_heading(text, cell["level"] if isinstance(cell.get("level"), int) else 1)
    else:
        builder.add_blocks(text, markdown.blocks(text))


def _output_text(output: dict[str, Any]) -> str:
    """The plain text of an output, without images and formatted versions."""
    return _join_lines(output.get("text")) or _join_lines(_as_dict(output.get("data")).get("text/plain"))


def _as_dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _join_lines(value: Any) -> str:
    lines = value if isinstance(value, str) else "".join(line for line in _as_list(value) if isinstance(line, str))
    return lines.replace("\r\n", "\n").replace("\r", "\n")
