"""JSON-RPC messages: parsing, validation, answers and error codes."""

from typing import Any, cast

import orjson

from almanac.core.errors import BadRequest

Message = dict[str, Any]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = -32000


class InvalidJsonRpc(BadRequest):
    """The body is not one JSON-RPC message."""

    def __init__(self, rpc_code: int, message: str) -> None:
        self.rpc_code = rpc_code
        super().__init__(message)


def read(raw: bytes, *, answers: bool = False) -> Message:
    """Return the message in a body. `answers` also accepts responses of the client to requests of the server."""
    try:
        message = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonRpc(PARSE_ERROR, f"Parse error: {error.msg} at character {error.pos}") from None
    if isinstance(message, list):
        raise InvalidJsonRpc(INVALID_REQUEST, "Invalid Request: send one message at a time; batches are not supported")
    if not isinstance(message, dict) or cast("Message", message).get("jsonrpc") != "2.0":
        raise InvalidJsonRpc(INVALID_REQUEST, 'Invalid Request: the body must be an object with "jsonrpc": "2.0"')
    message = cast("Message", message)
    if not _is_request(message) and not (answers and _is_answer(message)):
        raise InvalidJsonRpc(
            INVALID_REQUEST,
            "Invalid Request: 'method' must be a string, 'id' a string or whole number, 'params' an object",
        )
    return message


def result(request_id: Any, value: Any) -> Message:
    """Return an answer."""
    return {"jsonrpc": "2.0", "id": request_id, "result": value}


def error(request_id: Any, code: int, message: str, data: Any = None) -> Message:
    """Return an error answer."""
    content: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        content["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": content}


def is_id(value: Any) -> bool:
    """Return whether a value can identify a request or its progress."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _is_request(message: Message) -> bool:
    return (
        isinstance(message.get("method"), str)
        and ("id" not in message or is_id(message["id"]))
        and isinstance(message.get("params", {}), dict)
    )


def _is_answer(message: Message) -> bool:
    return "method" not in message and ("result" in message or "error" in message) and is_id(message.get("id"))
