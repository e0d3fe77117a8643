"""Schedules: every due time once, with any number of processes."""

import asyncio
from datetime import datetime
from itertools import count
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core import clock
from almanac.core.clock import DAY, HOUR, SECOND
from almanac.core.database import Database
from almanac.db.connect import connect
from almanac.jobs import queue, schedule
from almanac.jobs.schedule import Cron, Every, Schedule
from tests.jobs.stored import get_stored_job

NOW = 1_800_000_000 * SECOND
names = count()


def mow(rule: Cron | Every, name: str = "mow") -> Schedule:
    return Schedule(name, "mow", rule, {"lawn": 1})


async def runs(db: Database, name: str = "mow") -> list[int]:
    rows = await db.fetch("SELECT due_at FROM schedule_runs WHERE schedule = $1 ORDER BY due_at", name)
    return [row["due_at"] for row in rows]


def moments(rule: Cron, start: str, number: int) -> list[str]:
    """The next due times, in local time and UTC offset."""
    zone = ZoneInfo(rule.timezone)
    moment = int(datetime.fromisoformat(start).replace(tzinfo=zone).timestamp()) * SECOND
    due: list[str] = []
    for _ in range(number):
        moment = rule.after(moment)
        due.append(datetime.fromtimestamp(moment // SECOND, zone).strftime("%m-%d %H:%M %z"))
    return due


async def test_a_new_schedule_waits_for_its_next_moment_then_adds_one_job(database: Database) -> None:
    every = mow(Every(60))
    assert await schedule.tick(database, [every], NOW + 1) == []
    assert await schedule.tick(database, [every], NOW + 60 * SECOND - 1) == []
    [id] = await schedule.tick(database, [every], NOW + 60 * SECOND)
    assert await schedule.tick(database, [every], NOW + 61 * SECOND) == []
    job = await get_stored_job(database, id)
    assert job is not None
    assert (job.kind, job.payload, job.run_at) == ("mow", {"lawn": 1}, NOW + 60 * SECOND)
    assert await runs(database) == [NOW + 60 * SECOND]


async def test_moments_missed_while_nothing_ran_become_one(database: Database) -> None:
    every = mow(Every(60))
    await schedule.tick(database, [every], NOW)
    assert len(await schedule.tick(database, [every], NOW + DAY + 5 * SECOND)) == 1
    assert await schedule.tick(database, [every], NOW + DAY + 59 * SECOND) == []
    assert len(await schedule.tick(database, [every], NOW + DAY + 60 * SECOND)) == 1


async def test_a_schedule_that_runs_alone_adds_nothing_while_its_last_job_is_unfinished(database: Database) -> None:
    index = Schedule("index", "mow", Every(60), skip_while_unfinished=True)
    await schedule.tick(database, [index], NOW)
    [first] = await schedule.tick(database, [index], NOW + 60 * SECOND)
    assert await schedule.tick(database, [index], NOW + 120 * SECOND) == [first]
    assert (await queue.counts(database))["queued"] == 1
    [job] = await queue.claim(database, "w", ["mow"], limit=9, lease=HOUR, now=NOW + DAY)
    assert await schedule.tick(database, [index], NOW + 180 * SECOND) == [first]
    await database.write(lambda tx: queue.finish(tx, job))
    [second] = await schedule.tick(database, [index], NOW + 240 * SECOND)
    assert second != first


async def test_a_changed_rule_starts_afresh(database: Database) -> None:
    await schedule.tick(database, [mow(Every(60))], NOW)
    assert await schedule.tick(database, [mow(Every(3600))], NOW + 60 * SECOND) == []
    assert await schedule.tick(database, [mow(Every(3600))], NOW + 120 * SECOND) == []
    assert len(await schedule.tick(database, [mow(Every(3600))], NOW + HOUR)) == 1


async def test_a_clock_that_goes_back_repeats_nothing(database: Database) -> None:
    every = mow(Every(10))
    for now in (0, 10, 5, 10, 0, 20, 11):
        await schedule.tick(database, [every], NOW + now * SECOND)
    assert await runs(database) == [NOW + 10 * SECOND, NOW + 20 * SECOND]


async def test_a_clock_that_is_set_back_for_good_stops_no_schedule(database: Database) -> None:
    every = mow(Every(60))
    await schedule.tick(database, [every], NOW)
    assert len(await schedule.tick(database, [every], NOW + 2 * HOUR)) == 1
    assert await schedule.tick(database, [every], NOW + 30 * SECOND) == []
    assert len(await schedule.tick(database, [every], NOW + 60 * SECOND)) == 1, "due for the second time"
    assert len(await schedule.tick(database, [every], NOW + 120 * SECOND)) == 1


async def test_many_schedules_are_kept_apart(database: Database) -> None:
    all_of_them = [mow(Every(seconds), f"s{seconds}") for seconds in range(1, 21)]
    await schedule.tick(database, all_of_them, NOW)
    assert len(await schedule.tick(database, all_of_them, NOW + 10 * SECOND)) == 10 + sum(
        any((NOW // SECOND + second) % seconds == 0 for second in range(1, 11)) for seconds in range(11, 21)
    )


async def test_without_schedules_nothing_happens(database: Database) -> None:
    assert await schedule.tick(database, []) == []


async def test_old_runs_are_forgotten(database: Database) -> None:
    every = mow(Every(10))
    for now in (0, 10, 20, 30):
        await schedule.tick(database, [every], NOW + now * SECOND)
    assert await database.write(lambda tx: schedule.prune(tx, NOW + 30 * SECOND)) == 2
    await schedule.tick(database, [every], NOW + 30 * SECOND)
    assert await runs(database) == [NOW + 30 * SECOND]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    rule=st.one_of(
        st.integers(1, 300).map(Every),
        st.sampled_from(["* * * * *", "*/7 * * * *", "5,35 * * * *"]).map(Cron),
        st.just(Cron("*/20 1-3 * * *", "Europe/London")),
    ),
    start=st.integers(0, 400 * 86_400),
    steps=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 3), st.booleans()), max_size=12),
)
async def test_no_moment_is_added_twice_or_skipped(
    database: Database, database_url: str, rule: Cron | Every, start: int, steps: list[tuple[int, int, bool]]
) -> None:
    """Rounds of several processes ticking at once, some with the clock of the round before."""
    other = await connect(database_url)
    mine = mow(rule, f"schedule {next(names)}")
    before = now = NOW + start * SECOND
    await asyncio.gather(*(schedule.tick(db, [mine], now) for db in (database, other)))
    following, expected = rule.after(now), list[int]()
    for step, processes, stale in steps:
        before, now = now, now + step * SECOND
        ticks = [schedule.tick(db, [mine], now) for db in (database, other) for _ in range(processes)]
        ticks += [schedule.tick(other, [mine], before)] if stale else []
        await asyncio.gather(*ticks)
        if following <= now:
            expected.append(following)
            following = rule.after(now)
    assert await runs(database, mine.name) == expected
    jobs = await database.fetch("SELECT job_id FROM schedule_runs WHERE schedule = $1", mine.name)
    assert len({row["job_id"] for row in jobs}) == len(expected)
    await other.close()


async def test_every_added_job_has_its_run(database: Database) -> None:
    every = mow(Every(1))
    for now in range(10):
        await asyncio.gather(*(schedule.tick(database, [every], NOW + now * SECOND) for _ in range(5)))
    assert (await queue.counts(database))["queued"] == len(await runs(database)) == 9


@given(moment=st.integers(0, 4_000_000_000 * SECOND), seconds=st.integers(1, 10**6))
def test_every_n_seconds_keeps_its_step(moment: int, seconds: int) -> None:
    due = Every(seconds).after(moment)
    assert 0 < due - moment <= seconds * SECOND
    assert Every(seconds).after(due) == due + seconds * SECOND


@given(
    moment=st.integers(0, 3_000_000_000 * SECOND),
    line=st.sampled_from(["* * * * *", "30 1 * * *", "30 2 * * *", "0 */3 * * *", "15 0-3 * * SUN"]),
    zone=st.sampled_from(["UTC", "Europe/London", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
)
def test_a_cron_line_always_moves_forward(moment: int, line: str, zone: str) -> None:
    rule = Cron(line, zone)
    due = rule.after(moment)
    assert moment < due
    assert rule.after(due - 1) == due
    assert rule.after((moment + due) // 2) == due


def test_a_time_the_clocks_skip_runs_after_the_gap() -> None:
    rule = Cron("30 1 * * *", "Europe/London")  # on 28 March 2027, 01:00 becomes 02:00
    assert moments(rule, "2027-03-27T00:00", 3) == ["03-27 01:30 +0000", "03-28 02:00 +0100", "03-29 01:30 +0100"]


def test_a_time_the_clocks_repeat_runs_once() -> None:
    rule = Cron("30 1 * * *", "Europe/London")  # on 31 October 2027, 02:00 becomes 01:00
    assert moments(rule, "2027-10-30T12:00", 2) == ["10-31 01:30 +0100", "11-01 01:30 +0000"]


@pytest.mark.parametrize("line", ["", "* * * *", "61 * * * *", "0 0 30 2 *", "every day"])
def test_a_bad_cron_line_is_refused_at_once(line: str) -> None:
    with pytest.raises(ValueError, match="is not a cron line; write five fields"):
        Cron(line)


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../etc/passwd", "UTC+1"])
def test_a_bad_time_zone_is_refused_at_once(zone: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        Cron("0 7 * * *", zone)


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_schedule_runs_at_most_once_a_second(seconds: int) -> None:
    with pytest.raises(ValueError, match="at most once a second"):
        Every(seconds)


def test_the_present_is_used_where_no_moment_is_given() -> None:
    assert Cron("* * * * *").after(clock.now()) > clock.now()
