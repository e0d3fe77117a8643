"""Commands about organisations, users, agents and groups."""

from typing import Annotated

import typer

from almanac.cli.support.terminal import Home, Json, OrgName, print_line, print_rows, with_database
from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import groups, orgs, principals, roles

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]
UserName = Annotated[str, typer.Argument(metavar="USER", help="A user's or agent's name.", show_default=False)]


def _family(help: str) -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="rich")


orgs_app = _family("Organisations: nothing is shared between two of them.")
users_app = _family("Users: people who hold tokens.")
agents_app = _family("Agents: programs that hold tokens of their own.")
groups_app = _family("Groups: people and agents who share things.")


@orgs_app.command("add")
def add_org(name: Name, home: Home = None) -> None:
    """Create an organisation; prints its id.

    Example: [bold]almanac org add "Acme Ltd"[/bold]
    """
    print_line(with_database(home, lambda db: db.write(lambda tx: orgs.add(tx, name)), create=True).id)


@orgs_app.command("list")
def list_orgs(home: Home = None, as_json: Json = False) -> None:
    """List the organisations.

    Example: [bold]almanac org list --json[/bold]
    """
    rows = with_database(home, orgs.find)
    print_rows(
        [{"id": org.id, "name": org.name, "created": clock.format_timestamp(org.created_at)} for org in rows],
        as_json,
        empty="No organisation yet: almanac org add NAME",
    )


@users_app.command("add")
def add_user(
    name: Name,
    org: OrgName = None,
    admin: Annotated[bool, typer.Option("--admin", help="May administer the organisation.")] = False,
    home: Home = None,
) -> None:
    """Create a user; prints their id. They can do nothing until they have a token.

    Example: [bold]almanac user add maria --admin[/bold]
    """
    print_line(str(with_database(home, lambda db: _add(db, org, "user", name, admin)).id))


@users_app.command("list")
def list_users(org: OrgName = None, home: Home = None, as_json: Json = False) -> None:
    """List the users of an organisation.

    Example: [bold]almanac user list --org Acme[/bold]
    """
    _list(home, org, "user", as_json)


@users_app.command("remove")
def remove_user(name: Name, org: OrgName = None, home: Home = None) -> None:
    """Remove a user; their tokens stop working with the next call. Their past stays in the audit trail.

    Example: [bold]almanac user remove maria[/bold]
    """
    _remove(home, org, "user", name)


@agents_app.command("add")
def add_agent(name: Name, org: OrgName = None, home: Home = None) -> None:
    """Create an agent; prints its id.

    Example: [bold]almanac agent add release-bot[/bold]
    """
    print_line(str(with_database(home, lambda db: _add(db, org, "agent", name, False)).id))


@agents_app.command("list")
def list_agents(org: OrgName = None, home: Home = None, as_json: Json = False) -> None:
    """List the agents of an organisation.

    Example: [bold]almanac agent list[/bold]
    """
    _list(home, org, "agent", as_json)


@agents_app.command("remove")
def remove_agent(name: Name, org: OrgName = None, home: Home = None) -> None:
    """Remove an agent; its tokens stop working with the next call.

    Example: [bold]almanac agent remove release-bot[/bold]
    """
    _remove(home, org, "agent", name)


@groups_app.command("add")
def add_group(
    name: Name,
    org: OrgName = None,
    display_name: Annotated[str | None, typer.Option("--display-name", help="As people see it.")] = None,
    home: Home = None,
) -> None:
    """Create a group; prints its id.

    Example: [bold]almanac group add research --display-name "Research"[/bold]
    """

    async def work(db: Database) -> groups.Group:
        owner = await orgs.get_by_name(db, org)
        return await db.write(lambda tx: groups.add(tx, owner.id, name, display_name))

    print_line(str(with_database(home, work).id))


@groups_app.command("list")
def list_groups(org: OrgName = None, home: Home = None, as_json: Json = False) -> None:
    """List the groups of an organisation.

    Example: [bold]almanac group list --json[/bold]
    """

    async def work(db: Database) -> list[groups.Group]:
        return await groups.find(db, (await orgs.get_by_name(db, org)).id)

    rows = [
        {"id": group.id, "name": group.name, "display name": group.display_name, "members": group.members}
        for group in with_database(home, work)
    ]
    print_rows(rows, as_json, empty="No group yet: almanac group add NAME")


@groups_app.command("member")
def set_member(
    group: GroupName,
    user: UserName,
    role: Annotated[str, typer.Option("--role", help="Owner, Maintainer, Developer, Reporter or RestrictedAnalyst.")],
    org: OrgName = None,
    home: Home = None,
) -> None:
    """Make someone a member of a group, or change the role they have in it.

    Example: [bold]almanac group member research maria --role Developer[/bold]
    """

    async def work(db: Database) -> None:
        owner = await orgs.get_by_name(db, org)
        found = await groups.get_by_name(db, owner.id, group)
        member = await principals.get_by_name(db, owner.id, user)
        given = roles.parse(role)
        await db.write(lambda tx: groups.set_member(tx, found, member, given))
        print_line(f"{member.name} is {given.name} in {found.name}")

    with_database(home, work)


@groups_app.command("leave")
def leave_group(
    group: GroupName,
    user: UserName,
    org: OrgName = None,
    home: Home = None,
) -> None:
    """Take someone out of a group: what they had through it is gone with their next call.

    Example: [bold]almanac group leave research maria[/bold]
    """

    async def work(db: Database) -> None:
        owner = await orgs.get_by_name(db, org)
        found = await groups.get_by_name(db, owner.id, group)
        member = await principals.get_by_name(db, owner.id, user)
        await db.write(lambda tx: groups.remove_member(tx, found, member))
        print_line(f"{member.name} is no longer in {found.name}")

    with_database(home, work)


async def _add(db: Database, org: str | None, kind: str, name: str, admin: bool) -> principals.Principal:
    owner = await orgs.get_by_name(db, org)
    return await db.write(lambda tx: principals.add(tx, owner.id, kind, name, is_admin=admin))


def _list(home: Home, org: str | None, kind: str, as_json: bool) -> None:
    async def work(db: Database) -> list[principals.Principal]:
        return await principals.find(db, (await orgs.get_by_name(db, org)).id, kind)

    rows = [
        {"id": one.id, "name": one.name, "admin": one.is_admin if as_json else "yes" if one.is_admin else ""}
        | {"created": clock.format_timestamp(one.created_at)}
        for one in with_database(home, work)
    ]
    print_rows(rows, as_json, empty=f"No {kind} yet: almanac {kind} add NAME")


def _remove(home: Home, org: str | None, kind: str, name: str) -> None:
    async def work(db: Database) -> None:
        found = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, name)
        if found.kind != kind:
            raise BadRequest(f"{name!r} is not {'a user' if kind == 'user' else 'an agent'}.",
                             remedy=f"Use 'almanac {found.kind} remove {name}'.")  # fmt: skip
        await db.write(lambda tx: principals.remove(tx, found))

    with_database(home, work)
