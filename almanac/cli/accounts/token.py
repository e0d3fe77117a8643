"""`almanac token`: the tokens of users and agents."""

import json
from pathlib import Path
from typing import Annotated

import typer

import almanac
from almanac.cli.support import operator_call
from almanac.cli.support.options import Json, OrgName, UserName, command_group, parse_duration
from almanac.cli.support.output import print_line, print_rows
from almanac.cli.support.startup import database_command
from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import orgs, principals, tokens
from almanac.identity.principals import Principal

tokens_app = command_group("Tokens: a client sends one to prove its identity.")


@tokens_app.command("add")
@database_command
async def add_token(
    db: Database,
    holder: UserName,
    org: OrgName = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="user, agent, access or mcp; by default the holder's own kind. 'mcp': the MCP token of a user.",
        ),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="A permission; repeat for more. Default: all of its holder; for agents, to read and remember.",
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(
            "--base", help="Limit it to this knowledge base (id or name), without notes and catalogue; repeat for more."
        ),
    ] = None,
    tool: Annotated[list[str] | None, typer.Option("--tool", help="Limit it to this tool; repeat for more.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", help="How long it works, such as 12h or 30d; default: for ever, an MCP token for 365d."
        ),
    ] = None,
) -> None:
    """Create a token. It is printed once, alone on standard output, and cannot be shown again.

    A user has one MCP token (--kind mcp): it has all rights of the user, works at MCP endpoints only, for 30 to 365
    days, and revokes the one before.

    Example: [bold]almanac token add maria --scope knowledge:read --scope search:read --expires 30d[/bold]
    """
    _check_tools(tool or [])
    owner = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, holder)
    lifetime = None if expires is None else parse_duration(expires)
    if kind == "mcp":
        await _add_mcp_token(db, owner, lifetime, is_limited=bool(scope or base or tool))
        return
    bases = [await operator_call.base_id(db, key, owner.org_id) for key in base or ()]
    await operator_call.check_bases(db, owner.org_id, bases)
    expires_at = None if lifetime is None else clock.now() + lifetime
    secret, _ = await db.write(
        lambda tx: tokens.issue(
            tx, owner, kind=kind, scope=scope or (), bases=bases, tools=tool or (), expires_at=expires_at
        )
    )
    print_line(secret)


@tokens_app.command("list")
@database_command
async def list_tokens(db: Database, holder: UserName, org: OrgName = None, as_json: Json = False) -> None:
    """List someone's tokens: their properties, never the secrets themselves.

    Example: [bold]almanac token list maria[/bold]
    """
    owner = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, holder)
    rows = [
        {
            "id": token.id,
            "kind": token.kind,
            "begins": token.hint,
            "state": token.state,
            "scopes": token.scopes,
            "bases": token.bases,
            "tools": token.tools,
            "created": clock.format_timestamp(token.created_at),
            "expires": clock.format_timestamp(token.expires_at),
            "last used": clock.format_timestamp(token.last_used_at),
        }
        for token in await tokens.find(db, owner)
    ]
    print_rows(rows, as_json, empty=f"No token yet: almanac token add {holder}")


@tokens_app.command("revoke")
@database_command
async def revoke_token(
    db: Database,
    token_id: Annotated[int, typer.Argument(metavar="TOKEN_ID", help="Its id, from 'almanac token list USER'.")],
) -> None:
    """Revoke a token: the very next call with it is refused, in every process.

    Example: [bold]almanac token revoke 7[/bold]
    """
    await db.write(lambda tx: tokens.revoke(tx, token_id))
    print_line(f"token {token_id} is revoked")


async def _add_mcp_token(db: Database, owner: Principal, lifetime: int | None, *, is_limited: bool) -> None:
    if is_limited:
        raise BadRequest(
            "An MCP token has all rights of its user, so --scope, --base and --tool cannot limit it.",
            remedy="Leave them out, or use --kind access.",
        )
    secret, _ = await db.write(lambda tx: tokens.issue_mcp_token(tx, owner, lifetime or tokens.MAX_MCP_TOKEN_LIFETIME))
    print_line(secret)


def _check_tools(names: list[str]) -> None:
    # Read from the committed contracts, because loading the surfaces takes a second. A test keeps the two equal.
    surfaces = Path(almanac.__file__).parent / "surfaces"
    known = {tool["name"] for file in surfaces.glob("*/contract.json") for tool in json.loads(file.read_bytes())}
    known -= {name for file in surfaces.glob("*/missing_tools.json") for name in json.loads(file.read_bytes())}
    if unknown := sorted(set(names) - known):
        raise BadRequest(
            f"There is no tool {', '.join(unknown)}.", remedy=f"The tools are: {', '.join(sorted(known))}."
        )
