"""The vocabulary: aliases of categories, policies, kinds of relations and kinds of attachments, each known by a key."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from almanac.catalogue import access, ids
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound

KINDS = {
    "alias": "category alias",
    "policy": "policy",
    "relation": "relationship type",
    "attachment": "attachment type",
}
LONGEST_KEY = 100
LONGEST_NAME = 300

Key = Annotated[str, Field(min_length=1, max_length=LONGEST_KEY, pattern=r"^[\w.:-]+$")]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Text = Annotated[str, Field(max_length=10_000)]

# Characters that could not be stored, or would not be seen.
_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class PolicyDetails(Arguments):
    """How what comes in under a policy is worked up."""

    inputType: Literal["PDF", "DOCX", "HTML", "CSV", "JSON", "IMAGE", "EMAIL", "TXT"] | None = None
    processingPromptTemplate: Text = ""
    outputFormat: Literal["MARKDOWN", "JSON"] | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One word of the vocabulary."""

    id: str
    kind: str
    key: str
    name: str
    description: str
    details: dict[str, Any]
    created_at: int
    updated_at: int


def fit(text: str, what: str) -> str:
    """A text without what could not be stored or seen, or an error that names it."""
    if _UNFIT.search(text):
        raise BadRequest(f"{what}: contains characters that cannot be stored.", remedy="Leave control characters out.")
    return text


async def add(
    tx: Transaction, call: Call, kind: str, key: str, name: str, description: str, details: dict[str, Any] | None = None
) -> Term:
    """Add a word; refused if its key is taken."""
    await access.require_write(tx, call)
    now = clock.now()
    made = await tx.fetch_one(
        "INSERT INTO vocabulary (id, org_id, kind, key, name, description, details, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) ON CONFLICT (org_id, kind, key) DO NOTHING RETURNING *",
        ids.new(),
        call.actor.org_id,
        kind,
        key,
        fit(name, "name"),
        fit(description, "description"),
        orjson.dumps(details or {}).decode(),
        now,
    )
    if made is None:
        raise Conflict(f"There is already a {KINDS[kind]} with the key {key!r}.", remedy="Choose another key.")
    return _term(made)


async def update(tx: Transaction, call: Call, term: Term, name: str, description: str, details: dict[str, Any]) -> None:
    """Describe a word otherwise."""
    await access.require_write(tx, call)
    await tx.execute(
        "UPDATE vocabulary SET name = $3, description = $4, details = $5, updated_at = $6 WHERE id = $1"
        " AND org_id = $2",
        term.id,
        call.actor.org_id,
        fit(name, "name"),
        fit(description, "description"),
        orjson.dumps(details).decode(),
        clock.now(),
    )


async def find(db: Reader, org_id: str, kind: str) -> list[Term]:
    """All words of a kind, by their keys."""
    sql = "SELECT * FROM vocabulary WHERE org_id = $1 AND kind = $2 ORDER BY key"
    return [_term(row) for row in await db.fetch(sql, org_id, kind)]


async def get_or_none(db: Reader, org_id: str, kind: str, key: str) -> Term | None:
    """The word with this key or id, if there is one."""
    row = await db.fetch_one(
        "SELECT * FROM vocabulary WHERE org_id = $1 AND kind = $2 AND (key = $3 OR id = $3) ORDER BY key <> $3 LIMIT 1",
        org_id,
        kind,
        key,
    )
    return None if row is None else _term(row)


async def get_by_key(db: Reader, org_id: str, kind: str, key: str) -> Term:
    """The word with this key or id."""
    term = await get_or_none(db, org_id, kind, key)
    if term is None:
        keys = ", ".join(each.key for each in (await find(db, org_id, kind))[:20]) or "none yet"
        raise NotFound(f"There is no {KINDS[kind]} {key[:100]!r}.", remedy=f"There are: {keys}.")
    return term


def _term(row: Row) -> Term:
    return Term(
        id=row["id"],
        kind=row["kind"],
        key=row["key"],
        name=row["name"],
        description=row["description"],
        details=orjson.loads(row["details"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
