"""Knowledge bases: folders and documents that belong to a user, a group or the organisation, shared by roles."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction, Value
from almanac.core.errors import BadRequest, Forbidden
from almanac.core.pages import Page
from almanac.core.text import CONTROL_CHARACTERS, UNPRINTABLE, escape_like, one_line
from almanac.db.sql import Parameters, from_row, id_list
from almanac.identity import access, grants, groups
from almanac.identity.access import MIN_ROLE_BY_ACTION, ProtectedObject
from almanac.identity.grants import Grant
from almanac.identity.roles import Role
from almanac.knowledge import document_index, visible_bases
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.knowledge.visible_bases import LEVELS, SCOPES

MAX_NAME_CHARS = 100
MAX_DESCRIPTION_CHARS = 500

_SELECT = """
SELECT b.*, p.name AS owner_name, g.name AS group_name, g.display_name AS group_display
FROM bases b JOIN principals p ON p.id = b.owner_id LEFT JOIN groups g ON g.id = b.group_id
"""


@dataclass(frozen=True, slots=True)
class KnowledgeBase:
    """One knowledge base."""

    id: int
    org_id: str
    level: str
    owner_id: int
    owner_name: str
    group_id: int | None
    group_name: str | None
    group_display: str | None
    name: str
    description: str
    splitter: PassageSplitter
    created_at: int
    updated_at: int
    removed_at: int | None
    member_role: Role = Role.Reporter  # of every member, on a base of the organisation
    role: Role | None = None  # the caller's role
    documents: int | None = None  # their number; None if they were not counted

    @property
    def protected_object(self) -> ProtectedObject:
        """The base in the form that the access rules use."""
        return ProtectedObject("base", self.id, self.org_id, self.level, self.owner_id, self.group_id, self.member_role)

    @property
    def collection(self) -> str:
        """The name of the search collection with its passages."""
        return document_index.collection_of(self.id)


async def add(
    call: Call,
    tx: Transaction,
    name: str,
    *,
    description: str = "",
    level: str = "personal",
    group: str | None = None,
    splitter: PassageSplitter | None = None,
    member_role: Role = Role.Reporter,
) -> KnowledgeBase:
    """Create a base for the caller, for a group (as its Developer) or for the organisation (as an administrator)."""
    name, description = _check_name(name), _check_description(description)
    group_id = await _check_level(call, tx, level, group)
    now = clock.now()
    row = await tx.fetch_one(
        "INSERT INTO bases (org_id, level, owner_id, group_id, name, description, folded, splitter, created_at,"
        " updated_at, member_role) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10) RETURNING id",
        call.actor.org_id,
        level,
        call.actor.id,
        group_id,
        name,
        description,
        _folded(name, description),
        orjson.dumps((splitter or PassageSplitter()).as_options()).decode(),
        now,
        member_role.name,
    )
    assert row is not None
    return await get(tx, call, row["id"])


async def get(db: Reader, call: Call, base_id: int, action: str = "read", *, removed: bool = False) -> KnowledgeBase:
    """A base on which the caller may perform the action. With `removed`, a base in the trash."""
    # The row of another organisation is not even read.
    row = await db.fetch_one(f"{_SELECT} WHERE b.id = $1 AND b.org_id = $2", base_id, call.actor.org_id)
    base = base_from_row(row) if row is not None and (row["removed_at"] is not None) == removed else None
    role = await access.require(
        db, call, action, base.protected_object if base else None, name=f"knowledge base {base_id}"
    )
    assert base is not None
    return replace(base, role=role)


async def get_or_none(db: Reader, base_id: int) -> KnowledgeBase | None:
    """A base, without a permission check: for jobs, which have no caller."""
    row = await db.fetch_one(f"{_SELECT} WHERE b.id = $1", base_id)
    return None if row is None else base_from_row(row)


async def ids_by_name(db: Reader, name: str, org_id: str | None = None, *, removed: bool = False) -> list[int]:
    """The ids of all bases with a name, without a permission check. None: in all organisations."""
    rows = await db.fetch(
        f"SELECT id FROM bases WHERE name = $1 AND removed_at IS {'NOT ' if removed else ''}NULL"  # noqa: S608
        " AND ($2 = '' OR org_id = $2) ORDER BY id",
        name,
        org_id or "",
    )
    return [row["id"] for row in rows]


async def get_many(call: Call, base_ids: Sequence[int]) -> list[KnowledgeBase]:
    """The bases with these ids that the caller may read, in the order of the ids."""
    rows = await call.db.fetch(
        f"{_SELECT} WHERE b.id IN ({id_list(base_ids)}) AND b.org_id = $1 AND b.removed_at IS NULL", call.actor.org_id
    )
    by_id = {row["id"]: base_from_row(row) for row in rows}
    bases = [by_id[id] for id in base_ids if id in by_id]
    roles = await access.roles_on(call.db, call.actor, [base.protected_object for base in bases])
    return [
        replace(base, role=role)
        for base, role in zip(bases, roles, strict=True)
        if role is not None and role >= MIN_ROLE_BY_ACTION["read"]
    ]


async def find(
    call: Call,
    *,
    scope: str = "all",
    group: str | None = None,
    query: str | None = None,
    owner: str | None = None,
    owners: Sequence[int] = (),
    removed: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> Page[KnowledgeBase]:
    """A page of the bases that the caller may see, newest first, each with its number of documents."""
    if scope not in SCOPES:
        raise BadRequest(f"There is no scope {scope!r}.", remedy=f"The scopes are: {', '.join(SCOPES)}.")
    if CONTROL_CHARACTERS.search(f"{group}{query}{owner}"):
        raise BadRequest("The group, the query or the owner contains control characters.", remedy="Remove them.")
    parameters = Parameters()
    conditions = [
        visible_bases.condition(call.actor, parameters, scope),
        f"b.removed_at IS {'NOT ' if removed else ''}NULL",
    ]
    if group is not None:
        conditions.append(f"g.name = {parameters.add(group)}")
    if query:
        conditions.append(f"b.folded LIKE {parameters.add(f'%{escape_like(query.casefold())}%')} ESCAPE '\\'")
    if owner is not None:
        # Not looked up first: an error would tell callers which names exist.
        names = f"org_id = {parameters.add(call.actor.org_id)} AND name = {parameters.add(owner)}"
        conditions.append(f"b.owner_id IN (SELECT id FROM principals WHERE {names} AND removed_at IS NULL)")  # noqa: S608
    if owners:
        conditions.append(f"b.owner_id IN ({id_list(owners)})")
    where, args = " AND ".join(conditions), tuple(parameters.values)
    page = f"ORDER BY b.created_at DESC, b.id DESC LIMIT {parameters.add(limit)} OFFSET {parameters.add(offset)}"
    select = _SELECT.replace("SELECT", "SELECT count(*) OVER () AS total,", 1)
    rows = await call.db.scan(f"{select} WHERE {where} {page}", *parameters.values)
    bases = await _with_roles_and_counts(call, [base_from_row(row) for row in rows])
    return Page(bases, rows[0]["total"] if rows else await _count(call, where, args), offset)


async def newest(call: Call, below: int, limit: int) -> list[KnowledgeBase]:
    """The newest bases with an id below this one that the caller may read, without their roles."""
    parameters = Parameters()
    visible = visible_bases.condition(call.actor, parameters, min_role=MIN_ROLE_BY_ACTION["read"])
    rows = await call.db.scan(
        f"{_SELECT} WHERE {visible} AND b.removed_at IS NULL AND b.id < {parameters.add(below)}"
        f" ORDER BY b.id DESC LIMIT {parameters.add(limit)}",
        *parameters.values,
    )
    return [base_from_row(row) for row in rows]


async def update(
    call: Call,
    tx: Transaction,
    base_id: int,
    *,
    name: str | None = None,
    description: str | None = None,
    splitter: PassageSplitter | None = None,
) -> KnowledgeBase:
    """Change the name, the description or the splitter of a base. Only documents parsed later use the new splitter."""
    base = await get(tx, call, base_id, "manage")
    name = base.name if name is None else _check_name(name)
    description = base.description if description is None else _check_description(description)
    await tx.execute(
        "UPDATE bases SET name = $2, description = $3, folded = $4, splitter = $5, updated_at = $6 WHERE id = $1",
        base_id,
        name,
        description,
        _folded(name, description),
        orjson.dumps((splitter or base.splitter).as_options()).decode(),
        clock.now(),
    )
    return await get(tx, call, base_id)


async def share(
    call: Call, tx: Transaction, base_id: int, role: Role | None, *, user: str | None = None, group: str | None = None
) -> KnowledgeBase:
    """Grant a role on a base to a user, an agent or a group. None revokes the role."""
    base = await get(tx, call, base_id, "manage")
    await grants.share(tx, base.protected_object, base.role, role, user=user, group=group)
    return base


async def shares(db: Reader, call: Call, base_id: int) -> list[Grant]:
    """The roles that were granted on a base."""
    base = await get(db, call, base_id, "manage")
    return await grants.find(db, base.protected_object)


async def remove(call: Call, tx: Transaction, base_id: int) -> KnowledgeBase:
    """Put a base into the trash. It and its contents can then no longer be found."""
    base = await get(tx, call, base_id, "manage")
    now = clock.now()
    await tx.execute("UPDATE bases SET removed_at = $2, updated_at = $2 WHERE id = $1", base_id, now)
    return replace(base, removed_at=now)


async def restore(call: Call, tx: Transaction, base_id: int) -> KnowledgeBase:
    """Take a base out of the trash, with its contents."""
    await get(tx, call, base_id, "manage", removed=True)
    await tx.execute("UPDATE bases SET removed_at = NULL, updated_at = $2 WHERE id = $1", base_id, clock.now())
    return await get(tx, call, base_id)


async def lock_tree(tx: Transaction, base_id: int) -> None:
    """Lock the folder tree of a base until the transaction ends: two moves at once could make a cycle."""
    await tx.execute("UPDATE bases SET updated_at = updated_at WHERE id = $1", base_id)


async def _count(call: Call, where: str, args: Sequence[Value]) -> int:
    """The number of bases, for a page after the last of them, which has no row with the total."""
    sql = f"SELECT count(*) AS n FROM bases b LEFT JOIN groups g ON g.id = b.group_id WHERE {where}"  # noqa: S608
    rows = await call.db.scan(sql, *args)
    return rows[0]["n"]


async def _with_roles_and_counts(call: Call, bases: list[KnowledgeBase]) -> list[KnowledgeBase]:
    roles, rows = await asyncio.gather(
        access.roles_on(call.db, call.actor, [base.protected_object for base in bases]),
        call.db.scan(
            "SELECT base_id, count(*) AS n FROM documents"  # noqa: S608 - ids are integers
            f" WHERE base_id IN ({id_list(base.id for base in bases)}) AND removed_at IS NULL GROUP BY base_id"
        ),
    )
    counts = {row["base_id"]: row["n"] for row in rows}
    return [replace(base, role=role, documents=counts.get(base.id, 0)) for base, role in zip(bases, roles, strict=True)]


async def _check_level(call: Call, tx: Transaction, level: str, group: str | None) -> int | None:
    if level not in LEVELS:
        raise BadRequest(f"There is no level {level!r}.", remedy=f"The levels are: {', '.join(LEVELS)}.")
    if (level == "group") != (group is not None):
        raise BadRequest(
            "The level 'group' needs a group; the other levels do not take one.",
            remedy="Give level 'group' and the name of a group, or neither.",
        )
    if call.actor.bases is not None:
        raise Forbidden(
            "Your token is limited to some knowledge bases, so it cannot create another.",
            remedy="Use a token without this limit; an administrator can make one.",
        )
    if level == "organization" and not (call.actor.is_operator or call.actor.is_admin):
        raise Forbidden(
            "Only an administrator can create a knowledge base of the organisation.",
            remedy="Create it with the level 'personal' or 'group', or ask an administrator.",
        )
    if group is None:
        return None
    owner = await groups.get_by_name(tx, call.actor.org_id, group)
    protected_group = ProtectedObject("group", owner.id, owner.org_id, "group", group_id=owner.id)
    await access.require(tx, call, "write", protected_group, name=f"group {group!r}")
    return owner.id


def _check_name(name: str) -> str:
    name = one_line(name)
    if not 1 <= len(name) <= MAX_NAME_CHARS or UNPRINTABLE.search(name):
        raise BadRequest(
            f"The name of a knowledge base has 1 to {MAX_NAME_CHARS} characters, without control characters."
        )
    return name


def _check_description(text: str) -> str:
    if len(text) > MAX_DESCRIPTION_CHARS or CONTROL_CHARACTERS.search(text):
        raise BadRequest(f"A description has at most {MAX_DESCRIPTION_CHARS} characters, without control characters.")
    return text.strip()


def _folded(name: str, description: str) -> str:
    """The text that `find` compares with its query, without regard to case."""
    return f"{name}\n{description}".casefold()


def base_from_row(row: Row) -> KnowledgeBase:
    """A base from a row of `_SELECT`."""
    return from_row(
        KnowledgeBase,
        row,
        splitter=_splitter(row["splitter"]),
        member_role=Role[row["member_role"]],
        role=None,
        documents=None,
    )


@lru_cache(maxsize=256)
def _splitter(options: str) -> PassageSplitter:
    """A splitter from its column, cached because most bases have the same options."""
    return PassageSplitter.from_options(orjson.loads(options))
