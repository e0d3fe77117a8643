"""`almanac search`: search as a user or agent, with their permissions."""

from typing import Annotated

import typer
from rich.text import Text

from almanac.cli.support import operator_call
from almanac.cli.support.operation_call import open_request, parse_arguments, print_answer
from almanac.cli.support.options import Json, OrgName, SearchMode
from almanac.cli.support.output import output_console, print_note
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.core.settings import Settings
from almanac.identity import orgs, principals
from almanac.operations import search as operations
from almanac.operations.search import ResultInfo, ResultList
from almanac.search.analysis import highlights


@database_command
async def search(
    db: Database,
    settings: Settings,
    query: Annotated[str, typer.Argument(metavar="QUESTION", help="A question, or words.", show_default=False)],
    user: Annotated[
        str, typer.Option("--user", help="Search as this user or agent, with their permissions.", show_default=False)
    ],
    bases: Annotated[
        list[str] | None,
        typer.Option("--kb", help="Only this knowledge base, by its id or name; may be repeated.", show_default=False),
    ] = None,
    mode: SearchMode = "hybrid",
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=50, help="How many passages.")] = 10,
    min_score: Annotated[float, typer.Option("--min-score", min=0, max=1, help="Only passages this good.")] = 0.0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print timings and the number of passages after each stage.")
    ] = False,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """Search the documents that a user may read, and show the passages that answer best.

    The number before each passage is the estimated probability that it answers, a cautious guess. The command works
    beside a running server, and without one. It exits with 0 also if it finds nothing.

    Example: [bold]almanac search "How often is the pump oiled?" --user maria --kb 1[/bold]
    """
    organisation = await orgs.get_by_name(db, org)
    arguments = parse_arguments(
        operations.Search,
        query=query,
        base_ids=[await operator_call.base_id(db, key, organisation.id) for key in bases or ()],
        mode=mode,
        limit=top_k,
        min_score=min_score,
        explain=explain,
        highlight=True,
    )
    principal = await principals.get_by_name(db, organisation.id, user)
    call = operator_call.call_as_principal(db, organisation, principal)
    async with open_request(settings, call) as ctx:
        results = await operations.search(ctx, arguments)
    if as_json:
        print_answer(results)
    else:
        _print_results(results)


def _print_results(results: ResultList) -> None:
    console = output_console()
    for result in results.results:
        console.print(_heading(result))
        console.print(_snippet(result), "", sep="\n")
    if results.explanation is not None:
        for name, number in results.explanation.passages.items():
            console.print(f"{name.replace('_', ' ')}: {number:,} passages", style="dim")
        for name, milliseconds in results.explanation.milliseconds.items():
            console.print(f"{name.replace('_', ' ')}: {milliseconds:.1f} ms", style="dim")
    for note in results.notes:
        print_note(f"Note: {note}")
    if not results.results:
        print_note("Nothing found.")


def _heading(result: ResultInfo) -> Text:
    """Return a line such as: 0.91  Pump P-40 › Care, page 2  document:12"""
    colour = "green" if result.score > 0.8 else "yellow" if result.score > 0.5 else "dim"
    path = " › ".join((result.title, *(heading for heading in result.headings if heading != result.title)))
    page = "" if result.page is None else f", page {result.page}"
    line = Text(f"{result.score:.2f}  ", colour)
    line.append(f"{path}{page}", "bold")
    return line.append(f"  {result.id}", "dim")


def _snippet(result: ResultInfo) -> Text:
    """Return some lines of a passage around the words of the query."""
    spans = [(start, end) for start, end in result.highlights]
    snippet = Text(highlights.snippet(result.text, spans))
    snippet.highlight_words({result.text[start:end] for start, end in spans}, "bold yellow")
    return snippet
