"""The names in a query: each table is a given one, and each column is a visible field or a name of the query's own.

The engine resolves names once more. This check is for the message, and so that a name that the caller may not see is
answered like one that does not exist.
"""

from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from almanac.data.sql.allow_list import position_of
from almanac.data.sql.errors import SqlError, list_names, nearest, quote

# Tables get names of ours in the engine, so that a dataset cannot have the name of one of its own tables.
INTERNAL_PREFIX = "almanac_table_"

# Names that the engine gives to columns of series, lists and VALUES.
_GIVEN_COLUMNS = {"unnest", "range", "generate_series", *(f"col{number}" for number in range(100))}


def resolve(tree: exp.Expr, tables: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Replace the names of tables by internal ones. Return the internal name of each table that the query reads."""
    by_key = {name.casefold(): name for name in tables}
    used: dict[str, str] = {}
    fields_of: dict[str, Sequence[str] | None] = {}  # by alias; none for an alias that also names a part of the query
    for node in list(tree.find_all(exp.Table)):
        if not isinstance(node.this, exp.Identifier) or _is_part_of_query(node):
            fields_of[node.alias_or_name.casefold()] = None
            continue
        name = by_key.get(node.name.casefold())
        if name is None:
            raise _unknown_table(node, tables)
        known = fields_of.setdefault(node.alias_or_name.casefold(), [])
        if known is not None:
            fields_of[node.alias_or_name.casefold()] = [*known, *tables[name]]
        used.setdefault(name, f"{INTERNAL_PREFIX}{len(used)}")
        if not node.alias:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
        node.set("this", exp.to_identifier(used[name], quoted=True))
    _check_own_names(tree)
    _check_columns(tree, fields_of)
    return used


def names_in(tree: exp.Expr) -> set[str]:
    """All names in the query, without case."""
    return {node.name.casefold() for node in tree.find_all(exp.Identifier)}


def reads_all_columns(tree: exp.Expr) -> bool:
    """Whether the query may read columns that it does not name: by a star other than that of `count(*)`, by a natural
    join, or by the name of a table, which stands for its whole row."""
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return True
    if any(join.args.get("method") for join in tree.find_all(exp.Join)):
        return True
    tables = {node.alias_or_name.casefold() for node in tree.find_all(exp.Table)}
    return any(len(column.parts) == 1 and column.name.casefold() in tables for column in tree.find_all(exp.Column))


def _is_part_of_query(table: exp.Table) -> bool:
    """Whether the name is that of a part which the query defines before this place, with WITH."""
    name = table.name.casefold()
    return any(name == part.alias.casefold() for part in _parts_before(table))


def _parts_before(node: exp.Expr) -> Iterator[exp.Expr]:
    """The parts that WITH defines and that can be used at a node: inside WITH, only the ones before it."""
    while (parent := node.parent) is not None:
        if isinstance(parent, exp.With):
            yield from parent.expressions[: node.index]
        else:
            part = parent.args.get("with_")
            yield from part.expressions if isinstance(part, exp.With) and part is not node else ()
        node = parent


def _check_own_names(tree: exp.Expr) -> None:
    for node in tree.find_all(exp.CTE, exp.Subquery, exp.Table):
        if node.alias.casefold().startswith(INTERNAL_PREFIX):
            raise SqlError(f"{quote(node.alias)} is not possible as a name.", position_of(node))


def _check_columns(tree: exp.Expr, fields_of: Mapping[str, Sequence[str] | None]) -> None:
    own_names = {name.casefold() for name in _own_names(tree)} | _GIVEN_COLUMNS
    visible = [name for fields in fields_of.values() for name in fields or ()]
    visible_keys = {name.casefold() for name in visible}
    for column in tree.find_all(exp.Column):
        first = column.parts[0]
        if isinstance(first, exp.Star):
            continue
        key = first.name.casefold()
        fields = fields_of.get(key)
        if len(column.parts) > 1 and fields is not None:
            second = column.parts[1]
            if not isinstance(second, exp.Star) and second.name.casefold() not in {each.casefold() for each in fields}:
                raise _unknown_column(second, fields)
        elif key not in visible_keys and key not in own_names and key not in fields_of:
            raise _unknown_column(first, visible)


def _own_names(tree: exp.Expr) -> Iterator[str]:
    for node in tree.find_all(exp.Alias, exp.CTE, exp.Subquery, exp.TableAlias, exp.Lambda, exp.Comprehension):
        yield node.alias_or_name
        if isinstance(node, exp.TableAlias):
            yield from (column.name for column in node.args.get("columns") or ())
        elif isinstance(node, exp.Lambda):
            yield from (parameter.name for parameter in node.expressions)
        elif isinstance(node, exp.Comprehension):
            yield node.expression.name


def _unknown_table(node: exp.Expr, tables: Mapping[str, Sequence[str]]) -> SqlError:
    return SqlError(
        f"There is no dataset {quote(node.name)}.",
        position_of(node),
        f"Datasets: {list_names(tables)}." if tables else "No dataset is available to this query.",
        nearest(node.name, tables),
    )


def _unknown_column(node: exp.Expr, fields: Sequence[str]) -> SqlError:
    expected = f"Fields: {list_names(dict.fromkeys(fields))}." if fields else ""
    return SqlError(f"There is no field {quote(node.name)}.", position_of(node), expected, nearest(node.name, fields))
