"""Reasons to refuse a connection, or the bytes that arrive on it. The connection is closed after each.

ConnectionRefusal
├── InvalidHttp           bad_request           400
├── UpgradeRefused        upgrade_refused       400
├── RequestTimeout        request_timeout       408
├── HeadersTooLarge       headers_too_large     431
├── TooManyConnections    too_many_connections  503
└── UnsupportedVersion    unsupported_version   505
"""

from almanac.core.errors import AlmanacError


class ConnectionRefusal(AlmanacError):
    """The server refuses the connection, or the bytes that arrive on it."""


class InvalidHttp(ConnectionRefusal):
    """The request is not valid HTTP."""

    code = "bad_request"
    status = 400
    remedy = "Send HTTP/1.1, with one Content-Length or with 'Transfer-Encoding: chunked'."


class UpgradeRefused(ConnectionRefusal):
    """This server speaks HTTP/1.1 and upgrades no connection."""

    code = "upgrade_refused"
    status = 400
    remedy = "Send the request without the header Upgrade (in Java: HttpClient.Version.HTTP_1_1)."


class RequestTimeout(ConnectionRefusal):
    """The request did not arrive in time."""

    code = "request_timeout"
    status = 408
    remedy = "Send it again."


class HeadersTooLarge(ConnectionRefusal):
    """The headers of the request are too large."""

    code = "headers_too_large"
    status = 431


class TooManyConnections(ConnectionRefusal):
    """The server has too many open connections, all with requests in progress."""

    code = "too_many_connections"
    status = 503
    remedy = "Try again in a few seconds."


class UnsupportedVersion(ConnectionRefusal):
    """The request has a version of HTTP that this server does not speak."""

    code = "unsupported_version"
    status = 505
    remedy = "Use HTTP/1.1."
