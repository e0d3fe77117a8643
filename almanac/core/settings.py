"""Every setting, in one table: its name, type, default and help are the fields of `Settings`.

A value comes from, in this order: a command-line option, the environment, the TOML file, the default. The
environment name is `ALMANAC_` and the field in capitals, unless a seed's document names another.
`docs/reference/settings.md` is generated from this table, and a test keeps the two equal.
"""

import difflib
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from almanac.core.errors import BadRequest

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOME = Path("almanac-data")
_EXTERNAL = "EXTERNAL_KNOWLEDGE_MCP_"


class InvalidSetting(BadRequest):
    """A setting has a value that cannot be used."""

    code = "bad_setting"


def setting(default: Any, help: str, *env: str, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"help": help, "env": env, "secret": secret})


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator can choose."""

    # Where things live
    home: Path = setting(_HOME, "Folder for the database, files and the generated secret.")
    database_url: str = setting(
        "",
        "postgresql://… to use PostgreSQL with pgvector; empty for SQLite in the home folder.",
        "ALMANAC_DATABASE_URL",
        secret=True,
    )
    database_pool_size: int = setting(10, "Connections each process may open to PostgreSQL.")
    redis_url: str = setting(
        "",
        "redis://… to share rate limits between processes; empty to count in memory.",
        "REDIS_URL",
        secret=True,
    )

    # The front door
    host: str = setting("127.0.0.1", "Address to listen on. Anything but loopback is a public bind.")
    port: int = setting(8000, "Port to listen on.")
    workers: int = setting(1, "Server processes; more than one needs PostgreSQL and Redis.")
    public_url: str = setting("", "The URL callers use, where it differs from host and port (behind a proxy).")
    api_prefix: str = setting("", "Also serve every surface below this path, such as /api.", "API_PREFIX")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Further Host headers to accept, comma-separated; 'name:*' accepts any port.",
        "ALMANAC_ALLOWED_HOSTS",
        "MCP_ALLOWED_HOSTS",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Further Origin headers to accept, comma-separated.",
        "ALMANAC_ALLOWED_ORIGINS",
        "MCP_ALLOWED_ORIGINS",
    )
    check_hosts: bool = setting(
        True,
        "Refuse requests whose Host or Origin is not allowed (DNS rebinding).",
        "ALMANAC_CHECK_HOSTS",
        "MCP_ENABLE_DNS_REBINDING_PROTECTION",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Networks of reverse proxies whose X-Forwarded-For says who is calling, comma-separated; empty: whoever "
        "connects is the caller.",
    )
    secret: str = setting(
        "",
        "Key for signatures and digests; empty to keep a generated one in the home folder. "
        "Processes that share a database need the same one.",
        "ALMANAC_SECRET",
        "SECRET_KEY",
        secret=True,
    )
    max_body_bytes: int = setting(16 * 1024 * 1024, "Largest request body a surface accepts.")
    request_deadline_seconds: float = setting(60.0, "A tool call that takes longer is stopped.")
    shutdown_grace_seconds: float = setting(10.0, "How long a stop waits for calls and jobs in flight.")
    max_header_bytes: int = setting(32 * 1024, "Largest request line and headers of a request.")
    header_timeout_seconds: float = setting(10.0, "A request's headers must arrive within this time.")
    body_timeout_seconds: float = setting(30.0, "A request's body must arrive at 1 KiB/s on average over this time.")
    write_timeout_seconds: float = setting(30.0, "A client must read its answer at 1 KiB/s on average over this time.")
    idle_timeout_seconds: float = setting(75.0, "A connection without a request is closed after this time.")
    max_connections: int = setting(4096, "Connections that a server process has open at most.")
    max_connections_per_peer: int = setting(512, "The same from one address (IPv6: /64) outside trusted_proxies.")
    metrics_access: str = setting("open", "Who may read /metrics: 'open', or 'token' for tokens with audit:read.")

    # Limits
    rate_limit_calls: int = setting(600, "Requests each token may make in a window; 0 for no limit.")
    rate_limit_window_seconds: int = setting(60, "Length of that window.")
    rate_limit_strategy: str = setting("fixed", "'moving' or 'fixed' window.")
    audit_retention_days: int = setting(365, "Audit rows older than this are removed; 0 keeps them for ever.")

    # Jobs
    job_workers: int = setting(
        -1, "Job workers that `serve` runs beside itself; -1 means one on SQLite, none on PostgreSQL."
    )
    job_concurrency: int = setting(4, "Jobs one worker runs at a time.")
    job_lease_seconds: float = setting(30.0, "A worker silent for this long loses its jobs to another.")

    # Knowledge
    max_file_bytes: int = setting(512 * 1024 * 1024, "Largest file that can become a document.")
    trash_days: int = setting(30, "What was removed can be restored for this long; then it is purged.")
    parsers: int = setting(0, "Files one worker reads at a time; 0 means as many as there are cores.")
    parser_memory_mb: int = setting(2048, "Address space that reading one file may take; text recognition needs 2048.")
    parser_seconds: int = setting(
        300, "Time that reading one file may take; text recognition needs about 10 seconds a page."
    )
    fetch_allow: tuple[str, ...] = setting(
        (), "Internal hosts or networks that may be fetched from, comma-separated: wiki.internal, 10.1.0.0/16."
    )

    # Models
    embedding: bool = setting(True, "Make vectors of passages. Without them search goes by words alone.")
    embedding_model: str = setting(
        "",
        "What embeds passages and queries: empty for the bundled English model, the name of a folder in the home's "
        "models folder ('multilingual' with the [multilingual] extra), or the name of a model at embedding_url.",
    )
    embedding_url: str = setting(
        "", "Base URL of an OpenAI-compatible endpoint that is to embed, such as https://models.example.org/v1."
    )
    embedding_key: str = setting("", "Key for that endpoint.", secret=True)
    embedding_threads: int = setting(0, "Passages one process embeds at a time; 0 means as many as there are cores.")

    # Memory
    memory_notes_a_month: int = setting(
        0,
        "Notes an organisation's agents may store in a UTC month, unless 'almanac quota set' says otherwise for it; "
        "0 for no limit.",
    )
    memory_calls: int = setting(60, "Requests a minute that a token may make to the memory surface; 0 for no limit.")
    memory_read_calls: int = setting(600, "The same for a token all of whose scopes end in :read; 0 for no limit.")

    # WeKnora's search, and the agent that uses it
    weknora_timeout_seconds: float = setting(
        30.0, "How long weknora_search waits for its endpoint, all tries together.", "WEKNORA_TIMEOUT_SECONDS"
    )
    weknora_tries: int = setting(
        3, "How often weknora_search asks its endpoint where a failure may pass.", "WEKNORA_TRIES"
    )
    weknora_cache_seconds: float = setting(
        30.0,
        "How long weknora_search of a program remembers what it found; 0 to ask every time.",
        "WEKNORA_CACHE_SECONDS",
    )
    weknora_cache_entries: int = setting(100, "How many searches it remembers.", "WEKNORA_CACHE_ENTRIES")
    weknora_highlight: bool = setting(
        False,
        "Show the words that were asked for in bold, where the endpoint says where they are.",
        "WEKNORA_HIGHLIGHT",
    )
    agent_names: tuple[str, ...] = setting(("weknora",), "The names under which the agent is served at /a2a/{name}.")
    agent_searches: int = setting(4, "Searches the agent makes for one message, at most.")
    agent_seconds: float = setting(120.0, "How long the agent may take for one message.")
    conversation_hours: int = setting(
        24, "What was said to the agent is kept for this long, for questions that follow."
    )
    chat_provider: str = setting(
        "", "Whose API the language model speaks: 'openai' or 'anthropic'. Empty for none: answers are extracts."
    )
    chat_model: str = setting("", "The name of the language model.")
    chat_url: str = setting(
        "", "Base URL of the model's API, such as http://127.0.0.1:8080/v1; empty for the provider's own."
    )
    chat_key: str = setting("", "Key for it.", secret=True)

    # Watching it
    log_level: str = setting("info", "debug, info, warning or error.")
    log_format: str = setting("auto", "'json', 'text', or 'auto' for text on a terminal.")
    otlp_endpoint: str = setting(
        "",
        "Send OpenTelemetry spans to this OTLP/HTTP endpoint (needs the [telemetry] extra).",
        "ALMANAC_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    )

    # The gateway
    gateway_upstream_url: str = setting(
        "",
        "Base URL of a remote knowledge-base service that the gateway asks; empty to serve the catalogue here.",
        "GATEWAY_UPSTREAM_URL",
    )
    gateway_keys_url: str = setting(
        "",
        "Base URL of a remote access-keys manager that verifies callers' keys; empty to take tokens of this server.",
        "GATEWAY_KEYS_URL",
    )
    gateway_service_key: str = setting(
        "",
        "What this gateway shows to its upstream, and what a gateway in front of this server has to show to read any "
        "organisation's catalogue, naming it in X-Tenant-Id. Empty: none may.",
        "GATEWAY_SERVICE_KEY",
        secret=True,
    )
    gateway_timeout_seconds: float = setting(
        15.0, "How long the gateway waits for an answer from upstream.", "GATEWAY_TIMEOUT_SECONDS"
    )
    gateway_session_minutes: int = setting(
        30, "A session of the gateway that is not used for this long ends.", "GATEWAY_SESSION_MINUTES"
    )

    # The external knowledge surface, by the names its document gives
    external_enabled: bool = setting(False, "Serve the external knowledge surface.", _EXTERNAL + "ENABLED")
    external_rate_limit_enabled: bool = setting(
        True, "Enables external MCP transport rate limiting.", _EXTERNAL + "RATE_LIMIT_ENABLED"
    )
    external_rate_limit_requests: int = setting(120, "Requests allowed per window.", _EXTERNAL + "RATE_LIMIT_REQUESTS")
    external_rate_limit_window_seconds: int = setting(
        60, "Rate limit window in seconds.", _EXTERNAL + "RATE_LIMIT_WINDOW_SECONDS"
    )
    external_search_rate_limit_enabled: bool = setting(
        True, "Enables search tool rate limiting.", _EXTERNAL + "SEARCH_RATE_LIMIT_ENABLED"
    )
    external_search_rate_limit_requests: int = setting(
        30, "Search requests allowed per window.", _EXTERNAL + "SEARCH_RATE_LIMIT_REQUESTS"
    )
    external_search_rate_limit_window_seconds: int = setting(
        60, "Search rate limit window in seconds.", _EXTERNAL + "SEARCH_RATE_LIMIT_WINDOW_SECONDS"
    )
    external_download_rate_limit_enabled: bool = setting(
        True, "Enables document file download rate limiting.", _EXTERNAL + "DOWNLOAD_RATE_LIMIT_ENABLED"
    )
    external_download_preauth_ip_rate_limit_requests: int = setting(
        300,
        "Download requests allowed per client IP window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_IP_RATE_LIMIT_REQUESTS",
    )
    external_download_preauth_ip_rate_limit_window_seconds: int = setting(
        60,
        "Client IP rate limit window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_IP_RATE_LIMIT_WINDOW_SECONDS",
    )
    external_download_preauth_document_rate_limit_requests: int = setting(
        60,
        "Download requests allowed per client IP and document window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_REQUESTS",
    )
    external_download_preauth_document_rate_limit_window_seconds: int = setting(
        60,
        "Client IP and document rate limit window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_WINDOW_SECONDS",
    )
    external_download_rate_limit_requests: int = setting(
        20,
        "Download requests allowed per window after token verification.",
        _EXTERNAL + "DOWNLOAD_RATE_LIMIT_REQUESTS",
    )
    external_download_rate_limit_window_seconds: int = setting(
        60,
        "Download rate limit window after token verification.",
        _EXTERNAL + "DOWNLOAD_RATE_LIMIT_WINDOW_SECONDS",
    )

    external_extension: str = setting(
        "",
        "A Python module to import at the start, which may replace how external callers are authenticated.",
        _EXTERNAL + "EXTENSION",
    )
    rag_runtime_mode: str = setting(
        "local",
        "Where external searches are answered: 'local', 'remote', or a JSON map by operation, such as "
        '{"default": "local", "query": "remote"}.',
        "RAG_RUNTIME_MODE",
    )
    knowledge_runtime_url: str = setting(
        "", "Base URL of the knowledge runtime that remote queries are sent to.", "KNOWLEDGE_RUNTIME_URL"
    )
    internal_service_token: str = setting(
        "", "Bearer token for the knowledge runtime.", "INTERNAL_SERVICE_TOKEN", secret=True
    )

    @property
    def store_url(self) -> str:
        """Where the data is: what was chosen, or SQLite in the home folder."""
        return self.database_url or f"sqlite:///{(self.home / 'almanac.db').absolute()}"

    @property
    def on_sqlite(self) -> bool:
        """Whether this is the embedded default."""
        return self.store_url.startswith("sqlite:")

    @property
    def is_public(self) -> bool:
        """Whether anyone beyond this machine can reach the door."""
        return self.host not in LOOPBACK

    @property
    def url(self) -> str:
        """Where callers find the server."""
        if self.public_url:
            return self.public_url.rstrip("/")
        name = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}"


_CHOICES: dict[str, tuple[str, ...]] = {
    "rate_limit_strategy": ("fixed", "moving"),
    "metrics_access": ("open", "token"),
    "chat_provider": ("", "openai", "anthropic"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("auto", "json", "text"),
}
_AT_LEAST: dict[str, float] = {
    "port": 0,
    "workers": 1,
    "database_pool_size": 1,
    "max_body_bytes": 1024,
    "request_deadline_seconds": 0.1,
    "shutdown_grace_seconds": 0,
    "max_header_bytes": 4096,
    **dict.fromkeys((f"{name}_timeout_seconds" for name in ("header", "body", "write", "idle")), 0.1),
    "max_connections": 1,
    "max_connections_per_peer": 1,
    "rate_limit_calls": 0,
    "rate_limit_window_seconds": 1,
    "audit_retention_days": 0,
    "job_workers": -1,
    "job_concurrency": 1,
    "job_lease_seconds": 0.5,
    "max_file_bytes": 1024,
    "trash_days": 0,
    "parsers": 0,
    "parser_memory_mb": 256,
    "parser_seconds": 1,
    "embedding_threads": 0,
    "gateway_timeout_seconds": 0.1,
    "gateway_session_minutes": 1,
    "memory_notes_a_month": 0,
    "memory_calls": 0,
    "memory_read_calls": 0,
    "weknora_timeout_seconds": 0.1,
    "weknora_tries": 1,
    "weknora_cache_seconds": 0,
    "weknora_cache_entries": 0,
    "agent_searches": 1,
    "agent_seconds": 1,
    "conversation_hours": 1,
}


_AT_MOST: dict[str, float] = {"port": 65535, "max_header_bytes": 1024 * 1024}
_SCHEMES: dict[str, tuple[str, ...]] = {
    "database_url": ("postgresql://", "postgres://", "sqlite:///"),
    "redis_url": ("redis://", "rediss://"),
    "public_url": ("http://", "https://"),
    "otlp_endpoint": ("http://", "https://"),
    "embedding_url": ("http://", "https://"),
    "knowledge_runtime_url": ("http://", "https://"),
    "gateway_upstream_url": ("http://", "https://"),
    "gateway_keys_url": ("http://", "https://"),
    "chat_url": ("http://", "https://"),
}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and where each one came from."""

    settings: Settings
    sources: dict[str, str]


def environment_names(item: "Field[Any]") -> tuple[str, ...]:
    """The environment variables a setting is read from, first one first."""
    return item.metadata["env"] or (f"ALMANAC_{item.name.upper()}",)


def load(
    environ: Mapping[str, str],
    file: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Settings from options, environment, the parsed TOML file and defaults, in that order."""
    file, options = file or {}, {k: v for k, v in (options or {}).items() if v is not None}
    _refuse_unknown(file)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for item in fields(Settings):
        raw, source = _find(item, environ, file, options)
        if source != "default":
            values[item.name] = _parse(item, raw, source)
        sources[item.name] = source
    return LoadedSettings(Settings(**values), sources)


def shown(item: "Field[Any]", settings: Settings) -> str:
    """A setting's value as it may be printed: secrets are never shown."""
    value = getattr(settings, item.name)
    if item.metadata["secret"]:
        return "(set)" if value else "(not set)"
    if isinstance(value, tuple):
        return ", ".join(cast("tuple[str, ...]", value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find(
    item: "Field[Any]", environ: Mapping[str, str], file: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, str]:
    if item.name in options:
        return options[item.name], "option"
    for name in environment_names(item):
        if environ.get(name, "") != "":
            return environ[name], f"environment {name}"
    if item.name in file:
        return file[item.name], "file"
    return None, "default"


def _parse(item: "Field[Any]", raw: Any, source: str) -> Any:
    try:
        value = _PARSERS[cast("type | types.GenericAlias", item.type)](raw)
    except ValueError as error:
        raise InvalidSetting(f"{item.name} (from {source}) {error}.") from None
    choices = _CHOICES.get(item.name)
    if choices and value not in choices:
        raise InvalidSetting(f"{item.name} (from {source}) must be one of: {', '.join(choices)}.")
    if item.name in _AT_LEAST and value < _AT_LEAST[item.name]:
        raise InvalidSetting(f"{item.name} (from {source}) must be at least {_AT_LEAST[item.name]:g}.")
    if item.name in _AT_MOST and value > _AT_MOST[item.name]:
        raise InvalidSetting(f"{item.name} (from {source}) must be at most {_AT_MOST[item.name]:g}.")
    schemes = _SCHEMES.get(item.name)
    if value and schemes and not value.startswith(schemes):
        raise InvalidSetting(f"{item.name} (from {source}) must begin with {' or '.join(schemes)}.")
    if item.name == "api_prefix" and value and (not value.startswith("/") or value.endswith("/")):
        raise InvalidSetting(f"api_prefix (from {source}) must start with / and not end with it, such as /api.")
    return value


def _refuse_unknown(file: Mapping[str, Any]) -> None:
    known = [item.name for item in fields(Settings)]
    for name in file:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidSetting(f"The settings file has an unknown entry {name!r}.{hint}")


def _to_bool(raw: Any) -> bool:
    text = str(raw).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _to_int(raw: Any) -> int:
    try:
        return int(str(raw).strip())
    except ValueError:
        raise ValueError("must be a whole number") from None


def _to_float(raw: Any) -> float:
    try:
        value = float(str(raw).strip())
    except ValueError:
        raise ValueError("must be a number") from None
    if not value < 1e9:  # also refuses nan
        raise ValueError("must be a finite number")
    return value


def _to_names(raw: Any) -> tuple[str, ...]:
    parts = cast("list[Any]", raw) if isinstance(raw, list | tuple) else _unwrapped(str(raw).strip()).split(",")
    return tuple(p for p in (str(part).strip().strip("\"'") for part in parts) if p)


def _unwrapped(text: str) -> str:
    # ["a", "b"] is meant as a list; [::1]:8000 is an address.
    return text[1:-1] if text.startswith("[") and text.endswith("]") and not text.startswith("[:") else text


def _to_path(raw: Any) -> Path:
    return Path(str(raw)).expanduser()


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: lambda raw: str(raw).strip(),
    Path: _to_path,
    tuple[str, ...]: _to_names,
}
