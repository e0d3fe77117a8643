"""The sample catalogue of a shop, for tests."""

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
    """A call of a user with all scopes. Adds the organisation and the user if they do not exist."""
    stored_org = next((stored for stored in await orgs.find(db) if stored.name == org), None)
    stored_org = stored_org or await db.write(lambda tx: orgs.add(tx, org))
    known = await db.fetch("SELECT id FROM principals WHERE org_id = $1 AND name = $2", stored_org.id, name)
    user_id = known[0]["id"] if known else None
    if user_id is None:
        user_id = (await db.write(lambda tx: principals.add(tx, stored_org.id, "user", name, is_admin=admin))).id
    actor = Actor(
        id=user_id,
        name=name,
        kind="user",
        org_id=stored_org.id,
        org_name=org,
        is_admin=admin,
        token_id=0,
        token_kind="user",
        scopes=frozenset(scopes.SCOPES),
    )
    return Call(actor, db, "test")


async def import_sample(call: Call, raw: bytes | None = None, format: str = "json", **options: Any) -> ImportReport:
    """Import a catalogue file: the sample catalogue unless `raw` is given."""
    file = catalogue_file.parse(FILE.read_bytes() if raw is None else raw, format)
    return await CatalogueImport(call, file, **options).run()
