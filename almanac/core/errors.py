"""Every failure a caller can meet.

    AlmanacError                    code, HTTP status, message, and what to do next
    ├── BadRequest                  bad_request            400
    ├── Unauthorized                unauthorized           401
    ├── Forbidden                   forbidden              403
    │   └── InsufficientScope       insufficient_scope     403
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

The default message is the class's docstring; the default remedy is its `remedy`. A message never holds a
secret, document text or anything of another organisation, for it is shown to the caller and written to logs.
"""

from typing import ClassVar


class AlmanacError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    remedy: ClassVar[str] = ""

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.next_step = type(self).remedy if remedy is None else remedy
        super().__init__(self.message)

    @property
    def text(self) -> str:
        """The message and the remedy, as one would read them out."""
        return f"{self.message} {self.next_step}".strip()


class BadRequest(AlmanacError):
    """The arguments are not what this tool takes."""

    code = "bad_request"
    status = 400


class Unauthorized(AlmanacError):
    """No valid token came with this request."""

    code = "unauthorized"
    status = 401
    remedy = "Send the header 'Authorization: Bearer <token>' with a token that is not expired or revoked."


class Forbidden(AlmanacError):
    """You may not do this."""

    code = "forbidden"
    status = 403
    remedy = "Ask an administrator for the role or scope it needs."


class InsufficientScope(Forbidden):
    """Your token lacks a scope that this needs."""

    code = "insufficient_scope"
    remedy = "Use a token that has it; an administrator can make one."


class NotFound(AlmanacError):
    """There is no such thing, or you may not see it."""

    code = "not_found"
    status = 404


class Conflict(AlmanacError):
    """This clashes with what is already there."""

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

    remedy = "It is not your arguments; try once more, then give an operator the request id."

    @classmethod
    def for_request(cls, request_id: str) -> "Internal":
        """One that says by which id an operator finds it in the log."""
        return cls(remedy=f"{cls.remedy[:-1]} {request_id}.")


class Unavailable(AlmanacError):
    """Something this server needs cannot be reached at the moment."""

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
