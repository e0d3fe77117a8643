"""The application: every surface and route in one list, and the resources that they need."""

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from almanac import __version__
from almanac.ai import chat
from almanac.ai.chat import open_chat
from almanac.assist.agent import Agent
from almanac.audit.recorder import CallRecorder
from almanac.audit.trail import AuditEntry, AuditTrail
from almanac.bootstrap import configure_logs, load_settings, open_database, signing_key
from almanac.core import clock
from almanac.core.database import Transaction
from almanac.core.settings import InvalidSetting, Settings
from almanac.core.timers import TimerQueue
from almanac.data.engine import open_data
from almanac.db.read_cache import ReadCache
from almanac.files.file_store import FileStore
from almanac.identity import tokens
from almanac.knowledge import knowledge_runtime
from almanac.net import client_address, cors
from almanac.net.allowed_hosts import AllowedHosts
from almanac.net.body_memory import BodyMemory
from almanac.net.fetcher import Fetcher, FetchRules
from almanac.operations.context import AppContext
from almanac.operations.pipeline.guard import WATCH_AFTER_SECONDS
from almanac.operations.pipeline.pipeline import EndpointApp
from almanac.operations.server import USAGE_REPORT
from almanac.quotas import idempotency_redis, monthly_quotas, redis_rate_limits
from almanac.quotas.rate_limits import RateLimit
from almanac.search.backends import open_search
from almanac.surfaces.almanac import tools as almanac_surface
from almanac.surfaces.dispatcher import ToolDispatcher
from almanac.surfaces.external import tools as external_surface
from almanac.surfaces.external.http_endpoint import external_routes
from almanac.surfaces.gateway import tools as gateway_surface
from almanac.surfaces.knowi import tools as knowi_surface
from almanac.surfaces.knowi.http_endpoint import knowi_routes
from almanac.surfaces.mcp_endpoint import McpEndpoint
from almanac.surfaces.memory import tools as memory_surface
from almanac.surfaces.surface import Surface
from almanac.surfaces.weknora import tools as weknora_surface
from almanac.telemetry import check_telemetry, open_tracer_provider
from almanac.web import openapi, rest
from almanac.web.agents.a2a import AGENT_RPC
from almanac.web.agents.cards import AGENTS_PREFIX, card_routes
from almanac.web.agents.messages import AGENT_OPERATIONS
from almanac.web.api_v1 import API_OPERATIONS
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS, CATALOGUE_PREFIX
from almanac.web.health import HealthRoutes
from almanac.web.login import MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX
from almanac.web.rest import API_PREFIX

# All surfaces. A disabled surface is not served.
SURFACES: tuple[Surface, ...] = (
    almanac_surface.SURFACE,
    external_surface.SURFACE,
    gateway_surface.SURFACE,
    memory_surface.SURFACE,
    knowi_surface.SURFACE,
)

# A secret that is short, repetitive or copied from an example can be guessed.
MIN_SECRET_CHARS = 32
_GUESSABLE_WORDS = ("changeme", "change-me", "secret", "password", "default", "example", "almanac", "your-")

SWITCH_SECONDS = 0.0001

# `serve --workers N` tells its server processes its own process id in this environment variable.
SUPERVISOR_PID_ENV = "ALMANAC_SUPERVISOR_PID"

_log = structlog.get_logger("almanac.app")


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot work together, before anything is opened."""
    check_public_bind(settings)
    check_telemetry(settings)
    open_fetcher(settings)
    if settings.workers > 1 and settings.on_sqlite:
        raise InvalidSetting(
            "--workers needs PostgreSQL: with SQLite only one process can write.",
            remedy="Set ALMANAC_DATABASE_URL, or use one worker.",
        )
    if settings.workers > 1 and not settings.redis_url:
        raise InvalidSetting(
            "--workers needs Redis: without it, each process would count rate limits separately.",
            remedy="Set REDIS_URL.",
        )
    if settings.external_extension and not _is_importable(settings.external_extension):
        raise InvalidSetting(
            f"external_extension: there is no module {settings.external_extension!r}.",
            remedy="Name a module that Python can import, and add its folder to PYTHONPATH.",
        )
    client_address.read_networks(settings.trusted_proxies)
    knowledge_runtime.query_mode(settings)
    chat.check(settings)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package of the module cannot be imported
        return False


def check_public_bind(settings: Settings) -> None:
    """Refuse a public address together with a secret that can be guessed."""
    if settings.is_public and settings.gateway_service_key and is_weak_secret(settings.gateway_service_key):
        raise InvalidSetting(
            f"Refusing to listen on {settings.host}: GATEWAY_SERVICE_KEY is too easy to guess.",
            remedy="Set at least 32 random characters, such as the output of 'openssl rand -base64 48'.",
        )
    if settings.is_public and settings.secret and is_weak_secret(settings.secret):
        raise InvalidSetting(
            f"Refusing to listen on {settings.host}: ALMANAC_SECRET is a default or too easy to guess.",
            remedy="Remove it, and the server generates one, or set at least 32 random characters, such as the output "
            "of 'openssl rand -base64 48'.",
        )


def is_weak_secret(secret: str) -> bool:
    """Whether a secret can be guessed."""
    lowered = secret.lower()
    return len(secret) < MIN_SECRET_CHARS or len(set(secret)) < 10 or any(word in lowered for word in _GUESSABLE_WORDS)


def open_fetcher(settings: Settings) -> Fetcher:
    """Return the web fetcher. Its time limit is shorter than that of a call, so that the call can report the cause."""
    seconds = max(1.0, settings.request_deadline_seconds - 5)
    try:
        return Fetcher(FetchRules(allow=settings.fetch_allow, max_bytes=settings.max_file_bytes, total_seconds=seconds))
    except ValueError as error:
        raise InvalidSetting(f"fetch_allow: {error}.") from None


@dataclass(frozen=True, slots=True)
class RunningApp:
    """The open resources of a running process, and the dispatchers of its surfaces."""

    context: AppContext
    dispatchers: tuple[ToolDispatcher, ...]


@asynccontextmanager
async def open_app(settings: Settings, surfaces: Sequence[Surface] = SURFACES) -> AsyncGenerator[RunningApp]:
    """Open the resources of a server process and its surfaces. Skip disabled surfaces."""
    surfaces = [each for each in surfaces if not each.setting or getattr(settings, each.setting)]
    async with (
        open_app_context(settings, {each.name: each.path for each in surfaces}) as app,
        contextlib.AsyncExitStack() as stack,
    ):
        states = [await stack.enter_async_context(surface.open_state(app)) for surface in surfaces]
        dispatchers = (ToolDispatcher(surface, app, state) for surface, state in zip(surfaces, states, strict=True))
        yield RunningApp(app, tuple(dispatchers))


@asynccontextmanager
async def open_app_context(settings: Settings, surfaces: Mapping[str, str]) -> AsyncGenerator[AppContext]:
    """Open the database, the limits, search and the audit trail, which is written in the background."""
    key = signing_key(settings)
    files = FileStore(settings.home, settings.max_file_bytes)
    async with contextlib.AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_database(settings))
        fetcher = await stack.enter_async_context(open_fetcher(settings))
        search = await stack.enter_async_context(open_search(settings, db))
        data = await stack.enter_async_context(open_data(files, key, settings))
        runtime = await stack.enter_async_context(knowledge_runtime.open_runtime(settings))
        read_cache = ReadCache(db)
        trail = AuditTrail(db, after_write=(_record_token_use, _count_calls))
        chat_model = open_chat(settings)
        tracer_provider = open_tracer_provider(settings)
        app = AppContext(
            settings=settings,
            db=db,
            allowed_hosts=AllowedHosts(settings),
            rate_limiter=redis_rate_limits.open_rate_limiter(settings.redis_url),
            call_limit=RateLimit(
                "calls", settings.rate_limit_calls, settings.rate_limit_window_seconds, settings.rate_limit_strategy
            ),
            recorder=CallRecorder(trail, key, keeps_texts=settings.agent_execution_texts),
            read_cache=read_cache,
            token_resolver=tokens.TokenResolver(db, read_cache),
            idempotency=idempotency_redis.open_idempotency(settings.redis_url, db),
            files=files,
            fetcher=fetcher,
            search=search,
            data=data,
            agent=Agent(
                chat_model,
                weknora_surface.CONTRACT[0],
                settings.agent_searches,
                settings.agent_seconds / 2,  # leaves time for extracts if the model does not answer
            ),
            body_memory=BodyMemory(settings.max_buffered_body_bytes, settings.max_body_bytes),
            timers=TimerQueue(WATCH_AFTER_SECONDS),
            started_at=clock.now(),
            surfaces=surfaces,
            key=key,
            runtime=runtime,
            tracer=tracer_provider.get_tracer("almanac", __version__) if tracer_provider else None,
        )
        if settings.redis_url and not await app.rate_limiter.is_available():
            _log.warning("redis cannot be reached; calls are refused until it can", setting="REDIS_URL")
        writing = asyncio.create_task(trail.run())
        try:
            yield app
        finally:
            await trail.stop(writing, settings.shutdown_grace_seconds)
            await app.rate_limiter.close()
            await app.idempotency.close()
            files.close()
            if chat_model:
                await chat_model.close()
            if tracer_provider:
                await asyncio.to_thread(tracer_provider.shutdown)  # sends the spans that are left


class Application(Starlette):
    """Starlette with a direct dispatch to the surfaces. Their endpoints handle every failure and need no middleware."""

    endpoints: Mapping[str, EndpointApp] = {}

    def __init__(self, allowed_hosts: AllowedHosts, **options: Any) -> None:
        super().__init__(**options)
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve, origin = super().__call__, None
        if scope["type"] == "http":
            serve = self.endpoints.get(scope["path"], serve)
            origin = cors.accepted_origin(scope, self._allowed_hosts)
        if origin is None:
            await serve(scope, receive, send)
        elif cors.is_preflight(scope):
            await cors.answer_preflight(origin, send)
        else:
            await serve(scope, receive, cors.readable_from(origin, send))


def create_app(settings: Settings, surfaces: Sequence[Surface] = SURFACES) -> Application:
    """Return the ASGI application. Its endpoints are created when it starts, because they need open resources."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            running = await stack.enter_async_context(open_app(settings, surfaces))
            context = running.context
            endpoints = [(each.surface.endpoint or McpEndpoint)(each) for each in running.dispatchers]
            for endpoint in endpoints:
                await stack.enter_async_context(endpoint.sdk.run())
            app.endpoints = {
                prefix + endpoint.dispatcher.surface.path: EndpointApp(context, endpoint)
                for prefix in {"", settings.api_prefix}
                for endpoint in endpoints
            }
            app.router.routes[:] = routes(running)
            # Objects that exist at the start stay; frozen, they are not examined again by the garbage collector.
            gc.collect()
            gc.freeze()
            # While a thread computes, the event loop waits this long for its turn, and SQLite once for each row.
            sys.setswitchinterval(SWITCH_SECONDS)
            # A call leaves no reference cycles behind, so the collector may run 30 times less often. The second
            # generation stays small and the third is collected rarely, because a collection stops all threads.
            gc.set_threshold(20_000, 1, 500)
            _log.info("serving", surfaces=dict(context.surfaces), database=context.db.dialect)
            yield
            _log.info("stopping")

    app = Application(
        AllowedHosts(settings), lifespan=lifespan, exception_handlers={404: _not_found, 405: _not_allowed}
    )
    app.router.redirect_slashes = False  # a redirect would repeat an unchecked Host header
    return app


def routes(running: RunningApp) -> list[Route]:
    """Return every route beside the endpoints of the surfaces."""
    app = running.context
    settings = app.settings
    described = {
        **app.surfaces,
        "rest": f"{API_PREFIX}/openapi.json",
        "catalogue": f"{CATALOGUE_PREFIX}/openapi.json",
        "agents": f"{AGENTS_PREFIX}/openapi.json",
        "management": f"{MANAGEMENT_PREFIX}/openapi.json",
    }
    prefixes = sorted({"", settings.api_prefix})
    mounts = prefixes if external_surface.SURFACE.name in app.surfaces else []
    knowi = [each for each in running.dispatchers if each.surface.name == knowi_surface.SURFACE.name]
    return [
        *HealthRoutes(settings, app.db, app.rate_limiter, described).routes(),
        openapi.route(API_OPERATIONS),
        openapi.route(CATALOGUE_OPERATIONS, CATALOGUE_PREFIX, ""),
        openapi.route(AGENT_OPERATIONS, AGENTS_PREFIX, ""),
        openapi.route(MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX, MANAGEMENT_PREFIX),
        *card_routes(settings),
        *rest.routes(app, API_OPERATIONS),
        *rest.routes(app, CATALOGUE_OPERATIONS, ""),
        *rest.routes(app, (*AGENT_OPERATIONS, AGENT_RPC), ""),
        *rest.routes(app, MANAGEMENT_OPERATIONS, MANAGEMENT_PREFIX),
        *rest.routes(app, (USAGE_REPORT,), "", is_mcp=True),
        *(route for prefix in mounts for route in external_routes(app, prefix)),
        *(route for prefix in prefixes for each in knowi for route in knowi_routes(each, prefix)),
    ]


def from_environment() -> Application:
    """Return the application that the environment configures. Each server process calls this."""
    settings = load_settings().settings
    configure_logs(settings)
    if settings.external_extension:
        importlib.import_module(settings.external_extension)
    if supervisor := os.environ.get(SUPERVISOR_PID_ENV):
        threading.Thread(target=_exit_with_supervisor, args=(int(supervisor),), daemon=True).start()
    return create_app(settings)


def _exit_with_supervisor(supervisor: int) -> None:
    # A killed supervisor cannot stop its server processes, which would keep the port open.
    while os.getppid() == supervisor:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


async def _record_token_use(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    await tokens.record_last_use(tx, ((entry.token_id, entry.at) for entry in entries))


async def _count_calls(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    calls: dict[str, int] = {}
    for entry in entries:
        calls[entry.org_id] = calls.get(entry.org_id, 0) + 1
    for org_id, number in sorted(calls.items()):  # rows are locked in one order, so that processes cannot deadlock
        await monthly_quotas.add(tx, org_id, "tool_calls", number)


async def _not_found(_: Request, __: Exception) -> Response:
    return JSONResponse(
        {"error": "There is nothing at this path. GET / lists what is served.", "code": "not_found"}, 404
    )


async def _not_allowed(_: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    return JSONResponse({"error": "This path does not take that method.", "code": "method_not_allowed"}, 405, headers)
