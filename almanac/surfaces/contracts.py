"""Contracts: the tool list of each surface as a committed file, compared with the served list."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import tool_entry

SURFACES_FOLDER = Path(__file__).parent


def path(surface: Surface) -> Path:
    """Return the file of a surface's contract."""
    return SURFACES_FOLDER / surface.name / "contract.json"


def served_tools(surface: Surface) -> list[dict[str, Any]]:
    """Return the tool list of a caller with all scopes."""
    return [tool_entry(operation) for operation in surface.operations]


def committed_tools(surface: Surface) -> list[dict[str, Any]]:
    """Return the tools of the contract file, without those that do not exist yet."""
    return [tool for tool in _read(path(surface)) if tool["name"] not in surface.missing_tools]


def write(surface: Surface) -> Path | None:
    """Write the served tool list to the contract file. None: it is only written by hand, because tools are missing."""
    if surface.missing_tools:
        return None
    file = path(surface)
    file.write_bytes(orjson.dumps(served_tools(surface), option=orjson.OPT_INDENT_2) + b"\n")
    return file


def differences(surfaces: Sequence[Surface]) -> dict[str, list[str]]:
    """Return the surfaces that differ from their files, each with the names of the tools that differ."""
    differing: dict[str, list[str]] = {}
    for surface in surfaces:
        committed = {tool["name"]: tool for tool in committed_tools(surface)}
        served = {tool["name"]: tool for tool in served_tools(surface)}
        changed = [name for name in {**committed, **served} if committed.get(name) != served.get(name)]
        if changed or list(committed) != list(served):
            differing[surface.name] = changed or ["(order)"]
    return differing


def _read(file: Path) -> list[dict[str, Any]]:
    return orjson.loads(file.read_bytes()) if file.exists() else []
