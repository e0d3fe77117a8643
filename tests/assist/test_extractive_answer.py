"""Reading and following: answers in the words of what was found, and questions that lean on others."""

import time

import pytest

from almanac.assist import extractive_answer, follow_up
from almanac.assist.weknora.weknora_tool import WeKnoraResult


def piece(content: str, score: float = 0.9, id: str = "1") -> WeKnoraResult:
    return WeKnoraResult(id, content, score, "12", "Title", "file.md", "hybrid")


def test_the_sentence_that_has_most_of_the_question_is_quoted_first():
    text = "# Pumps\n\nPumps are old. The bearing of the pump is oiled every spring! Nobody knows why."
    found = extractive_answer.read("When is the bearing oiled?", [piece(text)])
    assert found[0].text == "The bearing of the pump is oiled every spring!"
    assert extractive_answer.best("When is the bearing oiled?", piece(text)) == found[0].text


def test_a_likelier_piece_comes_before_one_with_the_same_words():
    found = extractive_answer.read("bearing", [piece("A bearing here.", 0.3, "1"), piece("A bearing there.", 0.9, "2")])
    assert found[0].result.id == "2"


def test_numbers_and_chinese_are_cut_where_their_sentences_end():
    assert extractive_answer.best("oil", piece("Version 1.5 of the oil. Next.")) == "Version 1.5 of the oil."
    assert (
        extractive_answer.best("龙井茶产于哪里", piece("绿茶很多。龙井茶产于杭州西湖一带。其他不详。"))
        == "龙井茶产于杭州西湖一带。"
    )


def test_nothing_is_read_in_nothing_and_what_is_long_is_cut():
    assert extractive_answer.read("x", []) == []
    assert extractive_answer.best("x", piece("  \n# \n")) == ""
    assert len(extractive_answer.best("word", piece("word " * 500))) <= extractive_answer.MAX_SENTENCE_CHARS


def test_many_spaces_take_no_longer_than_other_text_and_a_piece_is_read_only_so_far():
    begun = time.process_time()
    wide = piece(" " * 20_000 + "# The lamp" + " " * 20_000 + "x\n" + " " * 20_000 + "y" + " " * 20_000)
    assert extractive_answer.best("lamp", wide) == "The lamp"
    assert time.process_time() - begun < 0.5
    assert extractive_answer.best("oil", piece("x. " * 10_000 + "The oil is here.")) == "x."


@pytest.mark.parametrize(
    ("question", "earlier", "resolved"),
    [
        ("And who does it?", ["When is the pump oiled?"], "And who does it? (pump oiled)"),
        ("它的味道如何？", ["龙井茶产于哪里？"], "它的味道如何？ (龙井茶产于哪里)"),
        ("Why?", ["When is the pump oiled?"], "Why? (pump oiled)"),
        ("What about the lamps?", ["When are pumps oiled?"], "What about the lamps? (pumps oiled)"),
        ("Who invented the steam engine in Scotland?", ["When is the pump oiled?"], None),
        ("And who does it?", [], None),
        ("How often?", ["When is the pump oiled?"], "How often? (pump oiled)"),
        ("The pump?", ["When is the pump oiled?"], "The pump? (oiled)"),
        ("Lamp hours?", ["When is the pump oiled?"], None),
        ("Which one burns whale oil in the hall?", ["When is the pump oiled?"], None),
    ],
)  # fmt: skip
def test_a_question_brings_along_what_it_leans_on(question: str, earlier: list[str], resolved: str | None):
    assert follow_up.resolve(question, earlier) == (resolved or question)


def test_a_question_of_several_is_taken_apart_and_one_is_not():
    assert follow_up.parts("Who oils the pump, and when is the lamp lit?") == [
        "Who oils the pump",
        "when is the lamp lit",
    ]
    assert follow_up.parts("Salt and pepper in the kitchen?") == []


def test_keywords_are_what_is_left_without_asking():
    assert follow_up.keywords("How often is the bearing of the P-40 oiled?") == "bearing P-40 oiled"
