"""The errors of a fetch.

    FetchError              base class; `retryable`: the same call may succeed later
    ├── BadUrl              invalid_url     422
    ├── Blocked             ssrf_blocked    422
    ├── FetchFailed         fetch_failed    502
    ├── FetchTooLarge       too_large       413
    └── FetchTimeout        fetch_timeout   504

Messages contain only the host: paths and queries can contain secrets, and a resolved address reveals the internal
network.
"""

from almanac.core.errors import AlmanacError


class FetchError(AlmanacError):
    """The URL could not be fetched."""

    retryable: bool = False


class BadUrl(FetchError):
    """This is not a valid web address."""

    code = "invalid_url"
    status = 422
    remedy = "Give a full address that begins with http:// or https:// and contains no user name or password."


class Blocked(FetchError):
    """The server does not fetch from this address."""

    code = "ssrf_blocked"
    status = 422
    remedy = "Use a public address; an operator can allow an internal host."


class FetchFailed(FetchError):
    """The remote server could not be reached, or its response was invalid."""

    code = "fetch_failed"
    status = 502

    def __init__(self, message: str | None = None, *, remedy: str | None = None, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message, remedy=remedy)


class FetchTooLarge(FetchError):
    """The response is larger than the limit."""

    code = "too_large"
    status = 413
    remedy = "Fetch something smaller, or ask an operator to raise the limit."


class FetchTimeout(FetchError):
    """The remote server did not answer in time."""

    code = "fetch_timeout"
    status = 504
    remedy = "Try again later."
    retryable = True
