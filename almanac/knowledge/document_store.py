"""The document store of an organisation: the knowledge base that takes documents of callers who choose none.

It belongs to the organisation. Every member may add documents to it and remove them, unless an operator lowers the
role of members. It is made with its first document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import Forbidden
from almanac.core.text import escape_like
from almanac.db.sql import Parameters, id_list
from almanac.identity.access import MIN_ROLE_BY_ACTION
from almanac.identity.roles import Role
from almanac.knowledge import bases, documents, visible_bases
from almanac.knowledge.documents import Document
from almanac.knowledge.ingest.queue import IS_UNFINISHED

NAME = "Documents"
DESCRIPTION = "Documents that were added without naming a knowledge base."


@dataclass(frozen=True, slots=True)
class DocumentStore:
    """The id of a store, which is the id of a datasource, and its knowledge base."""

    id: int
    base_id: int


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The newest documents, and the number of all."""

    items: list[Document]
    total: int


async def get_or_none(db: Reader, org_id: str) -> DocumentStore | None:
    """The store of an organisation, if there is one."""
    row = await db.fetch_one(
        "SELECT s.id, s.base_id FROM document_stores s JOIN bases b ON b.id = s.base_id"
        " WHERE s.org_id = $1 AND b.removed_at IS NULL",
        org_id,
    )
    return None if row is None else DocumentStore(row["id"], row["base_id"])


async def ensure(call: Call, tx: Transaction) -> DocumentStore:
    """The store of the caller's organisation. It is made if there is none, or if its base is in the trash."""
    org_id = call.actor.org_id
    if (store := await get_or_none(tx, org_id)) is not None:
        return store
    if call.actor.bases is not None:
        raise Forbidden("Your token is limited to some knowledge bases, and the document store is not among them.")
    # The row stays locked until the commit, so that two callers cannot make two bases.
    row = await tx.fetch_one(
        "INSERT INTO document_stores (org_id) VALUES ($1) ON CONFLICT (org_id) DO UPDATE SET org_id = excluded.org_id"
        " RETURNING id",
        org_id,
    )
    assert row is not None
    if (store := await get_or_none(tx, org_id)) is not None:
        return store
    base = await bases.add(
        await _as_administrator(call, tx),
        tx,
        NAME,
        description=DESCRIPTION,
        level="organization",
        member_role=Role.Developer,
    )
    await tx.execute("UPDATE document_stores SET base_id = $2 WHERE id = $1", row["id"], base.id)
    return DocumentStore(row["id"], base.id)


async def find(call: Call, *, base_id: int | None = None, name: str = "", limit: int) -> FoundDocuments:
    """The newest documents that the caller may read, in all bases or in one, with a part of a name in any case."""
    parameters = Parameters()
    visible = visible_bases.condition(call.actor, parameters, min_role=MIN_ROLE_BY_ACTION["read"])
    readable = f"SELECT b.id FROM bases b WHERE {visible} AND b.removed_at IS NULL"  # noqa: S608 - constants
    where = f"d.removed_at IS NULL AND d.base_id IN ({readable})"
    if base_id is not None:
        where += f" AND d.base_id = {parameters.add(base_id)}"
    if name:
        patterns = (parameters.add(f"%{escape_like(form)}%") for form in sorted(_forms_of(name)))
        matches = " OR ".join(f"lower(d.name) LIKE {pattern} ESCAPE '\\'" for pattern in patterns)
        where += f" AND ({matches})"
    count = await call.db.scan(f"SELECT count(*) AS n FROM documents d WHERE {where}", *parameters.values)  # noqa: S608
    page = f"{documents.SELECT} WHERE {where} ORDER BY d.created_at DESC, d.id DESC LIMIT {parameters.add(limit)}"
    rows = await call.db.scan(page, *parameters.values)
    return FoundDocuments([documents.document_from_row(row) for row in rows], count[0]["n"])


async def count_unread(call: Call, document_ids: Sequence[int] = ()) -> int:
    """The number of documents that the caller may read and that have not been parsed yet: of these, or of all."""
    parameters = Parameters()
    visible = visible_bases.condition(call.actor, parameters, min_role=MIN_ROLE_BY_ACTION["read"])
    named = f" AND d.id IN ({id_list(document_ids)})" if document_ids else ""
    row = await call.db.fetch_one(
        f"SELECT count(*) AS n FROM documents d WHERE {IS_UNFINISHED} AND d.removed_at IS NULL{named}"  # noqa: S608
        f" AND d.base_id IN (SELECT b.id FROM bases b WHERE {visible} AND b.removed_at IS NULL)",
        *parameters.values,
    )
    assert row is not None
    return row["n"]


def _forms_of(name: str) -> set[str]:
    """A name as `lower` of either database may have left it: SQLite's changes only ASCII letters."""
    return {name.lower(), _ascii_lower(name), _ascii_lower(name.upper())}


def _ascii_lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


async def _as_administrator(call: Call, tx: Transaction) -> Call:
    """The call in the name of the organisation's first administrator, who owns the store. Its first caller need not be
    one, and gets no more rights than other members."""
    sql = (
        "SELECT id, name FROM principals WHERE org_id = $1 AND is_admin = 1 AND removed_at IS NULL ORDER BY id LIMIT 1"
    )
    row = await tx.fetch_one(sql, call.actor.org_id)
    owner = {} if row is None else {"id": row["id"], "name": row["name"]}
    return Call(replace(call.actor, **owner, is_admin=True), call.db, call.request_id)
