"""`almanac org`: organisations."""

from almanac.cli.support.options import Home, Json, Name, command_group
from almanac.cli.support.output import print_line, print_rows
from almanac.cli.support.startup import command_settings, database_command, with_database
from almanac.core import clock
from almanac.core.database import Database
from almanac.identity import orgs

orgs_app = command_group("Organisations: nothing is shared between two of them.")


@orgs_app.command("add")
def add_org(name: Name, home: Home = None) -> None:
    """Create an organisation; prints its id.

    Example: [bold]almanac org add "Acme Ltd"[/bold]
    """
    settings = command_settings(home)
    print_line(with_database(settings, lambda db: db.write(lambda tx: orgs.add(tx, name)), create=True).id)


@orgs_app.command("list")
@database_command
async def list_orgs(db: Database, as_json: Json = False) -> None:
    """List the organisations.

    Example: [bold]almanac org list --json[/bold]
    """
    print_rows(
        [
            {"id": org.id, "name": org.name, "created": clock.format_timestamp(org.created_at)}
            for org in await orgs.find(db)
        ],
        as_json,
        empty="No organisation yet: almanac org add NAME",
    )
