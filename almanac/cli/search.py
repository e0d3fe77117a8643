"""The command that searches, as somebody: with their permissions, and nobody else's."""

import json
import re
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from almanac.cli.support.terminal import Home, Json, OrgName, print_line, settings_at, with_database
from almanac.core import scopes
from almanac.core.arguments import describe_problems
from almanac.core.call import Actor, Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import orgs, principals
from almanac.identity.orgs import Org
from almanac.identity.principals import Principal
from almanac.knowledge import document_search
from almanac.knowledge.document_search import DocumentResult, DocumentResults, SearchArguments
from almanac.search.analysis import highlights
from almanac.search.backends import open_search
from almanac.search.query import SearchResult

# What a terminal would take for a command, and what would turn the direction of a line.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

Mode = Annotated[
    str,
    typer.Option("--mode", help="hybrid, vector (by meaning) or keyword (by exact words).", metavar="MODE"),
]


def search(
    query: Annotated[str, typer.Argument(metavar="QUESTION", help="A question, or words.", show_default=False)],
    user: Annotated[
        str, typer.Option("--user", help="Search as this user or agent: what they may read.", show_default=False)
    ],
    bases: Annotated[
        list[int] | None, typer.Option("--kb", help="Only this knowledge base; may be repeated.", show_default=False)
    ] = None,
    mode: Mode = "hybrid",
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=50, help="How many passages.")] = 10,
    min_score: Annotated[float, typer.Option("--min-score", min=0, max=1, help="Only those this good.")] = 0.0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also say how it went: timings, what was dropped.")
    ] = False,
    org: OrgName = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Search the documents that somebody may read, and show the passages that answer best, with how sure it is.

    The number before each is how likely it answers, a cautious guess. Works beside a running server, and without one.
    Exits with 0 also if nothing is found.

    Example: [bold]almanac search "How often is the pump oiled?" --user maria --kb 1[/bold]
    """
    settings = settings_at(home)
    inquiry = inquire(query=query, bases=bases or [], mode=mode, limit=top_k, min_score=min_score, explain=explain)

    async def work(db: Database) -> DocumentResults:
        owner = await orgs.get_by_name(db, org)
        call = call_of(db, owner, await principals.get_by_name(db, owner.id, user))
        async with open_search(settings, db) as opened:
            return await document_search.search_documents(call, opened, inquiry)

    found = with_database(home, work)
    if as_json:
        print_line(json.dumps(_as_object(found, settings.url, explain), ensure_ascii=False))
    else:
        _show(found, explain)


def inquire(**given: Any) -> SearchArguments:
    """An inquiry, or an error that says what is wrong with it."""
    try:
        return SearchArguments.model_validate(given)
    except ValidationError as error:
        raise BadRequest(describe_problems(error, "is not taken here")) from None


def call_of(db: Database, org: Org, principal: Principal) -> Call:
    """A call by somebody who may do what their roles allow, as with a token that has every scope."""
    actor = Actor(
        id=principal.id,
        name=principal.name,
        kind=principal.kind,
        org_id=org.id,
        org_name=org.name,
        is_admin=principal.is_admin,
        token_id=0,
        token_kind="operator",  # noqa: S106 - there is no token
        scopes=frozenset(scopes.SCOPES),
    )
    return Call(actor, db, "command-line")


def _as_object(found: DocumentResults, public: str, explain: bool) -> dict[str, Any]:
    shown = {"results": [_result(hit, public) for hit in found.hits], "has_more": found.has_more, "notes": found.notes}
    return {**shown, **({"milliseconds": found.timings, "passages": found.counts} if explain else {})}


def _result(hit: DocumentResult, public: str) -> dict[str, Any]:
    found = hit.found
    return {
        "id": hit.id,
        "base_id": hit.base_id,
        "title": found.title,
        "url": document_search.url_of(public, hit.document_id, hit.source_url),
        "score": round(found.score, 4),
        "text": found.text,
        "headings": found.headings,
        "page": found.page,
        "boxes": found.boxes,
        "span": (found.start, found.end),
        "hash": found.hash,
        "legs": found.legs,
        "highlights": found.highlights,
    }


def _show(found: DocumentResults, explain: bool) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(width=10_000, highlight=False)
    for hit in found.hits:
        console.print(_heading(hit))
        console.print(_snippet(hit.found), "", sep="\n")
    if explain:
        for name, number in found.counts.items():
            console.print(f"{name.replace('_', ' ')}: {number:,} passages", style="dim")
        for name, taken in found.timings.items():
            console.print(f"{name.replace('_', ' ')}: {taken:.1f} ms", style="dim")
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    for note in found.notes:
        aside.print(f"Note: {note}", markup=False)
    if not found.hits:
        aside.print("Nothing found.")


def _heading(hit: DocumentResult) -> Text:
    """As in: 0.91  Pump P-40 › Care, page 2  document:12"""
    found = hit.found
    colour = "green" if found.score > 0.8 else "yellow" if found.score > 0.5 else "dim"
    place = " › ".join((found.title, *(each for each in found.headings if each != found.title)))
    page = "" if found.page is None else f", page {found.page}"
    line = Text(f"{found.score:.2f}  ", colour)
    line.append(_plain(f"{place}{page}"), "bold")
    return line.append(f"  {hit.id}", "dim")


def _snippet(found: SearchResult) -> Text:
    """A few lines of a passage around the words that were looked for."""
    shown = Text(_plain(highlights.snippet(found.text, found.highlights)))
    shown.highlight_words({found.text[start:end] for start, end in found.highlights}, "bold yellow")
    return shown


def _plain(text: str) -> str:
    return _OBEYED.sub("\ufffd", text)
