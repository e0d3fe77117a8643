"""Segments: they hold their input, and a file is read back unchanged or not at all."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from almanac.core.errors import Unavailable
from almanac.search.index.embedded import quantisation, segment_builder, segment_merge, segments
from almanac.search.index.embedded.segment_builder import SegmentRows, build_segment
from almanac.search.index.embedded.segment_merge import choose, merge
from almanac.search.index.embedded.segment_view import SegmentView
from almanac.search.index.embedded.segments import NOT_ANALYSED, Segment, SegmentUnreadable

SIZE = 12  # numbers of a vector


def words_of(counted: dict[int, int]) -> bytes:
    """As `analysis.pack` stores them."""
    hashes = sorted(counted)
    return np.array(hashes, np.int64).tobytes() + bytes(counted[each] for each in hashes)


def row(source: int, collection: str, passage: int, counted: dict[int, int] | None, model: str = "") -> dict[str, Any]:
    words = None if counted is None else words_of(counted)
    rng = np.random.default_rng([passage, len(model)])
    vector = rng.standard_normal(SIZE).astype(np.float16).tobytes() if model else None
    keys = ("source_id", "collection", "passage_id", "words", "model", "vector")
    return dict(zip(keys, (source, collection, passage, words, model or None, vector), strict=True))


def segment_of(rows: Any) -> Segment:
    batch = SegmentRows()
    batch.add(rows)
    return build_segment(batch)


def contents(segment: Segment) -> dict[int, Any]:
    """All content of a segment, by passage, read from its arrays one by one."""
    found: dict[int, Any] = {}
    collection_of = {
        source: name
        for place, name in enumerate(segment.collections)
        for source in range(int(segment.firsts[place]), int(segment.firsts[place + 1]))
    }
    for place, passage in enumerate(segment.passages.tolist()):
        owner = int(segment.owners[place])
        assert segment.runs[owner] <= place < segment.runs[owner + 1]
        length = None if segment.lengths[place] == NOT_ANALYSED else int(segment.lengths[place])
        found[passage] = [int(segment.source_ids[owner]), collection_of[owner], length, {}, {}]
    for place, term in enumerate(segment.terms.tolist()):
        start, stop = segment.offsets[place : place + 2].tolist()
        assert start < stop
        assert np.all(np.diff(segment.rows[start:stop].astype(np.int64)) > 0)
        for posting in range(start, stop):
            passage = int(segment.passages[segment.rows[posting]])
            found[passage][3][term] = int(segment.counts[posting])
    for key, matrix in segment.matrices.items():
        assert np.all(np.diff(matrix.rows.astype(np.int64)) > 0)
        for place, each in enumerate(matrix.rows.tolist()):
            value = matrix.values[place].tobytes(), float(matrix.scales[place])
            found[int(segment.passages[each])][4][key] = value
    return found


def assert_in_order(segment: Segment) -> None:
    keys = [
        (found[1], found[0], passage)
        for passage in segment.passages.tolist()
        if (found := contents(segment)[passage]) is not None
    ]
    assert keys == sorted(keys)
    assert segment.sources.tolist() == sorted(segment.sources.tolist())


hashes = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.integers(0, 5).map(lambda n: (n << 24) + 1))
counted = st.none() | st.dictionaries(hashes, st.integers(1, 255), max_size=6)
things = st.lists(
    st.tuples(st.sampled_from(["a", "b", "base:10", "ü"]), st.lists(st.tuples(counted, st.integers(0, 2)), max_size=4)),
    max_size=8,
)


def rows_of(shelf: Sequence[tuple[str, Sequence[tuple[dict[int, int] | None, int]]]]) -> list[dict[str, Any]]:
    """Rows as the database gives them: sources in no order, a passage again for each of its vectors."""
    rows: list[dict[str, Any]] = []
    for number, (collection, passages) in enumerate(shelf):
        source = (number * 7) % 11 + 1
        for place, (words, models) in enumerate(passages):
            passage = source * 100 + (place * 3) % 4
            rows += [row(source, collection, passage, words, "m" * n) for n in range(1, models + 1)] or [
                row(source, collection, passage, words)
            ]
    return rows


@settings(max_examples=150, deadline=None)
@given(things)
def test_what_is_put_in_is_in_it(shelf: Any):
    rows = rows_of(shelf)
    segment = segment_of(rows)
    expected = {each["passage_id"]: (each["source_id"], each["collection"], each["words"] is not None) for each in rows}
    found = contents(segment)
    assert {id: (each[0], each[1], each[2] is not None) for id, each in found.items()} == expected
    for each in rows:
        passage = found[each["passage_id"]]
        if each["words"] is not None:
            assert words_of(passage[3]) == each["words"]
            assert passage[2] == sum(passage[3].values())
        if each["vector"] is not None:
            values, scale = passage[4][each["model"], SIZE]
            stored = np.frombuffer(each["vector"], np.float16).astype(np.float32)
            near = np.frombuffer(values, np.int8) * np.float32(scale)
            assert np.allclose(near, stored / np.linalg.norm(stored), atol=0.51 * scale)
    assert_in_order(segment)


@settings(max_examples=150, deadline=None)
@given(things, st.integers(1, 4), st.sets(st.integers(1, 11)))
def test_a_merged_segment_holds_what_its_parts_still_hold(shelf: Any, number: int, gone: set[int]):
    rows = rows_of(shelf)
    views = [
        SegmentView.of(segment_of([each for each in rows if each["source_id"] % number == part])).mask(
            np.array(sorted(gone), np.int64)
        )
        for part in range(number)
    ]
    expected = contents(segment_of([each for each in rows if each["source_id"] not in gone]))
    merged = merge(views)
    assert contents(merged) == expected
    assert_in_order(merged)
    assert sum(view.size for view in views) == len(expected)


def test_postings_are_merged_in_portions_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(1)
    rows = [
        row(1 + n // 3, f"base:{n % 9 // 3}", n, {int(term): 1 + n % 5 for term in rng.integers(0, 60, 20)}, "m")
        for n in range(90)
    ]
    views = [
        SegmentView.of(segment_of(part)).mask(np.array([2, 5, 17])) for part in (rows[:30], rows[30:75], rows[75:])
    ]
    at_once = contents(merge(views))
    monkeypatch.setattr(segment_merge, "POSTINGS_AT_ONCE", 7)
    assert contents(merge(views)) == at_once
    assert len(at_once) == 81


def test_hashes_that_differ_in_their_last_bits_are_kept_apart():
    words = [{(1 << 40) + 1: 1, (1 << 40): 2}, {(1 << 40): 3}, {(1 << 40) + 1: 4, -5: 1}]
    segment = segment_of([row(n + 1, "a", n, each) for n, each in enumerate(words)])
    assert [each[3] for _, each in sorted(contents(segment).items())] == words


def test_more_postings_than_a_place_has_bits_for_are_sorted_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segment_builder, "POSITION_BITS", np.uint64(2))
    words = [{9: 1, 3: 2, -7: 1}, {3: 1, 8: 1}, {-7: 5}]
    segment = segment_of([row(n + 1, "a", n, each) for n, each in enumerate(words)])
    assert [each[3] for _, each in sorted(contents(segment).items())] == words


def test_words_that_were_cut_short_are_read_as_far_as_they_go():
    rows = [row(1, "a", 1, {5: 1, 6: 2}), row(1, "a", 2, {7: 3})]
    rows[0]["words"] = words_of({5: 1, 6: 2}) + b"xyz"
    assert [each[3] for each in contents(segment_of(rows)).values()] == [{5: 1, 6: 2}, {7: 3}]


# Files


def sample() -> Segment:
    rows = [
        row(1 + n // 2, f"base:{n % 3}" if n % 2 == 0 else f"base:{(n - 1) % 3}", n, {n: 1, 7: 2} if n else None, "m")
        for n in range(20)
    ]
    return segment_of(rows)


def test_a_segment_comes_out_of_a_file_as_it_went_in(tmp_path: Path):
    path = tmp_path / "one.segment"
    segments.write(path, segments.copy(sample()))
    assert contents(segments.read(path)) == contents(sample())
    assert segments.read(path).collections == sample().collections
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_segment_of_nothing_can_be_written_and_read(tmp_path: Path):
    segments.write(
        tmp_path / "none.segment", lambda allocate: merge([SegmentView.of(build_segment(SegmentRows()))], allocate)
    )
    assert contents(segments.read(tmp_path / "none.segment")) == {}


def test_a_segment_merged_into_a_file_is_the_one_merged_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quantisation, "MIN_SKETCHED_VECTORS", 5)
    views = [SegmentView.of(sample()).mask(np.array([2, 9]))]
    segments.write(tmp_path / "one.segment", lambda allocate: merge(views, allocate))
    filed, held = segments.read(tmp_path / "one.segment"), merge(views)
    pairs = list(zip(segments.arrays(filed), segments.arrays(held), strict=True))
    assert len(pairs) == 16
    for (name, one), (other_name, other) in pairs:
        assert name == other_name
        assert np.array_equal(one, other)
    assert len(filed.matrices["m", SIZE].sketches) == 16


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_file_of_which_anything_was_changed_is_not_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    path = tmp_path_factory.mktemp("harm") / "one.segment"
    segments.write(path, segments.copy(sample()))
    whole = path.read_bytes()
    filler = range(40, 64)  # the gap after the header holds nothing
    place = data.draw(st.integers(0, len(whole) - 1).filter(lambda place: place not in filler))
    harmed = bytearray(whole)
    harmed[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.booleans())
    path.write_bytes(whole[:place] if cut else harmed)
    with pytest.raises(SegmentUnreadable):
        segments.read(path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_file_that_a_process_cannot_open_now_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    def fail(*_: object) -> None:
        raise OSError(number, "short of something")

    monkeypatch.setattr(np, "memmap", fail)
    with pytest.raises(Unavailable, match="cannot be opened: short of something"):
        segments.read(tmp_path / "any")


def test_a_file_that_is_not_there_is_lost(tmp_path: Path):
    with pytest.raises(SegmentUnreadable, match="missing"):
        segments.read(tmp_path / "none.segment")


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="no room"):
        segments.write(tmp_path / "one.segment", segments.copy(sample()))
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_where_room_cannot_be_reserved_by_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "posix_fallocate")
    segments.write(tmp_path / "one.segment", segments.copy(sample()))
    assert contents(segments.read(tmp_path / "one.segment")) == contents(sample())


# The choice of segments to merge


def test_segments_stay_few_and_the_large_are_rarely_written_again():
    sizes: list[int] = []
    written = 0
    for _ in range(1000):
        chosen = choose([*sizes, 5])
        merged = sum([*sizes, 5][place] for place in chosen)
        sizes = [size for place, size in enumerate([*sizes, 5]) if place not in chosen] + [merged]
        written += merged
        assert len(sizes) <= 7
    assert sum(sizes) == 5000
    assert written / 5000 < 15
