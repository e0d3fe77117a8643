"""The work of `almanac user` and `almanac agent`, which differ in the kind of principal only."""

from almanac.cli.support.output import print_line, print_rows
from almanac.core import clock
from almanac.core.database import Database
from almanac.core.errors import BadRequest
from almanac.identity import orgs, principals


async def add(db: Database, org: str | None, kind: str, name: str, *, is_admin: bool = False) -> None:
    """Create a principal and print its id."""
    organisation = await orgs.get_by_name(db, org)
    principal = await db.write(lambda tx: principals.add(tx, organisation.id, kind, name, is_admin=is_admin))
    print_line(str(principal.id))


async def print_list(db: Database, org: str | None, kind: str, as_json: bool) -> None:
    """Print the principals of one kind."""
    rows = [
        {
            "id": principal.id,
            "name": principal.name,
            "admin": principal.is_admin if as_json else "yes" if principal.is_admin else "",
            "created": clock.format_timestamp(principal.created_at),
        }
        for principal in await principals.find(db, (await orgs.get_by_name(db, org)).id, kind)
    ]
    print_rows(rows, as_json, empty=f"No {kind} yet: almanac {kind} add NAME")


async def remove(db: Database, org: str | None, kind: str, name: str) -> None:
    """Remove a principal of this kind; a name of the other kind is an error."""
    principal = await principals.get_by_name(db, (await orgs.get_by_name(db, org)).id, name)
    if principal.kind != kind:
        raise BadRequest(
            f"{name!r} is not {'a user' if kind == 'user' else 'an agent'}.",
            remedy=f"Use 'almanac {principal.kind} remove {name}'.",
        )
    await db.write(lambda tx: principals.remove(tx, principal))
