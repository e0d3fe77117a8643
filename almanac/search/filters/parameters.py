"""The parameters of a SQL statement that is built in several steps."""

from collections.abc import Iterable

from almanac.core.database import Value


class SqlParameters:
    """The values of parameters, numbered from `start`."""

    def __init__(self, start: int = 1) -> None:
        self.values: list[Value] = []
        self._start = start

    def add(self, value: Value) -> str:
        """Add a value and return its placeholder."""
        self.values.append(value)
        return f"${self._start + len(self.values) - 1}"

    def add_text(self, value: str) -> str:
        """Add a value whose type PostgreSQL cannot infer, and return its placeholder with a cast."""
        return f"CAST({self.add(value)} AS TEXT)"

    def add_list(self, values: Iterable[Value]) -> str:
        """Add several values and return their placeholders, separated by commas."""
        return ", ".join([self.add(value) for value in values])
