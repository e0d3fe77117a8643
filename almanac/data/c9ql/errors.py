"""The errors of C9QL: a position, the expectation, and the nearest name."""

from collections.abc import Iterable

from rapidfuzz import fuzz, process, utils

from almanac.core.errors import BadRequest

MIN_NAME_SIMILARITY = 60  # of 100; "Revenu" and "Revenue" have 92, "Sales" and "Revenue" 17


class C9qlError(BadRequest):
    """The C9QL query is not valid.

    `at` is the offset in the text, None if the problem has no single place.
    """

    def __init__(self, problem: str, text: str = "", at: int | None = None, *, remedy: str = "") -> None:
        self.problem, self.at, self._is_placed = problem, at, bool(text)
        super().__init__(f"{_place(text, at)}{problem}" if text else problem, remedy=remedy)

    def within(self, text: str) -> "C9qlError":
        """Return the error with its place in this text."""
        return self if self._is_placed else C9qlError(self.problem, text, self.at, remedy=self.remedy)


def _place(text: str, at: int | None) -> str:
    if at is None:
        return ""
    before = text[:at]
    column = at - (before.rfind("\n") + 1) + 1
    return f"Line {before.count(chr(10)) + 1}, column {column}: " if "\n" in text else f"Column {column}: "


def no_field(name: str, names: Iterable[str], at: int) -> C9qlError:
    """Return the error for a name that no field has."""
    known = list(names)
    remedy = did_you_mean(name, known) or _listing(known)
    return C9qlError(f"there is no field '{name}'.", at=at, remedy=remedy)


def no_function(name: str, names: Iterable[str], at: int) -> C9qlError:
    """Return the error for a name that no function has."""
    return C9qlError(f"there is no function '{name}'.", at=at, remedy=did_you_mean(name, names))


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the nearest name; empty if none is near."""
    best = process.extractOne(
        name, list(names), scorer=fuzz.ratio, processor=utils.default_process, score_cutoff=MIN_NAME_SIMILARITY
    )
    return f"Did you mean '{best[0]}'?" if best else ""


def _listing(names: list[str]) -> str:
    more = ", …" if len(names) > 10 else ""
    return f"The fields are: {', '.join(names[:10])}{more}." if names else ""
