"""Language models behind OpenAI's API, or one compatible with it, and Anthropic's: through `pydantic-ai-slim`."""

from collections.abc import AsyncGenerator, Sequence
from types import NoneType
from typing import Any

import httpx2
import structlog
from pydantic_ai import (
    Agent,
    FunctionToolCallEvent,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    Tool,
    UsageLimits,
)
from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from almanac.ai.chat import ChatFailed, ChatTool, ChatTurn, ToolUse
from almanac.core.settings import Settings

_ANSWERS = 4  # of the model beyond one for each use of its tool
_KEYLESS = "none"  # a local server asks for no key, but the API's clients will not go without one
_log = structlog.get_logger("almanac.chat")


class Provider:
    """A model of a provider."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.chat_model
        self._http = httpx2.AsyncClient(trust_env=False, timeout=settings.agent_seconds)
        self._model = _model(settings, self._http)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.aclose()

    async def talk(
        self, instructions: str, history: Sequence[ChatTurn], prompt: str, tool: ChatTool | None = None
    ) -> AsyncGenerator[str | ToolUse]:
        """What the model says."""
        agent = Agent[None, str](
            self._model, deps_type=NoneType, instructions=instructions, tools=[_bound(tool)] if tool else [], retries=1
        )
        limits = UsageLimits(request_limit=_ANSWERS + (tool.most if tool else 0))
        try:
            async with agent.run_stream_events(
                prompt, message_history=_messages(history), usage_limits=limits
            ) as events:
                async for event in events:
                    if (said := _read(event)) is not None:
                        yield said
        except (AgentRunError, UserError, httpx2.HTTPError) as error:
            # What a provider says may repeat what it was sent.
            _log.warning("chat_failed", error=type(error).__name__, model=self.name)
            raise ChatFailed() from None


def _model(settings: Settings, http: httpx2.AsyncClient) -> Model:
    key, url = settings.chat_key or _KEYLESS, settings.chat_url or None
    if settings.chat_provider == "anthropic":
        return AnthropicModel(
            settings.chat_model, provider=AnthropicProvider(api_key=key, base_url=url, http_client=http)
        )
    return OpenAIChatModel(settings.chat_model, provider=OpenAIProvider(api_key=key, base_url=url, http_client=http))


def _bound(tool: ChatTool) -> Tool[None]:
    async def run(**arguments: Any) -> str:
        return await tool.run(arguments)

    return Tool[None].from_schema(run, tool.name, tool.description, dict(tool.schema), sequential=True)


def _messages(history: Sequence[ChatTurn]) -> list[ModelMessage]:
    found: list[ModelMessage] = []
    for each in history:
        found += [ModelRequest.user_text_prompt(each.question), ModelResponse(parts=[TextPart(each.answer)])]
    return found


def _read(event: Any) -> str | ToolUse | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
        case FunctionToolCallEvent(part=part):
            return ToolUse(part.args_as_dict())
        case _:
            return None
