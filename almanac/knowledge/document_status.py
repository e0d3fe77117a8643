"""The documents of knowledge bases and their progress, for the command line."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from almanac.core.call import Call
from almanac.core.database import Database, Reader
from almanac.core.errors import BadRequest
from almanac.db.sql import id_list
from almanac.knowledge import bases, document_index, folders
from almanac.knowledge.documents import SELECT, Document, document_from_row
from almanac.knowledge.ingest.queue import HAS_JOB, INDEX_STATUS, IS_UNFINISHED, STATUSES, UNFINISHED_STATUSES
from almanac.search.index.protocol import Coverage, SearchIndex
from almanac.search.jobs import collection_status


@dataclass(frozen=True, slots=True)
class IngestCounts:
    """The numbers of documents of a base that still wait to be parsed, and that could not be parsed."""

    unfinished: int = 0
    failed: int = 0


async def count_by_base(db: Database, base_ids: Iterable[int]) -> dict[int, IngestCounts]:
    """The counts of each base that has documents."""
    rows = await db.scan(
        f"SELECT base_id, sum(CASE WHEN {IS_UNFINISHED} THEN 1 ELSE 0 END) AS unfinished,"  # noqa: S608
        " sum(CASE WHEN d.index_status = 'failed' THEN 1 ELSE 0 END) AS failed FROM documents d"
        f" WHERE base_id IN ({id_list(base_ids)}) AND removed_at IS NULL GROUP BY base_id"
    )
    return {row["base_id"]: IngestCounts(int(row["unfinished"]), int(row["failed"])) for row in rows}


async def coverages(db: Reader, index: SearchIndex, base_ids: Iterable[int]) -> dict[int, Coverage]:
    """The number of passages, and of passages with vectors, of each base in which passages still lack vectors."""
    bases_by_collection = {document_index.collection_of(base_id): base_id for base_id in base_ids}
    coverages = await collection_status.coverages(db, index, list(bases_by_collection))
    return {bases_by_collection[collection]: coverage for collection, coverage in coverages.items()}


async def base_names(db: Reader) -> dict[str, str]:
    """The names of the bases of all organisations, by collection."""
    return {
        document_index.collection_of(row["id"]): row["name"] for row in await db.fetch("SELECT id, name FROM bases")
    }


async def find(
    call: Call, base_id: int, *, status: str | None = None, after: int = 0, limit: int = 1000
) -> list[Document]:
    """The documents in all folders of a base, ordered by id, beginning after the id `after`."""
    await bases.get(call.db, call, base_id)
    if status is not None and status not in STATUSES:
        raise BadRequest(f"There is no status {status!r}.", remedy=f"The statuses are: {', '.join(STATUSES)}.")
    condition = "" if status is None else f" AND {INDEX_STATUS} = '{status}'"
    sql = f"{SELECT} WHERE d.base_id = $1 AND d.removed_at IS NULL AND d.id > $2{condition} ORDER BY d.id LIMIT $3"
    rows = await call.db.scan(sql, base_id, after, limit)
    return [document_from_row(row) for row in rows]


async def find_with_paths(call: Call, base_id: int, status: str | None = None) -> list[tuple[Document, str]]:
    """All documents of a base, each with its path in the base, ordered by id."""
    paths = await folder_paths(call, base_id)
    found: list[Document] = []
    while page := await find(call, base_id, status=status, after=found[-1].id if found else 0):
        found += page
    return [(document, f"{paths.get(document.folder_id, '')}/{document.name}".lstrip("/")) for document in found]


async def get_by_name(db: Reader, base_id: int, folder_id: int, name: str) -> Document | None:
    """The document with this name in a folder."""
    sql = f"{SELECT} WHERE d.base_id = $1 AND d.folder_id = $2 AND d.name = $3 AND d.removed_at IS NULL"
    row = await db.fetch_one(sql, base_id, folder_id, name)
    return None if row is None else document_from_row(row)


async def folder_paths(call: Call, base_id: int) -> dict[int, str]:
    """The paths of the folders of a base, such as `manuals/pumps`, by id. In a broken tree they begin at the break."""
    await bases.get(call.db, call, base_id)
    rows = await call.db.scan("SELECT id, parent_id, name FROM folders WHERE base_id = $1", base_id)
    parents_and_names = {row["id"]: (row["parent_id"], row["name"]) for row in rows}
    paths = {folders.ROOT: ""}
    for folder_id in parents_and_names:
        names: list[str] = []
        ancestor = folder_id
        while ancestor in parents_and_names and len(names) < folders.MAX_FOLDER_DEPTH:
            ancestor, name = parents_and_names[ancestor]
            names.append(name)
        paths[folder_id] = "/".join(reversed(names))
    return paths


async def base_of(db: Reader, document_id: int) -> int | None:
    """The base of a document, which may be in the trash. There is no permission check."""
    row = await db.fetch_one("SELECT base_id FROM documents WHERE id = $1", document_id)
    return None if row is None else row["base_id"]


async def finished_statuses(db: Database, document_ids: Sequence[int]) -> dict[int, str]:
    """The documents that no job will parse any more, with their status, "removed" or "lost"."""
    rows = await db.scan(
        f"SELECT d.id, d.removed_at, {INDEX_STATUS} AS index_status, {IS_UNFINISHED} AND NOT {HAS_JOB} AS is_lost"  # noqa: S608
        f" FROM documents d WHERE d.id IN ({id_list(document_ids)})"
    )
    rows_by_id = {row["id"]: row for row in rows}
    statuses: dict[int, str] = {}
    for id in document_ids:
        row = rows_by_id.get(id)
        if row is None or row["removed_at"] is not None:
            statuses[id] = "removed"
        elif row["is_lost"]:
            statuses[id] = "lost"
        elif row["index_status"] not in UNFINISHED_STATUSES:
            statuses[id] = row["index_status"]
    return statuses


async def get_many(db: Database, document_ids: Sequence[int]) -> list[Document]:
    """Documents by id, without a permission check."""
    return [document_from_row(row) for row in await db.scan(f"{SELECT} WHERE d.id IN ({id_list(document_ids)})")]
