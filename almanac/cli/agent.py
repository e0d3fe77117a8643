"""`almanac agent`: programs that hold tokens of their own."""

from almanac.cli.support import principal_commands
from almanac.cli.support.options import Home, Json, Name, OrgName, command_group

agents_app = command_group("Agents: programs that hold tokens of their own.")


@agents_app.command("add")
def add_agent(name: Name, org: OrgName = None, home: Home = None) -> None:
    """Create an agent; prints its id.

    Example: [bold]almanac agent add release-bot[/bold]
    """
    principal_commands.add(home, org, "agent", name)


@agents_app.command("list")
def list_agents(org: OrgName = None, home: Home = None, as_json: Json = False) -> None:
    """List the agents of an organisation.

    Example: [bold]almanac agent list[/bold]
    """
    principal_commands.print_list(home, org, "agent", as_json)


@agents_app.command("remove")
def remove_agent(name: Name, org: OrgName = None, home: Home = None) -> None:
    """Remove an agent; its tokens stop working with the next call.

    Example: [bold]almanac agent remove release-bot[/bold]
    """
    principal_commands.remove(home, org, "agent", name)
