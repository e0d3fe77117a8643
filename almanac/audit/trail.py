"""The audit trail: one row for each tool call, written shortly after the call.

`AuditTrail.add` only appends to a queue, so a call does not wait for its audit row. A task writes the queue a quarter
of a second after its last write has finished, and once more at a clean stop. A write takes its rows when its
transaction has begun, in the order of the answers. A kill −9 therefore loses only the calls answered after the last
finished write took its rows: those of a quarter of a second, plus those of the duration of a write. If the trail cannot
be written for a long time, it refuses further calls, because every call must have a row.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from almanac.audit.agent_executions import AgentExecutionEntry
from almanac.core import clock
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.core.errors import AuditUnavailable

FLUSH_SECONDS = 0.25
MAX_PENDING_ENTRIES = 50_000
MAX_PENDING_EXECUTIONS = 2_000  # each with a prompt and an answer

_log = structlog.get_logger("almanac.audit")


class AuditEntry(NamedTuple):
    """The row of one call. It holds a keyed digest of the arguments and the ids of objects, but no content."""

    at: int
    org_id: str
    principal_id: int
    token_id: int
    surface: str
    tool: str
    outcome: str
    duration_us: int
    digest: str
    touched: str
    request_id: str


AfterWrite = Callable[[Transaction, Sequence[AuditEntry]], Awaitable[None]]


class AuditTrail:
    """A queue of entries, and the task that writes them."""

    def __init__(self, db: Database, after_write: Sequence[AfterWrite] = ()) -> None:
        self._db = db
        self._after_write = after_write  # further writes of the same transaction: last use of tokens, usage counters
        self._waiting: deque[AuditEntry] = deque()  # filled on the event loop, emptied in the writer's thread
        self._writing: list[AuditEntry] = []
        self._executions: deque[AgentExecutionEntry] = deque()  # as `_waiting`
        self._writing_executions: list[AgentExecutionEntry] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self._is_failing = False
        self.calls_in_flight = 0  # calls without an entry as yet

    @property
    def is_available(self) -> bool:
        """Whether the last attempt to write succeeded."""
        return not self._is_failing

    def add(self, entry: AuditEntry) -> None:
        """Queue the entry of a call."""
        self._waiting.append(entry)
        if len(self._waiting) == 1000:
            self._wake.set()

    def add_execution(self, entry: AgentExecutionEntry) -> None:
        """Queue the entry of an agent execution."""
        self._executions.append(entry)

    def require_capacity(self) -> None:
        """Refuse a call if a queue is full."""
        executions = len(self._executions) + len(self._writing_executions)
        if len(self._waiting) + len(self._writing) >= MAX_PENDING_ENTRIES or executions >= MAX_PENDING_EXECUTIONS:
            raise AuditUnavailable()

    async def flush(self) -> None:
        """Write the queued entries in one transaction."""
        if self._writing or self._waiting or self._writing_executions or self._executions:
            await self._db.write(self._write)
            self._writing = []
            self._writing_executions = []

    async def run(self) -> None:
        """Write the queue at intervals until `stop`."""
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), FLUSH_SECONDS)
            self._wake.clear()
            await self._try()

    async def stop(self, writing: "asyncio.Task[None]", grace: float) -> None:
        """Wait for the calls in flight and write the rest of the queue, for at most `grace` seconds."""
        ends = asyncio.get_running_loop().time() + grace
        # Polled, because an event would cost every call something and only a stop would wait for it.
        while self.calls_in_flight and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._stopping = True
        self._wake.set()
        await writing
        while not await self._try() and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        lost = len(self._writing) + len(self._waiting) + len(self._writing_executions) + len(self._executions)
        if lost:
            _log.error("audit_rows_lost", rows=lost)

    async def _try(self) -> bool:
        try:
            await self.flush()
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - if this task ended unnoticed, calls would have no rows
            # The entries are kept and written later; `require_capacity` refuses calls before they fill the memory.
            self._is_failing = True
            _log.error(
                "audit_write_failed", error=type(error).__name__, waiting=len(self._writing) + len(self._waiting)
            )
        return not self._is_failing

    async def _write(self, tx: Transaction) -> None:
        # Taken only now, so that this write includes the calls answered while it waited for its turn.
        self._writing += [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._writing_executions += [self._executions.popleft() for _ in range(len(self._executions))]
        await tx.insert_many("audit", AuditEntry._fields, self._writing)
        if self._writing_executions:
            await tx.insert_many("agent_executions", AgentExecutionEntry._fields, self._writing_executions)
        for write in self._after_write:
            await write(tx, self._writing)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the trail, with the names of the organisation and the actor."""

    id: int
    at: int
    org: str
    actor: str
    kind: str
    token_id: int
    surface: str
    tool: str
    outcome: str
    duration_us: int
    digest: str
    touched: tuple[str, ...]
    request_id: str


async def find(
    db: Reader,
    *,
    org_id: str | None = None,
    user: str | None = None,
    tool: str | None = None,
    since: int | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[AuditRow]:
    """The calls of an organisation or of all, of a user or tool, in a recent duration, newest first."""
    rows = await db.fetch(
        "SELECT a.*, o.name AS org, p.name AS actor, p.kind AS kind FROM audit a"
        " JOIN principals p ON p.id = a.principal_id JOIN orgs o ON o.id = a.org_id"
        " WHERE a.at >= $1 AND ($2 = '' OR p.name = $2) AND ($3 = '' OR a.tool = $3)"
        " AND ($4 = '' OR a.org_id = $4) ORDER BY a.at DESC, a.id DESC LIMIT $5 OFFSET $6",
        clock.now() - since if since else 0,
        user or "",
        tool or "",
        org_id or "",
        limit,
        offset,
    )
    return [_row(row) for row in rows]


async def prune(tx: Transaction, before: int) -> int:
    """Remove the rows before a timestamp. Returns their number."""
    return await tx.execute("DELETE FROM audit WHERE at < $1", before)


def _row(row: Row) -> AuditRow:
    values: dict[str, Any] = {name: row[name] for name in AuditRow.__dataclass_fields__}
    values["touched"] = tuple(row["touched"].split())
    return AuditRow(**values)
