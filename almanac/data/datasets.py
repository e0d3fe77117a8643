"""Datasets: creating, finding, describing, sharing and removing them. Their rows are in `versions.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.pages import Page
from almanac.core.text import CONTROL_CHARACTERS, UNPRINTABLE, escape_like, one_line
from almanac.data import dataset_index, profiles
from almanac.data.dataset import KIND, SELECT, Dataset, FieldEdit, FieldNote, dataset_from_row, notes_to_json
from almanac.data.fields import Kind, find_field
from almanac.db.sql import Parameters, placeholders
from almanac.identity import access, grants
from almanac.identity.access import MIN_ROLE_BY_ACTION, ProtectedObject
from almanac.identity.roles import Role

MAX_NAME_CHARS = 200
MAX_DESCRIPTION_CHARS = 2_000
MAX_LABEL_CHARS = 200
MAX_UNIT_CHARS = 50
MAX_SYNONYMS = 50
DECLARABLE_TYPES = tuple(
    str(kind) for kind in (Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.BOOLEAN, Kind.DATE, Kind.TIMESTAMP)
)


class NoSuchDataset(NotFound):
    """There is no such dataset, or you may not see it."""

    remedy = "List the datasets to find its name or id."


class NameTaken(Conflict):
    """There is already a dataset with this name."""

    remedy = "Choose another name; upper and lower case are the same."

    def __init__(self, name: str) -> None:
        super().__init__(f"There is already a dataset named {name!r}.")


async def get(db: Reader, call: Call, dataset_id: int, action: str = "read", *, removed: bool = False) -> Dataset:
    """A dataset on which the caller may perform the action. With `removed`, a dataset in the trash."""
    # The row of another organisation is not even read.
    row = await db.fetch_one(f"{SELECT} WHERE d.id = $1 AND d.org_id = $2", dataset_id, call.actor.org_id)
    dataset = dataset_from_row(row) if row is not None and (row["removed_at"] is not None) == removed else None
    return await _required(db, call, action, dataset, f"dataset {dataset_id}")


async def get_or_none(db: Reader, dataset_id: int) -> Dataset | None:
    """A dataset that is not in the trash, without a permission check: for jobs, which have no caller."""
    row = await db.fetch_one(f"{SELECT} WHERE d.id = $1 AND d.removed_at IS NULL", dataset_id)
    return None if row is None else dataset_from_row(row)


async def get_by_name(db: Reader, call: Call, name: str, action: str = "read") -> Dataset:
    """The dataset with a name, in any case of letters."""
    dataset = await find_by_name(db, call.actor.org_id, name)
    return await _required(db, call, action, dataset, f"dataset {one_line(name)[:MAX_NAME_CHARS]!r}")


async def get_by_key(db: Reader, call: Call, key: str, action: str = "read") -> Dataset:
    """A dataset by its name or, if no dataset has this name, by its id."""
    if key.isdecimal() and len(key) < 19 and await find_by_name(db, call.actor.org_id, key) is None:
        return await get(db, call, int(key), action)
    return await get_by_name(db, call, key, action)


async def find_by_name(db: Reader, org_id: str, name: str) -> Dataset | None:
    """The dataset of an organisation with a name, without a permission check."""
    row = await db.fetch_one(
        f"{SELECT} WHERE d.org_id = $1 AND d.folded = $2 AND d.removed_at IS NULL", org_id, fold(name)
    )
    return None if row is None else dataset_from_row(row)


async def find_by_names(call: Call, folded_names: Sequence[str]) -> list[Dataset]:
    """The datasets with these names, in the form of `fold`, that the caller may read."""
    if not folded_names:
        return []
    rows = await call.db.fetch(
        f"{SELECT} WHERE d.org_id = $1 AND d.folded IN ({placeholders(len(folded_names), 2)}) AND d.removed_at IS NULL"
        " ORDER BY d.id",
        call.actor.org_id,
        *folded_names,
    )
    return await _with_roles(call, [dataset_from_row(row) for row in rows])


async def find_by_ids(call: Call, dataset_ids: Sequence[int]) -> list[Dataset]:
    """The datasets with these ids that the caller may read."""
    if not dataset_ids:
        return []
    rows = await call.db.fetch(
        f"{SELECT} WHERE d.org_id = $1 AND d.id IN ({placeholders(len(dataset_ids), 2)}) AND d.removed_at IS NULL",
        call.actor.org_id,
        *dataset_ids,
    )
    return await _with_roles(call, [dataset_from_row(row) for row in rows])


async def find(
    call: Call, *, query: str | None = None, removed: bool = False, limit: int = 50, offset: int = 0
) -> Page[Dataset]:
    """A page of the organisation's datasets, by name. Those in the trash are shown to those who may restore them."""
    parameters = Parameters()
    conditions = [
        f"d.org_id = {parameters.add(call.actor.org_id)}",
        f"d.removed_at IS {'NOT ' if removed else ''}NULL",
    ]
    if query:
        conditions.append(f"d.folded LIKE {parameters.add(f'%{escape_like(query.casefold())}%')} ESCAPE '\\'")
    where, args = " AND ".join(conditions), tuple(parameters.values)
    page = f"ORDER BY d.folded, d.id LIMIT {parameters.add(limit)} OFFSET {parameters.add(offset)}"
    rows = await call.db.scan(f"{SELECT} WHERE {where} {page}", *parameters.values)
    total = await call.db.scan(f"SELECT count(*) AS n FROM datasets d WHERE {where}", *args)  # noqa: S608
    items = await _with_roles(call, [dataset_from_row(row) for row in rows])
    return Page(items, total[0]["n"], offset)


async def ensure(call: Call, tx: Transaction, name: str, description: str = "") -> tuple[Dataset, bool]:
    """The dataset with this name, which the caller may write, and whether it was created for the caller."""
    existing = await find_by_name(tx, call.actor.org_id, name)
    if existing is not None:
        return await _required(tx, call, "write", existing, f"dataset {existing.name!r}"), False
    return await add(call, tx, name, description), True


async def add(call: Call, tx: Transaction, name: str, description: str = "") -> Dataset:
    """Create an empty dataset. Its creator owns it; every member of the organisation may read it."""
    name, now = check_name(name), clock.now()
    row = await tx.fetch_one(
        "INSERT INTO datasets (org_id, owner_id, name, folded, description, notes, version, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, '{}', 0, $6, $6)"
        " ON CONFLICT (org_id, folded) WHERE removed_at IS NULL DO NOTHING RETURNING id",
        call.actor.org_id,
        call.actor.id,
        name,
        fold(name),
        _check_text("description", description, MAX_DESCRIPTION_CHARS),
        now,
    )
    if row is None:
        raise NameTaken(name)
    target = ProtectedObject(KIND, row["id"], call.actor.org_id, "organization", call.actor.id)
    await access.grant(tx, target, Role.Owner, principal_id=call.actor.id)
    await dataset_index.update(tx, row["id"])
    return await get(tx, call, row["id"])


async def update(
    call: Call,
    tx: Transaction,
    dataset_id: int,
    *,
    name: str | None = None,
    description: str | None = None,
    notes: Mapping[str, FieldEdit] | None = None,
) -> Dataset:
    """Change the named properties. `notes` has the edits by field."""
    dataset = await get(tx, call, dataset_id, "write")
    name = dataset.name if name is None else check_name(name)
    if description is not None:
        description = _check_text("description", description, MAX_DESCRIPTION_CHARS)
    other = await find_by_name(tx, dataset.org_id, name)
    if other is not None and other.id != dataset_id:
        raise NameTaken(name)
    await tx.execute(
        "UPDATE datasets SET name = $2, folded = $3, description = $4, notes = $5, updated_at = $6 WHERE id = $1",
        dataset_id,
        name,
        fold(name),
        dataset.description if description is None else description,
        notes_to_json(_edited_notes(dataset, notes or {})),
        clock.now(),
    )
    await dataset_index.update(tx, dataset_id)
    return await get(tx, call, dataset_id)


async def share(
    call: Call,
    tx: Transaction,
    dataset_id: int,
    role: Role | None,
    *,
    user: str | None = None,
    group: str | None = None,
) -> Dataset:
    """Grant a role on a dataset to a user, an agent or a group. None revokes the role."""
    dataset = await get(tx, call, dataset_id, "manage")
    await grants.share(tx, dataset.protected_object, dataset.role, role, user=user, group=group)
    return dataset


async def remove(call: Call, tx: Transaction, dataset_id: int) -> Dataset:
    """Put a dataset into the trash."""
    dataset = await get(tx, call, dataset_id, "manage")
    now = clock.now()
    await tx.execute("UPDATE datasets SET removed_at = $2, updated_at = $2 WHERE id = $1", dataset_id, now)
    await dataset_index.remove(tx, [dataset_id])
    return replace(dataset, removed_at=now)


async def restore(call: Call, tx: Transaction, dataset_id: int) -> Dataset:
    """Take a dataset out of the trash. Its name must be free."""
    dataset = await get(tx, call, dataset_id, "manage", removed=True)
    if await find_by_name(tx, dataset.org_id, dataset.name) is not None:
        raise NameTaken(dataset.name)
    await tx.execute("UPDATE datasets SET removed_at = NULL, updated_at = $2 WHERE id = $1", dataset_id, clock.now())
    await dataset_index.update(tx, dataset_id)
    await profiles.enqueue_if_lacking(tx, dataset_id)
    return await get(tx, call, dataset_id)


async def purge(tx: Transaction, before: int, limit: int = 100) -> int:
    """Delete datasets that were removed before a time; return their number. Their files are then unused."""
    rows = await tx.fetch(
        "UPDATE datasets SET updated_at = updated_at WHERE id IN (SELECT id FROM datasets WHERE removed_at < $1"
        " ORDER BY id LIMIT $2) AND removed_at < $1 RETURNING id",
        before,
        limit,
    )
    ids = [(row["id"],) for row in rows]
    for table in ("row_rules", "dataset_files", "dataset_versions"):
        await tx.execute_many(f"DELETE FROM {table} WHERE dataset_id = $1", ids)  # noqa: S608 - a literal
    await tx.execute_many(
        "DELETE FROM grants WHERE thing_kind = 'dataset' AND thing_id = $1", [(str(id),) for (id,) in ids]
    )
    await dataset_index.remove(tx, [id for (id,) in ids])
    await tx.execute_many("DELETE FROM datasets WHERE id = $1", ids)
    return len(ids)


def check_name(name: str) -> str:
    """A valid name. BadRequest otherwise."""
    name = one_line(name)
    if not 1 <= len(name) <= MAX_NAME_CHARS or UNPRINTABLE.search(name):
        raise BadRequest(f"The name of a dataset has 1 to {MAX_NAME_CHARS} characters, without control characters.")
    return name


def fold(name: str) -> str:
    """The form of a name in which names are compared."""
    return one_line(name).casefold()


async def _with_roles(call: Call, found: Sequence[Dataset]) -> list[Dataset]:
    """Those of these datasets that the caller may read, with the caller's role."""
    roles = await access.roles_on(call.db, call.actor, [each.protected_object for each in found], KIND)
    least = MIN_ROLE_BY_ACTION["read"]
    return [replace(each, role=role) for each, role in zip(found, roles, strict=True) if role and role >= least]


async def _required(db: Reader, call: Call, action: str, dataset: Dataset | None, name: str) -> Dataset:
    target = dataset.protected_object if dataset else None
    try:
        role = await access.require(db, call, action, target, name=name)
    except NotFound as error:
        raise NoSuchDataset(error.message) from None
    assert dataset is not None
    return replace(dataset, role=role)


def _edited_notes(dataset: Dataset, edits: Mapping[str, FieldEdit]) -> dict[str, FieldNote]:
    notes = dict(dataset.notes)
    for name, edit in edits.items():
        field = find_field(dataset.fields, name)
        if field is None:
            known = ", ".join(each.name for each in dataset.fields)
            raise BadRequest(f"There is no field {name!r}.", remedy=f"The fields are: {known}.")
        said = {key: value for key, value in asdict(_checked_edit(edit)).items() if value is not None}
        notes[field.name] = replace(notes.get(field.name, FieldNote()), **said)
    return notes


def _checked_edit(edit: FieldEdit) -> FieldEdit:
    if edit.synonyms is not None and len(edit.synonyms) > MAX_SYNONYMS:
        raise BadRequest(f"A field has at most {MAX_SYNONYMS} synonyms.")
    if edit.declared_type and edit.declared_type not in DECLARABLE_TYPES:
        raise BadRequest(
            f"There is no type {edit.declared_type!r}.", remedy=f"The types are: {', '.join(DECLARABLE_TYPES)}."
        )
    return FieldEdit(
        label=_check_optional("label", edit.label, MAX_LABEL_CHARS),
        description=_check_optional("description", edit.description, MAX_DESCRIPTION_CHARS),
        unit=_check_optional("unit", edit.unit, MAX_UNIT_CHARS),
        synonyms=None
        if edit.synonyms is None
        else tuple(_check_text("synonyms", one_line(word), MAX_LABEL_CHARS) for word in edit.synonyms),
        declared_type=edit.declared_type,
    )


def _check_optional(name: str, text: str | None, max_chars: int) -> str | None:
    return None if text is None else _check_text(name, text, max_chars)


def _check_text(name: str, text: str, max_chars: int) -> str:
    if len(text) > max_chars or CONTROL_CHARACTERS.search(text):
        raise BadRequest(f"{name}: at most {max_chars:,} characters, without control characters.")
    return text.strip()
