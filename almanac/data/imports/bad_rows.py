"""The rows of a file that cannot be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_SHOWN_BAD_ROWS = 20
MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read: its line or number in the file, the reason, and its beginning."""

    line: int
    reason: str
    content: str


@dataclass(slots=True)
class BadRows:
    """The number of bad rows, and the first of them."""

    count: int = 0
    first: list[BadRow] = field(default_factory=list[BadRow])

    def add(self, line: int, reason: str, content: str) -> None:
        """Count a bad row."""
        self.count += 1
        if len(self.first) < MAX_SHOWN_BAD_ROWS:
            self.first.append(BadRow(line, reason, content[:MAX_SHOWN_CHARS]))

    def to_value(self) -> dict[str, Any]:
        """Return them as a JSON value."""
        return {"count": self.count, "first": [[each.line, each.reason, each.content] for each in self.first]}

    @classmethod
    def from_value(cls, value: Mapping[str, Any]) -> "BadRows":
        """Return the bad rows of a value that `to_value` made."""
        return cls(int(value["count"]), [BadRow(int(line), str(why), str(what)) for line, why, what in value["first"]])
