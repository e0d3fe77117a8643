"""Tokens: opaque secrets that are shown once and stored as SHA-256.

Every call looks up its token, so a revocation applies from the next call in every process. `TokenResolver` caches the
result of a lookup only until the next commit of any kind.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from almanac.core import clock, scopes
from almanac.core.call import Actor
from almanac.core.database import Database, Reader, Row, Transaction
from almanac.core.errors import BadRequest, NotFound
from almanac.db.read_cache import ReadCache
from almanac.identity.principals import KINDS, Principal

PREFIXES = {"user": "wg-", "agent": "ag-", "access": "ak-", "mcp": "mcp-", "login": "lg-"}
CHOSEN_KINDS = ("user", "agent", "access")  # of `issue`; the others have rules of their own

MCP_ONLY_KINDS = frozenset({"mcp"})  # work at MCP endpoints only
MIN_MCP_TOKEN_LIFETIME = 30 * clock.DAY
MAX_MCP_TOKEN_LIFETIME = 365 * clock.DAY
LOGIN_SECONDS = 3600

MAX_TOKEN_CHARS = 200  # no token of this server is longer, so longer ones are not hashed
LAST_USE_RESOLUTION = clock.MINUTE  # so that a busy token costs one write a minute

_VALID = """
SELECT p.id, p.name, p.kind, o.id AS org_id, o.name AS org_name, p.is_admin,
       t.id AS token_id, t.kind AS token_kind, t.scopes, t.bases, t.tools, t.expires_at
FROM tokens t JOIN principals p ON p.id = t.principal_id JOIN orgs o ON o.id = p.org_id
WHERE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > $1) AND p.removed_at IS NULL
"""
_TRUSTED_USER = """
SELECT p.id, p.name, p.kind, o.id AS org_id, o.name AS org_name, p.is_admin
FROM principals p JOIN orgs o ON o.id = p.org_id WHERE p.id = $1 AND p.kind = 'user' AND p.removed_at IS NULL
"""
_RESOLVE = f"{_VALID} AND t.hash = $2"
_HOLDER = f"{_VALID} AND t.id = $2 AND p.id = $3"


@dataclass(frozen=True, slots=True)
class Token:
    """A stored token, without its secret."""

    id: int
    kind: str
    hint: str
    scopes: tuple[str, ...]
    bases: tuple[int, ...] | None
    tools: tuple[str, ...] | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None

    @property
    def state(self) -> str:
        """active, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= clock.now() else "active"


async def issue(
    tx: Transaction,
    principal: Principal,
    *,
    kind: str | None = None,
    scope: Iterable[str] = (),
    bases: Iterable[int] = (),
    tools: Iterable[str] = (),
    expires_at: int | None = None,
) -> tuple[str, int]:
    """Create a token of one of CHOSEN_KINDS. Returns the secret, which cannot be read again, and the id."""
    kind = kind or principal.kind
    bases = tuple(bases)
    granted = _granted(principal, kind, frozenset(scope))
    if bases:
        if excess := scopes.OUTSIDE_BASES.intersection(scope):
            raise BadRequest(
                f"A token that is limited to knowledge bases cannot have the scope {' or '.join(sorted(excess))}: notes"
                " and the catalogue belong to no knowledge base.",
                remedy="Make two tokens, one of them without knowledge bases.",
            )
        granted -= scopes.OUTSIDE_BASES
    if expires_at is not None and expires_at <= clock.now():
        raise BadRequest("A token cannot expire in the past.")
    return await _insert(tx, principal.id, kind, granted, bases=bases, tools=tools, expires_at=expires_at)


async def issue_mcp_token(tx: Transaction, user: Principal, lifetime: int = MAX_MCP_TOKEN_LIFETIME) -> tuple[str, int]:
    """Create the MCP token of a user, which has all rights of the user, and revoke the one before."""
    if user.kind != "user":
        raise BadRequest(
            f"{user.name!r} is {KINDS[user.kind]}, and an MCP token belongs to a user.",
            remedy="Leave --kind out: the tokens of an agent work at every MCP endpoint.",
        )
    if not MIN_MCP_TOKEN_LIFETIME <= lifetime <= MAX_MCP_TOKEN_LIFETIME:
        raise BadRequest("An MCP token works for 30 to 365 days.", remedy="Give --expires from 30d to 365d.")
    # Locks the user's row, so that of two concurrent calls the second one revokes the token of the first.
    await tx.execute("UPDATE principals SET is_admin = is_admin WHERE id = $1", user.id)
    now = clock.now()
    await tx.execute(
        "UPDATE tokens SET revoked_at = $1 WHERE principal_id = $2 AND kind = 'mcp' AND revoked_at IS NULL",
        now,
        user.id,
    )
    return await _insert(tx, user.id, "mcp", _user_scopes(is_admin=user.is_admin), expires_at=now + lifetime)


async def issue_login_token(tx: Transaction, user_id: int, *, is_admin: bool, client: int) -> str:
    """Create the token of a login by a client. It has all rights of the user for LOGIN_SECONDS."""
    expires_at = clock.now() + LOGIN_SECONDS * clock.SECOND
    scope = _user_scopes(is_admin=is_admin)
    secret, _ = await _insert(tx, user_id, "login", scope, expires_at=expires_at, client=client)
    return secret


async def resolve(db: Reader, secret: str) -> Actor | None:
    """The actor of a token, or None if the token is unknown, expired or revoked, or its holder was removed."""
    if not secret or len(secret) > MAX_TOKEN_CHARS:
        return None
    row = await db.fetch_one(_RESOLVE, clock.now(), secret_hash(secret))
    return None if row is None else _actor(*row)


async def actor_by_token_id(db: Reader, principal_id: int, token_id: int) -> Actor | None:
    """The actor of a valid token, by its id. For ids that this server has signed."""
    if token_id == 0:
        return await actor_for_trusted_user(db, principal_id)
    row = await db.fetch_one(_HOLDER, clock.now(), token_id, principal_id)
    return None if row is None else _actor(*row)


async def actor_for_trusted_user(db: Reader, principal_id: int) -> Actor | None:
    """A user whom a trusted component has authenticated, with the scopes of an unprivileged token."""
    row = await db.fetch_one(_TRUSTED_USER, principal_id)
    granted = " ".join(sorted(scopes.UNPRIVILEGED_SCOPES))
    return None if row is None else _actor(*row, 0, "vouched", granted, None, None, None)


class TokenResolver:
    """Resolves tokens with a cache of valid ones, because the callers of a server repeat."""

    def __init__(self, db: Database, cache: ReadCache) -> None:
        self._db = db
        self._cache = cache

    async def resolve(self, secret: str) -> Actor | None:
        """As `resolve`."""
        if len(secret) > MAX_TOKEN_CHARS:
            return None  # before it becomes a key of the cache
        return _unless_expired(await self._cache.get(("token", secret), lambda: resolve(self._db, secret)))

    async def actor_by_token_id(self, principal_id: int, token_id: int) -> Actor | None:
        """As `actor_by_token_id`."""
        ids = (principal_id, token_id)
        return _unless_expired(await self._cache.get(("holder", *ids), lambda: actor_by_token_id(self._db, *ids)))


async def find(db: Reader, principal: Principal) -> list[Token]:
    """The tokens of a principal, newest first."""
    rows = await db.fetch("SELECT * FROM tokens WHERE principal_id = $1 ORDER BY id DESC", principal.id)
    return [_token(row) for row in rows]


async def revoke(tx: Transaction, token_id: int) -> None:
    """Revoke a token from the next call on."""
    done = await tx.execute(
        "UPDATE tokens SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL", clock.now(), token_id
    )
    if not done:
        raise NotFound(f"There is no active token with id {token_id}.", remedy="See 'almanac token list USER'.")


async def prune_login_tokens(tx: Transaction, before: int) -> int:
    """Remove the login tokens that expired before a timestamp. Returns their number."""
    return await tx.execute("DELETE FROM tokens WHERE kind = 'login' AND expires_at < $1", before)


async def record_last_use(tx: Transaction, used: Iterable[tuple[int, int]]) -> None:
    """Record the last use of tokens, from pairs of token id and timestamp."""
    latest = dict(sorted(used, key=lambda pair: pair[1]))
    # Rows are locked in the order of their ids, so that two processes cannot deadlock.
    rows = [(at, token_id, at - LAST_USE_RESOLUTION) for token_id, at in sorted(latest.items())]
    await tx.execute_many(
        "UPDATE tokens SET last_used_at = $1 WHERE id = $2 AND (last_used_at IS NULL OR last_used_at < $3)", rows
    )


async def _insert(
    tx: Transaction,
    principal_id: int,
    kind: str,
    granted: frozenset[str],
    *,
    bases: Iterable[int] = (),
    tools: Iterable[str] = (),
    expires_at: int | None,
    client: int | None = None,
) -> tuple[str, int]:
    secret = PREFIXES[kind] + secrets.token_urlsafe(32)
    row = await tx.fetch_one(
        "INSERT INTO tokens (principal_id, kind, hash, hint, scopes, bases, tools, created_at, expires_at, client)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING id",
        principal_id,
        kind,
        secret_hash(secret),
        f"{secret[: len(PREFIXES[kind]) + 4]}…",
        " ".join(sorted(granted)),
        _joined(bases),
        _joined(tools),
        clock.now(),
        expires_at,
        client,
    )
    assert row is not None
    return secret, row["id"]


def _granted(principal: Principal, kind: str, asked: frozenset[str]) -> frozenset[str]:
    if kind not in CHOSEN_KINDS:
        raise BadRequest(
            f"There is no token kind {kind!r}.", remedy=f"The kinds are: {', '.join((*CHOSEN_KINDS, 'mcp'))}."
        )
    if kind in ("user", "agent") and kind != principal.kind:
        raise BadRequest(
            f"{principal.name!r} is {KINDS[principal.kind]}, so it cannot hold a token of kind {kind!r}.",
            remedy="Leave --kind out, or use access.",
        )
    if not asked:
        if principal.kind == "agent":
            return scopes.DEFAULT_AGENT_SCOPES
        return _user_scopes(is_admin=principal.is_admin)
    granted = scopes.parse_scopes(asked)
    if not principal.is_admin and (excess := granted & scopes.PRIVILEGED):
        raise BadRequest(
            f"{principal.name!r} is not an administrator, so their token cannot have the scope"
            f" {' or '.join(sorted(excess))}.",
            remedy="Leave it out, or make the user with --admin.",
        )
    return granted


def _user_scopes(*, is_admin: bool) -> frozenset[str]:
    """All scopes that a user may have."""
    return frozenset(scopes.SCOPES) if is_admin else scopes.UNPRIVILEGED_SCOPES


def _unless_expired(actor: Actor | None) -> Actor | None:
    """A cached actor; None if the token has expired, which happens without a commit."""
    is_expired = actor is not None and actor.expires_at is not None and actor.expires_at <= clock.now()
    return None if is_expired else actor


def secret_hash(secret: str) -> bytes:
    """The stored form of a random secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _joined(values: Iterable[int] | Iterable[str]) -> str | None:
    return " ".join(str(v) for v in values) or None


@lru_cache(maxsize=4096)
def _actor(
    id: int, name: str, kind: str, org_id: str, org_name: str, is_admin: int,
    token_id: int, token_kind: str, granted: str, bases: str | None, tools: str | None, expires_at: int | None,
) -> Actor:  # fmt: skip
    # The cache key is the whole row, so a changed row never returns a stale actor.
    held = scopes.with_included(frozenset(granted.split()))
    if bases is not None:
        held -= scopes.OUTSIDE_BASES  # for tokens from before `issue` refused them
    return Actor(
        id=id,
        name=name,
        kind=kind,
        org_id=org_id,
        org_name=org_name,
        is_admin=bool(is_admin),
        token_id=token_id,
        token_kind=token_kind,
        scopes=held if is_admin else held - scopes.PRIVILEGED,
        bases=None if bases is None else frozenset(int(b) for b in bases.split()),
        tools=None if tools is None else frozenset(tools.split()),
        expires_at=expires_at,
    )


def _token(row: Row) -> Token:
    values: dict[str, Any] = {name: row[name] for name in Token.__dataclass_fields__}
    values["scopes"] = tuple(row["scopes"].split())
    values["bases"] = None if row["bases"] is None else tuple(int(base) for base in row["bases"].split())
    values["tools"] = None if row["tools"] is None else tuple(row["tools"].split())
    return Token(**values)
