"""Types, models and small functions that several operations share."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from almanac.core import arguments, clock
from almanac.core.arguments import Arguments, RecordId
from almanac.core.errors import BadRequest
from almanac.knowledge.documents import Document
from almanac.operations.context import RequestContext
from almanac.operations.operation import Handler, operation, parse_arguments

READ_KNOWLEDGE = frozenset({"knowledge:read"})
WRITE_KNOWLEDGE = frozenset({"knowledge:write"})
SEARCH = frozenset({"search:read"})

read_operation = partial(operation, scopes=READ_KNOWLEDGE)
write_operation = partial(operation, scopes=WRITE_KNOWLEDGE)

MAX_PAGE_ITEMS = 500

# Bounds of ids are checked but not described: two numbers for each id would tell an agent nothing.
BaseId = Annotated[RecordId, Field(description="From list_bases.")]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE_ITEMS, description="Items on a page.")]
Offset = Annotated[arguments.Offset, Field(description="Items to skip.")]

Level = Literal["personal", "group", "organization"]
RoleName = Literal["Owner", "Maintainer", "Developer", "Reporter", "RestrictedAnalyst"]
IfExists = Literal["error", "replace", "keep_both"]
Timestamp = Annotated[str, Field(description="ISO 8601, UTC.", examples=["2026-11-02T09:30:00.000Z"])]

EXAMPLE_TIMESTAMP = "2026-11-02T09:30:00.000Z"

T = TypeVar("T")


def require(value: T | None, name: str, action: str) -> T:
    """Return the value of an argument that an action needs."""
    if value is None:
        raise BadRequest(f"{name}: the action {action!r} needs it.")
    return value


class OneBase(Arguments):
    base_id: BaseId


class UntrustedAnswer:
    """The base of answers with text of documents. Anyone may have written it, so both interfaces label it as data."""

    __slots__ = ()


@dataclass(slots=True)
class DocumentCount:
    """The number of documents that were changed."""

    count: int


@dataclass(slots=True)
class Done:
    """The answer of the tools that change something."""

    done: str
    ids: list[int]


def require_change(args: Arguments, *ids: str) -> None:
    """Refuse an update that changes nothing."""
    fields = [name for name in type(args).model_fields if name not in ids]
    if all(getattr(args, name) is None for name in fields):
        raise BadRequest("There is nothing to change.", remedy=f"Give one of: {', '.join(fields)}.")


@dataclass(frozen=True, slots=True)
class Action:
    """An action of an MCP tool that joins several operations: the operation that it runs."""

    handler: Handler
    arguments: type[Arguments]
    needs: tuple[str, ...] = ()  # the only arguments that it takes; empty: those of the operation


async def run_action(ctx: RequestContext, args: Any, action: Action) -> Any:
    """Run an action with the arguments that are given and that it takes. `args.action` is its name."""
    fields = action.arguments.model_fields
    taken = action.needs or tuple(fields)
    given = {name: value for name, value in args if name in taken and value is not None}
    for name in taken:
        if action.needs or fields[name].is_required():
            require(given.get(name), name, args.action)
    return await action.handler(ctx, parse_arguments(action.arguments, given))


def timestamp(at: int) -> str:
    """Return a stored time in ISO 8601."""
    return clock.format_timestamp(at) or ""


def failure_text(document: Document) -> str | None:
    """Return why a document could not be read, in one sentence."""
    failure = document.failure
    return f"{failure.code}: {failure.message}" if failure else None
