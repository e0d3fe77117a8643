"""Vocabulary terms: category aliases, policies, relation types and attachment types, each identified by a key."""

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
from almanac.core.text import CONTROL_CHARACTERS, UNPRINTABLE
from almanac.db.sql import from_row

KINDS = {
    "alias": "category alias",
    "policy": "policy",
    "relation": "relationship type",
    "attachment": "attachment type",
}
# The field of the key in the contract and in catalogue files.
KEY_FIELDS = {"alias": "aliasKey", "policy": "policyKey", "relation": "typeKey", "attachment": "typeKey"}
MAX_KEY_CHARS = 100
MAX_NAME_CHARS = 300

Key = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_KEY_CHARS, pattern=r"^[\w.:-]+$", description="Unique; letters, digits and _ . : -"
    ),
]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, description="The name that people see.")]
Text = Annotated[str, Field(max_length=10_000, description="A few sentences.")]


class PolicyDetails(Arguments):
    """How content under a policy is to be processed. The values are stored and returned, nothing more."""

    inputType: Annotated[
        Literal["PDF", "DOCX", "HTML", "CSV", "JSON", "IMAGE", "EMAIL", "TXT"] | None,
        Field(description="The kind of content."),
    ] = None
    processingPromptTemplate: Annotated[Text, Field(description="The prompt that processes the content.")] = ""
    outputFormat: Annotated[
        Literal["MARKDOWN", "JSON"] | None, Field(description="The form of the processed content.")
    ] = None


@dataclass(frozen=True, slots=True)
class Term:
    """One vocabulary term."""

    id: str
    kind: str
    key: str
    name: str
    description: str
    details: dict[str, Any]
    created_at: int
    updated_at: int


def check_text(text: str, field: str) -> str:
    """Return the text, or raise BadRequest if it contains control characters. `field` names it in the error."""
    if CONTROL_CHARACTERS.search(text):
        raise BadRequest(f"{field}: contains characters that cannot be stored.", remedy="Remove control characters.")
    return text


def check_name(name: str) -> str:
    """Return the name without outer white space, or raise BadRequest if it cannot be printed."""
    name = name.strip()
    if UNPRINTABLE.search(name):
        raise BadRequest("name: contains characters that cannot be printed.", remedy="Remove control characters.")
    return name


async def add(
    tx: Transaction, call: Call, kind: str, key: str, name: str, description: str, details: dict[str, Any] | None = None
) -> Term:
    """Add a term. Raises Conflict if the key is in use."""
    await access.require_write(tx, call)
    now = clock.now()
    row = await tx.fetch_one(
        "INSERT INTO vocabulary (id, org_id, kind, key, name, description, details, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8) ON CONFLICT (org_id, kind, key) DO NOTHING RETURNING *",
        ids.new(),
        call.actor.org_id,
        kind,
        key,
        check_name(name),
        check_text(description, "description"),
        orjson.dumps(details or {}).decode(),
        now,
    )
    if row is None:
        raise Conflict(f"There is already a {KINDS[kind]} with the key {key!r}.", remedy="Choose another key.")
    return _term_from_row(row)


async def update(tx: Transaction, call: Call, term: Term, name: str, description: str, details: dict[str, Any]) -> None:
    """Replace the name, description and details of a term."""
    await access.require_write(tx, call)
    await tx.execute(
        "UPDATE vocabulary SET name = $3, description = $4, details = $5, updated_at = $6 WHERE id = $1"
        " AND org_id = $2",
        term.id,
        call.actor.org_id,
        check_name(name),
        check_text(description, "description"),
        orjson.dumps(details).decode(),
        clock.now(),
    )


async def find(db: Reader, org_id: str, kind: str) -> list[Term]:
    """All terms of a kind, ordered by key."""
    sql = "SELECT * FROM vocabulary WHERE org_id = $1 AND kind = $2 ORDER BY key"
    return [_term_from_row(row) for row in await db.fetch(sql, org_id, kind)]


async def get_or_none(db: Reader, org_id: str, kind: str, key: str) -> Term | None:
    """The term with this key or id, or None."""
    where = "org_id = $1 AND kind = $2 AND (key = $3 OR id = $3)"
    sql = f"SELECT * FROM vocabulary WHERE {where} ORDER BY key <> $3 LIMIT 1"  # noqa: S608 - constants
    row = await db.fetch_one(sql, org_id, kind, key)
    return None if row is None else _term_from_row(row)


async def get_by_key(db: Reader, org_id: str, kind: str, key: str) -> Term:
    """The term with this key or id. Raises NotFound, with the first 20 keys in the remedy."""
    term = await get_or_none(db, org_id, kind, key)
    if term is None:
        keys = ", ".join(term.key for term in (await find(db, org_id, kind))[:20]) or "none yet"
        raise NotFound(f"There is no {KINDS[kind]} {key[:100]!r}.", remedy=f"There are: {keys}.")
    return term


def _term_from_row(row: Row) -> Term:
    return from_row(Term, row, details=orjson.loads(row["details"]))
