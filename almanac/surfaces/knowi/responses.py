"""The answers and errors of the Knowi surface, in the forms of the seed's document.

An answer has two texts: a sentence for people, and its data as JSON for clients without structured content.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from almanac.core.errors import AlmanacError, BadRequest, Forbidden, NotFound, Unauthorized
from almanac.net import json_rpc
from almanac.operations.pipeline.errors import UnknownOperation
from almanac.surfaces.surface import Result, text_result

TOOLS_PATH = "/api/2.0/mcp/tools"

_UNTRUSTED = {"almanac/trust": "untrusted"}


@dataclass(frozen=True, slots=True)
class KnowiAnswer:
    """The answer of a tool."""

    text: str  # for people
    data: dict[str, Any]
    is_untrusted: bool = False  # contains text of documents, which anybody may have written


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2,400 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class AccessDenied(Forbidden):
    """You do not have permission for this object of your organisation."""

    code = "access_denied"

    def __init__(self, kind: str, id: str, action: str = "access", remedy: str = "") -> None:
        message = f"Access denied: you do not have permission to {action} {kind} {id}"
        super().__init__(message + ("." if remedy else ""), remedy=remedy)


_PREFIXES: tuple[tuple[type[AlmanacError], str], ...] = (
    (Forbidden, "Access denied: "),
    (BadRequest, "Validation error: "),
)


class ToolNotFound(NotFound):
    """There is no tool of this name."""

    code: ClassVar[str] = UnknownOperation.code

    def __init__(self, name: str) -> None:
        super().__init__(f"Tool not found: {name}.", remedy=f"Use {TOOLS_PATH} to list valid tool names.")


def unknown_tool_text(error: UnknownOperation) -> str:
    """Return the text for a name that no tool of the caller has."""
    return ToolNotFound(error.name).text


def error_text(error: AlmanacError) -> str:
    """Return the text of an error. It begins with the words of the document, where the document has some."""
    if isinstance(error, UnknownOperation):
        return unknown_tool_text(error)
    text = error.text
    if isinstance(error, Unauthorized):
        return f"401 Unauthorized: {text}"
    if text.startswith(("Access denied:", "Instruction blocked:")):
        return text
    return next((prefix for kind, prefix in _PREFIXES if isinstance(error, kind)), "") + text


def render_result(answer: KnowiAnswer) -> Result:
    """Return the answer of a tool."""
    data = orjson.dumps(answer.data)
    result: Result = {
        "content": [{"type": "text", "text": answer.text}, {"type": "text", "text": data.decode()}],
        "structuredContent": orjson.Fragment(data),  # serialised once
        "isError": False,
    }
    return {**result, "_meta": _UNTRUSTED} if answer.is_untrusted else result


def render_error(error: AlmanacError) -> Result:
    """Return the error of a tool."""
    return text_result(error_text(error), is_error=True)


def http_error(error: AlmanacError) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON-RPC error of a failure before a tool is reached."""
    return error.status, json_rpc.error(None, json_rpc.SERVER_ERROR, error_text(error), {"code": error.code})
