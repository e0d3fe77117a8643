"""Uploads: the file in a request's body is stored chunk by chunk and is never whole in memory."""

import logging
import re
from typing import Any

import orjson
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from almanac.core.errors import BadRequest, TooLarge
from almanac.knowledge.files import IncomingFile
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import RequestContext

FORM = b"multipart/form-data"
FILE = "file"

_MOST_PARTS = 100
_MOST_FIELDS = 64 * 1024  # bytes of all fields but the file
_FRAME = 256 * 1024  # bytes that a form may have around its file
# The parser logs what it stumbled over, and that is somebody's document.
_SILENT = logging.Logger("uploads", logging.CRITICAL + 1)
_NUMBER = re.compile(r"[0-9]{1,19}")
_PLAIN = (b"", b"7bit", b"8bit", b"binary")
_JSON = ("metadata", "annotations", "entities")  # fields that are JSON as text


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
    """A form as it arrives: it keeps the fields and passes on the file."""

    def __init__(self, boundary: bytes, fields: frozenset[str]) -> None:
        self.file_name = ""
        self._allowed = fields
        self._fields: dict[str, list[str]] = {}
        self._has_file = False
        self._is_over = False
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = b"", b""
        self._name = ""  # of the part that is arriving
        self._text = bytearray()
        self._size = 0
        self._parts = 0
        self._pieces: list[bytes] = []
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._read_header,
                "on_header_value": self._read_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._open,
                "on_part_data": self._read,
                "on_part_end": self._close,
                "on_end": self._end,
            },
        )
        self._parser.logger = _SILENT

    @classmethod
    def of(cls, ctx: RequestContext, fields: frozenset[str]) -> "MultipartForm":
        """Return the form of a request, of which nothing has been read yet."""
        ctx.http.check_length(ctx.app.settings.max_file_bytes + _FRAME)
        return cls(_boundary(ctx.http), fields)

    async def write_to(self, ctx: RequestContext, incoming: IncomingFile) -> dict[str, Any]:
        """Store the file as it arrives; return the fields as they would be in JSON."""
        received, max_bytes = 0, ctx.app.settings.max_file_bytes + _FRAME
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

    def feed(self, piece: bytes) -> bytes:
        """Take in a piece of the form; what of the file is in it."""
        try:
            self._parser.write(piece)
        except FormParserError:
            raise BadRequest("The form cannot be read.", remedy="Let your client encode it.") from None
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)  # the parser cuts wherever something looks like a boundary

    def finish(self) -> None:
        """That was all: make sure that it is."""
        if not self._is_over:
            raise BadRequest("The form ends before its last boundary.", remedy="Send it again.")
        if not self._has_file:
            raise BadRequest(f"The form has no part named '{FILE}'.", remedy="Send the content in one.")

    def arguments(self) -> dict[str, Any]:
        """The fields as they would be in JSON."""
        found: dict[str, Any] = {name: values[0] for name, values in self._fields.items()}
        if "tags" in found:
            found["tags"] = self._fields["tags"]
        if _NUMBER.fullmatch(found.get("folder_id", "")):
            found["folder_id"] = int(found["folder_id"])
        return found | {name: _value(name, found[name]) for name in _JSON if name in found}

    def _begin(self) -> None:
        self._headers = {}
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise BadRequest(f"A form has at most {_MOST_PARTS} parts.")

    def _read_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _read_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header, self._value = b"", b""

    def _open(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or self._headers.get(b"content-transfer-encoding", b"").lower() not in _PLAIN:
            raise BadRequest("A part of the form is not plain form data.", remedy="Let your client encode it.")
        self._name = _text(options.get(b"name", b""))
        if self._name == FILE:
            if self._has_file:
                raise BadRequest("The form has two files.", remedy="Send each in a request of its own.")
            self._has_file = True
            # Some clients send a whole path, and whoever is hostile does.
            self.file_name = _file_name(_text(options.get(b"filename", b"")))
        elif self._name not in self._allowed:
            taken = ", ".join([FILE, *sorted(self._allowed)])
            raise BadRequest(f"{self._name[:60]}: is not a field of this form.", remedy=f"The parts are: {taken}.")
        elif self._name in self._fields and self._name != "tags":
            raise BadRequest(f"{self._name}: appears more than once.", remedy="Send it once.")

    def _read(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._pieces.append(data[start:end])
            return
        self._size += end - start
        if self._size > _MOST_FIELDS:
            raise TooLarge(f"The fields of a form may have {_MOST_FIELDS} bytes.")
        self._text += data[start:end]

    def _close(self) -> None:
        if self._name != FILE:
            self._fields.setdefault(self._name, []).append(_text(bytes(self._text)))
            self._text.clear()

    def _end(self) -> None:
        self._is_over = True


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("A name or field of the form is not valid UTF-8.", remedy="Encode it so.") from None


def _value(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRequest(f"{name}: is not valid JSON.", remedy="Send JSON as text.") from None


def _file_name(sent: str) -> str:
    """The last part of a path, with the three characters that forms escape as they were."""
    last = sent.replace("\\", "/").rpartition("/")[2]
    return last.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


def _boundary(http: HttpExchange) -> bytes:
    boundary = parse_options_header(http.headers[b"content-type"])[1].get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:  # RFC 2046
        raise BadRequest("The form has no boundary, or one that is too long.", remedy="Let your client set it.")
    return boundary
