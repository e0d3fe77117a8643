"""A peer: a service that the operator has named, which may well be inside. Its connections are kept and used again.

Unlike `fetch.py`, which goes wherever a caller says and trusts nobody, this goes to one place only: redirects are not
followed and proxies of the environment not used. What is asked has no effect, so that a request which failed for the
moment is sent again.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from almanac.core.errors import Unavailable
from almanac.net.fetcher import NOBODY

TRIES = 3
PAUSE = 0.1  # seconds before the second try, three times as long before the third
MOST_BYTES = 64 * 1024 * 1024  # of an answer
CONNECTIONS = 100
PASSING = frozenset({408, 425, 429, 502, 503, 504})  # statuses that another try may find gone


class ServiceUnavailable(Unavailable):
    """A service that this server depends on cannot be reached or does not answer in time."""

    code = "upstream_unavailable"
    status = 502
    remedy = "Try again in a few seconds."


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """What the peer said."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # by names in lower case


class ServiceClient:
    """One service at one address."""

    def __init__(self, url: str, seconds: float, headers: Mapping[str, str] | None = None, tries: int = TRIES) -> None:
        self.url = url.rstrip("/")
        self._seconds = seconds
        self._tries = tries
        self._client = httpx2.AsyncClient(
            headers={"accept": "application/json", **(headers or {})},
            trust_env=False,
            follow_redirects=False,
            verify=NOBODY if self.url.startswith("http:") else True,
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS // 4),
            timeout=seconds,
        )

    async def request(
        self, method: str, path: str, *, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServiceResponse:
        """The answer to a question that may be put more than once; all tries together end in time."""
        answer: ServiceResponse | None = None
        try:
            async with asyncio.timeout(self._seconds):
                for attempt in range(self._tries):
                    if attempt:
                        await asyncio.sleep(PAUSE * 3 ** (attempt - 1))
                    answer = await self._try(method, path, content, headers or {})
                    if answer is not None and answer.status not in PASSING:
                        return answer
        except TimeoutError:
            pass
        if answer is None:
            raise ServiceUnavailable()
        return answer

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def _try(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> ServiceResponse | None:
        sent = {**headers, **({"content-type": "application/json"} if content is not None else {})}
        try:
            async with self._client.stream(method, f"{self.url}{path}", content=content, headers=sent) as response:
                body = bytearray()
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise ServiceUnavailable(
                            "A service that this server depends on answers with more than it should."
                        )
                return ServiceResponse(response.status_code, bytes(body), dict(response.headers))
        except (httpx2.TransportError, httpx2.InvalidURL):
            return None
