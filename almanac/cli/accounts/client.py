"""`almanac client`: the clients that log in at POST /api/2.0/login."""

from typing import Annotated

import typer

from almanac.cli.support.options import Json, OrgName, UserName, command_group
from almanac.cli.support.output import print_json, print_line, print_rows
from almanac.cli.support.startup import database_command
from almanac.core import clock
from almanac.core.database import Database
from almanac.identity import clients, orgs, principals

clients_app = command_group("Clients: an id and a secret with which a program logs in as a user.")


@clients_app.command("add")
@database_command
async def add_client(db: Database, holder: UserName, org: OrgName = None, as_json: Json = False) -> None:
    """Create a client of a user. Its id and secret are printed once, and the secret cannot be shown again.

    POST /api/2.0/login takes the JSON of --json as it is. It answers with a token that has all rights of the user and
    works for an hour.

    Example: [bold]almanac client add maria --json[/bold]
    """
    owner = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, holder)
    client_id, secret = await db.write(lambda tx: clients.add(tx, owner))
    if as_json:
        print_json({"clientId": client_id, "clientSecret": secret})
    else:
        print_line(f"clientId: {client_id}")
        print_line(f"clientSecret: {secret}")


@clients_app.command("list")
@database_command
async def list_clients(db: Database, holder: UserName, org: OrgName = None, as_json: Json = False) -> None:
    """List someone's clients: their ids and properties, never the secrets.

    Example: [bold]almanac client list maria[/bold]
    """
    owner = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, holder)
    rows = [
        {
            "client id": client.client_id,
            "state": client.state,
            "created": clock.format_timestamp(client.created_at),
            "last used": clock.format_timestamp(client.last_used_at),
        }
        for client in await clients.find(db, owner)
    ]
    print_rows(rows, as_json, empty=f"No client yet: almanac client add {holder}")


@clients_app.command("revoke")
@database_command
async def revoke_client(
    db: Database,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT_ID", help="Its id, from 'almanac client list USER'.")],
) -> None:
    """Revoke a client and the tokens of its logins: the very next call with one of them is refused.

    Example: [bold]almanac client revoke cl-6f0e1c9a52b7d3480e11aa20[/bold]
    """
    await db.write(lambda tx: clients.revoke(tx, client_id))
    print_line(f"client {client_id} is revoked")
