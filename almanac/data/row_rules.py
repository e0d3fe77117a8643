"""Row rules: the rows and fields of a dataset that a person, an agent or the members of a group may see.

The rules that name the caller or one of the caller's groups all apply: each narrows the rows and hides fields. A caller
who may manage a dataset sees all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, NotFound
from almanac.data import dataset_index
from almanac.data.dataset import Dataset
from almanac.data.fields import find_field
from almanac.db.sql import from_row
from almanac.identity import groups, principals
from almanac.identity.access import MIN_ROLE_BY_ACTION

MAX_CONDITION_CHARS = 2_000

_SELECT = """
SELECT r.id, r.dataset_id, coalesce(p.kind, 'group') AS kind, coalesce(p.name, g.name) AS name, r.condition, r.hidden
FROM row_rules r LEFT JOIN principals p ON p.id = r.principal_id LEFT JOIN groups g ON g.id = r.group_id
"""
_APPLYING = f"""
{_SELECT} WHERE r.dataset_id = $1 AND (r.principal_id = $2
    OR r.group_id IN (SELECT m.group_id FROM members m WHERE m.principal_id = $2)) ORDER BY r.id
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class RowRule:
    """A restriction for one person, agent or group."""

    id: int
    dataset_id: int
    kind: str  # user, agent or group
    name: str
    condition: str  # SQL over the fields of one row; empty: all rows
    hidden: tuple[str, ...]  # names of fields


async def put(
    call: Call,
    tx: Transaction,
    dataset: Dataset,
    *,
    user: str | None = None,
    group: str | None = None,
    condition: str = "",
    hidden: Sequence[str] = (),
) -> RowRule:
    """Set the rule of a person, an agent or a group. The caller has checked the permission and the condition."""
    column, holder_id = await _holder(tx, dataset, user, group)
    names = [_field_name(dataset, name) for name in hidden]
    if not condition.strip() and not names:
        raise BadRequest("A rule needs a condition or hidden fields.", remedy="To lift a rule, remove it.")
    row = await tx.fetch_one(
        f"INSERT INTO row_rules (dataset_id, {column}, condition, hidden, creator_id, created_at)"  # noqa: S608
        f" VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (dataset_id, {column}) WHERE {column} IS NOT NULL"
        " DO UPDATE SET condition = excluded.condition, hidden = excluded.hidden, creator_id = excluded.creator_id,"
        " created_at = excluded.created_at RETURNING id",
        dataset.id,
        holder_id,
        condition.strip(),
        orjson.dumps(names).decode(),
        call.actor.id,
        clock.now(),
    )
    assert row is not None
    await dataset_index.update(tx, dataset.id)
    stored = await tx.fetch_one(f"{_SELECT} WHERE r.id = $1", row["id"])
    assert stored is not None
    return _rule(stored)


async def remove(tx: Transaction, dataset: Dataset, *, user: str | None = None, group: str | None = None) -> None:
    """Lift the rule of a person, an agent or a group."""
    column, holder_id = await _holder(tx, dataset, user, group)
    sql = f"DELETE FROM row_rules WHERE dataset_id = $1 AND {column} = $2"  # noqa: S608 - a literal
    if not await tx.execute(sql, dataset.id, holder_id):
        raise NotFound(f"There is no rule for {user or group!r} on dataset {dataset.id}.", remedy="List its rules.")
    await dataset_index.update(tx, dataset.id)


async def find(db: Reader, dataset: Dataset) -> list[RowRule]:
    """All rules of a dataset."""
    return [_rule(row) for row in await db.fetch(f"{_SELECT} WHERE r.dataset_id = $1 ORDER BY r.id", dataset.id)]


async def applying(db: Reader, call: Call, dataset: Dataset) -> list[RowRule]:
    """The rules that narrow what the caller sees of a dataset. `dataset.role` is the caller's role."""
    assert dataset.role is not None
    if dataset.role >= MIN_ROLE_BY_ACTION["manage"]:
        return []
    return [_rule(row) for row in await db.fetch(_APPLYING, dataset.id, call.actor.id)]


async def _holder(tx: Transaction, dataset: Dataset, user: str | None, group: str | None) -> tuple[str, int]:
    if (user is None) == (group is None):
        raise BadRequest("Name either a user or a group.")
    if user is not None:
        return "principal_id", (await principals.get_by_name(tx, dataset.org_id, user)).id
    return "group_id", (await groups.get_by_name(tx, dataset.org_id, group or "")).id


def _field_name(dataset: Dataset, name: str) -> str:
    field = find_field(dataset.fields, name)
    if field is None:
        known = ", ".join(each.name for each in dataset.fields)
        raise BadRequest(f"There is no field {name!r} to hide.", remedy=f"The fields are: {known}.")
    return field.name


def _rule(row: Row) -> RowRule:
    return from_row(RowRule, row, hidden=tuple(orjson.loads(row["hidden"])))
