"""Prose is cut into passages of limited length."""

from almanac.search.splitting import split_prose


def test_long_texts_are_cut_between_paragraphs():
    text = "\n\n".join(f"Paragraph {n}. " + "words " * 60 for n in range(40))
    spans = split_prose(text, 2_000)
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(end - start <= 2_000 for start, end in spans)
    assert all(text[start:].startswith("Paragraph") for start, _ in spans)


def test_a_text_without_paragraphs_is_cut_after_a_line_a_sentence_or_a_word():
    assert split_prose("aaaa\nbbb ccc", 8) == [(0, 5), (5, 12)]
    assert split_prose("aaaa. bb ccc", 8) == [(0, 6), (6, 12)]
    assert split_prose("aaaa bbbbbbb", 8) == [(0, 5), (5, 12)]
    assert split_prose("x" * 5000, 2_000) == [(0, 2000), (2000, 4000), (4000, 5000)]


def test_a_short_text_is_one_passage():
    assert split_prose("short", 2_000) == [(0, 5)]
    assert split_prose("", 2_000) == [(0, 0)]
