"""Commands about the catalogue: filling it from a file, writing it to one, and saying who may change it."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console

from almanac.catalogue import access as catalogue_access
from almanac.catalogue import catalogue_file, exporter
from almanac.catalogue.catalogue_file import CatalogueFile
from almanac.catalogue.importer import CatalogueImport, ImportReport
from almanac.cli.support import operator_call
from almanac.cli.support.progress import Stage, display
from almanac.cli.support.terminal import Home, Json, OrgName, print_line, settings_at, with_database
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import access, groups, principals, roles

catalogue_app = typer.Typer(
    help="The catalogue: things in a tree of categories, and the namespaces they are searched by.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

_COLUMNS = ("_id", "name", "category", "description", "details", "source", "sku", "status", "tags")


@catalogue_app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .json, .jsonl or .csv file.", show_default=False)],
    org: OrgName = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would change.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Fill the catalogue from a file: what is in it is added or changed, what is not in it stays. JSON holds a whole
    catalogue (aliases, policies, a nested tree of categories, namespaces, entities) or a list of entities; JSONL has an
    entity in each line; CSV has a row for each, and columns it does not know become metadata. Interrupted, it can be
    started again.

    Example: [bold]almanac catalogue import products.json --dry-run[/bold]
    """
    settings_at(home)  # a mistake in the settings is said before a long file is read
    read = catalogue_file.read(file)
    report = with_database(home, lambda db: _bring(db, org, read, dry_run, as_json))
    if as_json:
        print_line(json.dumps(_as_object(report, dry_run), ensure_ascii=False))
        return
    console = Console(highlight=False, soft_wrap=True)
    for each in report.changes if dry_run else ():
        fields = f" ({', '.join(each.fields)})" if each.fields else ""
        console.print(f"{each.action} {each.what} {each.name}{fields}", markup=False)
    for (what, action), number in sorted(report.counts.items()):
        console.print(f"{number:,} × {what}: {_DONE[dry_run][action]}", markup=False)


@catalogue_app.command("export")
def export_file(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to; standard output if left out.", show_default=False)
    ] = None,
    org: OrgName = None,
    form: Annotated[
        str, typer.Option("--format", help="json (all of it), or jsonl or csv (entities).", metavar="FORMAT")
    ] = "json",
    home: Home = None,
) -> None:
    """Write the catalogue to a file that it can be imported from again, here or elsewhere.

    Example: [bold]almanac catalogue export products.json[/bold]
    """
    if form not in _WRITERS:
        raise BadRequest(f"There is no format {form!r}.", remedy=f"The formats are: {', '.join(_WRITERS)}.")

    async def work(db: Database) -> None:
        call = await operator_call.call_for_org(db, org)
        if file is None:
            await _WRITERS[form](call, sys.stdout)
            return
        draft = file.with_name(f".{file.name}.part")
        try:
            with draft.open("w", encoding="utf-8", newline="") as out:
                await _WRITERS[form](call, out)
            draft.replace(file)
        except OSError as error:
            raise BadRequest(f"The file cannot be written: {error.strerror}.") from None
        finally:
            draft.unlink(missing_ok=True)

    with_database(home, work)


@catalogue_app.command("share")
def share(
    user: Annotated[str | None, typer.Option("--user", help="With this user or agent.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="With every member of this group.")] = None,
    role: Annotated[str, typer.Option("--role", help="Developer: may change it.")] = "Developer",
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take their role back.")] = False,
    org: OrgName = None,
    home: Home = None,
) -> None:
    """Let a user, an agent or a group change the catalogue. Everyone in the organisation may read it, and
    administrators may change it anyway.

    Example: [bold]almanac catalogue share --user maria[/bold]
    """
    if (user is None) == (group is None):
        raise BadRequest("Say with whom.", remedy="Give either --user or --group.")
    held = roles.parse(role)

    async def work(db: Database) -> None:
        call = await operator_call.call_for_org(db, org)
        org_id = call.actor.org_id
        to: dict[str, int] = {}
        if user is not None:
            to["principal_id"] = (await principals.get_by_name(db, org_id, user)).id
        else:
            to["group_id"] = (await groups.get_by_name(db, org_id, group or "")).id
        thing = catalogue_access.protected_object(org_id)
        if withdraw:
            await db.write(lambda tx: access.revoke_grant(tx, thing, **to))
        else:
            await db.write(lambda tx: access.grant(tx, thing, held, **to))

    with_database(home, work)


async def _bring(db: Database, org: str | None, read: CatalogueFile, dry: bool, quiet: bool) -> ImportReport:
    call = await operator_call.call_for_org(db, org)
    begun = time.monotonic()
    with display(quiet) as shown:

        def show(done: int, total: int) -> None:
            rate = f"{done / max(time.monotonic() - begun, 0.001):,.0f}/s"
            shown.show(Stage("Comparing" if dry else "Importing", done, total, "entity", rate=rate))

        return await CatalogueImport(call, read, dry=dry).run(show)


def _as_object(report: ImportReport, dry: bool) -> dict[str, Any]:
    counts: dict[str, dict[str, int]] = {}
    for (what, action), number in sorted(report.counts.items()):
        counts.setdefault(what, {})[action] = number
    changes = [{"action": it.action, "what": it.what, "name": it.name, "fields": it.fields} for it in report.changes]
    return {"dry_run": dry, "counts": counts, "changes": changes}


_DONE = {
    False: {"add": "added", "change": "changed", "same": "left as they were"},
    True: {"add": "would be added", "change": "would be changed", "same": "would be left as they are"},
}


async def _write_json(call: Call, out: TextIO) -> None:
    """The frame, with the entities one to a line."""
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
    """A column for each key that any entity's metadata has; what is no single value is left out."""
    names = sorted({name async for item in exporter.items(call) for name in item["metadata"]})
    line = io.StringIO(newline="")
    writer = csv.writer(line)

    def flush() -> None:
        out.write(line.getvalue())
        line.seek(0)
        line.truncate()

    writer.writerow([*_COLUMNS, *(f"metadata.{name}" for name in names)])
    async for item in exporter.items(call):
        own = [", ".join(item["tags"]) if name == "tags" else item[name] for name in _COLUMNS]
        writer.writerow([*own, *(_cell(item["metadata"].get(name)) for name in names)])
        flush()
    flush()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str | int | float) else ""


_WRITERS: dict[str, Callable[[Call, TextIO], Any]] = {"json": _write_json, "jsonl": _write_jsonl, "csv": _write_csv}
