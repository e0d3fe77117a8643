"""Highlights: the words of a question are found in the text as it is, and a snippet shows them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from almanac.search.analysis import analyser, highlights


def shown(text: str, *terms: str, most: int = 8) -> list[str]:
    return [text[start:end] for start, end in highlights.find(text, frozenset(terms), most)]


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("The pump, the Pump and pumps.", "pumping", ["pump", "Pump", "pumps"]),
        ("no such thing", "pump", []),
        ("", "pump", []),
        ("Straße und STRASSE", "strasse", ["Straße", "STRASSE"]),
        ("a caf\u00e9 or a cafe", "caf\u00e9", ["caf\u00e9", "cafe"]),
        ("the \ufb01le is \uff26\uff29\uff2c\uff25", "file", ["\ufb01le", "\uff26\uff29\uff2c\uff25"]),
        ("class HTTP2Client and http_client", "client", ["Client", "client"]),
        ("order SKU-9931 or SKU-9932", "sku-9931", ["SKU", "9931", "SKU"]),
        ("今天天气很好", "天气", ["天气"]),
        ("今天天气很好", "天", ["天", "天"]),
        ("公司的规定：员工的年假为十天，的确如此", "员工的年假", ["员工的年假"]),
        ("ห้องสมุดปิดวันจันทร์", "ห้องสมุด", ["ห้องสมุด"]),
        ("Die Pru\u0308fgera\u0308te", "Prüfgeräte", ["Pru\u0308fgera\u0308te"]),
        ("पुस्तकालय खुला है", "पुस्तकालय", ["पुस्तकालय"]),
        ("ｶﾞｽ", "ガス", ["ｶﾞｽ"]),
        ("Die Häuser sind alt", "haus", ["Häuser"]),
    ],
)
def test_terms_are_found_as_they_are_written(text: str, question: str, expected: list[str]):
    assert shown(text, *analyser.terms_of(question)) == expected


def test_each_term_is_shown_before_any_is_shown_again():
    text = "ship ship ship ship pump of ship valve"
    assert shown(text, "ship", "pump", "valv", most=3) == ["ship", "pump", "valve"]
    assert shown(text, "ship", "pump", "valv", most=5) == ["ship", "ship", "ship", "pump", "valve"]
    assert highlights.find(text, frozenset({"ship"}), 2) == ((0, 4), (5, 9))


def test_overlapping_terms_become_one_span():
    assert highlights.find("系统设计文档", frozenset({"系统", "统设", "文档"})) == ((0, 3), (4, 6))


@given(st.text(max_size=30), st.integers(0, 9))
@example("İx½y", 8)
@example("\u0344a\u3099", 8)
def test_highlights_are_terms_in_order_without_overlap(text: str, most: int):
    places = highlights.find(text, frozenset(analyser.terms_of(text)), most)
    assert len(places) <= most
    edges = [edge for place in places for edge in place]
    assert edges == sorted(edges)
    assert all(0 <= start < end <= len(text) for start, end in places)


@given(st.text("abcdeXY1-_ .", max_size=60), st.text("abcdeXY1", min_size=2, max_size=8))
def test_the_fast_search_misses_no_word_of_a_text(text: str, word: str):
    found = analyser.terms_of(word)
    places = highlights.find(f"{text} {word}", frozenset(found), 100)
    assert not found or (places and places[-1][1] == len(text) + 1 + len(word))


# Snippets

TEXT = " ".join(f"word{number:03}" for number in range(100))


def test_a_short_text_is_shown_whole_on_one_line():
    assert highlights.snippet("one\n\n two", [(0, 3)]) == "one two"


def test_a_snippet_contains_the_most_spans_and_is_cut_between_words():
    at = [TEXT.index(f"word{number:03}") for number in (5, 60, 62)]
    seen = highlights.snippet(TEXT, [(start, start + 7) for start in at], 60)
    assert seen.startswith("…word05")
    assert seen.endswith("…")
    assert "word060" in seen
    assert "word062" in seen
    assert all(word in TEXT.split() for word in seen.strip("…").split())


def test_a_snippet_without_spans_is_the_beginning():
    assert highlights.snippet(TEXT, [], 20) == "word000 word001…"


def test_a_text_without_spaces_is_cut_anywhere():
    assert highlights.snippet("系统设计文档" * 20, [(60, 62)], 12) == "…统设计文档系统设计文档系…"


@given(st.text(st.sampled_from("ab \n字"), max_size=80), st.data(), st.integers(5, 40))
def test_a_snippet_has_the_requested_length_and_contains_a_span_that_fits(text: str, data: st.DataObject, length: int):
    words = [
        (start, end)
        for start, end, _ in highlights.occurrences(text, frozenset(analyser.terms_of(text)))
        if end - start <= length
    ]
    spans = sorted(set(data.draw(st.lists(st.sampled_from(words), max_size=4)))) if words else []
    seen = highlights.snippet(text, spans, length)
    assert len(seen.strip("…")) <= length
    assert not spans or any(text[start:end] in seen for start, end in spans)
