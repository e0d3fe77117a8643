"""`almanac retry`: parse the failed documents of a knowledge base again."""

import typer

from almanac.cli.support import operator_call
from almanac.cli.support.ingest.ingest_run import IngestRun
from almanac.cli.support.ingest.ingest_session import open_session, parse_wait
from almanac.cli.support.options import BaseKey, Json, NoWait, WaitForVectors
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.knowledge import document_status, documents


@database_command
async def retry(
    db: Database,
    settings: Settings,
    base: BaseKey,
    wait: WaitForVectors = False,
    no_wait: NoWait = False,
    as_json: Json = False,
) -> None:
    """Parse every failed document of a knowledge base again. Exits with 1 if one fails again.

    Example: [bold]almanac retry 1[/bold]
    """
    awaited = parse_wait(wait, no_wait)
    base_id = await operator_call.base_id(db, base)
    call = await operator_call.call_for_base(db, base_id)
    failed = await document_status.find_with_paths(call, base_id, "failed")
    await documents.retry_all(call, base_id)
    run = IngestRun(call, base_id)
    run.expect(failed)
    async with open_session(call, base_id, settings, wait=awaited, as_json=as_json) as session:
        await session.follow(run, [])
    raise typer.Exit(session.exit_code)
