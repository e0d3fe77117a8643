"""The seed's document: its tools, its `curl` lines and its sentences."""

import re
from pathlib import Path
from typing import Any

TEXT = Path(__file__).with_name("seed.txt").read_text("utf-8")
LINES = TEXT.splitlines()

_TOOL = re.compile(r"knowi_[a-z_]+")
_HEADINGS = {"Deterministic Tools", "Streamable HTTP Transport"}  # that end the section of a tool
_TYPES: dict[str, dict[str, Any]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "array of integers": {"type": "array", "items": {"type": "integer"}},
    "array of strings": {"type": "array", "items": {"type": "string"}},
    "array of objects": {"type": "array", "items": {"type": "object"}},
}


def sections() -> dict[str, list[str]]:
    """The lines of each tool's section, by the tool's name, in the order of the document."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in LINES:
        if _TOOL.fullmatch(line):
            name = line
            found[name] = []
        elif line in _HEADINGS:
            name = ""
        elif name:
            found[name].append(line)
    return found


def tools() -> list[dict[str, Any]]:
    """The name, description and input schema of each tool."""
    return [
        {"name": name, "description": _description(lines), "inputSchema": _input_schema(lines)}
        for name, lines in sections().items()
    ]


def _description(lines: list[str]) -> str:
    """All prose of a section: without its table and its JSON example."""
    prose: list[str] = []
    depth = 0
    for line in lines:
        was_inside = depth > 0
        if not line.startswith("|"):
            depth += line.count("{") - line.count("}")
        is_example = was_inside or line.startswith("{") or line == "Example:"
        if not is_example and not line.startswith("|"):
            prose.append(line.lstrip("*").strip())
    return " ".join(prose)


def _input_schema(lines: list[str]) -> dict[str, Any]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    parameters = rows[2:]  # after the heading and its rule
    properties = {name: {**_TYPES[kind], "description": text} for name, kind, _, text in parameters}
    required = [name for name, _, is_required, _ in parameters if is_required == "Yes"]
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def curl_lines() -> list[str]:
    """The commands of the document as they are pasted into a shell.

    One command has lost the line break after a backslash, so that no shell can run it. It gets the line break back.
    """
    found: list[str] = []
    for number, line in enumerate(LINES):
        if line.startswith("curl "):
            command = [line]
            while not _is_complete(command):
                command.append(LINES[number + len(command)])
            found.append("\n".join(command).replace("\\ http", "\\\nhttp"))
    return found


def _is_complete(command: list[str]) -> bool:
    return not command[-1].endswith("\\") and "\n".join(command).count("'") % 2 == 0


def sentences() -> list[str]:
    """Every sentence of the document: lines of prose are split, lines of tables and of code are not."""
    found: list[str] = []
    for line in filter(str.strip, LINES):
        text = line.strip()
        is_prose = not text.startswith(("|", "{", "}", '"', "-H", "-d", "curl", "GET ", "POST "))
        found += re.split(r"(?<=[.?])\s+(?=[A-Z])", text) if is_prose else [text]
    return found
