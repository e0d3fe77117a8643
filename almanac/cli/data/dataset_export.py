"""The command that writes the rows of a dataset to a file."""

from pathlib import Path
from typing import Annotated

import typer

from almanac.cli.support.dataset_call import ActAs, DatasetKey, call_on, open_data_request
from almanac.cli.support.options import OrgName
from almanac.cli.support.output import print_line
from almanac.cli.support.progress import Display, Stage, counted, open_display
from almanac.cli.support.row_export import RowFile, open_row_file
from almanac.cli.support.startup import database_command
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import Conflict
from almanac.core.settings import Settings
from almanac.data import run
from almanac.data.dataset import Dataset
from almanac.data.engine import DataEngine
from almanac.data.run import DataQuery
from almanac.memory.note_text import parse_timestamp

PAGE_ROWS = 50_000


@database_command
async def export_rows(
    db: Database,
    settings: Settings,
    name: DatasetKey,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .csv, .ndjson or .parquet file to write.", show_default=False)
    ],
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="The rows as they were at this time (ISO 8601, UTC).")
    ] = None,
    user: ActAs = None,
    org: OrgName = None,
) -> None:
    """Write the rows and fields of a dataset that the user may see to a file. Rows are read in pages, so memory does
    not grow with the dataset, and all of them are of one version.

    CSV has the values as they are stored: a text such as =1+1 stays the same, because programs that read the file need
    the stored value. A spreadsheet may run such a text as a formula, so import the columns as text there.

    Example: [bold]almanac data export Orders orders.csv --user maria[/bold]
    """
    call, dataset = await call_on(db, org, user, name)
    moment = clock.now() if as_of is None else parse_timestamp("as_of", as_of)
    async with open_data_request(settings, call) as ctx:
        with open_display(quiet=False) as display, open_row_file(file, ctx.app.data) as out:
            rows = await _export(ctx, ctx.app.data, dataset, moment, out, display)
    print_line(f"{file}: {counted(rows, 'row')}")


async def _export(call: Call, engine: DataEngine, dataset: Dataset, moment: int, out: RowFile, display: Display) -> int:
    """Write all rows; return their number."""
    quoted = '"' + dataset.name.replace('"', '""') + '"'
    done, total, version = 0, None, None
    while total is None or done < total:
        sql = f"SELECT * FROM {quoted} OFFSET {done}"  # noqa: S608 - the name is quoted
        answer = await run.run(call, engine, DataQuery(sql, limit=PAGE_ROWS, as_of=moment))
        read = answer.receipt.datasets
        if version not in (None, read):
            raise Conflict("The dataset changed while it was read.", remedy="Export it again.")
        version, total = read, done + answer.total_rows
        await out.write(answer.fields, answer.rows)
        done += len(answer.rows)
        display.show(Stage("Exporting", done, total, "row"))
        if not answer.rows:
            break
    return done
