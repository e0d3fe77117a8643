"""Calls with an idempotency key: a repeated call returns the answer of the first one and does nothing.

The key is in the header `Idempotency-Key` or in `_meta.idempotencyKey`. It belongs to its caller and to one tool, and
is kept for 24 hours.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from almanac.core.errors import AlmanacError, BadRequest, Conflict
from almanac.operations.context import RequestContext
from almanac.operations.operation import Handler
from almanac.surfaces.knowi.responses import KnowiAnswer

KEPT_SECONDS = 24 * 3600
RUNNING_SECONDS = 600  # longer than any call; the key of a process that ended is free again after this time
MAX_KEY_CHARS = 200
HEADER = b"idempotency-key"


def repeatable(handler: Callable[[RequestContext, Any], Awaitable[KnowiAnswer]]) -> Handler:
    """Return a handler that runs once for each idempotency key. Without a key it runs at each call."""

    async def run(ctx: RequestContext, args: Any) -> KnowiAnswer:
        key = key_of(ctx)
        if key is None:
            return await handler(ctx, args)
        store = ctx.app.idempotency
        reserved = orjson.dumps({"digest": ctx.digest, "running": ctx.request_id}).decode()
        stored = await store.get_or_set(key, reserved, RUNNING_SECONDS)
        if stored != reserved:
            return _earlier_answer(ctx, orjson.loads(stored))
        try:
            answer = await handler(ctx, args)
        except AlmanacError:
            await store.remove(key)  # refused, so nothing has changed
            raise
        kept = {"digest": ctx.digest, "text": answer.text, "data": answer.data, "is_untrusted": answer.is_untrusted}
        await store.set(key, orjson.dumps(kept).decode(), KEPT_SECONDS)
        return answer

    return run


def key_of(ctx: RequestContext) -> str | None:
    """Return the stored key of a call; None if the caller gave none."""
    header = ctx.http.headers.get(HEADER) if ctx.http is not None else None  # pyright: ignore[reportUnnecessaryComparison]
    given = header.decode("latin-1") if header is not None else ctx.meta.get("idempotencyKey")
    if given is None:
        return None
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_KEY_CHARS:
        raise BadRequest(f"The idempotency key must be a text of 1 to {MAX_KEY_CHARS} characters.")
    hashed = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()
    return f"knowi:{ctx.actor.org_id}:{ctx.actor.id}:{ctx.operation}:{hashed}"


def _earlier_answer(ctx: RequestContext, value: dict[str, Any]) -> KnowiAnswer:
    if value["digest"] != ctx.digest:
        raise BadRequest(
            "This idempotency key belongs to a call with other arguments.", remedy="Use a new key for a new call."
        )
    if "running" in value:
        raise Conflict(
            "A call with this idempotency key is still running.", remedy="Wait for it, then send the same call again."
        )
    return KnowiAnswer(value["text"], value["data"], value["is_untrusted"])
