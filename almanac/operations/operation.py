"""An operation: one thing a caller can do, declared once. The MCP tool, the REST route, the OpenAPI document, the CLI's
JSON output and the reference pages are derived from this declaration."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, get_type_hints

from pydantic import BaseModel, ValidationError

from almanac.core.arguments import Arguments, describe_arguments, describe_correction, describe_problems
from almanac.core.errors import AlmanacError, BadRequest
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, Authentication, RequestContext

MAX_ARGUMENTS = 1_000
MAX_QUESTION_BYTES = 1024 * 1024  # of the JSON of an operation that stores nothing, so that no long text is in it
UNKNOWN_ARGUMENT = "is not an argument of this operation"

Model = TypeVar("Model", bound=BaseModel)


class NoArguments(Arguments):
    """The arguments of an operation that takes none."""


_NO_ARGUMENTS = NoArguments()


@dataclass(frozen=True, slots=True)
class Safety:
    """The hints that MCP clients show before a call, with the protocol's meaning."""

    read_only: bool = False
    destructive: bool = False
    idempotent: bool | None = None
    open_world: bool = False  # reaches beyond this server

    def annotations(self) -> dict[str, bool]:
        """The hints as `annotations` of a tool."""
        hints = {"readOnlyHint": self.read_only, "destructiveHint": self.destructive}
        if self.idempotent is not None:
            hints["idempotentHint"] = self.idempotent
        return {**hints, "openWorldHint": self.open_world}


READ_ONLY = Safety(read_only=True)
ADDS = Safety(idempotent=False)
FETCHES_AND_ADDS = Safety(idempotent=False, open_world=True)
CHANGES = Safety(destructive=True, idempotent=True)
SAVES = Safety(destructive=True, idempotent=False)


@dataclass(frozen=True, slots=True)
class RestOnly:
    """Marks a field of an answer that MCP leaves out, because an agent pays for each word it reads."""


REST_ONLY = RestOnly()


@dataclass(frozen=True, slots=True)
class Example:
    """An example of the arguments and of the answer, for the documentation."""

    arguments: Mapping[str, Any] | None = None
    answer: Any = None


NO_EXAMPLE = Example()


@dataclass(frozen=True, slots=True)
class Form:
    """The body of an upload: a multipart form with a `file` part, or the raw bytes of the file."""

    fields: frozenset[str] = frozenset()  # arguments that a form may carry beside the file
    takes_raw_bytes: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """The REST form of an operation.

    Arguments that the path names come from the path. The other arguments come from the query string or, of an
    operation that takes a body, from the body.
    """

    method: str
    path: str
    status: int = 200
    omit: frozenset[str] = frozenset()  # arguments that are left out of REST
    # The model of path and query, where a seed's contract separates them from the body. Handlers find the values in
    # `ctx.parameters`.
    parameters: type[BaseModel] | None = None
    location: str = ""  # of a created object, such as "/bases/{id}"
    status_of: Callable[[Any], int] | None = None  # of an answer whose status varies
    other_statuses: Mapping[int, str] = field(default_factory=dict[int, str])  # further good statuses: meaning
    form: Form | None = None
    authenticate: Callable[[AppContext, HttpExchange], Awaitable[Authentication]] | None = None
    # OpenAPI's names of the credentials, where they are not the usual ones; None if the body has the credential.
    credentials: tuple[str, ...] | None = ()
    # The body of an error, for clients that know another form; None for the usual one.
    render_error: Callable[[RequestContext, AlmanacError], Any] | None = None
    error_status: int | None = None  # of an error that is rendered so
    error_answer: Any = None  # the model of an error that is rendered so

    @property
    def takes_body(self) -> bool:
        """Whether arguments come from a body."""
        return self.method in ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True)
class Mcp:
    """The MCP form of an operation."""

    advice: str = ""  # the next or previous call; it follows the summary in the tool's description
    omit: frozenset[str] = frozenset()  # arguments that are left out of the tool
    entry: Mapping[str, Any] | None = None  # the literal tool entry of a seed's contract
    outlines_answer: bool = True  # False: no program is written against the answer, so its fields are not listed
    sdk_only: bool = False  # sends messages to the client while it runs; the fast path cannot


@dataclass(frozen=True, slots=True)
class AgentUse:
    """An operation that interprets plain language. The pipeline checks, counts and records its executions."""

    prompt: str  # the argument with the caller's words
    check: Callable[[str], None] | None = None  # raises an error for a prompt that is refused
    is_metered: bool = False  # counts against the organisation's monthly quota of agent calls
    only_with_model: bool = False  # recorded if the handler has set `ctx.has_used_model`; otherwise always


Handler = Callable[[RequestContext, Any], Awaitable[Any]]


class NamedHandler(Protocol):
    """A function that runs an operation. Its annotations declare the arguments and the answer, its docstring the
    summary."""

    __name__: str
    __doc__: str | None

    def __call__(self, ctx: RequestContext, args: Any, /) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing a caller can do."""

    name: str  # of the tool, in OpenAPI, audit rows, token limits and metric labels
    summary: str
    handler: Handler
    arguments: type[BaseModel] | None = NoArguments  # None: the handler takes the raw arguments
    answer: Any = None  # a dataclass, a model or FileAnswer; None for nothing
    scopes: frozenset[str] = frozenset()
    title: str = ""
    safety: Safety = READ_ONLY
    rest: Rest | None = None
    mcp: Mcp | None = None
    covers: tuple[str, ...] = ()  # REST operations that this MCP tool makes possible for agents
    people_only: str = ""  # why agents cannot do this
    example: Example = NO_EXAMPLE
    agent: AgentUse | None = None  # of an operation in plain language
    tool: str = ""  # the tool that reads the same data: a token limited to tools needs it; empty: this operation

    def max_json_bytes(self, max_body_bytes: int) -> int:
        """The maximum size of a JSON body."""
        is_writing = any(scope.endswith(":write") for scope in self.scopes)
        return max_body_bytes if is_writing else min(MAX_QUESTION_BYTES, max_body_bytes)

    def check_count(self, raw: dict[str, Any]) -> None:
        """Refuse more arguments than any operation takes, before they are validated one by one."""
        if self.arguments is not None and len(raw) > MAX_ARGUMENTS:
            raise BadRequest(
                f"There are more than {MAX_ARGUMENTS:,} arguments.", remedy=describe_arguments(self.arguments)
            )

    def parse(self, raw: dict[str, Any]) -> Any:
        """Return the validated arguments, or raise an error that names each wrong argument."""
        if self.arguments is None:
            return raw
        if self.arguments is NoArguments and not raw:
            return _NO_ARGUMENTS
        return parse_arguments(self.arguments, raw)


def parse_arguments(model: type[Model], raw: Mapping[str, Any]) -> Model:
    """Return validated arguments, or raise an error that names each wrong argument."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise BadRequest(describe_problems(error, UNKNOWN_ARGUMENT), remedy=describe_correction(error, model)) from None


def operation(
    handler: NamedHandler,
    *,
    answer: Any = None,
    scopes: frozenset[str] = frozenset(),
    title: str = "",
    safety: Safety = READ_ONLY,
    rest: Rest | None = None,
    mcp: Mcp | None = None,
    covers: tuple[str, ...] = (),
    people_only: str = "",
    example: Example = NO_EXAMPLE,
    agent: AgentUse | None = None,
) -> Operation:
    """Declare an operation by its handler. `answer` is given where the handler may also send the answer itself."""
    _, arguments, returned = get_type_hints(handler).values()
    summary = " ".join((handler.__doc__ or "").split())
    return Operation(
        handler.__name__,
        summary if mcp else summary.removesuffix("."),  # MCP shows it as a sentence, OpenAPI as a heading
        handler,
        arguments,
        answer or (None if returned is type(None) else returned),
        scopes,
        title=title,
        safety=safety,
        rest=rest,
        mcp=mcp,
        covers=covers,
        people_only=people_only,
        example=example,
        agent=agent,
    )
