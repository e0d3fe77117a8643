"""Filters: they select the right sources, with any characters in tags."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from almanac.core.database import Database, Reader, Transaction
from almanac.core.errors import BadRequest
from almanac.db.connect import connect
from almanac.identity import orgs
from almanac.search import sources
from almanac.search.filters import metadata_index, source_filter
from almanac.search.query import SourceFilter
from almanac.search.sources import Source

PLAIN = Source("", "base:1", "document", "", "a title", 100, 200)
SHELF = [
    replace(PLAIN, object_id="1", folder_id=3, tags=("red", "old"), metadata={"year": 2020}),
    replace(PLAIN, object_id="2", folder_id=4, tags=("red",), created_at=150, metadata={"year": 2021}),
    replace(PLAIN, object_id="3", folder_id=3, updated_at=250),
    replace(PLAIN, object_id="1", kind="note", tags=("redder", "Red"), created_at=99, metadata={"year": 2021}),
]


async def store(tx: Transaction, things: list[Source]) -> None:
    org = await orgs.add(tx, "acme")
    for each in things:
        await sources.put(tx, replace(each, org_id=org.id))


async def kept(db: Reader, filter: SourceFilter) -> list[str]:
    """The sources that pass a filter, as 'kind:id': the same by the table of facts and by a scan of all sources."""
    found: list[list[str]] = []
    for collections in ((), ("base:1", "never")):
        where, args = source_filter.resolve(filter, collections=collections)
        rows = await db.fetch(f"SELECT s.kind, s.owner_id FROM sources s WHERE {where or 'TRUE'} ORDER BY s.id", *args)
        found.append([f"{row['kind']}:{row['owner_id']}" for row in rows])
        if (select := metadata_index.as_select(where)) is not None:
            rows = await db.fetch(f"SELECT kind, owner_id FROM sources WHERE id IN ({select}) ORDER BY id", *args)
            found.append([f"{row['kind']}:{row['owner_id']}" for row in rows])
    assert all(each == found[0] for each in found)
    return found[0]


def test_an_empty_filter_asks_for_nothing():
    assert source_filter.resolve(SourceFilter()) == ("", ())


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (SourceFilter(kinds=("note",)), ["note:1"]),
        (SourceFilter(kinds=("note", "document", "note")), ["document:1", "document:2", "document:3", "note:1"]),
        (SourceFilter(objects=(("document", "1"), ("document", "3"))), ["document:1", "document:3"]),
        (SourceFilter(objects=(("document", "2"), ("note", "1"), ("note", "2"))), ["document:2", "note:1"]),
        (SourceFilter(folders=(3, 9, 3)), ["document:1", "document:3"]),
        (SourceFilter(folders=(9,)), []),
        (SourceFilter(tags=("red",)), ["document:1", "document:2"]),
        (SourceFilter(tags=("old", "red")), ["document:1"]),
        (SourceFilter(tags=("re",)), []),
        (SourceFilter(created_from=100), ["document:1", "document:2", "document:3"]),
        (SourceFilter(created_until=100), ["note:1"]),
        (SourceFilter(created_from=100, created_until=150), ["document:1", "document:3"]),
        (SourceFilter(updated_from=250), ["document:3"]),
        (SourceFilter(updated_until=250, folders=(3,)), ["document:1"]),
        (SourceFilter(condition={"key": "year", "op": "gt", "value": 2020}), ["document:2", "note:1"]),
        (
            SourceFilter(("document",), (("document", "2"), ("note", "1")), (4,), ("red",), 100, 200, 200, 201,
                   {"and": [{"key": "year", "op": "in", "value": [2021, "x"]}]}),
            ["document:2"],
        ),
    ],
)  # fmt: skip
async def test_a_filter_leaves_what_it_says(database: Database, filter: SourceFilter, expected: list[str]):
    await database.write(lambda tx: store(tx, SHELF))
    assert await kept(database, filter) == expected


async def test_parameters_are_numbered_from_where_they_are_told_to(database: Database):
    await database.write(lambda tx: store(tx, SHELF))
    condition = {"key": "year", "op": "eq", "value": 2020}
    where, args = source_filter.resolve(SourceFilter(kinds=("document",), tags=("old",), condition=condition), start=3)
    rows = await database.fetch(
        f"SELECT s.owner_id FROM sources s WHERE s.id > $1 AND s.id < $2 AND {where}", 0, 99, *args
    )
    assert [row["owner_id"] for row in rows] == ["1"]


async def test_thousands_of_folders_and_things_can_be_named(database: Database):
    await database.write(lambda tx: store(tx, SHELF))
    assert await kept(database, SourceFilter(folders=tuple(range(4, 5_004)))) == ["document:2"]
    many = tuple(("document", str(number)) for number in range(2, 2 + source_filter.MAX_OBJECTS))
    assert await kept(database, SourceFilter(objects=many)) == ["document:2", "document:3"]
    with pytest.raises(BadRequest, match="at most 20000 ids"):
        source_filter.resolve(SourceFilter(objects=(*many, ("document", "1"))))


def test_a_tag_that_cannot_be_stored_and_a_condition_that_is_none_are_refused():
    for collections in ((), ("base:1",)):
        with pytest.raises(BadRequest, match="A tag is not a text"):
            source_filter.resolve(SourceFilter(tags=("\ud800",)), 1, collections)
    with pytest.raises(BadRequest, match="condition: is neither"):
        source_filter.resolve(SourceFilter(condition={"year": 2020}))


def test_what_facts_say_in_one_look_is_known_from_what_they_do_not():
    def select(**filter: Any) -> str | None:
        return metadata_index.as_select(source_filter.resolve(SourceFilter(**filter), collections=["base:1"])[0])

    year, lang = {"key": "year", "op": "eq", "value": 2020}, {"key": "lang", "op": "in", "value": ["de", 5, True]}
    for known in ({"tags": ("red",)}, {"condition": year}, {"condition": lang}):
        found = select(**known)
        assert found is not None
        assert found.count("(") == found.count(")")
    for other in (
        {},
        {"kinds": ("note",)},
        {"tags": ("red", "old")},
        {"tags": ("x" * 40,)},
        {"tags": ("red",), "folders": (3,)},
        {"condition": {"and": [year, lang]}},
        {"condition": {"or": [year, lang]}},
        {"condition": {"key": "year", "op": "ne", "value": 2020}},
    ):
        assert select(**other) is None


TAGS = st.one_of(
    st.text(st.sampled_from("\",\\[]- 'n"), max_size=5),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.text("ab", max_size=3).map(lambda end: "x" * 39 + end),  # longer than the stored part of a text
)


class Undone(Exception):
    """Raised to roll a transaction back, which saves the commit."""


def test_tags_are_found_whatever_they_are_made_of(database_url: str):
    with asyncio.Runner() as runner:
        db = runner.run(connect(database_url, pool_size=1))

        @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.data(), st.lists(st.lists(TAGS, max_size=4), min_size=1, max_size=4))
        def agree(data: st.DataObject, tags: list[list[str]]) -> None:
            known = st.sampled_from([tag for each in tags for tag in each] or [""])
            wanted = set(data.draw(st.lists(known | TAGS, min_size=1, max_size=2)))
            things = [replace(PLAIN, object_id=str(n), tags=tuple(each)) for n, each in enumerate(tags)]

            async def body(tx: Transaction) -> None:
                await store(tx, things)
                expected = [f"document:{n}" for n, each in enumerate(tags) if wanted <= set(each)]
                assert await kept(tx, SourceFilter(tags=tuple(wanted))) == expected
                raise Undone

            with pytest.raises(Undone):
                runner.run(db.write(body))

        try:
            agree()
        finally:
            runner.run(db.close())


async def test_many_tags_are_looked_up_at_once_and_too_many_refused(database: Database):
    tags = tuple(f"tag {number}" for number in range(source_filter.MAX_TAGS))
    things = [replace(PLAIN, object_id="7", tags=(*tags, "more")), replace(PLAIN, object_id="8", tags=tags[1:])]
    await database.write(lambda tx: store(tx, things))
    assert await kept(database, SourceFilter(tags=tags)) == ["document:7"]
    _, args = source_filter.resolve(SourceFilter(tags=tags), collections=[f"base:{number}" for number in range(200)])
    assert len(args) < 200 + 3 * len(tags)  # the collections once
    with pytest.raises(BadRequest, match="at most 20 tags"):
        source_filter.resolve(SourceFilter(tags=(*tags, "more")))
