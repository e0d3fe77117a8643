"""The inventory: what is in knowledge bases and how far it has been read, for whoever looks after them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from almanac.core.call import Call
from almanac.core.database import Database, Reader
from almanac.core.errors import BadRequest
from almanac.knowledge import bases, document_index, folders
from almanac.knowledge.documents import SELECT, STATUSES, Document, document_from_row
from almanac.knowledge.ingest.queue import UNFINISHED_STATUSES
from almanac.search.index.protocol import Coverage, SearchIndex
from almanac.search.jobs import collection_status

_UNFINISHED = ", ".join(f"'{status}'" for status in UNFINISHED_STATUSES)

# A job's end and what it changed are one transaction, so that one query can tell that nobody will read a document.
_STANDINGS = f"""
SELECT d.id, d.removed_at, d.index_status, d.index_status IN ({_UNFINISHED}) AND NOT EXISTS (
    SELECT 1 FROM jobs j WHERE j.key = 'ingest:' || d.id || ':' || d.generation AND j.state IN ('queued', 'running')
) AS is_lost FROM documents d WHERE d.id IN ({{ids}})
"""  # noqa: S608 - constants, and numbers of our own


@dataclass(frozen=True, slots=True)
class IngestCounts:
    """How many documents of a base still wait to be read, and how many could not be."""

    unfinished: int = 0
    failed: int = 0


async def tally(db: Database, base_ids: Iterable[int]) -> dict[int, IngestCounts]:
    """The tallies of bases."""
    ids = ", ".join(str(int(id)) for id in base_ids) or "NULL"
    rows = await db.scan(
        f"SELECT base_id, sum(CASE WHEN index_status IN ({_UNFINISHED}) THEN 1 ELSE 0 END) AS unfinished,"  # noqa: S608
        " sum(CASE WHEN index_status = 'failed' THEN 1 ELSE 0 END) AS failed FROM documents"
        f" WHERE base_id IN ({ids}) AND removed_at IS NULL GROUP BY base_id"
    )
    return {row["base_id"]: IngestCounts(int(row["unfinished"]), int(row["failed"])) for row in rows}


async def coverages(db: Reader, index: SearchIndex, base_ids: Iterable[int]) -> dict[int, Coverage]:
    """Those of some bases in which passages still lack vectors: how many there are, and how many have theirs."""
    names = {document_index.collection_of(base_id): base_id for base_id in base_ids}
    found = await collection_status.coverages(db, index, list(names))
    return {names[name]: covered for name, covered in found.items()}


async def names(db: Reader) -> dict[str, str]:
    """What the bases of all organisations are called, by what their passages are searched by."""
    return {
        document_index.collection_of(row["id"]): row["name"] for row in await db.fetch("SELECT id, name FROM bases")
    }


async def find(
    call: Call, base_id: int, *, status: str | None = None, after: int = 0, limit: int = 1000
) -> list[Document]:
    """The documents of a base in all its folders, by id, from the one after `after` on."""
    await bases.get(call.db, call, base_id)
    if status is not None and status not in STATUSES:
        raise BadRequest(f"There is no status {status!r}.", remedy=f"The statuses are: {', '.join(STATUSES)}.")
    which = "" if status is None else f" AND d.index_status = '{status}'"
    rows = await call.db.scan(
        f"{SELECT} WHERE d.base_id = $1 AND d.removed_at IS NULL AND d.id > $2{which} ORDER BY d.id LIMIT $3",
        base_id,
        after,
        limit,
    )
    return [document_from_row(row) for row in rows]


async def named(db: Reader, base_id: int, folder_id: int, name: str) -> Document | None:
    """The document of that name in a folder."""
    row = await db.fetch_one(
        f"{SELECT} WHERE d.base_id = $1 AND d.folder_id = $2 AND d.name = $3 AND d.removed_at IS NULL",
        base_id,
        folder_id,
        name,
    )
    return None if row is None else document_from_row(row)


async def paths(call: Call, base_id: int) -> dict[int, str]:
    """Where the folders of a base are, as in `manuals/pumps`; of a broken tree, as far up as it can be followed."""
    await bases.get(call.db, call, base_id)
    rows = await call.db.scan("SELECT id, parent_id, name FROM folders WHERE base_id = $1", base_id)
    known = {row["id"]: (row["parent_id"], row["name"]) for row in rows}
    found = {folders.ROOT: ""}
    for folder_id in known:
        names: list[str] = []
        at = folder_id
        while at in known and len(names) < folders.MAX_FOLDER_DEPTH:
            at, name = known[at]
            names.append(name)
        found[folder_id] = "/".join(reversed(names))
    return found


async def base_of(db: Reader, document_id: int) -> int | None:
    """The base that a document is in or was removed from, whoever asks: for finding out who may."""
    row = await db.fetch_one("SELECT base_id FROM documents WHERE id = $1", document_id)
    return None if row is None else row["base_id"]


async def finished_statuses(db: Database, document_ids: Sequence[int]) -> dict[int, str]:
    """Those of some documents that nobody is going to read any more, and why: a status, "removed" or "lost"."""
    ids = ", ".join(str(int(id)) for id in document_ids) or "NULL"
    rows = {row["id"]: row for row in await db.scan(_STANDINGS.format(ids=ids))}
    found: dict[int, str] = {}
    for id in document_ids:
        row = rows.get(id)
        if row is None or row["removed_at"] is not None:
            found[id] = "removed"
        elif row["is_lost"]:
            found[id] = "lost"
        elif row["index_status"] not in UNFINISHED_STATUSES:
            found[id] = row["index_status"]
    return found


async def details(db: Database, document_ids: Sequence[int]) -> list[Document]:
    """Documents by id, whoever asks."""
    ids = ", ".join(str(int(id)) for id in document_ids) or "NULL"
    return [document_from_row(row) for row in await db.scan(f"{SELECT} WHERE d.id IN ({ids})")]
