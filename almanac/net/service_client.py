"""A client for one service that the operator has configured, often an internal one. Connections are reused.

The fetcher (`fetcher.py`) accepts any URL from a caller and checks it. This client connects to one address only, does
not follow redirects and does not use the proxies of the environment. Its requests change nothing on the service, so
after a temporary failure a request is sent again.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from almanac.core.errors import Unavailable
from almanac.net.fetcher import WITHOUT_CERTIFICATES

DEFAULT_TRIES = 3
FIRST_PAUSE_SECONDS = 0.1  # before the second attempt; three times as long before each further one
MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_CONNECTIONS = 100
TEMPORARY_STATUSES = frozenset({408, 425, 429, 502, 503, 504})


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
        self._tries = tries
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
        try:
            async with asyncio.timeout(self._seconds):
                for attempt in range(self._tries):
                    if attempt:
                        await asyncio.sleep(FIRST_PAUSE_SECONDS * 3 ** (attempt - 1))
                    response = await self._try(method, path, content, headers or {})
                    if response is not None and response.status not in TEMPORARY_STATUSES:
                        return response
        except TimeoutError:
            pass
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
