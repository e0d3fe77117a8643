"""The errors that callers receive.

    AlmanacError                    code, HTTP status, message and remedy
    ├── BadRequest                  bad_request            400
    ├── Unauthorized                unauthorized           401
    │   └── InvalidToken            the same code, for a token that is unknown, expired or revoked
    ├── Forbidden                   forbidden              403
    │   ├── InsufficientScope       insufficient_scope     403
    │   └── McpTokenRefused         mcp_token_refused      403
    ├── NotFound                    not_found              404
    ├── Conflict                    conflict               409
    ├── TooLarge                    too_large              413
    ├── Limited
    │   ├── RateLimited             rate_limited           429, with seconds to wait
    │   └── QuotaExceeded           quota_exceeded         429
    ├── Cancelled                   cancelled              499
    ├── Internal                    internal_error         500
    ├── Unavailable                 unavailable            503
    │   ├── RateLimitUnavailable    rate_limit_unavailable 503
    │   └── AuditUnavailable        audit_unavailable      503
    └── DeadlineExceeded            deadline_exceeded      504

The default message is the class's docstring; the default remedy is its `remedy`. A message is shown to the caller and
written to logs, so it never contains a secret, document text or data of another organisation.
"""

from typing import ClassVar


class AlmanacError(Exception):
    """The request failed."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    remedy: str = ""

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        if remedy is not None:
            self.remedy = remedy
        super().__init__(self.message)

    @property
    def text(self) -> str:
        """The message followed by the remedy."""
        return f"{self.message} {self.remedy}".strip()


class BadRequest(AlmanacError):
    """The arguments are not valid."""

    code = "bad_request"
    status = 400


class Unauthorized(AlmanacError):
    """No valid token came with this request."""

    code = "unauthorized"
    status = 401
    remedy = "Send the header 'Authorization: Bearer <token>' with a token that is not expired or revoked."
    bearer_error: ClassVar[str] = ""  # of RFC 6750, in the header WWW-Authenticate


class InvalidToken(Unauthorized):
    """No valid token came with this request."""

    bearer_error = "invalid_token"


class Forbidden(AlmanacError):
    """You may not do this."""

    code = "forbidden"
    status = 403
    remedy = "Ask an administrator for the role or scope that this needs."


class InsufficientScope(Forbidden):
    """Your token lacks a scope that this needs."""

    code = "insufficient_scope"
    remedy = "Use a token that has it; an administrator can make one."


class McpTokenRefused(Forbidden):
    """An MCP token works at MCP endpoints only."""

    code = "mcp_token_refused"
    remedy = "Use another token here: 'almanac token add USER', or a login at POST /api/2.0/login."


class NotFound(AlmanacError):
    """The object does not exist, or you may not see it."""

    code = "not_found"
    status = 404


class Conflict(AlmanacError):
    """The request conflicts with stored data."""

    code = "conflict"
    status = 409


class TooLarge(AlmanacError):
    """The request is larger than this server accepts."""

    code = "too_large"
    status = 413


class Limited(AlmanacError):
    """A limit has been reached."""

    status = 429


class RateLimited(Limited):
    """Rate limit exceeded."""

    code = "rate_limited"

    def __init__(self, retry_after: int) -> None:
        self.retry_after = max(1, retry_after)
        super().__init__(remedy=f"Wait {self.retry_after} s, then call again.")


class QuotaExceeded(Limited):
    """This organisation's quota for the month is used up."""

    code = "quota_exceeded"
    remedy = "Ask an administrator to raise it, or wait for the first of the next month (UTC)."


class Cancelled(AlmanacError):
    """The caller cancelled the request."""

    code = "cancelled"
    status = 499


class Internal(AlmanacError):
    """Internal error."""

    remedy = "Your arguments are not the cause; try once more, then give an operator the request id."

    @classmethod
    def for_request(cls, request_id: str) -> "Internal":
        """An error with the request id in its remedy. Operators find the cause in the log by this id."""
        return cls(remedy=f"{cls.remedy[:-1]} {request_id}.")


class Unavailable(AlmanacError):
    """A part of this server cannot be reached at the moment."""

    code = "unavailable"
    status = 503
    remedy = "Try again in a few seconds; an operator can run 'almanac doctor'."


class RateLimitUnavailable(Unavailable):
    """Rate limit service unavailable."""

    code = "rate_limit_unavailable"


class AuditUnavailable(Unavailable):
    """The audit trail cannot be written, so no calls are taken."""

    code = "audit_unavailable"


class DeadlineExceeded(AlmanacError):
    """The call took longer than this server allows and was stopped."""

    code = "deadline_exceeded"
    status = 504
    remedy = "Ask for less at once (a smaller page, a narrower query) and call again."
