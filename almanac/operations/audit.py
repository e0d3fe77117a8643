"""The operations that show administrators the calls and the agent executions of their organisation."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from almanac.audit import agent_executions, trail
from almanac.audit.agent_executions import AgentExecution
from almanac.audit.trail import AuditRow
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.operations.context import RequestContext
from almanac.operations.models import EXAMPLE_TIMESTAMP, Limit, Offset, Timestamp, timestamp
from almanac.operations.operation import Example, Operation, Rest, operation

_AUDIT = frozenset({"audit:read"})
_PEOPLE_ONLY = "The records are about agents, so they are not theirs to read."

Hours = Annotated[int, Field(ge=1, le=876_600, description="Only those of so many last hours.")]


class FindCalls(Arguments):
    user: Annotated[str | None, Field(max_length=100, description="A user's or agent's name.")] = None
    tool: Annotated[str | None, Field(max_length=100, description="The name of an operation.")] = None
    hours: Hours | None = None
    limit: Limit = 100
    offset: Offset = 0

    @property
    def since(self) -> int | None:
        """The duration before now."""
        return None if self.hours is None else self.hours * clock.HOUR


@dataclass(slots=True)
class CallInfo:
    """A call, without its arguments and its answer."""

    id: int
    at: Timestamp
    user: str
    surface: str
    tool: str
    outcome: Annotated[str, Field(description="ok, or the code of the error.")]
    milliseconds: float
    resources: Annotated[list[str], Field(description="The objects it read or changed, such as document:52.")]
    request_id: str


@dataclass(slots=True)
class AgentExecutionInfo(CallInfo):
    """An execution of an operation in plain language."""

    prompt: Annotated[str | None, Field(description="null: the server does not store prompts.")]
    answer: Annotated[str | None, Field(description="The answer or the error. null: none, or not stored.")]


@dataclass(slots=True)
class CallList:
    """A page of calls, newest first."""

    items: list[CallInfo]
    has_more: bool


@dataclass(slots=True)
class AgentExecutionList:
    """A page of executions, newest first."""

    items: list[AgentExecutionInfo]
    has_more: bool


async def list_calls(ctx: RequestContext, args: FindCalls) -> CallList:
    """The audit trail of your organisation: its calls, newest first."""
    rows = await trail.find(
        ctx.db, org_id=ctx.actor.org_id, user=args.user, tool=args.tool, since=args.since,
        limit=args.limit + 1, offset=args.offset,
    )  # fmt: skip
    return CallList([CallInfo(*_common(row)) for row in rows[: args.limit]], len(rows) > args.limit)


async def list_agent_executions(ctx: RequestContext, args: FindCalls) -> AgentExecutionList:
    """The executions of operations in plain language in your organisation, newest first."""
    rows = await agent_executions.find(
        ctx.db, org_id=ctx.actor.org_id, user=args.user, tool=args.tool, since=args.since,
        limit=args.limit + 1, offset=args.offset,
    )  # fmt: skip
    items = [AgentExecutionInfo(*_common(row), row.prompt, row.answer) for row in rows[: args.limit]]
    return AgentExecutionList(items, len(rows) > args.limit)


def _common(row: AuditRow | AgentExecution) -> tuple[int, str, str, str, str, str, float, list[str], str]:
    milliseconds = row.duration_us / 1000
    return (
        *(row.id, timestamp(row.at), row.actor, row.surface, row.tool, row.outcome, milliseconds),
        *(list(row.touched), row.request_id),
    )


_EXAMPLE = (311, EXAMPLE_TIMESTAMP, "maria", "knowi", "knowi_ask", "ok", 182.4, ["dataset:7"], "f3a0-1c")

OPERATIONS: tuple[Operation, ...] = (
    operation(
        list_calls,
        scopes=_AUDIT,
        rest=Rest("GET", "/audit"),
        people_only=_PEOPLE_ONLY,
        example=Example(answer=CallList([CallInfo(*_EXAMPLE)], False)),
    ),
    operation(
        list_agent_executions,
        scopes=_AUDIT,
        rest=Rest("GET", "/agent-executions"),
        people_only=_PEOPLE_ONLY,
        example=Example(
            answer=AgentExecutionList([AgentExecutionInfo(*_EXAMPLE, "What were sales in May?", "Sales: 12.")], False)
        ),
    ),
)
