"""Finds the names of fields in a text: the longest first, in any case, with spaces or operators in them."""

from collections.abc import Iterable
from typing import Any

_END = ""


class FieldNames:
    """The names of the fields that a statement reads, as a tree of characters."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(dict.fromkeys(names))
        self._exact = set(self.names)
        self._by_folded: dict[str, str] = {}
        self._root: dict[str, Any] = {}
        for name in self.names:
            self._by_folded.setdefault(fold(name), name)
            self._add(name)

    def _add(self, name: str) -> None:
        node = self._root
        for character in fold(name):
            node = node.setdefault(character, {})
        node.setdefault(_END, name)

    def find(self, name: str) -> str | None:
        """Return the field with this name: the exact one, else the first that differs in case or spaces only."""
        return name if name in self._exact else self._by_folded.get(fold(name))

    def longest(self, text: str, start: int) -> tuple[str, int] | None:
        """Return the field with the longest name that the text has at this position, and the end of the name."""
        node, position, best = self._root, start, None
        while True:
            if _END in node and _is_boundary(text, position):
                best = (position, node[_END])
            step = _next(text, position)
            if step is None:
                break
            folded, position = step
            for character in folded:
                node = node.get(character)
                if node is None:
                    break
            if node is None:
                break
        if best is None:
            return None
        end, name = best
        exact = " ".join(text[start:end].split())
        return (exact if exact in self._exact else name), end


def fold(name: str) -> str:
    """Return the form of a name in which names that differ in case or white space only are equal."""
    return "".join(character.lower() for character in " ".join(name.split()))


def _next(text: str, position: int) -> tuple[str, int] | None:
    if position >= len(text):
        return None
    if not text[position].isspace():
        return text[position].lower(), position + 1
    end = position
    while end < len(text) and text[end].isspace():
        end += 1
    return " ", end


def _is_boundary(text: str, position: int) -> bool:
    if position == 0 or position >= len(text):
        return True
    return not (_is_word(text[position - 1]) and _is_word(text[position]))


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"
