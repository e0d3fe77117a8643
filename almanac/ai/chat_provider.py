"""Chat models with the API of OpenAI, or a compatible one, or of Anthropic, through `pydantic-ai-slim`."""

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

EXTRA_REQUESTS = 4  # to the model, in addition to one for each use of its tool
NO_KEY = "none"  # a local server needs no key, but the clients of the API require one
_log = structlog.get_logger("almanac.chat")


class Provider:
    """The chat model of a provider."""

    def __init__(self, settings: Settings) -> None:
        self.name = settings.chat_model
        self._http = httpx2.AsyncClient(trust_env=False, timeout=settings.agent_seconds)
        self._model = _model(settings, self._http)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def talk(
        self, instructions: str, history: Sequence[ChatTurn], prompt: str, tool: ChatTool | None = None
    ) -> AsyncGenerator[str | ToolUse]:
        """The text of the model in parts, and its tool calls."""
        tools = [_to_tool(tool)] if tool else []
        agent = Agent[None, str](self._model, deps_type=NoneType, instructions=instructions, tools=tools, retries=1)
        limits = UsageLimits(request_limit=EXTRA_REQUESTS + (tool.max_uses if tool else 0))
        try:
            async with agent.run_stream_events(
                prompt, message_history=_messages(history), usage_limits=limits
            ) as events:
                async for event in events:
                    if (part := _read(event)) is not None:
                        yield part
        except (AgentRunError, UserError, httpx2.HTTPError) as error:
            # The message is not logged: a provider may repeat the prompt in it.
            _log.warning("chat_failed", error=type(error).__name__, model=self.name)
            raise ChatFailed() from None


def _model(settings: Settings, http: httpx2.AsyncClient) -> Model:
    key, url = settings.chat_key or NO_KEY, settings.chat_url or None
    if settings.chat_provider == "anthropic":
        return AnthropicModel(
            settings.chat_model, provider=AnthropicProvider(api_key=key, base_url=url, http_client=http)
        )
    return OpenAIChatModel(settings.chat_model, provider=OpenAIProvider(api_key=key, base_url=url, http_client=http))


def _to_tool(tool: ChatTool) -> Tool[None]:
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
