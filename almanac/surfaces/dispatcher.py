"""Runs the tool calls, resource reads and prompts of one open surface."""

from collections.abc import Mapping, Sequence
from typing import Any

from almanac.core.arguments import MAX_ID
from almanac.core.call import Actor
from almanac.core.errors import AlmanacError
from almanac.net.http_exchange import HttpExchange
from almanac.net.json_rpc import INTERNAL_ERROR, INVALID_PARAMS
from almanac.operations.context import AppContext, RequestContext
from almanac.operations.operation import Operation
from almanac.operations.pipeline.endpoint import Invocation
from almanac.operations.pipeline.errors import UnknownOperation
from almanac.operations.pipeline.pipeline import log_failure, run_recorded
from almanac.surfaces.resource import Prompt, ResourceTemplate
from almanac.surfaces.resource_cursor import MAX_PAGES, ResourceCursor, parse_cursor
from almanac.surfaces.surface import Result, Surface
from almanac.surfaces.tool import RawResult

MAX_CACHED_TOOL_LISTS = 1000
MAX_LISTED_RESOURCES = 50  # of each kind, on a page


class ProtocolError(Exception):
    """A failure that is answered by a JSON-RPC error, because other arguments would not have avoided it."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code = code
        self.data = data
        super().__init__(message)


class ToolDispatcher:
    """Runs the tool calls of one surface that do not take the fast path: those from the SDK and from stdio."""

    def __init__(self, surface: Surface, app: AppContext, state: Any = None) -> None:
        self.surface = surface
        self.app = app
        self.state = state  # the open state of the surface
        self._tools: dict[tuple[frozenset[str], frozenset[str] | None], dict[str, Operation]] = {}

    def tools_for(self, actor: Actor) -> dict[str, Operation]:
        """Return the tools that a caller may use. Other tools are neither listed nor callable."""
        rights = (actor.scopes, actor.tools)
        tools = self._tools.get(rights)
        if tools is None:
            if len(self._tools) > MAX_CACHED_TOOL_LISTS:  # each token may have its own list of tools
                self._tools.clear()
            tools = {each.name: each for each in self.surface.operations if self._is_shown(each, actor)}
            self._tools[rights] = tools
        return tools

    def instructions_for(self, actor: Actor) -> str:
        """Return the instructions of the surface for a caller."""
        instructions = self.surface.instructions
        return instructions if isinstance(instructions, str) else instructions(self.tools_for(actor))

    def invocation(self, actor: Actor, name: str, arguments: dict[str, Any]) -> Invocation:
        """Return the invocation of a tool by its name."""
        if self.surface.clean_arguments is not None:
            arguments = self.surface.clean_arguments(arguments)
        return Invocation(name, self.tools_for(actor).get(name), arguments)

    async def call(
        self,
        actor: Actor,
        name: str,
        arguments: dict[str, Any],
        request_id: str,
        *,
        http: HttpExchange | None = None,
        client: Any = None,
        is_counted: bool = False,
        meta: Mapping[str, Any] | None = None,
    ) -> Result:
        """Run one tool call; `is_counted` if the request already counts against the caller's limit."""
        ctx = self._context(actor, request_id, http, client)
        ctx.meta = meta or {}
        limit = None if is_counted else self.surface.rate_limit(self.app, actor)
        try:
            answer = await run_recorded(ctx, self.invocation(actor, name, arguments), limit)
        except UnknownOperation as error:
            raise ProtocolError(INVALID_PARAMS, self.surface.unknown_tool_text(error)) from None
        except ProtocolError:
            raise
        except Exception as failure:  # noqa: BLE001 - one failing tool must not end the session
            error = log_failure(ctx, failure)
            if isinstance(error, self.surface.errors_as_http_status):
                raise error from None
            return self.surface.render_error(error)
        return self.surface.render_result(answer)

    def resources_for(self, actor: Actor) -> list[ResourceTemplate]:
        """Return the resources that a caller may read."""
        return [
            each
            for each in self.surface.resources
            if (actor.tools is None or each.tool in actor.tools)
            and (self.surface.lists_all_tools or each.scopes <= actor.scopes)
        ]

    async def read_resource(self, actor: Actor, uri: str, request_id: str) -> Result:
        """Run one `resources/read`. Its failures are JSON-RPC errors."""
        for resource in self.surface.resources:
            if (parts := resource.match(uri)) is not None:
                return await self._run(actor, request_id, _reader(resource, uri, parts), {"uri": uri})
        raise ProtocolError(INVALID_PARAMS, "There is no resource of this kind. See resources/templates/list.")

    async def list_resources(self, actor: Actor, cursor: str | None, request_id: str) -> Result:
        """Run one `resources/list`. Its failures are JSON-RPC errors."""
        templates = [each for each in self.resources_for(actor) if each.find is not None]
        if not templates and cursor is None:
            return {"resources": []}
        return await self._run(actor, request_id, _lister(templates, cursor), {"cursor": cursor} if cursor else {})

    async def get_prompt(self, actor: Actor, name: str, arguments: dict[str, str], request_id: str) -> Result:
        """Run one `prompts/get`. Its failures are JSON-RPC errors."""
        for prompt in self.surface.prompts:
            if prompt.name == name:
                if unknown := sorted(arguments.keys() - prompt.arguments.keys()):
                    raise ProtocolError(INVALID_PARAMS, f"This prompt takes no argument {unknown[0][:100]!r}.")
                return await self._run(actor, request_id, _prompter(prompt, arguments), dict(arguments))
        raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {name[:100]}. See prompts/list.")

    async def _run(self, actor: Actor, request_id: str, operation: Operation, arguments: dict[str, Any]) -> Result:
        ctx = self._context(actor, request_id)
        try:
            answer = await run_recorded(ctx, Invocation(operation.name, operation, arguments), None)
        except Exception as failure:  # noqa: BLE001 - as above
            raise self._protocol_error(log_failure(ctx, failure)) from None
        return self.surface.render_result(answer)

    def _protocol_error(self, error: AlmanacError) -> ProtocolError:
        body = self.surface.http_error(error)[1]["error"]
        return ProtocolError(
            INVALID_PARAMS if error.status < 500 else INTERNAL_ERROR, body["message"], body.get("data")
        )

    def _is_shown(self, operation: Operation, actor: Actor) -> bool:
        is_in_scope = self.surface.lists_all_tools or operation.scopes <= actor.scopes
        return is_in_scope and (actor.tools is None or operation.name in actor.tools)

    def _context(
        self, actor: Actor, request_id: str, http: HttpExchange | None = None, client: Any = None
    ) -> RequestContext:
        ctx = RequestContext(
            actor, self.app.db, request_id, app=self.app, surface=self.surface.name, is_mcp=True,
            surface_state=self.state, path=self.surface.path, client=client,
        )  # fmt: skip
        if http is not None:
            ctx.http, ctx.path = http, http.scope["path"]
        return ctx


def _reader(resource: ResourceTemplate, uri: str, parts: dict[str, str]) -> Operation:
    async def read(ctx: RequestContext, _: Any) -> RawResult:
        content = await resource.read(ctx, parts)
        entry: dict[str, Any] = {"uri": uri, "mimeType": resource.mime_type, "text": content.text}
        return RawResult({"contents": [{**entry, "_meta": dict(content.meta)} if content.meta else entry]})

    return Operation(
        "resources/read", resource.description, read, arguments=None, scopes=resource.scopes, tool=resource.tool
    )


def _lister(templates: Sequence[ResourceTemplate], cursor: str | None) -> Operation:
    async def find(ctx: RequestContext, _: Any) -> RawResult:
        names = {each.name for each in templates}
        position = parse_cursor(cursor) if cursor is not None else ResourceCursor(1, dict.fromkeys(names, MAX_ID))
        entries: list[dict[str, Any]] = []
        below: dict[str, int] = {}
        for each in templates:
            if each.find is None or each.name not in position.below:
                continue
            found = await each.find(ctx, position.below[each.name], MAX_LISTED_RESOURCES + 1)
            shown = found[:MAX_LISTED_RESOURCES]
            entries += map(each.entry, shown)
            if len(found) > len(shown):
                below[each.name] = shown[-1].key
        result: Result = {"resources": entries}
        if below and position.page < MAX_PAGES:
            result["nextCursor"] = ResourceCursor(position.page + 1, below).encode()
        return RawResult(result)

    # The templates are those that the caller may read; a token limited to tools has the tool of each.
    tool = templates[0].tool if templates else ""
    return Operation("resources/list", "The newest resources of each kind.", find, arguments=None, tool=tool)


def _prompter(prompt: Prompt, arguments: dict[str, str]) -> Operation:
    async def render(ctx: RequestContext, _: Any) -> RawResult:
        message = {"role": "user", "content": {"type": "text", "text": await prompt.render(ctx, arguments)}}
        return RawResult({"description": prompt.description, "messages": [message]})

    return Operation("prompts/get", prompt.description, render, arguments=None, tool=prompt.tool)
