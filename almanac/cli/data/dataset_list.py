"""The commands that list, describe, remove and restore datasets."""

from typing import Annotated, Any

import typer

from almanac.cli.support.confirmation import confirm
from almanac.cli.support.dataset_call import ActAs, DatasetKey, call_as, call_on, call_on_removed
from almanac.cli.support.operation_call import all_pages, parse_arguments, print_answer, request_of
from almanac.cli.support.options import Json, OrgName, Yes
from almanac.cli.support.output import print_line, print_rows
from almanac.cli.support.progress import counted
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.operations import datasets as operations
from almanac.operations.datasets import (
    ChangeDataset,
    DatasetInfo,
    FieldInfo,
    ListDatasets,
    ListVersions,
    OneDataset,
    RestoreVersion,
)
from almanac.operations.models import MAX_PAGE_ITEMS

_ANY_TYPE = "any"


@database_command
async def list_datasets(
    db: Database,
    name: Annotated[str | None, typer.Option("--name", help="Only those with this text in their name.")] = None,
    user: ActAs = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """List the datasets of an organisation. The number of rows is empty if a row rule hides some of them.

    Example: [bold]almanac data list --user maria[/bold]
    """
    await _print_list(db, user, org, as_json, ListDatasets(query=name, limit=MAX_PAGE_ITEMS))


@database_command
async def list_trash(db: Database, user: ActAs = None, org: OrgName = None, as_json: Json = False) -> None:
    """List the datasets in the trash.

    Example: [bold]almanac data trash[/bold]
    """
    await _print_list(db, user, org, as_json, ListDatasets(removed=True, limit=MAX_PAGE_ITEMS))


@database_command
async def show_dataset(
    db: Database, name: DatasetKey, user: ActAs = None, org: OrgName = None, as_json: Json = False
) -> None:
    """Show a dataset and the fields that the user may see.

    Example: [bold]almanac data show Orders[/bold]
    """
    call, dataset = await call_on(db, org, user, name)
    answer = await operations.get_dataset(request_of(call), OneDataset(dataset_id=dataset.id))
    if as_json:
        print_answer(answer)
        return
    print_line(f"{answer.name}: {_row_count(answer)}, version {answer.version}, of {answer.owner}")
    if answer.description:
        print_line(answer.description)
    print_line("")
    print_rows([_field_row(field) for field in answer.fields], False, empty="It has no fields yet.")


@database_command
async def list_versions(
    db: Database, name: DatasetKey, user: ActAs = None, org: OrgName = None, as_json: Json = False
) -> None:
    """List the latest versions of a dataset that changed its rows. Old versions are removed in time.

    Example: [bold]almanac data versions Orders[/bold]
    """
    call, dataset = await call_on(db, org, user, name)
    arguments = ListVersions(dataset_id=dataset.id, limit=MAX_PAGE_ITEMS)
    answer = await operations.list_dataset_versions(request_of(call), arguments)
    if as_json:
        print_answer(answer)
    else:
        rows = [
            {"version": each.version, "change": each.change, "rows": each.rows, "at": each.at, "by": each.by}
            for each in answer.items
        ]
        print_rows(rows, False, empty="No version yet: almanac data push NAME FILE")


@database_command
async def describe_dataset(
    db: Database,
    name: DatasetKey,
    rename: Annotated[str | None, typer.Option("--rename", help="A new name of the dataset.")] = None,
    field: Annotated[
        str | None, typer.Option("--field", help="Describe this field; the options below need it.")
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", help="What the dataset, or the field, contains.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="A name of the field for people.")] = None,
    unit: Annotated[str | None, typer.Option("--unit", help="The unit of the field, such as EUR or kg.")] = None,
    synonyms: Annotated[
        list[str] | None, typer.Option("--synonym", help="Another word for the field; may be repeated.")
    ] = None,
    data_type: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Refuse pushed values of other types: text, integer, decimal, boolean, date or timestamp; any permits"
            " them again.",
        ),
    ] = None,
    user: ActAs = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Rename or describe a dataset, or one of its fields. Only what is named changes; an empty text clears a value.

    Example: [bold]almanac data describe Orders --field amount --label Revenue --unit EUR --synonym sales[/bold]
    """
    change = _field_change(label=label, unit=unit, synonyms=synonyms or None, type=data_type)
    if change and field is None:
        raise BadRequest("A label, unit, synonym or type is that of a field.", remedy="Name it with --field.")
    if field is not None:
        fields = {field: change | ({} if description is None else {"description": description})}
        named = {"name": rename, "fields": fields}
    else:
        named = {"name": rename, "description": description}
    call, dataset = await call_on(db, org, user, name)
    arguments = parse_arguments(ChangeDataset, dataset_id=dataset.id, **_given(named))
    answer = await operations.change_dataset(request_of(call), arguments)
    if as_json:
        print_answer(answer)


@database_command
async def remove_dataset(
    db: Database, settings: Settings, name: DatasetKey, user: ActAs = None, yes: Yes = False, org: OrgName = None
) -> None:
    """Put a dataset into the trash. Queries no longer find it; it can be restored.

    Example: [bold]almanac data remove Orders --yes[/bold]
    """
    call, dataset = await call_on(db, org, user, name)
    confirm(f"Remove the dataset {dataset.name!r}? It can be restored for {settings.trash_days} days.", yes)
    await operations.remove_dataset(request_of(call), OneDataset(dataset_id=dataset.id))


@database_command
async def restore_dataset(
    db: Database,
    name: DatasetKey,
    version: Annotated[
        int | None,
        typer.Argument(metavar="VERSION", help="Make the rows of this version current again.", show_default=False),
    ] = None,
    user: ActAs = None,
    org: OrgName = None,
) -> None:
    """Take a dataset out of the trash; or, with a version, make its rows current again, as a new version.

    Example: [bold]almanac data restore Orders 3[/bold]
    """
    if version is None:
        call, dataset = await call_on_removed(db, org, user, name)
        await operations.restore_dataset(request_of(call), OneDataset(dataset_id=dataset.id))
        return
    call, dataset = await call_on(db, org, user, name)
    arguments = parse_arguments(RestoreVersion, dataset_id=dataset.id, version=version)
    answer = await operations.restore_dataset_version(request_of(call), arguments)
    print_line(f"Version {answer.version} has the rows of version {version} ({counted(answer.rows, 'row')}).")


async def _print_list(db: Database, user: str | None, org: str | None, as_json: bool, arguments: ListDatasets) -> None:
    ctx = request_of(await call_as(db, org, user))
    answer = await all_pages(operations.list_datasets, ctx, arguments)
    if as_json:
        print_answer(answer)
        return
    date = "removed" if arguments.removed else "updated"
    rows = [
        {
            "id": each.id,
            "name": each.name,
            "owner": each.owner,
            "rows": each.rows,
            "fields": len(each.fields),
            "version": each.version,
            date: each.removed_at if arguments.removed else each.updated_at,
        }
        for each in answer.items
    ]
    empty = "The trash is empty." if arguments.removed else "No dataset yet: almanac data push NAME FILE --user USER"
    print_rows(rows, False, empty=empty)


def _row_count(dataset: DatasetInfo) -> str:
    return "rows hidden by a rule" if dataset.rows is None else counted(dataset.rows, "row")


def _field_row(field: FieldInfo) -> dict[str, Any]:
    return {
        "field": field.name,
        "type": field.type if isinstance(field.type, str) else field.type["type"],
        "label": field.label,
        "unit": field.unit,
        "synonyms": ", ".join(field.synonyms),
        "description": field.description,
    }


def _field_change(**values: Any) -> dict[str, Any]:
    change = _given(values)
    if change.get("type") == _ANY_TYPE:
        change["type"] = ""
    return change


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
