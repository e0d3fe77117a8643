"""The application: every surface, route and lifespan, in one visible list."""

import asyncio
import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import structlog
from opentelemetry.trace import Tracer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from almanac import __version__
from almanac.ai import chat
from almanac.ai.chat import Chat, open_chat
from almanac.assist.agent import Agent
from almanac.audit.recorder import Ledger
from almanac.audit.trail import AuditEntry, AuditTrail
from almanac.bootstrap import configure_logs, load_settings, open_database, signing_key
from almanac.core import clock
from almanac.core.database import Database, Transaction
from almanac.core.settings import InvalidSetting, Settings
from almanac.db.read_cache import ReadCache
from almanac.identity import tokens
from almanac.knowledge import knowledge_runtime
from almanac.knowledge.files import FileStore
from almanac.net import client_address
from almanac.net.allowed_hosts import AllowedHosts
from almanac.net.fetcher import Fetcher, FetchRules
from almanac.quotas import idempotency_redis, rate_limits, usage
from almanac.search.backends import open_search
from almanac.surfaces.almanac import tools as almanac_surface
from almanac.surfaces.external import tools as external_surface
from almanac.surfaces.external.http_endpoint import ExternalHttpEndpoint
from almanac.surfaces.gateway import tools as gateway_surface
from almanac.surfaces.gateway.state import open_gateway
from almanac.surfaces.mcp_endpoint import McpEndpoint
from almanac.surfaces.memory import tools as memory_surface
from almanac.surfaces.surface import Surface, ToolDispatcher
from almanac.surfaces.tool import AppContext
from almanac.surfaces.weknora import tools as weknora_surface
from almanac.web import openapi, usage_report
from almanac.web.agents import a2a
from almanac.web.agents.messages import AGENT_ENDPOINTS, cards
from almanac.web.agents.messages import PREFIX as AGENTS_PREFIX
from almanac.web.catalogue.routes import CATALOGUE_ENDPOINTS, CATALOGUE_PREFIX
from almanac.web.endpoints import ENDPOINTS
from almanac.web.health import HealthRoutes
from almanac.web.rest import PREFIX, Rest

# Those whose setting is off are not served.
SURFACES: tuple[Surface, ...] = (
    almanac_surface.SURFACE,
    external_surface.SURFACE,
    gateway_surface.SURFACE,
    memory_surface.SURFACE,
)

# A secret is worth nothing if it can be guessed: short, repetitive, or printed in somebody's example.
MIN_SECRET_CHARS = 32
_GUESSABLE_WORDS = ("changeme", "change-me", "secret", "password", "default", "example", "almanac", "your-")

# The environment variable in which `serve --workers N` tells its server processes who started them.
SUPERVISOR_PID_ENV = "ALMANAC_SUPERVISOR_PID"

_log = structlog.get_logger("almanac.app")


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot work together, before anything is opened."""
    check_public_bind(settings)
    check_telemetry(settings)
    open_fetcher(settings)
    if settings.workers > 1 and settings.on_sqlite:
        raise InvalidSetting(
            "--workers needs PostgreSQL: SQLite has one writing process.",
            remedy="Set ALMANAC_DATABASE_URL, or use one.",
        )
    if settings.workers > 1 and not settings.redis_url:
        raise InvalidSetting(
            "--workers needs Redis: each process would count rate limits for itself alone.", remedy="Set REDIS_URL."
        )
    if settings.external_extension and not _is_importable(settings.external_extension):
        raise InvalidSetting(
            f"external_extension: there is no module {settings.external_extension!r}.",
            remedy="Name one that Python can import, and its folder in PYTHONPATH.",
        )
    client_address.read_networks(settings.trusted_proxies)
    knowledge_runtime.check(settings)
    chat.check(settings)


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # of the package it is in
        return False


def check_public_bind(settings: Settings) -> None:
    """Refuse to open a door to the world that a guess could unlock."""
    if settings.is_public and settings.gateway_service_key and is_weak_secret(settings.gateway_service_key):
        raise InvalidSetting(
            f"Refusing to listen on {settings.host}: GATEWAY_SERVICE_KEY is too easy to guess.",
            remedy="Set at least 32 random characters, such as the output of 'openssl rand -base64 48'.",
        )
    if settings.is_public and settings.secret and is_weak_secret(settings.secret):
        raise InvalidSetting(
            f"Refusing to listen on {settings.host}: ALMANAC_SECRET is a default or too easy to guess.",
            remedy="Remove it to have one generated, or set at least 32 random characters, such as the output of "
            "'openssl rand -base64 48'.",
        )


def is_weak_secret(secret: str) -> bool:
    """Whether a secret could be guessed."""
    lowered = secret.lower()
    return len(secret) < MIN_SECRET_CHARS or len(set(secret)) < 10 or any(word in lowered for word in _GUESSABLE_WORDS)


def open_fetcher(settings: Settings) -> Fetcher:
    """What fetches from the web. A fetch ends before the call that waits for it does, and can say why."""
    seconds = max(1.0, settings.request_deadline_seconds - 5)
    try:
        return Fetcher(FetchRules(allow=settings.fetch_allow, max_bytes=settings.max_file_bytes, total_seconds=seconds))
    except ValueError as error:
        raise InvalidSetting(f"fetch_allow: {error}.") from None


@dataclass(frozen=True, slots=True)
class RunningApp:
    """Everything a running process has open."""

    settings: Settings
    db: Database
    house: AppContext
    desks: tuple[ToolDispatcher, ...]
    chat: Chat | None = None


@asynccontextmanager
async def open_app_context(settings: Settings, surfaces: Sequence[Surface] = SURFACES) -> AsyncGenerator[RunningApp]:
    """The database, the limits, the audit trail being written, and a desk for each surface."""
    surfaces = [each for each in surfaces if not each.setting or getattr(settings, each.setting)]
    key = signing_key(settings)
    files = FileStore(settings.home, settings.max_file_bytes)
    async with contextlib.AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_database(settings))
        fetcher = await stack.enter_async_context(open_fetcher(settings))
        search = await stack.enter_async_context(open_search(settings, db))
        answering = await stack.enter_async_context(knowledge_runtime.open_runtime(settings))
        remembered = ReadCache(db)
        gateway = await stack.enter_async_context(open_gateway(settings, db, remembered, key))
        trail = AuditTrail(db, also=(_note_tokens, _count_calls))
        house = AppContext(
            settings=settings,
            rates=rate_limits.open_rates(settings.redis_url),
            trail=trail,
            remembered=remembered,
            files=files,
            fetcher=fetcher,
            search=search,
            gateway=gateway,
            key=key,
            call_rule=rate_limits.RateLimit(
                "calls",
                settings.rate_limit_calls,
                settings.rate_limit_window_seconds,
                settings.rate_limit_strategy,
            ),
            repeats=idempotency_redis.open_repeats(settings.redis_url, db),
            started_at=clock.now(),
            surfaces={surface.name: surface.path for surface in surfaces},
            runtime=answering,
        )
        speaker = open_chat(settings)
        spans = open_tracer_provider(settings)
        tracer = spans.get_tracer("almanac", __version__) if spans else None
        writing = asyncio.create_task(trail.run())
        try:
            desks = tuple(ToolDispatcher(surface, house, db, tracer) for surface in surfaces)
            yield RunningApp(settings, db, house, desks, speaker)
        finally:
            await trail.stop(writing, settings.shutdown_grace_seconds)
            await house.rates.close()
            await house.repeats.close()
            files.close()
            if speaker:
                await speaker.close()
            if spans:
                await asyncio.to_thread(spans.shutdown)  # sends what is left


class Application(Starlette):
    """Starlette, with a shorter way to the doors: they meet every failure themselves and need no middleware."""

    endpoints: Mapping[str, McpEndpoint] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self.endpoints.get(scope["path"]) if scope["type"] == "http" else None
        await (door or super().__call__)(scope, receive, send)


def create_app(settings: Settings, surfaces: Sequence[Surface] = SURFACES) -> Application:
    """The ASGI application. Its doors and routes are made when it starts, for they need what is then opened."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            opened = await stack.enter_async_context(open_app_context(settings, surfaces))
            neighbourhood = AllowedHosts(settings)
            doors = [McpEndpoint(desk, neighbourhood) for desk in opened.desks]
            for door in doors:
                await stack.enter_async_context(door.sdk.run())
            app.endpoints = {
                prefix + door.desk.surface.path: door for prefix in {"", settings.api_prefix} for door in doors
            }
            app.router.routes[:] = routes(opened)
            # What is there at the start stays: kept out of the collector's way, it is not looked through again.
            gc.collect()
            gc.freeze()
            gc.set_threshold(
                20_000, 20, 20
            )  # a call leaves no cycles behind: looking for them 30 times less often will do
            _log.info("serving", surfaces=dict(opened.house.surfaces), database=opened.db.dialect)
            yield
            _log.info("stopping")

    app = Application(lifespan=lifespan, exception_handlers={404: _not_found, 405: _not_allowed})
    app.router.redirect_slashes = False  # a redirect would repeat whatever Host was sent
    return app


def routes(opened: RunningApp) -> list[Route]:
    """Every route beside the surfaces' doors."""
    house, db = opened.house, opened.db
    rest = Rest(
        endpoints=ENDPOINTS,
        settings=opened.settings,
        db=db,
        keyring=tokens.TokenResolver(db, house.remembered),
        rates=house.rates,
        call_rule=house.call_rule,
        ledger=Ledger(house.trail, house.key),
        neighbourhood=AllowedHosts(opened.settings),
        files=house.files,
        fetcher=house.fetcher,
        search=house.search,
        key=house.key,
        agent=Agent(
            opened.chat,
            weknora_surface.CONTRACT[0],
            opened.settings.agent_searches,
            opened.settings.agent_seconds / 2,  # so that there is time for extracts where a model hangs
        ),
    )
    agents = replace(rest, endpoints=(*AGENT_ENDPOINTS, a2a.ENDPOINT), prefix="")
    catalogue = replace(rest, endpoints=CATALOGUE_ENDPOINTS, prefix="")
    described = {
        **house.surfaces,
        "rest": f"{PREFIX}/openapi.json",
        "catalogue": f"{CATALOGUE_PREFIX}/openapi.json",
        "agents": f"{AGENTS_PREFIX}/openapi.json",
    }
    plumbing = HealthRoutes(opened.settings, db, house.rates, described)
    annexes = [
        ExternalHttpEndpoint(desk, rest.neighbourhood, prefix)
        for desk in opened.desks
        if desk.surface is external_surface.SURFACE
        for prefix in sorted({"", opened.settings.api_prefix})
    ]
    beside = [route for annex in annexes for route in annex.routes()]
    return [
        *plumbing.routes(),
        openapi.route(ENDPOINTS),
        openapi.route(CATALOGUE_ENDPOINTS, CATALOGUE_PREFIX, ""),
        *rest.routes(),
        *catalogue.routes(),
        openapi.route(AGENT_ENDPOINTS, AGENTS_PREFIX, ""),
        *cards(opened.settings),
        *agents.routes(),
        usage_report.route(rest),
        *beside,
    ]


def from_environment() -> Application:
    """The application as the environment describes it: what each server process calls."""
    settings = load_settings().settings
    configure_logs(settings)
    if settings.external_extension:
        importlib.import_module(settings.external_extension)
    if supervisor := os.environ.get(SUPERVISOR_PID_ENV):
        threading.Thread(target=_exit_with_supervisor, args=(int(supervisor),), daemon=True).start()
    return create_app(settings)


def _exit_with_supervisor(supervisor: int) -> None:
    # A supervisor that was killed cannot stop its server processes; they would go on holding the port.
    while os.getppid() == supervisor:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


class TracerProvider(Protocol):
    """As much of OpenTelemetry's provider as is used here: it comes with an extra, which may be missing."""

    def get_tracer(self, name: str, version: str, /) -> Tracer: ...
    def shutdown(self) -> None: ...


def check_telemetry(settings: Settings) -> None:
    """Refuse to start with spans asked for that could not be sent."""
    if settings.otlp_endpoint and importlib.util.find_spec("opentelemetry.sdk") is None:
        raise InvalidSetting(
            "otlp_endpoint is set, but OpenTelemetry's exporter is not installed.",
            remedy="Install it with: scripts/uv sync --locked --inexact --no-dev --extra telemetry",
        )


def open_tracer_provider(settings: Settings) -> TracerProvider | None:
    """What exports spans, where an endpoint is configured."""
    check_telemetry(settings)
    if not settings.otlp_endpoint:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": "almanac", "service.version": __version__}))
    endpoint = settings.otlp_endpoint.rstrip("/")
    endpoint = endpoint if endpoint.endswith("/v1/traces") else f"{endpoint}/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


async def _note_tokens(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    await tokens.record_last_use(tx, ((entry.token_id, entry.at) for entry in entries))


async def _count_calls(tx: Transaction, entries: Sequence[AuditEntry]) -> None:
    calls: dict[str, int] = {}
    for entry in entries:
        calls[entry.org_id] = calls.get(entry.org_id, 0) + 1
    for org_id, number in sorted(calls.items()):  # in one order, so that two processes cannot lock each other out
        await usage.count(tx, org_id, "tool_calls", number)


async def _not_found(_: Request, __: Exception) -> Response:
    return JSONResponse(
        {"error": "There is nothing at this path. GET / lists what is served.", "code": "not_found"}, 404
    )


async def _not_allowed(_: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    return JSONResponse({"error": "This path does not take that method.", "code": "method_not_allowed"}, 405, headers)
