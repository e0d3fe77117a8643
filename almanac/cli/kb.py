"""Commands about knowledge bases: making, sharing and removing them, and what is in them."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console

from almanac.cli.ingest import BaseId
from almanac.cli.support import operator_call
from almanac.cli.support.terminal import Home, Json, OrgName, print_line, print_rows, settings_at, with_database
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Database, Transaction
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.identity import principals, roles
from almanac.knowledge import bases, document_status, documents, folders, trash
from almanac.knowledge.bases import KnowledgeBase
from almanac.search.backends import open_search
from almanac.search.index.protocol import Coverage

kb_app = typer.Typer(
    help="Knowledge bases: what a user, a group or the organisation knows.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
doc_app = typer.Typer(
    help="Single documents: into the trash and out of it.", no_args_is_help=True, rich_markup_mode="rich"
)

_AT_ONCE = 500

DocumentIds = Annotated[list[int], typer.Argument(metavar="DOC_ID", help="Their ids, from 'almanac docs KB_ID'.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@kb_app.command("add")
def add_base(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)],
    owner: Annotated[str, typer.Option("--owner", help="The user it belongs to.", show_default=False)],
    org: OrgName = None,
    group: Annotated[str | None, typer.Option("--group", help="Make it this group's, for all its members.")] = None,
    organization: Annotated[
        bool, typer.Option("--organization", help="Make it the organisation's, for everyone in it to read.")
    ] = False,
    description: Annotated[str, typer.Option("--description", help="What is in it, for people and agents.")] = "",
    home: Home = None,
) -> None:
    """Create a knowledge base; prints its id. It is the owner's alone, unless it is a group's or the organisation's.

    Example: [bold]almanac kb add "Pump manuals" --owner maria --description "Manuals of every pump we sell"[/bold]
    """
    if group is not None and organization:
        raise BadRequest("A knowledge base is a group's or the organisation's.", remedy="Leave one of the two out.")
    level = "organization" if organization else "personal" if group is None else "group"

    async def work(db: Database) -> KnowledgeBase:
        call = await operator_call.call_for_org(db, org, owner)
        made = await db.write(lambda tx: bases.add(call, tx, name, description=description, level=level, group=group))
        await _warn_of_namesake(call, made)
        return made

    print_line(str(with_database(home, work).id))


@kb_app.command("list")
def list_bases(
    user: Annotated[str | None, typer.Option("--user", help="Only those of this owner.")] = None,
    org: OrgName = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the knowledge bases of an organisation, with how many of their documents still wait or have failed. Where
    passages still lack vectors, "embedded" says how many have theirs; with --json, "passages" and "embedded" are null
    where none lacks any.

    Example: [bold]almanac kb list --user maria[/bold]
    """

    settings = settings_at(home)

    async def work(db: Database) -> list[dict[str, Any]]:
        call = await operator_call.call_for_org(db, org)
        owners = [] if user is None else [(await principals.get_by_name(db, call.actor.org_id, user)).id]
        found = await _all_bases(call, owners=owners)
        ids = [base.id for base in found]
        tallies = await document_status.count_by_base(db, ids)
        async with open_search(settings, db) as search:
            covered = await document_status.coverages(db, search.index, ids)
        return [
            _base_row(base, tallies.get(base.id, document_status.IngestCounts()), as_json)
            | _covered(base.id, covered, as_json)
            for base in found
        ]

    print_rows(with_database(home, work), as_json, empty="No knowledge base yet: almanac kb add NAME --owner USER")


@kb_app.command("share")
def share_base(
    base_id: BaseId,
    user: Annotated[str | None, typer.Option("--user", help="With this user or agent.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="With every member of this group.")] = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Owner, Maintainer, Developer, Reporter or RestrictedAnalyst.")
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take their role back.")] = False,
    home: Home = None,
) -> None:
    """Share a knowledge base with a user, an agent or a group: Reporters read, Developers add, Maintainers manage.

    Example: [bold]almanac kb share 1 --user bot --role Reporter[/bold]
    """
    if (role is None) != withdraw:
        raise BadRequest("Say what they may do with --role, or take it back with --withdraw.")
    given = None if role is None else roles.parse(role)

    async def work(db: Database) -> None:
        call = await operator_call.call_for_base(db, base_id)
        await db.write(lambda tx: bases.share(call, tx, base_id, given, user=user, group=group))

    with_database(home, work)


@kb_app.command("shares")
def list_shares(base_id: BaseId, home: Home = None, as_json: Json = False) -> None:
    """List with whom a knowledge base is shared, beside its owner and its group.

    Example: [bold]almanac kb shares 1[/bold]
    """

    async def work(db: Database) -> list[bases.Share]:
        return await bases.shares(db, await operator_call.call_for_base(db, base_id), base_id)

    rows = [{"kind": each.kind, "name": each.name, "role": each.role.name} for each in with_database(home, work)]
    print_rows(rows, as_json, empty=f"Not shared: almanac kb share {base_id} --user USER --role ROLE")


@kb_app.command("remove")
def remove_base(base_id: BaseId, yes: Yes = False, home: Home = None) -> None:
    """Put a knowledge base into the trash, with all that is in it. Nobody finds it from then on; it can be restored.

    Example: [bold]almanac kb remove 1 --yes[/bold]
    """
    days = settings_at(home).trash_days

    async def work(db: Database) -> None:
        call = await operator_call.call_for_base(db, base_id)
        base = await bases.get(db, call, base_id, "manage")
        _confirm(f"Remove the knowledge base {base.name!r}? It can be restored for {days} days.", yes)
        await db.write(lambda tx: bases.remove(call, tx, base_id))

    with_database(home, work)


@kb_app.command("restore")
def restore_base(
    base_id: BaseId,
    folder: Annotated[
        int | None,
        typer.Option("--folder", help="Only this folder, from 'almanac kb trash KB_ID'."),
    ] = None,
    home: Home = None,
) -> None:
    """Take a knowledge base out of the trash; or a folder that was removed from it, with what went with the folder.

    Example: [bold]almanac kb restore 1[/bold]
    """

    async def work(db: Database) -> None:
        call = await operator_call.call_for_base(db, base_id)
        if folder is not None:
            await _restore_folder(call, base_id, folder)
            return
        base = await bases.get_or_none(db, base_id)
        if base is not None and base.removed_at is None:
            raise Conflict(f"Knowledge base {base_id} is not in the trash.", remedy="See 'almanac kb trash'.")
        await db.write(lambda tx: bases.restore(call, tx, base_id))

    with_database(home, work)


@kb_app.command("trash")
def list_trash(
    base_id: Annotated[
        int | None,
        typer.Argument(metavar="KB_ID", help="What was removed from it.", show_default=False),
    ] = None,
    org: OrgName = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List what is in the trash: knowledge bases, or what was removed from one of them.

    Example: [bold]almanac kb trash 1[/bold]
    """

    async def work(db: Database) -> list[dict[str, Any]]:
        if base_id is None:
            found = await _all_bases(await operator_call.call_for_org(db, org), removed=True)
            return [_trash_row("base", base.id, base.name, base.removed_at) for base in found]
        found = await _removed(await operator_call.call_for_base(db, base_id), base_id)
        return [_trash_row(row.kind, row.id, row.name, row.removed_at) for row in found]

    print_rows(with_database(home, work), as_json, empty="The trash is empty.")


@doc_app.command("remove")
def remove_documents(document_ids: DocumentIds, yes: Yes = False, home: Home = None) -> None:
    """Put documents into the trash: search no longer finds them; they can be restored.

    Example: [bold]almanac doc remove 1 --yes[/bold]
    """
    days = settings_at(home).trash_days

    async def work(db: Database) -> None:
        calls = {id: await operator_call.call_for_document(db, id) for id in document_ids}
        names = [repr((await documents.get(db, call, id, "write")).name) for id, call in calls.items()]
        what = names[0] if len(names) == 1 else f"{len(names)} documents"
        _confirm(f"Remove {what}? This can be undone for {days} days.", yes)

        async def remove(tx: Transaction) -> None:
            for id, call in calls.items():
                await documents.remove(call, tx, [id])

        await db.write(remove)

    with_database(home, work)


@doc_app.command("restore")
def restore_documents(document_ids: DocumentIds, home: Home = None) -> None:
    """Take documents out of the trash, into their folder, or to the top where that is gone.

    Example: [bold]almanac doc restore 1[/bold]
    """

    async def work(db: Database) -> None:
        calls = {id: await operator_call.call_for_document(db, id) for id in document_ids}

        async def restore(tx: Transaction) -> None:
            for id, call in calls.items():
                await documents.restore(call, tx, [id])

        await db.write(restore)

    with_database(home, work)


async def _all_bases(call: Call, *, owners: list[int] | None = None, **which: Any) -> list[KnowledgeBase]:
    found: list[KnowledgeBase] = []
    while True:
        page = await bases.find(call, owners=owners or (), limit=_AT_ONCE, offset=len(found), **which)
        found += page.items
        if not page.has_more:
            return found


async def _warn_of_namesake(call: Call, made: KnowledgeBase) -> None:
    """Names may repeat, but seldom on purpose."""
    owners = [made.owner_id] if made.level == "personal" else None
    found = await _all_bases(call, owners=owners, scope=made.level, group=made.group_name, query=made.name)
    others = [base.id for base in found if base.name == made.name and base.id != made.id]
    if others:
        told = f"There is already a knowledge base named {made.name!r} (id {min(others)}); made another."
        Console(stderr=True).print(told, markup=False, highlight=False, soft_wrap=True)


async def _restore_folder(call: Call, base_id: int, folder_id: int) -> None:
    there = {row.id for row in await _removed(call, base_id) if row.kind == "folder"}
    if folder_id not in there:
        raise NotFound(
            f"There is no folder {folder_id} in the trash of knowledge base {base_id}.",
            remedy=f"See 'almanac kb trash {base_id}'.",
        )
    await call.db.write(lambda tx: folders.restore(call, tx, folder_id))


async def _removed(call: Call, base_id: int) -> list[trash.Removed]:
    rows: list[trash.Removed] = []
    while more := await trash.find(call, base_id, limit=_AT_ONCE, offset=len(rows)):
        rows += more
    return rows


def _base_row(base: KnowledgeBase, tally: document_status.IngestCounts, as_json: bool) -> dict[str, Any]:
    row = {
        "id": base.id,
        "name": base.name,
        "level": base.level,
        "owner": base.owner_name,
        "group": base.group_name,
        "documents": base.documents,
        "queued": tally.unfinished,
        "failed": tally.failed,
    }
    return (
        row | {"description": base.description, "created": clock.format_timestamp(base.created_at)} if as_json else row
    )


def _covered(base_id: int, covered: Mapping[int, Coverage], as_json: bool) -> dict[str, Any]:
    """How far the vectors of a base are: a column of its own if that is worth telling of any base."""
    own = covered.get(base_id)
    if as_json:
        return {"passages": own and own.passages, "embedded": own and own.embedded}
    return {"embedded": own and f"{own.embedded:,}/{own.passages:,}"} if covered else {}


def _trash_row(kind: str, id: int, name: str, removed_at: int | None) -> dict[str, Any]:
    return {"kind": kind, "id": id, "name": name, "removed": clock.format_timestamp(removed_at)}


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest("Removing needs a confirmation, and nobody is there to ask.", remedy="Repeat it with --yes.")
    typer.confirm(question, abort=True, err=True)
