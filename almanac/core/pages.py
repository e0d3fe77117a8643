"""A page of a longer list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """The items of a list from `offset` on, and the length of the whole list."""

    items: Sequence[T]
    total: int
    offset: int

    @property
    def has_more(self) -> bool:
        """Whether more items follow."""
        return self.offset + len(self.items) < self.total
