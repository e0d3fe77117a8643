"""From operations to MCP tools: entries of `tools/list`, and operations that a seed's contract describes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

from almanac.operations import schemas
from almanac.operations.operation import AgentUse, Handler, Mcp, Operation


@dataclass(frozen=True, slots=True)
class RawResult:
    """A tool result that already has its wire form."""

    result: dict[str, Any]


def tool_entry(operation: Operation) -> dict[str, Any]:
    """Return an operation's entry in `tools/list`."""
    mcp = operation.mcp or Mcp()
    if mcp.entry is not None:
        return dict(mcp.entry)
    entry: dict[str, Any] = {"name": operation.name}
    if operation.title:
        entry["title"] = operation.title
    entry |= {"description": f"{operation.summary} {mcp.advice}".strip(), "inputSchema": tool_schema(operation)}
    if operation.answer is not None:
        schema_of = schemas.output_schema if mcp.outlines_answer else schemas.minimal_output_schema
        entry["outputSchema"] = schema_of(operation.answer)
    return entry | {"annotations": operation.safety.annotations()}


def tool_schema(operation: Operation) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    mcp = operation.mcp or Mcp()
    if mcp.entry is not None:
        return dict(mcp.entry["inputSchema"])
    assert operation.arguments is not None
    return schemas.input_schema(operation.arguments, mcp.omit)


def load_contract(module_file: str) -> dict[str, dict[str, Any]]:
    """Return the entries of the contract.json beside a module, by name. They are handwritten and served literally."""
    entries: list[dict[str, Any]] = orjson.loads((Path(module_file).parent / "contract.json").read_bytes())
    return {entry["name"]: entry for entry in entries}


def operation_from_contract(
    entry: Mapping[str, Any],
    handler: Handler,
    scopes: frozenset[str] = frozenset(),
    arguments: type[BaseModel] | None = None,
    agent: AgentUse | None = None,
) -> Operation:
    """Return the operation that an entry of a contract describes. Without a model, the handler parses the arguments."""
    return Operation(
        entry["name"], entry["description"], handler, arguments, scopes=scopes, mcp=Mcp(entry=entry), agent=agent
    )
