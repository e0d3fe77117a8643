"""Categories: the tree that groups the entities of a catalogue."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from almanac.catalogue import access, ids, vocabulary
from almanac.catalogue.entity_index import REINDEX_CATEGORY_JOB
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.fair_slots import compute_for
from almanac.db.sql import from_row
from almanac.jobs import queue

TOP = 0
MAX_CATEGORY_DEPTH = 50

_SELECT = """
SELECT c.*, a.key AS alias_key, p.key AS policy_key FROM categories c
LEFT JOIN vocabulary a ON a.id = c.alias_id LEFT JOIN vocabulary p ON p.id = c.policy_id
"""


@dataclass(frozen=True, slots=True)
class Category:
    """One category."""

    number: int  # search stores it as the folder of an entity
    id: str
    parent: int
    name: str
    description: str
    alias_id: str | None
    alias_key: str | None
    policy_id: str | None
    policy_key: str | None
    created_at: int
    updated_at: int


class Tree:
    """All categories of an organisation."""

    def __init__(self, categories: Iterable[Category]) -> None:
        self.by_number = {category.number: category for category in categories}
        self.by_id = {category.id: category for category in self.by_number.values()}

    @cached_property
    def _children(self) -> dict[int, list[Category]]:
        children: dict[int, list[Category]] = {}
        for category in sorted(
            self.by_number.values(), key=lambda category: (category.name.casefold(), category.number)
        ):
            # A category whose parent is missing, which only a damaged database has, is listed at the top.
            children.setdefault(category.parent if category.parent in self.by_number else TOP, []).append(category)
        return children

    def children(self, number: int) -> list[Category]:
        """The categories directly below a category, by name."""
        return self._children.get(number, [])

    def descend(self, numbers: Iterable[int]) -> list[int]:
        """The numbers of some categories and of all categories below them."""
        reached: dict[int, None] = {}
        pending = list(numbers)
        while pending:
            number = pending.pop()
            if number not in reached:
                reached[number] = None
                pending += [child.number for child in self.children(number)]
        return list(reached)

    def height(self, number: int) -> int:
        """The number of levels from a category down to the deepest one below it."""
        level, height = [number], 0
        while level:
            level = [child.number for each in level for child in self.children(each)]
            height += 1
        return height

    def path(self, number: int) -> tuple[str, ...]:
        """The names from the top down to a category."""
        names: list[str] = []
        while (category := self.by_number.get(number)) is not None and len(names) < MAX_CATEGORY_DEPTH:
            names.append(category.name)
            number = category.parent
        return tuple(reversed(names))

    def matching(self, key: str) -> Iterator[Category]:
        """The categories with this id, alias key, name or path (`Tools/Washers`)."""
        for category in self.by_number.values():
            if key in (category.id, category.alias_key, category.name) or (
                "/" in key and "/".join(self.path(category.number)) == key
            ):
                yield category

    def pick(self, key: str) -> Category:
        """The category with this id, alias key, path or name. Raises Conflict if several match equally well."""
        if (category := self.by_id.get(key)) is not None:
            return category
        matches = list(self.matching(key))
        best = [category for category in matches if category.alias_key == key] or matches
        # A bare name that several categories have means the one at the top, because it is also that one's path.
        if len(best) > 1 and len(top := [category for category in best if category.parent == TOP]) == 1:
            best = top
        if not best:
            raise missing(key)
        if len(best) > 1:
            paths = "; ".join("/".join(self.path(category.number)) for category in best[:5])
            raise Conflict(f"{len(best)} categories are called {key[:100]!r}.", remedy=f"Use an id or a path: {paths}.")
        return best[0]


def missing(key: str) -> NotFound:
    """The error for a category that does not exist."""
    return NotFound(f"There is no category {key[:100]!r}.", remedy="Read the whole structure to see the categories.")


async def tree(db: Database, org_id: str) -> Tree:
    """All categories of an organisation."""
    rows = await db.scan(f"{_SELECT} WHERE c.org_id = $1", org_id)
    return await compute_for(len(rows), _from_rows, rows)


async def tree_in(tx: Reader, org_id: str) -> Tree:
    """All categories of an organisation, as a transaction sees them."""
    return _from_rows(await tx.fetch(f"{_SELECT} WHERE c.org_id = $1", org_id))


def _from_rows(rows: Sequence[Row]) -> Tree:
    return Tree(from_row(Category, row) for row in rows)


async def counts(db: Database, org_id: str) -> dict[int, int]:
    """The number of entities directly in each category."""
    sql = (
        "SELECT c.number, (SELECT count(*) FROM entities e WHERE e.category = c.number) AS entities"
        " FROM categories c WHERE c.org_id = $1"
    )
    return {row["number"]: row["entities"] for row in await db.scan(sql, org_id)}


async def add(
    tx: Transaction,
    call: Call,
    name: str,
    *,
    description: str = "",
    alias: str | None = None,
    policy: str | None = None,
    parent: str | None = None,
    id: str | None = None,
) -> Category:
    """Add a category at the top or below a parent. `alias`, `policy` and `parent` accept a key or an id."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    parent_number = TOP
    if parent is not None:
        tree = await tree_in(tx, org_id)
        parent_number = tree.pick(parent).number
        _check_depth(tree, parent_number, 1)
    row = await tx.fetch_one(
        "INSERT INTO categories (id, org_id, parent, name, description, alias_id, policy_id, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) ON CONFLICT (org_id, parent, name) DO NOTHING RETURNING number",
        id or ids.new(),
        org_id,
        parent_number,
        check_name(name),
        vocabulary.check_text(description, "description"),
        await _term_id(tx, org_id, "alias", alias),
        await _term_id(tx, org_id, "policy", policy),
        clock.now(),
    )
    if row is None:
        raise Conflict(f"There is already a category {name[:100]!r} there.", remedy="Choose another name or parent.")
    category = await get(tx, org_id, row["number"])
    call.record_access("category", category.id)
    return category


async def get(db: Reader, org_id: str, number: int) -> Category:
    """A category by its number."""
    row = await db.fetch_one(f"{_SELECT} WHERE c.org_id = $1 AND c.number = $2", org_id, number)
    if row is None:
        raise missing(str(number))
    return from_row(Category, row)


async def update(
    tx: Transaction,
    call: Call,
    key: str,
    *,
    name: str | None = None,
    description: str | None = None,
    alias: str | None = None,
    policy: str | None = None,
    parent: str | None = None,
) -> Category:
    """Change the given fields of a category. The parent "null" moves it to the top."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    tree = await tree_in(tx, org_id)
    old = tree.pick(key)
    parent_number = _parent_number(tree, old, parent)
    new_name = name or old.name
    if any(sibling.name == new_name and sibling.id != old.id for sibling in tree.children(parent_number)):
        raise Conflict(f"There is already a category {new_name[:100]!r} there.", remedy="Choose another name.")
    await tx.execute(
        "UPDATE categories SET name = $3, description = $4, alias_id = $5, policy_id = $6, parent = $7, updated_at = $8"
        " WHERE number = $1 AND org_id = $2",
        old.number,
        org_id,
        old.name if name is None else check_name(name),
        old.description if description is None else vocabulary.check_text(description, "description"),
        old.alias_id if alias is None else await _term_id(tx, org_id, "alias", alias),
        old.policy_id if policy is None else await _term_id(tx, org_id, "policy", policy),
        parent_number,
        (now := clock.now()),
    )
    if name not in (None, old.name):
        # The name is part of the indexed text of its entities. The time in the key makes this job distinct from an
        # earlier one that may be running with the old name.
        await queue.add(
            tx,
            REINDEX_CATEGORY_JOB,
            {"category": old.number},
            key=f"{REINDEX_CATEGORY_JOB}:{old.number}:{now}",
            org_id=org_id,
        )
    call.record_access("category", old.id)
    return await get(tx, org_id, old.number)


async def remove(tx: Transaction, call: Call, key: str) -> None:
    """Remove an empty category."""
    await access.require_write(tx, call)
    tree = await tree_in(tx, call.actor.org_id)
    category = tree.pick(key)
    has_entities = await tx.fetch_one("SELECT 1 FROM entities WHERE category = $1 LIMIT 1", category.number)
    if has_entities or tree.children(category.number):
        raise Conflict(f"The category {category.name!r} is not empty.", remedy="Move or remove its contents first.")
    await tx.execute("DELETE FROM categories WHERE number = $1", category.number)
    call.record_access("category", category.id)


def check_name(name: str) -> str:
    """The name of a category or an entity, trimmed. Raises BadRequest if it is invalid."""
    name = vocabulary.check_name(name)
    if not 1 <= len(name) <= 500:
        raise BadRequest("name: must have 1 to 500 characters.")
    return name


def _parent_number(tree: Tree, category: Category, parent: str | None) -> int:
    if parent is None:
        return category.parent
    number = TOP if parent == "null" else tree.pick(parent).number
    if number in tree.descend([category.number]):
        raise BadRequest(
            "A category cannot be moved into itself or below itself.", remedy="Choose a category elsewhere."
        )
    _check_depth(tree, number, tree.height(category.number))
    return number


def _check_depth(tree: Tree, parent: int, height: int) -> None:
    """Refuse a place in which categories of `height` levels would be deeper than a reader can nest them."""
    if len(tree.path(parent)) + height > MAX_CATEGORY_DEPTH:
        raise BadRequest(f"parent: categories can be nested {MAX_CATEGORY_DEPTH} deep.", remedy="Choose a higher one.")


async def _term_id(tx: Reader, org_id: str, kind: str, key: str | None) -> str | None:
    return (await vocabulary.get_by_key(tx, org_id, kind, key)).id if key else None
