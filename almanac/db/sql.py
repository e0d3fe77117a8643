"""Parts of SQL statements (numbered parameters, placeholders and lists of ids), and objects from rows."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar, Protocol, TypeVar

from almanac.core.database import Row, Value


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=_Dataclass)


class Parameters:
    """The values of a statement's parameters, numbered from `start`."""

    def __init__(self, start: int = 1) -> None:
        self.values: list[Value] = []
        self._start = start

    @property
    def next_number(self) -> int:
        """The number of the next parameter."""
        return self._start + len(self.values)

    def add(self, value: Value) -> str:
        """Add a value and return its placeholder, such as `$3`."""
        self.values.append(value)
        return f"${self.next_number - 1}"

    def add_all(self, values: Iterable[Value]) -> str:
        """Add values and return their placeholders, separated by commas."""
        return ", ".join([self.add(value) for value in values])


@lru_cache
def placeholders(count: int, start: int = 1) -> str:
    """The placeholders of `count` parameters, separated by commas."""
    return ", ".join(f"${number}" for number in range(start, start + count))


def id_list(ids: Iterable[int]) -> str:
    """The ids for `IN (…)`, written as literals, because a statement may have only about 32,000 parameters.

    Without ids it is NULL, which equals no id.
    """
    return ", ".join(str(int(id)) for id in ids) or "NULL"


@lru_cache
def _field_names(cls: type[_Dataclass]) -> tuple[str, ...]:
    return tuple(cls.__dataclass_fields__)


def from_row(cls: type[T], row: Row, **converted: object) -> T:
    """An object with fields from the columns of the same names. `converted` gives the values of other fields."""
    if not converted:
        return cls(*[row[name] for name in _field_names(cls)])
    return cls(*[converted[name] if name in converted else row[name] for name in _field_names(cls)])
