"""The routes for operators and monitoring: service information, health, readiness and metrics."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from almanac import __version__
from almanac.core.database import Database
from almanac.core.errors import AlmanacError
from almanac.core.settings import Settings
from almanac.db import migrate
from almanac.identity import tokens
from almanac.identity.credentials import bearer_token
from almanac.jobs import queue
from almanac.quotas.rate_limits import RateLimiter


@dataclass(frozen=True, slots=True)
class HealthRoutes:
    """The routes that need no token, because they contain nobody's data."""

    settings: Settings
    db: Database
    rate_limiter: RateLimiter
    surfaces: dict[str, str]

    def routes(self) -> list[Route]:
        """Return all routes."""
        return [
            Route("/", self.about, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/ready", self.ready, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def about(self, _: Request) -> Response:
        """Return the version and the endpoints."""
        return JSONResponse({"service": "almanac", "version": __version__, "endpoints": self.surfaces})

    async def health(self, _: Request) -> Response:
        """Report that the process answers. Nothing else is checked, so that an outage elsewhere restarts no server."""
        return JSONResponse({"status": "healthy", "service": "almanac"})

    async def ready(self, _: Request) -> Response:
        """Report whether the server can serve calls: database, migrations and, if configured, Redis."""
        checks = {"database": await self._database(), "migrations": await self._migrations()}
        if self.settings.redis_url:
            checks["redis"] = "ok" if await self.rate_limiter.is_available() else "cannot be reached"
        is_ready = all(state == "ok" for state in checks.values())
        body = {"status": "ready" if is_ready else "not ready", "checks": checks}
        return JSONResponse(body, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus: calls, latencies, jobs, connections."""
        if self.settings.metrics_access == "token" and not await self._has_audit_scope(request):
            return JSONResponse(
                {"error": "A token with the scope audit:read is needed.", "code": "unauthorized"},
                401,
                {"WWW-Authenticate": 'Bearer realm="almanac"'},
            )
        registry = CollectorRegistry()
        registry.register(_GaugeCollector(await self._gauges()))  # pyright: ignore[reportArgumentType] - it has collect()
        body = generate_latest(_call_registry()) + generate_latest(registry)
        return Response(body, media_type=CONTENT_TYPE_LATEST)

    async def _database(self) -> str:
        try:
            await self.db.fetch_one("SELECT 1")
        except AlmanacError as error:
            return error.message
        return "ok"

    async def _migrations(self) -> str:
        try:
            pending = await migrate.pending(self.db)
        except AlmanacError as error:
            return error.message
        return "ok" if not pending else f"{len(pending)} to apply: run 'almanac migrate'"

    async def _has_audit_scope(self, request: Request) -> bool:
        token = bearer_token(dict(request.headers.raw))
        actor = await tokens.resolve(self.db, token) if token else None
        return actor is not None and "audit:read" in actor.scopes and actor.token_kind not in tokens.MCP_ONLY_KINDS

    async def _gauges(self) -> list[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("almanac_jobs", "Background jobs by state.", labels=["state"])
        pool = GaugeMetricFamily("almanac_database", "Database connections and waiting writes.", labels=["what"])
        try:
            for state, number in (await queue.counts(self.db)).items():
                jobs.add_metric([state], number)
            for what, number in (await self.db.pool_stats()).items():
                pool.add_metric([what], number)
        except AlmanacError:
            return []  # the counters of calls are useful during an outage too
        return [jobs, pool]


class _GaugeCollector:
    """Gauges that are read for each scrape."""

    def __init__(self, gauges: list[GaugeMetricFamily]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return iter(self._gauges)


def _call_registry() -> CollectorRegistry:
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return REGISTRY
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return registry
