"""`almanac kb`: knowledge bases."""

from typing import Annotated, Any

import typer

from almanac.cli.support import operator_call
from almanac.cli.support.confirmation import confirm
from almanac.cli.support.operation_call import all_pages, open_request, parse_arguments, print_answer, request_of
from almanac.cli.support.options import BaseKey, Json, OrgName, Withdraw, Yes, command_group
from almanac.cli.support.output import print_line, print_note, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.call import Call
from almanac.core.database import Database
from almanac.core.errors import BadRequest, Conflict, NotFound
from almanac.core.settings import Settings
from almanac.identity import principals, roles
from almanac.knowledge import bases, document_status, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.document_status import IngestCounts
from almanac.operations import bases as base_operations
from almanac.operations import browse
from almanac.operations.bases import BaseInfo, ListBases
from almanac.operations.browse import ListTrash, RemovedList
from almanac.operations.models import MAX_PAGE_ITEMS, OneBase

kb_app = command_group("Knowledge bases: the documents of a user, a group or the organisation.")


@kb_app.command("add")
@database_command
async def add_base(
    db: Database,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)],
    owner: Annotated[str, typer.Option("--owner", help="The user who owns it.", show_default=False)],
    org: OrgName = None,
    group: Annotated[str | None, typer.Option("--group", help="Give it to this group, for all its members.")] = None,
    organization: Annotated[
        bool, typer.Option("--organization", help="Give it to the organisation, for everyone in it to read.")
    ] = False,
    description: Annotated[
        str, typer.Option("--description", help="A summary of its content, for people and agents.")
    ] = "",
) -> None:
    """Create a knowledge base; prints its id. Only the owner may see it, unless it is a group's or the organisation's.

    Example: [bold]almanac kb add "Pump manuals" --owner maria --description "Manuals of every pump we sell"[/bold]
    """
    if group is not None and organization:
        raise BadRequest(
            "A knowledge base belongs to a group or to the organisation.", remedy="Leave out --group or --organization."
        )
    level = "organization" if organization else "personal" if group is None else "group"
    call = await operator_call.call_for_org(db, org, owner)
    base = await db.write(lambda tx: bases.add(call, tx, name, description=description, level=level, group=group))
    await _warn_of_equal_name(call, base)
    print_line(str(base.id))


@kb_app.command("list")
@database_command
async def list_bases(
    db: Database,
    settings: Settings,
    user: Annotated[str | None, typer.Option("--user", help="Only those of this owner.")] = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """List the knowledge bases of an organisation, with the number of documents that wait or have failed. "embedded"
    counts the passages with a vector; it is empty, and null with --json, if every passage has one.

    Example: [bold]almanac kb list --user maria[/bold]
    """
    call = await operator_call.call_for_org(db, org)
    if user is not None:
        await principals.get_by_name(db, call.actor.org_id, user)
    async with open_request(settings, call) as ctx:
        arguments = parse_arguments(ListBases, owner=user, limit=MAX_PAGE_ITEMS)
        answer = await all_pages(base_operations.list_bases, ctx, arguments)
    if as_json:
        print_answer(answer)
    else:
        counts = await document_status.count_by_base(db, [base.id for base in answer.items])
        has_coverage = any(base.passages is not None for base in answer.items)
        rows = [_base_row(base, counts.get(base.id, IngestCounts()), has_coverage) for base in answer.items]
        print_rows(rows, False, empty="No knowledge base yet: almanac kb add NAME --owner USER")


@kb_app.command("share")
@database_command
async def share_base(
    db: Database,
    key: BaseKey,
    user: Annotated[str | None, typer.Option("--user", help="With this user or agent.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="With every member of this group.")] = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Owner, Maintainer, Developer, Reporter or RestrictedAnalyst.")
    ] = None,
    withdraw: Withdraw = False,
) -> None:
    """Share a knowledge base with a user, an agent or a group: Reporters read, Developers add, Maintainers manage.

    Example: [bold]almanac kb share 1 --user bot --role Reporter[/bold]
    """
    if (role is None) != withdraw:
        raise BadRequest("Give either --role or --withdraw.")
    new_role = None if role is None else roles.parse(role)
    base_id = await operator_call.base_id(db, key)
    call = await operator_call.call_for_base(db, base_id)
    await db.write(lambda tx: bases.share(call, tx, base_id, new_role, user=user, group=group))


@kb_app.command("shares")
@database_command
async def list_shares(db: Database, key: BaseKey, as_json: Json = False) -> None:
    """List the roles of users, agents and groups on a knowledge base, beside its owner and its group.

    Example: [bold]almanac kb shares 1[/bold]
    """
    base_id = await operator_call.base_id(db, key)
    call = await operator_call.call_for_base(db, base_id)
    answer = await base_operations.list_shares(request_of(call), OneBase(base_id=base_id))
    if as_json:
        print_answer(answer)
    else:
        rows = [{"kind": share.kind, "name": share.name, "role": share.role} for share in answer.items]
        print_rows(rows, False, empty=f"Not shared: almanac kb share {base_id} --user USER --role ROLE")


@kb_app.command("remove")
@database_command
async def remove_base(db: Database, settings: Settings, key: BaseKey, yes: Yes = False) -> None:
    """Put a knowledge base into the trash, with all its content. Search no longer finds it; it can be restored.

    Example: [bold]almanac kb remove 1 --yes[/bold]
    """
    base_id = await operator_call.base_id(db, key)
    call = await operator_call.call_for_base(db, base_id)
    base = await bases.get(db, call, base_id, "manage")
    confirm(f"Remove the knowledge base {base.name!r}? It can be restored for {settings.trash_days} days.", yes)
    await db.write(lambda tx: bases.remove(call, tx, base_id))


@kb_app.command("restore")
@database_command
async def restore_base(
    db: Database,
    key: BaseKey,
    folder: Annotated[
        int | None,
        typer.Option("--folder", help="Only this folder, from 'almanac kb trash KB'."),
    ] = None,
) -> None:
    """Take a knowledge base out of the trash; or a folder that was removed from it, with the content removed with it.

    Example: [bold]almanac kb restore 1[/bold]
    """
    base_id = await operator_call.base_id(db, key, removed=folder is None)
    call = await operator_call.call_for_base(db, base_id)
    if folder is not None:
        await _restore_folder(call, base_id, folder)
        return
    base = await bases.get_or_none(db, base_id)
    if base is not None and base.removed_at is None:
        raise Conflict(f"Knowledge base {base_id} is not in the trash.", remedy="See 'almanac kb trash'.")
    await db.write(lambda tx: bases.restore(call, tx, base_id))


@kb_app.command("trash")
@database_command
async def list_trash(
    db: Database,
    settings: Settings,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KB", help="List the trash of this knowledge base, by its id or name.", show_default=False
        ),
    ] = None,
    org: OrgName = None,
    as_json: Json = False,
) -> None:
    """List the trash: knowledge bases, or the folders and documents that were removed from one of them.

    Example: [bold]almanac kb trash 1[/bold]
    """
    if key is not None:
        base_id = await operator_call.base_id(db, key)
        answer = await _removed(await operator_call.call_for_base(db, base_id), base_id)
    else:
        async with open_request(settings, await operator_call.call_for_org(db, org)) as ctx:
            arguments = ListBases(removed=True, limit=MAX_PAGE_ITEMS)
            answer = await all_pages(base_operations.list_bases, ctx, arguments)
    if as_json:
        print_answer(answer)
    else:
        rows = [
            {
                "kind": "base" if isinstance(item, BaseInfo) else item.kind,
                "id": item.id,
                "name": item.name,
                "removed": item.removed_at,
            }
            for item in answer.items
        ]
        print_rows(rows, False, empty="The trash is empty.")


async def _find_bases(call: Call, *, owners: list[int] | None = None, **filters: Any) -> list[KnowledgeBase]:
    found: list[KnowledgeBase] = []
    while True:
        page = await bases.find(call, owners=owners or (), limit=MAX_PAGE_ITEMS, offset=len(found), **filters)
        found += page.items
        if not page.has_more:
            return found


async def _warn_of_equal_name(call: Call, added: KnowledgeBase) -> None:
    """Print a warning if another base has the name. Names may repeat, but rarely on purpose."""
    owners = [added.owner_id] if added.level == "personal" else None
    found = await _find_bases(call, owners=owners, scope=added.level, group=added.group_name, query=added.name)
    others = [base.id for base in found if base.name == added.name and base.id != added.id]
    if others:
        print_note(f"There is already a knowledge base named {added.name!r} (id {min(others)}); added another.")


async def _restore_folder(call: Call, base_id: int, folder_id: int) -> None:
    removed = await _removed(call, base_id)
    if folder_id not in {item.id for item in removed.items if item.kind == "folder"}:
        raise NotFound(
            f"There is no folder {folder_id} in the trash of knowledge base {base_id}.",
            remedy=f"See 'almanac kb trash {base_id}'.",
        )
    await call.db.write(lambda tx: folders.restore(call, tx, folder_id))


async def _removed(call: Call, base_id: int) -> RemovedList:
    return await all_pages(browse.list_trash, request_of(call), ListTrash(base_id=base_id, limit=MAX_PAGE_ITEMS))


def _base_row(base: BaseInfo, counts: IngestCounts, has_coverage: bool) -> dict[str, Any]:
    row = {
        "id": base.id,
        "name": base.name,
        "level": base.level,
        "owner": base.owner,
        "group": base.group,
        "documents": base.documents,
        "queued": counts.unfinished,
        "failed": counts.failed,
    }
    # A column for vectors only if some base lacks any.
    if not has_coverage:
        return row
    embedded = None if base.passages is None else f"{base.embedded:,}/{base.passages:,}"
    return row | {"embedded": embedded}
