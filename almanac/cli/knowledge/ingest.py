"""`almanac ingest`: files and folders of the disk into a knowledge base."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from almanac.cli.support import operator_call
from almanac.cli.support.ingest import file_walk, folder_changes, ingest_report
from almanac.cli.support.ingest.file_walk import WalkResult
from almanac.cli.support.ingest.ingest_session import open_session, parse_wait
from almanac.cli.support.options import BaseKey, Json, NoWait, WaitForVectors
from almanac.cli.support.output import print_note
from almanac.cli.support.startup import database_command
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.knowledge import bases, folders


@database_command
async def ingest(
    db: Database,
    settings: Settings,
    base: BaseKey,
    paths: Annotated[
        # An unreadable path is reported like any other failed file, so that the other files are still added.
        list[Path],
        typer.Argument(metavar="PATH", readable=False, help="Files, and folders with all their content."),
    ],
    folder: Annotated[
        str, typer.Option("--folder", help="The folder of the base to add them to.", show_default=False)
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and add new and changed files until Ctrl-C.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Also rename or remove the documents of renamed or removed files.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the changes.")] = False,
    wait: WaitForVectors = False,
    no_wait: NoWait = False,
    as_json: Json = False,
) -> None:
    """Add files to a knowledge base and parse them. Folders keep their structure.

    An unchanged file is skipped, and a changed file replaces its document; the document of a file that was removed from
    the disk stays in the base. Hidden files are left out, and links that lead out of a folder. Ctrl-C stops; run the
    command again to go on. Exits with 1 if a file failed.

    With --prune, a document below --folder without a file goes to the trash. If a new file has the same content and
    ending, its document is renamed instead and keeps its id. Nothing is removed while a file cannot be read.

    The command ends when keyword search finds the documents. A running server or worker then embeds their passages, so
    that vector search finds them too; with --wait, the command itself embeds them and waits.

    With --json, "added", "replaced", "unchanged" and "retried" count the files that the base has accepted; "failed"
    counts the files that it did not accept and the accepted files that could not be parsed. "queued" files are not
    parsed yet, "left" files were not reached before Ctrl-C, and "skipped" files are listed in "left_out". "pages"
    counts only formats that have pages. "passages" counts all passages of the base, and "embedded" those with a vector.
    "seconds" is the duration of parsing, and "embedding_seconds" that of waiting for vectors.

    Example: [bold]almanac ingest 1 manuals --folder engineering/pumps[/bold]
    """
    _check_folder(folder)
    _check_options(paths, watch=watch, prune=prune, dry_run=dry_run)
    awaited = parse_wait(wait, no_wait)
    base_id = await operator_call.base_id(db, base)
    call = await operator_call.call_for_base(db, base_id)
    await bases.get(db, call, base_id, "write")
    if dry_run:
        files = await asyncio.to_thread(file_walk.walk, paths, folder, settings.home)
        raise typer.Exit(await _preview(call, base_id, folder, files, settings.max_file_bytes, prune, as_json))
    async with open_session(call, base_id, settings, wait=awaited, as_json=as_json, is_watching=watch) as session:
        if watch:
            await session.watch(paths, folder, prune=prune)
        else:
            files = await asyncio.to_thread(file_walk.walk, paths, folder, settings.home)
            changes = await session.prune(folder, files.found) if prune else []
            await session.add(files.found, files.skipped, changes)
    raise typer.Exit(session.exit_code)


async def _preview(
    call: Call, base_id: int, folder: str, files: WalkResult, max_bytes: int, prune: bool, as_json: bool
) -> int:
    """Print what an ingest would do, and return the exit status."""
    changes = await folder_changes.open_changes(call, base_id)
    if prune:
        if reason := folder_changes.keep_reason(files.found):
            print_note(reason)
        else:
            await changes.find_missing(folder, files.found)
    preview = await asyncio.to_thread(changes.preview, files.found, max_bytes)
    ingest_report.print_preview(base_id, preview, files.skipped, as_json=as_json)
    return int(any(change.action == "failed" for change in preview))


def _check_options(paths: list[Path], *, watch: bool, prune: bool, dry_run: bool) -> None:
    if dry_run and watch:
        raise BadRequest("--dry-run and --watch exclude each other.", remedy="Leave one of them out.")
    if prune and (other := next((path for path in paths if not path.is_dir()), None)):
        raise BadRequest(f"--prune compares folders, and {str(other)!r} is none.", remedy="Name only folders.")


def _check_folder(path: str) -> None:
    """Report a wrong folder once, and not for each file."""
    names = [name for name in path.split("/") if name.strip()]
    if len(names) > folders.MAX_FOLDER_DEPTH:
        raise BadRequest(f"--folder: Folders can be {folders.MAX_FOLDER_DEPTH} deep and no deeper.")
    for name in names:
        try:
            folders.check_name(name)
        except BadRequest:
            raise BadRequest(
                f"--folder: {name!r} cannot be the name of a folder.",
                remedy=f"Use names of 1 to {folders.MAX_NAME_CHARS} characters with slashes between them, and no '..'.",
            ) from None
