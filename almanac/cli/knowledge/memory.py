"""`almanac memory`: the export and import of notes, as lines of JSON."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from almanac.cli.support import operator_call
from almanac.cli.support.options import Json, OrgName, command_group
from almanac.cli.support.output import print_json, print_note, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.memory import import_export
from almanac.memory.import_export import Imported

memory_app = command_group("The notes of agents: export and import.")


@memory_app.command("export")
@database_command
async def export_notes(db: Database, org: OrgName = None) -> None:
    """Print every note of an organisation as a line of JSON: superseded and expired notes too, with their links.

    Example: [bold]almanac memory export --org Acme > notes.jsonl[/bold]
    """
    async for line in import_export.export(await operator_call.call_for_org(db, org)):
        print_json(line)


@memory_app.command("import")
@database_command
async def import_notes(
    db: Database,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of JSON.", dir_okay=False, exists=True)],
    user: Annotated[
        str, typer.Option("--user", help="The author of notes whose author is unknown.", show_default=False)
    ],
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Import notes from lines of JSON, as [bold]almanac memory export[/bold] prints them; "id", "title" and "body" are
    enough.

    Existing notes stay unchanged, so an import can be repeated. A line with an error is reported with its number and
    the reason, the other lines are imported, and the exit status is 1. Imported notes do not count against a quota.

    Example: [bold]almanac memory import notes.jsonl --user release-bot[/bold]
    """
    call = await operator_call.call_for_org(db, org, user)
    imported = Imported()
    for step in (import_export.import_notes, import_export.link):
        for batch in _batches(file):
            await step(call, batch, imported)
    counts = {
        "stored": imported.stored,
        "known": imported.known,
        "linked": imported.linked,
        "refused": len(imported.refused),
    }
    print_rows([counts], as_json, empty="")
    for number, reason in sorted(set(imported.refused)):
        print_note(f"line {number}: {reason}")
    if imported.refused:
        raise typer.Exit(1)


def _batches(file: Path) -> Iterator[list[tuple[int, bytes]]]:
    """Return batches of lines with their numbers."""
    with file.open("rb") as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        while batch := list(islice(numbered, import_export.BATCH_NOTES)):
            yield batch
