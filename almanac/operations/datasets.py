"""The operations of datasets: finding, describing, sharing and restricting them. Their rows are in `data_rows.py`."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.core import clock
from almanac.core.arguments import Arguments, RecordId
from almanac.data import datasets, row_rules, run, versions
from almanac.data.dataset import Dataset, FieldEdit, FieldNote
from almanac.data.fields import Field as DataField
from almanac.data.fields import type_to_value
from almanac.data.row_rules import RowRule
from almanac.data.versions import DatasetVersion
from almanac.identity.roles import Role
from almanac.operations.context import RequestContext
from almanac.operations.dataset_profiles import PROFILE_EXAMPLE, ProfileInfo, profile_info
from almanac.operations.models import (
    EXAMPLE_TIMESTAMP,
    Done,
    Limit,
    Offset,
    RoleName,
    Timestamp,
    UntrustedAnswer,
    require,
    require_change,
    timestamp,
)
from almanac.operations.operation import (
    CHANGES,
    REST_ONLY,
    Example,
    Handler,
    Mcp,
    Model,
    Rest,
    operation,
    parse_arguments,
)

READ_DATA, WRITE_DATA = frozenset({"data:read"}), frozenset({"data:write"})

_read = partial(operation, scopes=READ_DATA)
_write = partial(operation, scopes=WRITE_DATA)

DatasetId = Annotated[RecordId, Field(description="From find_datasets.")]
FieldType = Literal["text", "integer", "decimal", "boolean", "date", "timestamp"]


# Arguments


class ListDatasets(Arguments):
    query: Annotated[str | None, Field(max_length=200, description="Part of the name.")] = None
    removed: Annotated[bool, Field(description="Those in the trash.")] = False
    limit: Limit = 50
    offset: Offset = 0


class FindDatasets(Arguments):
    query: Annotated[str | None, Field(max_length=200, description="Part of the name.")] = None
    dataset: Annotated[
        str | None, Field(max_length=200, description="Name or id of one dataset: adds its versions and profile.")
    ] = None
    limit: Limit = 50
    offset: Offset = 0


class OneDataset(Arguments):
    dataset_id: DatasetId


class ListVersions(OneDataset):
    limit: Limit = 50
    offset: Offset = 0


class FieldChange(Arguments):
    """New properties of a field; those that are left out stay as they are."""

    label: Annotated[str | None, Field(description="A name for people.")] = None
    description: Annotated[str | None, Field(description="What it holds.")] = None
    unit: Annotated[str | None, Field(description="Such as EUR or kg.")] = None
    synonyms: Annotated[list[str] | None, Field(description="Other words for it.")] = None
    type: Annotated[
        FieldType | Literal[""] | None, Field(description="Refuse pushed values of other types; empty: allow them.")
    ] = None


class ChangeDataset(OneDataset):
    name: Annotated[str | None, Field(description="New name.")] = None
    description: Annotated[str | None, Field(description="New description.")] = None
    fields: Annotated[dict[str, FieldChange] | None, Field(description="Changes by the name of the field.")] = None


class ShareDataset(OneDataset):
    role: Annotated[RoleName, Field(description="The role to give, at most your own.")]
    user: Annotated[str | None, Field(max_length=200, description="A user or agent, by name.")] = None
    group: Annotated[str | None, Field(max_length=200, description="A group, by name.")] = None


class Holder(OneDataset):
    user: Annotated[str | None, Field(max_length=200, description="A user or agent, by name.")] = None
    group: Annotated[str | None, Field(max_length=200, description="A group, by name.")] = None


class PutRule(Holder):
    condition: Annotated[
        str,
        Field(max_length=row_rules.MAX_CONDITION_CHARS, description="SQL over the fields; empty: all rows."),
    ] = ""
    hidden: Annotated[list[str], Field(default_factory=list[str], description="Names of fields to hide.")]


class RestoreVersion(OneDataset):
    version: Annotated[int, Field(ge=1, description="Its number.")]


class ManageDataset(Arguments):
    action: Annotated[
        Literal["change", "share", "unshare", "set_rule", "lift_rule", "restore_version", "delete", "restore"],
        Field(description="restore: out of the trash. set_rule: limit the rows and fields that a user or group sees."),
    ]
    dataset_id: DatasetId
    name: Annotated[str | None, Field(description="change: new name.")] = None
    description: Annotated[str | None, Field(description="change: what it contains.")] = None
    fields: Annotated[
        dict[str, Any] | None, Field(description="change: by field, label, description, unit, synonyms, type.")
    ] = None
    user: Annotated[str | None, Field(description="Name of a user or agent; share, unshare, set_rule, lift_rule.")] = (
        None
    )
    group: Annotated[str | None, Field(description="Name of a group; like user.")] = None
    role: Annotated[RoleName | None, Field(description="share: at most your own.")] = None
    condition: Annotated[str | None, Field(description="set_rule: SQL; only rows that meet it are seen.")] = None
    hidden: Annotated[list[str] | None, Field(description="set_rule: fields to hide.")] = None
    version: Annotated[int | None, Field(description="restore_version: its number.")] = None


# Answers


@dataclass(slots=True)
class FieldInfo:
    """A field of a dataset."""

    name: str
    type: Annotated[Any, Field(description="text, integer, decimal, boolean, date, timestamp, list or record.")]
    label: str
    description: str
    unit: str
    synonyms: list[str]
    declared: Annotated[bool, Field(description="The type is fixed.")]


@dataclass(slots=True)
class VersionInfo:
    """A version of a dataset."""

    version: int
    change: str
    rows: int
    at: str
    by: str | None


@dataclass(slots=True)
class DatasetInfo:
    """A dataset."""

    id: int
    name: str
    description: str
    owner: str
    role: Annotated[str, Field(description="Yours.")]
    rows: Annotated[int | None, Field(description="Null if a rule hides some from you.")]
    version: int
    updated_at: str | None
    fields: Annotated[list[FieldInfo], Field(description="That you may see.")]
    created_at: Annotated[Timestamp, REST_ONLY]
    removed_at: Annotated[Timestamp | None, REST_ONLY]


@dataclass(slots=True)
class DatasetList:
    """A page of datasets, by name."""

    items: list[DatasetInfo]
    total: int
    has_more: bool
    offset: Annotated[int, REST_ONLY]


@dataclass(slots=True)
class FoundDatasets(UntrustedAnswer):
    """Datasets, by name; of one, the versions, latest first, and the profile."""

    items: list[DatasetInfo]
    total: int
    versions: list[VersionInfo]
    profile: ProfileInfo | None


@dataclass(slots=True)
class VersionList:
    """The versions of a dataset that changed its rows, latest first."""

    items: list[VersionInfo]


@dataclass(slots=True)
class RuleInfo:
    """The part of a dataset that a user, an agent or a group sees."""

    kind: Annotated[str, Field(description="user, agent or group")]
    name: str
    condition: str
    hidden: list[str]


@dataclass(slots=True)
class RuleList:
    """The row rules of a dataset."""

    items: list[RuleInfo]


# Handlers


async def list_datasets(ctx: RequestContext, args: ListDatasets) -> DatasetList:
    """The datasets of the organisation, by name, with the fields that you may see."""
    page = await datasets.find(ctx, **args.model_dump())
    return DatasetList([await info_of(ctx, each) for each in page.items], page.total, page.has_more, page.offset)


async def find_datasets(ctx: RequestContext, args: FindDatasets) -> FoundDatasets:
    """Datasets by name, with their fields; of one also versions and profile. Query their rows with query_data."""
    if args.dataset is not None:
        dataset = await datasets.get_by_key(ctx.db, ctx, args.dataset)
        past = await versions.find(ctx.db, dataset, limit=10)
        return FoundDatasets(
            [await info_of(ctx, dataset)], 1, [_version_info(each) for each in past], await profile_info(ctx, dataset)
        )
    page = await datasets.find(ctx, query=args.query, limit=args.limit, offset=args.offset)
    return FoundDatasets([await info_of(ctx, each) for each in page.items], page.total, [], None)


async def get_dataset(ctx: RequestContext, args: OneDataset) -> DatasetInfo:
    """One dataset."""
    return await info_of(ctx, await datasets.get(ctx.db, ctx, args.dataset_id))


async def get_dataset_profile(ctx: RequestContext, args: OneDataset) -> ProfileInfo:
    """The values of the fields of a dataset: nulls, distinct values, range, frequent values, histogram."""
    return await profile_info(ctx, await datasets.get(ctx.db, ctx, args.dataset_id))


async def change_dataset(ctx: RequestContext, args: ChangeDataset) -> DatasetInfo:
    """Rename or describe a dataset or its fields. Only what is named changes."""
    require_change(args, "dataset_id")
    edits = {name: _edit(change) for name, change in (args.fields or {}).items()}
    dataset = await ctx.db.write(
        lambda tx: datasets.update(ctx, tx, args.dataset_id, name=args.name, description=args.description, notes=edits)
    )
    return await info_of(ctx, dataset)


async def remove_dataset(ctx: RequestContext, args: OneDataset) -> None:
    """Put a dataset into the trash."""
    await ctx.db.write(lambda tx: datasets.remove(ctx, tx, args.dataset_id))


async def restore_dataset(ctx: RequestContext, args: OneDataset) -> DatasetInfo:
    """Take a dataset out of the trash."""
    return await info_of(ctx, await ctx.db.write(lambda tx: datasets.restore(ctx, tx, args.dataset_id)))


async def list_dataset_versions(ctx: RequestContext, args: ListVersions) -> VersionList:
    """The versions of a dataset that changed its rows, latest first."""
    dataset = await datasets.get(ctx.db, ctx, args.dataset_id)
    found = await versions.find(ctx.db, dataset, limit=args.limit, offset=args.offset)
    return VersionList([_version_info(each) for each in found])


async def restore_dataset_version(ctx: RequestContext, args: RestoreVersion) -> VersionInfo:
    """Make the rows of an older version current again, as a new version."""
    dataset = await datasets.get(ctx.db, ctx, args.dataset_id, "write")
    return _version_info(await ctx.db.write(lambda tx: versions.restore(ctx, tx, dataset, args.version)))


async def share_dataset(ctx: RequestContext, args: ShareDataset) -> None:
    """Give a user, an agent or a group a role on a dataset."""
    role = Role[args.role]
    await ctx.db.write(lambda tx: datasets.share(ctx, tx, args.dataset_id, role, user=args.user, group=args.group))


async def unshare_dataset(ctx: RequestContext, args: Holder) -> None:
    """Revoke the role of a user, an agent or a group on a dataset."""
    await ctx.db.write(lambda tx: datasets.share(ctx, tx, args.dataset_id, None, user=args.user, group=args.group))


async def list_row_rules(ctx: RequestContext, args: OneDataset) -> RuleList:
    """The row rules of a dataset, each for a user or a group."""
    dataset = await datasets.get(ctx.db, ctx, args.dataset_id, "manage")
    return RuleList([_rule_info(rule) for rule in await row_rules.find(ctx.db, dataset)])


async def set_row_rule(ctx: RequestContext, args: PutRule) -> RuleInfo:
    """Limit the rows and fields of a dataset that a user, an agent or the members of a group see."""
    dataset = await datasets.get(ctx.db, ctx, args.dataset_id, "manage")
    if args.condition.strip():
        await run.check_condition(ctx, ctx.app.data, dataset, args.condition)
    rule = await ctx.db.write(
        lambda tx: row_rules.put(
            ctx, tx, dataset, user=args.user, group=args.group, condition=args.condition, hidden=args.hidden
        )
    )
    return _rule_info(rule)


async def lift_row_rule(ctx: RequestContext, args: Holder) -> None:
    """Remove the row rule of a user, an agent or a group."""
    dataset = await datasets.get(ctx.db, ctx, args.dataset_id, "manage")
    await ctx.db.write(lambda tx: row_rules.remove(tx, dataset, user=args.user, group=args.group))


async def manage_dataset(ctx: RequestContext, args: ManageDataset) -> Done:
    """Describe, share, restrict, delete or restore a dataset, or restore one of its versions."""
    handler, model = _ACTIONS[args.action]
    await handler(ctx, _arguments_of(model, args))
    return Done(args.action, [args.dataset_id])


_ACTIONS: dict[str, tuple[Handler, type[Arguments]]] = {
    "change": (change_dataset, ChangeDataset),
    "share": (share_dataset, ShareDataset),
    "unshare": (unshare_dataset, Holder),
    "set_rule": (set_row_rule, PutRule),
    "lift_rule": (lift_row_rule, Holder),
    "restore_version": (restore_dataset_version, RestoreVersion),
    "delete": (remove_dataset, OneDataset),
    "restore": (restore_dataset, OneDataset),
}


def _arguments_of(model: type[Model], args: ManageDataset) -> Model:
    given = {name: value for name, value in args if name in model.model_fields and value is not None}
    for name, field in model.model_fields.items():
        if field.is_required():
            require(given.get(name), name, args.action)
    return parse_arguments(model, given)


def _edit(change: FieldChange) -> FieldEdit:
    synonyms = None if change.synonyms is None else tuple(change.synonyms)
    return FieldEdit(change.label, change.description, change.unit, synonyms, change.type)


async def info_of(ctx: RequestContext, dataset: Dataset) -> DatasetInfo:
    """Return a dataset as the caller sees it."""
    rules = await row_rules.applying(ctx.db, ctx, dataset)
    hidden = {name for rule in rules for name in rule.hidden}
    return dataset_info(dataset, hidden, hides_rows=any(rule.condition for rule in rules))


def dataset_info(dataset: Dataset, hidden: set[str], *, hides_rows: bool) -> DatasetInfo:
    """Return a dataset as a caller sees it."""
    return DatasetInfo(
        id=dataset.id,
        name=dataset.name,
        description=dataset.description,
        owner=dataset.owner_name,
        role=dataset.role.name if dataset.role else "",
        rows=None if hides_rows else dataset.row_count,
        version=dataset.version,
        updated_at=clock.format_timestamp(dataset.updated_at),
        fields=[
            _field_info(each, dataset.notes.get(each.name, FieldNote()))
            for each in dataset.fields
            if each.name not in hidden
        ],
        created_at=timestamp(dataset.created_at),
        removed_at=clock.format_timestamp(dataset.removed_at),
    )


def _field_info(field: DataField, note: FieldNote) -> FieldInfo:
    return FieldInfo(
        name=field.name,
        type=type_to_value(field.type),
        label=note.label,
        description=note.description,
        unit=note.unit,
        synonyms=list(note.synonyms),
        declared=bool(note.declared_type),
    )


def _version_info(version: DatasetVersion) -> VersionInfo:
    return VersionInfo(
        version.number, version.change, version.row_count, timestamp(version.created_at), version.author_name
    )


def _rule_info(rule: RowRule) -> RuleInfo:
    return RuleInfo(rule.kind, rule.name, rule.condition, list(rule.hidden))


# Declarations

_FIELD = FieldInfo("Amount", "decimal", "Revenue", "Net of tax", "EUR", ["sales"], False)
_DATASET = DatasetInfo(
    id=12,
    name="Orders",
    description="One row for each order",
    owner="ada",
    role="Owner",
    rows=2400,
    version=3,
    updated_at=EXAMPLE_TIMESTAMP,
    fields=[_FIELD],
    created_at=EXAMPLE_TIMESTAMP,
    removed_at=None,
)
_VERSION = VersionInfo(3, "append", 2400, EXAMPLE_TIMESTAMP, "ada")
_RULE = RuleInfo("group", "south", "region = 'south'", ["Margin"])
OPERATIONS = (
    _read(
        list_datasets,
        rest=Rest("GET", "/datasets"),
        example=Example(answer=DatasetList([_DATASET], 1, False, 0)),
    ),
    _read(
        find_datasets,
        title="Find datasets",
        mcp=Mcp(),
        covers=("list_datasets", "get_dataset", "list_dataset_versions", "get_dataset_profile"),
        example=Example({"dataset": "Orders"}, FoundDatasets([_DATASET], 1, [_VERSION], PROFILE_EXAMPLE)),
    ),
    _read(
        get_dataset_profile,
        rest=Rest("GET", "/datasets/{dataset_id}/profile"),
        example=Example(answer=PROFILE_EXAMPLE),
    ),
    _read(get_dataset, rest=Rest("GET", "/datasets/{dataset_id}"), example=Example(answer=_DATASET)),
    _write(
        change_dataset,
        rest=Rest("PATCH", "/datasets/{dataset_id}"),
        example=Example({"fields": {"Amount": {"label": "Revenue", "unit": "EUR"}}}, _DATASET),
    ),
    _write(remove_dataset, rest=Rest("DELETE", "/datasets/{dataset_id}", status=204)),
    _write(restore_dataset, rest=Rest("POST", "/datasets/{dataset_id}/restore"), example=Example(answer=_DATASET)),
    _read(
        list_dataset_versions,
        rest=Rest("GET", "/datasets/{dataset_id}/versions"),
        example=Example(answer=VersionList([_VERSION])),
    ),
    _write(
        restore_dataset_version,
        rest=Rest("POST", "/datasets/{dataset_id}/versions/{version}/restore"),
        example=Example(answer=_VERSION),
    ),
    _write(
        share_dataset,
        rest=Rest("PUT", "/datasets/{dataset_id}/shares", status=204),
        example=Example({"role": "Developer", "group": "south"}),
    ),
    _write(unshare_dataset, rest=Rest("DELETE", "/datasets/{dataset_id}/shares", status=204)),
    _read(
        list_row_rules,
        rest=Rest("GET", "/datasets/{dataset_id}/rules"),
        people_only="An agent sets rules by name and needs no list of its owner's colleagues.",
        example=Example(answer=RuleList([_RULE])),
    ),
    _write(
        set_row_rule,
        rest=Rest("PUT", "/datasets/{dataset_id}/rules"),
        example=Example({"group": "south", "condition": "region = 'south'", "hidden": ["Margin"]}, _RULE),
    ),
    _write(lift_row_rule, rest=Rest("DELETE", "/datasets/{dataset_id}/rules", status=204)),
    _write(
        manage_dataset,
        title="Manage a dataset",
        safety=CHANGES,
        mcp=Mcp(),
        covers=(
            "change_dataset", "share_dataset", "unshare_dataset", "set_row_rule", "lift_row_rule",
            "restore_dataset_version", "remove_dataset", "restore_dataset",
        ),
        example=Example({"action": "change", "dataset_id": 12, "name": "Orders"}, Done("change", [12])),
    ),
)  # fmt: skip
