"""Calls of the operator: the person at the command line, with the rights of an owner in every organisation."""

from collections.abc import Iterable

from almanac.core import scopes
from almanac.core.arguments import MAX_ID
from almanac.core.call import Actor, Call
from almanac.core.database import Database
from almanac.core.errors import Conflict, NotFound
from almanac.identity import orgs, principals
from almanac.identity.orgs import Org
from almanac.identity.principals import Principal
from almanac.knowledge import bases, document_status
from almanac.knowledge.bases import KnowledgeBase

_NO_PRINCIPAL = 0  # the operator's id in calls that create nothing
_REQUEST_ID = "command-line"
_TOKEN_KIND = "operator"  # noqa: S105 - calls at the command line have no token
_ALL_SCOPES = frozenset(scopes.SCOPES)


async def call_for_org(db: Database, name: str | None, user: str | None = None) -> Call:
    """Return a call on a whole organisation. The user owns the objects that the call creates."""
    org = await orgs.get_by_name(db, name)
    if user is None:
        return _operator_call(db, org, _NO_PRINCIPAL, "operator")
    owner = await principals.get_by_name(db, org.id, user)
    return _operator_call(db, org, owner.id, owner.name)


async def base_id(db: Database, key: str, org_id: str | None = None, *, removed: bool = False) -> int:
    """Return the id of a knowledge base from its id or name. Digits are always an id, also if they are a name."""
    if key.isascii() and key.isdigit():
        return int(key)
    ids = await bases.ids_by_name(db, key, org_id, removed=removed)
    if not ids:
        raise _missing_base(repr(key[: bases.MAX_NAME_CHARS]))
    if len(ids) > 1:
        raise Conflict(
            f"{len(ids)} knowledge bases are named {key!r}.", remedy=f"Use an id: {', '.join(map(str, ids))}."
        )
    return ids[0]


async def call_for_base(db: Database, base_id: int) -> Call:
    """Return a call in the name of a knowledge base's owner."""
    base = await _base_or_none(db, base_id)
    if base is None:
        raise _missing_base(base_id)
    organisations = {org.id: org for org in await orgs.find(db)}
    return _operator_call(db, organisations[base.org_id], base.owner_id, base.owner_name)


async def call_for_document(db: Database, document_id: int) -> Call:
    """Return a call in the name of the owner of a document's knowledge base."""
    base_id = await document_status.base_of(db, document_id) if document_id <= MAX_ID else None
    if base_id is None:
        raise NotFound(f"There is no document {document_id}.", remedy="See 'almanac docs KB'.")
    return await call_for_base(db, base_id)


def call_as_principal(db: Database, org: Org, principal: Principal) -> Call:
    """Return a call of a user or agent that their roles limit, as with a token that has every scope."""
    actor = Actor(
        id=principal.id,
        name=principal.name,
        kind=principal.kind,
        is_admin=principal.is_admin,
        org_id=org.id,
        org_name=org.name,
        token_id=0,
        token_kind=_TOKEN_KIND,
        scopes=_ALL_SCOPES,
    )
    return Call(actor, db, _REQUEST_ID)


async def check_bases(db: Database, org_id: str, base_ids: Iterable[int]) -> None:
    """Refuse ids of knowledge bases that an organisation does not have."""
    for base_id in base_ids:
        base = await _base_or_none(db, base_id)
        if base is None or base.org_id != org_id or base.removed_at is not None:
            raise _missing_base(base_id)


async def _base_or_none(db: Database, base_id: int) -> KnowledgeBase | None:
    return await bases.get_or_none(db, base_id) if base_id <= MAX_ID else None


def _missing_base(key: int | str) -> NotFound:
    return NotFound(f"There is no knowledge base {key}.", remedy="See 'almanac kb list'.")


def _operator_call(db: Database, org: Org, id: int, name: str) -> Call:
    actor = Actor(
        id=id,
        name=name,
        kind="user",
        org_id=org.id,
        org_name=org.name,
        is_admin=True,
        is_operator=True,
        token_id=0,
        token_kind=_TOKEN_KIND,
        scopes=_ALL_SCOPES,
    )
    return Call(actor, db, _REQUEST_ID)
