"""Knowledge bases: what a user, a group or the whole organisation knows, shared by roles."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, Forbidden, NotFound
from almanac.core.pages import Page
from almanac.identity import access, groups, principals
from almanac.identity.access import MIN_ROLE_BY_ACTION, ProtectedObject
from almanac.identity.roles import Role
from almanac.knowledge import document_index
from almanac.knowledge.ingest.splitter import PassageSplitter

LEVELS = ("personal", "group", "organization")
SCOPES = ("all", *LEVELS)
LONGEST_NAME = 100
LONGEST_DESCRIPTION = 500

# Characters that could not be stored, or would not be seen.
UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

_SELECT = """
SELECT b.*, p.name AS owner_name, g.name AS group_name, g.display_name AS group_display
FROM bases b JOIN principals p ON p.id = b.owner_id LEFT JOIN groups g ON g.id = b.group_id
"""
_SHARED = """b.id IN (SELECT CAST(r.thing_id AS BIGINT) FROM grants r
    WHERE r.thing_kind = 'base' AND r.principal_id = $2
    UNION ALL SELECT CAST(r.thing_id AS BIGINT) FROM grants r JOIN members m ON m.group_id = r.group_id
    WHERE r.thing_kind = 'base' AND m.principal_id = $2)"""
# What each scope shows; $1 is the organisation, $2 the caller, $3 whether they see what belongs to any group.
_VISIBLE = {
    "personal": f"((b.level = 'personal' AND b.owner_id = $2) OR {_SHARED})",
    "group": """(b.level = 'group' AND ($3 = 1 OR EXISTS
        (SELECT 1 FROM members m WHERE m.group_id = b.group_id AND m.principal_id = $2)))""",
    "organization": "b.level = 'organization'",
}
_VISIBLE["all"] = f"({' OR '.join(_VISIBLE.values())})"


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
    role: Role | None = None  # the caller's
    documents: int | None = None  # how many, where that was asked for

    @property
    def thing(self) -> ProtectedObject:
        """What the access rules see of it."""
        return ProtectedObject("base", self.id, self.org_id, self.level, self.owner_id, self.group_id)

    @property
    def collection(self) -> str:
        """What its passages are searched by."""
        return document_index.collection_of(self.id)


_COLUMNS = [name for name in KnowledgeBase.__dataclass_fields__ if name not in ("role", "documents", "splitter")]


@dataclass(frozen=True, slots=True)
class Share:
    """A role on a base that was given to someone."""

    kind: str  # user, agent or group
    name: str
    role: Role


async def add(
    call: Call,
    tx: Transaction,
    name: str,
    *,
    description: str = "",
    level: str = "personal",
    group: str | None = None,
    splitter: PassageSplitter | None = None,
) -> KnowledgeBase:
    """Create a base: one's own, a group's (as Developer of it) or the organisation's (as administrator)."""
    name, description = _check_name(name), _check_description(description)
    group_id = await _check_level(call, tx, level, group)
    now = clock.now()
    row = await tx.fetch_one(
        "INSERT INTO bases (org_id, level, owner_id, group_id, name, description, folded, splitter, created_at,"
        " updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9) RETURNING id",
        call.actor.org_id,
        level,
        call.actor.id,
        group_id,
        name,
        description,
        _folded(name, description),
        orjson.dumps((splitter or PassageSplitter()).as_options()).decode(),
        now,
    )
    assert row is not None
    return await get(tx, call, row["id"])


async def get(db: Reader, call: Call, base_id: int, action: str = "read", *, removed: bool = False) -> KnowledgeBase:
    """A base on which the caller may do this; `removed` for one that is in the trash."""
    # Of another organisation's not even the row is read.
    row = await db.fetch_one(f"{_SELECT} WHERE b.id = $1 AND b.org_id = $2", base_id, call.actor.org_id)
    base = base_from_row(row) if row is not None and (row["removed_at"] is not None) == removed else None
    held = await access.require(db, call, action, base.thing if base else None, name=f"knowledge base {base_id}")
    assert base is not None
    return replace(base, role=held)


async def get_or_none(db: Reader, base_id: int) -> KnowledgeBase | None:
    """A base, whoever asks: for work done on nobody's behalf."""
    row = await db.fetch_one(f"{_SELECT} WHERE b.id = $1", base_id)
    return None if row is None else base_from_row(row)


async def get_many(call: Call, base_ids: Sequence[int]) -> list[KnowledgeBase]:
    """Those of the bases named that the caller may read, in the order they were named."""
    ids = ", ".join(str(int(id)) for id in base_ids) or "NULL"
    rows = await call.db.fetch(
        f"{_SELECT} WHERE b.id IN ({ids}) AND b.org_id = $1 AND b.removed_at IS NULL", call.actor.org_id
    )
    found = {row["id"]: base_from_row(row) for row in rows}
    named = [found[id] for id in base_ids if id in found]
    held = await access.roles_on(call.db, call.actor, [base.thing for base in named])
    pairs = zip(named, held, strict=True)
    return [replace(base, role=role) for base, role in pairs if role is not None and role >= MIN_ROLE_BY_ACTION["read"]]


async def find(
    call: Call,
    *,
    scope: str = "all",
    group: str | None = None,
    query: str | None = None,
    owners: Sequence[int] = (),
    removed: bool = False,
    limit: int = 50,
    offset: int = 0,
) -> Page[KnowledgeBase]:
    """The bases the caller may see, newest first, with the number of documents in each of this page."""
    if scope not in SCOPES:
        raise BadRequest(f"There is no scope {scope!r}.", remedy=f"The scopes are: {', '.join(SCOPES)}.")
    if UNFIT.search(f"{group}{query}"):
        raise BadRequest("What is looked for has characters that no name has.", remedy="Leave control characters out.")
    actor = call.actor
    sees_all = int(actor.is_admin or actor.is_operator)
    conditions = ["b.org_id = $1", "$2 >= 0", "$3 >= 0", f"b.removed_at IS {'NOT ' if removed else ''}NULL"]
    if not actor.is_operator:
        conditions.append(_VISIBLE[scope])
    elif scope != "all":
        conditions.append(f"b.level = '{scope}'")
    args: list[Any] = [actor.org_id, actor.id, sees_all]
    if group is not None:
        args.append(group)
        conditions.append(f"g.name = ${len(args)}")
    if query:
        args.append(f"%{escaped(query.casefold())}%")
        conditions.append(f"b.folded LIKE ${len(args)} ESCAPE '\\'")
    for column, ids in (("b.owner_id", owners or None), ("b.id", actor.bases)):
        if ids is not None:
            conditions.append(f"{column} IN ({', '.join(str(int(id)) for id in sorted(ids)) or 'NULL'})")
    where = " AND ".join(conditions)
    page = f"ORDER BY b.created_at DESC, b.id DESC LIMIT ${len(args) + 1} OFFSET ${len(args) + 2}"
    select = _SELECT.replace("SELECT", "SELECT count(*) OVER () AS total,", 1)
    rows = await call.db.scan(f"{select} WHERE {where} {page}", *args, limit, offset)
    found = await _completed(call, [base_from_row(row) for row in rows])
    return Page(found, rows[0]["total"] if rows else await _count(call, where, args), offset)


async def update(
    call: Call,
    tx: Transaction,
    base_id: int,
    *,
    name: str | None = None,
    description: str | None = None,
    splitter: PassageSplitter | None = None,
) -> KnowledgeBase:
    """Rename or describe a base, or have documents that are read from now on cut otherwise."""
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
    """Give a user, an agent or a group a role on a base; with None, take theirs back."""
    base = await get(tx, call, base_id, "manage")
    if role is not None and base.role is not None and role > base.role:
        raise Forbidden(f"You are {base.role.name} and cannot make anybody {role.name}.", remedy="Give a lower role.")
    if (user is None) == (group is None):
        raise BadRequest("Say with whom: either a user or a group.")
    holder = (
        {"principal_id": (await principals.get_by_name(tx, base.org_id, user)).id}
        if user is not None
        else {"group_id": (await groups.get_by_name(tx, base.org_id, group or "")).id}
    )
    held = await access.granted(tx, base.thing, **holder)
    if held is not None and base.role is not None and held > base.role:
        raise Forbidden(f"{user or group!r} is {held.name} here, and you are {base.role.name}.", remedy="Ask an owner.")
    if role is not None:
        await access.grant(tx, base.thing, role, **holder)
    elif not await access.revoke_grant(tx, base.thing, **holder):
        raise NotFound(f"Knowledge base {base_id} is not shared with {user or group!r}.")
    return base


async def shares(db: Reader, call: Call, base_id: int) -> list[Share]:
    """With whom a base is shared."""
    base = await get(db, call, base_id, "manage")
    rows = await db.fetch(
        "SELECT coalesce(p.kind, 'group') AS kind, coalesce(p.name, g.name) AS name, r.role FROM grants r"
        " LEFT JOIN principals p ON p.id = r.principal_id LEFT JOIN groups g ON g.id = r.group_id"
        " WHERE r.thing_kind = 'base' AND r.thing_id = $1 ORDER BY r.id",
        str(base.id),
    )
    return [Share(row["kind"], row["name"], Role[row["role"]]) for row in rows]


async def remove(call: Call, tx: Transaction, base_id: int) -> KnowledgeBase:
    """Put a base into the trash: from now on nobody finds it or anything in it."""
    base = await get(tx, call, base_id, "manage")
    now = clock.now()
    await tx.execute("UPDATE bases SET removed_at = $2, updated_at = $2 WHERE id = $1", base_id, now)
    return replace(base, removed_at=now)


async def restore(call: Call, tx: Transaction, base_id: int) -> KnowledgeBase:
    """Take a base out of the trash, with everything that was in it."""
    await get(tx, call, base_id, "manage", removed=True)
    await tx.execute("UPDATE bases SET removed_at = NULL, updated_at = $2 WHERE id = $1", base_id, clock.now())
    return await get(tx, call, base_id)


async def lock_tree(tx: Transaction, base_id: int) -> None:
    """Let one change of a base's tree at a time go on: two moves at once could make a cycle."""
    await tx.execute("UPDATE bases SET updated_at = updated_at WHERE id = $1", base_id)


async def _count(call: Call, where: str, args: Sequence[Any]) -> int:
    """How many there are, where a page is beyond the last of them."""
    rows = await call.db.scan(
        f"SELECT count(*) AS n FROM bases b LEFT JOIN groups g ON g.id = b.group_id WHERE {where}",  # noqa: S608
        *args,
    )
    return rows[0]["n"]


async def _completed(call: Call, found: list[KnowledgeBase]) -> list[KnowledgeBase]:
    ids = ", ".join(str(base.id) for base in found) or "NULL"
    held, rows = await asyncio.gather(
        access.roles_on(call.db, call.actor, [base.thing for base in found]),
        call.db.scan(
            "SELECT base_id, count(*) AS n FROM documents"  # noqa: S608 - numbers of our own
            f" WHERE base_id IN ({ids}) AND removed_at IS NULL GROUP BY base_id"
        ),
    )
    number = {row["base_id"]: row["n"] for row in rows}
    return [replace(base, role=role, documents=number.get(base.id, 0)) for base, role in zip(found, held, strict=True)]


async def _check_level(call: Call, tx: Transaction, level: str, group: str | None) -> int | None:
    if level not in LEVELS:
        raise BadRequest(f"There is no level {level!r}.", remedy=f"The levels are: {', '.join(LEVELS)}.")
    if (level == "group") != (group is not None):
        raise BadRequest("A group is named for the level 'group', and only then.")
    if call.actor.bases is not None:
        raise Forbidden("Your token is limited to some knowledge bases, so it cannot make another.")
    is_master = call.actor.is_operator or call.actor.is_admin
    if level == "organization" and not is_master:
        raise Forbidden("Only an administrator can make a knowledge base of the organisation.")
    if group is None:
        return None
    picked = await groups.get_by_name(tx, call.actor.org_id, group)
    thing = ProtectedObject("group", picked.id, picked.org_id, "group", group_id=picked.id)
    await access.require(tx, call, "write", thing, name=f"group {group!r}")
    return picked.id


def _check_name(name: str) -> str:
    name = " ".join(name.split())
    if not 1 <= len(name) <= LONGEST_NAME or UNFIT.search(name):
        raise BadRequest(f"The name of a knowledge base has 1 to {LONGEST_NAME} characters, none of them invisible.")
    return name


def _check_description(text: str) -> str:
    if len(text) > LONGEST_DESCRIPTION or UNFIT.search(text):
        raise BadRequest(f"A description has at most {LONGEST_DESCRIPTION} characters, none of them invisible.")
    return text.strip()


def _folded(name: str, description: str) -> str:
    return f"{name}\n{description}".casefold()


def escaped(text: str) -> str:
    """Text as it stands for itself in a LIKE pattern with ESCAPE a backslash."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def base_from_row(row: Row) -> KnowledgeBase:
    named = {name: row[name] for name in _COLUMNS}
    return KnowledgeBase(**named, splitter=_splitter(row["splitter"]))


@lru_cache(maxsize=256)
def _splitter(options: str) -> PassageSplitter:
    """A splitter from its row: most bases have the same."""
    return PassageSplitter.from_options(orjson.loads(options))
