"""The protocol of a chat model, and the choice of one by the settings."""

import importlib
import importlib.util
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from almanac.core.errors import Unavailable
from almanac.core.settings import InvalidSetting, Settings


class ChatFailed(Unavailable):
    """The language model did not answer."""

    code = "chat_failed"
    status = 502
    remedy = (
        "Try again in a few seconds; an operator can check ALMANAC_CHAT_URL, ALMANAC_CHAT_KEY and ALMANAC_CHAT_MODEL."
    )


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class ChatTool:
    """A tool that the model may use."""

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[[Mapping[str, Any]], Awaitable[str]]
    max_uses: int


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The model calls its tool. The text before this event is not part of the answer."""

    arguments: Mapping[str, Any]


class Chat(Protocol):
    """A chat model."""

    @property
    def name(self) -> str: ...

    def talk(
        self, instructions: str, history: Sequence[ChatTurn], prompt: str, tool: ChatTool | None = None
    ) -> AsyncGenerator[str | ToolUse]:
        """The text of the model in parts, and its tool calls. ChatFailed if the model does not answer."""
        ...

    async def close(self) -> None: ...


def check(settings: Settings) -> None:
    """Refuse incomplete settings of the chat model."""
    if not settings.chat_provider:
        return
    if not settings.chat_model:
        raise InvalidSetting("chat_provider needs chat_model: the name of the language model.")
    if importlib.util.find_spec("pydantic_ai") is None:
        raise InvalidSetting(
            "chat_provider is set, but the library for language models is not installed.",
            remedy="Install it with: scripts/uv sync --locked --inexact --no-dev --extra llm",
        )


def open_chat(settings: Settings) -> Chat | None:
    """The configured chat model, or None."""
    check(settings)
    if not settings.chat_provider:
        return None
    return importlib.import_module("almanac.ai.chat_provider").Provider(settings)  # this module needs an extra
