"""A tool: what an agent reads about it, what it takes, and the verb it runs."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from almanac.audit.trail import AuditTrail
from almanac.core.arguments import Arguments, describe_arguments, describe_problems
from almanac.core.call import Call
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.db.read_cache import ReadCache
from almanac.knowledge.files import FileStore
from almanac.knowledge.knowledge_runtime import Runtime
from almanac.net.fetcher import Fetcher
from almanac.quotas.idempotency import IdempotencyStore
from almanac.quotas.rate_limits import RateLimit, RateLimiter
from almanac.search.engine import SearchEngine
from almanac.surfaces.gateway.state import Gateway


class NoArguments(Arguments):
    """For a tool that takes none."""


READS = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}  # of a tool that changes nothing

_NOTHING = NoArguments()
_UNKNOWN = "is not an argument of this tool"
_IMPLIED = (("default", None), ("additionalProperties", True))


@dataclass(frozen=True, slots=True)
class AppContext:
    """What the running server is made of, for the tools that speak of the server itself."""

    settings: Settings
    rates: RateLimiter
    trail: AuditTrail
    remembered: ReadCache
    files: FileStore
    fetcher: Fetcher
    search: SearchEngine
    gateway: Gateway
    key: bytes = field(repr=False)  # signs what we must recognise again
    call_rule: RateLimit
    repeats: IdempotencyStore
    started_at: int
    surfaces: Mapping[str, str]  # name: path
    runtime: Runtime | None = None  # answers queries where an operator says so; else search does


@dataclass(slots=True)
class ToolCall(Call):
    """One call of a tool: also the house it is made in and, where the transport has one, the way back to the client."""

    house: AppContext = cast("AppContext", None)
    client: Any = None
    path: str = ""  # by which it came, where a surface is served under several


@dataclass(frozen=True, slots=True)
class RawResult:
    """A result already in its wire form, for a tool that answers with more than one value."""

    result: dict[str, Any]


Run = Callable[[ToolCall, Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One entry of a surface."""

    name: str
    description: str
    run: Run
    arguments: type[BaseModel] | None = NoArguments  # None: taken as they come, by tools that speak the wire's form
    scopes: frozenset[str] = frozenset()
    output: type[Any] | None = None  # a dataclass or a pydantic model
    title: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])
    entry: Mapping[str, Any] | None = None  # what is listed, to the letter, where a contract gives it
    needs_client: bool = False  # talks to the client while it runs: progress, elicitation

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        if self.entry is not None:
            return dict(self.entry["inputSchema"])
        assert self.arguments is not None
        return input_schema(self.arguments, nulls=False)

    def describe(self) -> dict[str, Any]:
        """Its entry in `tools/list`."""
        if self.entry is not None:
            return dict(self.entry)
        entry: dict[str, Any] = {"name": self.name}
        if self.title:
            entry["title"] = self.title
        entry |= {"description": self.description, "inputSchema": self.schema}
        if self.output is not None:
            entry["outputSchema"] = output_outline(self.output)
        if self.annotations:
            entry["annotations"] = dict(self.annotations)
        return entry

    def parse(self, arguments: dict[str, Any]) -> Any:
        """The arguments, checked, or an error that says which one is wrong and how."""
        if self.arguments is None:
            return arguments
        if self.arguments is NoArguments and not arguments:
            return _NOTHING
        try:
            return self.arguments.model_validate(arguments)
        except ValidationError as error:
            raise BadRequest(describe_problems(error, _UNKNOWN), remedy=_expected(self.arguments)) from None


def load_contract(file: str) -> dict[str, dict[str, Any]]:
    """The entries of the contract that lies beside a surface's module, by their names: written by hand, and served."""
    entries: list[dict[str, Any]] = orjson.loads((Path(file).parent / "contract.json").read_bytes())
    return {entry["name"]: entry for entry in entries}


def tool_from_contract(
    entry: Mapping[str, Any],
    run: Run,
    scopes: frozenset[str] = frozenset(),
    arguments: type[BaseModel] | None = None,
) -> Tool:
    """The tool that an entry of a contract describes."""
    annotations = entry.get("annotations", {})
    return Tool(entry["name"], entry["description"], run, arguments, scopes, annotations=annotations, entry=entry)


def input_schema(model: type[Any], *, nulls: bool = True) -> dict[str, Any]:
    """A type's JSON schema in as few words as it can be said in: an agent reads all of them before it can begin.

    Without `nulls`, an argument that may be left out is not said to be null as well, which some clients cannot read.
    """
    schema = cast("dict[str, Any]", _terse(TypeAdapter(model).json_schema(), nulls))
    schema.pop("description", None)
    return schema


def output_outline(model: type[Any]) -> dict[str, Any]:
    """What an answer holds: its fields, and those of the things it lists. What else is in it shows when it comes."""
    schema = input_schema(model)
    # All fields are always there; to name the first of them is enough to tell an answer from anything else.
    return _outline(schema, schema.get("$defs", {})) | {"required": schema.get("required", [])[:1]}


def _outline(schema: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties", {})
    return {"properties": {name: _outlined(field, parts) for name, field in properties.items()}, "type": "object"}


def _outlined(field: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    said = {key: field[key] for key in ("description",) if key in field}
    match field:
        case {"$ref": _}:
            return said | {"type": "object"}
        case {"anyOf": [{"$ref": _}, {"type": "null"}]}:
            return said | {"type": ["object", "null"]}
        case {"items": {"$ref": str(reference)}}:
            return field | {"items": _outline(parts[reference.rpartition("/")[2]], parts)}
        case _:
            # What values a map has is not said, unless it is that there are none.
            return {key: value for key, value in field.items() if key != "additionalProperties" or value is False}


def _terse(node: Any, nulls: bool, names: bool = False) -> Any:
    """Without the titles pydantic adds, what holds anyway, and two ways of saying that something may be null."""
    if isinstance(node, dict):
        # Below "properties" and "$defs" the keys are names, so one that is called "title" stays.
        kept = {
            key: _terse(value, nulls, key in ("properties", "$defs"))
            for key, value in cast("dict[str, Any]", node).items()
            if names or (key != "title" and (key, value) not in _IMPLIED)
        }
        return kept if names else _simplified(kept, nulls)
    if isinstance(node, list):
        return [_terse(item, nulls) for item in cast("list[Any]", node)]
    return node


def _simplified(schema: dict[str, Any], nulls: bool) -> dict[str, Any]:
    if "ge" in schema:  # as pydantic writes the bound of a number that is strict as well
        schema["minimum"] = schema.pop("ge")
    match schema.get("anyOf"):
        case [{"type": str(kind)} as known, {"type": "null"}]:
            rest = {key: value for key, value in schema.items() if key != "anyOf"}
            return {**cast("dict[str, Any]", known), **rest, "type": [kind, "null"] if nulls else kind}
        case _:
            return schema


def _expected(model: type[BaseModel]) -> str:
    return describe_arguments(model) if model.model_fields else "This tool takes no arguments."
