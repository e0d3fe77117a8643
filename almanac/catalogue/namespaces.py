"""Namespaces: what may be searched under one name. The contract calls them indexes."""

from dataclasses import dataclass

import orjson

from almanac.catalogue import access, categories, entity_index, ids, vocabulary
from almanac.catalogue.categories import Tree
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.search import sources

DOCUMENTS = "general_helper_documents"  # every document that the caller may read
IMAGES = "images"  # pictures, by their text
RESERVED = (DOCUMENTS, IMAGES)

_STATUS = {"made": "vectorised", "waiting": "initial", "failed": "fail"}


@dataclass(frozen=True, slots=True)
class Namespace:
    """A name for some categories, with all below them."""

    id: str
    name: str
    notes: str
    categories: tuple[str, ...]  # their ids; none: all there are
    created_at: int
    updated_at: int

    def folders(self, tree: Tree) -> tuple[int, ...] | None:
        """The numbers of the categories that are searched; None for all there are, which need not be named."""
        if not self.categories:
            return None
        found = tree.descend(tree.by_id[id].number for id in self.categories if id in tree.by_id)
        return None if len(found) == len(tree.by_number) else tuple(found)


async def add(tx: Transaction, call: Call, name: str, notes: str, named: list[str]) -> Namespace:
    """Make a namespace over categories, each named by id, alias key or path; none for all there are."""
    await access.require_write(tx, call)
    chosen = await _chosen(tx, call, named)
    row = await tx.fetch_one(
        "INSERT INTO namespaces (id, org_id, name, notes, categories, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT (org_id, name) DO NOTHING RETURNING *",
        ids.new(),
        call.actor.org_id,
        check_name(name),
        vocabulary.fit(notes, "notes"),
        chosen,
        clock.now(),
    )
    if row is None:
        raise Conflict(f"There is already a namespace {name[:100]!r}.", remedy="Choose another name.")
    call.record_access("namespace", row["id"])
    return _namespace(row)


async def update(tx: Transaction, call: Call, id: str, notes: str, named: list[str]) -> None:
    """Let a namespace be over other categories."""
    await access.require_write(tx, call)
    await tx.execute(
        "UPDATE namespaces SET notes = $3, categories = $4, updated_at = $5 WHERE id = $1 AND org_id = $2",
        id,
        call.actor.org_id,
        vocabulary.fit(notes, "notes"),
        await _chosen(tx, call, named),
        clock.now(),
    )


async def remove(tx: Transaction, call: Call, id: str) -> None:
    """Remove a namespace; what it was over stays."""
    await access.require_write(tx, call)
    if not await tx.execute("DELETE FROM namespaces WHERE id = $1 AND org_id = $2", id, call.actor.org_id):
        raise NotFound(f"There is no namespace {id[:100]!r}.")


async def find(db: Reader, org_id: str) -> list[Namespace]:
    """All namespaces of an organisation, by name."""
    sql = "SELECT * FROM namespaces WHERE org_id = $1 ORDER BY name"
    return [_namespace(row) for row in await db.fetch(sql, org_id)]


async def get_by_key(db: Reader, org_id: str, key: str) -> Namespace:
    """The namespace with this name or id."""
    row = await db.fetch_one(
        "SELECT * FROM namespaces WHERE org_id = $1 AND (name = $2 OR id = $2) ORDER BY name <> $2 LIMIT 1", org_id, key
    )
    if row is None:
        names = ", ".join((*(each.name for each in (await find(db, org_id))[:30]), *RESERVED))
        raise NotFound(f"There is no namespace {key[:100]!r}.", remedy=f"There are: {names}.")
    return _namespace(row)


async def status(db: Reader, org_id: str, namespace: Namespace, tree: Tree) -> str:
    """initial, vectorised or fail: whether what it is over has its vectors."""
    folders = namespace.folders(tree) or ()
    return _STATUS[await sources.embedding_state(db, entity_index.catalogue_of(org_id), folders)]


def check_name(name: str) -> str:
    """A name fit for a namespace."""
    name = vocabulary.fit(name, "name").strip()
    if not 1 <= len(name) <= 200 or name in RESERVED:
        raise BadRequest("name: has 1 to 200 characters, and is not one that is always there.")
    return name


async def _chosen(tx: Transaction, call: Call, named: list[str]) -> str:
    tree = await categories.tree_in(tx, call.actor.org_id)
    return orjson.dumps(list(dict.fromkeys(tree.pick(key).id for key in named))).decode()


def _namespace(row: Row) -> Namespace:
    return Namespace(
        id=row["id"],
        name=row["name"],
        notes=row["notes"],
        categories=tuple(orjson.loads(row["categories"])),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
