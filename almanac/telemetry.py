"""OpenTelemetry spans, which need the [telemetry] extra."""

import importlib.util
from typing import Protocol

from opentelemetry.trace import Tracer

from almanac import __version__
from almanac.core.settings import InvalidSetting, Settings


class TracerProvider(Protocol):
    """The used part of OpenTelemetry's provider, because the extra may be missing."""

    def get_tracer(self, name: str, version: str, /) -> Tracer: ...
    def shutdown(self) -> None: ...


def check_telemetry(settings: Settings) -> None:
    """Refuse a span endpoint without the extra that sends spans."""
    if settings.otlp_endpoint and importlib.util.find_spec("opentelemetry.sdk") is None:
        raise InvalidSetting(
            "otlp_endpoint is set, but OpenTelemetry's exporter is not installed.",
            remedy="Install it with: scripts/uv sync --locked --inexact --no-dev --extra telemetry",
        )


def open_tracer_provider(settings: Settings) -> TracerProvider | None:
    """The provider that exports spans, if an endpoint is configured."""
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
