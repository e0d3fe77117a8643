"""Lines from right to left, from where their signs stand to how they are read."""

import pytest

from almanac.knowledge.parsers.pdf.right_to_left import Glyph, reading_order


def set_line(visual: str, *, spaces: bool = True) -> list[Glyph]:
    """Signs of ten points from left to right, as they are seen."""
    glyphs = [Glyph(ord(sign), 10.0 * at, 10.0 * at + 9) for at, sign in enumerate(visual)]
    return [glyph for glyph in glyphs if spaces or glyph.sign != 0x20]


@pytest.mark.parametrize(
    ("visual", "read"),
    [
        ("םלוע םולש", "שלום עולם"),
        (".12.5% גבא", "אבג 12.5%."),
        ("דחא (םיינש) 2024", "2024 (שניים) אחד"),
        ("Almanac Server ידי לע רפוסש ךורא רופיס", "סיפור ארוך שסופר על ידי Almanac Server"),
        ("see (גבא בא) in 3 more words", "see (אב אבג) in 3 more words"),
    ],
)
@pytest.mark.parametrize("spaces", [True, False])
def test_what_is_seen_is_put_as_it_is_read(visual: str, read: str, spaces: bool):
    assert reading_order(set_line(visual, spaces=spaces), size=12) == read


def test_the_order_in_which_signs_come_does_not_matter():
    glyphs = set_line("םלוע םולש")
    assert reading_order(glyphs[::-1], size=12) == reading_order(glyphs[3:] + glyphs[:3], size=12) == "שלום עולם"


def test_the_parts_of_a_ligature_are_read_in_their_order():
    """LAM and ALEF of one sign, in a line that comes from right to left with the parts the wrong way round."""
    glyphs = [Glyph(0x0633, 30, 39), Glyph(0x0627, 20, 29), Glyph(0x0644, 20, 29), Glyph(0x0645, 10, 19)]
    assert reading_order(glyphs, size=12) == "سلام"


def test_marks_follow_the_letters_at_which_they_stand():
    glyphs = [Glyph(0x05D1, 10, 19), Glyph(0x05B8, 24, 26), Glyph(0x05D0, 20, 29)]
    assert reading_order(glyphs, size=12) == "אָב"


def test_halves_of_a_sign_that_come_the_wrong_way_round_are_made_whole():
    glyphs = [*set_line("אב"), Glyph(0xDE00, 40, 49), Glyph(0xD83D, 40, 49), Glyph(0xD83D, 60, 69)]
    assert reading_order(glyphs, size=12) == "� 😀 בא"
