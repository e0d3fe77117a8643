"""Metadata filters in the syntax of vector stores, translated to conditions of the search engine.

    {"category": "washers", "psi": {"$lt": 2000}, "tags": ["electric", "quiet"]}

A single value must be equal to the entity's value, or a member of it if the entity has a list. With a list, the entity
must have every member. `$eq $ne $in $nin $gt $gte $lt $lte` compare; several in one object must all hold. `$and` and
`$or` combine filters. A category is named by id, alias key, name or path, and includes the categories below it.
"""

from typing import Any, cast

from almanac.catalogue.categories import Tree
from almanac.core.errors import BadRequest
from almanac.search.filters import conditions

OPERATORS = {f"${name}": name for name in ("eq", "ne", "in", "nin", "gt", "gte", "lt", "lte")}
COMBINATORS = {"$and": "and", "$or": "or"}
MAX_FILTER_DEPTH = 4

_SYNTAX_REMEDY = f"Use {', '.join(OPERATORS)}, or a plain value to test for equality."


def to_condition(metadata: dict[str, Any] | None, tree: Tree | None = None) -> dict[str, Any] | None:
    """The condition that a filter stands for, or None for an empty filter. With a tree, `category` names categories."""
    if not metadata:
        return None
    condition = _combine("and", _parse(metadata, "metadata", tree, 1))
    conditions.parse(condition)  # raises BadRequest for invalid values
    return condition


def names_category(metadata: dict[str, Any] | None) -> bool:
    """Whether a filter may name categories, so that `to_condition` needs the tree."""
    return metadata is not None and any(
        key == "category" or (key in COMBINATORS and "category" in repr(value)) for key, value in metadata.items()
    )


def _parse(filter: dict[str, Any], path: str, tree: Tree | None, depth: int) -> list[dict[str, Any]]:
    if depth > MAX_FILTER_DEPTH:
        raise BadRequest(f"{path}: is nested too deeply.")
    tests: list[dict[str, Any]] = []
    for key, value in filter.items():
        key_path = f"{path}.{key[:60]}"
        if key in COMBINATORS:
            tests.append(_parse_group(COMBINATORS[key], value, key_path, tree, depth))
        elif key.startswith("$"):
            raise BadRequest(f"{key_path}: there is no such operator.", remedy=_SYNTAX_REMEDY)
        elif isinstance(value, dict):
            tests += _parse_comparisons(key, cast("dict[str, Any]", value), key_path, tree)
        elif isinstance(value, list):
            if not value:
                raise BadRequest(f"{key_path}: is empty.", remedy="Leave it out, or list the required values.")
            tests += [_test(key, "eq", member, tree) for member in cast("list[Any]", value)]
        else:
            tests.append(_test(key, "eq", value, tree))
    return tests


def _parse_group(combinator: str, value: Any, path: str, tree: Tree | None, depth: int) -> dict[str, Any]:
    filters = cast("list[Any]", value) if isinstance(value, list) else []
    if not filters or not all(isinstance(filter, dict) and len(cast("dict[str, Any]", filter)) for filter in filters):
        raise BadRequest(f"{path}: is not a list of filters.", remedy="Give a list of objects.")
    numbered = enumerate(cast("list[dict[str, Any]]", filters))
    parsed = [_combine("and", _parse(filter, f"{path}[{number}]", tree, depth + 1)) for number, filter in numbered]
    return _combine(combinator, parsed)


def _parse_comparisons(key: str, operators: dict[str, Any], path: str, tree: Tree | None) -> list[dict[str, Any]]:
    if not operators:
        raise BadRequest(f"{path}: is empty.", remedy=_SYNTAX_REMEDY)
    for name in operators:
        if name not in OPERATORS:
            raise BadRequest(f"{path}.{name[:60]}: there is no such operator.", remedy=_SYNTAX_REMEDY)
    return [_test(key, OPERATORS[name], value, tree) for name, value in operators.items()]


def _test(key: str, op: str, value: Any, tree: Tree | None) -> dict[str, Any]:
    if key == "category" and tree is not None and op in ("eq", "ne", "in", "nin") and value is not None:
        members: Any = value if op in ("in", "nin") else [value]
        values = cast("list[Any]", members) if isinstance(members, list) else None
        if values is None or any(isinstance(member, list | dict) for member in values):
            return {"key": key, "op": op, "value": value}  # `conditions.parse` rejects it
        ids = [*values, *(id for name in values if isinstance(name, str) for id in _subtree_ids(tree, name))]
        return {"key": key, "op": {"eq": "in", "ne": "nin"}.get(op, op), "value": list(dict.fromkeys(ids))}
    return {"key": key, "op": op, "value": value}


def _subtree_ids(tree: Tree, key: str) -> list[str]:
    """The ids of all categories that a key matches, and of the categories below them."""
    numbers = tree.descend(category.number for category in tree.matching(key))
    return [tree.by_number[number].id for number in numbers]


def _combine(combinator: str, tests: list[dict[str, Any]]) -> dict[str, Any]:
    return tests[0] if len(tests) == 1 else {combinator: tests}
