"""Citations: a quotation is found at its place, at another place, changed, or not at all."""

import time
from dataclasses import replace

import pytest

from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import orgs
from almanac.search import passage_store, sources
from almanac.search.citations import CitationCheck, passage_hash, verify
from almanac.search.passage import Passage
from almanac.search.sources import Source

TEXT = (
    "The pump must be primed\nbefore its first use. "
    "Check the oil every four weeks and replace it once a year.\n\n"
    "The valve opens at nine bar; never weld it shut. "
    "In case of fire leave the hall by the nearest door."
)
CUTS = [(0, 45), (45, 103), (97, 154), (154, len(TEXT))]  # the second and third overlap by six


def cut(text: str, spans: list[tuple[int, int]]) -> list[Passage]:
    return [Passage(start, end, text[start:end], page=page) for page, (start, end) in enumerate(spans, 1)]


@pytest.fixture
async def manual(database: Database) -> Source:
    org = await database.write(lambda tx: orgs.add(tx, "an-org"))
    source = Source(org.id, "base:1", "document", "7", "Manual", 1, 2)
    await save(database, source, cut(TEXT, CUTS))
    return source


async def save(db: Database, source: Source, found: list[Passage]) -> None:
    prepared = passage_store.analyse(source.title, found)
    await db.write(lambda tx: passage_store.replace(tx, source, prepared))


async def check(db: Database, text: str | None = None, place: tuple[int, int] | None = None, hash: str | None = None):
    start, end = place or (None, None)
    return await verify(db, "document", "7", hash=hash, text=text, start=start, end=end)


def said(outcome: str, quoted: str, page: int, text: str = TEXT, spans: list[tuple[int, int]] = CUTS) -> CitationCheck:
    """The verdict on a quotation from one of the passages."""
    start, end = spans[page - 1]
    at = text.index(quoted)
    return CitationCheck(outcome, at, at + len(quoted), page, passage_hash(text[start:end]))


def test_the_hash_covers_the_exact_text():
    assert passage_hash("a b") == "c8687a08aa5d6ed2044328fa6a697ab8"
    assert passage_hash("a  b") != passage_hash("a b")


async def test_a_passage_at_its_place_is_unchanged(database: Database, manual: Source):
    for page, (start, end) in enumerate(CUTS, 1):
        unchanged = CitationCheck("unchanged", start, end, page, passage_hash(TEXT[start:end]))
        assert await check(database, place=(start, end), hash=passage_hash(TEXT[start:end])) == unchanged
        assert await check(database, hash=f" {passage_hash(TEXT[start:end]).upper()}") == unchanged
        assert await verify(database, "document", "7", hash=unchanged.hash, start=start) == unchanged


async def test_words_of_a_passage_are_found_whatever_the_white_space(database: Database, manual: Source):
    expected = said("unchanged", "primed\nbefore its", 1)
    assert await check(database, " primed before\t its ", CUTS[0]) == expected
    assert await check(database, "primed before its") == expected
    assert await check(database, "the nearest door", CUTS[3]) == said("unchanged", "the nearest door", 4)


async def test_a_quotation_that_spans_two_passages_is_found(database: Database, manual: Source):
    expected = said("unchanged", "first use. Check the oil", 1)
    assert await check(database, "first use. Check the oil", CUTS[0]) == expected
    long = TEXT[10:-10]
    assert await check(database, long) == said("unchanged", long, 1)


async def test_a_moved_quotation_is_returned_with_its_new_place(database: Database, manual: Source):
    text, spans = "A new beginning. " + TEXT, [(0, 17), *((start + 17, end + 17) for start, end in CUTS)]
    await save(database, manual, cut(text, spans))
    moved = await check(database, place=CUTS[3], hash=passage_hash(TEXT[154:]))
    assert moved == CitationCheck("moved", 171, len(text), 5, passage_hash(TEXT[154:]))
    assert await check(database, "The pump must", (0, 10)) == said("moved", "The pump must", 2, text, spans)


async def test_of_several_places_the_named_one_counts_or_else_the_nearest(database: Database, manual: Source):
    text = "same words. " * 4
    spans = [(0, 11), (12, 23), (24, 35), (36, 47)]
    await save(database, manual, cut(text, spans))
    whole = passage_hash("same words.")
    assert await check(database, "words", (24, 35)) == CitationCheck("unchanged", 29, 34, 3, whole)
    assert await check(database, "words", (60, 80)) == CitationCheck("moved", 41, 46, 4, whole)
    assert await check(database, place=(12, 23), hash=whole) == CitationCheck("unchanged", 12, 23, 2, whole)
    assert await check(database, place=(14, 25), hash=whole) == CitationCheck("moved", 12, 23, 2, whole)


async def test_a_passage_inside_a_longer_one_is_found_by_hash_and_span(database: Database, manual: Source):
    quoted = TEXT[:45]
    grown = f"{quoted}\n\nCats may roam."
    await save(database, manual, [Passage(0, len(grown), grown, page=1)])
    assert await check(database, place=(0, 45), hash=passage_hash(quoted)) == CitationCheck(
        "unchanged", 0, 45, 1, passage_hash(grown)
    )
    assert await check(database, hash=passage_hash(quoted)) == CitationCheck("changed")  # its length is unknown
    later = f"Read this first.\n\n{grown}"
    await save(database, manual, [Passage(0, len(later), later, page=1)])
    assert await check(database, place=(0, 45), hash=passage_hash(quoted)) == CitationCheck(
        "moved", 18, 63, 1, passage_hash(later)
    )
    await save(database, manual, [Passage(18, 18 + len(grown), f"name | size\n{grown}", "table")])
    assert (await check(database, place=(18, 63), hash=passage_hash(quoted))).outcome == "unchanged"


async def test_a_changed_quotation_is_returned_with_the_most_similar_passage(database: Database, manual: Source):
    verdict = await check(database, "The valve opens at seven bar; never weld it", CUTS[2])
    assert verdict == CitationCheck("changed", 97, 154, 3, passage_hash(TEXT[97:154]))
    assert await check(database, "something else entirely about bananas") == CitationCheck("changed")
    assert await check(database, "…?!") == CitationCheck("changed")
    assert await check(database, hash="0" * 32) == CitationCheck("changed")
    assert await check(database, place=(50, 60), hash="0" * 32) == CitationCheck(
        "changed", 45, 103, 2, passage_hash(TEXT[45:103])
    )


async def test_only_the_text_counts_if_a_hash_is_given_too(database: Database, manual: Source):
    assert (await check(database, "nine bar", hash="0" * 32)).outcome == "unchanged"
    assert (await check(database, "ten bar or more", hash=passage_hash(TEXT[97:154]))).outcome == "changed"


async def test_a_table_row_is_found_with_its_repeated_header(database: Database, manual: Source):
    text = "name | size\npump | 9\nvalve | 4"
    await save(
        database, manual, [Passage(0, 20, text[:20]), Passage(21, 30, "name | size\nvalve | 4", "table", page=2)]
    )
    row = passage_hash("name | size\nvalve | 4")
    assert await check(database, "valve | 4", (21, 30)) == CitationCheck("unchanged", 21, 30, 2, row)
    assert await check(database, "name | size valve | 4", (21, 30)) == CitationCheck("unchanged", 21, 30, 2, row)


async def test_a_missing_or_hidden_source_is_gone(database: Database, manual: Source):
    assert await verify(database, "document", "8", text="pump") == CitationCheck("gone")
    assert await verify(database, "note", "7", text="pump") == CitationCheck("gone")
    await database.write(lambda tx: sources.put(tx, replace(manual, is_live=False)))
    assert await check(database, "pump") == CitationCheck("gone")
    await database.write(lambda tx: sources.put(tx, manual))
    await save(database, manual, [])
    assert await check(database, "pump") == CitationCheck("changed")
    await database.write(lambda tx: sources.remove(tx, "document", ["7"]))
    assert await check(database, "pump") == CitationCheck("gone")


async def test_an_empty_and_a_too_long_quotation_are_refused(database: Database):
    for text, hash in ((None, None), (" \n", None), ("", "0" * 32), (None, " "), ("a" * 20_001, None)):
        with pytest.raises(BadRequest, match="nothing to verify"):
            await check(database, text, hash=hash)


async def test_a_quotation_that_almost_matches_everywhere_is_not_slower(database: Database, manual: Source):
    many = [Passage(n * 1600, n * 1600 + 1600, "a " * 800) for n in range(500)]
    await save(database, manual, many)
    begun = time.process_time()
    assert (await check(database, "a " * 9_000 + "b")).outcome == "changed"
    assert (await check(database, "a", (10**6, 10**6 + 1))).outcome == "moved"
    assert time.process_time() - begun < 10  # it would take minutes
