"""Finds the field that each name of an expression means, and checks where functions stand."""

from collections.abc import Mapping

from almanac.data.c9ql.emitter import Scope
from almanac.data.c9ql.errors import C9qlError, no_field
from almanac.data.c9ql.functions import FUNCTIONS, Role
from almanac.data.c9ql.names import fold
from almanac.data.c9ql.tree import (
    Call,
    Expression,
    Name,
    Number,
    Path,
    Text,
    Word,
    children,
    depth,
    rewrite,
    walk,
)

MAX_DEPTH = 60  # levels of an expression; DuckDB and sqlglot use some levels of recursion for each


class Resolver:
    """Replaces the names of an expression by the exact names of fields, and aliases by their expressions."""

    def __init__(self, scope: Scope, aliases: Mapping[str, Expression] | None = None, *, prefer_aliases: bool = False):
        self.scope = scope
        self._aliases = {fold(name): expression for name, expression in (aliases or {}).items()}
        self._prefer_aliases = prefer_aliases

    def resolve(self, node: Expression) -> Expression:
        """Return the expression with exact names."""
        if depth(node) > MAX_DEPTH:
            raise C9qlError("the expression is nested too deeply.", at=node.at,
                            remedy="Split it into several statements, separated by ';'.")  # fmt: skip
        return self._resolve(node)

    def _resolve(self, node: Expression) -> Expression:
        match node:
            case Name(name=name, at=at):
                return self._named(name, at) or self._fail(name, at)
            case Word(text=text, at=at):
                return self._named(text, at) or Text(text, at)
            case Path(base=Name() | Word()):
                return self._path(node)
            case _:
                return rewrite(node, self._resolve)

    def _named(self, name: str, at: int) -> Expression | None:
        alias = self._aliases.get(fold(name))
        if alias is not None and self._prefer_aliases:
            return alias
        found = self.scope.names.find(name)
        return alias if found is None else Name(found, at)

    def _path(self, node: Path) -> Expression:
        """Resolve a path from a name. The name of a field may contain the dots: the longest one counts."""
        base = node.base.name if isinstance(node.base, Name) else node.base.text if isinstance(node.base, Word) else ""
        for count in range(len(node.steps), 0, -1):
            steps = node.steps[:count]
            if all(isinstance(each, str) for each in steps):
                found = self._named(".".join([base, *map(str, steps)]), node.at)
                if found is not None:
                    return Path(found, node.steps[count:], node.at) if node.steps[count:] else found
        return rewrite(node, self._resolve)

    def _fail(self, name: str, at: int) -> Expression:
        names = [*self.scope.names.names, *self._aliases]
        raise no_field(name, names, at)


def calls(node: Expression, *roles: Role) -> list[Call]:
    """Return the calls with one of these roles in an expression. An aggregate with `over` does not count as one."""
    return [
        each
        for each in walk(node)
        if isinstance(each, Call)
        and FUNCTIONS[each.function].role in roles
        and not (each.over is not None and FUNCTIONS[each.function].role == Role.AGGREGATE)
    ]


def over_windows(node: Expression) -> list[Call]:
    """Return the calls that read other rows than their own."""
    return [each for each in walk(node) if isinstance(each, Call) and each.over] + calls(node, Role.ROLLING)


def require_rows_only(node: Expression, clause: str, remedy: str = "") -> None:
    """Raise if an expression needs more than its own row."""
    found = [*calls(node, Role.AGGREGATE, Role.RESHAPING), *over_windows(node)]
    if found:
        raise C9qlError(f"{found[0].function} cannot stand in {clause}.", at=found[0].at, remedy=remedy)


def require_flat(node: Expression) -> None:
    """Raise if a function over several rows is inside another one."""
    for call in [*calls(node, Role.AGGREGATE), *over_windows(node)]:
        for argument in children(call):
            require_rows_only(argument, call.function, "Use two statements, separated by ';'.")


def require_grouped(node: Expression, keys: list[Expression]) -> None:
    """Raise if an expression has no single value for a group."""
    if node in keys or (isinstance(node, Call) and calls(node, Role.AGGREGATE)[:1] == [node]):
        return
    if isinstance(node, Name):
        raise C9qlError(f"'{node.name}' is neither aggregated nor in 'group by'.", at=node.at,
                        remedy=f"Add 'group by {node.name}' or use an aggregate such as max({node.name}).")  # fmt: skip
    windows = over_windows(node)
    if windows:
        raise C9qlError(f"{windows[0].function} cannot be combined with aggregates.", at=windows[0].at,
                        remedy="Use two statements, separated by ';'.")  # fmt: skip
    for each in children(node):
        require_grouped(each, keys)


def position(node: Expression, count: int) -> int | None:
    """Return the index of the item that a number in `group by 1` or `order by 1` means."""
    if not isinstance(node, Number):
        return None
    if not node.digits.isdigit() or not 1 <= int(node.digits[:9]) <= count:
        raise C9qlError(f"there is no item {node.digits[:20]} in the select list.", at=node.at)
    return int(node.digits) - 1
