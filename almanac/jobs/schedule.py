"""Schedules: jobs that are added at set times.

Any number of processes may call `tick` at any time. The row of each schedule holds its next due time. One transaction
moves that time forward and adds the job, so each run is added once; `schedule_runs` records it, unique by
`(schedule, due_at)`. Runs missed while no process ran become one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.jobs import queue

# Clocks of several processes may differ by this much; a clock that is further behind was set back.
MAX_CLOCK_SKEW = 15 * clock.MINUTE

_MOVE = "UPDATE schedules SET next_at = $3 WHERE name = $1 AND rule = $2 AND next_at = $4"
# A clock that was set back reaches a due time twice.
_RECORD = """
INSERT INTO schedule_runs (schedule, due_at, job_id) VALUES ($1, $2, $3)
ON CONFLICT (schedule, due_at) DO UPDATE SET job_id = excluded.job_id
"""
_REGISTER = """
INSERT INTO schedules (name, rule, next_at) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET rule = excluded.rule, next_at = excluded.next_at
WHERE schedules.rule <> excluded.rule OR schedules.next_at > $4
"""


@dataclass(frozen=True)
class Cron:
    """A cron line in a time zone: `Cron("30 7 * * MON-FRI", "Europe/London")`.

    A time that the clock skips in spring runs right after the gap. A time that it repeats in autumn runs once, unless
    the line is for every hour.
    """

    line: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        try:
            self.after(0)
        except (CronSimError, StopIteration) as error:
            raise ValueError(f"{self.line!r} is not a cron line; write five fields, such as '30 7 * * *'") from error
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{self.timezone!r} is not a time zone; write one such as Europe/London") from error

    @property
    def text(self) -> str:
        return f"cron {self.line} {self.timezone}"

    def after(self, moment: int) -> int:
        """The first due time after this one."""
        start = datetime.fromtimestamp(moment // clock.SECOND, ZoneInfo(self.timezone))
        times = CronSim(self.line, start)
        due = _microseconds(next(times))
        while due <= moment:
            due = _microseconds(next(times))
        return due


@dataclass(frozen=True)
class Every:
    """A fixed interval in seconds, counted from 1970, so that a restart does not shift it."""

    seconds: int

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise ValueError("a schedule runs at most once a second; give a whole number of seconds from 1")

    @property
    def text(self) -> str:
        return f"every {self.seconds}"

    def after(self, moment: int) -> int:
        """The first due time after this one."""
        step = self.seconds * clock.SECOND
        return (moment // step + 1) * step


@dataclass(frozen=True)
class Schedule:
    """A job kind, and the rule for the times at which a job of that kind is added."""

    name: str
    kind: str
    rule: Cron | Every
    payload: dict[str, Any] = field(default_factory=dict[str, Any])
    # Add no job while the last one is unfinished: jobs that wait for the same resource would fill a worker.
    skip_while_unfinished: bool = False


async def tick(db: Database, schedules: Sequence[Schedule], now: int | None = None) -> list[int]:
    """Add the due jobs that no process has added yet, and return their ids. A new schedule waits for its next time."""
    now = clock.now() if now is None else now
    rows = await db.fetch("SELECT name, rule, next_at FROM schedules") if schedules else []
    known = {row["name"]: (row["rule"], row["next_at"]) for row in rows}
    fresh = [each for each in schedules if _is_fresh(each, known.get(each.name), now)]
    due = [each for each in schedules if each not in fresh and known[each.name][1] <= now]
    if not fresh and not due:
        return []  # the usual case, without a write

    async def enter(tx: Transaction) -> list[int]:
        for schedule in fresh:
            latest = schedule.rule.after(now + MAX_CLOCK_SKEW)
            await tx.execute(_REGISTER, schedule.name, schedule.rule.text, schedule.rule.after(now), latest)
        added = [await _run(tx, schedule, known[schedule.name][1], now) for schedule in due]
        return [id for id in added if id is not None]

    return await db.write(enter)


async def prune(tx: Transaction, before: int) -> int:
    """Remove the runs that were due before a timestamp. Returns their number."""
    return await tx.execute("DELETE FROM schedule_runs WHERE due_at < $1", before)


def _is_fresh(schedule: Schedule, known: tuple[str, int] | None, now: int) -> bool:
    """Whether the next time of a schedule is missing, of an earlier rule, or from before the clock was set back."""
    if known is None or known[0] != schedule.rule.text:
        return True
    return known[1] > now and known[1] > schedule.rule.after(now + MAX_CLOCK_SKEW)


async def _run(tx: Transaction, schedule: Schedule, due_at: int, now: int) -> int | None:
    following = schedule.rule.after(now)
    if not await tx.execute(_MOVE, schedule.name, schedule.rule.text, following, due_at):
        return None  # another process has added it
    key = f"schedule:{schedule.name}" if schedule.skip_while_unfinished else None
    id = await queue.add(tx, schedule.kind, schedule.payload, run_at=due_at, key=key)
    await tx.execute(_RECORD, schedule.name, due_at, id)
    return id


def _microseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * clock.SECOND
