"""Storing notes: the stored fields, idempotency keys, quotas, and the context of short notes."""

import asyncio
import uuid
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from almanac.core import clock
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, NotFound, QuotaExceeded, Unavailable
from almanac.memory import note_text, notes
from almanac.memory.note import TaskLink
from almanac.quotas import idempotency, monthly_quotas
from almanac.quotas.idempotency_redis import RedisIdempotencyStore
from tests.memory.agent_memory import AgentMemory
from tests.statements import Recorder, Statement


async def test_a_note_has_its_fields_and_its_author(memory: AgentMemory):
    until = clock.now() + clock.DAY
    stored = await memory.store(
        "The pump runs hot.", title="Pump", tags=("pump",), confidence=55, expires_at=until,
        task=TaskLink("T-1", "produced"),
    )  # fmt: skip
    note = await memory.get(stored)
    assert (note.title, note.body, note.tags, note.confidence) == ("Pump", "The pump runs hot.", ("pump",), 55)
    assert (note.author, note.source, note.expires_at) == ("ada", "agent", until)
    assert (note.head_id, note.embedding_status) == (None, "pending")
    assert await notes.tasks(memory.db, note) == [TaskLink("T-1", "produced")]


async def test_a_note_of_another_organisation_looks_like_a_missing_one(memory: AgentMemory):
    note = await memory.store("Ours alone.")
    with pytest.raises(NotFound) as foreign:
        await notes.get(memory.db, memory.eve, note.id)
    unknown_id = str(uuid.uuid4())
    with pytest.raises(NotFound) as unknown:
        await notes.get(memory.db, memory.eve, unknown_id)
    assert foreign.value.text.replace(note.id, "X") == unknown.value.text.replace(unknown_id, "X")
    assert await memory.find("ours alone", by=memory.eve) == []


async def test_a_note_of_another_organisation_is_not_even_read(memory: AgentMemory):
    note = await memory.store("Ours alone.")
    recorded: list[list[Statement]] = []
    for id in (note.id, str(uuid.uuid4())):
        recorded.append([])
        with pytest.raises(NotFound):
            await notes.get(cast("Reader", Recorder(memory.db, recorded[-1])), memory.eve, id)
    assert recorded[0] == recorded[1]
    assert [rows for _, rows in recorded[0]] == [0]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain", "plain"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("ends\r\nof\rlines", "ends\nof\nlines"),
        ("be\x07ll\x00 \x1b[31mred\x9b", "bell [31mred"),
        ("turned \u202egnol\u202c", "turned gnol"),
        ("hidden\U000e0041\U000e0042", "hidden"),
        ("  as it is  ", "  as it is  "),
        ("emoji 👩‍🚀 and عربى", "emoji 👩‍🚀 and عربى"),
    ],
)
def test_only_invisible_characters_are_removed_from_a_text(text: str, stored: str):
    assert note_text.clean("body", text, 100) == stored


@pytest.mark.parametrize("text", ["", "  ", "\x00\x07", "\u202e", "x" * 101])
def test_an_empty_or_too_long_text_is_refused(text: str):
    with pytest.raises(BadRequest, match=r"^body: "):
        note_text.clean("body", text, 100)


def test_tags_become_kebab_case():
    assert note_text.tags_of(["Release Notes", "CI", "ci", "snake_case", "a-b", "Größe", "v2"]) == (
        "release-notes", "ci", "snake-case", "a-b", "größe", "v2",
    )  # fmt: skip
    for bad in ("", "a--b", "-a", "a.b", "c++", "x" * 101, "\x00"):
        with pytest.raises(BadRequest, match=r"^tags: "):
            note_text.tags_of([bad])


@pytest.mark.parametrize("text", ["tomorrow", "", "2026-13-01", "9999999999999", "2027-01-01T00:00:00+99:99"])
def test_an_invalid_timestamp_is_refused(text: str):
    with pytest.raises(BadRequest, match=r"^expiresAt: is not an ISO-8601 timestamp"):
        note_text.future("expiresAt", text)


def test_an_expiry_is_strictly_in_the_future(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clock, "now", lambda: clock.parse_timestamp("2027-01-01T00:00:00Z"))
    assert note_text.future("expiresAt", "2027-01-01T00:00:00.001Z")
    assert note_text.future("expiresAt", "2027-01-01T00:30:00+00:15")
    for past in ("2027-01-01T00:00:00Z", "2027-01-01", "2027-01-01T01:00:00+02:00", "1970-01-01"):
        with pytest.raises(BadRequest, match=r"^expiresAt: is not in the future"):
            note_text.future("expiresAt", past)


async def test_a_note_of_the_maximum_length_is_found_by_its_last_word(memory: AgentMemory):
    body = ("filler " * 4570)[: note_text.MAX_BODY_CHARS - 12] + " xylophones."
    await memory.store(body)
    assert await memory.find("xylophones") == [body]


# Idempotency


@pytest.fixture(params=["database", "redis"])
async def memory_with_tokens(request: pytest.FixtureRequest, memory: AgentMemory):
    if request.param == "redis":
        memory.idempotency = RedisIdempotencyStore(request.getfixturevalue("redis_url"))
    yield memory
    await memory.idempotency.close()


async def test_a_repeated_token_returns_the_same_note_and_counts_once(memory_with_tokens: AgentMemory):
    token = str(uuid.uuid4())
    first = await memory_with_tokens.store("Said once.", token=token)
    again = await memory_with_tokens.store("Said in other words.", token=token)
    assert (again.id, again.body) == (first.id, "Said once.")
    assert await monthly_quotas.used(memory_with_tokens.db, memory_with_tokens.town.acme.id) == {"knowledge_stored": 1}
    other = await memory_with_tokens.store("By another.", by=memory_with_tokens.bob, token=token)
    assert other.id != first.id
    elsewhere = await memory_with_tokens.store("Elsewhere.", by=memory_with_tokens.eve, token=token)
    assert elsewhere.id not in (first.id, other.id)


async def test_one_of_twenty_concurrent_calls_with_one_token_stores_a_note(memory_with_tokens: AgentMemory):
    token = str(uuid.uuid4())
    stored = await asyncio.gather(*(memory_with_tokens.store(f"Try {n}.", token=token) for n in range(20)))
    assert len({note.id for note in stored}) == 1
    assert len({note.body for note in stored}) == 1
    rows = await memory_with_tokens.db.fetch("SELECT count(*) AS n FROM notes")
    assert rows[0]["n"] == 1
    assert await monthly_quotas.used(memory_with_tokens.db, memory_with_tokens.town.acme.id) == {"knowledge_stored": 1}


async def test_twenty_concurrent_calls_with_one_token_all_succeed_with_a_quota_of_one(memory_with_tokens: AgentMemory):
    token, memory_with_tokens.quota = str(uuid.uuid4()), 1
    stored = await asyncio.gather(*(memory_with_tokens.store(f"Try {n}.", token=token) for n in range(20)))
    assert len({note.id for note in stored}) == 1
    with pytest.raises(QuotaExceeded):
        await memory_with_tokens.store("Another.", token=str(uuid.uuid4()))
    assert await monthly_quotas.used(memory_with_tokens.db, memory_with_tokens.town.acme.id) == {"knowledge_stored": 1}


async def test_a_call_gets_the_note_of_a_repeat_that_used_up_the_quota_first(
    memory_with_tokens: AgentMemory, monkeypatch: pytest.MonkeyPatch
):
    token, memory_with_tokens.quota, check = str(uuid.uuid4()), 1, monthly_quotas.check
    twins: list[str] = []

    async def overtaken(db: Reader, org_id: str, metric: str, limit: int | None) -> None:
        monkeypatch.setattr(monthly_quotas, "check", check)
        twins.append((await memory_with_tokens.store("The twin.", token=token)).id)
        await check(db, org_id, metric, limit)

    monkeypatch.setattr(monthly_quotas, "check", overtaken)
    assert [(await memory_with_tokens.store("Late.", token=token)).id] == twins


async def test_a_token_can_be_used_again_after_its_call_failed(memory_with_tokens: AgentMemory):
    token = str(uuid.uuid4())
    memory_with_tokens.quota = 1
    await memory_with_tokens.store("Uses the quota up.")
    with pytest.raises(QuotaExceeded):
        await memory_with_tokens.store("Refused.", token=token)
    memory_with_tokens.quota = 2
    assert (await memory_with_tokens.store("Taken.", token=token)).body == "Taken."


async def test_a_token_can_store_another_note_after_a_minute(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    token, now = str(uuid.uuid4()), clock.now()
    first = await memory.store("First.", token=token)
    monkeypatch.setattr(clock, "now", lambda: now + 59 * clock.SECOND)
    assert (await memory.store("Second.", token=token)).id == first.id
    monkeypatch.setattr(clock, "now", lambda: now + 62 * clock.SECOND)
    assert (await memory.store("Third.", token=token)).id != first.id
    await memory.db.write(lambda tx: idempotency.prune(tx, now + clock.HOUR))
    assert await memory.db.fetch("SELECT 1 FROM repeats") == []


async def test_redis_stores_the_documented_key_for_a_minute(memory: AgentMemory, redis_url: str):
    store = RedisIdempotencyStore(redis_url)
    memory.idempotency = store
    token = str(uuid.uuid4())
    note = await memory.store("In Redis.", token=token)
    key = f"idem:k.store:{memory.town.acme.id}:{memory.ada.actor.id}:{token}"
    redis: Any = Redis.from_url(redis_url, decode_responses=True)  # pyright: ignore[reportUnknownMemberType]
    assert await redis.get(key) == note.id
    assert 50 < await redis.ttl(key) <= 60
    await redis.delete(key)
    await redis.aclose()
    assert (await memory.store("Anew.", token=token)).id != note.id
    await store.close()


async def test_a_call_with_a_token_is_refused_while_redis_is_unavailable(memory: AgentMemory):
    memory.idempotency = RedisIdempotencyStore("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        await memory.store("Who knows.", token=str(uuid.uuid4()))
    assert (await memory.store("Without a token.")).body == "Without a token."
    await memory.idempotency.close()


# Quotas


async def test_a_note_beyond_the_quota_is_neither_stored_nor_counted(memory: AgentMemory):
    memory.quota = 2
    await memory.store("One.")
    await memory.store("Two.", by=memory.bob)
    with pytest.raises(QuotaExceeded, match=r"^The quota of 2 knowledge_stored a month is used up \(2 used\)\.$"):
        await memory.store("Three.")
    await memory.store("Elsewhere.", by=memory.eve)
    assert await memory.find("three") == []
    assert await monthly_quotas.used(memory.db, memory.town.acme.id) == {"knowledge_stored": 2}


async def test_the_quota_of_an_organisation_overrides_the_default(memory: AgentMemory):
    acme = memory.town.acme.id
    memory.quota = 1
    await memory.db.write(lambda tx: monthly_quotas.set_monthly_limit(tx, acme, "knowledge_stored", None))
    await memory.store("One.")
    await memory.store("Two.")
    await memory.db.write(lambda tx: monthly_quotas.set_monthly_limit(tx, acme, "knowledge_stored", 0))
    with pytest.raises(QuotaExceeded):
        await memory.store("Three.")
    for metric, number in (("pages", 1), ("knowledge_stored", -1)):
        with pytest.raises(BadRequest):
            await memory.db.write(lambda tx, m=metric, n=number: monthly_quotas.set_monthly_limit(tx, acme, m, n))


async def test_a_new_month_has_a_new_quota(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    memory.quota = 1
    monkeypatch.setattr(clock, "now", lambda: clock.parse_timestamp("2027-01-31T23:59:59Z"))
    assert clock.format_timestamp(monthly_quotas.next_month(clock.now())) == "2027-02-01T00:00:00.000Z"
    await memory.store("January.")
    with pytest.raises(QuotaExceeded):
        await memory.store("Still January.")
    monkeypatch.setattr(clock, "now", lambda: clock.parse_timestamp("2027-02-01T00:00:00Z"))
    await memory.store("February.")
    december = clock.parse_timestamp("2027-12-05")
    assert clock.format_timestamp(monthly_quotas.next_month(december)) == "2028-01-01T00:00:00.000Z"


async def test_concurrent_stores_succeed_only_within_the_quota(memory: AgentMemory):
    memory.quota = 7

    async def attempt(number: int) -> bool:
        try:
            await memory.store(f"Number {number}.")
        except QuotaExceeded:
            return False
        return True

    assert sum(await asyncio.gather(*(attempt(n) for n in range(30)))) == 7
    rows = await memory.db.fetch("SELECT count(*) AS n FROM notes")
    assert rows[0]["n"] == 7
    assert await monthly_quotas.used(memory.db, memory.town.acme.id) == {"knowledge_stored": 7}


async def test_an_interrupted_store_leaves_no_note_and_no_count(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    consume = monthly_quotas.consume

    async def consume_and_fail(tx: Transaction, org_id: str, metric: str, amount: int, limit: int | None) -> None:
        await consume(tx, org_id, metric, amount, limit)
        raise ConnectionError("connection lost")

    monkeypatch.setattr(monthly_quotas, "consume", consume_and_fail)
    with pytest.raises(ConnectionError):
        await memory.store("Lost.")
    monkeypatch.undo()
    assert await memory.db.fetch("SELECT 1 FROM notes") == []
    assert await monthly_quotas.used(memory.db, memory.town.acme.id) == {}
    assert await memory.find("lost") == []


# Context


async def test_a_short_note_is_found_by_its_authors_previous_note_with_the_same_title(memory: AgentMemory):
    await memory.store("We looked at the xylophone.", title="Monday")
    await memory.store("It was out of tune.", title="Monday")
    await memory.store("Lunch was late.", title="Canteen")
    assert await memory.find("xylophone") == ["We looked at the xylophone.", "It was out of tune."]
    await memory.store("Rain.", by=memory.bob, title="Monday")
    assert "Rain." not in await memory.find("xylophone")


async def test_a_short_note_is_found_by_its_authors_previous_note_of_the_same_task(memory: AgentMemory):
    task = TaskLink("T-9", "produced")
    await memory.store("The valve is a zephyr.", title="Valve", task=task)
    await memory.store("Ordered a new one.", title="Order", task=task)
    assert await memory.find("zephyr") == ["The valve is a zephyr.", "Ordered a new one."]


async def test_old_and_long_notes_are_no_context(memory: AgentMemory, monkeypatch: pytest.MonkeyPatch):
    now = clock.now()
    await memory.store("A quokka.", title="Day")
    monkeypatch.setattr(clock, "now", lambda: now + 2 * clock.DAY)
    await memory.store("Nothing new.", title="Day")
    assert await memory.find("quokka") == ["A quokka."]
    await memory.store("Narwhals. " + "And so on. " * 60, title="Long")
    await memory.store("The end.", title="Long")
    assert len(await memory.find("narwhals")) == 1


async def test_cited_notes_must_exist(memory: AgentMemory):
    note = await memory.store("One.")
    await memory.store("Two.", cites=(note.id,))
    with pytest.raises(NotFound):
        await memory.store("Three.", cites=(str(uuid.uuid4()),))
    assert len(await memory.db.fetch("SELECT 1 FROM notes")) == 2
    assert len(await memory.db.fetch("SELECT 1 FROM note_citations")) == 1
