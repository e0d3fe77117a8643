"""The numbers that a word processor counts and does not write: of list items, and of headings."""

import re
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from almanac.knowledge.parsers.web.xml_file import attribute, child, local

BULLET = "-"
MAX_LIST_LEVEL = 9

_PLACE = re.compile(r"%([1-9])")
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"),
          (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Level:
    """How the items of one level are numbered."""

    form: str = "bullet"
    pattern: str = "%1."
    first: int = 1


@dataclass(slots=True)
class Numbering:
    """The lists of a document, and how far each has been counted."""

    lists: dict[str, str] = field(default_factory=dict[str, str])  # what a paragraph names → the list it is one of
    levels: dict[tuple[str, int], Level] = field(default_factory=dict[tuple[str, int], Level])
    counts: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    def label(self, list_id: str, depth: int) -> str:
        """What stands before the next item, such as `2.1`; a dash for a bullet; empty outside any list."""
        group = self.lists.get(list_id)
        if group is None or not 0 <= depth < MAX_LIST_LEVEL:
            return ""
        level = self.levels.get((group, depth), Level())
        self.counts[group, depth] = self.counts.get((group, depth), level.first - 1) + 1
        for deeper in range(depth + 1, MAX_LIST_LEVEL):
            self.counts.pop((group, deeper), None)
        if level.form in ("bullet", "none"):
            return BULLET if level.form == "bullet" else ""
        return _PLACE.sub(lambda found: self._count(group, int(found[1]) - 1), level.pattern).strip()

    def _count(self, group: str, depth: int) -> str:
        level = self.levels.get((group, depth), Level())
        return written(self.counts.get((group, depth), level.first), level.form)


def written(number: int, form: str) -> str:
    """A number as letters, Roman numerals or digits."""
    if form.lower().endswith("letter") and 0 < number < 1000:
        letters = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
        return letters.upper() if form.startswith("upper") else letters
    if form.lower().endswith("roman") and 0 < number < 4000:
        return _roman(number).upper() if form.startswith("upper") else _roman(number)
    return str(number)


def _roman(number: int) -> str:
    signs = ""
    for value, sign in _ROMAN:
        signs += sign * (number // value)
        number %= value
    return signs


def read_numbering(root: Element | None) -> Numbering:
    """The lists that the numbering part of a document defines."""
    found = Numbering()
    for each in () if root is None else root:
        if local(each) == "abstractNum":
            group = attribute(each, "abstractNumId")
            found.levels |= {(group, depth): level for depth, level in _levels(each)}
        elif local(each) == "num":
            referred = child(each, "abstractNumId")
            found.lists[attribute(each, "numId")] = "" if referred is None else attribute(referred, "val")
    return found


def _levels(group: Element) -> list[tuple[int, Level]]:
    return [
        (
            int(attribute(each, "ilvl") or 0),
            Level(_value(each, "numFmt", "decimal"), _value(each, "lvlText", "%1."), int(_value(each, "start", "1"))),
        )
        for each in group
        if local(each) == "lvl"
    ]


def _value(element: Element, name: str, otherwise: str) -> str:
    found = child(element, name)
    return otherwise if found is None else attribute(found, "val")
