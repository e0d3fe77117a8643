"""Answers quoted from search results, and follow-up questions."""

import time

import pytest

from almanac.assist import extractive_answer, follow_up
from almanac.assist.weknora.weknora_result import WeKnoraResult


def result(content: str, score: float = 0.9, id: str = "1") -> WeKnoraResult:
    return WeKnoraResult(id, content, score, "12", "Title", "file.md", "hybrid")


def test_the_sentence_with_the_most_words_of_the_question_comes_first():
    text = "# Pumps\n\nPumps are old. The bearing of the pump is oiled every spring! Nobody knows why."
    quotes = extractive_answer.read("When is the bearing oiled?", [result(text)])
    assert quotes[0].text == "The bearing of the pump is oiled every spring!"
    assert extractive_answer.best("When is the bearing oiled?", result(text)) == quotes[0].text


def test_of_equal_sentences_the_one_with_the_better_result_score_comes_first():
    quotes = extractive_answer.read(
        "bearing", [result("A bearing here.", 0.3, "1"), result("A bearing there.", 0.9, "2")]
    )
    assert quotes[0].result.id == "2"


def test_sentences_with_numbers_and_chinese_sentences_stay_whole():
    assert extractive_answer.best("oil", result("Version 1.5 of the oil. Next.")) == "Version 1.5 of the oil."
    assert (
        extractive_answer.best("龙井茶产于哪里", result("绿茶很多。龙井茶产于杭州西湖一带。其他不详。"))
        == "龙井茶产于杭州西湖一带。"
    )


def test_empty_results_give_no_quote_and_long_sentences_are_shortened():
    assert extractive_answer.read("x", []) == []
    assert extractive_answer.best("x", result("  \n# \n")) == ""
    assert len(extractive_answer.best("word", result("word " * 500))) <= extractive_answer.MAX_SENTENCE_CHARS


def test_long_white_space_is_fast_and_only_the_beginning_of_a_result_is_read():
    start = time.process_time()
    wide = result(" " * 20_000 + "# The lamp" + " " * 20_000 + "x\n" + " " * 20_000 + "y" + " " * 20_000)
    assert extractive_answer.best("lamp", wide) == "The lamp"
    assert time.process_time() - start < 0.5
    assert extractive_answer.best("oil", result("x. " * 10_000 + "The oil is here.")) == "x."


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
def test_a_follow_up_question_gets_the_words_of_the_earlier_one(
    question: str, earlier: list[str], resolved: str | None
):
    assert follow_up.resolve(question, earlier) == (resolved or question)


def test_only_compound_questions_are_split():
    assert follow_up.parts("Who oils the pump, and when is the lamp lit?") == [
        "Who oils the pump",
        "when is the lamp lit",
    ]
    assert follow_up.parts("Salt and pepper in the kitchen?") == []


def test_keywords_leave_out_question_words():
    assert follow_up.keywords("How often is the bearing of the P-40 oiled?") == "bearing P-40 oiled"
