"""`almanac migrate`: bring the database to the schema of this version."""

from almanac.cli.support.options import Home, Json
from almanac.cli.support.output import print_line
from almanac.cli.support.startup import command_settings, with_database
from almanac.db import migrate as migrations


def migrate(home: Home = None, as_json: Json = False) -> None:
    """Bring the database to this version's schema. `serve` does so too; run it alone to do it beforehand.

    Example: [bold]almanac migrate[/bold]
    """
    version = with_database(command_settings(home), migrations.version, create=True)
    print_line(f'{{"version": {version}}}' if as_json else f"schema version {version}")
