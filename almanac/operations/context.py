"""The open resources of a server process, and the state of one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from opentelemetry.trace import Tracer

from almanac.assist.agent import Agent
from almanac.audit.agent_executions import RunningExecution
from almanac.audit.denial_log import DenialLog
from almanac.audit.recorder import CallRecorder
from almanac.audit.refusal_log import RefusalLog
from almanac.core.call import Actor, Call
from almanac.core.database import Database
from almanac.core.loop_turns import LoopTurns
from almanac.core.settings import Settings
from almanac.core.timers import TimerQueue
from almanac.data.engine import DataEngine
from almanac.db.read_cache import ReadCache
from almanac.files.file_store import FileStore, IncomingFile
from almanac.identity.tokens import TokenResolver
from almanac.knowledge.knowledge_runtime import Runtime
from almanac.net.allowed_hosts import AllowedHosts
from almanac.net.body_memory import BodyMemory
from almanac.net.fetcher import Fetcher
from almanac.net.http_exchange import HttpExchange
from almanac.operations.pipeline.guard import RequestGuard
from almanac.quotas.idempotency import IdempotencyStore
from almanac.quotas.rate_limits import RateLimit, RateLimiter
from almanac.search.engine import SearchEngine


@dataclass(frozen=True, slots=True)
class AppContext:
    """The open resources of a server process."""

    settings: Settings
    db: Database
    allowed_hosts: AllowedHosts
    rate_limiter: RateLimiter
    call_limit: RateLimit  # of every token, where a surface has no limit of its own
    recorder: CallRecorder
    read_cache: ReadCache
    token_resolver: TokenResolver
    idempotency: IdempotencyStore
    files: FileStore
    fetcher: Fetcher
    search: SearchEngine
    data: DataEngine
    agent: Agent
    body_memory: BodyMemory
    timers: TimerQueue  # of the request guards
    started_at: int
    surfaces: Mapping[str, str]  # name: path
    key: bytes = field(repr=False)  # signs tokens that this server issues
    runtime: Runtime | None = None  # answers knowledge queries in place of search, if configured
    tracer: Tracer | None = None
    refusal_log: RefusalLog = field(default_factory=RefusalLog)
    turns: LoopTurns = field(default_factory=LoopTurns)  # of the organisations on the event loop
    denial_log: DenialLog = field(default_factory=DenialLog)


class Authentication(NamedTuple):
    """The caller of a request, and further content of the credential."""

    actor: Actor
    claims: str = ""


class Upload(Protocol):
    """A file that arrives as the body of the request."""

    file_name: str

    async def write_to(self, ctx: "RequestContext", incoming: IncomingFile) -> dict[str, Any]:
        """Store the file as it arrives; return the arguments that came with it."""
        ...


@dataclass(slots=True)
class RequestContext(Call):
    """One request that is being served."""

    app: AppContext = cast("AppContext", None)
    guard: RequestGuard = cast("RequestGuard", None)
    http: HttpExchange = cast("HttpExchange", None)  # None for calls outside HTTP
    surface: str = ""  # in the audit trail and the metrics
    is_mcp: bool = False  # the request came to an MCP endpoint, so MCP tokens work
    surface_state: Any = None  # the open state of the surface
    claims: str = ""  # of the credential
    path: str = ""  # of the request
    client: Any = None  # the SDK's connection to the client, for a tool that sends messages to it
    endpoint_data: Any = None  # state of the endpoint for its answer
    upload: Upload | None = None
    parameters: Any = None  # of path and query, where a contract separates them from the body
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the `_meta` of an MCP request
    operation: str = ""  # its name, once it is known
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])  # before parsing
    digest: str = ""  # of the arguments, for the audit trail
    has_used_model: bool = False  # a language model took part in the answer
    execution: RunningExecution | None = None  # of an operation in plain language, for the audit trail

    def note_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Add arguments to the digest of the audit trail; refused if they cannot be stored."""
        self.arguments = {**self.arguments, **arguments} if self.arguments else dict(arguments)
        self.digest = self.app.recorder.digest(self.arguments)
