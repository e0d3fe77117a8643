"""The points at which a long text is cut: between paragraphs, statements, sentences, lines, words, rows or characters.

Lengths are measured in units. A character counts as one unit, or as three if it is wide.
"""

import re
import unicodedata
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

_MAX_ROW_SIZES = 4  # a row longer than this many sizes is cut like prose
_MAX_CLUSTER_CODE_POINTS = 64  # longer clusters are cut, or a passage could consist of combining marks alone

# Wide characters say about as much as three Latin letters: Han, kana, bopomofo, hangul and their punctuation.
_WIDE = re.compile("[\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003fffd]+")
_NON_SPACE = re.compile(r"\S")
_SPACE = re.compile(r"\s")
# A full stop before a lower-case letter probably ends an abbreviation. The repeats are bounded, so that a long run of
# closing quotes takes no more time than other text.
_SENTENCE_END = re.compile(
    r"""[.!?…]["'”’»)\]]{0,3}\s(?![a-zà-öø-ÿа-яё])|[。！？｡؟۔।॥።။។]["'”’」』）】》〉»)\]]{0,3}"""
)
_STATEMENT = re.compile(r"(\n[ \t]*+)?\n([ \t]*+)(?=[^\s)\]}])")  # a line that does more than close a bracket

# Two code points that a reader sees as one character, in addition to the marks of Unicode's category M: any code point
# and a following one (joiners, Thai and Lao vowels, vowels and finals of hangul, half-width sound marks, skin colours,
# flag tags), a preceding one and any code point (the joiner, Arabic number signs), and an initial of hangul with the
# rest of its syllable.
_PAIR = re.compile(
    "(?s:.)[\u200c\u200d\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7fb\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
    "|[\u200d\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2](?s:.)"
    "|[\u1100-\u115f\ua960-\ua97c][\u1100-\u115f\ua960-\ua97c\uac00-\ud7a3]"
)
_FLAG_LETTER = re.compile("[\U0001f1e6-\U0001f1ff]")  # two make a flag
_VIRAMA = 9  # the combining class of signs that join the next consonant

Span = tuple[int, int]


class MeasuredText:
    """A text with the starts of its blocks, and its lengths in units."""

    def __init__(self, text: str, block_starts: Sequence[int]) -> None:
        self.text = text
        self.block_starts = block_starts
        # The stretches of wide characters: their starts, lengths, and the units before them.
        self._starts, self._lengths, self._units_before = array("q"), array("q"), array("q")
        wide = 0
        for match in () if text.isascii() else _WIDE.finditer(text):
            start, end = match.span()
            self._starts.append(start)
            self._lengths.append(end - start)
            self._units_before.append(start + 2 * wide)
            wide += end - start

    def length(self, start: int, end: int) -> int:
        """The length of a span."""
        return self._units(end) - self._units(start)

    def after(self, start: int, length: int) -> int:
        """The last position at most this far after `start`. It may lie behind the end of the text."""
        return self._position(self._units(start) + length)

    def before(self, end: int, length: int) -> int:
        """The first position at most this far before `end`."""
        return max(0, self._position(self._units(end) - length - 1) + 1)

    def next_word(self, start: int, end: int) -> int:
        """The position of the next character that is not white space, or `end`."""
        match = _NON_SPACE.search(self.text, start, end)
        return match.start() if match else end

    def without_space(self, start: int, end: int) -> int:
        """The end of a span without the white space at its end."""
        return start + len(self.text[start:end].rstrip())

    def _units(self, position: int) -> int:
        index = bisect_right(self._starts, position) - 1
        if index < 0:
            return position
        offset = position - self._starts[index]
        return self._units_before[index] + offset + 2 * min(offset, self._lengths[index])

    def _position(self, units: int) -> int:
        index = bisect_right(self._units_before, units) - 1
        if index < 0:
            return units
        offset, length = units - self._units_before[index], self._lengths[index]
        return self._starts[index] + (offset // 3 if offset < 3 * length else offset - 2 * length)


def prose_spans(source: MeasuredText, kind: str, run: tuple[int, int, int], size: int, overlap: int) -> Iterator[Span]:
    """The spans of a run of prose or code, none longer than the size.

    The run is given by its start, the start of its body and its end. Each span after the first one repeats at most
    `overlap` units of the span before it.
    """
    text = source.text
    start, body, end = run
    end = source.without_space(start, end)
    start = source.next_word(start, end)
    body = source.next_word(body, end)
    new = body if source.length(start, body) * 2 <= size else start  # the text from here on is in no span yet
    while (limit := source.after(start, size)) < end:
        even = source.after(new, source.length(new, end) * 3 // 5)  # so that the last two spans are about as long
        cut = _cut(source, kind, new, limit, min(limit, even))
        yield start, source.without_space(start, cut)
        last_new, new = new, source.next_word(cut, end)
        low = max(source.before(new, overlap), (last_new + cut + 1) // 2)
        start = source.next_word(_overlap_start(text, kind, last_new, low, cut), end)
    if start < end:
        yield start, end


def row_spans(source: MeasuredText, run: Span, header: Span, room: int, size: int) -> Iterator[Span]:
    """Spans of whole table rows. They fill the room next to the header, or the size if they contain the header."""
    text = source.text
    start, run_end = run
    while (next_word := source.next_word(start, run_end)) < run_end:
        # The row begins before the next word if its first cell is empty.
        start = max(start, text.rfind("\n", start, next_word) + 1)
        limit = source.after(start, size if start <= header[0] else room)
        end = run_end if limit >= run_end else _row_end(source, start, header, limit, run_end)
        last = source.without_space(start, end)
        if source.length(start, last) <= size * _MAX_ROW_SIZES:
            yield start, last
        else:
            yield from prose_spans(source, "text", (start, start, last), room, 0)
        start = end


def _row_end(source: MeasuredText, start: int, header: Span, limit: int, end: int) -> int:
    """The end of the last row up to the limit. If no row ends there: the end of the header, or of the first row."""
    first_row = source.next_word(max(start, header[1]), end)
    if row_end := source.text.rfind("\n", first_row, limit + 1) + 1:
        return row_end
    if start < header[1] and header[0] < header[1]:
        return header[1]
    return source.text.find("\n", max(first_row, limit), end) + 1 or end


def _cut(source: MeasuredText, kind: str, new: int, limit: int, even: int) -> int:
    """Where to cut: between paragraphs or statements up to the limit, otherwise at the best point up to `even`."""
    text = source.text
    quarter = new + (limit - new) // 4
    cut = _last_statement(text, quarter, limit) if kind == "code" else _last_paragraph(source, quarter, limit)
    if cut > quarter:
        return cut
    half = new + (even - new) // 2
    for last_point in (_last_sentence, _last_line, _last_word):
        cut = last_point(text, half, even)
        if cut > half and not _is_inside_cluster(text, cut, new):
            return cut
    return last_character(text, new, even)


def _overlap_start(text: str, kind: str, last_new: int, low: int, cut: int) -> int:
    """The start, from `low` on, of a span that repeats the end of the span before it."""
    if low >= cut:
        return cut
    if kind == "code":
        return text.find("\n", low - 1, cut) + 1 or cut
    for pattern in (_SENTENCE_END, _SPACE):
        match = pattern.search(text, low - 1, (low + cut) // 2)
        if match and not _is_inside_cluster(text, match.end(), last_new):
            return match.end()
    return next((at for at in range(low, cut) if not _is_inside_cluster(text, at, last_new)), cut)


# Each of these functions returns the last point of its kind from `low` to `limit`, or a position before `low`.


def _last_paragraph(source: MeasuredText, low: int, limit: int) -> int:
    block = source.block_starts[bisect_right(source.block_starts, limit) - 1]
    return max(block, source.text.rfind("\n\n", low, limit) + 2)


def _last_statement(text: str, low: int, limit: int) -> int:
    """After a blank line if there is one, at the smallest indentation."""
    best_rank, best = (True, limit), 0
    for match in _STATEMENT.finditer(text, low, limit):
        rank = (match[1] is None, len(match[2].expandtabs(4)))
        if rank <= best_rank:
            best_rank, best = rank, match.start(2)
    return best


def _last_sentence(text: str, low: int, limit: int) -> int:
    ends = (match.end() for match in _SENTENCE_END.finditer(text, low, limit + 4))
    return max((end for end in ends if end <= limit), default=0)


def _last_line(text: str, low: int, limit: int) -> int:
    return text.rfind("\n", low, limit) + 1


def _last_word(text: str, low: int, limit: int) -> int:
    if text[limit].isspace() or text[limit - 1].isspace():
        return limit
    return limit - len(text[low:limit].rsplit(None, 1)[-1])


def last_character(text: str, low: int, limit: int) -> int:
    """The last point up to `limit` that does not cut a character of several code points."""
    points = range(limit, max(low, limit - _MAX_CLUSTER_CODE_POINTS), -1)
    return next((at for at in points if not _is_inside_cluster(text, at, low)), limit)


def _is_inside_cluster(text: str, at: int, boundary: int) -> bool:
    """Whether a point is inside a character of several code points. `boundary` is an earlier point that is not."""
    before, after = text[at - 1], text[at]
    if before == "\n" or (before.isascii() and after.isascii()):
        return False
    if unicodedata.category(after)[0] == "M" or _PAIR.match(text, at - 1, at + 1):
        return True
    if _FLAG_LETTER.match(after):
        start = at
        while start > boundary and _FLAG_LETTER.match(text, start - 1):
            start -= 1
        return (at - start) % 2 == 1
    return unicodedata.combining(before) == _VIRAMA and unicodedata.category(after)[0] == "L"
