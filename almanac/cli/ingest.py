"""`almanac ingest`: files and folders of the disk into a knowledge base."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from almanac.cli.support import file_walk, operator_call
from almanac.cli.support.ingest_session import open_session
from almanac.cli.support.options import BaseId, Json, NoWait
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.core.settings import Settings
from almanac.knowledge import bases, folders


@database_command
async def ingest(
    db: Database,
    settings: Settings,
    base_id: BaseId,
    paths: Annotated[
        # An unreadable path is reported like any other failed file, so that the other files are still added.
        list[Path],
        typer.Argument(metavar="PATH", readable=False, help="Files, and folders with all their content."),
    ],
    folder: Annotated[
        str, typer.Option("--folder", help="The folder of the base to add them to.", show_default=False)
    ] = "",
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and add new and changed files until Ctrl-C.")] = False,
    no_wait: NoWait = False,
    as_json: Json = False,
) -> None:
    """Add files to a knowledge base, parse them and embed their passages. Folders keep their structure.

    An unchanged file is skipped, and a changed file replaces its document; a file that was removed from the disk stays
    in the base. Hidden files are left out, and links that lead out of a folder. Ctrl-C stops; run the command again to
    go on. Keyword search finds a document once it is parsed, vector search once it is embedded. Exits with 1 if a file
    failed.

    With --json, "added", "replaced", "unchanged" and "retried" count the files that the base has accepted; "failed"
    counts the files that it did not accept and the accepted files that could not be parsed. "queued" files are not
    parsed yet, "left" files were not reached before Ctrl-C, and "skipped" files are listed in "left_out". "pages"
    counts only formats that have pages. "passages" counts all passages of the base, and "embedded" those with a vector.

    Example: [bold]almanac ingest 1 manuals --folder engineering/pumps[/bold]
    """
    _check_folder(folder)
    call = await operator_call.call_for_base(db, base_id)
    await bases.get(db, call, base_id, "write")
    async with open_session(
        call, base_id, settings, is_waiting=not no_wait, as_json=as_json, is_watching=watch
    ) as session:
        if watch:
            await session.watch(paths, folder)
        else:
            files = await asyncio.to_thread(file_walk.walk, paths, folder, settings.home)
            await session.add(files.found, files.skipped)
    raise typer.Exit(session.exit_code)


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
