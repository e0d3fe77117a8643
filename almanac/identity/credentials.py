"""Credentials in the headers of a request."""

from collections.abc import Mapping

from almanac.core.errors import BadRequest, Unauthorized

Headers = Mapping[bytes, bytes]


class MissingKey(Unauthorized):
    """Missing API key"""

    remedy = ""


class InvalidKey(Unauthorized):
    """Invalid API key"""

    remedy = ""
    bearer_error = "invalid_token"


def bearer_token(headers: Headers) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip().decode("latin-1") or None if scheme.lower() == b"bearer" else None


def api_key(headers: Headers) -> str | None:
    """The first non-empty key of `X-API-Key`, `X-Access-Key` and `Authorization: Bearer`."""
    for name in (b"x-api-key", b"x-access-key"):
        if key := headers.get(name, b"").strip():
            return key.decode("latin-1")
    return bearer_token(headers)


def token_or_key(headers: Headers) -> str | None:
    """The token of `Authorization: Bearer` or `X-API-Key`. Two different tokens are refused."""
    token, key = bearer_token(headers), headers.get(b"x-api-key", b"").decode("latin-1")
    if token and key and token != key:
        raise BadRequest("Two different tokens came with this request.", remedy="Send one of them.")
    return token or key or None
