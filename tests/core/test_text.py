"""Text functions that several packages share."""

import pytest

from almanac.core.text import CONTROL_CHARACTERS, escape_like, lower_ascii, one_line


@pytest.mark.parametrize("character", ["\0", "\x07", "\x0b", "\x1b", "\x7f", "\ud800", "\udfff"])
def test_control_characters_and_surrogates_are_recognised(character: str):
    assert CONTROL_CHARACTERS.search(f"pump{character}room")


@pytest.mark.parametrize("text", ["", "pump room", "tab\there", "two\r\nlines", "é €", "𝄞"])
def test_ordinary_text_has_no_control_characters(text: str):
    assert not CONTROL_CHARACTERS.search(text)


def test_only_the_letters_of_ascii_are_lowered():
    assert lower_ascii("OIL the Ölpumpe, İ and ẞ") == "oil the Ölpumpe, İ and ẞ"


def test_a_text_of_several_lines_becomes_one_line():
    assert one_line("  Oil\tthe \r\n\n pump. ") == "Oil the pump."


def test_a_like_pattern_matches_the_text_itself():
    assert escape_like(r"50%_of\all") == r"50\%\_of\\all"
