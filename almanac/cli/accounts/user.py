"""`almanac user`: people with tokens."""

from typing import Annotated

import typer

from almanac.cli.support import principal_commands
from almanac.cli.support.options import Json, Name, OrgName, command_group
from almanac.cli.support.startup import database_command
from almanac.core.database import Database

users_app = command_group("Users: people who hold tokens.")


@users_app.command("add")
@database_command
async def add_user(
    db: Database,
    name: Name,
    org: OrgName = None,
    admin: Annotated[bool, typer.Option("--admin", help="May administer the organisation.")] = False,
) -> None:
    """Create a user; prints their id. They can do nothing until they have a token.

    Example: [bold]almanac user add maria --admin[/bold]
    """
    await principal_commands.add(db, org, "user", name, is_admin=admin)


@users_app.command("list")
@database_command
async def list_users(db: Database, org: OrgName = None, as_json: Json = False) -> None:
    """List the users of an organisation.

    Example: [bold]almanac user list --org Acme[/bold]
    """
    await principal_commands.print_list(db, org, "user", as_json)


@users_app.command("remove")
@database_command
async def remove_user(db: Database, name: Name, org: OrgName = None) -> None:
    """Remove a user. Their tokens stop working with the next call; their calls stay in the audit trail.

    Example: [bold]almanac user remove maria[/bold]
    """
    await principal_commands.remove(db, org, "user", name)
