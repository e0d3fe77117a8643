"""A client for one service that the operator has configured, often an internal one. Connections are reused.

The fetcher (`fetcher.py`) accepts any URL from a caller and checks it. This client connects to one address only, does
not follow redirects and does not use the proxies of the environment. Its requests change nothing on the service, so
after a temporary failure a request is sent again.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import httpx2

from almanac.core.errors import Unavailable
from almanac.core.retries import TEMPORARY_STATUSES, RetryPolicy, retry
from almanac.net.fetcher import WITHOUT_CERTIFICATES

DEFAULT_TRIES = 3
FIRST_PAUSE_SECONDS = 0.1
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 100


class ServiceUnavailable(Unavailable):
    """A service that this server depends on cannot be reached or does not answer in time."""

    code = "upstream_unavailable"
    status = 502
    remedy = "Try again in a few seconds."


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """A response of the service."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # by lower-case name


class ServiceClient:
    """A client for one service at one address."""

    def __init__(
        self, url: str, seconds: float, headers: Mapping[str, str] | None = None, tries: int = DEFAULT_TRIES
    ) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        self._policy = RetryPolicy(tries, FIRST_PAUSE_SECONDS)
        self._client = httpx2.AsyncClient(
            headers={"accept": "application/json", **(headers or {})},
            trust_env=False,
            follow_redirects=False,
            verify=WITHOUT_CERTIFICATES if self.url.startswith("http:") else True,
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS // 4),
            timeout=seconds,
        )

    async def request(
        self, method: str, path: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServiceResponse:
        """Send a request that may be repeated. All attempts together end within the time limit."""
        response: ServiceResponse | None = None

        async def attempt() -> ServiceResponse | None:
            nonlocal response
            response = await self._try(method, path, content, headers or {})
            return response

        with suppress(TimeoutError):  # the last response is the answer
            async with asyncio.timeout(self._seconds):
                await retry(attempt, self._policy, _requested_delay)
        if response is None:
            raise ServiceUnavailable()
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _try(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> ServiceResponse | None:
        sent = {**headers, **({"content-type": "application/json"} if content is not None else {})}
        try:
            async with self._client.stream(method, f"{self.url}{path}", content=content, headers=sent) as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise ServiceUnavailable("The response of a service that this server depends on is too large.")
                return ServiceResponse(response.status_code, bytes(body), dict(response.headers))
        except (httpx2.TransportError, httpx2.InvalidURL):
            return None


def _requested_delay(response: ServiceResponse | None) -> float | None:
    return 0.0 if response is None or response.status in TEMPORARY_STATUSES else None
