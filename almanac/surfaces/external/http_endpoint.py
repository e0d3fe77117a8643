"""The HTTP paths of the external surface beside its MCP transport: information, health and the files of documents.

A download is authenticated by a download token, so it counts twice: by client address before the token is read, and by
user afterwards. Every other path needs a credential before it answers 404.
"""

import re

import orjson
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from almanac.core.errors import AlmanacError, NotFound
from almanac.knowledge import downloads
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.operation import Operation
from almanac.operations.pipeline.endpoint import Endpoint, Invocation
from almanac.operations.pipeline.errors import MethodNotAllowed
from almanac.operations.pipeline.file_answer import FileAnswer, send_file
from almanac.operations.pipeline.pipeline import EndpointApp
from almanac.quotas.rate_limits import RateLimit
from almanac.surfaces.external import limits, responses
from almanac.surfaces.external.auth import ExternalAuthenticator
from almanac.surfaces.external.tools import CONTRACT, MOUNT, SERVICE, SURFACE, TRANSPORT

MAX_ID_DIGITS = 19  # ids of documents have 64 bits

_FILE_PATH = re.compile(r"/documents/0*([0-9]+)/file")
_TOKEN_HEADER = responses.TOKEN_HEADER.lower().encode()


async def _open_file(ctx: RequestContext, _: object) -> FileAnswer:
    """Open a document's file for the holder of a download token."""
    document_id, disposition = ctx.arguments["document_id"], ctx.claims
    await limits.count_download(ctx, document_id)
    download = await downloads.open_with_token(ctx, ctx.app.files, document_id, disposition)
    return FileAnswer(download.path, download.document.mime_type, download.headers, download.state)


DOCUMENT_FILE = Operation("document_file", "The file of a document", _open_file, arguments=None, answer=FileAnswer)


class ExternalHttpEndpoint(Endpoint):
    """Serves the paths below one mount of the external surface, except for the transport."""

    surface = SURFACE.name
    state = None

    def __init__(self, prefix: str) -> None:
        self.mount = prefix + MOUNT
        self._authenticator = ExternalAuthenticator(SURFACE, None)
        self._public = {path: orjson.dumps(content) for path, content in self._public_content().items()}

    def _public_content(self) -> dict[str, dict[str, object]]:
        """Return the answers that need no credential, because they contain nobody's data."""
        about: dict[str, object] = {
            "service": SERVICE,
            "transport": "streamable-http",
            "endpoints": {
                "mcp": self.mount + TRANSPORT,
                "health": f"{self.mount}/health",
                "document_file": f"{self.mount}/documents/{{document_id}}/file",
            },
            "tools": list(CONTRACT),
        }
        return {"": about, "/": about, "/health": {"status": "healthy", "service": SERVICE}}

    def public_answer(self, http: HttpExchange) -> bytes | None:
        """Return the answer of a public path; None for any other path."""
        answer = self._public.get(self._path(http))
        if answer is not None:
            _require_get(http)
        return answer

    async def limit_before_credential(self, app: AppContext, http: HttpExchange) -> None:
        """Count a download by client address."""
        if (document_id := self._document_id(http)) is not None:
            _require_get(http)
            await limits.count_unauthenticated_download(app, http, document_id)

    async def authenticate(self, app: AppContext, http: HttpExchange) -> Authentication:
        """Return the holder of the download token, or of the API token for any other path."""
        document_id = self._document_id(http)
        if document_id is None:
            return Authentication(await self._authenticator.authenticate(app, http))
        token = http.headers.get(_TOKEN_HEADER, b"").decode("latin-1")
        return Authentication(*await downloads.token_holder(app.db, app.key, token, document_id))

    async def limit_before_body(self, ctx: RequestContext) -> None:
        """Count a request to a path that does not exist."""
        if self._document_id(ctx.http) is None:
            await limits.count_request(ctx)

    def call_limit(self, ctx: RequestContext) -> RateLimit | None:
        """Return None: the surface has limits of its own."""
        return None

    async def read(self, ctx: RequestContext) -> Invocation:
        """Return the download, or refuse a path that does not exist."""
        document_id = self._document_id(ctx.http)
        if document_id is None:
            raise NotFound("Not Found")
        ctx.http.ignore_body()
        arguments = {"document_id": document_id, "disposition": ctx.claims}
        return Invocation(DOCUMENT_FILE.name, DOCUMENT_FILE, arguments)

    async def send(self, ctx: RequestContext, answer: FileAnswer) -> None:
        """Send the file."""
        await send_file(ctx.http, answer)

    async def send_error(self, http: HttpExchange, ctx: RequestContext | None, error: AlmanacError) -> None:
        """Send an error in the seed's form."""
        status, body = responses.http_error(error)
        await http.reply(status, orjson.dumps(body))

    def _path(self, http: HttpExchange) -> str:
        return http.scope["path"].removeprefix(self.mount)

    def _document_id(self, http: HttpExchange) -> int | None:
        match = _FILE_PATH.fullmatch(self._path(http))
        if match is None:
            return None
        return int(match[1]) if len(match[1]) <= MAX_ID_DIGITS else 0


def _require_get(http: HttpExchange) -> None:
    if http.scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowed(["GET"], "This path takes GET requests only.", "")


def external_routes(app: AppContext, prefix: str) -> list[Route]:
    """Return the routes of one mount: the mount itself and all paths below it."""
    endpoint = ExternalHttpEndpoint(prefix)
    application = _MountApp(app, endpoint)
    return [Route(endpoint.mount, application), Route(endpoint.mount + "/{rest:path}", application)]


class _MountApp(EndpointApp):
    """The ASGI application of a mount. It answers the public paths without the pipeline."""

    endpoint: ExternalHttpEndpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        http = HttpExchange(scope, receive, send)
        try:
            answer = self.endpoint.public_answer(http)
        except MethodNotAllowed as error:
            await self.endpoint.send_error(http, None, error)
            return
        await (super().__call__(scope, receive, send) if answer is None else http.reply(200, answer))
