"""Namespaces: named sets of categories that can be searched. The wire format calls them indexes."""

from dataclasses import dataclass

import orjson

from almanac.catalogue import access, categories, entity_index, ids, vocabulary
from almanac.catalogue.categories import Tree
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.db.sql import from_row
from almanac.search import sources

DOCUMENTS = "general_helper_documents"  # all documents that the actor may read
IMAGES = "images"  # image documents and image attachments
RESERVED = (DOCUMENTS, IMAGES)

_WIRE_STATUS = {"made": "vectorised", "waiting": "initial", "failed": "fail"}


@dataclass(frozen=True, slots=True)
class Namespace:
    """A named set of categories, including the categories below them."""

    id: str
    name: str
    notes: str
    categories: tuple[str, ...]  # ids; empty means all categories
    created_at: int
    updated_at: int

    def folders(self, tree: Tree) -> tuple[int, ...] | None:
        """The numbers of the searched categories, or None if they are all categories."""
        if not self.categories:
            return None
        numbers = tree.descend(tree.by_id[id].number for id in self.categories if id in tree.by_id)
        return None if len(numbers) == len(tree.by_number) else tuple(numbers)


async def add(tx: Transaction, call: Call, name: str, notes: str, keys: list[str]) -> Namespace:
    """Add a namespace over categories, each named by id, alias key, path or name. No keys mean all categories."""
    await access.require_write(tx, call)
    category_ids = await _category_ids(tx, call, keys)
    row = await tx.fetch_one(
        "INSERT INTO namespaces (id, org_id, name, notes, categories, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT (org_id, name) DO NOTHING RETURNING *",
        ids.new(),
        call.actor.org_id,
        check_name(name),
        vocabulary.check_text(notes, "notes"),
        category_ids,
        clock.now(),
    )
    if row is None:
        raise Conflict(f"There is already a namespace {name[:100]!r}.", remedy="Choose another name.")
    call.record_access("namespace", row["id"])
    return _namespace_from_row(row)


async def update(tx: Transaction, call: Call, id: str, notes: str, keys: list[str]) -> None:
    """Replace the notes and categories of a namespace."""
    await access.require_write(tx, call)
    await tx.execute(
        "UPDATE namespaces SET notes = $3, categories = $4, updated_at = $5 WHERE id = $1 AND org_id = $2",
        id,
        call.actor.org_id,
        vocabulary.check_text(notes, "notes"),
        await _category_ids(tx, call, keys),
        clock.now(),
    )


async def remove(tx: Transaction, call: Call, id: str) -> None:
    """Remove a namespace. Its categories and entities stay."""
    await access.require_write(tx, call)
    if not await tx.execute("DELETE FROM namespaces WHERE id = $1 AND org_id = $2", id, call.actor.org_id):
        raise NotFound(f"There is no namespace {id[:100]!r}.", remedy="Use an id from the list of indexes.")


async def find(db: Reader, org_id: str) -> list[Namespace]:
    """All namespaces of an organisation, ordered by name."""
    sql = "SELECT * FROM namespaces WHERE org_id = $1 ORDER BY name"
    return [_namespace_from_row(row) for row in await db.fetch(sql, org_id)]


async def get_by_key(db: Reader, org_id: str, key: str) -> Namespace:
    """The namespace with this name or id."""
    row = await db.fetch_one(
        "SELECT * FROM namespaces WHERE org_id = $1 AND (name = $2 OR id = $2) ORDER BY name <> $2 LIMIT 1", org_id, key
    )
    if row is None:
        names = ", ".join((*(namespace.name for namespace in (await find(db, org_id))[:30]), *RESERVED))
        raise NotFound(f"There is no namespace {key[:100]!r}.", remedy=f"There are: {names}.")
    return _namespace_from_row(row)


async def status(db: Reader, org_id: str, namespace: Namespace, tree: Tree) -> str:
    """The state of the namespace's embeddings on the wire: initial, vectorised or fail."""
    folders = namespace.folders(tree) or ()
    return _WIRE_STATUS[await sources.embedding_state(db, entity_index.catalogue_of(org_id), folders)]


def check_name(name: str) -> str:
    """The name of a namespace, trimmed. Raises BadRequest if it is invalid or reserved."""
    name = vocabulary.check_name(name)
    if not 1 <= len(name) <= 200 or name in RESERVED:
        raise BadRequest(f"name: must have 1 to 200 characters and must not be {' or '.join(map(repr, RESERVED))}.")
    return name


async def _category_ids(tx: Transaction, call: Call, keys: list[str]) -> str:
    tree = await categories.tree_in(tx, call.actor.org_id)
    return orjson.dumps(list(dict.fromkeys(tree.pick(key).id for key in keys))).decode()


def _namespace_from_row(row: Row) -> Namespace:
    return from_row(Namespace, row, categories=tuple(orjson.loads(row["categories"])))
