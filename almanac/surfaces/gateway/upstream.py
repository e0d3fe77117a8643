"""The knowledge-base service behind the gateway: this server itself, or a remote service over HTTP.

A remote service receives the tenant of the caller, never the caller's key.
"""

from typing import Any, Protocol, cast
from urllib.parse import quote

import orjson

from almanac.catalogue import contract_json
from almanac.core.call import Call
from almanac.core.errors import AlmanacError
from almanac.net.service_client import ServiceClient, ServiceUnavailable
from almanac.operations import namespace_search
from almanac.operations.namespace_search import NamespaceQuery
from almanac.search.engine import SearchEngine

TENANT_HEADER = "x-tenant-id"
MAX_REASON_CHARS = 500


class UpstreamFailed(AlmanacError):
    """The knowledge-base service refused the request or could not serve it."""

    code = "upstream_failed"
    status = 502

    def __init__(self, upstream_status: int, message: str) -> None:
        self.upstream_status = upstream_status
        super().__init__(message)


class Upstream(Protocol):
    """A knowledge-base service."""

    async def retrieve(self, call: Call, search: SearchEngine, body: dict[str, Any]) -> Any: ...
    async def entity(self, call: Call, key: str) -> Any: ...
    async def structure(self, call: Call, key: str | None) -> Any: ...
    async def is_available(self, call: Call) -> bool: ...


class LocalUpstream:
    """The catalogue of this server."""

    async def retrieve(self, call: Call, search: SearchEngine, body: dict[str, Any]) -> Any:
        matches, _ = await namespace_search.retrieve(call, search, NamespaceQuery.model_validate(body))
        return [namespace_search.render_match(match) for match in matches]

    async def entity(self, call: Call, key: str) -> Any:
        return await contract_json.entity(call, key)

    async def structure(self, call: Call, key: str | None) -> Any:
        return await contract_json.structure(call, key)

    async def is_available(self, call: Call) -> bool:
        return bool(await call.db.fetch("SELECT 1"))


class RemoteUpstream:
    """A remote service."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def retrieve(self, call: Call, search: SearchEngine, body: dict[str, Any]) -> Any:
        answer: Any = await self._request(call, "POST", "/knowledge-base/retrieve", orjson.dumps(body))
        matches = cast("list[Any]", answer) if isinstance(answer, list) else []
        if not isinstance(answer, list) or not all(isinstance(each, dict) for each in matches):
            raise UpstreamFailed(502, "It does not answer as it should.")
        return matches

    async def entity(self, call: Call, key: str) -> Any:
        return await self._request(call, "GET", f"/knowledge-base/entities/{quote(key, safe='')}")

    async def structure(self, call: Call, key: str | None) -> Any:
        path = "/knowledge-base/categories"
        return await self._request(call, "GET", path if key is None else f"{path}/{quote(key, safe='')}")

    async def is_available(self, call: Call) -> bool:
        try:
            return (await self._client.request("GET", "/health")).status == 200
        except ServiceUnavailable:
            return False

    async def _request(self, call: Call, method: str, path: str, content: bytes | None = None) -> Any:
        headers = {TENANT_HEADER: call.actor.org_id, "x-request-id": call.request_id}
        answer = await self._client.request(method, path, content=content, headers=headers)
        try:
            body: Any = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            body = None
        if not 200 <= answer.status < 300:
            raise UpstreamFailed(answer.status, _reason(body) or "It gave no reason.")
        if body is None:
            raise UpstreamFailed(502, "It does not answer as it should.")
        return body


def _reason(body: Any) -> str:
    """Return the reason in an error answer, from the first of its usual fields."""
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    reason = next((fields[name] for name in ("error", "message", "detail") if isinstance(fields.get(name), str)), "")
    return cast("str", reason)[:MAX_REASON_CHARS]
