"""Every setting in one table. The name, type, default, bounds and help of a setting are one field of `Settings`.

A value comes from, in this order: a command-line option, the environment, the TOML file, the default. The
environment name is `ALMANAC_` and the field in capitals, unless the row names others. A secret may also be in
a file, which the variable with the ending `_FILE` names.
`docs/reference/settings.md` is generated from this table, and a test keeps the two equal.
"""

from dataclasses import Field, dataclass, field
from pathlib import Path
from typing import Any, cast

from almanac.core.errors import BadRequest

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HTTP = ("http://", "https://")
_EXTERNAL = "EXTERNAL_KNOWLEDGE_MCP_"


class InvalidSetting(BadRequest):
    """A setting has a value that cannot be used."""

    code = "bad_setting"


def setting(
    default: Any,
    help: str,
    *env: str,
    min: float | None = None,
    max: float | None = None,
    choices: tuple[str, ...] = (),
    begins: tuple[str, ...] = (),
    form: tuple[str, str] | None = None,
    secret: bool = False,
) -> Any:
    """Declare a setting. `form` is a regular expression and its meaning. `begins` and `form` admit the empty text."""
    row = {"min": min, "max": max, "choices": choices, "begins": begins, "form": form}
    return field(default=default, repr=not secret, metadata={"help": help, "env": env, "secret": secret, **row})


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of an operator."""

    # Storage
    home: Path = setting(Path("almanac-data"), "Folder for the database, files and the generated secret.")
    database_url: str = setting(
        "",
        "postgresql://… to use PostgreSQL with pgvector; empty for SQLite in the home folder.",
        "ALMANAC_DATABASE_URL",
        begins=("postgresql://", "postgres://", "sqlite:///"),
        secret=True,
    )
    database_pool_size: int = setting(10, "Connections each process may open to PostgreSQL.", min=1)
    redis_url: str = setting(
        "",
        "redis://… to share rate limits between processes; empty to count in memory.",
        "REDIS_URL",
        begins=("redis://", "rediss://"),
        secret=True,
    )

    # HTTP server
    host: str = setting("127.0.0.1", "Address to listen on. Any address but loopback is a public bind.")
    port: int = setting(8000, "Port to listen on.", min=0, max=65535)
    workers: int = setting(1, "Server processes; more than one needs PostgreSQL and Redis.", min=1)
    public_url: str = setting(
        "", "The URL that callers use, if it differs from host and port (behind a proxy).", begins=_HTTP
    )
    api_prefix: str = setting(
        "",
        "Also serve every surface below this path, such as /api.",
        "API_PREFIX",
        form=("/.*[^/]", "start with / and not end with it, such as /api"),
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Further Host headers to accept, comma-separated; 'name:*' accepts any port.",
        "ALMANAC_ALLOWED_HOSTS",
        "MCP_ALLOWED_HOSTS",
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "Further Origin headers to accept, comma-separated.", "ALMANAC_ALLOWED_ORIGINS", "MCP_ALLOWED_ORIGINS"
    )
    check_hosts: bool = setting(
        True,
        "Refuse requests whose Host or Origin is not allowed (DNS rebinding).",
        "ALMANAC_CHECK_HOSTS",
        "MCP_ENABLE_DNS_REBINDING_PROTECTION",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Networks of reverse proxies, comma-separated. For their connections, X-Forwarded-For gives the caller's "
        "address. Empty: the address of the connection is the caller's.",
    )
    secret: str = setting(
        "",
        "Key for signatures and digests, at least 32 characters; empty to keep a generated one in the home folder. "
        "Processes that share a database need the same key.",
        "ALMANAC_SECRET",
        "SECRET_KEY",
        form=("(?s).{32,}", "have at least 32 characters, such as the output of 'openssl rand -base64 48'"),
        secret=True,
    )
    max_body_bytes: int = setting(16 * 1024 * 1024, "Largest request body that a surface accepts.", min=1024)
    max_buffered_body_bytes: int = setting(
        256 * 1024 * 1024,
        "Most memory that the request bodies of a server process may take together; one organisation's may take half.",
        min=1024,
    )
    request_deadline_seconds: float = setting(60.0, "A tool call that takes longer is stopped.", min=0.1)
    shutdown_grace_seconds: float = setting(
        10.0, "The longest time that a stopping process waits for calls and jobs in flight.", min=0
    )
    max_header_bytes: int = setting(
        32 * 1024, "Largest request line and headers of a request.", min=4096, max=1024 * 1024
    )
    header_timeout_seconds: float = setting(10.0, "A request's headers must arrive within this time.", min=0.1)
    body_timeout_seconds: float = setting(
        30.0, "A request's body must arrive at 1 KiB/s on average over this time.", min=0.1
    )
    write_timeout_seconds: float = setting(
        30.0, "A client must read its answer at 1 KiB/s on average over this time.", min=0.1
    )
    idle_timeout_seconds: float = setting(75.0, "A connection without a request is closed after this time.", min=0.1)
    max_connections: int = setting(4096, "Connections that a server process has open at most.", min=1)
    max_connections_per_peer: int = setting(
        512, "The same from one address (IPv6: /64) outside trusted_proxies.", min=1
    )
    metrics_access: str = setting(
        "open", "Access to /metrics: 'open' for everyone, or 'token' for audit:read.", choices=("open", "token")
    )

    # Limits
    rate_limit_calls: int = setting(600, "Requests each token may make in a window; 0 for no limit.", min=0)
    rate_limit_window_seconds: int = setting(60, "Length of that window, in seconds.", min=1)
    rate_limit_strategy: str = setting("fixed", "The kind of window.", choices=("fixed", "moving"))
    login_calls_per_client: int = setting(
        10, "Logins that one client may try in a minute from one address; 0 for no limit.", min=0
    )
    login_calls_per_address: int = setting(
        60, "Logins that all clients of one address may try in a minute; 0 for no limit.", min=0
    )
    audit_retention_days: int = setting(365, "Audit rows older than this are removed; 0 keeps them for ever.", min=0)

    agent_execution_days: int = setting(
        90, "Executions of operations in plain language are kept for this many days; 0 keeps them for ever.", min=0
    )
    agent_execution_texts: bool = setting(
        True, "Store the prompts and answers of these executions. Off: user, outcome, time and ids only."
    )
    agent_calls_a_month: int = setting(
        0,
        "Calls of metered operations in plain language that an organisation may make in a UTC month; 0 for no limit. "
        "'almanac quota set agent_calls' sets another limit for one organisation.",
        min=0,
    )

    # Jobs
    job_workers: int = setting(
        -1, "Job workers that `serve` starts; -1 means one on SQLite, none on PostgreSQL.", min=-1
    )
    job_concurrency: int = setting(4, "Jobs one worker runs at a time.", min=1)
    job_lease_seconds: float = setting(
        30.0, "If a worker does not report for this long, other workers take over its jobs.", min=0.5, max=600
    )

    # Knowledge
    max_file_bytes: int = setting(512 * 1024 * 1024, "Largest file that can become a document.", min=1024)
    data_version_days: int = setting(
        30, "Versions of a dataset stay readable for this long after the next one; then they are removed.", min=0
    )
    query_seconds: int = setting(30, "Longest time of a query over datasets, the wait for a process included.", min=1)
    query_memory_mb: int = setting(1024, "Memory of one query over datasets, in MiB.", min=128)
    query_processes: int = setting(
        0, "Queries over datasets at a time; as many again for organisations without one. 0: one per processor.", min=0
    )
    trash_days: int = setting(30, "Removed items can be restored for this long; then they are purged.", min=0)
    parsers: int = setting(0, "Files one worker parses at a time; 0 means one per processor core.", min=0)
    parser_memory_mb: int = setting(
        2048, "Address space of the process that parses a file; text recognition needs 2048.", min=256
    )
    parser_seconds: int = setting(
        300, "Longest time for parsing one file; text recognition needs about 10 seconds a page.", min=1
    )
    fetch_allow: tuple[str, ...] = setting(
        (), "Internal hosts or networks that may be fetched from, comma-separated: wiki.internal, 10.1.0.0/16."
    )

    # Embedding models
    embedding: bool = setting(True, "Make vectors of passages. Without vectors, search uses words alone.")
    embedding_model: str = setting(
        "",
        "The model that embeds passages and queries: empty for the bundled English model, the name of a folder in the "
        "home's models folder ('multilingual' with the [multilingual] extra), or the name of a model at embedding_url.",
    )
    embedding_url: str = setting(
        "",
        "Base URL of an OpenAI-compatible endpoint for embedding, such as https://models.example.org/v1.",
        begins=_HTTP,
    )
    embedding_key: str = setting("", "Key for that endpoint.", secret=True)
    embedding_threads: int = setting(
        0, "Batches of passages that one process embeds at a time; 0 means one per processor core.", min=0
    )

    # Memory
    memory_notes_a_month: int = setting(
        0,
        "Notes an organisation's agents may store in a UTC month; 0 for no limit. "
        "'almanac quota set' sets another limit for one organisation.",
        min=0,
    )
    memory_calls: int = setting(
        60, "Requests a minute that a token may make to the memory surface; 0 for no limit.", min=0
    )
    memory_read_calls: int = setting(600, "The same for a token whose scopes all end in :read; 0 for no limit.", min=0)

    # WeKnora search and the agent
    weknora_timeout_seconds: float = setting(
        30.0,
        "The longest time that weknora_search waits for its endpoint, all attempts together.",
        "WEKNORA_TIMEOUT_SECONDS",
        min=0.1,
    )
    weknora_tries: int = setting(
        3, "How many times weknora_search sends a request if the failure may be temporary.", "WEKNORA_TRIES", min=1
    )
    weknora_cache_seconds: float = setting(
        30.0,
        "How long weknora_search caches the results of a search in a program; 0 to search every time.",
        "WEKNORA_CACHE_SECONDS",
        min=0,
    )
    weknora_cache_entries: int = setting(100, "How many searches it caches.", "WEKNORA_CACHE_ENTRIES", min=0)
    weknora_highlight: bool = setting(
        False, "Show the words of the query in bold, if the endpoint reports their positions.", "WEKNORA_HIGHLIGHT"
    )
    agent_names: tuple[str, ...] = setting(("weknora",), "The names under which the agent is served at /a2a/{name}.")
    agent_searches: int = setting(4, "Searches the agent makes for one message, at most.", min=1)
    agent_seconds: float = setting(120.0, "The longest time that the agent takes for one message.", min=1)
    conversation_hours: int = setting(
        24, "Conversations with the agent are kept for this long, for follow-up questions.", min=1
    )
    chat_provider: str = setting(
        "",
        "The API of the language model: 'openai' or 'anthropic'. Empty for no model: answers are extracts.",
        choices=("", "openai", "anthropic"),
    )
    chat_model: str = setting("", "The name of the language model.")
    chat_url: str = setting(
        "", "Base URL of the model's API, such as http://127.0.0.1:8080/v1; empty for the provider's own.", begins=_HTTP
    )
    chat_key: str = setting("", "Key for that API.", secret=True)

    # Logs and traces
    log_level: str = setting(
        "info", "The least important messages that are logged.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = setting(
        "auto", "'json', 'text', or 'auto' for text on a terminal and JSON elsewhere.", choices=("auto", "json", "text")
    )
    otlp_endpoint: str = setting(
        "",
        "Send OpenTelemetry spans to this OTLP/HTTP endpoint (needs the [telemetry] extra).",
        "ALMANAC_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        begins=_HTTP,
    )

    # Gateway
    gateway_upstream_url: str = setting(
        "",
        "Base URL of a remote knowledge-base service for the gateway; empty to serve the catalogue of this server.",
        "GATEWAY_UPSTREAM_URL",
        begins=_HTTP,
    )
    gateway_keys_url: str = setting(
        "",
        "Base URL of a remote access-keys manager that verifies callers' keys; empty to take tokens of this server.",
        "GATEWAY_KEYS_URL",
        begins=_HTTP,
    )
    gateway_service_key: str = setting(
        "",
        "The key that this gateway sends to its upstream. A gateway in front of this server sends the same key to "
        "read the catalogue of the organisation that X-Tenant-Id names. Empty: no gateway may.",
        "GATEWAY_SERVICE_KEY",
        secret=True,
    )
    gateway_timeout_seconds: float = setting(
        15.0, "The longest time that the gateway waits for its upstream.", "GATEWAY_TIMEOUT_SECONDS", min=0.1
    )
    gateway_session_minutes: int = setting(
        30, "A gateway session that is not used for this long ends.", "GATEWAY_SESSION_MINUTES", min=1
    )

    # External knowledge surface
    external_enabled: bool = setting(False, "Serve the external knowledge surface.", _EXTERNAL + "ENABLED")
    external_rate_limit_enabled: bool = setting(
        True, "Enables external MCP transport rate limiting.", _EXTERNAL + "RATE_LIMIT_ENABLED"
    )
    external_rate_limit_requests: int = setting(
        120, "Requests allowed per window.", _EXTERNAL + "RATE_LIMIT_REQUESTS", min=0
    )
    external_rate_limit_window_seconds: int = setting(
        60, "Rate limit window in seconds.", _EXTERNAL + "RATE_LIMIT_WINDOW_SECONDS", min=0
    )
    external_search_rate_limit_enabled: bool = setting(
        True, "Enables search tool rate limiting.", _EXTERNAL + "SEARCH_RATE_LIMIT_ENABLED"
    )
    external_search_rate_limit_requests: int = setting(
        30, "Search requests allowed per window.", _EXTERNAL + "SEARCH_RATE_LIMIT_REQUESTS", min=0
    )
    external_search_rate_limit_window_seconds: int = setting(
        60, "Search rate limit window in seconds.", _EXTERNAL + "SEARCH_RATE_LIMIT_WINDOW_SECONDS", min=0
    )
    external_download_rate_limit_enabled: bool = setting(
        True, "Enables document file download rate limiting.", _EXTERNAL + "DOWNLOAD_RATE_LIMIT_ENABLED"
    )
    external_download_preauth_ip_rate_limit_requests: int = setting(
        300,
        "Download requests allowed per client IP window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_IP_RATE_LIMIT_REQUESTS",
        min=0,
    )
    external_download_preauth_ip_rate_limit_window_seconds: int = setting(
        60,
        "Client IP rate limit window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_IP_RATE_LIMIT_WINDOW_SECONDS",
        min=0,
    )
    external_download_preauth_document_rate_limit_requests: int = setting(
        60,
        "Download requests allowed per client IP and document window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_REQUESTS",
        min=0,
    )
    external_download_preauth_document_rate_limit_window_seconds: int = setting(
        60,
        "Client IP and document rate limit window before token verification.",
        _EXTERNAL + "DOWNLOAD_PREAUTH_DOCUMENT_RATE_LIMIT_WINDOW_SECONDS",
        min=0,
    )
    external_download_rate_limit_requests: int = setting(
        20,
        "Download requests allowed per window after token verification.",
        _EXTERNAL + "DOWNLOAD_RATE_LIMIT_REQUESTS",
        min=0,
    )
    external_download_rate_limit_window_seconds: int = setting(
        60,
        "Download rate limit window after token verification.",
        _EXTERNAL + "DOWNLOAD_RATE_LIMIT_WINDOW_SECONDS",
        min=0,
    )
    external_extension: str = setting(
        "",
        "A Python module that is imported at the start. It may replace the authentication of external callers.",
        _EXTERNAL + "EXTENSION",
    )
    rag_runtime_mode: str = setting(
        "local",
        "The place where external searches run: 'local', 'remote', or a JSON map by operation, such as "
        '{"default": "local", "query": "remote"}.',
        "RAG_RUNTIME_MODE",
    )
    knowledge_runtime_url: str = setting(
        "", "Base URL of the knowledge runtime that remote queries are sent to.", "KNOWLEDGE_RUNTIME_URL", begins=_HTTP
    )
    internal_service_token: str = setting(
        "", "Bearer token for the knowledge runtime.", "INTERNAL_SERVICE_TOKEN", secret=True
    )

    @property
    def store_url(self) -> str:
        """The URL of the database: the configured one, or SQLite in the home folder."""
        return self.database_url or f"sqlite:///{(self.home / 'almanac.db').absolute()}"

    @property
    def on_sqlite(self) -> bool:
        """Whether the database is SQLite, the embedded default."""
        return self.store_url.startswith("sqlite:")

    @property
    def is_public(self) -> bool:
        """Whether other machines can connect."""
        return self.host not in LOOPBACK

    @property
    def url(self) -> str:
        """The URL of the server for its callers."""
        if self.public_url:
            return self.public_url.rstrip("/")
        name = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104 - compared, not bound
        return f"http://{f'[{name}]' if ':' in name else name}:{self.port}"


def environment_names(item: "Field[Any]") -> tuple[str, ...]:
    """The environment variables of a setting. The first one that is set counts."""
    return item.metadata["env"] or (f"ALMANAC_{item.name.upper()}",)


def shown(item: "Field[Any]", settings: Settings) -> str:
    """A setting's value for output. The value of a secret is never shown."""
    value = getattr(settings, item.name)
    if item.metadata["secret"]:
        return "(set)" if value else "(not set)"
    if isinstance(value, tuple):
        return ", ".join(cast("tuple[str, ...]", value))
    return str(value).lower() if isinstance(value, bool) else str(value)
