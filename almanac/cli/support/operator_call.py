"""The operator: whoever runs commands beside the data itself, and owns everything of an organisation there."""

from collections.abc import Iterable

from almanac.core import scopes
from almanac.core.call import Actor, Call
from almanac.core.database import Database
from almanac.core.errors import NotFound
from almanac.identity import orgs, principals
from almanac.knowledge import bases, document_status
from almanac.knowledge.bases import KnowledgeBase

_LARGEST = 2**63 - 1  # number that a database can look for
_NOBODY = 0  # where nothing is made, it need not be said whose it is


async def call_for_org(db: Database, name: str | None, user: str | None = None) -> Call:
    """A call over all of an organisation; what it makes belongs to the user."""
    org = await orgs.get_by_name(db, name)
    if user is None:
        return _call(db, org.id, org.name, _NOBODY, "operator")
    owner = await principals.get_by_name(db, org.id, user)
    return _call(db, org.id, org.name, owner.id, owner.name)


async def call_for_base(db: Database, base_id: int) -> Call:
    """A call in the name of a knowledge base's owner."""
    base = await _known(db, base_id)
    if base is None:
        raise _missing(base_id)
    names = {org.id: org.name for org in await orgs.find(db)}
    return _call(db, base.org_id, names[base.org_id], base.owner_id, base.owner_name)


async def call_for_document(db: Database, document_id: int) -> Call:
    """A call in the name of the owner of the knowledge base that a document is in."""
    base_id = await document_status.base_of(db, document_id) if document_id <= _LARGEST else None
    if base_id is None:
        raise NotFound(f"There is no document {document_id}.", remedy="See 'almanac docs KB_ID'.")
    return await call_for_base(db, base_id)


async def check_bases(db: Database, org_id: str, base_ids: Iterable[int]) -> None:
    """Refuse knowledge bases that an organisation does not have."""
    for base_id in base_ids:
        base = await _known(db, base_id)
        if base is None or base.org_id != org_id or base.removed_at is not None:
            raise _missing(base_id)


async def _known(db: Database, base_id: int) -> KnowledgeBase | None:
    return await bases.get_or_none(db, base_id) if base_id <= _LARGEST else None


def _missing(base_id: int) -> NotFound:
    return NotFound(f"There is no knowledge base {base_id}.", remedy="See 'almanac kb list'.")


def _call(db: Database, org_id: str, org_name: str, id: int, name: str) -> Call:
    actor = Actor(
        id=id,
        name=name,
        kind="user",
        org_id=org_id,
        org_name=org_name,
        is_admin=True,
        token_id=0,
        token_kind="operator",  # noqa: S106 - there is no token
        scopes=frozenset(scopes.SCOPES),
        is_operator=True,
    )
    return Call(actor, db, "command-line")
