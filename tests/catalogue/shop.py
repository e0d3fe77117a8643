"""A shop with a catalogue, as tests find it."""

from pathlib import Path
from typing import Any

from almanac.catalogue import catalogue_file
from almanac.catalogue.importer import CatalogueImport, ImportReport
from almanac.core import scopes
from almanac.core.call import Actor, Call
from almanac.core.database import Database
from almanac.identity import first_start, orgs, principals

FILE = Path(__file__).parents[2] / "docs" / "examples" / "products.json"
POWERJET = "68dfc8fd5e40fe1ae99c6b5b"


async def call_of(db: Database, org: str = first_start.ORG, name: str = "admin", *, admin: bool = True) -> Call:
    """A call by somebody with every scope, who is made if need be."""
    owner = next((each for each in await orgs.find(db) if each.name == org), None)
    owner = owner or await db.write(lambda tx: orgs.add(tx, org))
    known = await db.fetch("SELECT id FROM principals WHERE org_id = $1 AND name = $2", owner.id, name)
    holder = known[0]["id"] if known else None
    if holder is None:
        holder = (await db.write(lambda tx: principals.add(tx, owner.id, "user", name, is_admin=admin))).id
    actor = Actor(
        id=holder,
        name=name,
        kind="user",
        org_id=owner.id,
        org_name=org,
        is_admin=admin,
        token_id=0,
        token_kind="user",
        scopes=frozenset(scopes.SCOPES),
    )
    return Call(actor, db, "test")


async def fill(call: Call, raw: bytes | None = None, form: str = "json", **how: Any) -> ImportReport:
    """Import a seed: that of the shop, or another."""
    return await CatalogueImport(
        call, catalogue_file.parse(FILE.read_bytes() if raw is None else raw, form), **how
    ).run()
