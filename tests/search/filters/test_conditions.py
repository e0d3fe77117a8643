"""Conditions on metadata: their meaning in Python and in both databases, and invalid conditions."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core.database import Database, Reader, Transaction
from almanac.core.errors import BadRequest
from almanac.db.connect import connect
from almanac.db.sql import Parameters
from almanac.identity import orgs
from almanac.search import sources
from almanac.search.filters import conditions
from almanac.search.sources import Source
from tests.search.condition_reference import holds

Json = dict[str, Any]


def is_(key: str, op: str, value: Any) -> Json:
    return {"key": key, "op": op, "value": value}


async def store(tx: Transaction, kept: list[Json]) -> None:
    """Store sources with these metadata, numbered in order."""
    org = await orgs.add(tx, "acme")
    for number, metadata in enumerate(kept):
        await sources.put(tx, Source(org.id, "base:1", "document", str(number), "a title", 1, 1, metadata=metadata))


async def met(db: Reader, raw: Json, start: int = 1) -> list[int]:
    """The stored sources that meet a condition, by the database."""
    parameters = Parameters(start)
    where = conditions.to_sql(conditions.parse(raw), parameters)
    before = [f"${n + 1} = {n}" for n in range(start - 1)]
    sql = f"SELECT s.owner_id FROM sources s WHERE {' AND '.join([*before, where])}"
    return sorted(int(row["owner_id"]) for row in await db.fetch(sql, *range(start - 1), *parameters.values))


async def agreed(db: Reader, raw: Json, kept: list[Json]) -> list[int]:
    """As `met`, after Python has given the same result."""
    expected = [n for n, metadata in enumerate(kept) if holds(conditions.parse(raw), metadata)]
    assert await met(db, raw) == expected
    return expected


# Operators

SHELF: list[Json] = [
    {"year": 2019, "lang": "de", "title": "Part and whole", "ok": True, "tags": ["red", 7]},
    {"year": 2020.5, "lang": "fr", "title": "The ART of war", "ok": False, "tags": []},
    {"year": "2020", "lang": None, "title": "state-of-the-art", "ok": 1, "tags": "red"},
    {"title": "系统设计文档 ÉTÉ", "day": "2024-03-01T10:00:00Z", "tags": ["Reddish", ["red"], None]},
    {"day": ["2023-12-31", "2024-05-05"], "a.b": 1, "2024": "x", "$y": "x", "[0]": "x", "a": {"b": 2}, "'": "x"},
]


CASES: list[tuple[Json, list[int]]] = [
    (is_("year", "eq", 2019), [0]),
    (is_("year", "eq", 2019.0), [0]),
    (is_("year", "eq", "2020"), [2]),
    (is_("year", "ne", 2019), [1, 2, 3, 4]),
    (is_("year", "gt", 2019), [1]),
    (is_("year", "gte", 2019), [0, 1]),
    (is_("year", "lt", 10**30), [0, 1]),
    (is_("year", "lte", "2020"), [2]),
    (is_("lang", "in", ["de", "fr", 5, True]), [0, 1]),
    (is_("lang", "nin", ["de", "fr"]), [2, 3, 4]),
    (is_("lang", "eq", None), [2, 3, 4]),
    (is_("lang", "ne", None), [0, 1]),
    (is_("ok", "eq", True), [0]),
    (is_("ok", "eq", 1), [2]),
    (is_("ok", "eq", False), [1]),
    (is_("ok", "in", [1, False]), [1, 2]),
    (is_("tags", "eq", "red"), [0, 2]),
    (is_("tags", "eq", 7), [0]),
    (is_("tags", "gt", 6.5), [0]),
    (is_("tags", "in", ["blue", 7]), [0]),
    (is_("tags", "ne", "red"), [1, 3, 4]),
    (is_("tags", "nin", ["red"]), [1, 3, 4]),
    (is_("tags", "contains", "red"), [0, 2]),
    (is_("tags", "contains", "RE"), [2]),
    (is_("tags", "contains", 7), [0]),
    (is_("year", "contains", 2019), []),
    (is_("title", "contains", "THE ART"), [1]),
    (is_("title", "contains", "-the-"), [2]),
    (is_("title", "contains", "é"), []),
    (is_("title", "contains", "Ét"), [3]),
    (is_("title", "contains", "ÉtÉ"), [3]),
    (is_("title", "text_match", "art"), [1, 2]),
    (is_("title", "text_match", "War, the?"), [1]),
    (is_("title", "text_match", "设计"), [3]),
    (is_("title", "text_match", "文档 系统"), [3]),
    (is_("title", "text_match", "état"), []),
    (is_("tags", "text_match", "RED"), [0, 2]),
    (is_("day", "gte", "2024-03-01"), [3, 4]),
    (is_("day", "lt", "2024"), [4]),
    (is_("a.b", "eq", 1), [4]),
    (is_("a", "eq", 2), []),
    (is_("2024", "eq", "x"), [4]),
    (is_("$y", "eq", "x"), [4]),
    (is_("[0]", "eq", "x"), [4]),
    (is_("'", "eq", "x"), [4]),
    (is_("$.year", "ne", None), []),
    ({"and": [is_("year", "gte", 2019), {"or": [is_("ok", "eq", True), is_("lang", "eq", "it")]}]}, [0]),
    ({"or": [is_("year", "eq", 2019), is_("day", "ne", None)]}, [0, 3, 4]),
]


@pytest.mark.parametrize(("test", "expected"), CASES)
def test_an_operator_means_what_it_says(test: Json, expected: list[int]):
    assert [n for n, metadata in enumerate(SHELF) if holds(conditions.parse(test), metadata)] == expected


async def test_an_operator_means_the_same_to_a_database(database: Database):
    await database.write(lambda tx: store(tx, SHELF))
    assert {str(test): await met(database, test) for test, _ in CASES} == {str(test): found for test, found in CASES}


async def test_parameters_are_numbered_from_where_they_are_told_to(database: Database):
    await database.write(lambda tx: store(tx, SHELF))
    assert await met(database, is_("lang", "in", ["de", "fr"]), start=4) == [0, 1]


async def test_only_the_first_hundred_members_of_a_list_count(database: Database):
    kept: list[Json] = [{"k": [0] * 99 + [1]}, {"k": [0] * 100 + [1]}]
    await database.write(lambda tx: store(tx, kept))
    assert await agreed(database, is_("k", "eq", 1), kept) == [0]
    assert await agreed(database, is_("k", "contains", 1), kept) == [0]
    assert await agreed(database, is_("k", "ne", 1), kept) == [1]


async def test_metadata_with_a_nul_count_as_empty_and_break_no_search(database: Database):
    kept: list[Json] = [{"k": "a"}, {"k": "a", "bad": "\0"}, {"k": "a", "\0": 1}, {"k": "\x01\x1f\x7f\u2028"}]
    await database.write(lambda tx: store(tx, kept))
    assert await agreed(database, is_("k", "eq", "a"), kept) == [0]
    assert await agreed(database, is_("k", "ne", "a"), kept) == [1, 2, 3]
    assert await agreed(database, is_("k", "contains", "\x1f\x7f"), kept) == [3]


async def test_numbers_at_the_ends_of_their_range_are_compared_and_break_nothing(database: Database):
    numbers = [5e-324, -1.7976931348623157e308, 2**64 - 1, -(2**63), 2**53 + 1, 0.1, -0.0, 1e22]
    kept: list[Json] = [{"k": number} for number in numbers]
    await database.write(lambda tx: store(tx, kept))
    for index, number in enumerate(numbers):
        assert index in await agreed(database, is_("k", "eq", number), kept)
        await agreed(database, is_("k", "gt", number), kept)
    assert await agreed(database, is_("k", "lt", 10**30), kept) == list(range(len(numbers)))
    assert await agreed(database, is_("k", "lt", -(10**300)), kept) == [1]


async def test_the_largest_condition_there_may_be_is_answered(database: Database):
    await database.write(lambda tx: store(tx, SHELF))
    words = " ".join(f"word{n}" for n in range(conditions.MAX_TEST_WORDS))
    tests = [is_("title", "text_match", words) for _ in range(conditions.MAX_WORDS // conditions.MAX_TEST_WORDS)]
    tests += [is_("title", "contains", "word") for _ in range(conditions.MAX_TESTS - 1 - len(tests))]
    nested: Json = {"or": [*tests, is_("lang", "in", ["de", *map(str, range(conditions.MAX_LIST_VALUES - 1))])]}
    for _ in range(conditions.MAX_CONDITION_DEPTH - 1):
        nested = {"and": [nested]}
    assert await agreed(database, nested, SHELF) == [0]


def test_more_words_to_match_than_can_be_looked_for_in_good_time_are_refused():
    words = " ".join(f"word{n}" for n in range(conditions.MAX_TEST_WORDS))
    with pytest.raises(BadRequest, match="more than 40 words in total"):
        conditions.parse({"or": [is_("title", "text_match", words) for _ in range(3)]})


@pytest.mark.parametrize("op", conditions.OPERATORS)
async def test_the_deepest_condition_leaves_a_statement_room_around_it(database: Database, op: str):
    await database.write(lambda tx: store(tx, SHELF))
    value: Any = ["art", 5] if op in ("in", "nin") else "art"
    raw = is_("title", op, value)
    for level in range(conditions.MAX_CONDITION_DEPTH):
        raw = {("and", "or")[level % 2]: [is_("a", "ne", 1), raw]}
    parameters = Parameters()
    where = conditions.to_sql(conditions.parse(raw), parameters)
    around = f"{'(' * 10}{where}{')' * 10}"
    rows = await database.fetch(f"SELECT s.owner_id FROM sources s WHERE s.id > 0 AND {around}", *parameters.values)
    assert sorted(int(row["owner_id"]) for row in rows) == await agreed(database, raw, SHELF)


@pytest.mark.parametrize("op", ["gt", "contains", "text_match"])
async def test_the_language_of_a_postgres_database_changes_nothing(postgres_url: str, op: str):
    empty = "substr(CAST('' AS name), 1, 0)"
    assert f".t || {empty})" in conditions.to_sql(conditions.parse(is_("k", op, "a")), Parameters())
    db = await connect(postgres_url, pool_size=1)
    row = await db.fetch_one(
        f"SELECT pg_collation_for(CAST('x' AS TEXT) || {empty}) AS rules, lower('É' || {empty}) AS small"
    )
    await db.close()
    assert row is not None
    assert (row["rules"], row["small"]) == ('"C"', "É")


# Random conditions

TEXTS = st.one_of(
    st.sampled_from(
        ["", "a", "A b", "É", "ß", "'", '"', "\\", "\\u0000", "$1", "?1", "%_", ",", "[", "null", "true", "5"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)
KEYS = st.one_of(st.sampled_from(["k", "a.b", "2", "$", "[0]", "'", "é", "-1", "$1", "#", "a b"]), TEXTS)
NUMBERS = st.one_of(
    st.integers(-3, 3), st.integers(-(2**63), 2**64 - 1), st.floats(-1e300, 1e300, allow_subnormal=False)
)
SCALARS = st.one_of(TEXTS, NUMBERS, st.booleans())
STORED = st.recursive(
    SCALARS | st.none() | st.just(math.nan),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=6,
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[Json, list[Json]]:
    """A condition, and metadata that often have its keys and values."""
    keys = draw(st.lists(KEYS.filter(fit), min_size=1, max_size=3))
    values = draw(st.lists(SCALARS, min_size=1, max_size=4))
    stored = st.one_of(st.sampled_from(values), st.lists(st.sampled_from(values), max_size=3), STORED)
    metadata = st.dictionaries(st.sampled_from(keys) | KEYS, stored, max_size=4)
    value = st.sampled_from(values) | SCALARS

    def leaf(op: str) -> st.SearchStrategy[Json]:
        given = st.lists(value, min_size=1, max_size=3) if op in ("in", "nin") else value
        return st.fixed_dictionaries({"key": st.sampled_from(keys), "op": st.just(op), "value": given})

    def group(parts: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
        return st.sampled_from(["and", "or"]).flatmap(
            lambda word: st.fixed_dictionaries({word: st.lists(parts, min_size=1, max_size=3)})
        )

    leaves = st.sampled_from(conditions.OPERATORS).flatmap(leaf).filter(stands)
    condition = draw(st.recursive(leaves, group, max_leaves=5).filter(stands))
    return condition, draw(st.lists(metadata, min_size=1, max_size=5))


def fit(key: str) -> bool:
    return stands(is_(key, "eq", 1))


def stands(raw: Json) -> bool:
    try:
        conditions.parse(raw)
    except BadRequest:
        return False
    return True


class Undone(Exception):
    """Raised to roll a transaction back, which saves the commit."""


def test_python_and_the_databases_agree_whatever_is_stored_and_asked(database_url: str):
    with asyncio.Runner() as runner:
        db = runner.run(connect(database_url, pool_size=1))

        @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(asked())
        def agree(case: tuple[Json, list[Json]]) -> None:
            async def body(tx: Transaction) -> None:
                await store(tx, case[1])
                await agreed(tx, *case)
                raise Undone

            with pytest.raises(Undone):
                runner.run(db.write(body))

        try:
            agree()
        finally:
            runner.run(db.close())


# Invalid conditions


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (None, "condition: is not an object"),
        ([], "condition: is not an object"),
        ({}, "condition: is neither a test nor a group"),
        ({"operator": "and", "conditions": []}, "condition: is neither a test nor a group"),
        ({"and": [], "or": []}, "condition: is neither a test nor a group"),
        ({"and": []}, "condition.and: is not a list of at least one condition"),
        ({"and": {"key": "k"}}, "condition.and: is not a list of at least one condition"),
        ({"and": [is_("k", "eq", 1), {"or": [{"key": "k", "op": "eq"}]}]}, "condition.and[1].or[0]: is neither"),
        ({**is_("k", "eq", 1), "more": 1}, "condition: is neither"),
        (is_("", "eq", 1), "condition.key: "),
        (is_("k" * 201, "eq", 1), "condition.key: "),
        (is_('"', "eq", 1), "condition.key: "),
        (is_("\\", "eq", 1), "condition.key: "),
        (is_("\0", "eq", 1), "condition.key: "),
        (is_("\n", "eq", 1), "condition.key: "),
        (is_("\ud800", "eq", 1), "condition.key: "),
        ({"key": 1, "op": "eq", "value": 1}, "condition.key: "),
        (is_("k", "like", 1), "condition.op: there is no such operator"),
        ({"key": "k", "op": ["eq"], "value": 1}, "condition.op: there is no such operator"),
        (is_("k", "eq", [1]), "condition.value: is not a single value"),
        (is_("k", "eq", {}), "condition.value: is not a single value"),
        (is_("k", "gt", None), "condition.value: is not a single value"),
        (is_("k", "gt", True), "condition.value: true and false have no order"),
        (is_("k", "eq", math.nan), "condition.value: is not a finite number"),
        (is_("k", "eq", math.inf), "condition.value: is not a finite number"),
        (is_("k", "eq", 10**400), "condition.value: is not a finite number"),
        (is_("k", "eq", "a\0"), "condition.value: is not a text that can be compared"),
        (is_("k", "eq", "\udfff"), "condition.value: is not a text that can be compared"),
        (is_("k", "eq", "a" * 1001), "condition.value: is not a text that can be compared"),
        (is_("k", "in", "a"), "condition.value: is not a list of at least one value"),
        (is_("k", "in", []), "condition.value: is not a list of at least one value"),
        (is_("k", "nin", ["a", None]), "condition.value[1]: is not a single value"),
        (is_("k", "contains", ""), "condition.value: is empty"),
        (is_("k", "text_match", " -- "), "condition.value: is not a text to match"),
        (is_("k", "text_match", 5), "condition.value: is not a text to match"),
        (is_("k", "text_match", " ".join(map(str, range(21)))), "condition.value: is not a text to match"),
        ({"or": [is_("k", "eq", 1)] * 51}, "condition: has more than 50 tests"),
        ({"or": [is_("k", "in", [1] * 501)] * 2}, "condition: its lists have more than 1000 values"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_write_instead(raw: Any, said: str):
    with pytest.raises(BadRequest) as refused:
        conditions.parse(raw)
    assert refused.value.message.startswith(said)
    assert refused.value.remedy


def test_groups_may_be_nested_five_deep_and_no_deeper():
    raw: Any = is_("k", "eq", 1)
    for _ in range(5):
        raw = {"and": [raw]}
    assert holds(conditions.parse(raw), {"k": 1})
    for _ in range(10_000):
        raw = {"and": [raw]}
    with pytest.raises(BadRequest, match="nested deeper than 5"):
        conditions.parse(raw)


def test_a_refusal_does_not_repeat_what_was_given():
    for raw in (is_("secret\n", "eq", 1), is_("k", "secret", 1), is_("k", "eq", "secret\0"), {"secret": 1}):
        with pytest.raises(BadRequest) as refused:
            conditions.parse(raw)
        assert "secret" not in refused.value.text
