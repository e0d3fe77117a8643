"""The audit trail: one row for each tool call, written a moment after it.

`Trail.add` only appends to a queue, so that a call does not wait for its audit row. A task writes what has queued
up a quarter of a second after its last write has finished, and once more at a clean stop. A write takes its rows
when its transaction has begun, in the order in which the calls were answered. So a kill −9 loses the calls answered
since the last write that finished took its rows, none before them: those of a quarter of a second, plus those of
however long the database takes to write. A trail that cannot be written for long refuses further calls, since a
call nobody can account for must not happen.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from almanac.core import clock
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.core.errors import AuditUnavailable

FLUSH_SECONDS = 0.25
MAX_PENDING_ENTRIES = 50_000

_log = structlog.get_logger("almanac.audit")


class AuditEntry(NamedTuple):
    """One call, as it is written. Never what was asked or answered: a keyed digest and the ids touched."""

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
    """Entries on their way to the database."""

    def __init__(self, db: Database, also: Sequence[AfterWrite] = ()) -> None:
        self._db = db
        self._also = also  # what else is derived from calls: last use of tokens, usage counters
        self._waiting: deque[AuditEntry] = deque()  # filled by the loop, emptied in the writer's thread
        self._writing: list[AuditEntry] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self._is_failing = False
        self.calls_in_flight = 0  # whose entries are still to come

    @property
    def is_available(self) -> bool:
        """Whether the last attempt to write succeeded."""
        return not self._is_failing

    def add(self, entry: AuditEntry) -> None:
        """Note a call."""
        self._waiting.append(entry)
        if len(self._waiting) == 1000:
            self._wake.set()

    def require_capacity(self) -> None:
        """Refuse to go on if calls can no longer be accounted for."""
        if len(self._waiting) + len(self._writing) >= MAX_PENDING_ENTRIES:
            raise AuditUnavailable()

    async def flush(self) -> None:
        """Write what is waiting, in one transaction."""
        if self._writing or self._waiting:
            await self._db.write(self._write)
            self._writing = []

    async def run(self) -> None:
        """Keep writing until stopped."""
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), FLUSH_SECONDS)
            self._wake.clear()
            await self._try()

    async def stop(self, writing: "asyncio.Task[None]", grace: float) -> None:
        """Wait for the calls in flight and write what is left, as long as `grace` seconds allow."""
        ends = asyncio.get_running_loop().time() + grace
        # Polled, for once: every call would pay for an event that only a stop ever waits for.
        while self.calls_in_flight and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._stopping = True
        self._wake.set()
        await writing
        while not await self._try() and asyncio.get_running_loop().time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        if lost := len(self._writing) + len(self._waiting):
            _log.error("audit_rows_lost", rows=lost)

    async def _try(self) -> bool:
        try:
            await self.flush()
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - a trail that ended unnoticed would leave calls unaccounted for
            # The rows stay in hand and are tried again; `check` refuses calls before they grow without bound.
            self._is_failing = True
            _log.error(
                "audit_write_failed", error=type(error).__name__, waiting=len(self._writing) + len(self._waiting)
            )
        return not self._is_failing

    async def _write(self, tx: Transaction) -> None:
        # Taken only now, so that what was answered while this write waited for its turn need not wait for another.
        self._writing += [self._waiting.popleft() for _ in range(len(self._waiting))]
        await tx.insert_many("audit", AuditEntry._fields, self._writing)
        for also in self._also:
            await also(tx, self._writing)


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the trail, as a reader sees it."""

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
    user: str | None = None,
    tool: str | None = None,
    since: int | None = None,
    limit: int = 100,
) -> list[AuditRow]:
    """The newest calls first, by caller's name, tool and time."""
    rows = await db.fetch(
        "SELECT a.*, o.name AS org, p.name AS actor, p.kind AS kind FROM audit a"
        " JOIN principals p ON p.id = a.principal_id JOIN orgs o ON o.id = a.org_id"
        " WHERE a.at >= $1 AND ($2 = '' OR p.name = $2) AND ($3 = '' OR a.tool = $3)"
        " ORDER BY a.at DESC, a.id DESC LIMIT $4",
        clock.now() - since if since else 0,
        user or "",
        tool or "",
        limit,
    )
    return [_line(row) for row in rows]


async def prune(tx: Transaction, before: int) -> int:
    """Remove rows older than a moment; how many."""
    return await tx.execute("DELETE FROM audit WHERE at < $1", before)


def _line(row: Row) -> AuditRow:
    return AuditRow(
        at=row["at"],
        org=row["org"],
        actor=row["actor"],
        kind=row["kind"],
        token_id=row["token_id"],
        surface=row["surface"],
        tool=row["tool"],
        outcome=row["outcome"],
        duration_us=row["duration_us"],
        digest=row["digest"],
        touched=tuple(row["touched"].split()),
        request_id=row["request_id"],
    )
