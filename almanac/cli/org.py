"""`almanac org`: organisations."""

from almanac.cli.support.options import Home, Json, Name, command_group
from almanac.cli.support.output import print_line, print_rows
from almanac.cli.support.startup import with_database
from almanac.core import clock
from almanac.identity import orgs

orgs_app = command_group("Organisations: nothing is shared between two of them.")


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
    print_rows(
        [
            {"id": org.id, "name": org.name, "created": clock.format_timestamp(org.created_at)}
            for org in with_database(home, orgs.find)
        ],
        as_json,
        empty="No organisation yet: almanac org add NAME",
    )
