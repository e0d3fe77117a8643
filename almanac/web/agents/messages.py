"""The agent over HTTP: messages in the form of WeKnora's document, its tasks, and the cards that describe it."""

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from almanac import __version__
from almanac.assist import agent_tasks
from almanac.assist.agent import Delta, Event, Progress, Reply, Reset
from almanac.assist.agent_tasks import AgentTask
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.errors import AlmanacError
from almanac.core.settings import Settings
from almanac.operations.context import RequestContext
from almanac.operations.operation import Example, Operation, Rest
from almanac.web.agents import conversation
from almanac.web.agents.conversation import MAX_SESSION_ID_CHARS, SCOPES, AgentMessage, EventStream, MessageContext
from almanac.web.rest import AlreadySent, UrlParameters

WELL_KNOWN = "/.well-known/agent-card.json"
AGENTS_PREFIX = "/a2a"
MAX_MESSAGE_CHARS = 4000  # characters of a message
_EVENT_STREAM_TYPE = b"text/event-stream"


class AgentPath(UrlParameters):
    """Which agent."""

    agent: str


class MessageParameters(AgentPath):
    """Which agent, and how it is to answer."""

    stream: Annotated[bool, Field(description="As server-sent events, as the header Accept can say too.")] = False


class TaskPath(AgentPath):
    """Which task of which agent."""

    task_id: str


class NewMessage(Arguments):
    """A message, and what to search for it."""

    message: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_CHARS)]
    context: MessageContext = MessageContext()
    sessionId: Annotated[
        str | None,
        Field(min_length=1, max_length=MAX_SESSION_ID_CHARS, description="A conversation that this goes on with."),
    ] = None
    sessionMode: Annotated[
        Literal["new", "reuse"] | None, Field(description="new: begin another conversation, whatever sessionId says.")
    ] = None
    stream: bool = False


@dataclass(slots=True)
class MessageAnswer:
    """The agent's answer."""

    response: str
    sessionId: Annotated[str, Field(description="To be sent with a question that follows.")]
    citations: Annotated[list[dict[str, Any]], Field(description="What the numbers in brackets stand for.")]
    metadata: Annotated[
        dict[str, Any], Field(description="taskId, processingTimeMs, model, resolvedQuestion and the searches made.")
    ]


@dataclass(slots=True)
class TaskInfo:
    """A message that was sent to the agent, and how far it is."""

    taskId: str
    sessionId: str
    status: Annotated[str, Field(description="working, completed, failed or canceled.")]
    response: str
    citations: list[dict[str, Any]]
    updatedAt: str


async def send_message(ctx: RequestContext, given: NewMessage) -> MessageAnswer | AlreadySent:
    """What the agent answers, at once or as it comes."""
    place: MessageParameters = ctx.parameters
    conversation.check_agent(ctx, place.agent)
    begun = time.monotonic()
    session = None if given.sessionMode == "new" else given.sessionId
    context = conversation.merge(given.context)
    async with conversation.begin_task(ctx, place.agent, given.message, context, session) as letter:
        if place.stream or given.stream or _EVENT_STREAM_TYPE in ctx.http.headers.get(b"accept", b""):
            return await _stream(ctx, letter, begun)
        return _answer(letter, await conversation.run_agent(ctx, letter, conversation.ignore_event), begun)


async def get_task(ctx: RequestContext, place: TaskPath) -> TaskInfo:
    """How far a message is."""
    conversation.check_agent(ctx, place.agent)
    return _task_info(await agent_tasks.get(ctx, place.agent, place.task_id))


async def cancel_task(ctx: RequestContext, place: TaskPath) -> TaskInfo:
    """Stop working on a message."""
    conversation.check_agent(ctx, place.agent)
    return _task_info(await agent_tasks.cancel(ctx, place.agent, place.task_id))


async def _stream(ctx: RequestContext, letter: AgentMessage, begun: float) -> AlreadySent:
    async with EventStream(ctx.http).open() as stream:

        async def tell(event: Event) -> None:
            match event:
                case Progress(state, text):
                    await stream.send({"type": "status", "state": state, "message": text})
                case Delta(text):
                    await stream.send({"type": "text", "text": text})
                case Reset():
                    await stream.send({"type": "reset"})
                case Reply():
                    pass

        await stream.send({"type": "task", "taskId": letter.task.id, "sessionId": letter.task.session_id})
        try:
            reply = await conversation.run_agent(ctx, letter, tell)
        except AlmanacError as error:
            await stream.send({"type": "error", **conversation.render_error_event(error)})
            raise
        told = _answer(letter, reply, begun)
        done = {"response": told.response, "citations": told.citations, "metadata": told.metadata}
        await stream.send({"type": "done", "sessionId": told.sessionId, **done})
    return AlreadySent()


def _answer(letter: AgentMessage, reply: Reply, begun: float) -> MessageAnswer:
    return MessageAnswer(
        response=reply.text,
        sessionId=letter.task.session_id,
        citations=[conversation.render_citation(each) for each in reply.citations],
        metadata={
            "taskId": letter.task.id,
            "processingTimeMs": round(1000 * (time.monotonic() - begun)),
            "model": reply.model,
            "resolvedQuestion": reply.resolved,
            "searches": [conversation.render_search(each) for each in reply.searches],
        },
    )


def _task_info(task: AgentTask) -> TaskInfo:
    moment = clock.format_timestamp(task.updated_at) or ""
    return TaskInfo(task.id, task.session_id, task.state, task.answer, task.sources, moment)


def card(settings: Settings, agent: str) -> dict[str, Any]:
    """What an agent is and how it is reached, as the A2A protocol describes one."""
    return {
        "name": agent,
        "description": "Answers questions from this server's knowledge bases, with citations.",
        "version": __version__,
        "supportedInterfaces": [
            {"url": f"{settings.url}{AGENTS_PREFIX}/{agent}", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain", "application/json"],
        "securitySchemes": {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
            "key": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
        },
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}, {"schemes": {"key": {"list": []}}}],
        "skills": [
            {
                "id": "answer",
                "name": "Answer from knowledge bases",
                "description": "Searches documents by words and by meaning, tries again where little is found, and "
                "answers with what it found, citing it. A message's metadata may have kb_ids, api_key and "
                "weknora_base_url; without them, all that the caller may read is searched.",
                "tags": ["search", "knowledge", "citations"],
                "examples": ["How often is the pump oiled?"],
            }
        ],
    }


def cards(settings: Settings) -> list[Route]:
    """Where the cards are: the first agent's at the well-known path, and each one's below its own. They say nothing of
    anyone's data, and so need no token."""

    async def first(_: Request) -> Response:
        return JSONResponse(card(settings, settings.agent_names[0]))

    async def each(request: Request) -> Response:
        name = request.path_params["agent"]
        if name in settings.agent_names:
            return JSONResponse(card(settings, name))
        return JSONResponse({"error": "There is no such agent.", "code": "not_found"}, 404)

    named = Route(f"{AGENTS_PREFIX}/{{agent}}{WELL_KNOWN}", each, methods=["GET"])
    return [Route(WELL_KNOWN, first, methods=["GET"]), named] if settings.agent_names else []


_TASK = TaskInfo("5e0c2f0e-…", "7d1b…", "completed", "It is oiled monthly. [1]", [], "2026-11-02T09:30:00.000Z")

AGENT_OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="send_message",
        summary="The agent's answer to a message, from knowledge bases",
        arguments=NewMessage,
        answer=MessageAnswer,
        scopes=SCOPES,
        handler=send_message,
        rest=Rest(
            "POST",
            AGENTS_PREFIX + "/{agent}/messages",
            parameters=MessageParameters,
            authenticate=conversation.by_context,
        ),
        example=Example(
            {
                "message": "How often is the pump oiled?",
                "context": {"api_key": "wg-…", "kb_ids": ["7"], "weknora_base_url": "https://almanac.example.org"},
            },
            MessageAnswer("It is oiled monthly. [1]", "7d1b…", [], {"taskId": "5e0c2f0e-…"}),
        ),
    ),
    Operation(
        name="get_agent_task",
        summary="The state of a message",
        arguments=TaskPath,
        answer=TaskInfo,
        scopes=SCOPES,
        handler=get_task,
        rest=Rest("GET", AGENTS_PREFIX + "/{agent}/tasks/{task_id}"),
        example=Example(answer=_TASK),
    ),
    Operation(
        name="cancel_agent_task",
        summary="Stop the agent's work on a message",
        arguments=TaskPath,
        answer=TaskInfo,
        scopes=SCOPES,
        handler=cancel_task,
        rest=Rest("DELETE", AGENTS_PREFIX + "/{agent}/tasks/{task_id}"),
        example=Example(answer=_TASK),
    ),
)
