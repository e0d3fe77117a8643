"""The commands on the rows of datasets: push, query and verify."""

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from almanac.cli.support.dataset_call import ActAs, call_as, call_on, open_data_request
from almanac.cli.support.operation_call import parse_arguments, print_answer
from almanac.cli.support.options import Json, OrgName
from almanac.cli.support.output import print_line, print_note, print_rows
from almanac.cli.support.progress import counted
from almanac.cli.support.row_export import cell
from almanac.cli.support.row_input import Row, open_input, read_parts
from almanac.cli.support.startup import database_command
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import AlmanacError, BadRequest, NotFound
from almanac.core.settings import Settings
from almanac.data.datasets import NoSuchDataset
from almanac.operations import data_rows as operations
from almanac.operations.context import RequestContext
from almanac.operations.data_rows import PushData, PushedRows, QueryData, QueryRows, VerifyResult

DEFAULT_LIMIT = 100


@database_command
async def push_rows(
    db: Database,
    settings: Settings,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A dataset, created if it is new.", show_default=False)],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Lines of JSON, or a JSON array; standard input if left out.", show_default=False
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="append; replace (all rows, if there are new ones); replace_even_if_empty; upsert (by --keys); expire"
            " (append, and drop rows older than --keep-for).",
            metavar="STRATEGY",
        ),
    ] = "append",
    keys: Annotated[
        list[str] | None, typer.Option("--keys", help="upsert: a field that identifies a row; may be repeated.")
    ] = None,
    date_field: Annotated[str, typer.Option("--date-field", help="expire: the field with the date.")] = "",
    keep_for: Annotated[str, typer.Option("--keep-for", help="expire: such as 90d or 3m (months).")] = "",
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="A repeat within 24 hours with it stores nothing.")
    ] = None,
    user: ActAs = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Push rows to a dataset: one JSON object on each line, or one JSON array. The user who pushes to a new name owns
    the dataset.

    Readers see all rows of a push or none. More than 50,000 rows or 16 MiB are pushed in parts, each a version of its
    own; with --strategy replace, the first part replaces and the others are appended. An array is read into memory
    whole, lines are not.

    Example: [bold]echo '{"city": "Graz", "amount": 12.5}' | almanac data push Orders --user maria[/bold]
    """
    options = {
        "strategy": strategy, "keys": keys or [], "date_field": date_field, "keep_for": keep_for,
        "idempotency_key": idempotency_key,
    }  # fmt: skip
    call = await _pusher(db, org, user, name)
    with open_input(file, sys.stdin.buffer) as source:
        async with open_data_request(settings, call) as ctx:
            answer = await _push(ctx, name, read_parts(source), options)
    if as_json:
        print_answer(answer)
    else:
        _print_push(answer)


@database_command
async def query_rows(
    db: Database,
    settings: Settings,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="A SELECT over datasets by name (DuckDB's SQL).", show_default=False),
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="With --c9ql: its name or id.")] = None,
    c9ql: Annotated[str | None, typer.Option("--c9ql", help="Cloud9QL over one dataset, in place of SQL.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="How many rows are printed.")] = DEFAULT_LIMIT,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="The rows as they were at this time (ISO 8601, UTC).")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    with_receipt: Annotated[
        bool, typer.Option("--receipt", help="Also print the receipt, on standard error; --json always has it.")
    ] = False,
    user: ActAs = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Query the rows of datasets, with the row rules of the user. A name with spaces needs double quotes in SQL.

    Example: [bold]almanac data query "SELECT city, sum(amount) AS total FROM Orders GROUP BY city" --user
    maria[/bold]
    """
    if as_json and as_csv:
        raise BadRequest("Give either --json or --csv.")
    arguments = parse_arguments(QueryData, sql=sql, dataset=dataset, c9ql=c9ql, limit=limit, as_of=as_of)
    async with open_data_request(settings, await call_as(db, org, user)) as ctx:
        answer = await operations.query_data(ctx, arguments)
    if as_json:
        print_answer(answer)
        return
    if as_csv:
        _print_csv(answer)
    else:
        print_rows([_cells(answer, row) for row in answer.rows], False, empty="No rows.")
    if answer.truncated:
        print_note(f"{answer.truncated} --limit sets how many rows are printed.")
    if with_receipt:
        print_note(answer.receipt)


@database_command
async def verify_result(
    db: Database,
    settings: Settings,
    receipt: Annotated[
        str,
        typer.Argument(
            metavar="RECEIPT",
            help="A receipt; or - to read one, or the output of a query with --json, from standard input.",
            show_default=False,
        ),
    ],
    user: ActAs = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Run the query of a receipt again on the versions that it read. Confirms the result, and lists later changes of
    the datasets. It exits with 1 if the result is not confirmed. Use the same user as for the query: others may see
    other rows.

    Example: [bold]almanac data query "SELECT count(*) AS n FROM Orders" --json | almanac data verify -[/bold]
    """
    text = _read_receipt(sys.stdin.read()) if receipt == "-" else receipt
    arguments = parse_arguments(VerifyResult, receipt=text)
    async with open_data_request(settings, await call_as(db, org, user)) as ctx:
        answer = await operations.verify_result(ctx, arguments)
    if as_json:
        print_answer(answer)
    else:
        print_line("Confirmed." if answer.confirmed else f"Not confirmed: {answer.reason}")
        print_line(f"Query: {answer.query}")
        print_line(f"Asked at {answer.at} by {answer.by}; {counted(answer.rows_read, 'row')} read.")
        for read in answer.datasets:
            print_line(f"Read: {read.name}, version {read.version}, {counted(read.rows, 'row')}")
        for change in answer.changes_since:
            print_line(f"Changed since: version {change.version}, {change.change}, {change.at}")
    if not answer.confirmed:
        raise typer.Exit(1)


async def _pusher(db: Database, org: str | None, user: str | None, name: str) -> Call:
    if user is not None:
        return await call_as(db, org, user)
    try:
        call, _ = await call_on(db, org, None, name)
    except NoSuchDataset:
        raise NotFound(
            f"There is no dataset {name!r}.", remedy="To create it, name its owner with --user USER."
        ) from None
    return call


async def _push(ctx: RequestContext, name: str, parts: Iterator[list[Row]], options: dict[str, Any]) -> PushedRows:
    """Push each part. The answer is that of all parts together."""
    answer = await _push_part(ctx, name, next(parts, list[Row]()), options, 1)
    try:
        for number, rows in enumerate(parts, 2):
            if number == 2:
                print_note("The rows are pushed in parts; each is a version of its own.")
                _note_part(1, answer.pushed, answer)
            later = await _push_part(ctx, name, rows, options, number)
            _note_part(number, later.pushed, later)
            answer = _joined(answer, later)
    except AlmanacError:
        print_note(f"{counted(answer.pushed, 'row')} of the parts before are stored.")
        raise
    return answer


async def _push_part(
    ctx: RequestContext, name: str, rows: list[Row], options: dict[str, Any], number: int
) -> PushedRows:
    options = dict(options)
    if number > 1:
        if options["strategy"].startswith("replace"):
            options["strategy"] = "append"
        if options["idempotency_key"] is not None:
            options["idempotency_key"] += f"#{number}"
    return await operations.push_data(ctx, parse_arguments(PushData, dataset=name, rows=rows, **options))


def _joined(before: PushedRows, later: PushedRows) -> PushedRows:
    return PushedRows(
        dataset_id=later.dataset_id,
        dataset=later.dataset,
        created=before.created,
        pushed=before.pushed + later.pushed,
        rows=later.rows,
        version=later.version,
        widened=before.widened + later.widened,
        repeated=before.repeated and later.repeated,
    )


def _note_part(number: int, pushed: int, answer: PushedRows) -> None:
    print_note(f"Part {number}: {counted(pushed, 'row')}, version {answer.version}")


def _print_push(answer: PushedRows) -> None:
    if answer.repeated:
        print_line(f"{answer.dataset}: these rows were pushed before with the same key; nothing was stored.")
        return
    created = " (new)" if answer.created else ""
    print_line(
        f"{answer.dataset}{created}: {counted(answer.pushed, 'row')} pushed; version {answer.version} has"
        f" {counted(answer.rows, 'row')}"
    )
    for each in answer.widened:
        print_line(f"The field {each.field} changed from {each.before} to {each.now}.")


def _read_receipt(text: str) -> str:
    """The receipt in a text, which is one itself or the JSON answer of a query."""
    if not text.lstrip().startswith("{"):
        return text.strip()
    try:
        return str(orjson.loads(text)["receipt"])
    except (orjson.JSONDecodeError, KeyError):
        raise BadRequest("The input has no receipt.", remedy="Pipe the output of a query with --json.") from None


def _cells(answer: QueryRows, row: Row) -> dict[str, str | None]:
    return {field.name: cell(row[field.name]) for field in answer.fields}


def _print_csv(answer: QueryRows) -> None:
    # A terminal obeys control characters in values; a program gets the exact values.
    out = io.StringIO() if sys.stdout.isatty() else sys.stdout
    writer = csv.writer(out, lineterminator="\n")
    names = [field.name for field in answer.fields]
    writer.writerow(names)
    writer.writerows([cell(row[name]) for name in names] for row in answer.rows)
    if isinstance(out, io.StringIO):
        print_line(out.getvalue().rstrip("\n"))
