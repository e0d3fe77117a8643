"""`almanac catalogue`: import and export of the catalogue, and the right to change it."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from almanac.catalogue import access as catalogue_access
from almanac.catalogue import catalogue_file, exporter
from almanac.catalogue.catalogue_file import CatalogueFile
from almanac.catalogue.importer import CatalogueImport, ImportReport
from almanac.cli.support import operator_call
from almanac.cli.support.options import Json, OrgName, Withdraw, command_group
from almanac.cli.support.output import print_json, print_line
from almanac.cli.support.progress import Stage, open_display
from almanac.cli.support.startup import database_command
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import access, groups, orgs, principals, roles

catalogue_app = command_group("The catalogue: entities in a tree of categories, and the namespaces of their searches.")

_COLUMNS = ("_id", "name", "category", "description", "details", "source", "sku", "status", "tags")


@catalogue_app.command("import")
@database_command
async def import_file(
    db: Database,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .json, .jsonl or .csv file.", show_default=False)],
    org: OrgName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the changes.")] = False,
    as_json: Json = False,
) -> None:
    """Import a file into the catalogue. Its content is added or updated; the rest of the catalogue stays. A JSON file
    holds a whole catalogue (aliases, policies, a nested tree of categories, namespaces, entities) or a list of
    entities. A JSONL file has one entity in each line, a CSV file one in each row; unknown columns become metadata. An
    interrupted import can be repeated.

    Example: [bold]almanac catalogue import products.json --dry-run[/bold]
    """
    report = await _import(db, org, catalogue_file.read(file), dry_run, as_json)
    if as_json:
        print_json({"dry_run": dry_run, **report.to_json()})
        return
    for change in report.changes if dry_run else ():
        fields = f" ({', '.join(change.fields)})" if change.fields else ""
        print_line(f"{change.action} {change.what} {change.name}{fields}")
    for (what, action), number in sorted(report.counts.items()):
        print_line(f"{number:,} × {what}: {_ACTIONS[dry_run][action]}")


@catalogue_app.command("export")
@database_command
async def export_file(
    db: Database,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The file to write; the default is standard output.", show_default=False),
    ] = None,
    org: OrgName = None,
    form: Annotated[
        str, typer.Option("--format", help="json (all of it), or jsonl or csv (entities).", metavar="FORMAT")
    ] = "json",
) -> None:
    """Write the catalogue to a file that `almanac catalogue import` reads, here or elsewhere.

    Example: [bold]almanac catalogue export products.json[/bold]
    """
    if form not in _WRITERS:
        raise BadRequest(f"There is no format {form!r}.", remedy=f"The formats are: {', '.join(_WRITERS)}.")
    call = await operator_call.call_for_org(db, org)
    if file is None:
        out = io.StringIO() if sys.stdout.isatty() else sys.stdout
        await _WRITERS[form](call, out)
        if isinstance(out, io.StringIO):
            print_line(out.getvalue())
        return
    partial_file = file.with_name(f".{file.name}.part")
    try:
        with partial_file.open("w", encoding="utf-8", newline="") as out:
            await _WRITERS[form](call, out)
        partial_file.replace(file)
    except OSError as error:
        raise BadRequest(f"The file cannot be written: {error.strerror}.") from None
    finally:
        partial_file.unlink(missing_ok=True)


@catalogue_app.command("share")
@database_command
async def share(
    db: Database,
    user: Annotated[str | None, typer.Option("--user", help="With this user or agent.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="With every member of this group.")] = None,
    role: Annotated[str, typer.Option("--role", help="Developer: may change it.")] = "Developer",
    withdraw: Withdraw = False,
    org: OrgName = None,
) -> None:
    """Let a user, an agent or a group change the catalogue. Everyone in the organisation may read it, and
    administrators may change it anyway.

    Example: [bold]almanac catalogue share --user maria[/bold]
    """
    if (user is None) == (group is None):
        raise BadRequest("Give either --user or --group.")
    granted_role = roles.parse(role)
    org_id = (await orgs.get_by_name(db, org)).id
    grantee: dict[str, int] = {}
    if user is not None:
        grantee["principal_id"] = (await principals.get_by_name(db, org_id, user)).id
    else:
        grantee["group_id"] = (await groups.get_by_name(db, org_id, group or "")).id
    catalogue = catalogue_access.protected_object(org_id)
    if withdraw:
        await db.write(lambda tx: access.revoke_grant(tx, catalogue, **grantee))
    else:
        await db.write(lambda tx: access.grant(tx, catalogue, granted_role, **grantee))


async def _import(db: Database, org: str | None, content: CatalogueFile, is_dry: bool, quiet: bool) -> ImportReport:
    call = await operator_call.call_for_org(db, org)
    started = time.monotonic()
    with open_display(quiet) as display:

        def show(done: int, total: int) -> None:
            rate = f"{done / max(time.monotonic() - started, 0.001):,.0f}/s"
            display.show(Stage("Comparing" if is_dry else "Importing", done, total, "entity", rate=rate))

        return await CatalogueImport(call, content, dry=is_dry).run(show)


_ACTIONS = {
    False: {"add": "added", "change": "changed", "same": "unchanged"},
    True: {"add": "would be added", "change": "would be changed", "same": "would be unchanged"},
}


async def _write_json(call: Call, out: TextIO) -> None:
    """Write the categories and vocabulary, then each entity on one line."""
    frame = json.dumps(await exporter.frame(call), ensure_ascii=False, indent=2)
    out.write(frame.rstrip("}\n").rstrip() + ',\n  "entities": [')
    before = "\n    "
    async for item in exporter.items(call):
        out.write(before + json.dumps(item, ensure_ascii=False))
        before = ",\n    "
    out.write("\n  ]\n}\n")


async def _write_jsonl(call: Call, out: TextIO) -> None:
    async for item in exporter.items(call):
        out.write(json.dumps(item, ensure_ascii=False) + "\n")


async def _write_csv(call: Call, out: TextIO) -> None:
    """Write a column for each metadata key of any entity. Values that are lists or objects are left out."""
    names = sorted({name async for item in exporter.items(call) for name in item["metadata"]})
    line = io.StringIO(newline="")
    writer = csv.writer(line)

    def flush() -> None:
        out.write(line.getvalue())
        line.seek(0)
        line.truncate()

    writer.writerow([*_COLUMNS, *(f"metadata.{name}" for name in names)])
    async for item in exporter.items(call):
        fields = [", ".join(item["tags"]) if name == "tags" else item[name] for name in _COLUMNS]
        writer.writerow([*fields, *(_cell(item["metadata"].get(name)) for name in names)])
        flush()
    flush()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str | int | float) else ""


_WRITERS: dict[str, Callable[[Call, TextIO], Any]] = {"json": _write_json, "jsonl": _write_jsonl, "csv": _write_csv}
