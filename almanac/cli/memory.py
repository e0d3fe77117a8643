"""Commands about what agents have learnt: taking notes out and in as lines of JSON, and how many may be stored."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from almanac.cli.support import operator_call
from almanac.cli.support.terminal import Home, Json, OrgName, print_line, print_rows, settings_at, with_database
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import orgs
from almanac.memory import import_export
from almanac.memory.import_export import Imported
from almanac.quotas import allowances, usage

memory_app = typer.Typer(
    help="What agents have learnt: notes, out and in.", no_args_is_help=True, rich_markup_mode="rich"
)
quota_app = typer.Typer(
    help="How much an organisation may use in a month.", no_args_is_help=True, rich_markup_mode="rich"
)

_UNLIMITED = "unlimited"


@memory_app.command("export")
def export_notes(org: OrgName = None, home: Home = None) -> None:
    """Print every note of an organisation as a line of JSON: superseded and expired ones too, with their links.

    Example: [bold]almanac memory export --org Acme > notes.jsonl[/bold]
    """

    async def work(db: Database) -> None:
        async for line in import_export.export(await operator_call.call_for_org(db, org)):
            print_line(json.dumps(line, ensure_ascii=False))

    with_database(home, work)


@memory_app.command("import")
def import_notes(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of JSON.", dir_okay=False, exists=True)],
    user: Annotated[
        str, typer.Option("--user", help="Whose the notes become if their author is not known.", show_default=False)
    ],
    org: OrgName = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Take notes in from lines of JSON, as [bold]almanac memory export[/bold] prints them; "id", "title" and "body" are
    enough.

    Notes that are there already stay as they are, so that an import can be repeated. A line that cannot be taken is
    named with the reason, the others are taken all the same, and the exit status is 1. Nothing is counted against a
    quota.

    Example: [bold]almanac memory import notes.jsonl --user release-bot[/bold]
    """

    async def work(db: Database) -> Imported:
        call = await operator_call.call_for_org(db, org, user)
        told = Imported()
        for step in (import_export.import_notes, import_export.link):
            for batch in _batches(file):
                await step(call, batch, told)
        return told

    told = with_database(home, work)
    counts = {"stored": told.stored, "known": told.known, "linked": told.linked, "refused": len(told.refused)}
    print_rows([counts], as_json, empty="")
    for number, why in sorted(set(told.refused)):
        typer.echo(f"line {number}: {why}", err=True)
    if told.refused:
        raise typer.Exit(1)


@quota_app.command("set")
def set_quota(
    metric: Annotated[str, typer.Argument(metavar="METRIC", help=f"{', '.join(allowances.METRICS)}.")],
    number: Annotated[str, typer.Argument(metavar="NUMBER", help=f"A month, or '{_UNLIMITED}'.")],
    org: OrgName = None,
    home: Home = None,
) -> None:
    """Settle how much of something an organisation may use in a UTC month; it counts from the next call on.

    Example: [bold]almanac quota set knowledge_stored 10000 --org Acme[/bold]
    """
    most = _number(number)

    async def work(db: Database) -> None:
        owner = await orgs.get_by_name(db, org)
        await db.write(lambda tx: allowances.set_monthly_limit(tx, owner.id, metric, most))

    with_database(home, work)


@quota_app.command("list")
def list_quotas(org: OrgName = None, home: Home = None, as_json: Json = False) -> None:
    """Show what an organisation may use in a month, and what it has used in this one.

    Example: [bold]almanac quota list --json[/bold]
    """
    usual = {"knowledge_stored": settings_at(home).memory_notes_a_month}

    async def work(db: Database) -> list[dict[str, str | int]]:
        owner = await orgs.get_by_name(db, org)
        used = await usage.used(db, owner.id)
        found = {name: await allowances.monthly_limit(db, owner.id, name, usual[name]) for name in allowances.METRICS}
        return [
            {"metric": name, "most": _UNLIMITED if most is None else most, "used": used.get(name, 0)}
            for name, most in found.items()
        ]

    print_rows(with_database(home, work), as_json, empty="")


def _number(text: str) -> int | None:
    if text == _UNLIMITED:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise BadRequest(f"{text[:20]!r} is not a number of uses.", remedy=f"Give a whole number, or {_UNLIMITED!r}.")
    return int(text)


def _batches(file: Path) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file with their numbers, some at a time."""
    with file.open("rb") as lines:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        while batch := list(islice(numbered, import_export.BATCH_NOTES)):
            yield batch
