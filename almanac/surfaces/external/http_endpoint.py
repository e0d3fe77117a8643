"""What the external surface serves beside its transport: what it is, whether it is well, and the files of documents.

A file is fetched with a credential of its own, so whoever fetches it is counted twice: as a stranger, before the
credential is looked at, and as its holder. Any other path asks who is calling before it says that there is nothing.
"""

import asyncio
import re
import time
from dataclasses import replace

import orjson
import structlog
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from almanac.audit.recorder import Ledger
from almanac.core.call import REQUEST_ID, Call
from almanac.core.errors import AlmanacError, Cancelled, Internal, NotFound
from almanac.knowledge import downloads
from almanac.knowledge.downloads import Download
from almanac.net.allowed_hosts import AllowedHosts
from almanac.net.http_exchange import HttpExchange, ServerStopping
from almanac.surfaces.external import limits, responses
from almanac.surfaces.external.auth import ExternalAuthenticator
from almanac.surfaces.external.tools import CONTRACT, MOUNT, SERVICE, TRANSPORT
from almanac.surfaces.surface import ToolDispatcher

_LONGEST_ID = 19  # digits; beyond it there is no document, nor a credential for it
_FILE = re.compile(r"/documents/0*([0-9]+)/file")
_DOWNLOAD = "document_file"  # in the audit trail and the metrics
_log = structlog.get_logger("almanac.external")


class OnlyGet(AlmanacError):
    """This path takes GET requests only."""

    code = "method_not_allowed"
    status = 405


class ExternalHttpEndpoint:
    """The ASGI application below one mount of the surface."""

    def __init__(self, desk: ToolDispatcher, neighbourhood: AllowedHosts, prefix: str) -> None:
        self._desk = desk
        self._mount = prefix + MOUNT
        self._neighbourhood = neighbourhood
        self._gate = ExternalAuthenticator(desk)
        self._ledger = Ledger(desk.house.trail, desk.house.key)
        self._public = {path: orjson.dumps(told) for path, told in self._told().items()}

    def routes(self) -> list[Route]:
        """The mount itself and all below it."""
        return [Route(self._mount, self), Route(self._mount + "/{rest:path}", self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        exchange = HttpExchange(scope, receive, send)
        try:
            await self._serve(exchange)
        except AlmanacError as error:
            await self._refuse(exchange, error)
        except asyncio.CancelledError:
            await self._refuse(exchange, ServerStopping())
            raise
        except Exception:  # noqa: BLE001 - the ASGI edge
            _log.exception("request_failed", request_id=exchange.request_id)
            await self._refuse(exchange, Internal())

    def _told(self) -> dict[str, dict[str, object]]:
        """What is public. It says nothing of anyone's data."""
        about: dict[str, object] = {
            "service": SERVICE,
            "transport": "streamable-http",
            "endpoints": {
                "mcp": self._mount + TRANSPORT,
                "health": f"{self._mount}/health",
                "document_file": f"{self._mount}/documents/{{document_id}}/file",
            },
            "tools": list(CONTRACT),
        }
        return {"": about, "/": about, "/health": {"status": "healthy", "service": SERVICE}}

    async def _serve(self, exchange: HttpExchange) -> None:
        path = exchange.scope["path"].removeprefix(self._mount)
        exchange.read_headers()
        is_get = exchange.scope["method"] in ("GET", "HEAD")
        if path in self._public:
            if not is_get:
                raise OnlyGet()
            await exchange.reply(200, self._public[path])
            return
        self._neighbourhood.check(exchange.headers)
        if match := _FILE.fullmatch(path):
            if not is_get:
                raise OnlyGet()
            await self._send_file(exchange, int(match[1]) if len(match[1]) <= _LONGEST_ID else 0)
            return
        actor = await self._gate.authenticate(exchange)
        await limits.count_request(self._desk, exchange, actor)
        raise NotFound("Not Found")

    async def _send_file(self, exchange: HttpExchange, document_id: int) -> None:
        house, db = self._desk.house, self._desk.db
        await limits.count_unauthenticated_download(house.rates, house.settings, exchange, document_id)
        token = exchange.headers.get(responses.TOKEN_HEADER.lower().encode(), b"").decode("latin-1")
        actor, disposition = await downloads.token_holder(db, house.key, token, document_id)
        # The credential itself says what may be done with it, whatever tools its holder's token is limited to.
        call = Call(replace(actor, tools=None), db, exchange.request_id)
        found = await self._opened(call, document_id, disposition)
        response = FileResponse(
            found.path, headers=found.headers, media_type=found.document.mime_type, stat_result=found.state
        )
        await response(exchange.scope, exchange.receive, exchange.send_with_request_id)

    async def _opened(self, call: Call, document_id: int, disposition: str) -> Download:
        """The file, if it may be had; the call is accounted for, whatever happens."""
        house, begun, outcome = self._desk.house, time.perf_counter_ns(), Internal.code
        REQUEST_ID.set(call.request_id)
        try:
            house.trail.require_capacity()
            await limits.count_download(house.rates, house.settings, call.actor.id, document_id)
            found = await downloads.open_with_token(call, house.files, document_id, disposition)
            outcome = "ok"
            return found
        except AlmanacError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = Cancelled.code
            raise
        finally:
            digest = self._ledger.digest({"document_id": document_id, "disposition": disposition})
            taken = time.perf_counter_ns() - begun
            self._ledger.record(call, self._desk.surface.name, _DOWNLOAD, outcome, taken, digest)

    async def _refuse(self, exchange: HttpExchange, error: AlmanacError) -> None:
        if exchange.is_answered:
            return  # too late to say anything else
        status, told = responses.http_error(error)
        if status >= 500:
            _log.warning("request_refused", request_id=exchange.request_id, error=str(error))
        await exchange.reply(status, orjson.dumps(told))
