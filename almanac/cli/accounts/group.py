"""`almanac group`: groups of people and agents, and their members."""

from typing import Annotated

import typer

from almanac.cli.support.options import Json, Name, OrgName, UserName, command_group
from almanac.cli.support.output import print_line, print_rows
from almanac.cli.support.startup import database_command
from almanac.core.database import Database
from almanac.identity import groups, orgs, principals, roles
from almanac.identity.groups import Group
from almanac.identity.principals import Principal

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]

groups_app = command_group("Groups: people and agents who share things.")


@groups_app.command("add")
@database_command
async def add_group(
    db: Database,
    name: Name,
    org: OrgName = None,
    display_name: Annotated[str | None, typer.Option("--display-name", help="As people see it.")] = None,
) -> None:
    """Create a group; prints its id.

    Example: [bold]almanac group add research --display-name "Research"[/bold]
    """
    organisation = await orgs.get_by_name(db, org)
    group = await db.write(lambda tx: groups.add(tx, organisation.id, name, display_name))
    print_line(str(group.id))


@groups_app.command("list")
@database_command
async def list_groups(db: Database, org: OrgName = None, as_json: Json = False) -> None:
    """List the groups of an organisation.

    Example: [bold]almanac group list --json[/bold]
    """
    rows = [
        {"id": group.id, "name": group.name, "display name": group.display_name, "members": group.members}
        for group in await groups.find(db, (await orgs.get_by_name(db, org)).id)
    ]
    print_rows(rows, as_json, empty="No group yet: almanac group add NAME")


@groups_app.command("member")
@database_command
async def set_member(
    db: Database,
    group: GroupName,
    user: UserName,
    role: Annotated[str, typer.Option("--role", help="Owner, Maintainer, Developer, Reporter or RestrictedAnalyst.")],
    org: OrgName = None,
) -> None:
    """Make someone a member of a group, or change the role they have in it.

    Example: [bold]almanac group member research maria --role Developer[/bold]
    """
    joined, member = await _group_and_member(db, org, group, user)
    new_role = roles.parse(role)
    await db.write(lambda tx: groups.set_member(tx, joined, member, new_role))
    print_line(f"{member.name} is {new_role.name} in {joined.name}")


@groups_app.command("leave")
@database_command
async def leave_group(db: Database, group: GroupName, user: UserName, org: OrgName = None) -> None:
    """Take someone out of a group. The roles that they had through it end with their next call.

    Example: [bold]almanac group leave research maria[/bold]
    """
    left, member = await _group_and_member(db, org, group, user)
    await db.write(lambda tx: groups.remove_member(tx, left, member))
    print_line(f"{member.name} is no longer in {left.name}")


async def _group_and_member(db: Database, org: str | None, group: str, user: str) -> tuple[Group, Principal]:
    org_id = (await orgs.get_by_name(db, org)).id
    return await groups.get_by_name(db, org_id, group), await principals.get_by_name(db, org_id, user)
