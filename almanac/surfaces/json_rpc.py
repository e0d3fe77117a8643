"""JSON-RPC messages: read from bytes, checked as far as any surface needs, and error answers."""

from typing import Any, cast

import orjson

Message = dict[str, Any]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600


class InvalidJsonRpc(Exception):
    """The body is not one JSON-RPC message."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        super().__init__(message)


def read(raw: bytes, *, answers: bool = False) -> Message:
    """The message in a body; `answers` accepts responses too, from clients that the server may ask something."""
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


def error(request_id: Any, code: int, message: str, data: Any = None) -> Message:
    """An error answer."""
    content: dict[str, Any] = {"code": code, "message": message}
    if data is not None:
        content["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": content}


def is_id(value: Any) -> bool:
    """Whether a value can name a request, or the progress of one."""
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _is_request(message: Message) -> bool:
    return (
        isinstance(message.get("method"), str)
        and ("id" not in message or is_id(message["id"]))
        and isinstance(message.get("params", {}), dict)
    )


def _is_answer(message: Message) -> bool:
    return "method" not in message and ("result" in message or "error" in message) and is_id(message.get("id"))
