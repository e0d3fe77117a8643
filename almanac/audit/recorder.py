"""Records each finished call in the metrics and the audit trail."""

import hashlib
from functools import lru_cache
from typing import Any, cast

import orjson
from prometheus_client import Counter, Histogram

from almanac.audit.agent_executions import (
    MAX_ANSWER_CHARS,
    MAX_PROMPT_CHARS,
    AgentExecutionEntry,
    RunningExecution,
    stored_text,
)
from almanac.audit.trail import AuditEntry, AuditTrail
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.errors import AuditUnavailable, BadRequest

CALLS = Counter("almanac_calls_total", "Tool calls.", ["surface", "tool", "outcome"])
SECONDS = Histogram(
    "almanac_call_seconds",
    "Duration of tool calls.",
    ["surface", "tool"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

MAX_TEXT_CHARS = 64 * 1024  # a longer text is part of the digest by its hash


class CallRecorder:
    """Records each finished call in the metrics and the audit trail.

    Arguments are stored only as a keyed digest, so a reader of the trail cannot test guesses.
    """

    def __init__(self, trail: AuditTrail, key: bytes, *, keeps_texts: bool = True) -> None:
        self.trail = trail
        self._keeps_texts = keeps_texts  # of agent executions
        self._key = key
        self._empty_digest = hashlib.blake2b(b"{}", digest_size=16, key=key).hexdigest()

    def digest(self, arguments: dict[str, Any]) -> str:
        """Return the digest of a call's arguments. Arguments that the database cannot store are refused."""
        if not arguments:
            return self._empty_digest
        try:
            serialised = orjson.dumps(_with_hashed_texts(arguments), option=orjson.OPT_SORT_KEYS)
        except (TypeError, UnicodeEncodeError):
            raise BadRequest(
                "The arguments are nested too deeply, or hold text that is not valid Unicode.",
                remedy="Send a flatter object, in UTF-8.",
            ) from None
        if b"\\u0000" in serialised and _has_nul(arguments):
            # PostgreSQL cannot store NUL, and ordinary text does not contain it.
            raise BadRequest("The arguments contain the NUL character.", remedy="Leave it out.")
        return hashlib.blake2b(serialised, digest_size=16, key=self._key).hexdigest()

    def record(self, call: Call, surface: str, tool: str, outcome: str, nanoseconds: int, digest: str) -> None:
        """Record a finished call."""
        actor = call.actor
        _calls(surface, tool, outcome).inc()
        _seconds(surface, tool).observe(nanoseconds / 1e9)
        if outcome == AuditUnavailable.code:
            return  # the trail is full, so it refused the call
        self.trail.add(
            AuditEntry(
                clock.now(),
                actor.org_id,
                actor.id,
                actor.token_id,
                surface,
                tool,
                outcome,
                nanoseconds // 1000,
                digest,
                " ".join(call.accessed),
                call.request_id,
            )
        )

    def record_execution(
        self, call: Call, execution: RunningExecution, surface: str, tool: str, outcome: str, nanoseconds: int
    ) -> None:
        """Record a finished execution of an operation in plain language, beside its call."""
        if outcome == AuditUnavailable.code:
            return
        prompt = answer = None
        if self._keeps_texts:
            prompt = stored_text(execution.prompt, MAX_PROMPT_CHARS)
            answer = None if execution.answer is None else stored_text(execution.answer, MAX_ANSWER_CHARS)
        actor = call.actor
        self.trail.add_execution(
            AgentExecutionEntry(
                clock.now(),
                actor.org_id,
                actor.id,
                surface,
                tool,
                outcome,
                prompt,
                answer,
                nanoseconds // 1000,
                " ".join(call.accessed),
                call.request_id,
            )
        )


def _with_hashed_texts(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with hashes for long texts, because their serialisation would hold the interpreter for long."""
    long = {name: value for name, value in arguments.items() if isinstance(value, str) and len(value) > MAX_TEXT_CHARS}
    return {**arguments, **{name: _hash_text(value) for name, value in long.items()}} if long else arguments


def _hash_text(text: str) -> str:
    if "\0" in text:
        return "\0"  # refused like NUL in any other text
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(key) or _has_nul(item) for key, item in cast("dict[str, Any]", value).items())
    return isinstance(value, list) and any(_has_nul(item) for item in cast("list[Any]", value))


# Looking up a labelled metric costs more than incrementing it.
@lru_cache(maxsize=10_000)
def _calls(surface: str, tool: str, outcome: str) -> Counter:
    return CALLS.labels(surface, tool, outcome)


@lru_cache(maxsize=1_000)
def _seconds(surface: str, tool: str) -> Histogram:
    return SECONDS.labels(surface, tool)
