"""The reason why a text is not a query that Almanac runs."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

# A quoted part of the caller's text is cut at this length.
MAX_QUOTED_CHARS = 60


@dataclass(frozen=True, slots=True)
class TextPosition:
    """A place in a query, counted from 1."""

    line: int
    column: int


class SqlError(Exception):
    """The query is refused. The message quotes names and keywords of the query, never a stored value."""

    def __init__(
        self, message: str, position: TextPosition | None = None, expected: str = "", nearest: str | None = None
    ) -> None:
        self.message = message
        self.position = position
        self.expected = expected
        self.nearest = nearest
        super().__init__(message)

    @property
    def text(self) -> str:
        """The message with position, expectation and nearest name."""
        where = f"Line {self.position.line}, column {self.position.column}: " if self.position else ""
        hint = f" Did you mean {quote(self.nearest)}?" if self.nearest else ""
        expected = f" {self.expected}" if self.expected else ""
        return f"{where}{self.message}{hint}{expected}"

    def to_value(self) -> dict[str, Any]:
        """The error as a JSON object."""
        position = asdict(self.position) if self.position else {"line": None, "column": None}
        return {"message": self.text, **position, "nearest": self.nearest}


def quote(name: str) -> str:
    """A name of the query in quotation marks, without control characters and of limited length."""
    printable = "".join(character for character in name if character.isprintable())
    shortened = printable if len(printable) <= MAX_QUOTED_CHARS else printable[:MAX_QUOTED_CHARS] + "…"
    return f'"{shortened}"'


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name that is most like this one, compared without case."""
    by_key = {each.casefold(): each for each in names}
    matches = get_close_matches(name.casefold()[:MAX_QUOTED_CHARS], by_key, n=1, cutoff=0.6)
    return by_key[matches[0]] if matches else None


def list_names(names: Iterable[str], count: int = 20) -> str:
    """The first names of a list, as a sentence part."""
    quoted = [quote(name) for name in names]
    return ", ".join(quoted[:count]) + (", …" if len(quoted) > count else "")
