"""`almanac agent`: programs that hold tokens of their own."""

from almanac.cli.support import principal_commands
from almanac.cli.support.options import Json, Name, OrgName, command_group
from almanac.cli.support.startup import database_command
from almanac.core.database import Database

agents_app = command_group("Agents: programs that hold tokens of their own.")


@agents_app.command("add")
@database_command
async def add_agent(db: Database, name: Name, org: OrgName = None) -> None:
    """Create an agent; prints its id.

    Example: [bold]almanac agent add release-bot[/bold]
    """
    await principal_commands.add(db, org, "agent", name)


@agents_app.command("list")
@database_command
async def list_agents(db: Database, org: OrgName = None, as_json: Json = False) -> None:
    """List the agents of an organisation.

    Example: [bold]almanac agent list[/bold]
    """
    await principal_commands.print_list(db, org, "agent", as_json)


@agents_app.command("remove")
@database_command
async def remove_agent(db: Database, name: Name, org: OrgName = None) -> None:
    """Remove an agent; its tokens stop working with the next call.

    Example: [bold]almanac agent remove release-bot[/bold]
    """
    await principal_commands.remove(db, org, "agent", name)
