"""Errors of the pipeline itself, and the HTTP form that endpoints share."""

from collections.abc import Sequence
from typing import Any

from almanac.core.errors import AlmanacError, BadRequest, NotFound, RateLimited, TooLarge, Unauthorized
from almanac.net.http_exchange import BodyTimeout, HeaderList

UNKNOWN = "(unknown)"  # a caller's invented name must not become a metric label


class UnknownOperation(NotFound):
    """There is no such operation, or the token may not use it. The caller cannot tell which."""

    code = "unknown_tool"

    def __init__(self, name: str) -> None:
        self.name = name[:100]
        super().__init__(f"Unknown tool: {self.name}. The tools you can call are those of tools/list.", remedy="")


class MethodNotAllowed(AlmanacError):
    """This path does not take that method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, allowed: Sequence[str], message: str | None = None, remedy: str | None = None) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(message, remedy=f"It takes: {self.allowed}." if remedy is None else remedy)


class UnsupportedMediaType(AlmanacError):
    """The request body has a content type that is not taken here."""

    code = "unsupported_media_type"
    status = 415
    remedy = "Send the header 'Content-Type: application/json' and a JSON object."


class InvalidJson(BadRequest):
    """The body is not valid JSON."""

    remedy = "Send a JSON object, in UTF-8."


def error_headers(error: AlmanacError, *, retry_after: bool = True) -> HeaderList:
    """Return the headers that an error's HTTP answer carries."""
    if isinstance(error, Unauthorized):
        return ((b"www-authenticate", _challenge(error)),)
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", error.allowed.encode()),)
    if isinstance(error, RateLimited):
        return ((b"retry-after", b"%d" % error.retry_after),) if retry_after else ()
    if isinstance(error, TooLarge | BodyTimeout):
        return ((b"connection", b"close"),)  # the rest of the body is not read
    return ()


def _challenge(error: Unauthorized) -> bytes:
    """The challenge of RFC 6750: it names an error only if a token came with the request."""
    if not error.bearer_error:
        return b'Bearer realm="almanac"'
    description = f'error="{error.bearer_error}", error_description="The token is unknown, expired or revoked"'
    return f'Bearer realm="almanac", {description}'.encode()


def error_body(error: AlmanacError) -> dict[str, Any]:
    """Return the JSON body of an error in REST's form."""
    return {"error": error.text, "code": error.code}
