"""The agent in the form of the A2A protocol: JSON-RPC, version 1.0, at the address in its card.

`SendMessage` and `SendStreamingMessage` take a text message. Its metadata may contain the fields of WeKnora's context.
`GetTask` and `CancelTask` take the id of a task. The `contextId` of a message is its conversation.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from almanac.assist import agent_tasks
from almanac.assist.agent import Delta, Event, Progress, Reply, Reset
from almanac.assist.agent_tasks import AgentTask, TaskFinished
from almanac.core import clock
from almanac.core.arguments import Arguments, describe_problems
from almanac.core.errors import AlmanacError, BadRequest, Cancelled, NotFound, TooLarge
from almanac.net import json_rpc
from almanac.net.json_rpc import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from almanac.operations.context import RequestContext
from almanac.operations.models import SEARCH
from almanac.operations.operation import Rest, operation
from almanac.operations.pipeline.errors import InvalidJson, UnsupportedMediaType
from almanac.web.agents import conversation
from almanac.web.agents.cards import AGENTS_PREFIX
from almanac.web.agents.conversation import MAX_SESSION_ID_CHARS, AgentMessage, MessageContext, RenderEvents
from almanac.web.agents.messages import MAX_MESSAGE_CHARS, AgentPath
from almanac.web.rest import AlreadySent

TASK_STATES = {
    agent_tasks.WORKING: "TASK_STATE_WORKING",
    agent_tasks.COMPLETED: "TASK_STATE_COMPLETED",
    agent_tasks.FAILED: "TASK_STATE_FAILED",
    agent_tasks.CANCELED: "TASK_STATE_CANCELED",
}
PROTOCOL_VERSION = b"1."
# Error codes of the protocol
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
UNSUPPORTED_OPERATION = -32004
CONTENT_TYPE_NOT_SUPPORTED = -32005
VERSION_NOT_SUPPORTED = -32009

UNSUPPORTED_METHODS = frozenset(
    {"ListTasks", "SubscribeToTask", "GetExtendedAgentCard", "CreateTaskPushNotificationConfig",
     "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs", "DeleteTaskPushNotificationConfig"}
)  # fmt: skip
_ARTIFACT_NAME = "answer"  # the artifact


class A2aModel(Arguments):
    """The base of the protocol's models. Unknown fields are ignored, as the protocol requires."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class MessagePart(A2aModel):
    """A part of a message; only text is read."""

    text: str | None = None


class A2aMessage(A2aModel):
    """A message."""

    messageId: str = ""
    contextId: str = Field("", max_length=MAX_SESSION_ID_CHARS)
    parts: list[MessagePart] = Field(default_factory=list[MessagePart], max_length=100)
    metadata: MessageContext | None = None


class SendMessageParams(A2aModel):
    """Parameters of `SendMessage`."""

    message: A2aMessage
    metadata: MessageContext | None = None


class TaskIdParams(A2aModel):
    """Parameters of the methods for one task."""

    id: str = Field(min_length=1, max_length=100)


class A2aError(Exception):
    """A failure with an error code of JSON-RPC or of the protocol."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class A2aRequest(A2aModel):
    """A JSON-RPC request."""

    jsonrpc: str = ""
    id: str | int | None = None
    method: str = ""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])


async def agent_rpc(ctx: RequestContext, request: A2aRequest) -> dict[str, Any] | AlreadySent:
    """The agent by JSON-RPC, in the form of the A2A protocol."""
    path: AgentPath = ctx.parameters
    conversation.check_agent(ctx, path.agent)
    try:
        return await _dispatch(ctx, path.agent, request)
    except A2aError as failure:
        return json_rpc.error(request.id, failure.code, str(failure))


def render_error(ctx: RequestContext, error: AlmanacError) -> dict[str, Any] | None:
    """Return an error in the form of JSON-RPC; None if it happened before the body was read."""
    if not ctx.arguments or ctx.http.scope["path_params"]["agent"] not in ctx.app.settings.agent_names:
        return None
    body = ctx.arguments
    id = body.get("id") if type(body.get("id")) in (str, int) else None
    is_request = body.get("jsonrpc") == "2.0" and isinstance(body.get("method"), str)
    codes = {
        InvalidJson: PARSE_ERROR,
        TaskFinished: TASK_NOT_CANCELABLE,
        NotFound: TASK_NOT_FOUND,
        TooLarge: INVALID_REQUEST,
        UnsupportedMediaType: INVALID_REQUEST,
        BadRequest: INVALID_PARAMS if is_request else INVALID_REQUEST,
    }
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), INTERNAL_ERROR)
    return json_rpc.error(id, code, error.text)


async def _dispatch(ctx: RequestContext, agent: str, request: A2aRequest) -> dict[str, Any] | AlreadySent:
    if request.jsonrpc != "2.0" or not request.method:
        raise A2aError(INVALID_REQUEST, "The body is not one request of JSON-RPC 2.0.")
    if not ctx.http.headers.get(b"a2a-version", PROTOCOL_VERSION).startswith(PROTOCOL_VERSION):
        raise A2aError(VERSION_NOT_SUPPORTED, "This server supports version 1.0 of the protocol.")
    match request.method:
        case "SendMessage":
            return json_rpc.result(request.id, {"task": await _send(ctx, agent, request)})
        case "SendStreamingMessage":
            async with _begin_task(ctx, agent, request) as message:
                return await conversation.stream_reply(ctx, message, _events(request, message.task))
        case "GetTask" | "CancelTask":
            run = agent_tasks.get if request.method == "GetTask" else agent_tasks.cancel
            return json_rpc.result(
                request.id, render_task(await run(ctx, agent, _parse(TaskIdParams, request.params).id))
            )
        case method if method in UNSUPPORTED_METHODS:
            raise A2aError(UNSUPPORTED_OPERATION, "This agent does not support the method.")
        case _:
            raise A2aError(METHOD_NOT_FOUND, "There is no such method.")


def _begin_task(ctx: RequestContext, agent: str, request: A2aRequest) -> AbstractAsyncContextManager[AgentMessage]:
    params = _parse(SendMessageParams, request.params)
    text = "\n".join(part.text for part in params.message.parts if part.text)
    if not text.strip() or len(text) > MAX_MESSAGE_CHARS:
        raise A2aError(
            CONTENT_TYPE_NOT_SUPPORTED,
            f"A message needs a text part, of at most {MAX_MESSAGE_CHARS} characters in total.",
        )
    context = conversation.merge(params.message.metadata, params.metadata)
    return conversation.begin_task(ctx, agent, text, context, params.message.contextId or None)


async def _send(ctx: RequestContext, agent: str, request: A2aRequest) -> dict[str, Any]:
    async with _begin_task(ctx, agent, request) as message:
        return _completed_task(message, await conversation.run_agent(ctx, message))


def _events(request: A2aRequest, task: AgentTask) -> RenderEvents:
    """Return the function that renders the events of a task in the form of the protocol."""
    ids = {"taskId": task.id, "contextId": task.session_id}
    is_started = False  # whether the client has a part of the answer

    def update(kind: str, **fields: Any) -> dict[str, Any]:
        return json_rpc.result(request.id, {kind: {**ids, **fields}})

    def render(event: AgentMessage | Event | AlmanacError) -> list[dict[str, Any]]:
        nonlocal is_started
        match event:
            case AgentMessage():
                return [json_rpc.result(request.id, {"task": render_task(task)})]
            case Progress(state, text):
                is_started = is_started and state != "searching"
                return [update("statusUpdate", status=_status(agent_tasks.WORKING, text, task))]
            case Delta(text):
                artifact = {"artifactId": _ARTIFACT_NAME, "parts": [{"text": text}]}
                appended, is_started = is_started, True
                return [update("artifactUpdate", artifact=artifact, append=appended)]
            case Reset():
                is_started = False
                return []
            case AlmanacError():
                state = agent_tasks.CANCELED if isinstance(event, Cancelled) else agent_tasks.FAILED
                return [update("statusUpdate", status=_status(state, event.text, task))]
            case Reply():
                return [
                    update("artifactUpdate", artifact=_reply_artifact(event), append=False, lastChunk=True),
                    update("statusUpdate", status=_status(agent_tasks.COMPLETED)),
                ]

    return render


def render_task(task: AgentTask) -> dict[str, Any]:
    """Return a task in the form of the protocol."""
    fields: dict[str, Any] = {
        "id": task.id,
        "contextId": task.session_id,
        "status": {"state": TASK_STATES[task.state], "timestamp": clock.format_timestamp(task.updated_at)},
    }
    return fields | ({"artifacts": [_artifact(task.answer, task.sources)]} if task.answer else {})


def _completed_task(message: AgentMessage, reply: Reply) -> dict[str, Any]:
    return {
        "id": message.task.id,
        "contextId": message.task.session_id,
        "status": _status(agent_tasks.COMPLETED),
        "artifacts": [_reply_artifact(reply)],
    }


def _reply_artifact(reply: Reply) -> dict[str, Any]:
    return _artifact(reply.text, [conversation.render_citation(each) for each in reply.citations])


def _artifact(text: str, sources: list[dict[str, Any]]) -> dict[str, Any]:
    citations = [{"data": {"citations": sources}, "mediaType": "application/json"}] if sources else []
    return {
        "artifactId": _ARTIFACT_NAME,
        "name": _ARTIFACT_NAME,
        "parts": [{"text": text, "mediaType": "text/plain"}, *citations],
    }


def _status(state: str, text: str = "", task: AgentTask | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"state": TASK_STATES[state], "timestamp": clock.format_timestamp(clock.now())}
    if text and task is not None:
        fields = {"messageId": f"{task.id}-status", "role": "ROLE_AGENT", "parts": [{"text": text}]}
        status["message"] = {**fields, "taskId": task.id, "contextId": task.session_id}
    return status


def _parse(model: type[Any], params: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        raise A2aError(INVALID_PARAMS, describe_problems(error, "is not taken here")) from None


AGENT_RPC = operation(
    agent_rpc,
    answer=dict[str, Any],
    scopes=SEARCH,
    rest=Rest(
        "POST",
        AGENTS_PREFIX + "/{agent}",
        parameters=AgentPath,
        authenticate=conversation.by_context,
        render_error=render_error,
        error_status=200,
    ),
)
