"""The tools, resources and prompts that the official MCP conformance suites require of a server.

The suites call them by fixed names and compare the answers with fixed texts. All literals here are therefore taken from
the descriptions of the scenarios. `tests.conformance.surface` uses three names:

- `TOOLS`: the tools. `FixtureTool.run` takes the SDK's request context and the arguments. It returns a `CallToolResult`
  or an `InputRequiredResult` in wire form, or raises `MCPError`.
- `HANDLERS`: the arguments of `Server.add_request_handler` for all other methods: method, type of params, handler.
- `EVENT_STORE`: the class of the event store, with which a client can resume an SSE stream that the server closed.

The first tool must take no arguments, because the scenarios about headers call the first tool of the list without any.
"""

import asyncio
import json
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel

Wire = dict[str, Any]
Context = ServerRequestContext[Any, Any]
Run = Callable[[Context, Wire], Awaitable[Wire]]
Handler = Callable[[Context, Any], Awaitable[BaseModel | Wire]]


@dataclass(frozen=True)
class FixtureTool:
    """One tool of the suites: its entry in the list, and the function that answers calls."""

    name: str
    description: str
    input_schema: Wire
    run: Run


# --- content -----------------------------------------------------------------------------------------------

# One red pixel, and a WAV header without samples: the smallest files of their kinds.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="

IMAGE: Wire = {"type": "image", "data": PNG, "mimeType": "image/png"}
AUDIO: Wire = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}

NO_ARGUMENTS: Wire = {"type": "object", "properties": {}, "additionalProperties": False}


def text(value: str) -> Wire:
    return {"type": "text", "text": value}


def embedded(uri: str, mime_type: str, content: str) -> Wire:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": content}}


def result(*content: Wire, is_error: bool = False) -> Wire:
    # 2026-07-28 requires `resultType`, and the SDK removes it for older clients. The SDK adds the field to its own
    # models, but refuses a dictionary without it.
    return {"resultType": "complete", "content": list(content), "isError": is_error}


def string_arguments(**descriptions: str) -> Wire:
    """A schema of required strings, one for each keyword."""
    properties = {name: {"type": "string", "description": about} for name, about in descriptions.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(descriptions),
        "additionalProperties": False,
    }


# --- tools that answer immediately -----------------------------------------------------------------------------


def answers(*content: Wire, is_error: bool = False) -> Run:
    """A tool that always returns the same content."""

    async def run(ctx: Context, arguments: Wire) -> Wire:
        return result(*content, is_error=is_error)

    return run


async def echo_arguments(ctx: Context, arguments: Wire) -> Wire:
    return result(text(json.dumps(arguments, sort_keys=True)))


# --- tools that send notifications while they run ---------------------------------------------------------

# The suites require about 50 ms between notifications, so that a client receives them one by one.
PAUSE_SECONDS = 0.05


async def report_progress(ctx: Context, arguments: Wire) -> Wire:
    await ctx.session.report_progress(0, 100)
    await asyncio.sleep(PAUSE_SECONDS)
    await ctx.session.report_progress(50, 100)
    await asyncio.sleep(PAUSE_SECONDS)
    await ctx.session.report_progress(100, 100)
    return result(text("Progress reported"))


async def log(ctx: Context, message: str) -> None:
    # `send_log_message` warns when it is called, not when it is awaited. It is awaited outside the block, because the
    # warning filter of the block applies to the whole process and other tasks run meanwhile.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        send = ctx.session.send_log_message  # pyright: ignore[reportDeprecated]
        sending = send("info", message, related_request_id=ctx.request_id)
    await sending


async def log_thrice(ctx: Context, arguments: Wire) -> Wire:
    await log(ctx, "Tool execution started")
    await asyncio.sleep(PAUSE_SECONDS)
    await log(ctx, "Tool processing data")
    await asyncio.sleep(PAUSE_SECONDS)
    await log(ctx, "Tool execution completed")
    return result(text("Logged three messages"))


async def close_stream_midway(ctx: Context, arguments: Wire) -> Wire:
    """Close the response stream before the answer is ready: the client resumes it by Last-Event-ID.

    Without an event store, or with a client older than 2025-11-25, there is no stream to close.
    """
    # The SDK sends the first event with an id from another task. If the stream is closed before that event, the client
    # has no id to resume from. The SDK does not report when the event has been sent, hence the pause.
    await asyncio.sleep(PAUSE_SECONDS)
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(PAUSE_SECONDS)
    return result(text("Reconnection test completed"))


# --- tools that ask the client over the open connection (2025-11-25 and older) -----------------------------


def declared(ctx: Context, capability: str) -> bool:
    return getattr(ctx.session.client_capabilities, capability, None) is not None


def require(ctx: Context, capability: str) -> None:
    if not declared(ctx, capability):
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"This call needs a client with the {capability} capability",
            {"requiredCapabilities": {capability: {}}},
        )


async def sample(ctx: Context, arguments: Wire) -> Wire:
    require(ctx, "sampling")
    message = types.SamplingMessage(role="user", content=types.TextContent(text=arguments["prompt"]))
    params = types.CreateMessageRequestParams(messages=[message], max_tokens=100)
    # `create_message` sends the same request, but warns that sampling is deprecated.
    answer = await ctx.session.send_request(
        types.CreateMessageRequest(params=params),
        types.CreateMessageResult,
        metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
    )
    reply = answer.content.text if isinstance(answer.content, types.TextContent) else answer.content.type
    return result(text(f"LLM response: {reply}"))


async def elicit(ctx: Context, message: str, schema: Wire) -> str:
    require(ctx, "elicitation")
    answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
    return f"action={answer.action}, content={json.dumps(answer.content)}"


async def elicit_user(ctx: Context, arguments: Wire) -> Wire:
    schema = {
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    }
    return result(text(f"User response: {await elicit(ctx, arguments['message'], schema)}"))


def elicits(message: str, properties: Wire) -> Run:
    """A tool that shows a form to the user and returns the answer."""

    async def run(ctx: Context, arguments: Wire) -> Wire:
        schema: Wire = {"type": "object", "properties": properties, "required": []}
        return result(text(f"Elicitation completed: {await elicit(ctx, message, schema)}"))

    return run


SEP_1034_DEFAULTS: Wire = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}


def titled(*titles: str) -> list[Wire]:
    return [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, start=1)]


OPTIONS = ["option1", "option2", "option3"]
SEP_1330_ENUMS: Wire = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {"type": "string", "oneOf": titled("First Option", "Second Option", "Third Option")},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": titled("First Choice", "Second Choice", "Third Choice")},
    },
}


# --- tools that request input in their answer (2026-07-28) --------------------------------------------------------

# The SDK's own middleware, applied to single tools, so that the surface need not install it. It protects the state that
# it sends to the client, and refuses a returned state that was changed.
STATE = RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="conformance")

CAPABILITY_FOR = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}


def form(message: str, **properties: str) -> Wire:
    """An elicitation with one required property for each keyword; the value of the keyword is the type."""
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt: str, max_tokens: int) -> Wire:
    messages = [{"role": "user", "content": text(prompt)}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": max_tokens}}


ASK_NAME = form("What is your name?", name="string")
ASK_CONFIRMATION = form("Please confirm", ok="boolean")
ASK_CAPITAL = sampling("What is the capital of France?", 100)
ASK_ROOTS: Wire = {"method": "roots/list", "params": {}}


def input_required(ctx: Context, requests: Wire, state: str | None = None) -> Wire:
    for request in requests.values():
        require(ctx, CAPABILITY_FOR[request["method"]])
    answer: Wire = {"resultType": "input_required", "inputRequests": requests}
    return answer if state is None else answer | {"requestState": state}


def responses(ctx: Context) -> Wire:
    """The client's answers by key. Answers that are not objects are ignored, so that they are requested again."""
    answers = (ctx.params or {}).get("inputResponses")
    if not isinstance(answers, Mapping):
        return {}
    return {key: answer for key, answer in cast(Wire, answers).items() if isinstance(answer, Mapping)}


def state(ctx: Context) -> str | None:
    return (ctx.params or {}).get("requestState")


def asks(requests: Wire, finish: Callable[[Wire], str], *, remember: str | None = None) -> Run:
    """A tool that needs an answer to each of `requests`, and the state `remember` back, unless that is None."""

    async def run(ctx: Context, arguments: Wire) -> Wire:
        answers = responses(ctx)
        missing = {key: request for key, request in requests.items() if key not in answers}
        if missing or state(ctx) != remember:
            return input_required(ctx, missing or requests, remember)
        return result(text(finish(answers)))

    return run if remember is None else sealed(run)


def sealed(run: Run) -> Run:
    async def guarded(ctx: Context, arguments: Wire) -> Wire:
        async def call_next(unsealed: Context) -> Wire:
            return await run(unsealed, arguments)

        return cast(Wire, await STATE(ctx, call_next))

    return guarded


async def ask_what_is_declared(ctx: Context, arguments: Wire) -> Wire:
    """Request only input for which the client declared the capability."""
    offered = {"user_name": ASK_NAME, "capital_question": ASK_CAPITAL, "client_roots": ASK_ROOTS}
    possible = {key: request for key, request in offered.items() if declared(ctx, CAPABILITY_FOR[request["method"]])}
    if possible and not responses(ctx):
        return input_required(ctx, possible)
    return result(text("Nothing left to ask"))


async def ask_twice(ctx: Context, arguments: Wire) -> Wire:
    given = responses(ctx)
    match state(ctx):
        case "second" if "step2" in given:
            return result(text("Both steps answered"))
        case "first" if "step1" in given:
            question = form("Step 2: What is your favorite color?", color="string")
            return input_required(ctx, {"step2": question}, "second")
        case _:
            question = form("Step 1: What is your name?", name="string")
            return input_required(ctx, {"step1": question}, "first")


async def need_sampling(ctx: Context, arguments: Wire) -> Wire:
    require(ctx, "sampling")
    return result(text("The client declares sampling"))


def greet(given: Wire) -> str:
    return f"Hello, {given['user_name'].get('content', {}).get('name')}!"


# --- tools that notify subscribers of a change ---------------------------------------------------------------

BUS = InMemorySubscriptionBus()


def publishes(event: ServerEvent) -> Run:
    async def run(ctx: Context, arguments: Wire) -> Wire:
        await BUS.publish(event)
        return result(text(f"Published {type(event).__name__}"))

    return run


# --- the list of tools -------------------------------------------------------------------------------------

# Served unchanged: the scenario checks keywords that a generator of schemas would drop.
JSON_SCHEMA_2020_12: Wire = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}

HEADER_SCHEMA: Wire = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
    "additionalProperties": False,
}


def tool(name: str, description: str, run: Run, input_schema: Wire = NO_ARGUMENTS) -> FixtureTool:
    return FixtureTool(name, description, input_schema, run)


CONTENT_TOOLS = (
    tool("test_simple_text", "Gives text", answers(text("This is a simple text response for testing."))),
    tool("test_image_content", "Gives an image", answers(IMAGE)),
    tool("test_audio_content", "Gives a sound", answers(AUDIO)),
    tool(
        "test_embedded_resource",
        "Gives a resource",
        answers(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")),
    ),
    tool(
        "test_multiple_content_types",
        "Gives text, an image and a resource",
        answers(
            text("Multiple content types test:"),
            IMAGE,
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ),
    ),
    tool(
        "test_error_handling",
        "Always fails",
        answers(text("This tool intentionally returns an error for testing"), is_error=True),
    ),
    tool(
        "json_schema_2020_12_tool",
        "Tool with JSON Schema 2020-12 features",
        echo_arguments,
        JSON_SCHEMA_2020_12,
    ),
    tool("test_x_mcp_header", "Takes an argument that a header repeats", echo_arguments, HEADER_SCHEMA),
)

NOTIFYING_TOOLS = (
    tool("test_tool_with_progress", "Reports progress three times", report_progress),
    tool("test_tool_with_logging", "Logs three messages", log_thrice),
    tool("test_logging_tool", "Logs three messages, to who asked for logs", log_thrice),
    tool("test_reconnection", "Closes its response stream before it answers", close_stream_midway),
    tool("test_trigger_tool_change", "Says that the tools changed", publishes(ToolsListChanged())),
    tool("test_trigger_prompt_change", "Says that the prompts changed", publishes(PromptsListChanged())),
)

ASKING_TOOLS = (
    tool("test_sampling", "Asks the client's model", sample, string_arguments(prompt="What to ask")),
    tool("test_elicitation", "Asks the user", elicit_user, string_arguments(message="What to ask")),
    tool(
        "test_elicitation_sep1034_defaults",
        "Asks the user with defaults",
        elicits("Please review and update the form fields with defaults", SEP_1034_DEFAULTS),
    ),
    tool(
        "test_elicitation_sep1330_enums",
        "Asks the user with every kind of enumeration",
        elicits("Please select options from the enum fields", SEP_1330_ENUMS),
    ),
    tool("test_missing_capability", "Needs a client that samples", need_sampling),
)

INPUT_REQUIRED_TOOLS = (
    tool("test_input_required_result_elicitation", "Asks for a name", asks({"user_name": ASK_NAME}, greet)),
    tool("test_streaming_elicitation", "Asks for a name", asks({"user_name": ASK_NAME}, greet)),
    tool(
        "test_input_required_result_sampling",
        "Asks the client's model",
        asks({"capital_question": ASK_CAPITAL}, lambda given: json.dumps(given["capital_question"])),
    ),
    tool(
        "test_input_required_result_list_roots",
        "Asks for the roots",
        asks({"client_roots": ASK_ROOTS}, lambda given: json.dumps(given["client_roots"])),
    ),
    tool(
        "test_input_required_result_request_state",
        "Wants its state back",
        asks({"confirm": ASK_CONFIRMATION}, lambda given: "state-ok", remember="confirming"),
    ),
    tool(
        "test_input_required_result_tampered_state",
        "Wants its state back untouched",
        asks({"confirm": ASK_CONFIRMATION}, lambda given: "state-ok", remember="confirming"),
    ),
    tool(
        "test_input_required_result_multiple_inputs",
        "Asks three things at once",
        asks(
            {
                "user_name": ASK_NAME,
                "greeting": sampling("Generate a greeting", 50),
                "client_roots": ASK_ROOTS,
            },
            greet,
            remember="asked",
        ),
    ),
    tool("test_input_required_result_multi_round", "Asks one thing after another", sealed(ask_twice)),
    tool(
        "test_input_required_result_capabilities",
        "Asks through the client's own capabilities",
        ask_what_is_declared,
    ),
)

TOOLS: tuple[FixtureTool, ...] = CONTENT_TOOLS + NOTIFYING_TOOLS + ASKING_TOOLS + INPUT_REQUIRED_TOOLS


# --- resources ---------------------------------------------------------------------------------------------

# 2026-07-28 requires this in every cacheable result. The SDK removes it for older clients.
CACHEABLE: Wire = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

STATIC_TEXT = "This is the content of the static text resource."
CONTENTS: dict[str, Wire] = {
    "test://static-text": {"mimeType": "text/plain", "text": STATIC_TEXT},
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://watched-resource": {"mimeType": "text/plain", "text": "This resource may be subscribed to."},
}


async def list_resources(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    resources = [
        {
            "uri": uri,
            "name": uri.removeprefix("test://"),
            "description": f"The fixture {uri}",
            "mimeType": content["mimeType"],
        }
        for uri, content in CONTENTS.items()
    ]
    return {"resources": resources, **CACHEABLE}


async def list_templates(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    template = {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "The fixture with an id in its address",
        "mimeType": "application/json",
    }
    return {"resourceTemplates": [template], **CACHEABLE}


def content_of(uri: str) -> Wire:
    if uri in CONTENTS:
        return CONTENTS[uri]
    if uri.startswith("test://template/") and uri.endswith("/data"):
        name = uri.removeprefix("test://template/").removesuffix("/data")
        data = {"id": name, "templateTest": True, "data": f"Data for ID: {name}"}
        return {"mimeType": "application/json", "text": json.dumps(data)}
    raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> Wire:
    return {"contents": [{"uri": params.uri, **content_of(params.uri)}], **CACHEABLE}


async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> Wire:
    content_of(params.uri)
    return {}


async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> Wire:
    content_of(params.uri)
    return {}


# --- prompts -----------------------------------------------------------------------------------------------


def prompt(*content: Wire) -> Wire:
    messages = [{"role": "user", "content": part} for part in content]
    return {"resultType": "complete", "messages": messages}


def argument(name: str, description: str) -> Wire:
    return {"name": name, "description": description, "required": True}


PROMPTS: tuple[Wire, ...] = (
    {"name": "test_simple_prompt", "description": "One message"},
    {
        "name": "test_prompt_with_arguments",
        "description": "One message made from two arguments",
        "arguments": [argument("arg1", "First test argument"), argument("arg2", "Second test argument")],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "A resource and what to do with it",
        "arguments": [argument("resourceUri", "URI of the resource to embed")],
    },
    {"name": "test_prompt_with_image", "description": "An image and what to do with it"},
    {"name": "test_input_required_result_prompt", "description": "Asks the user for its context"},
)


async def list_prompts(ctx: Context, params: types.PaginatedRequestParams) -> Wire:
    return {"prompts": list(PROMPTS), **CACHEABLE}


async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> Wire:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            content = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            content = [text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
        case "test_prompt_with_embedded_resource":
            resource = embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            content = [resource, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            content = [IMAGE, text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            return ask_for_prompt_context(ctx)
        case unknown:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {unknown}")
    return prompt(*content)


def ask_for_prompt_context(ctx: Context) -> Wire:
    answer = responses(ctx).get("user_context")
    if answer is None:
        question = form("What context should the prompt use?", context="string")
        return input_required(ctx, {"user_context": question})
    context = answer.get("content", {}).get("context")
    return prompt(text(f"Prompt with context: {context}"))


# --- the other methods -------------------------------------------------------------------------------------

CITIES = ("paris", "park", "party")


async def complete(ctx: Context, params: types.CompleteRequestParams) -> Wire:
    values = [city for city in CITIES if city.startswith(params.argument.value)]
    completion = {"values": values, "total": len(values), "hasMore": False}
    return {"resultType": "complete", "completion": completion}


async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> Wire:
    # All fixtures log at the same level, and the SDK has already refused an unknown level.
    return {}


HANDLERS: tuple[tuple[str, type[BaseModel], Handler], ...] = (
    ("resources/list", types.PaginatedRequestParams, list_resources),
    ("resources/templates/list", types.PaginatedRequestParams, list_templates),
    ("resources/read", types.ReadResourceRequestParams, read_resource),
    ("resources/subscribe", types.SubscribeRequestParams, subscribe),
    ("resources/unsubscribe", types.UnsubscribeRequestParams, unsubscribe),
    ("prompts/list", types.PaginatedRequestParams, list_prompts),
    ("prompts/get", types.GetPromptRequestParams, get_prompt),
    ("completion/complete", types.CompleteRequestParams, complete),
    ("logging/setLevel", types.SetLevelRequestParams, set_level),
    ("subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(BUS)),
)


# --- resuming streams --------------------------------------------------------------------------------------


class MemoryEventStore(EventStore):
    """The events of all streams in the order of their arrival. The id of an event is its index.

    The SDK names a stream by its request id only, so sessions with the same store share streams. The suite resumes only
    the newest stream, so this is harmless here, but not outside tests.
    """

    def __init__(self) -> None:
        self._events: list[tuple[str, types.JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events) - 1)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        if not last_event_id.isdecimal() or int(last_event_id) >= len(self._events):
            return None
        last = int(last_event_id)
        stream_id = self._events[last][0]
        for index, (owner, message) in enumerate(self._events[last + 1 :], start=last + 1):
            if owner == stream_id and message is not None:
                await send_callback(EventMessage(message, str(index)))
        return stream_id


EVENT_STORE = MemoryEventStore
