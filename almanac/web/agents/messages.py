"""Messages to the agent in the form of WeKnora's document, and its tasks."""

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.assist import agent_tasks
from almanac.assist.agent import Delta, Event, Progress, Reply, Reset
from almanac.assist.agent_tasks import AgentTask
from almanac.core import clock
from almanac.core.arguments import Arguments
from almanac.core.errors import AlmanacError
from almanac.operations.context import RequestContext
from almanac.operations.models import SEARCH
from almanac.operations.operation import Example, Operation, Rest, operation
from almanac.web.agents import conversation
from almanac.web.agents.cards import AGENTS_PREFIX
from almanac.web.agents.conversation import MAX_SESSION_ID_CHARS, AgentMessage, MessageContext, RenderEvents
from almanac.web.rest import AlreadySent, UrlParameters

MAX_MESSAGE_CHARS = 4000
_EVENT_STREAM_TYPE = b"text/event-stream"


class AgentPath(UrlParameters):
    """The path of an agent."""

    agent: Annotated[str, Field(description="Name of the agent; /.well-known/agent-card.json lists them.")]


class MessageParameters(AgentPath):
    """The path and the query of a message."""

    stream: Annotated[bool, Field(description="Answer with server-sent events. So does the header Accept.")] = False


class TaskPath(AgentPath):
    """The path of a task."""

    task_id: Annotated[str, Field(description="taskId of the message.")]


class NewMessage(Arguments):
    """A message, and the knowledge bases to search for it."""

    message: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_CHARS, description="The question.")]
    context: Annotated[MessageContext, Field(description="What to search, and with which token.")] = MessageContext()
    sessionId: Annotated[
        str | None,
        Field(min_length=1, max_length=MAX_SESSION_ID_CHARS, description="The conversation to continue."),
    ] = None
    sessionMode: Annotated[
        Literal["new", "reuse"] | None, Field(description="new: begin another conversation and ignore sessionId.")
    ] = None
    stream: Annotated[bool, Field(description="Answer with server-sent events.")] = False


@dataclass(slots=True)
class MessageAnswer:
    """The agent's answer."""

    response: str
    sessionId: Annotated[str, Field(description="Send it with the next question of the conversation.")]
    citations: Annotated[list[dict[str, Any]], Field(description="The sources of the numbers in brackets.")]
    metadata: Annotated[
        dict[str, Any], Field(description="taskId, processingTimeMs, model, resolvedQuestion and searches.")
    ]


@dataclass(slots=True)
class TaskInfo:
    """A message to the agent, with its state and answer."""

    taskId: str
    sessionId: str
    status: Annotated[str, Field(description="working, completed, failed or canceled.")]
    response: str
    citations: list[dict[str, Any]]
    updatedAt: str


async def send_message(ctx: RequestContext, args: NewMessage) -> MessageAnswer | AlreadySent:
    """The agent's answer to a message, from knowledge bases."""
    parameters: MessageParameters = ctx.parameters
    conversation.check_agent(ctx, parameters.agent)
    started = time.monotonic()
    session = None if args.sessionMode == "new" else args.sessionId
    context = conversation.merge(args.context)
    async with conversation.begin_task(ctx, parameters.agent, args.message, context, session) as message:
        if parameters.stream or args.stream or _EVENT_STREAM_TYPE in ctx.http.headers.get(b"accept", b""):
            return await conversation.stream_reply(ctx, message, _events(message, started))
        return _answer(message, await conversation.run_agent(ctx, message), started)


async def get_agent_task(ctx: RequestContext, path: TaskPath) -> TaskInfo:
    """The state of a message."""
    conversation.check_agent(ctx, path.agent)
    return _task_info(await agent_tasks.get(ctx, path.agent, path.task_id))


async def cancel_agent_task(ctx: RequestContext, path: TaskPath) -> TaskInfo:
    """Stop the agent's work on a message."""
    conversation.check_agent(ctx, path.agent)
    return _task_info(await agent_tasks.cancel(ctx, path.agent, path.task_id))


def _events(message: AgentMessage, started: float) -> RenderEvents:
    """Return the function that renders the events of a message in the form of the document."""

    def render(event: AgentMessage | Event | AlmanacError) -> list[dict[str, Any]]:
        match event:
            case AgentMessage(task=task):
                return [{"type": "task", "taskId": task.id, "sessionId": task.session_id}]
            case Progress(state, text):
                return [{"type": "status", "state": state, "message": text}]
            case Delta(text):
                return [{"type": "text", "text": text}]
            case Reset():
                return [{"type": "reset"}]
            case AlmanacError():
                return [{"type": "error", "error": event.text, "code": event.code}]
            case Reply():
                answer = _answer(message, event, started)
                fields = {"response": answer.response, "citations": answer.citations, "metadata": answer.metadata}
                return [{"type": "done", "sessionId": answer.sessionId, **fields}]

    return render


def _answer(message: AgentMessage, reply: Reply, started: float) -> MessageAnswer:
    return MessageAnswer(
        response=reply.text,
        sessionId=message.task.session_id,
        citations=[conversation.render_citation(each) for each in reply.citations],
        metadata={
            "taskId": message.task.id,
            "processingTimeMs": round(1000 * (time.monotonic() - started)),
            "model": reply.model,
            "resolvedQuestion": reply.resolved,
            "searches": [conversation.render_search(each) for each in reply.searches],
        },
    )


def _task_info(task: AgentTask) -> TaskInfo:
    updated_at = clock.format_timestamp(task.updated_at) or ""
    return TaskInfo(task.id, task.session_id, task.state, task.answer, task.sources, updated_at)


_TASK = TaskInfo("5e0c2f0e-…", "7d1b…", "completed", "It is oiled monthly. [1]", [], "2026-11-02T09:30:00.000Z")

AGENT_OPERATIONS: tuple[Operation, ...] = (
    operation(
        send_message,
        answer=MessageAnswer,
        scopes=SEARCH,
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
    operation(
        get_agent_task,
        scopes=SEARCH,
        rest=Rest("GET", AGENTS_PREFIX + "/{agent}/tasks/{task_id}"),
        example=Example(answer=_TASK),
    ),
    operation(
        cancel_agent_task,
        scopes=SEARCH,
        rest=Rest("DELETE", AGENTS_PREFIX + "/{agent}/tasks/{task_id}"),
        example=Example(answer=_TASK),
    ),
)
