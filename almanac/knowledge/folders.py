"""Folders of a knowledge base: a tree, without cycles, whose names are unique side by side."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.knowledge import bases, document_index
from almanac.knowledge.ingest import queue
from almanac.search import sources

ROOT = 0
MAX_FOLDER_DEPTH = 100
LONGEST_NAME = 255
_BOTTOM = 2 * MAX_FOLDER_DEPTH  # of a tree that a fault has broken
_SHALLOW = 4  # levels read one by one; of what goes deeper, all folders of the base are read at once
_MOST_AT_ONCE = 20_000  # where they are not more than this
_LIVE = "removed_at IS NULL"

Ask = Callable[..., Awaitable[list[Row]]]  # `fetch` or `scan`

# Characters that no name of a folder or document holds: they would divide paths, or could not be stored or shown.
_FORBIDDEN = re.compile(r"[/\\\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_ABOVE = """
WITH RECURSIVE above (id, parent_id, depth) AS (
    SELECT id, parent_id, 1 FROM folders WHERE id = $1
    UNION SELECT f.id, f.parent_id, above.depth + 1 FROM folders f JOIN above ON f.id = above.parent_id
    WHERE above.depth <= 200
)
"""


class FolderNotFound(NotFound):
    """There is no such folder, or you may not see it."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder."""

    id: int
    base_id: int
    parent_id: int  # 0: at the top
    name: str
    creator_id: int
    created_at: int
    updated_at: int
    removed_at: int | None


async def add(call: Call, tx: Transaction, base_id: int, name: str, parent_id: int = ROOT) -> Folder:
    """Create a folder."""
    await bases.get(tx, call, base_id, "write")
    name = check_name(name)
    await bases.lock_tree(tx, base_id)
    await lock_folder(tx, base_id, parent_id)
    if await _depth(tx, parent_id) >= MAX_FOLDER_DEPTH:
        raise BadRequest(f"Folders can be {MAX_FOLDER_DEPTH} deep and no deeper.")
    now = clock.now()
    row = await tx.fetch_one(
        "INSERT INTO folders (base_id, parent_id, name, creator_id, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (base_id, parent_id, name) WHERE removed_at IS NULL"
        " DO NOTHING RETURNING *",
        base_id,
        parent_id,
        name,
        call.actor.id,
        now,
    )
    if row is None:
        raise _taken(name)
    return folder_from_row(row)


async def ensure(call: Call, tx: Transaction, base_id: int, path: str, parent_id: int = ROOT) -> int:
    """The id of the folder at a path such as `manuals/pumps`, with the folders on the way created where missing."""
    await bases.get(tx, call, base_id, "write")
    for name in [check_name(part) for part in path.split("/") if part.strip()]:
        found = await _named(tx, base_id, parent_id, name)
        if not found:
            await bases.lock_tree(tx, base_id)  # somebody else may be making it at this moment
            found = await _named(tx, base_id, parent_id, name)
        parent_id = found or (await add(call, tx, base_id, name, parent_id)).id
    return parent_id


async def get(db: Reader, call: Call, folder_id: int, action: str = "read", *, removed: bool = False) -> Folder:
    """A folder in a base on which the caller may do this."""
    row = await db.fetch_one("SELECT * FROM folders WHERE id = $1", folder_id)
    folder = None if row is None else folder_from_row(row)
    if folder is None or (folder.removed_at is not None) != removed:
        raise missing(folder_id)
    try:
        await bases.get(db, call, folder.base_id, action)
    except NotFound:
        raise missing(folder_id) from None
    call.record_access("folder", folder_id)
    return folder


async def path_of(db: Reader, folder_id: int) -> str:
    """The names from the top down, as in `manuals/pumps`; empty at the top."""
    rows = await db.fetch(
        f"{_ABOVE} SELECT f.name FROM above JOIN folders f ON f.id = above.id ORDER BY above.depth DESC",  # noqa: S608
        folder_id,
    )
    return "/".join(row["name"] for row in rows[:MAX_FOLDER_DEPTH])


async def rename(call: Call, tx: Transaction, folder_id: int, name: str) -> Folder:
    """Give a folder another name."""
    folder = await _hold(call, tx, folder_id)
    return await _place(tx, folder, folder.parent_id, check_name(name))


async def move(call: Call, tx: Transaction, folder_id: int, parent_id: int) -> Folder:
    """Put a folder, with all that is in it, into another folder of the same base, or at the top."""
    folder = await _hold(call, tx, folder_id)
    await lock_folder(tx, folder.base_id, parent_id)
    below = await descend(tx.fetch, folder.base_id, folder_id)
    if parent_id == folder_id or any(row["id"] == parent_id for level in below for row in level):
        raise Conflict("A folder cannot be moved into itself or into a folder below it.", remedy="Choose another.")
    if await _depth(tx, parent_id) + 1 + len(below) > MAX_FOLDER_DEPTH:
        raise BadRequest(f"Folders can be {MAX_FOLDER_DEPTH} deep and no deeper.")
    return await _place(tx, folder, parent_id, folder.name)


async def remove(call: Call, tx: Transaction, folder_id: int, *, contents: str) -> None:
    """Remove a folder; its `contents` either "move" to where it was or, "delete", go to the trash with it."""
    if contents not in ("move", "delete"):
        raise BadRequest("'contents' says what happens to what is in the folder: 'move' or 'delete'.")
    folder = await _hold(call, tx, folder_id)
    # The folders before what is in them: from then on nobody can put anything into them.
    below = await descend(tx.fetch, folder.base_id, folder_id) if contents == "delete" else []
    gone = [folder_id, *(row["id"] for level in below for row in level)]
    args = (folder_id, folder.base_id, clock.now())
    away = "SET removed_at = $3, updated_at = $3, removed_with = $1 WHERE base_id = $2 AND removed_at IS NULL AND"
    ids = ", ".join(map(str, gone))
    await tx.execute(f"UPDATE folders {away} id IN ({ids})", *args)
    if contents == "move":
        await _empty(tx, folder)
        return
    rows = await tx.fetch(f"UPDATE documents {away} folder_id IN ({ids}) RETURNING id", *args)
    await document_index.set_searchable(tx, (row["id"] for row in rows), is_live=False)


async def restore(call: Call, tx: Transaction, folder_id: int) -> Folder:
    """Take a folder out of the trash, with what is in it, as far as that was removed together with it."""
    folder = await _hold(call, tx, folder_id, removed=True)
    row = await tx.fetch_one("SELECT coalesce(removed_with, 0) AS act FROM folders WHERE id = $1", folder_id)
    assert row is not None
    together = f"removed_with = {row['act']}"
    below = await descend(tx.fetch, folder.base_id, folder_id, together)
    ids = [folder_id, *(row["id"] for level in below for row in level)]
    documents = await tx.fetch(
        "SELECT id, is_enabled, index_status FROM documents"  # noqa: S608 - numbers of our own
        f" WHERE base_id = $1 AND folder_id IN ({', '.join(map(str, ids))}) AND {together}",
        folder.base_id,
    )
    parent_id = await _home(tx, folder, 1 + len(below))
    name = await unique_name(tx, "folders", folder.base_id, parent_id, folder.name)
    again = "SET removed_at = NULL, removed_with = NULL, updated_at = $2"
    now = clock.now()
    await tx.execute(
        f"UPDATE folders {again}, parent_id = $3, name = $4 WHERE id = $1", folder_id, now, parent_id, name
    )
    await tx.execute_many(f"UPDATE folders {again} WHERE id = $1", [(id, now) for id in ids])
    await tx.execute_many(f"UPDATE documents {again} WHERE id = $1", [(row["id"], now) for row in documents])
    await document_index.set_searchable(tx, (row["id"] for row in documents if row["is_enabled"]), is_live=True)
    for row in documents:
        if row["index_status"] in queue.UNFINISHED_STATUSES:  # what was being read when it was removed has been dropped
            await queue.requeue(tx, row["id"])
    return await get(tx, call, folder_id, "write")


async def descend(
    ask: Ask, base_id: int, folder_id: int, which: str = _LIVE, most: int | None = None
) -> list[list[Row]]:
    """The folders below one, level by level, until they are more than `most`; what leads back to it is left out.

    A recursive query would be planned from statistics that a large ingest leaves behind, and take quadratic time.
    """
    levels: list[list[Row]] = []
    parents, count = [folder_id], 0
    children: dict[int, list[Row]] | None = None
    while parents and len(levels) < _BOTTOM and (most is None or count <= most):
        if len(levels) == _SHALLOW:
            children = await _children(ask, base_id, folder_id, which)
        if children is not None:
            rows = [row for id in parents for row in children.get(id, ())]
        else:
            rows = await ask(
                f"SELECT * FROM folders WHERE base_id = $1 AND parent_id IN ({', '.join(map(str, parents))})"  # noqa: S608
                f" AND id <> $2 AND {which}",
                base_id,
                folder_id,
            )
        parents = [row["id"] for row in rows]
        count += len(rows)
        levels += [rows] if rows else []
    return levels


async def _children(ask: Ask, base_id: int, folder_id: int, which: str) -> dict[int, list[Row]] | None:
    """All folders of a base by their parent; None where they are too many to be read for the sake of some."""
    rows = await ask(
        f"SELECT * FROM folders WHERE base_id = $1 AND id <> $2 AND {which} LIMIT {_MOST_AT_ONCE + 1}",  # noqa: S608
        base_id,
        folder_id,
    )
    if len(rows) > _MOST_AT_ONCE:
        return None
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["parent_id"], []).append(row)
    return found


def check_name(name: str) -> str:
    """A name fit for a folder or a document."""
    name = name.strip()
    if not 1 <= len(name) <= LONGEST_NAME or _FORBIDDEN.search(name) or name in (".", ".."):
        raise BadRequest(
            "This name cannot be used.",
            remedy=f"Use 1 to {LONGEST_NAME} characters, without slashes and control characters.",
        )
    return name


async def lock_folder(tx: Transaction, base_id: int, folder_id: int) -> None:
    """Make sure that a folder is there and stays there until the transaction ends."""
    if not await _lock(tx, base_id, folder_id):
        raise missing(folder_id, base_id)


async def lock_folder_or_root(tx: Transaction, base_id: int, folder_id: int) -> int:
    """As `enter`; the top where the folder is gone."""
    return folder_id if await _lock(tx, base_id, folder_id) else ROOT


async def unique_name(tx: Transaction, table: str, base_id: int, parent_id: int, name: str) -> str:
    """The name, with a number if it is taken: `plan.pdf`, `plan (2).pdf` …"""
    column = "folder_id" if table == "documents" else "parent_id"
    stem, dot, extension = name.rpartition(".") if table == "documents" else (name, "", "")
    stem, tail = (stem, dot + extension) if stem and len(extension) < 10 else (name, "")
    taken = await tx.fetch(
        f"SELECT name FROM {table} WHERE base_id = $1 AND {column} = $2 AND removed_at IS NULL"  # noqa: S608
        " AND (name = $3 OR name LIKE $4 ESCAPE '\\')",
        base_id,
        parent_id,
        name,
        f"{bases.escaped(stem[:240])} (%",
    )
    names = {row["name"] for row in taken}
    free = (f"{stem[:240]} ({number}){tail}" for number in range(2, len(names) + 3))
    return name if name not in names else next(each for each in free if each not in names)


async def _empty(tx: Transaction, folder: Folder) -> None:
    now = clock.now()
    for table, column in (("folders", "parent_id"), ("documents", "folder_id")):
        here = f"{table}.base_id = $1 AND {table}.{column} = $2 AND {table}.removed_at IS NULL"
        await tx.execute(
            f"UPDATE {table} SET {column} = $3, updated_at = $4 WHERE {here} AND NOT EXISTS ("  # noqa: S608
            f"SELECT 1 FROM {table} o WHERE o.base_id = $1 AND o.{column} = $3 AND o.name = {table}.name"
            " AND o.removed_at IS NULL)",
            folder.base_id,
            folder.id,
            folder.parent_id,
            now,
        )
        # What is left has a name that is taken there.
        for row in await tx.fetch(f"SELECT id, name FROM {table} WHERE {here}", folder.base_id, folder.id):  # noqa: S608
            await tx.execute(
                f"UPDATE {table} SET {column} = $2, name = $3, updated_at = $4 WHERE id = $1",  # noqa: S608
                row["id"],
                folder.parent_id,
                await unique_name(tx, table, folder.base_id, folder.parent_id, row["name"]),
                now,
            )
            if table == "documents":
                await document_index.update(tx, [row["id"]])
    await sources.move_folder(tx, document_index.collection_of(folder.base_id), folder.id, folder.parent_id)


async def _hold(call: Call, tx: Transaction, folder_id: int, *, removed: bool = False) -> Folder:
    """A folder of the caller's to change, as it is once nobody else changes the tree any more."""
    folder = await get(tx, call, folder_id, "write", removed=removed)
    await bases.lock_tree(tx, folder.base_id)
    return await get(tx, call, folder_id, "write", removed=removed)


async def _home(tx: Transaction, folder: Folder, height: int) -> int:
    """Where a folder comes back to: where it was, if that is still there and there is room for it."""
    fits = await _depth(tx, folder.parent_id) + height <= MAX_FOLDER_DEPTH
    return folder.parent_id if fits and await is_there(tx, folder.base_id, folder.parent_id) else ROOT


async def _lock(tx: Transaction, base_id: int, folder_id: int) -> bool:
    return folder_id == ROOT or bool(
        await tx.execute(
            "UPDATE folders SET updated_at = $3 WHERE id = $1 AND base_id = $2 AND removed_at IS NULL",
            folder_id,
            base_id,
            clock.now(),
        )
    )


async def _named(db: Reader, base_id: int, parent_id: int, name: str) -> int:
    row = await db.fetch_one(
        "SELECT id FROM folders WHERE base_id = $1 AND parent_id = $2 AND name = $3 AND removed_at IS NULL",
        base_id,
        parent_id,
        name,
    )
    return row["id"] if row else 0


async def _place(tx: Transaction, folder: Folder, parent_id: int, name: str) -> Folder:
    if await _named(tx, folder.base_id, parent_id, name) not in (0, folder.id):
        raise _taken(name)
    row = await tx.fetch_one(
        "UPDATE folders SET parent_id = $2, name = $3, updated_at = $4 WHERE id = $1 RETURNING *",
        folder.id,
        parent_id,
        name,
        clock.now(),
    )
    assert row is not None
    return folder_from_row(row)


async def is_there(db: Reader, base_id: int, folder_id: int) -> bool:
    """Whether a folder is where it was, and not in the trash."""
    return folder_id == ROOT or bool(
        await db.fetch_one(
            "SELECT 1 FROM folders WHERE id = $1 AND base_id = $2 AND removed_at IS NULL", folder_id, base_id
        )
    )


async def _depth(db: Reader, folder_id: int) -> int:
    row = await db.fetch_one(f"{_ABOVE} SELECT coalesce(max(depth), 0) AS n FROM above", folder_id)  # noqa: S608
    assert row is not None
    return row["n"]


def missing(folder_id: int, base_id: int | None = None) -> FolderNotFound:
    """What is said of a folder that is not there for the caller."""
    where = f" in knowledge base {base_id}" if base_id is not None else ""
    return FolderNotFound(f"There is no folder {folder_id}{where}, or you may not see it.")


def _taken(name: str) -> Conflict:
    return Conflict(f"There is already a folder named {name!r} here.", remedy="Use it, or choose another name.")


def folder_from_row(row: Row) -> Folder:
    """A folder from its row."""
    return Folder(**{name: row[name] for name in Folder.__dataclass_fields__})
