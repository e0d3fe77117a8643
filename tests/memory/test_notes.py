"""Notes: kept as they were said, counted as they are stored, and the same call twice is one note."""

import asyncio
import uuid

import pytest

from almanac.core import clock
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, NotFound, QuotaExceeded, Unavailable
from almanac.memory import note_index, note_text, notes
from almanac.memory.note import TaskLink
from almanac.quotas import allowances, idempotency, usage
from almanac.quotas.idempotency_redis import RedisIdempotencyStore
from tests.memory.circle import Circle


async def test_a_note_has_what_was_said_and_who_said_it(circle: Circle):
    until = clock.now() + clock.DAY
    stored = await circle.store(
        "The pump runs hot.", title="Pump", tags=("pump",), confidence=55, expires_at=until,
        task=TaskLink("T-1", "produced"),
    )  # fmt: skip
    note = await circle.get(stored)
    assert (note.title, note.body, note.tags, note.confidence) == ("Pump", "The pump runs hot.", ("pump",), 55)
    assert (note.author, note.source, note.expires_at) == ("ada", "agent", until)
    assert (note.head_id, note.embedding_status) == (None, "pending")
    assert await notes.tasks(circle.db, note) == [TaskLink("T-1", "produced")]


async def test_another_organisations_note_is_like_one_that_never_was(circle: Circle):
    note = await circle.store("Ours alone.")
    with pytest.raises(NotFound) as theirs:
        await notes.get(circle.db, circle.eve, note.id)
    never = str(uuid.uuid4())
    with pytest.raises(NotFound) as nobodys:
        await notes.get(circle.db, circle.eve, never)
    assert theirs.value.text.replace(note.id, "X") == nobodys.value.text.replace(never, "X")
    assert await circle.find("ours alone", by=circle.eve) == []


@pytest.mark.parametrize(
    ("said", "kept"),
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
def test_what_nobody_can_see_is_left_out_and_nothing_else_is_changed(said: str, kept: str):
    assert note_text.clean("body", said, 100) == kept


@pytest.mark.parametrize("said", ["", "  ", "\x00\x07", "\u202e", "x" * 101])
def test_a_text_that_says_nothing_or_too_much_is_refused(said: str):
    with pytest.raises(BadRequest, match=r"^body: "):
        note_text.clean("body", said, 100)


def test_tags_become_kebab_case():
    assert note_text.tags_of(["Release Notes", "CI", "ci", "snake_case", "a-b", "Größe", "v2"]) == (
        "release-notes", "ci", "snake-case", "a-b", "größe", "v2",
    )  # fmt: skip
    for bad in ("", "a--b", "-a", "a.b", "c++", "x" * 101, "\x00"):
        with pytest.raises(BadRequest, match=r"^tags: "):
            note_text.tags_of([bad])


@pytest.mark.parametrize("text", ["tomorrow", "", "2026-13-01", "9999999999999", "2027-01-01T00:00:00+99:99"])
def test_what_is_no_moment_is_refused(text: str):
    with pytest.raises(BadRequest, match=r"^expiresAt: is not an ISO-8601 timestamp"):
        note_text.future("expiresAt", text)


def test_an_expiry_is_strictly_in_the_future(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clock, "now", lambda: clock.parse_timestamp("2027-01-01T00:00:00Z"))
    assert note_text.future("expiresAt", "2027-01-01T00:00:00.001Z")
    assert note_text.future("expiresAt", "2027-01-01T00:30:00+00:15")
    for past in ("2027-01-01T00:00:00Z", "2027-01-01", "2027-01-01T01:00:00+02:00", "1970-01-01"):
        with pytest.raises(BadRequest, match=r"^expiresAt: is not in the future"):
            note_text.future("expiresAt", past)


def test_long_notes_are_cut_where_they_pause():
    body = "\n\n".join(f"Paragraph {n}. " + "words " * 60 for n in range(40))
    spans = note_index.cut(body)
    assert "".join(body[start:end] for start, end in spans) == body
    assert all(end - start <= note_index.NOTE_PASSAGE_CHARS for start, end in spans)
    assert all(body[start:].startswith("Paragraph") for start, _ in spans)
    assert note_index.cut("x" * 5000) == [(0, 2000), (2000, 4000), (4000, 5000)]
    assert note_index.cut("short") == [(0, 5)]


async def test_a_note_of_the_greatest_length_is_found_by_its_last_words(circle: Circle):
    body = ("filler " * 4570)[: note_text.MAX_BODY_CHARS - 12] + " xylophones."
    await circle.store(body)
    assert await circle.find("xylophones") == [body]


# The same call twice


@pytest.fixture(params=["database", "redis"])
async def keeper(request: pytest.FixtureRequest, circle: Circle):
    if request.param == "redis":
        circle.repeats = RedisIdempotencyStore(request.getfixturevalue("redis_url"))
    yield circle
    await circle.repeats.close()


async def test_the_same_token_gives_the_same_note_and_counts_once(keeper: Circle):
    token = str(uuid.uuid4())
    first = await keeper.store("Said once.", token=token)
    again = await keeper.store("Said in other words.", token=token)
    assert (again.id, again.body) == (first.id, "Said once.")
    assert await usage.used(keeper.db, keeper.town.acme.id) == {"knowledge_stored": 1}
    other = await keeper.store("By another.", by=keeper.bob, token=token)
    assert other.id != first.id
    elsewhere = await keeper.store("Elsewhere.", by=keeper.eve, token=token)
    assert elsewhere.id not in (first.id, other.id)


async def test_of_twenty_calls_at_once_with_one_token_one_stores(keeper: Circle):
    token = str(uuid.uuid4())
    stored = await asyncio.gather(*(keeper.store(f"Try {n}.", token=token) for n in range(20)))
    assert len({note.id for note in stored}) == 1
    assert len({note.body for note in stored}) == 1
    rows = await keeper.db.fetch("SELECT count(*) AS n FROM notes")
    assert rows[0]["n"] == 1
    assert await usage.used(keeper.db, keeper.town.acme.id) == {"knowledge_stored": 1}


async def test_of_twenty_calls_at_once_for_the_last_of_the_quota_none_is_refused_if_they_are_the_same(keeper: Circle):
    token, keeper.quota = str(uuid.uuid4()), 1
    stored = await asyncio.gather(*(keeper.store(f"Try {n}.", token=token) for n in range(20)))
    assert len({note.id for note in stored}) == 1
    with pytest.raises(QuotaExceeded):
        await keeper.store("Another.", token=str(uuid.uuid4()))
    assert await usage.used(keeper.db, keeper.town.acme.id) == {"knowledge_stored": 1}


async def test_a_call_whose_twin_has_just_used_up_the_quota_is_given_its_note(
    keeper: Circle, monkeypatch: pytest.MonkeyPatch
):
    token, keeper.quota, check = str(uuid.uuid4()), 1, allowances.check
    twins: list[str] = []

    async def overtaken(db: Reader, org_id: str, metric: str, limit: int | None) -> None:
        monkeypatch.setattr(allowances, "check", check)
        twins.append((await keeper.store("The twin.", token=token)).id)
        await check(db, org_id, metric, limit)

    monkeypatch.setattr(allowances, "check", overtaken)
    assert [(await keeper.store("Late.", token=token)).id] == twins


async def test_a_call_that_failed_is_made_good_by_the_next_with_its_token(keeper: Circle):
    token = str(uuid.uuid4())
    keeper.quota = 1
    await keeper.store("Uses the quota up.")
    with pytest.raises(QuotaExceeded):
        await keeper.store("Refused.", token=token)
    keeper.quota = 2
    assert (await keeper.store("Taken.", token=token)).body == "Taken."


async def test_after_a_minute_a_token_is_new_again(circle: Circle, monkeypatch: pytest.MonkeyPatch):
    token, now = str(uuid.uuid4()), clock.now()
    first = await circle.store("First.", token=token)
    monkeypatch.setattr(clock, "now", lambda: now + 59 * clock.SECOND)
    assert (await circle.store("Second.", token=token)).id == first.id
    monkeypatch.setattr(clock, "now", lambda: now + 62 * clock.SECOND)
    assert (await circle.store("Third.", token=token)).id != first.id
    await circle.db.write(lambda tx: idempotency.prune(tx, now + clock.HOUR))
    assert await circle.db.fetch("SELECT 1 FROM repeats") == []


async def test_redis_keeps_the_documented_key_for_a_minute(circle: Circle, redis_url: str):
    kept = RedisIdempotencyStore(redis_url)
    circle.repeats = kept
    token = str(uuid.uuid4())
    note = await circle.store("In Redis.", token=token)
    key = f"idem:k.store:{circle.town.acme.id}:{circle.ada.actor.id}:{token}"
    redis = kept._redis  # pyright: ignore[reportPrivateUsage] - to look at what is really there
    assert await redis.get(key) == note.id
    assert 50 < await redis.ttl(key) <= 60
    await redis.delete(key)
    assert (await circle.store("Anew.", token=token)).id != note.id
    await kept.close()


async def test_without_an_answer_from_redis_nothing_is_stored_twice(circle: Circle):
    circle.repeats = RedisIdempotencyStore("redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        await circle.store("Who knows.", token=str(uuid.uuid4()))
    assert (await circle.store("Without a token.")).body == "Without a token."
    await circle.repeats.close()


# Quotas


async def test_a_quota_is_checked_before_and_counted_with_what_it_is_for(circle: Circle):
    circle.quota = 2
    await circle.store("One.")
    await circle.store("Two.", by=circle.bob)
    with pytest.raises(QuotaExceeded, match=r"^The quota of 2 knowledge_stored a month is used up \(2 used\)\.$"):
        await circle.store("Three.")
    await circle.store("Elsewhere.", by=circle.eve)
    assert await circle.find("three") == []
    assert await usage.used(circle.db, circle.town.acme.id) == {"knowledge_stored": 2}


async def test_an_organisation_has_its_own_quota_where_one_was_settled(circle: Circle):
    acme = circle.town.acme.id
    circle.quota = 1
    await circle.db.write(lambda tx: allowances.set_monthly_limit(tx, acme, "knowledge_stored", None))
    await circle.store("One.")
    await circle.store("Two.")
    await circle.db.write(lambda tx: allowances.set_monthly_limit(tx, acme, "knowledge_stored", 0))
    with pytest.raises(QuotaExceeded):
        await circle.store("Three.")
    for metric, number in (("pages", 1), ("knowledge_stored", -1)):
        with pytest.raises(BadRequest):
            await circle.db.write(lambda tx, m=metric, n=number: allowances.set_monthly_limit(tx, acme, m, n))


async def test_a_new_month_has_a_new_quota(circle: Circle, monkeypatch: pytest.MonkeyPatch):
    circle.quota = 1
    monkeypatch.setattr(clock, "now", lambda: clock.parse_timestamp("2027-01-31T23:59:59Z"))
    assert clock.format_timestamp(allowances.next_month(clock.now())) == "2027-02-01T00:00:00.000Z"
    await circle.store("January.")
    with pytest.raises(QuotaExceeded):
        await circle.store("Still January.")
    monkeypatch.setattr(clock, "now", lambda: clock.parse_timestamp("2027-02-01T00:00:00Z"))
    await circle.store("February.")
    assert (
        clock.format_timestamp(allowances.next_month(clock.parse_timestamp("2027-12-05"))) == "2028-01-01T00:00:00.000Z"
    )


async def test_of_thirty_who_store_at_once_as_many_succeed_as_the_quota_allows(circle: Circle):
    circle.quota = 7

    async def attempt(number: int) -> bool:
        try:
            await circle.store(f"Number {number}.")
        except QuotaExceeded:
            return False
        return True

    assert sum(await asyncio.gather(*(attempt(n) for n in range(30)))) == 7
    rows = await circle.db.fetch("SELECT count(*) AS n FROM notes")
    assert rows[0]["n"] == 7
    assert await usage.used(circle.db, circle.town.acme.id) == {"knowledge_stored": 7}


async def test_a_store_that_breaks_off_leaves_neither_a_note_nor_a_count(
    circle: Circle, monkeypatch: pytest.MonkeyPatch
):
    spend = allowances.consume

    async def break_off(tx: Transaction, org_id: str, metric: str, limit: int | None) -> None:
        await spend(tx, org_id, metric, limit)
        raise ConnectionError("the plug was pulled")

    monkeypatch.setattr(allowances, "consume", break_off)
    with pytest.raises(ConnectionError):
        await circle.store("Lost.")
    monkeypatch.undo()
    assert await circle.db.fetch("SELECT 1 FROM notes") == []
    assert await usage.used(circle.db, circle.town.acme.id) == {}
    assert await circle.find("lost") == []


# What was said before


async def test_a_short_note_is_found_by_what_its_author_said_just_before_under_the_same_title(circle: Circle):
    await circle.store("We looked at the xylophone.", title="Monday")
    await circle.store("It was out of tune.", title="Monday")
    await circle.store("Lunch was late.", title="Canteen")
    assert await circle.find("xylophone") == ["We looked at the xylophone.", "It was out of tune."]
    await circle.store("Rain.", by=circle.bob, title="Monday")
    assert "Rain." not in await circle.find("xylophone")


async def test_notes_about_one_task_follow_each_other_whatever_their_titles(circle: Circle):
    task = TaskLink("T-9", "produced")
    await circle.store("The valve is a zephyr.", title="Valve", task=task)
    await circle.store("Ordered a new one.", title="Order", task=task)
    assert await circle.find("zephyr") == ["The valve is a zephyr.", "Ordered a new one."]


async def test_what_was_said_yesterday_or_at_length_is_no_context(circle: Circle, monkeypatch: pytest.MonkeyPatch):
    now = clock.now()
    await circle.store("A quokka.", title="Day")
    monkeypatch.setattr(clock, "now", lambda: now + 2 * clock.DAY)
    await circle.store("Nothing new.", title="Day")
    assert await circle.find("quokka") == ["A quokka."]
    await circle.store("Narwhals. " + "And so on. " * 60, title="Long")
    await circle.store("The end.", title="Long")
    assert len(await circle.find("narwhals")) == 1


async def test_what_a_note_says_it_rests_on_must_be_there(circle: Circle):
    note = await circle.store("One.")
    await circle.store("Two.", cites=(note.id,))
    with pytest.raises(NotFound):
        await circle.store("Three.", cites=(str(uuid.uuid4()),))
    assert len(await circle.db.fetch("SELECT 1 FROM notes")) == 2
    assert len(await circle.db.fetch("SELECT 1 FROM note_citations")) == 1
