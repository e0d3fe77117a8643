"""Clients: pairs of an id and a secret with which a program logs in as a user.

The secret is random, shown once and stored as SHA-256. A login answers with a token for an hour.
"""

import hmac
import secrets
from dataclasses import dataclass

from almanac.core import clock
from almanac.core.call import Actor
from almanac.core.database import Reader, Row, Transaction
from almanac.core.errors import BadRequest, NotFound, Unauthorized
from almanac.identity import tokens
from almanac.identity.principals import KINDS, Principal

ID_PREFIX, SECRET_PREFIX = "cl-", "cs-"
MAX_CREDENTIAL_CHARS = 200  # of an id or a secret; those of this server are shorter

_NOBODY = tokens.secret_hash("")  # no secret has this hash
_HOLDER = """
SELECT c.id AS client, c.hash, c.revoked_at, p.id, p.name, p.kind, p.is_admin, p.removed_at,
       o.id AS org_id, o.name AS org_name
FROM clients c JOIN principals p ON p.id = c.principal_id JOIN orgs o ON o.id = p.org_id WHERE c.client_id = $1
"""


class InvalidClient(Unauthorized):
    """The clientId or the clientSecret is not valid."""

    remedy = "Check both; an operator can make new ones with 'almanac client add USER'."


@dataclass(frozen=True, slots=True)
class Client:
    """A stored client, without its secret."""

    id: int
    client_id: str
    created_at: int
    revoked_at: int | None
    last_used_at: int | None

    @property
    def state(self) -> str:
        """active or revoked."""
        return "active" if self.revoked_at is None else "revoked"


async def add(tx: Transaction, user: Principal) -> tuple[str, str]:
    """Create a client of a user. Returns the id and the secret, which cannot be read again."""
    if user.kind != "user":
        raise BadRequest(
            f"{user.name!r} is {KINDS[user.kind]}, and a client logs in as a user.",
            remedy="An agent has tokens of its own: almanac token add AGENT.",
        )
    client_id = ID_PREFIX + secrets.token_hex(12)
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    await tx.execute(
        "INSERT INTO clients (principal_id, client_id, hash, created_at) VALUES ($1, $2, $3, $4)",
        user.id,
        client_id,
        tokens.secret_hash(secret),
        clock.now(),
    )
    return client_id, secret


async def find(db: Reader, user: Principal) -> list[Client]:
    """The clients of a user, newest first."""
    rows = await db.fetch("SELECT * FROM clients WHERE principal_id = $1 ORDER BY id DESC", user.id)
    return [_client(row) for row in rows]


async def revoke(tx: Transaction, client_id: str) -> None:
    """Revoke a client and the tokens of its logins, from the next call on."""
    now = clock.now()
    row = await tx.fetch_one(
        "UPDATE clients SET revoked_at = $1 WHERE client_id = $2 AND revoked_at IS NULL RETURNING id", now, client_id
    )
    if row is None:
        raise NotFound(f"There is no active client {client_id[:60]!r}.", remedy="See 'almanac client list USER'.")
    await tx.execute("UPDATE tokens SET revoked_at = $1 WHERE client = $2 AND revoked_at IS NULL", now, row["id"])


async def authenticate(db: Reader, client_id: str, secret: str) -> tuple[Actor, int]:
    """The actor who logs in, and the number of the client.

    An unknown client, a wrong secret, a revoked client and a removed user run the same query and have the same answer.
    """
    row = await db.fetch_one(_HOLDER, client_id)
    is_right = hmac.compare_digest(tokens.secret_hash(secret), _NOBODY if row is None else bytes(row["hash"]))
    if row is None or not is_right or row["revoked_at"] is not None or row["removed_at"] is not None:
        raise InvalidClient()
    actor = Actor(
        id=row["id"],
        name=row["name"],
        kind=row["kind"],
        org_id=row["org_id"],
        org_name=row["org_name"],
        is_admin=bool(row["is_admin"]),
        token_id=0,
        token_kind="client",  # noqa: S106 - a kind
        scopes=frozenset(),
    )
    return actor, row["client"]


async def log_in(tx: Transaction, actor: Actor, client: int) -> str:
    """Create the token of a login. The client's row is locked, so that a concurrent revocation ends the token too."""
    is_active = await tx.execute(
        "UPDATE clients SET last_used_at = $1 WHERE id = $2 AND revoked_at IS NULL", clock.now(), client
    )
    if not is_active:
        raise InvalidClient()
    return await tokens.issue_login_token(tx, actor.id, is_admin=actor.is_admin, client=client)


def _client(row: Row) -> Client:
    return Client(row["id"], row["client_id"], row["created_at"], row["revoked_at"], row["last_used_at"])
