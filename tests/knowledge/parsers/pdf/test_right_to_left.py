"""Lines from right to left: from the positions of their characters to reading order."""

import pytest

from almanac.knowledge.parsers.pdf.right_to_left import Glyph, reading_order


def glyphs_of(visual: str, *, spaces: bool = True) -> list[Glyph]:
    """Glyphs of ten points from left to right, as they are displayed."""
    glyphs = [Glyph(ord(char), 10.0 * index, 10.0 * index + 9) for index, char in enumerate(visual)]
    return [glyph for glyph in glyphs if spaces or glyph.code != 0x20]


@pytest.mark.parametrize(
    ("visual", "expected"),
    [
        ("םלוע םולש", "שלום עולם"),
        (".12.5% גבא", "אבג 12.5%."),
        ("דחא (םיינש) 2024", "2024 (שניים) אחד"),
        ("Almanac Server ידי לע רפוסש ךורא רופיס", "סיפור ארוך שסופר על ידי Almanac Server"),
        ("see (גבא בא) in 3 more words", "see (אב אבג) in 3 more words"),
    ],
)
@pytest.mark.parametrize("spaces", [True, False])
def test_a_displayed_line_is_put_in_reading_order(visual: str, expected: str, spaces: bool):
    assert reading_order(glyphs_of(visual, spaces=spaces), size=12) == expected


def test_the_order_of_the_glyphs_does_not_matter():
    glyphs = glyphs_of("םלוע םולש")
    assert reading_order(glyphs[::-1], size=12) == reading_order(glyphs[3:] + glyphs[:3], size=12) == "שלום עולם"


def test_the_parts_of_a_ligature_are_in_order():
    """LAM and ALEF form one character, in a line from right to left with these parts in the wrong order."""
    glyphs = [Glyph(0x0633, 30, 39), Glyph(0x0627, 20, 29), Glyph(0x0644, 20, 29), Glyph(0x0645, 10, 19)]
    assert reading_order(glyphs, size=12) == "سلام"


def test_marks_follow_their_letters():
    glyphs = [Glyph(0x05D1, 10, 19), Glyph(0x05B8, 24, 26), Glyph(0x05D0, 20, 29)]
    assert reading_order(glyphs, size=12) == "אָב"


def test_swapped_surrogates_are_combined():
    glyphs = [*glyphs_of("אב"), Glyph(0xDE00, 40, 49), Glyph(0xD83D, 40, 49), Glyph(0xD83D, 60, 69)]
    assert reading_order(glyphs, size=12) == "� 😀 בא"
