"""The agent in the form of the A2A protocol: JSON-RPC, version 1.0, at the address that its card gives.

`SendMessage` and `SendStreamingMessage` take a message of text, whose metadata may be what WeKnora's context is;
`GetTask` and `CancelTask` are about those sent before. A message's `contextId` is its conversation.
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
from almanac.operations.context import RequestContext
from almanac.operations.operation import Operation, Rest
from almanac.operations.pipeline.errors import InvalidJson, UnsupportedMediaType
from almanac.web.agents import conversation
from almanac.web.agents.conversation import MAX_SESSION_ID_CHARS, SCOPES, AgentMessage, EventStream, MessageContext
from almanac.web.agents.messages import AGENTS_PREFIX, MAX_MESSAGE_CHARS, AgentPath
from almanac.web.rest import AlreadySent

TASK_STATES = {
    agent_tasks.WORKING: "TASK_STATE_WORKING",
    agent_tasks.COMPLETED: "TASK_STATE_COMPLETED",
    agent_tasks.FAILED: "TASK_STATE_FAILED",
    agent_tasks.CANCELED: "TASK_STATE_CANCELED",
}
PROTOCOL_VERSION = b"1."
PARSE, INVALID, NO_METHOD, BAD_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
NO_TASK, NOT_CANCELABLE, UNSUPPORTED, NO_CONTENT, NO_VERSION = -32001, -32002, -32004, -32005, -32009
UNSUPPORTED_METHODS = frozenset({"ListTasks", "SubscribeToTask", "GetExtendedAgentCard", "CreateTaskPushNotificationConfig",
                    "GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs",
                    "DeleteTaskPushNotificationConfig"})  # fmt: skip
_ARTIFACT_NAME = "answer"  # the artifact


class A2aModel(Arguments):
    """The base of what the protocol lets have more fields than are read here."""

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
    """Parameters of what is about a task."""

    id: str = Field(min_length=1, max_length=100)


class A2aError(Exception):
    """A failure that the protocol has a number for."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


class A2aRequest(A2aModel):
    """A JSON-RPC request."""

    jsonrpc: str = ""
    id: str | int | None = None
    method: str = ""
    params: dict[str, Any] = Field(default_factory=dict[str, Any])


async def serve(ctx: RequestContext, given: A2aRequest) -> dict[str, Any] | AlreadySent:
    """One request."""
    place: AgentPath = ctx.parameters
    conversation.check_agent(ctx, place.agent)
    try:
        return await _dispatch(ctx, place.agent, given)
    except A2aError as failure:
        return _error(given.id, failure.code, str(failure))


def render_error(ctx: RequestContext, error: AlmanacError) -> dict[str, Any] | None:
    """A failure as JSON-RPC puts it. What was refused before it was read is refused as everywhere."""
    if not ctx.arguments or ctx.http.scope["path_params"]["agent"] not in ctx.app.settings.agent_names:
        return None
    said = ctx.arguments
    id = said.get("id") if type(said.get("id")) in (str, int) else None
    is_request = said.get("jsonrpc") == "2.0" and isinstance(said.get("method"), str)
    kinds = {InvalidJson: PARSE, TaskFinished: NOT_CANCELABLE, NotFound: NO_TASK, TooLarge: INVALID,
             UnsupportedMediaType: INVALID, BadRequest: BAD_PARAMS if is_request else INVALID}  # fmt: skip
    return _error(id, next((code for kind, code in kinds.items() if isinstance(error, kind)), INTERNAL), error.text)


async def _dispatch(ctx: RequestContext, agent: str, given: A2aRequest) -> dict[str, Any] | AlreadySent:
    if given.jsonrpc != "2.0" or not given.method:
        raise A2aError(INVALID, "The body is not one request of JSON-RPC 2.0.")
    if not ctx.http.headers.get(b"a2a-version", PROTOCOL_VERSION).startswith(PROTOCOL_VERSION):
        raise A2aError(NO_VERSION, "Version 1.0 of the protocol is spoken here.")
    match given.method:
        case "SendMessage":
            return _result(given.id, {"task": await _send(ctx, agent, given)})
        case "SendStreamingMessage":
            async with _begin_task(ctx, agent, given) as letter:
                return await _stream(ctx, letter, given)
        case "GetTask":
            return _result(
                given.id, render_task(await agent_tasks.get(ctx, agent, _parse(TaskIdParams, given.params).id))
            )
        case "CancelTask":
            return _result(
                given.id, render_task(await agent_tasks.cancel(ctx, agent, _parse(TaskIdParams, given.params).id))
            )
        case method if method in UNSUPPORTED_METHODS:
            raise A2aError(UNSUPPORTED, "This agent does not do that.")
        case _:
            raise A2aError(NO_METHOD, "There is no such method.")


def _begin_task(ctx: RequestContext, agent: str, given: A2aRequest) -> AbstractAsyncContextManager[AgentMessage]:
    params = _parse(SendMessageParams, given.params)
    text = "\n".join(part.text for part in params.message.parts if part.text)
    if not text.strip() or len(text) > MAX_MESSAGE_CHARS:
        raise A2aError(NO_CONTENT, f"A message needs a part of text, of at most {MAX_MESSAGE_CHARS} characters in all.")
    context = conversation.merge(params.message.metadata, params.metadata)
    return conversation.begin_task(ctx, agent, text, context, params.message.contextId or None)


async def _send(ctx: RequestContext, agent: str, given: A2aRequest) -> dict[str, Any]:
    async with _begin_task(ctx, agent, given) as letter:
        return _completed_task(letter, await conversation.run_agent(ctx, letter, conversation.ignore_event))


async def _stream(ctx: RequestContext, letter: AgentMessage, given: A2aRequest) -> AlreadySent:
    named = {"taskId": letter.task.id, "contextId": letter.task.session_id}
    async with EventStream(ctx.http).open() as stream:
        written = False

        async def tell(event: Event) -> None:
            nonlocal written
            match event:
                case Progress(state, text):
                    written = written and state != "searching"
                    status = _status(agent_tasks.WORKING, text, letter.task)
                    await stream.send(_result(given.id, {"statusUpdate": {**named, "status": status}}))
                case Delta(text):
                    artifact = {"artifactId": _ARTIFACT_NAME, "parts": [{"text": text}]}
                    update = {**named, "artifact": artifact, "append": written}
                    written = True
                    await stream.send(_result(given.id, {"artifactUpdate": update}))
                case Reset():
                    written = False
                case Reply():
                    pass

        await stream.send(_result(given.id, {"task": render_task(letter.task)}))
        try:
            reply = await conversation.run_agent(ctx, letter, tell)
        except AlmanacError as error:
            status = _status(
                agent_tasks.CANCELED if isinstance(error, Cancelled) else agent_tasks.FAILED, error.text, letter.task
            )
            await stream.send(_result(given.id, {"statusUpdate": {**named, "status": status}}))
            raise
        artifact = {**_artifact(reply.text, [conversation.render_citation(each) for each in reply.citations])}
        whole = {**named, "artifact": artifact, "append": False, "lastChunk": True}
        await stream.send(_result(given.id, {"artifactUpdate": whole}))
        await stream.send(_result(given.id, {"statusUpdate": {**named, "status": _status(agent_tasks.COMPLETED)}}))
    return AlreadySent()


def render_task(task: AgentTask) -> dict[str, Any]:
    """A task as the protocol shows it."""
    shown: dict[str, Any] = {
        "id": task.id,
        "contextId": task.session_id,
        "status": {"state": TASK_STATES[task.state], "timestamp": clock.format_timestamp(task.updated_at)},
    }
    return shown | ({"artifacts": [_artifact(task.answer, task.sources)]} if task.answer else {})


def _completed_task(letter: AgentMessage, reply: Reply) -> dict[str, Any]:
    return {
        "id": letter.task.id,
        "contextId": letter.task.session_id,
        "status": _status(agent_tasks.COMPLETED),
        "artifacts": [_artifact(reply.text, [conversation.render_citation(each) for each in reply.citations])],
    }


def _artifact(text: str, sources: list[dict[str, Any]]) -> dict[str, Any]:
    cited = [{"data": {"citations": sources}, "mediaType": "application/json"}] if sources else []
    return {
        "artifactId": _ARTIFACT_NAME,
        "name": _ARTIFACT_NAME,
        "parts": [{"text": text, "mediaType": "text/plain"}, *cited],
    }


def _status(state: str, text: str = "", task: AgentTask | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"state": TASK_STATES[state], "timestamp": clock.format_timestamp(clock.now())}
    if text and task is not None:
        said = {"messageId": f"{task.id}-status", "role": "ROLE_AGENT", "parts": [{"text": text}]}
        status["message"] = {**said, "taskId": task.id, "contextId": task.session_id}
    return status


def _parse(model: type[Any], params: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(dict(params))
    except ValidationError as error:
        raise A2aError(BAD_PARAMS, describe_problems(error, "is not taken here")) from None


def _result(id: Any, result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _error(id: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


AGENT_RPC = Operation(
    name="agent_rpc",
    summary="The agent by JSON-RPC, in the form of the A2A protocol",
    arguments=A2aRequest,
    answer=dict[str, Any],
    scopes=SCOPES,
    handler=serve,
    rest=Rest(
        "POST",
        AGENTS_PREFIX + "/{agent}",
        parameters=AgentPath,
        authenticate=conversation.by_context,
        render_error=render_error,
        error_status=200,
    ),
)
