"""Categories: the tree that a catalogue is kept in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from almanac.catalogue import access, ids, vocabulary
from almanac.catalogue.entity_index import REINDEX_CATEGORY_JOB
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
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

    number: int  # what search knows it by
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

    def __init__(self, found: Iterable[Category]) -> None:
        self.by_number = {each.number: each for each in found}
        self.by_id = {each.id: each for each in self.by_number.values()}

    @cached_property
    def _below(self) -> dict[int, list[Category]]:
        below: dict[int, list[Category]] = {}
        for each in sorted(self.by_number.values(), key=lambda each: (each.name.casefold(), each.number)):
            # What a fault has left without a parent is shown at the top.
            below.setdefault(each.parent if each.parent in self.by_number else TOP, []).append(each)
        return below

    def children(self, number: int) -> list[Category]:
        """What is right below a category, by name."""
        return self._below.get(number, [])

    def descend(self, numbers: Iterable[int]) -> list[int]:
        """Some categories with all below them."""
        found: dict[int, None] = {}
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number not in found:
                found[number] = None
                waiting += [each.number for each in self.children(number)]
        return list(found)

    def path(self, number: int) -> tuple[str, ...]:
        """The names from the top down to a category."""
        names: list[str] = []
        while (each := self.by_number.get(number)) is not None and len(names) < MAX_CATEGORY_DEPTH:
            names.append(each.name)
            number = each.parent
        return tuple(reversed(names))

    def matching(self, key: str) -> Iterator[Category]:
        """Those with this id, alias key, name, or path, as in Tools/Washers."""
        for each in self.by_number.values():
            if key in (each.id, each.alias_key, each.name) or ("/" in key and "/".join(self.path(each.number)) == key):
                yield each

    def pick(self, key: str) -> Category:
        """The one that is meant: by id, or by an alias key, a path or a name that only one has."""
        if (one := self.by_id.get(key)) is not None:
            return one
        found = list(self.matching(key))
        best = [each for each in found if each.alias_key == key] or found
        # A path may begin with a name that others have: only the top may be called by a bare one then.
        if len(best) > 1 and (top := [each for each in best if each.parent == TOP]):
            best = top if len(top) == 1 else best
        if not best:
            raise missing(key)
        if len(best) > 1:
            paths = "; ".join("/".join(self.path(each.number)) for each in best[:5])
            raise Conflict(f"{len(best)} categories are called {key[:100]!r}.", remedy=f"Use an id or a path: {paths}.")
        return best[0]


def missing(key: str) -> NotFound:
    """What is said of a category that is not there."""
    return NotFound(f"There is no category {key[:100]!r}.", remedy="Look at the whole structure for those there are.")


async def tree(db: Database, org_id: str) -> Tree:
    """All categories of an organisation."""
    return Tree(_category(row) for row in await db.scan(f"{_SELECT} WHERE c.org_id = $1", org_id))


async def tree_in(tx: Reader, org_id: str) -> Tree:
    """The same, as a transaction sees it."""
    return Tree(_category(row) for row in await tx.fetch(f"{_SELECT} WHERE c.org_id = $1", org_id))


async def counts(db: Database, org_id: str) -> dict[int, int]:
    """How many entities each category has."""
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
    """Add a category at the top or below another; alias and policy by key or id."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    above = TOP if parent is None else (await tree_in(tx, org_id)).pick(parent).number
    row = await tx.fetch_one(
        "INSERT INTO categories (id, org_id, parent, name, description, alias_id, policy_id, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) ON CONFLICT (org_id, parent, name) DO NOTHING RETURNING number",
        id or ids.new(),
        org_id,
        above,
        check_name(name),
        vocabulary.fit(description, "description"),
        await _term(tx, org_id, "alias", alias),
        await _term(tx, org_id, "policy", policy),
        clock.now(),
    )
    if row is None:
        raise Conflict(f"There is already a category {name[:100]!r} there.", remedy="Choose another name or parent.")
    found = await get(tx, org_id, row["number"])
    call.record_access("category", found.id)
    return found


async def get(db: Reader, org_id: str, number: int) -> Category:
    """A category by its number."""
    row = await db.fetch_one(f"{_SELECT} WHERE c.org_id = $1 AND c.number = $2", org_id, number)
    if row is None:
        raise missing(str(number))
    return _category(row)


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
    """Change what is given of a category; `parent` "null" moves it to the top."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    all_there_are = await tree_in(tx, org_id)
    old = all_there_are.pick(key)
    above = _above(all_there_are, old, parent)
    taken = [each for each in all_there_are.children(above) if each.name == (name or old.name) and each.id != old.id]
    if taken:
        raise Conflict(f"There is already a category {(name or old.name)[:100]!r} there.")
    await tx.execute(
        "UPDATE categories SET name = $3, description = $4, alias_id = $5, policy_id = $6, parent = $7, updated_at = $8"
        " WHERE number = $1 AND org_id = $2",
        old.number,
        org_id,
        old.name if name is None else check_name(name),
        old.description if description is None else vocabulary.fit(description, "description"),
        old.alias_id if alias is None else await _term(tx, org_id, "alias", alias),
        old.policy_id if policy is None else await _term(tx, org_id, "policy", policy),
        above,
        (now := clock.now()),
    )
    if name not in (None, old.name):
        # Its entities are found by its name too. The moment makes the job another than one that may be under way.
        await queue.add(
            tx, REINDEX_CATEGORY_JOB, {"category": old.number}, key=f"{REINDEX_CATEGORY_JOB}:{old.number}:{now}"
        )
    call.record_access("category", old.id)
    return await get(tx, org_id, old.number)


async def remove(tx: Transaction, call: Call, key: str) -> None:
    """Remove a category that nothing is in."""
    await access.require_write(tx, call)
    all_there_are = await tree_in(tx, call.actor.org_id)
    category = all_there_are.pick(key)
    is_used = await tx.fetch_one("SELECT 1 FROM entities WHERE category = $1 LIMIT 1", category.number)
    if is_used or all_there_are.children(category.number):
        raise Conflict(f"The category {category.name!r} is not empty.", remedy="Move or remove what is in it first.")
    await tx.execute("DELETE FROM categories WHERE number = $1", category.number)
    call.record_access("category", category.id)


def check_name(name: str) -> str:
    """A name fit for a category or an entity."""
    name = vocabulary.fit(name, "name").strip()
    if not 1 <= len(name) <= 500:
        raise BadRequest("name: has 1 to 500 characters.")
    return name


def _above(found: Tree, category: Category, parent: str | None) -> int:
    if parent is None:
        return category.parent
    above = TOP if parent == "null" else found.pick(parent).number
    if above in found.descend([category.number]):
        raise BadRequest("A category cannot be moved into itself or below itself.")
    return above


async def _term(tx: Reader, org_id: str, kind: str, key: str | None) -> str | None:
    return (await vocabulary.get_by_key(tx, org_id, kind, key)).id if key else None


def _category(row: Row) -> Category:
    return Category(
        number=row["number"],
        id=row["id"],
        parent=row["parent"],
        name=row["name"],
        description=row["description"],
        alias_id=row["alias_id"],
        alias_key=row["alias_key"],
        policy_id=row["policy_id"],
        policy_key=row["policy_key"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
