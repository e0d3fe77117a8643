"""The guards: control characters, length, prompt injection, destructive commands, and the time they take."""

import contextlib
import time
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from almanac.core.errors import BadRequest
from almanac.surfaces.knowi import guards
from almanac.surfaces.knowi.guards import InstructionBlocked
from tests.surfaces.knowi import sentences

STRIPPED = {chr(code) for code in (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F)}
LEAVES = st.none() | st.booleans() | st.integers() | st.text(st.characters(max_codepoint=0x2FF))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
)
WORDS = sorted({word for text in sentences.ALL for word in text.split()} | {"\n", ",", '"', "“", "-", "/", "'", "​"})


def texts_of(value: Any) -> list[str]:
    """Every text of a value, with the names of its objects."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts_of(item)]  # pyright: ignore[reportUnknownVariableType]
    return []


# Control characters


def test_exactly_the_control_characters_of_the_seed_are_stripped():
    for code in range(0x300):
        assert guards.strip_controls(f"a{chr(code)}b") == ("ab" if chr(code) in STRIPPED else f"a{chr(code)}b")
    assert len(STRIPPED) == 30
    assert guards.strip_controls("tab\tline\nreturn\r") == "tab\tline\nreturn\r"


def test_nested_texts_and_the_names_of_rows_are_stripped():
    rows = [{"na\x00me": "E\x1bva", "tags": ["a\x7f", {"\x08k": "\x0bv"}], "n": 1, "b": True, "z": None}]
    assert guards.strip_controls({"rows": rows}) == {
        "rows": [{"name": "Eva", "tags": ["a", {"k": "v"}], "n": 1, "b": True, "z": None}]
    }


@given(VALUES)
def test_a_stripped_value_has_no_control_character_and_stays_the_same_when_stripped_again(value: Any):
    try:
        stripped = guards.strip_controls(value)
    except BadRequest:
        return  # two names became one
    assert not [text for text in texts_of(stripped) if STRIPPED.intersection(text)]
    assert guards.strip_controls(stripped) == stripped
    if not [text for text in texts_of(value) if STRIPPED.intersection(text)]:
        assert stripped == value


def test_two_names_that_become_one_are_refused_and_none_is_lost():
    with pytest.raises(BadRequest, match="differ in control characters only"):
        guards.strip_controls({"rows": [{"a": 1, "a\x00": 2}]})


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused_and_not_followed(opening: str):
    closing = "]" if opening == "[" else "}"
    deep = orjson.loads(opening * 1_000 + "1" + closing * 1_000)
    with pytest.raises(BadRequest, match="nested too deeply"):
        guards.strip_controls(deep)
    assert guards.strip_controls(orjson.loads(opening * 100 + "1" + closing * 100))


# Length


def test_2_000_characters_are_accepted_and_one_more_is_refused():
    guards.check_instruction("question", "ä" * 2_000)
    with pytest.raises(BadRequest) as caught:
        guards.check_instruction("question", "ä" * 2_001)
    assert caught.value.text == (
        "question: it has 2,001 characters, and at most 2,000 are accepted. Shorten it, or split the request."
    )
    assert not isinstance(caught.value, InstructionBlocked)


# Prompt injection


@pytest.mark.parametrize("text", sentences.ORDINARY)
def test_an_ordinary_sentence_looks_like_no_injection(text: str):
    guards.check_instruction("question", text)


@pytest.mark.parametrize("text", sentences.INJECTIONS)
def test_an_injection_is_blocked_as_one(text: str):
    with pytest.raises(InstructionBlocked) as caught:
        guards.check_instruction("question", text)
    assert caught.value.text.startswith("Instruction blocked: ")
    assert "looks like a prompt injection" in caught.value.text
    assert caught.value.remedy


@pytest.mark.parametrize("text", sentences.DESTRUCTIVE)
def test_a_destructive_command_is_no_injection(text: str):
    guards.check_instruction("instruction", text)


# Destructive commands


@pytest.mark.parametrize("text", sentences.HARMLESS)
def test_a_harmless_sentence_with_such_a_word_passes(text: str):
    guards.check_not_destructive(text)
    guards.check_instruction("instruction", text)


@pytest.mark.parametrize("text", sentences.ORDINARY)
def test_an_ordinary_question_destroys_nothing(text: str):
    guards.check_not_destructive(text)


@pytest.mark.parametrize("text", sentences.DESTRUCTIVE)
def test_a_destructive_command_is_blocked_and_knowi_delete_is_named(text: str):
    with pytest.raises(InstructionBlocked) as caught:
        guards.check_not_destructive(text)
    assert caught.value.text.startswith("Instruction blocked: ")
    assert "Use knowi_delete" in caught.value.text


def test_there_are_at_least_sixty_sentences_of_each_kind():
    for kind in (sentences.ORDINARY, sentences.INJECTIONS, sentences.HARMLESS, sentences.DESTRUCTIVE):
        assert len(set(kind)) == len(kind) >= 60


# Properties


@given(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join) | st.text(max_size=300))
@example("")
@example("-")
@example("drop-")
@example("to delete")
def test_any_text_passes_or_is_blocked_with_a_remedy(text: str):
    for check in (lambda: guards.check_instruction("question", text), lambda: guards.check_not_destructive(text)):
        try:
            check()
        except InstructionBlocked as refusal:
            assert refusal.text.startswith("Instruction blocked: ")
            assert refusal.remedy


@given(st.sampled_from(sentences.INJECTIONS), st.sampled_from([" {}", "{} ", "\n{}", "So. {}", "{}\n\nThanks."]))
def test_an_injection_stays_one_between_other_text(text: str, form: str):
    with pytest.raises(InstructionBlocked):
        guards.check_instruction("question", form.format(text))


@given(st.sampled_from(sentences.INJECTIONS + sentences.DESTRUCTIVE))
def test_neither_case_nor_spaces_hide_a_command(text: str):
    check = guards.check_not_destructive if text in sentences.DESTRUCTIVE else partial(guards.check_instruction, "q")
    for form in (text.replace(" ", "  "), text if "DAN" in text else text.swapcase(), f"{text} "):
        with pytest.raises(InstructionBlocked):
            check(form)


HOSTILE = [
    "delete ", "who and delete the ", '"', 'a "b ', "please ", "create x to drop ", "ignore all of the ", "drop-", "\n",
    "you must ", "ﷺ", "\u0315\u0300", "forget all ", "«", "reveal the ", "­", "drop, ",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_the_longest_hostile_text_is_checked_at_once(piece: str):
    text = (piece * 2_000)[:2_000]
    seconds: list[float] = []
    for _ in range(3):
        started = time.process_time()
        for check in (lambda: guards.check_instruction("question", text), lambda: guards.check_not_destructive(text)):
            with contextlib.suppress(InstructionBlocked):
                check()
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.5


@pytest.mark.parametrize("piece", ["who and delete-the ", "ignore all of the ", "drop-", "drop in ", 'a "b '])
def test_the_time_grows_with_the_length_and_not_with_its_square(piece: str):
    def seconds(times: int) -> float:
        text = piece * times
        taken: list[float] = []
        for _ in range(3):
            started = time.process_time()
            guards.check_not_destructive(text)
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(16_000) < 40 * seconds(1_000)  # a square would be 256 times
