"""Agent executions: the operations that interpret plain language, each with its prompt and its answer.

Administrators of the organisation read them. A setting gives the days that they are kept, and another one keeps their
prompts and answers out of the database.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel

from almanac.core import clock
from almanac.core.database import Reader, Row, Transaction

MAX_ANSWER_CHARS = 20_000  # of a stored answer; the rest is cut off
MAX_PROMPT_CHARS = 20_000


@dataclass(slots=True)
class RunningExecution:
    """An execution that has not ended: its prompt, and its answer as soon as there is one."""

    prompt: str
    answer: Any = None


class AgentExecutionEntry(NamedTuple):
    """The row of one execution."""

    at: int
    org_id: str
    principal_id: int
    surface: str
    tool: str
    outcome: str
    prompt: str | None
    answer: str | None
    duration_us: int
    touched: str
    request_id: str


@dataclass(frozen=True, slots=True)
class AgentExecution:
    """A stored execution, with the names of the organisation and of the user."""

    id: int
    at: int
    org: str
    actor: str
    kind: str
    surface: str
    tool: str
    outcome: str
    prompt: str | None
    answer: str | None
    duration_us: int
    touched: tuple[str, ...]
    request_id: str

    @property
    def is_success(self) -> bool:
        """Whether the operation answered without an error."""
        return self.outcome == "ok"


async def find(
    db: Reader,
    *,
    org_id: str | None = None,
    user: str | None = None,
    tool: str | None = None,
    since: int | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[AgentExecution]:
    """The executions of an organisation or of all, of a user or tool, in a recent duration, newest first."""
    rows = await db.fetch(
        "SELECT e.*, o.name AS org, p.name AS actor, p.kind AS kind FROM agent_executions e"
        " JOIN principals p ON p.id = e.principal_id JOIN orgs o ON o.id = e.org_id"
        " WHERE e.at >= $1 AND ($2 = '' OR p.name = $2) AND ($3 = '' OR e.tool = $3)"
        " AND ($4 = '' OR e.org_id = $4) ORDER BY e.at DESC, e.id DESC LIMIT $5 OFFSET $6",
        clock.now() - since if since else 0,
        user or "",
        tool or "",
        org_id or "",
        limit,
        offset,
    )
    return [_execution(row) for row in rows]


async def prune(tx: Transaction, before: int) -> int:
    """Remove the executions before a timestamp. Returns their number."""
    return await tx.execute("DELETE FROM agent_executions WHERE at < $1", before)


def stored_text(value: Any, max_chars: int) -> str:
    """A prompt or an answer as text that both databases can store."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=_plain).decode()
    return text[:max_chars].replace("\0", "").encode("utf-8", "replace").decode()


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def _execution(row: Row) -> AgentExecution:
    values: dict[str, Any] = {name: row[name] for name in AgentExecution.__dataclass_fields__}
    values["touched"] = tuple(row["touched"].split())
    return AgentExecution(**values)
