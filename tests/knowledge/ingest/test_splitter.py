"""Passages: properties of every split, on hundreds of generated documents, and a few readable examples."""

import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise, takewhile
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from almanac.core.errors import BadRequest
from almanac.knowledge.ingest.splitter import PassageSplitter, split
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextLine, TextPage
from almanac.search.passage import Passage

WORDS = ["a", "it", "The", "harbour", "pilot", "e.g.", "3.14", "night.", "Really?", "stop!”", "https://a.example/b"]
LONG_WORDS = ["x" * 90, "y" * 700]
RIGHT_TO_LEFT = ["مرحبا", "بالعالم.", "؟", "שלום", "עולם!"]
UNSPACED = ["港口", "每晚关闭", "。", "，", "？」", "カタカナ", "ひらがな", "한국어", "ไปเที่ยว", "𠮷"]
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\u00a0", "\u3000", ". ", " " * 300]
# Clusters of several code points that a reader sees as one character.
CLUSTERS = [
    "👩\u200d👩\u200d👧\u200d👦", "👍🏽", "🇫🇷", "🇬🇧", "e\u0301", "e\u0323\u0300", "1\ufe0f\u20e3", "❤\ufe0f\u200d🔥",
    "\u1100\u1161\u11a8", "क\u094dष\u093f", "ก\u0e33", "🏴\U000e0067\U000e0062\U000e007f", "か\u3099", "ﾊﾟ",
    "葛\U000e0100", "\u0600١",
]  # fmt: skip
ATOMS = [*WORDS, *LONG_WORDS, *RIGHT_TO_LEFT, *UNSPACED, *SPACES, *CLUSTERS]
PROSE = st.lists(st.sampled_from(ATOMS) | st.sampled_from(CLUSTERS), min_size=1, max_size=12)
ON_ONE_LINE = st.lists(st.sampled_from([atom for atom in ATOMS if "\n" not in atom]), min_size=1, max_size=6)
HEADERS = [
    ["name | sum\n", "---|---\n"],
    ["港口 | 时间\n"],
    ["\tname\tsum"],
    ["column " * 60, "\n"],
    ["列" * 900, "\n"],
    [],
]
SYMBOLS = ["", "", "Trail", "Trail.open", "Trail.flush", "Trailer", "main"]


def repeat(atoms: list[str], times: int) -> list[str]:
    """The atoms repeated, up to a few pages."""
    return atoms * min(times, 1 + 3000 // len("".join(atoms)))


class Document:
    """A document under construction, with the spans of its clusters."""

    def __init__(self) -> None:
        self.text = ""
        self.blocks: list[Block] = []
        self.clusters: list[tuple[int, int]] = []

    def write(self, atoms: list[str]) -> int:
        for atom in atoms:
            if atom in CLUSTERS:
                self.clusters.append((len(self.text), len(self.text) + len(atom)))
            self.text += atom
        return len(self.text)

    def add(self, draw: st.DrawFn, kind: str) -> None:
        start = self.write([draw(st.sampled_from(["\n", "\n\n", "\n \n"]))])
        block = {"heading": self.heading, "text": self.prose, "table": self.table, "code": self.code}[kind](draw, start)
        if self.text[block.start : block.end].strip():
            self.blocks.append(block)

    def heading(self, draw: st.DrawFn, start: int) -> Block:
        end = self.write([atom for atom in draw(ON_ONE_LINE) if atom.strip()] or ["Harbour"])
        return Block("heading", start, end, level=draw(st.integers(1, 4)))

    def prose(self, draw: st.DrawFn, start: int) -> Block:
        return Block("text", start, self.write(repeat(draw(PROSE), draw(st.integers(1, 40)))))

    def table(self, draw: st.DrawFn, start: int) -> Block:
        header_end = self.write(draw(st.sampled_from(HEADERS)))
        self.write(["\n"])
        widest = repeat(draw(ON_ONE_LINE), draw(st.sampled_from([1, 5, 100])))
        row = [*draw(ON_ONE_LINE), draw(st.sampled_from([" | ", "\t"])), *widest, "\n"]
        return Block("table", start, self.write(repeat(row, draw(st.integers(1, 40)))), header_end=header_end)

    def code(self, draw: st.DrawFn, start: int) -> Block:
        line = st.tuples(st.sampled_from(["", "    ", "\t\t"]), st.sampled_from([*WORDS, *LONG_WORDS, "", "}"]))
        lines = [f"{indent}{words}\n" for indent, words in draw(st.lists(line, min_size=1, max_size=8))]
        return Block(
            "code", start, self.write(repeat(lines, draw(st.integers(1, 10)))), name=draw(st.sampled_from(SYMBOLS))
        )

    def parsed(self, on_page: int, with_lines: bool) -> ParsedFile:
        starts = range(0, len(self.text), on_page) if on_page else ()
        pages = [TextPage(number, start, start + on_page) for number, start in enumerate(starts, 1)]
        lines = self.lines(on_page) if pages and with_lines else ()
        return ParsedFile(self.text, tuple(self.blocks), tuple(pages), tuple(lines))

    def lines(self, on_page: int) -> Iterator[TextLine]:
        at = 0
        for number, words in enumerate(self.text.split("\n")):
            x, y = number * 7 % 50, number * 13 % 400
            yield TextLine(at, at + len(words), at // on_page + 1, x + 0.04, y + 0.26, x + len(words) / 3, y + 10.0)
            at += len(words) + 1


@st.composite
def documents(draw: st.DrawFn) -> tuple[ParsedFile, list[tuple[int, int]]]:
    """A document of random blocks, and the spans of its clusters."""
    document = Document()
    for kind in draw(st.lists(st.sampled_from(["heading", "heading", "text", "text", "table", "code"]), max_size=8)):
        document.add(draw, kind)
    return document.parsed(draw(st.sampled_from([0, 60, 900])), draw(st.booleans())), document.clusters


@st.composite
def splitters(draw: st.DrawFn) -> PassageSplitter:
    size = draw(st.integers(128, 500))
    overlap = draw(st.integers(0, (size - 1) // 2))
    return PassageSplitter(
        draw(st.sampled_from(["flat", "hierarchical"])), size, overlap, size * draw(st.integers(2, 5))
    )


many = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


# Properties of every document, computed in the simplest way


@cache
def width(character: str) -> int:
    other = unicodedata.category(character)[0] == "S" or "CHOSEONG" in unicodedata.name(character, "")  # emoji, jamo
    return 1 if other or unicodedata.east_asian_width(character) not in "WFH" else 3


def length(text: str) -> int:
    return sum(map(width, text))


def leaves(passages: list[Passage]) -> list[Passage]:
    """The passages without children."""
    parents = {passage.parent for passage in passages}
    return [passage for index, passage in enumerate(passages) if index not in parents]


def uncovered(text: str, passages: list[Passage]) -> str:
    """The characters of a text, except white space, that are in no passage."""
    seen = bytearray(len(text))
    for passage in passages:
        seen[passage.start : passage.end] = b"\1" * (passage.end - passage.start)
    return "".join(each for each, covered in zip(text, seen, strict=True) if not covered).strip()


def touched(parsed: ParsedFile, passage: Passage) -> list[Block]:
    return [block for block in parsed.blocks if block.start < passage.end and block.end > passage.start]


def path_of(parsed: ParsedFile, block: Block) -> list[Block]:
    """The headings above a block, highest first. A heading is above itself."""
    path: list[Block] = []
    for each in parsed.blocks[: parsed.blocks.index(block) + 1]:
        if each.kind == "heading":
            path = [*(above for above in path if above.level < each.level), each]
    return path


def common(paths: list[list[Block]]) -> list[Block]:
    same = takewhile(lambda level: all(each == level[0] for each in level), zip(*paths, strict=False))
    return [level[0] for level in same]


def names(parsed: ParsedFile, path: list[Block]) -> tuple[str, ...]:
    return tuple(" ".join(parsed.text[each.start : each.end].split())[:200] for each in path)


def box(lines: list[TextLine]) -> tuple[float, float, float, float]:
    corners = (min(line.x0 for line in lines), min(line.y0 for line in lines))
    opposite = (max(line.x1 for line in lines), max(line.y1 for line in lines))
    x0, y0, x1, y1 = (round(number, 1) for number in (*corners, *opposite))
    return x0, y0, x1, y1


@given(documents(), splitters())
@many
def test_no_word_of_a_document_is_lost(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    passages = split(parsed, splitter)
    inside = "".join(parsed.text[block.start : block.end] for block in parsed.blocks)
    assert bool(passages) == bool(inside)
    assert uncovered(parsed.text, leaves(passages)) == uncovered(parsed.text, passages) == ""


@given(documents(), splitters())
@many
def test_a_passage_is_its_span_without_white_space_around_it(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    for passage in split(parsed, splitter):
        span = parsed.text[passage.start : passage.end]
        assert span.strip()
        if passage.kind != "table":
            assert passage.text == span == span.strip()
        else:
            assert passage.text.endswith(span)
            assert span == span.strip("\n") == span.rstrip()


@given(documents(), splitters())
@many
def test_passages_come_in_order_and_the_same_each_time(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    passages = split(parsed, splitter)
    assert passages == split(parsed, splitter)
    assert [passage.start for passage in passages] == sorted(passage.start for passage in passages)
    for before, after in pairwise(leaves(passages)):
        assert before.start < after.start
        assert before.end < after.end


@given(documents(), splitters())
@many
def test_no_passage_is_longer_than_the_size(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    passages = split(parsed, splitter)
    parents = {passage.parent for passage in passages}
    for index, passage in enumerate(passages):
        size = splitter.parent_size if index in parents else splitter.size
        if passage.kind != "table":
            assert length(passage.text) <= size
        else:
            span = parsed.text[passage.start : passage.end]
            assert length(span) <= size * 4
            assert length(passage.text) - length(span) <= size / 2 + 1
            assert length(passage.text) <= size or "\n" not in span or passage.start < header_end(parsed, passage)


def header_end(parsed: ParsedFile, passage: Passage) -> int:
    (table,) = (block for block in touched(parsed, passage) if block.kind == "table")
    return table.header_end


@given(documents(), splitters())
@many
def test_a_character_of_several_code_points_is_never_cut(
    made: tuple[ParsedFile, list[tuple[int, int]]], splitter: PassageSplitter
):
    parsed, clusters = made
    ends = {end for passage in split(parsed, splitter) for end in (passage.start, passage.end)}
    assert [(start, end) for start, end in clusters if ends & set(range(start + 1, end))] == []


@given(documents(), splitters())
@many
def test_a_passage_has_the_headings_common_to_its_blocks(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    for passage in split(parsed, splitter):
        blocks = touched(parsed, passage)
        bodies = [block for block in blocks if block.kind != "heading"] or blocks[-1:]
        expected = names(parsed, common([path_of(parsed, block) for block in bodies]))
        symbols = {block.name for block in bodies if block.kind == "code" and block.name}
        if passage.kind == "code" and symbols:
            symbol = passage.headings[len(expected) :]
            assert len(symbol) <= 1
            assert all(
                name == "".join(symbol) or name.startswith("".join((*symbol, "."))) for name in symbols if symbol
            )
            assert symbol or len({name.split(".")[0] for name in symbols}) > 1
            assert passage.headings[: len(expected)] == expected
        else:
            assert passage.headings == expected


@given(documents(), splitters())
@many
def test_a_heading_begins_a_passage_unless_the_section_before_it_is_bare_or_tiny(
    made: tuple[ParsedFile, Any], splitter: PassageSplitter
):
    parsed, _ = made
    for passage in leaves(split(parsed, splitter)):
        blocks = touched(parsed, passage)
        for index, block in enumerate(blocks):
            bodies = [each for each in blocks[:index] if each.kind != "heading"]
            if block.kind == "heading" and bodies:
                assert length(parsed.text[passage.start : block.start].strip()) * 8 <= splitter.size
                assert path_of(parsed, bodies[-1])[:-1] == path_of(parsed, block)[:-1]
                assert path_of(parsed, bodies[-1])[-1].level == block.level


@given(documents(), splitters())
@many
def test_passages_overlap_only_within_a_section_and_at_most_by_the_overlap(
    made: tuple[ParsedFile, Any], splitter: PassageSplitter
):
    parsed, _ = made
    for before, after in pairwise(leaves(split(parsed, splitter))):
        shared = parsed.text[after.start : before.end]
        assert length(shared) <= splitter.overlap
        if shared:
            assert before.headings == after.headings
            assert before.parent == after.parent
            assert before.kind == after.kind != "table"
            assert not any(block.kind == "heading" and after.start <= block.start for block in touched(parsed, after))


@given(documents(), splitters())
@many
def test_every_passage_of_a_table_begins_with_its_header_and_with_a_row(
    made: tuple[ParsedFile, Any], splitter: PassageSplitter
):
    parsed, _ = made
    passages = split(parsed, splitter)
    parents = {passage.parent for passage in passages}
    for index, passage in enumerate(passages):
        if passage.kind != "table":
            continue
        (table,) = (block for block in touched(parsed, passage) if block.kind == "table")
        size = splitter.parent_size if index in parents else splitter.size
        header = parsed.text[table.start : table.header_end].strip()
        if length(header) * 2 <= size - 4 and passage.end > table.start:
            assert passage.text.count(header) >= 1
        longest = max(map(length, parsed.text[table.header_end : table.end].split("\n")))
        if passage.start > table.header_end and longest <= size * 4:
            assert parsed.text[: passage.start].endswith("\n")


@given(documents(), splitters())
@many
def test_a_passage_has_its_page_and_a_box_on_each_page(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    for passage in split(parsed, splitter):
        pages = [page.number for page in parsed.pages if page.start <= passage.start < page.end]
        assert [passage.page] == (pages or [None])
        lines = [line for line in parsed.lines if line.start < passage.end and line.end > passage.start]
        on_pages = {
            page: [line for line in lines if line.page == page] for page in sorted({line.page for line in lines})
        }
        assert passage.boxes == tuple((page, *box(those)) for page, those in on_pages.items())


@given(documents(), splitters())
@many
def test_children_are_inside_their_parent_and_cover_it(made: tuple[ParsedFile, Any], splitter: PassageSplitter):
    parsed, _ = made
    passages = split(parsed, splitter)
    if splitter.strategy == "flat":
        assert all(passage.parent is None for passage in passages)
        return
    for index, around in enumerate(passages):
        if around.parent is not None:
            assert passages[around.parent].parent is None
            continue
        children = [passage for passage in passages if passage.parent == index]
        assert children == passages[index + 1 : index + 1 + len(children)] != []
        assert all(around.start <= child.start < child.end <= around.end for child in children)
        assert uncovered(text_of(parsed, around), [shifted(child, around) for child in children]) == ""


def text_of(parsed: ParsedFile, passage: Passage) -> str:
    return parsed.text[passage.start : passage.end]


def shifted(child: Passage, around: Passage) -> Passage:
    return Passage(child.start - around.start, child.end - around.start, child.text)


@given(st.text(max_size=600), splitters())
@example("a" + "\u0301" * 900, PassageSplitter(size=128, overlap=63))
@example("\U0001f1eb" * 901, PassageSplitter(size=128, overlap=63))
@example("\u200d" * 500, PassageSplitter(size=128, overlap=0))
@example("港" + "\u3099" * 500, PassageSplitter(size=128, overlap=63))
@example("x" + " " * 900 + "y", PassageSplitter(size=128, overlap=63))
@example("." * 900, PassageSplitter(size=128, overlap=63))
@many
def test_any_text_is_split_completely(text: str, splitter: PassageSplitter):
    passages = split(ParsedFile(text, (Block("text", 0, len(text)),)), splitter)
    assert uncovered(text, leaves(passages)) == ""
    assert all(passage.text == text[passage.start : passage.end] == passage.text.strip() for passage in passages)
    assert all(passage.end - passage.start <= splitter.size for passage in leaves(passages))
    assert all(before.end < after.end for before, after in pairwise(leaves(passages)))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("before", ["", "x", "xx"])
def test_a_text_of_repeated_clusters_is_cut_between_two_of_them(cluster: str, before: str):
    text = before + cluster * 300
    passages = split(ParsedFile(text, (Block("text", 0, len(text)),)), PassageSplitter(size=128, overlap=50))
    assert len(passages) > 3
    assert {(passage.start - len(before)) % len(cluster) for passage in passages[1:]} == {0}
    assert {(passage.end - len(before)) % len(cluster) for passage in passages} == {0}


# Readable examples


def document(*parts: tuple[Any, str] | tuple[Any, str, dict[str, Any]], gap: str = "\n\n") -> ParsedFile:
    """A document of blocks: each has a kind, a text and other properties. `header` is the length of the header."""
    text, blocks = "", list[Block]()
    for kind, words, *more in parts:
        known: dict[str, Any] = dict(more[0]) if more else {}
        header_end = len(text) + known.pop("header", 0)
        blocks.append(Block(kind, len(text), len(text) + len(words), header_end=header_end, **known))
        text += words + gap
    return ParsedFile(text, tuple(blocks))


def heading(level: int, name: str) -> tuple[str, str, dict[str, Any]]:
    return "heading", f"{'#' * level} {name}", {"level": level, "name": name}


def outline(passages: list[Passage]) -> list[tuple[tuple[str, ...], str]]:
    return [(passage.headings, passage.text) for passage in passages]


SMALL = PassageSplitter(size=128, overlap=0)


def test_a_heading_begins_a_passage_and_is_a_heading_of_all_passages_below_it():
    parsed = document(
        heading(1, "Harbour"), ("text", "A port on the north coast, open to ships of any size."),
        heading(2, "Gate"), ("text", "It is closed at night."), ("text", "Ring the bell and wait for the pilot."),
        heading(2, "Quay"), ("text", "Ships lie here for three days at the most."),
        heading(1, "Town"), ("text", "Up the hill."),
    )  # fmt: skip
    assert outline(split(parsed, SMALL)) == [
        (("Harbour",), "# Harbour\n\nA port on the north coast, open to ships of any size."),
        (("Harbour", "Gate"), "## Gate\n\nIt is closed at night.\n\nRing the bell and wait for the pilot."),
        (("Harbour", "Quay"), "## Quay\n\nShips lie here for three days at the most."),
        (("Town",), "# Town\n\nUp the hill."),
    ]


def test_a_heading_without_text_is_joined_to_the_next_section():
    parsed = document(heading(1, "Harbour"), heading(2, "Gate"), ("text", "Closed."), heading(2, "Quay"))
    assert outline(split(parsed, SMALL)) == [
        (("Harbour", "Gate"), "# Harbour\n\n## Gate\n\nClosed."),
        (("Harbour", "Quay"), "## Quay"),
    ]


def test_a_heading_without_text_is_not_joined_to_the_next_chapter():
    parsed = document(
        heading(1, "Harbour"), ("text", "Closed."), heading(2, "Gate"), heading(1, "Town"), ("text", "Open.")
    )
    assert outline(split(parsed, SMALL)) == [
        (("Harbour",), "# Harbour\n\nClosed."),
        (("Harbour", "Gate"), "## Gate"),
        (("Town",), "# Town\n\nOpen."),
    ]


def test_a_heading_is_not_separated_from_the_long_paragraph_after_it():
    name = "A harbour on the north coast, and its gate"
    passages = split(document(heading(1, name), ("text", "word " * 60)), SMALL)
    assert passages[0].text.startswith(f"# {name}\n\nword word word")


def test_tiny_sibling_sections_share_a_passage_under_their_parent_headings():
    entries = [part for name in ("Aft", "Bow", "Keel") for part in (heading(2, name), ("text", f"See {name}."))]
    parsed = document(heading(1, "Words"), ("text", "Said on board."), *entries, heading(1, "Maps"), ("text", "None."))
    assert outline(split(parsed, PassageSplitter(size=1000, overlap=0))) == [
        (("Words",), "# Words\n\nSaid on board."),
        (("Words",), "## Aft\n\nSee Aft.\n\n## Bow\n\nSee Bow.\n\n## Keel\n\nSee Keel."),
        (("Maps",), "# Maps\n\nNone."),
    ]


def test_a_tiny_section_with_a_table_keeps_its_own_heading():
    table = ("table", "a | b\n1 | 2", {"header": 6})
    parsed = document(heading(1, "Sums"), table, heading(1, "Notes"), ("text", "None."), heading(1, "End"), table)
    passages = split(parsed, PassageSplitter(size=1000, overlap=0))
    assert [(passage.kind, passage.headings) for passage in passages] == [
        ("table", ("Sums",)),
        ("text", ("Notes",)),
        ("table", ("End",)),
    ]


@pytest.mark.parametrize("gap", ["\n\n", "\n"])
def test_small_paragraphs_share_passages_and_are_not_cut(gap: str):
    words = ["The gate is closed at night by the watch.", "Ring the bell.", "Wait for the pilot, who comes by boat.",
             "Pay the harbour dues before you leave again.", "Keep the receipt."]  # fmt: skip
    parsed = document(*(("text", each) for each in words), gap=gap)
    assert [passage.text for passage in split(parsed, SMALL)] == [gap.join(words[:3]), gap.join(words[3:])]


def test_a_long_block_is_cut_between_its_paragraphs_rather_than_its_sentences():
    first, second = "The gate is closed. It is opened at six.", "Ring the bell twice. " * 5
    passages = split(document(("text", f"{first}\n\n{second}")), SMALL)
    assert [passage.text for passage in passages] == [first, second.strip()]


def test_a_long_paragraph_is_cut_after_sentences_and_repeats_the_last_one():
    sentences = ["The gate is closed at ten o'clock.", "Ring the bell, e.g. twice, and wait.",
                 "The pilot comes by boat.", "He asks for 3.50 in coins.", "Pay him at once.",
                 "Do not tip him.", "He is proud."]  # fmt: skip
    passages = split(document(("text", " ".join(sentences))), PassageSplitter(size=128, overlap=40))
    assert [passage.text for passage in passages] == [" ".join(sentences[:3]), " ".join(sentences[2:])]
    assert [passage.start for passage in passages] == [0, len(" ".join(sentences[:2])) + 1]


def test_no_more_than_half_of_a_short_passage_is_repeated():
    short, long = "Ring the bell. Wait there for the pilot.", "word " * 25
    first, second, *_ = split(document(("text", short), ("text", long)), PassageSplitter(size=128, overlap=60))
    assert first.text == short
    assert second.text.startswith("for the pilot.\n\nword")


def test_text_without_sentences_is_cut_between_words_and_text_without_words_anywhere():
    words = split(document(("text", "harbour " * 40)), SMALL)
    assert {word for passage in words for word in passage.text.split(" ")} == {"harbour"}
    letters = split(document(("text", "x" * 300)), SMALL)
    assert [passage.end - passage.start for passage in letters] == [128, 103, 69]


def test_a_chinese_passage_holds_a_third_as_many_characters_and_ends_with_a_sentence():
    passages = split(document(("text", "港口的大门每天晚上十点关闭。请按门铃，等候引水员。" * 4)), SMALL)
    assert all(passage.text.endswith("。") for passage in passages)
    assert [len(passage.text) for passage in passages] == [39, 36, 25]


def test_every_passage_of_a_table_repeats_the_header_and_spans_its_rows():
    header = "| port | depth |\n|---|---|\n"
    rows = [f"| harbour number {number} | {number * 3} m |\n" for number in range(1, 8)]
    parsed = document(heading(1, "Depths"), ("table", header + "".join(rows), {"header": len(header)}))
    first, second, third = split(parsed, SMALL)
    assert first.text == "# Depths\n\n" + header + "".join(rows[:3]).rstrip()
    assert second.text == header + "".join(rows[3:6]).rstrip()
    assert parsed.text[second.start : second.end] == "".join(rows[3:6]).rstrip()
    assert third.text == header + rows[6].rstrip()
    assert {passage.kind for passage in (first, second, third)} == {"table"}
    assert {passage.headings for passage in (first, second, third)} == {("Depths",)}


def test_a_row_with_an_empty_first_cell_keeps_its_columns():
    parsed = document(("table", "port\tdepth\n" + "\tdeep enough for all\n" * 10, {"header": 11}))
    assert {row for passage in split(parsed, SMALL) for row in passage.text.split("\n")} == {
        "port\tdepth",
        "\tdeep enough for all",
    }


def test_a_row_longer_than_the_size_is_one_passage_unless_it_is_much_longer():
    rows = ["short | row", "long | " + "word " * 60, "short | again", "endless | " + "word " * 200]
    passages = split(document(("table", "a | b\n" + "\n".join(rows), {"header": 6})), SMALL)
    texts = [passage.text for passage in passages]
    assert texts[:3] == ["a | b\nshort | row", "a | b\n" + rows[1].rstrip(), "a | b\nshort | again"]
    assert len(texts) > 8
    assert all(text.startswith("a | b\n") and len(text) <= 128 for text in texts[3:])


def test_a_heading_is_joined_to_the_first_row_of_a_table_without_header():
    row = "cell " * 40
    assert outline(split(document(heading(1, "Wide"), ("table", row)), SMALL)) == [
        (("Wide",), f"# Wide\n\n{row}".strip())
    ]


def test_a_long_header_is_repeated_in_part():
    parsed = document(("table", "column " * 50 + "\n" + "cell\n" * 60, {"header": 351}))
    first, *others = split(parsed, SMALL)
    assert first.text == ("column " * 50).rstrip()
    assert all(passage.text.startswith(("column " * 10)[:64] + "\ncell") for passage in others)
    assert all(len(passage.text) <= 128 for passage in others)


def test_a_heading_before_a_long_header_is_a_passage_of_its_own():
    parsed = document(heading(1, "Wide"), ("table", "column " * 90 + "\n" + "cell\n" * 9, {"header": 631}))
    first, second, *_ = split(parsed, SMALL)
    assert (first.kind, first.text) == ("text", "# Wide")
    assert (second.kind, second.text[:6]) == ("table", "column")


METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("code", "class Trail:", {"name": "Trail"}),
    ("code", "    def open(self): ...", {"name": "Trail.open"}),
    ("code", "    def flush(self): ...", {"name": "Trail.flush"}),
]


def test_small_symbols_share_a_passage_under_their_common_name():
    parsed = document(("code", "import os"), *METHODS, ("code", "def main():\n" + "    go()\n" * 9, {"name": "main"}))
    assert [(passage.kind, passage.headings, passage.text.split("\n")[0]) for passage in split(parsed, SMALL)] == [
        ("code", ("Trail",), "import os"),
        ("code", ("Trail.flush",), "def flush(self): ..."),
        ("code", ("main",), "def main():"),
    ]
    assert [passage.headings for passage in split(document(*METHODS), PassageSplitter())] == [("Trail",)]


def test_a_large_symbol_is_cut_at_the_blank_line_with_the_smallest_indentation():
    body = ["def main():", "    for ship in ships:", "        greet(ship)", "", "        berth(ship)", "",
            "    close_gate()", "    if late:", "        sleep()", "    return 0"]  # fmt: skip
    passages = split(document(("code", "\n".join(body), {"name": "main"})), SMALL)
    assert [passage.text for passage in passages] == ["\n".join(body[:5]), "\n".join(body[6:]).strip()]
    assert {passage.headings for passage in passages} == {("main",)}


def test_a_code_example_stays_with_the_prose_around_it():
    parsed = document(("text", "Ring the bell:"), ("code", "bell.ring()"), ("text", "Then wait."))
    (passage,) = split(parsed, SMALL)
    assert (passage.kind, passage.text) == ("text", "Ring the bell:\n\nbell.ring()\n\nThen wait.")


def test_a_section_with_only_a_code_example_is_code():
    parsed = document(
        heading(1, "Bell"), ("code", "bell.ring()"), heading(2, "Gate"), ("code", "gate()"), ("text", "Wait.")
    )
    assert [passage.kind for passage in split(parsed, SMALL)] == ["code", "text"]


def test_each_parent_comes_directly_before_its_children():
    words = [f"Paragraph {number} of the rules says what is to be done on deck and what is not." for number in range(7)]
    parsed = document(heading(1, "Rules"), *(("text", each) for each in words))
    passages = split(parsed, PassageSplitter("hierarchical", 128, 0, 300))
    assert [(passage.parent, passage.text.count("Paragraph")) for passage in passages] == [
        (None, 3), (0, 1), (0, 1), (0, 1),
        (None, 4), (4, 1), (4, 1), (4, 1), (4, 1),
    ]  # fmt: skip
    assert {passage.headings for passage in passages} == {("Rules",)}


def test_a_passage_on_two_pages_begins_on_the_first_and_has_a_box_on_each():
    text = "one\ntwo\nthree\n"
    lines = (
        TextLine(0, 3, 4, 10, 20, 30.06, 30),
        TextLine(4, 7, 4, 8.12, 31, 25, 41),
        TextLine(8, 13, 5, 10, 20, 40, 30),
    )
    pages = (TextPage(4, 0, 8), TextPage(5, 8, 14))
    (passage,) = split(ParsedFile(text, (Block("text", 0, 13),), pages, lines), SMALL)
    assert passage.page == 4
    assert passage.boxes == ((4, 8.1, 20, 30.1, 41), (5, 10, 20, 40, 30))


def test_a_line_that_ends_before_a_passage_is_not_in_its_box():
    text = "The gate is closed at night.\n\n" + "x" * 120
    around, inside, below = (
        TextLine(0, 150, 1, 0, 0, 50, 50),
        TextLine(4, 8, 1, 0, 0, 90, 90),
        TextLine(30, 150, 1, 5, 5, 60, 60),
    )
    blocks = (Block("text", 0, 28), Block("text", 30, 150))
    first, second = split(ParsedFile(text, blocks, (TextPage(1, 0, 150),), (around, inside, below)), SMALL)
    assert (first.boxes, second.boxes) == (((1, 0, 0, 90, 90),), ((1, 0, 0, 60, 60),))


def test_a_document_without_text_has_no_passages():
    assert split(ParsedFile("", ()), SMALL) == split(ParsedFile(" \n", (Block("text", 0, 2),)), SMALL) == []


# Options


@pytest.mark.parametrize(
    ("options", "splitter"),
    [
        ({}, PassageSplitter("flat", 2000, 250)),
        ({"size": 400}, PassageSplitter("flat", 400, 50)),
        ({"strategy": "flat", "size": 1024, "overlap": 0}, PassageSplitter("flat", 1024, 0)),
        ({"strategy": "hierarchical"}, PassageSplitter("hierarchical", 512, 64, 2048)),
        (
            {"strategy": "hierarchical", "size": 1000, "parent_size": 3000},
            PassageSplitter("hierarchical", 1000, 125, 3000),
        ),
    ],
)
def test_missing_options_follow_from_the_others(options: dict[str, Any], splitter: PassageSplitter):
    assert PassageSplitter.from_options(options) == splitter


@given(splitters())
def test_a_splitter_can_be_created_from_its_options(splitter: PassageSplitter):
    again = PassageSplitter.from_options(splitter.as_options())
    assert (again.strategy, again.size, again.overlap) == (splitter.strategy, splitter.size, splitter.overlap)
    assert again.parent_size == splitter.parent_size or splitter.strategy == "flat"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "semantic"}, "'strategy' is either 'flat' or 'hierarchical'."),
        ({"strategy": ["flat"]}, "'strategy' is either 'flat' or 'hierarchical'."),
        ({"size": 127}, "'size' is a whole number from 128 to 8192."),
        ({"size": 8193}, "'size' is a whole number from 128 to 8192."),
        ({"size": "1600"}, "'size' is a whole number from 128 to 8192."),
        ({"size": 1600.0}, "'size' is a whole number from 128 to 8192."),
        ({"size": None}, "'size' is a whole number from 128 to 8192."),
        ({"overlap": True}, "'overlap' is a whole number from 0 to 2048."),
        ({"overlap": -1}, "'overlap' is a whole number from 0 to 2048."),
        ({"size": 8192, "overlap": 2049}, "'overlap' is a whole number from 0 to 2048."),
        ({"size": 400, "overlap": 200}, "'overlap' is a whole number from 0 to 2048 and less than half of 'size'."),
        ({"parent_size": 4800}, "'parent_size' is for the 'hierarchical' strategy only."),
        (
            {"strategy": "hierarchical", "size": 400, "parent_size": 799},
            "'parent_size' is a whole number from 256 to 32768 and at least twice 'size'.",
        ),
        (
            {"strategy": "hierarchical", "parent_size": 32769},
            "'parent_size' is a whole number from 256 to 32768.",
        ),
        ({"chunk": 1}, "A splitter has the options 'strategy', 'size', 'overlap' and 'parent_size' only."),
    ],
)
def test_invalid_options_are_refused_with_the_permitted_values(options: dict[str, Any], message: str):
    with pytest.raises(BadRequest) as refused:
        PassageSplitter.from_options(options)
    assert refused.value.message == message
