"""The first start: creates an organisation, an administrator and a token."""

from almanac.core.database import Database, Transaction
from almanac.identity import orgs, principals, tokens

ORG = "main"
ADMIN = "admin"


async def create_first_admin(db: Database) -> str | None:
    """On an empty database, create all three and return the token. Otherwise change nothing and return None."""

    async def body(tx: Transaction) -> str | None:
        if await tx.fetch_one("SELECT 1 FROM orgs LIMIT 1"):
            return None
        org = await orgs.add(tx, ORG)
        admin = await principals.add(tx, org.id, "user", ADMIN, is_admin=True)
        secret, _ = await tokens.issue(tx, admin)
        return secret

    async with db.lock("first-start"):
        return await db.write(body)
