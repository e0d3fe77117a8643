"""Contracts: each surface's tool list as a committed file, compared with what is served."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import tool_entry

_FOLDER = Path(__file__).parent


def path(surface: Surface) -> Path:
    """Where a surface's contract is kept."""
    return _FOLDER / surface.name / "contract.json"


def live(surface: Surface) -> list[dict[str, Any]]:
    """The tools as they are listed to a caller who may use all of them."""
    return [tool_entry(operation) for operation in surface.operations]


def write(surface: Surface) -> Path:
    """Write a surface's contract as it is now."""
    file = path(surface)
    file.write_bytes(orjson.dumps(live(surface), option=orjson.OPT_INDENT_2) + b"\n")
    return file


def differences(surfaces: Sequence[Surface]) -> dict[str, list[str]]:
    """For each surface that is not what its file says: the names of the tools that differ."""
    found: dict[str, list[str]] = {}
    for surface in surfaces:
        file = path(surface)
        kept = {tool["name"]: tool for tool in orjson.loads(file.read_bytes())} if file.exists() else {}
        served = {tool["name"]: tool for tool in live(surface)}
        changed = [name for name in {**kept, **served} if kept.get(name) != served.get(name)]
        if changed or list(kept) != list(served):
            found[surface.name] = changed or ["(order)"]
    return found
