"""Every failure of a fetch.

    FetchError              any of these; `retryable` says whether the same call may work later
    ├── BadUrl              invalid_url     422
    ├── Blocked             ssrf_blocked    422
    ├── FetchFailed         fetch_failed    502
    ├── FetchTooLarge       too_large       413
    └── FetchTimeout        fetch_timeout   504

Messages name the host at most: paths and queries carry secrets, and a resolved address tells about the inside.
"""

from almanac.core.errors import AlmanacError


class FetchError(AlmanacError):
    """What was asked for could not be fetched."""

    retryable: bool = False


class BadUrl(FetchError):
    """This is not an address of the web."""

    code = "invalid_url"
    status = 422
    remedy = "Give a full address that begins with http:// or https:// and holds no user name or password."


class Blocked(FetchError):
    """The server does not fetch from there."""

    code = "ssrf_blocked"
    status = 422
    remedy = "Use a public address; an operator can allow a host inside."


class FetchFailed(FetchError):
    """The other side could not be reached, or did not answer as it should."""

    code = "fetch_failed"
    status = 502

    def __init__(self, message: str | None = None, *, remedy: str | None = None, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message, remedy=remedy)


class FetchTooLarge(FetchError):
    """What came back is larger than is accepted."""

    code = "too_large"
    status = 413
    remedy = "Fetch something smaller, or ask an operator to raise the limit."


class FetchTimeout(FetchError):
    """The other side did not answer in time."""

    code = "fetch_timeout"
    status = 504
    remedy = "Try again later."
    retryable = True
