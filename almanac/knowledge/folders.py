"""Folders of a knowledge base: a tree without cycles. The folders in one folder have different names."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.text import UNPRINTABLE, escape_like
from almanac.db.sql import from_row, id_list
from almanac.identity import access
from almanac.knowledge import bases, document_index
from almanac.knowledge.ingest import queue
from almanac.search import sources

ROOT = 0
MAX_FOLDER_DEPTH = 100
MAX_NAME_CHARS = 255
_MAX_LEVELS = 2 * MAX_FOLDER_DEPTH  # read from a tree that a fault has made deeper than allowed
_SINGLE_LEVELS = 4  # levels that are read one by one; for deeper ones, all folders of the base are read at once
MAX_FOLDERS_AT_ONCE = 20_000  # in a base with more folders, every level is read by itself
_MAX_STEM_CHARS = 240  # of a name that gets a number
_NOT_REMOVED = "removed_at IS NULL"
_PARENT_COLUMN = {"folders": "parent_id", "documents": "folder_id"}

Fetch = Callable[..., Awaitable[list[Row]]]  # `Reader.fetch` or `Database.scan`

# Characters that a name may not contain: separators of paths, and characters that cannot be stored or displayed.
_FORBIDDEN = re.compile(rf"[/\\]|{UNPRINTABLE.pattern}")

# A folder and the folders above it.
_ABOVE = f"""
WITH RECURSIVE above (id, parent_id, depth) AS (
    SELECT id, parent_id, 1 FROM folders WHERE id = $1
    UNION SELECT f.id, f.parent_id, above.depth + 1 FROM folders f JOIN above ON f.id = above.parent_id
    WHERE above.depth <= {_MAX_LEVELS}
)
"""  # noqa: S608 - a number


class FolderNotFound(NotFound):
    """There is no such folder, or you may not see it."""


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder."""

    id: int
    base_id: int
    parent_id: int  # ROOT for a folder at the top
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
        raise BadRequest(f"Folders can be at most {MAX_FOLDER_DEPTH} deep.", remedy="Choose a folder further up.")
    now = clock.now()
    sql = (
        "INSERT INTO folders (base_id, parent_id, name, creator_id, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (base_id, parent_id, name) WHERE removed_at IS NULL"
        " DO NOTHING RETURNING *"
    )
    row = await tx.fetch_one(sql, base_id, parent_id, name, call.actor.id, now)
    if row is None:
        raise _taken(name)
    return from_row(Folder, row)


async def ensure(call: Call, tx: Transaction, base_id: int, path: str, parent_id: int = ROOT) -> int:
    """The id of the folder at a path such as `manuals/pumps`. Missing folders of the path are created."""
    await bases.get(tx, call, base_id, "write")
    for name in [check_name(part) for part in path.split("/") if part.strip()]:
        folder_id = await id_by_name(tx, "folders", base_id, parent_id, name)
        if not folder_id:
            await bases.lock_tree(tx, base_id)  # another transaction may be creating the folder
            folder_id = await id_by_name(tx, "folders", base_id, parent_id, name)
        parent_id = folder_id or (await add(call, tx, base_id, name, parent_id)).id
    return parent_id


async def get(db: Reader, call: Call, folder_id: int, action: str = "read", *, removed: bool = False) -> Folder:
    """A folder in a base on which the caller may perform the action. With `removed`, a folder in the trash."""
    sql = "SELECT f.* FROM folders f JOIN bases b ON b.id = f.base_id WHERE f.id = $1 AND b.org_id = $2"
    row = await db.fetch_one(sql, folder_id, call.actor.org_id)
    is_found = row is not None and (row["removed_at"] is not None) == removed
    try:
        # The query also runs if there is no folder. Response times then do not reveal whether a folder exists.
        await bases.get(db, call, row["base_id"] if row is not None and is_found else 0, action)
    except NotFound:
        raise missing(folder_id) from None
    assert row is not None
    call.record_access("folder", folder_id)
    return from_row(Folder, row)


async def rename(call: Call, tx: Transaction, folder_id: int, name: str) -> Folder:
    """Give a folder another name."""
    folder = await _get_locked(call, tx, folder_id)
    return await _update(tx, folder, folder.parent_id, check_name(name))


async def move(call: Call, tx: Transaction, folder_id: int, parent_id: int) -> Folder:
    """Move a folder with its contents into another folder of the same base, or to the top."""
    folder = await _get_locked(call, tx, folder_id)
    await lock_folder(tx, folder.base_id, parent_id)
    levels = await descend(tx.fetch, folder.base_id, folder_id)
    if parent_id == folder_id or any(row["id"] == parent_id for level in levels for row in level):
        raise Conflict("A folder cannot be moved into itself or into a folder below it.", remedy="Choose another.")
    if await _depth(tx, parent_id) + 1 + len(levels) > MAX_FOLDER_DEPTH:
        raise BadRequest(f"Folders can be at most {MAX_FOLDER_DEPTH} deep.", remedy="Choose a folder further up.")
    return await _update(tx, folder, parent_id, folder.name)


async def remove(call: Call, tx: Transaction, folder_id: int, *, contents: str) -> None:
    """Put a folder into the trash. Its `contents` either "move" to its parent or go to the trash with it ("delete")."""
    if contents not in ("move", "delete"):
        raise BadRequest("'contents' is either 'move' or 'delete': it decides what happens to the folder's contents.")
    folder = await _get_locked(call, tx, folder_id)
    # Folders are removed before their documents: afterwards, no other transaction can put a document into them.
    levels = await descend(tx.fetch, folder.base_id, folder_id) if contents == "delete" else []
    ids = id_list([folder_id, *(row["id"] for level in levels for row in level)])
    args = (folder_id, folder.base_id, clock.now())
    removal = "SET removed_at = $3, updated_at = $3, removed_with = $1 WHERE base_id = $2 AND removed_at IS NULL AND"
    await tx.execute(f"UPDATE folders {removal} id IN ({ids})", *args)
    if contents == "move":
        await _move_contents_up(tx, folder)
        return
    rows = await tx.fetch(f"UPDATE documents {removal} folder_id IN ({ids}) RETURNING id", *args)
    await document_index.set_searchable(tx, (row["id"] for row in rows), is_live=False)


async def restore(call: Call, tx: Transaction, folder_id: int) -> Folder:
    """Take a folder out of the trash, with the contents that were removed together with it."""
    folder = await _get_locked(call, tx, folder_id, removed=True)
    row = await tx.fetch_one("SELECT coalesce(removed_with, 0) AS removal FROM folders WHERE id = $1", folder_id)
    assert row is not None
    removed_together = f"removed_with = {row['removal']}"
    levels = await descend(tx.fetch, folder.base_id, folder_id, removed_together)
    ids = [folder_id, *(row["id"] for level in levels for row in level)]
    documents = await tx.fetch(
        "SELECT id, is_enabled, index_status FROM documents"  # noqa: S608 - ids are integers
        f" WHERE base_id = $1 AND folder_id IN ({id_list(ids)}) AND {removed_together}",
        folder.base_id,
    )
    parent_id = await _parent_after_restore(tx, folder, 1 + len(levels))
    name = await unique_name(tx, "folders", folder.base_id, parent_id, folder.name)
    restored = "SET removed_at = NULL, removed_with = NULL, updated_at = $2"
    now = clock.now()
    await tx.execute(
        f"UPDATE folders {restored}, parent_id = $3, name = $4 WHERE id = $1", folder_id, now, parent_id, name
    )
    await tx.execute_many(f"UPDATE folders {restored} WHERE id = $1", [(id, now) for id in ids])
    await tx.execute_many(f"UPDATE documents {restored} WHERE id = $1", [(row["id"], now) for row in documents])
    await document_index.set_searchable(tx, (row["id"] for row in documents if row["is_enabled"]), is_live=True)
    for row in documents:
        if row["index_status"] in queue.UNFINISHED_STATUSES:  # the job of a removed document drops its result
            await queue.requeue(tx, row["id"])
    return await get(tx, call, folder_id, "write")


async def descend(
    fetch: Fetch, base_id: int, folder_id: int, condition: str = _NOT_REMOVED, max_folders: int | None = None
) -> list[list[Row]]:
    """The folders below a folder, level by level. A cycle back to the folder is cut.

    Reading stops after the level with which there are more than `max_folders`. A recursive query is no alternative:
    after a large ingest the database plans it from outdated statistics, and it takes quadratic time.
    """
    levels: list[list[Row]] = []
    parents, count = [folder_id], 0
    children: dict[int, list[Row]] | None = None
    while parents and len(levels) < _MAX_LEVELS and (max_folders is None or count <= max_folders):
        if len(levels) == _SINGLE_LEVELS:
            children = await _children_by_parent(fetch, base_id, folder_id, condition)
        if children is not None:
            rows = [row for id in parents for row in children.get(id, ())]
        else:
            rows = await fetch(
                f"SELECT * FROM folders WHERE base_id = $1 AND parent_id IN ({id_list(parents)})"  # noqa: S608
                f" AND id <> $2 AND {condition}",
                base_id,
                folder_id,
            )
        parents = [row["id"] for row in rows]
        count += len(rows)
        levels += [rows] if rows else []
    return levels


async def _children_by_parent(
    fetch: Fetch, base_id: int, folder_id: int, condition: str
) -> dict[int, list[Row]] | None:
    """All folders of a base by their parent. None if there are too many to read them for a part of the tree."""
    rows = await fetch(
        f"SELECT * FROM folders WHERE base_id = $1 AND id <> $2 AND {condition}"  # noqa: S608 - constants
        f" LIMIT {MAX_FOLDERS_AT_ONCE + 1}",
        base_id,
        folder_id,
    )
    if len(rows) > MAX_FOLDERS_AT_ONCE:
        return None
    children: dict[int, list[Row]] = {}
    for row in rows:
        children.setdefault(row["parent_id"], []).append(row)
    return children


def check_name(name: str) -> str:
    """The name without outer white space, if a folder or a document can have it."""
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME_CHARS or _FORBIDDEN.search(name) or name in (".", ".."):
        raise BadRequest(
            "This name cannot be used.",
            remedy=f"Use 1 to {MAX_NAME_CHARS} characters, without slashes and control characters.",
        )
    return name


async def lock_folder(tx: Transaction, base_id: int, folder_id: int) -> None:
    """Check that a folder exists, and keep others from removing it until the transaction ends."""
    if await lock_folder_or_root(tx, base_id, folder_id) != folder_id:
        raise missing(folder_id, base_id)


async def lock_folder_or_root(tx: Transaction, base_id: int, folder_id: int) -> int:
    """Lock a folder and return its id. If the folder is gone, return ROOT."""
    sql = "UPDATE folders SET updated_at = $3 WHERE id = $1 AND base_id = $2 AND removed_at IS NULL"
    return folder_id if folder_id != ROOT and await tx.execute(sql, folder_id, base_id, clock.now()) else ROOT


async def id_by_name(db: Reader, table: str, base_id: int, parent_id: int, name: str) -> int:
    """The id of the folder or document with this name in a folder, or 0."""
    sql = (
        f"SELECT id FROM {table} WHERE base_id = $1 AND {_PARENT_COLUMN[table]} = $2 AND name = $3"  # noqa: S608
        " AND removed_at IS NULL"
    )
    row = await db.fetch_one(sql, base_id, parent_id, name)
    return row["id"] if row else 0


async def unique_name(tx: Transaction, table: str, base_id: int, parent_id: int, name: str) -> str:
    """The name, with a number if it is taken: `plan.pdf`, `plan (2).pdf` …"""
    stem, dot, extension = name.rpartition(".") if table == "documents" else (name, "", "")
    stem, suffix = (stem, dot + extension) if stem and len(extension) < 10 else (name, "")
    stem = stem[:_MAX_STEM_CHARS]
    sql = (
        f"SELECT name FROM {table} WHERE base_id = $1 AND {_PARENT_COLUMN[table]} = $2 AND removed_at IS NULL"  # noqa: S608
        " AND (name = $3 OR name LIKE $4 ESCAPE '\\')"
    )
    rows = await tx.fetch(sql, base_id, parent_id, name, f"{escape_like(stem)} (%")
    taken = {row["name"] for row in rows}
    numbered = (f"{stem} ({number}){suffix}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(candidate for candidate in numbered if candidate not in taken)


async def _move_contents_up(tx: Transaction, folder: Folder) -> None:
    """Move the contents of a folder to its parent."""
    now = clock.now()
    for table, column in _PARENT_COLUMN.items():
        is_inside = f"{table}.base_id = $1 AND {table}.{column} = $2 AND {table}.removed_at IS NULL"
        sql = (
            f"UPDATE {table} SET {column} = $3, updated_at = $4 WHERE {is_inside} AND NOT EXISTS ("  # noqa: S608
            f"SELECT 1 FROM {table} o WHERE o.base_id = $1 AND o.{column} = $3 AND o.name = {table}.name"
            " AND o.removed_at IS NULL)"
        )
        await tx.execute(sql, folder.base_id, folder.id, folder.parent_id, now)
        # The names of the remaining rows are taken in the parent.
        for row in await tx.fetch(f"SELECT id, name FROM {table} WHERE {is_inside}", folder.base_id, folder.id):  # noqa: S608
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


async def _get_locked(call: Call, tx: Transaction, folder_id: int, *, removed: bool = False) -> Folder:
    """A folder that the caller may change, read again after the tree of its base has been locked."""
    folder = await get(tx, call, folder_id, "write", removed=removed)
    await bases.lock_tree(tx, folder.base_id)
    return await get(tx, call, folder_id, "write", removed=removed)


async def _parent_after_restore(tx: Transaction, folder: Folder, height: int) -> int:
    """The former parent of a folder. ROOT if the parent is gone, or if the folder would become too deep there."""
    fits = await _depth(tx, folder.parent_id) + height <= MAX_FOLDER_DEPTH
    return folder.parent_id if fits and await exists(tx, folder.base_id, folder.parent_id) else ROOT


async def _update(tx: Transaction, folder: Folder, parent_id: int, name: str) -> Folder:
    if await id_by_name(tx, "folders", folder.base_id, parent_id, name) not in (0, folder.id):
        raise _taken(name)
    sql = "UPDATE folders SET parent_id = $2, name = $3, updated_at = $4 WHERE id = $1 RETURNING *"
    row = await tx.fetch_one(sql, folder.id, parent_id, name, clock.now())
    assert row is not None
    return from_row(Folder, row)


async def exists(db: Reader, base_id: int, folder_id: int) -> bool:
    """Whether a folder is in a base, and not in the trash."""
    sql = "SELECT 1 FROM folders WHERE id = $1 AND base_id = $2 AND removed_at IS NULL"
    return folder_id == ROOT or await db.fetch_one(sql, folder_id, base_id) is not None


async def _depth(db: Reader, folder_id: int) -> int:
    row = await db.fetch_one(f"{_ABOVE} SELECT coalesce(max(depth), 0) AS n FROM above", folder_id)  # noqa: S608
    assert row is not None
    return row["n"]


def missing(folder_id: int, base_id: int | None = None) -> FolderNotFound:
    """The error for a folder that does not exist or that the caller may not see."""
    location = f" in knowledge base {base_id}" if base_id is not None else ""
    message = f"There is no folder {folder_id}{location}, or you may not see it."
    return FolderNotFound(message, remedy=access.UNKNOWN_ID_REMEDY)


def _taken(name: str) -> Conflict:
    return Conflict(f"There is already a folder named {name!r} here.", remedy="Use it, or choose another name.")
