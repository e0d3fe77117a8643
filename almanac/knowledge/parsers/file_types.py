"""Detection of file types from the content of files.

The name only decides between types of text: no content tells a Markdown file from a plain one, but a program named
`report.pdf` is still a program. Detection is cheap and safe, so it needs no sandbox: it compares the first 64 KB with a
table, and reads the names of the entries of an archive or a compound file, up to a limit.
"""

import re
from pathlib import Path

import orjson

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers import file_signatures as types
from almanac.knowledge.parsers.file_signatures import FileType
from almanac.knowledge.parsers.text import encodings

SNIFF_BYTES = 64 * 1024  # the length of `StoredFile.head`

_EXTENSION_BY_INTERPRETER = {
    "python": "py",
    "node": "js",
    "ruby": "rb",
    "perl": "pl",
    "php": "php",
    "bash": "sh",
    "sh": "sh",
    "zsh": "sh",
}

# Atomic groups, because these patterns run in the server: with backtracking, a hundred comments would take for ever.
_COMMENT = r"(?><!--.{0,4000}?-->)\s*+"
_COMMENTS = rf"\s*+(?:(?><\?[^>]{{0,500}}\?>)\s*+|{_COMMENT}|(?><!DOCTYPE[^>\[]{{0,500}}>)\s*+){{0,20}}+"
_HTML = re.compile(rf"\s*+(?:{_COMMENT}){{0,20}}+<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_XHTML = re.compile(_COMMENTS + r"<html\b", re.I | re.S)
_SVG = re.compile(_COMMENTS + r"<svg\b", re.I | re.S)
_XML = re.compile(r"\s*<\?xml\s")
_JSON = re.compile(r'\s*(?:\{\s*(?:"|\}|$)|\[\s*(?:["\[{\d\]-]|true|false|null|$))')
_NOTEBOOK = re.compile(r'\s*\{.{0,60000}"(?:nbformat|cells|cell_type)"\s*:', re.S)
_MAIL_HEADERS = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]{0,60}+:[^\n]*+\n(?:[ \t][^\n]*+\n){0,200}+){1,200}+\n?")
_KNOWN_HEADERS = re.compile(
    r"^(from|to|subject|date|message-id|received|mime-version|return-path|delivered-to):", re.I | re.M
)
_ANY_TAG = re.compile(r"<[a-z!?/]", re.I)
_MARKDOWN_HEADING = re.compile(r"^#{1,4} \S", re.M)
_MARKDOWN_MARKS = re.compile(r"^(?:[-*] |\d+\. |```|> |\|)|\*\*\S|\]\(", re.M)
_CONTROL_BYTE = re.compile(rb"[\x00-\x06\x0e-\x1a]")
_PDF_AFTER_PREFIX = re.compile(rb".{1,1024}?%PDF-\d", re.DOTALL)


def detect_file_type(content: bytes | Path, name: str) -> FileType:
    """The type of a file. Of bytes, the first 64 KB are enough, but some Office files then count as plain archives."""
    head = content[:SNIFF_BYTES] if isinstance(content, bytes) else _read_head(content)
    file_type, is_certain = _by_signature(head)
    if file_type is types.ZIP:
        return _in_archive(content)
    if file_type is types.OLE:
        return next((t for stream, t in types.STREAMS if archives.has_stream(content, stream)), types.OLE)
    if file_type and (
        is_certain or file_type in (types.PDF, types.RTF, types.POSTSCRIPT) or not encodings.is_text(head)
    ):
        return file_type  # a text may begin with `ID3` or `MZ`, but only these three formats are text themselves
    if encodings.is_text(head):
        return _type_of_text(_decode_head(head), name)
    return types.PDF if _PDF_AFTER_PREFIX.match(head) else types.UNKNOWN


def _by_signature(head: bytes) -> tuple[FileType | None, bool]:
    """The type that a signature shows, and whether no text could begin with this signature."""
    for pattern, file_type in types.SIGNATURES:
        if match := pattern.match(head):
            return file_type, _CONTROL_BYTE.search(match[0]) is not None
    return None, False


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SNIFF_BYTES)


def _in_archive(content: bytes | Path) -> FileType:
    mimetype, names = archives.list_archive(content)
    if mimetype:
        return next((t for prefix, t in types.MIMETYPES if mimetype.startswith(prefix)), types.ZIP)
    return next((t for prefix, t in types.ENTRIES if any(name.startswith(prefix) for name in names)), types.ZIP)


def _decode_head(head: bytes) -> str:
    """Text in which markup can be recognised: it is ASCII in every encoding that needs no mark."""
    return head.decode(encodings.marked_encoding(head) or "latin-1", "replace").lstrip("\ufeff").replace("\r\n", "\n")


def _type_of_text(text: str, name: str) -> FileType:
    by_name = types.BY_EXTENSION.get(extension_of(name))
    if by_name is None or by_name.parser in ("text.plain_text", "text.markdown"):
        return _by_content(text, by_name)
    if by_name.parser == "data.json_file":
        return _json_type(text, by_name)
    if by_name is types.HTML or by_name is types.XML:
        return _markup_type(text) or by_name if _ANY_TAG.search(text) else types.PLAIN
    return by_name


def extension_of(name: str) -> str:
    """The extension of a name, in lower case and without its dot; of names such as `Makefile`, the whole name."""
    basename = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return basename.rpartition(".")[2] if "." in basename else basename


def _by_content(text: str, by_name: FileType | None) -> FileType:
    """The type of a text whose name shows little: the content decides if it is unmistakable."""
    file_type = _markup_type(text) or (types.MAIL if _is_mail(text) else None) or by_name
    if file_type:
        return file_type
    if text.startswith("#!"):
        return types.BY_EXTENSION[_EXTENSION_BY_INTERPRETER.get(_interpreter(text), "sh")]
    if _JSON.match(text):
        return _json_type(text, types.PLAIN)
    if _MARKDOWN_HEADING.search(text) and _MARKDOWN_MARKS.search(text):
        return types.MARKDOWN
    return _table_type(text) or types.PLAIN


def _markup_type(text: str) -> FileType | None:
    if _HTML.match(text) or _XHTML.match(text):
        return types.HTML
    if _SVG.match(text):
        return types.SVG
    return types.XML if _XML.match(text) else None


def _is_mail(text: str) -> bool:
    headers = _MAIL_HEADERS.match(text)
    return headers is not None and len({name.lower() for name in _KNOWN_HEADERS.findall(headers[0])}) >= 2


def _interpreter(text: str) -> str:
    words = re.findall(r"[a-z]+", text.partition("\n")[0].rpartition("/")[2])
    return next((word for word in words if word in _EXTENSION_BY_INTERPRETER), "")


def _json_type(text: str, default: FileType) -> FileType:
    """JSON, JSON lines or a notebook; the extension often fits another of the three."""
    lines = [line for line in text.split("\n", 6) if line.strip()]
    whole_lines = lines[:-1] if len(lines) > 1 else lines  # the last line may be cut off
    if len(lines) > 1 and all(_is_record(line) for line in whole_lines):
        return types.JSONL
    if default is types.NOTEBOOK or _NOTEBOOK.match(text):
        return types.NOTEBOOK
    return types.JSON if _JSON.match(text) and default is not types.JSONL else default


def _is_record(line: str) -> bool:
    try:
        return isinstance(orjson.loads(line), dict | list)
    except orjson.JSONDecodeError:
        return False


def _table_type(text: str) -> FileType | None:
    """TSV or CSV, if there are at least four lines and all have the same number of delimiters."""
    lines = text.split("\n")[:-1][:50]
    for delimiter, file_type in (("\t", types.TSV), (";", types.CSV), (",", types.CSV)):
        counts = {line.count(delimiter) for line in lines}
        if len(lines) >= 4 and len(counts) == 1 and counts.pop() >= 2:
            return file_type
    return None
