"""The numbers of list items and headings, which a word processor counts and does not store."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers.office import ooxml
from almanac.knowledge.parsers.web.xml_file import attribute, children, local_name

BULLET = "-"
MAX_LIST_LEVEL = 9

_PLACEHOLDER = re.compile(r"%([1-9])")
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"),
          (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Level:
    """The numbering of the items of one level."""

    form: str = "bullet"
    pattern: str = "%1."
    first: int = 1


@dataclass(slots=True)
class Numbering:
    """The lists of a document and the current numbers of their levels."""

    lists: dict[str, str] = field(default_factory=dict[str, str])  # list id of a paragraph → definition of the list
    levels: dict[tuple[str, int], Level] = field(default_factory=dict[tuple[str, int], Level])
    counts: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    def next_label(self, list_id: str, depth: int) -> str:
        """Count the next item and return its label, such as `2.1`: a dash for a bullet, empty outside any list."""
        definition = self.lists.get(list_id)
        if definition is None or not 0 <= depth < MAX_LIST_LEVEL:
            return ""
        level = self.levels.get((definition, depth), Level())
        self.counts[definition, depth] = self.counts.get((definition, depth), level.first - 1) + 1
        for deeper in range(depth + 1, MAX_LIST_LEVEL):
            self.counts.pop((definition, deeper), None)
        if level.form in ("bullet", "none"):
            return BULLET if level.form == "bullet" else ""
        return _PLACEHOLDER.sub(lambda match: self._number(definition, int(match[1]) - 1), level.pattern).strip()

    def _number(self, definition: str, depth: int) -> str:
        level = self.levels.get((definition, depth), Level())
        return format_number(self.counts.get((definition, depth), level.first), level.form)


def format_number(number: int, form: str) -> str:
    """The number as letters, Roman numerals or digits."""
    if form.lower().endswith("letter") and 0 < number < 1000:
        letters = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
        return letters.upper() if form.startswith("upper") else letters
    if form.lower().endswith("roman") and 0 < number < 4000:
        return _roman(number).upper() if form.startswith("upper") else _roman(number)
    return str(number)


def _roman(number: int) -> str:
    numeral = ""
    for value, symbol in _ROMAN:
        numeral += symbol * (number // value)
        number %= value
    return numeral


def read_numbering(root: Element | None) -> Numbering:
    """The lists in the numbering part of a document."""
    numbering = Numbering()
    for element in () if root is None else root:
        if local_name(element) == "abstractNum":
            definition = attribute(element, "abstractNumId")
            numbering.levels |= {(definition, depth): level for depth, level in _levels(element)}
        elif local_name(element) == "num":
            numbering.lists[attribute(element, "numId")] = ooxml.value(element, "abstractNumId")
    return numbering


def _levels(definition: Element) -> Iterator[tuple[int, Level]]:
    for level in children(definition, "lvl"):
        form, pattern = ooxml.value(level, "numFmt", "decimal"), ooxml.value(level, "lvlText", "%1.")
        yield int(attribute(level, "ilvl") or 0), Level(form, pattern, int(ooxml.value(level, "start", "1")))
