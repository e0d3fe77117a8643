"""`almanac user`: people who hold tokens."""

from typing import Annotated

import typer

from almanac.cli.support import principal_commands
from almanac.cli.support.options import Home, Json, Name, OrgName, command_group

users_app = command_group("Users: people who hold tokens.")


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
    principal_commands.add(home, org, "user", name, is_admin=admin)


@users_app.command("list")
def list_users(org: OrgName = None, home: Home = None, as_json: Json = False) -> None:
    """List the users of an organisation.

    Example: [bold]almanac user list --org Acme[/bold]
    """
    principal_commands.print_list(home, org, "user", as_json)


@users_app.command("remove")
def remove_user(name: Name, org: OrgName = None, home: Home = None) -> None:
    """Remove a user. Their tokens stop working with the next call; their calls stay in the audit trail.

    Example: [bold]almanac user remove maria[/bold]
    """
    principal_commands.remove(home, org, "user", name)
