"""Names of fields from the header of a file: as received, but none is empty and no two are equal."""

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")  # a heading in a cell of several lines


def stable_names(header: Sequence[object]) -> list[str]:
    """Return a name for each column. An empty one is numbered by its position, a repeated one by its repetition."""
    given = ["" if each is None else _CONTROL.sub(" ", str(each)).strip() for each in header]
    used, names = {name for name in given if name}, list[str]()
    seen: set[str] = set()
    for position, name in enumerate(given, 1):
        if name in seen or not name:
            name = _free(name or f"column_{position}", used)
            used.add(name)
        seen.add(name)
        names.append(name)
    return names


def _free(name: str, used: set[str]) -> str:
    candidate, number = name, 1
    while candidate in used:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
