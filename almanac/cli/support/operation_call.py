"""Operations at the command line: the same handlers and answers as over MCP and REST."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError

from almanac.cli.support.output import print_json_text
from almanac.core.arguments import describe_problems
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.operations.context import AppContext, RequestContext
from almanac.search.backends import open_search
from almanac.search.engine import SearchEngine


class AnswerPage(Protocol):
    """An answer that is one page of a list."""

    items: list[Any]
    has_more: bool


ArgumentsType = TypeVar("ArgumentsType", bound=BaseModel)
PageType = TypeVar("PageType", bound=AnswerPage)


@dataclass(frozen=True, slots=True)
class CommandResources:
    """The part of `AppContext` that a command opens. Opening all of it takes seconds."""

    settings: Settings
    db: Database
    search: SearchEngine


def request_of(call: Call) -> RequestContext:
    """Return the request of a call, for operations that need nothing but the database."""
    return RequestContext(call.actor, call.db, call.request_id)


@asynccontextmanager
async def open_request(settings: Settings, call: Call) -> AsyncGenerator[RequestContext]:
    """Return the request of a call, for operations that need search."""
    async with open_search(settings, call.db) as search:
        app = cast("AppContext", CommandResources(settings, call.db, search))
        yield RequestContext(call.actor, call.db, call.request_id, app=app)


def parse_arguments(model: type[ArgumentsType], **values: Any) -> ArgumentsType:
    """Return the arguments of an operation, or raise an error that names each wrong value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadRequest(describe_problems(error, "is not taken here")) from None


async def all_pages(
    handler: Callable[[RequestContext, ArgumentsType], Awaitable[PageType]],
    ctx: RequestContext,
    arguments: ArgumentsType,
) -> PageType:
    """Call an operation for each page and return one answer with all items. The next page begins at an offset or, if
    the operation has the argument `after`, after an id."""
    answer = await handler(ctx, arguments)
    has_cursor = "after" in type(arguments).model_fields
    while answer.has_more:
        start = {"after": answer.items[-1].id} if has_cursor else {"offset": len(answer.items)}
        page = await handler(ctx, arguments.model_copy(update=start))
        answer.items += page.items
        answer.has_more = page.has_more
    return answer


def print_answer(answer: Any) -> None:
    """Print the answer of an operation as JSON, with the fields that REST sends."""
    print_json_text(orjson.dumps(answer).decode())
