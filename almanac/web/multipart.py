"""Uploads: the file in a request's body is stored chunk by chunk and is never whole in memory."""

import logging
import re
from typing import Any

import orjson
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from almanac.core.errors import BadRequest, TooLarge
from almanac.files.file_store import IncomingFile
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import RequestContext

FORM_TYPE = b"multipart/form-data"
FILE_PART = "file"

MAX_FORM_PARTS = 100
MAX_FIELD_BYTES = 64 * 1024  # of all fields except the file
MAX_FORM_OVERHEAD_BYTES = 256 * 1024  # beside the file
# The parser logs invalid input, which may be a part of a document.
_SILENT_LOGGER = logging.Logger("uploads", logging.CRITICAL + 1)
_NUMBER = re.compile(r"[0-9]{1,19}")
_UNENCODED = (b"", b"7bit", b"8bit", b"binary")
_JSON_FIELDS = ("metadata", "annotations", "entities")  # their text is JSON


class RawUpload:
    """A body that is the file itself."""

    file_name = ""

    def __init__(self, ctx: RequestContext) -> None:
        ctx.http.check_length(ctx.app.settings.max_file_bytes)

    async def write_to(self, ctx: RequestContext, incoming: IncomingFile) -> dict[str, Any]:
        """Store the file as it arrives."""
        while not ctx.http.is_read:
            await incoming.write(await ctx.http.read_chunk())
        return {}


class MultipartForm:
    """A multipart form: the fields are collected, and the file is passed on as it arrives."""

    def __init__(self, boundary: bytes, fields: frozenset[str]) -> None:
        self.file_name = ""
        self._allowed = fields
        self._fields: dict[str, list[str]] = {}
        self._has_file = False
        self._is_complete = False
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = b"", b""
        self._name = ""  # of the part that is arriving
        self._text = bytearray()
        self._size = 0
        self._parts = 0
        self._chunks: list[bytes] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._read_header,
                "on_header_value": self._read_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_part,
                "on_part_data": self._read,
                "on_part_end": self._close_part,
                "on_end": self._end,
            },
        )
        self._parser.logger = _SILENT_LOGGER

    @classmethod
    def of(cls, ctx: RequestContext, fields: frozenset[str]) -> "MultipartForm":
        """Return the form of a request with an unread body."""
        ctx.http.check_length(ctx.app.settings.max_file_bytes + MAX_FORM_OVERHEAD_BYTES)
        return cls(_boundary(ctx.http), fields)

    async def write_to(self, ctx: RequestContext, incoming: IncomingFile) -> dict[str, Any]:
        """Store the file as it arrives; return the fields as they would be in JSON."""
        received, max_bytes = 0, ctx.app.settings.max_file_bytes + MAX_FORM_OVERHEAD_BYTES
        while not ctx.http.is_read:
            chunk = await ctx.http.read_chunk()
            received += len(chunk)
            if received > max_bytes:
                raise TooLarge(f"The form is larger than {max_bytes} bytes.")
            await incoming.write(self.feed(chunk))
        self.finish()
        arguments = self.arguments()
        ctx.note_arguments(arguments)
        return arguments

    def feed(self, chunk: bytes) -> bytes:
        """Parse a chunk of the form. Return the bytes of the file in it."""
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise BadRequest("The form cannot be read.", remedy="Let your client encode it.") from None
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)  # the parser splits the file at bytes that resemble a boundary

    def finish(self) -> None:
        """Check that the form is complete."""
        if not self._is_complete:
            raise BadRequest("The form ends before its last boundary.", remedy="Send it again.")
        if not self._has_file:
            raise BadRequest(f"The form has no part named '{FILE_PART}'.", remedy="Send the content in one.")

    def arguments(self) -> dict[str, Any]:
        """Return the fields as they would be in JSON."""
        arguments: dict[str, Any] = {name: values[0] for name, values in self._fields.items()}
        if "tags" in arguments:
            arguments["tags"] = self._fields["tags"]
        if _NUMBER.fullmatch(arguments.get("folder_id", "")):
            arguments["folder_id"] = int(arguments["folder_id"])
        return arguments | {name: _value(name, arguments[name]) for name in _JSON_FIELDS if name in arguments}

    def _begin_part(self) -> None:
        self._headers = {}
        self._parts += 1
        if self._parts > MAX_FORM_PARTS:
            raise BadRequest(f"A form has at most {MAX_FORM_PARTS} parts.")

    def _read_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _read_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header, self._value = b"", b""

    def _open_part(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or self._headers.get(b"content-transfer-encoding", b"").lower() not in _UNENCODED:
            raise BadRequest("A part of the form is not plain form data.", remedy="Let your client encode it.")
        self._name = _text(options.get(b"name", b""))
        if self._name == FILE_PART:
            if self._has_file:
                raise BadRequest("The form has two files.", remedy="Send each in a request of its own.")
            self._has_file = True
            # Some clients, and attackers, send a whole path.
            self.file_name = _file_name(_text(options.get(b"filename", b"")))
        elif self._name not in self._allowed:
            allowed = ", ".join([FILE_PART, *sorted(self._allowed)])
            raise BadRequest(f"{self._name[:60]}: is not a field of this form.", remedy=f"The parts are: {allowed}.")
        elif self._name in self._fields and self._name != "tags":
            raise BadRequest(f"{self._name}: appears more than once.", remedy="Send it once.")

    def _read(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE_PART:
            self._chunks.append(data[start:end])
            return
        self._size += end - start
        if self._size > MAX_FIELD_BYTES:
            raise TooLarge(f"The fields of a form may have {MAX_FIELD_BYTES} bytes in total.")
        self._text += data[start:end]

    def _close_part(self) -> None:
        if self._name != FILE_PART:
            self._fields.setdefault(self._name, []).append(_text(bytes(self._text)))
            self._text.clear()

    def _end(self) -> None:
        self._is_complete = True


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("A name or field of the form is not valid UTF-8.", remedy="Encode it as UTF-8.") from None


def _value(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRequest(f"{name}: is not valid JSON.", remedy="Send JSON as text.") from None


def _file_name(path: str) -> str:
    """Return the last part of a path, with the three characters that forms escape restored."""
    last = path.replace("\\", "/").rpartition("/")[2]
    return last.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _boundary(http: HttpExchange) -> bytes:
    boundary = parse_options_header(http.headers[b"content-type"])[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:  # RFC 2046
        raise BadRequest("The form has no boundary, or one that is too long.", remedy="Let your client set it.")
    return boundary
