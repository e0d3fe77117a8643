"""Predicates: filters on metadata as users of vector stores write them, as conditions that search understands.

    {"category": "washers", "psi": {"$lt": 2000}, "tags": ["electric", "quiet"]}

A single value has to be equal, or a member where the entity has a list. A list has to be contained: the entity has
every one of its members. `$eq $ne $in $nin $gt $gte $lt $lte` compare; several in one object must all hold. `$and` and
`$or` join filters. A category may be named by its id, its alias key, its name or its path; what is below it counts.
"""

from typing import Any, cast

from almanac.catalogue.categories import Tree
from almanac.core.errors import BadRequest
from almanac.search.filters import conditions

OPERATORS = {f"${name}": name for name in ("eq", "ne", "in", "nin", "gt", "gte", "lt", "lte")}
JOINTS = {"$and": "and", "$or": "or"}
MAX_FILTER_DEPTH = 4

_FORM = f"Use {', '.join(OPERATORS)}, or a value to be equal to."


def to_condition(metadata: dict[str, Any] | None, tree: Tree | None = None) -> dict[str, Any] | None:
    """The condition that a filter means; None where it filters nothing. With a tree, `category` is looked up in it."""
    if not metadata:
        return None
    found = _joined("and", _tests(metadata, "metadata", tree, 1))
    conditions.parse(found)  # which says what is wrong with a value
    return found


def names_category(metadata: dict[str, Any] | None) -> bool:
    """Whether a filter may say something of categories, so that a tree is needed to understand it."""
    return metadata is not None and any(
        key == "category" or (key in JOINTS and "category" in repr(value)) for key, value in metadata.items()
    )


def _tests(given: dict[str, Any], where: str, tree: Tree | None, depth: int) -> list[dict[str, Any]]:
    if depth > MAX_FILTER_DEPTH:
        raise BadRequest(f"{where}: is nested too deeply.")
    found: list[dict[str, Any]] = []
    for key, value in given.items():
        at = f"{where}.{key[:60]}"
        if key in JOINTS:
            found.append(_group(JOINTS[key], value, at, tree, depth))
        elif key.startswith("$"):
            raise BadRequest(f"{at}: there is no such operator.", remedy=_FORM)
        elif isinstance(value, dict):
            found += _compared(key, cast("dict[str, Any]", value), at, tree)
        elif isinstance(value, list):
            if not value:
                raise BadRequest(f"{at}: is empty.", remedy="Leave it out, or give what has to be there.")
            found += [_test(key, "eq", each, tree) for each in cast("list[Any]", value)]
        else:
            found.append(_test(key, "eq", value, tree))
    return found


def _group(joint: str, value: Any, where: str, tree: Tree | None, depth: int) -> dict[str, Any]:
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    if not parts or not all(isinstance(part, dict) and len(cast("dict[str, Any]", part)) for part in parts):
        raise BadRequest(f"{where}: is not a list of filters.", remedy="Give a list of objects.")
    each = enumerate(cast("list[dict[str, Any]]", parts))
    return _joined(joint, [_joined("and", _tests(part, f"{where}[{n}]", tree, depth + 1)) for n, part in each])


def _compared(key: str, value: dict[str, Any], where: str, tree: Tree | None) -> list[dict[str, Any]]:
    if not value:
        raise BadRequest(f"{where}: is empty.", remedy=_FORM)
    for name in value:
        if name not in OPERATORS:
            raise BadRequest(f"{where}.{name[:60]}: there is no such operator.", remedy=_FORM)
    return [_test(key, OPERATORS[name], each, tree) for name, each in value.items()]


def _test(key: str, op: str, value: Any, tree: Tree | None) -> dict[str, Any]:
    if key == "category" and tree is not None and op in ("eq", "ne", "in", "nin") and value is not None:
        listed: Any = value if op in ("in", "nin") else [value]
        values = cast("list[Any]", listed) if isinstance(listed, list) else None
        if values is None or any(isinstance(each, list | dict) for each in values):
            return {"key": key, "op": op, "value": value}  # which is refused where all conditions are read
        meant = [*values, *(id for each in values if isinstance(each, str) for id in _below(tree, each))]
        return {"key": key, "op": {"eq": "in", "ne": "nin"}.get(op, op), "value": list(dict.fromkeys(meant))}
    return {"key": key, "op": op, "value": value}


def _below(tree: Tree, key: str) -> list[str]:
    """The ids of the categories that are called so, with all below them."""
    numbers = tree.descend(each.number for each in tree.matching(key))
    return [tree.by_number[number].id for number in numbers]


def _joined(joint: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return parts[0] if len(parts) == 1 else {joint: parts}
