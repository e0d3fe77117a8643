"""A language model that talks, where an operator has configured one: the seam, and the choice the settings make."""

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
    """A question and its answer, earlier in a conversation."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class ChatTool:
    """A tool that the model may use."""

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[[Mapping[str, Any]], Awaitable[str]]
    most: int  # uses


@dataclass(frozen=True, slots=True)
class ToolUse:
    """That the model uses its tool, now; what it had said before was not yet its answer."""

    arguments: Mapping[str, Any]


class Chat(Protocol):
    """A model that talks."""

    @property
    def name(self) -> str: ...

    def talk(
        self, instructions: str, history: Sequence[ChatTurn], prompt: str, tool: ChatTool | None = None
    ) -> AsyncGenerator[str | ToolUse]:
        """What the model says, piece by piece, and when it uses its tool. ChatFailed where it cannot be asked."""
        ...

    async def close(self) -> None: ...


def check(settings: Settings) -> None:
    """Refuse settings by which no model can be asked."""
    if not settings.chat_provider:
        return
    if not settings.chat_model:
        raise InvalidSetting("chat_provider needs chat_model: the name of the language model.")
    if importlib.util.find_spec("pydantic_ai") is None:
        raise InvalidSetting(
            "chat_provider is set, but what speaks to language models is not installed.",
            remedy="Install it with: scripts/uv sync --locked --inexact --no-dev --extra llm",
        )


def open_chat(settings: Settings) -> Chat | None:
    """The model that the settings ask for; None where they ask for none."""
    check(settings)
    if not settings.chat_provider:
        return None
    return importlib.import_module("almanac.ai.chat_provider").Provider(settings)  # which needs an extra
