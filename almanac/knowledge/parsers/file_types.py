"""What a file is, decided from what is in it.

The name only breaks ties between texts: no content tells a Markdown file from a plain one, but a program named
`report.pdf` is still a program. Looking is cheap and safe wherever it is done: the first 64 KB are compared with a
table, and of an archive or a compound file the names of its entries are read, up to a limit.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from almanac.knowledge.parsers import archives
from almanac.knowledge.parsers.text import encodings

SNIFF_BYTES = 64 * 1024

SourceType = Literal["file", "text", "table", "web", "code"]


@dataclass(frozen=True, slots=True)
class FileType:
    """A kind of file."""

    mime_type: str
    source_type: SourceType
    extension: str  # without a dot
    parser: str = ""  # the module beside this one that reads it; empty for what is not read
    code: str = ""  # of a kind that is not read: why, and a sentence that says what to do
    advice: str = ""


def _refused(mime_type: str, extension: str, advice: str, code: str = "unsupported_format") -> FileType:
    return FileType(mime_type, "file", extension, code=code, advice=advice)


_OOXML = "application/vnd.openxmlformats-officedocument."
_ODF = "application/vnd.oasis.opendocument."

_ARCHIVE = "The file is an archive; unpack it and add the files in it."
_PROGRAM = "The file is a program or a library, which has no text to read."
_SOUND = "The file is a recording; add its transcript as text."
_FILM = "The file is a film; add its transcript or subtitles as text."
_FONT = "The file is a font, which has no text to read."
_DATABASE = "The file is a database or a data set; export what matters as CSV and add that."
_APPLE = "The file is an Apple iWork document; export it as PDF, DOCX or XLSX and add that."
_PICTURE = "This kind of picture is not read; save it as PNG or JPEG and add it again."
_OLD_OFFICE = "The file is in an old Office format; save it as {} and add it again."

PDF = FileType("application/pdf", "file", "pdf", "pdf.pdf")
DOCX = FileType(_OOXML + "wordprocessingml.document", "file", "docx", "office.docx")
PPTX = FileType(_OOXML + "presentationml.presentation", "file", "pptx", "office.pptx")
XLSX = FileType(_OOXML + "spreadsheetml.sheet", "table", "xlsx", "office.spreadsheets")
XLSB = FileType("application/vnd.ms-excel.sheet.binary.macroenabled.12", "table", "xlsb", "office.spreadsheets")
XLS = FileType("application/vnd.ms-excel", "table", "xls", "office.spreadsheets")
EPUB = FileType("application/epub+zip", "file", "epub", "web.epub")
RTF = FileType("application/rtf", "file", "rtf", "office.rtf")
HTML = FileType("text/html", "web", "html", "web.html_page")
XML = FileType("application/xml", "file", "xml", "web.xml_file")
SVG = FileType("image/svg+xml", "file", "svg", "web.xml_file")
MAIL = FileType("message/rfc822", "file", "eml", "web.mail")
JSON = FileType("application/json", "file", "json", "data.json_file")
JSONL = FileType("application/jsonl", "file", "jsonl", "data.json_file")
NOTEBOOK = FileType("application/x-ipynb+json", "code", "ipynb", "data.notebook")
CSV = FileType("text/csv", "table", "csv", "data.csv_file")
TSV = FileType("text/tab-separated-values", "table", "tsv", "data.csv_file")
MARKDOWN = FileType("text/markdown", "text", "md", "text.markdown")
PLAIN = FileType("text/plain", "text", "txt", "text.plain_text")
POSTSCRIPT = _refused("application/postscript", "ps", "PostScript is not read; save the file as PDF and add that.")
ZIP = _refused("application/zip", "zip", _ARCHIVE)
OLE = _refused(
    "application/x-ole-storage",
    "ole",
    "The file is in an old Office format that is not read. Save it as PDF, DOCX or text and add that.",
)
UNKNOWN = _refused(
    "application/octet-stream",
    "bin",
    "The file is in a format that is not read. Save it as PDF, DOCX or text and add that.",
)
ENCRYPTED_OFFICE = _refused("application/x-ole-storage", "ole", archives.ENCRYPTED, "encrypted")

# Tried in this order on the first bytes. A dot stands for any byte.
_SIGNATURES: tuple[tuple[bytes, FileType], ...] = (
    (rb"(?:\xef\xbb\xbf)?\s{0,64}%PDF-\d", PDF),
    (rb"PK\x03\x04|PK\x05\x06|PK\x07\x08", ZIP),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLE),
    (rb"\{\\rtf", RTF),
    (rb"\x89PNG\r\n\x1a\n", FileType("image/png", "file", "png", "pdf.ocr")),
    (rb"\xff\xd8\xff", FileType("image/jpeg", "file", "jpg", "pdf.ocr")),
    (rb"GIF8[79]a", FileType("image/gif", "file", "gif", "pdf.ocr")),
    (rb"RIFF....WEBP", FileType("image/webp", "file", "webp", "pdf.ocr")),
    (rb"II[*+]\x00|MM\x00[*+]", FileType("image/tiff", "file", "tiff", "pdf.ocr")),
    (rb"BM....\x00\x00\x00\x00", FileType("image/bmp", "file", "bmp", "pdf.ocr")),
    (rb"\x00\x00[\x01\x02]\x00[\x01-\x40]\x00", _refused("image/vnd.microsoft.icon", "ico", _PICTURE)),
    (rb"8BPS\x00", _refused("image/vnd.adobe.photoshop", "psd", _PICTURE)),
    (rb"....ftyp(?:hei[cfmsx]|mif1|msf1|avi[fs])", _refused("image/heic", "heic", _PICTURE)),
    (rb"AT&TFORM", _refused("image/vnd.djvu", "djvu", "DjVu is not read; save the file as PDF and add that.")),
    (rb"%!PS-Adobe", POSTSCRIPT),
    (rb".{60}BOOKMOBI", _refused("application/x-mobipocket-ebook", "mobi", "Save the book as EPUB and add that.")),
    (rb"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d", _refused("application/onenote", "one", "Export the notes as PDF or DOCX.")),
    (rb"\x7fELF", _refused("application/x-executable", "elf", _PROGRAM)),
    (rb"MZ.{28}", _refused("application/vnd.microsoft.portable-executable", "exe", _PROGRAM)),
    (rb"\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe", _refused("application/x-mach-binary", "macho", _PROGRAM)),
    (rb"\xca\xfe\xba\xbe", _refused("application/java-vm", "class", _PROGRAM)),
    (rb"\x00asm", _refused("application/wasm", "wasm", _PROGRAM)),
    (rb"dex\n03", _refused("application/vnd.android.dex", "dex", _PROGRAM)),
    (rb"\x1f\x8b", _refused("application/gzip", "gz", "The file is compressed; unpack it and add what is in it.")),
    (rb"BZh[1-9]1AY&SY", _refused("application/x-bzip2", "bz2", _ARCHIVE)),
    (rb"\xfd7zXZ\x00", _refused("application/x-xz", "xz", _ARCHIVE)),
    (rb"\x28\xb5\x2f\xfd", _refused("application/zstd", "zst", _ARCHIVE)),
    (rb"\x04\x22\x4d\x18", _refused("application/x-lz4", "lz4", _ARCHIVE)),
    (rb"7z\xbc\xaf\x27\x1c", _refused("application/x-7z-compressed", "7z", _ARCHIVE)),
    (rb"Rar!\x1a\x07", _refused("application/vnd.rar", "rar", _ARCHIVE)),
    (rb"MSCF\x00\x00\x00\x00", _refused("application/vnd.ms-cab-compressed", "cab", _ARCHIVE)),
    (rb"!<arch>\n", _refused("application/x-archive", "ar", _ARCHIVE)),
    (rb"\xed\xab\xee\xdb", _refused("application/x-rpm", "rpm", _ARCHIVE)),
    (rb".{257}ustar", _refused("application/x-tar", "tar", _ARCHIVE)),
    (rb"ID3|\xff[\xfb\xf3\xf2][\x10-\xef]", _refused("audio/mpeg", "mp3", _SOUND)),
    (rb"fLaC", _refused("audio/flac", "flac", _SOUND)),
    (rb"OggS", _refused("audio/ogg", "ogg", _SOUND)),
    (rb"RIFF....WAVE", _refused("audio/wav", "wav", _SOUND)),
    (rb"....ftypM4A", _refused("audio/mp4", "m4a", _SOUND)),
    (rb"MThd\x00\x00\x00\x06", _refused("audio/midi", "mid", _SOUND)),
    (rb"#!AMR", _refused("audio/amr", "amr", _SOUND)),
    (rb"RIFF....AVI ", _refused("video/x-msvideo", "avi", _FILM)),
    (rb"....(?:ftyp|moov|mdat)", _refused("video/mp4", "mp4", _FILM)),
    (rb"\x1a\x45\xdf\xa3", _refused("video/x-matroska", "mkv", _FILM)),
    (rb"FLV\x01", _refused("video/x-flv", "flv", _FILM)),
    (rb"\x00\x00\x01[\xb3\xba]", _refused("video/mpeg", "mpg", _FILM)),
    (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", _refused("video/x-ms-asf", "wmv", _FILM)),
    (rb"wOF[F2]|OTTO\x00|\x00\x01\x00\x00\x00[\x01-\x40]|ttcf\x00", _refused("font/sfnt", "ttf", _FONT)),
    (rb"SQLite format 3\x00", _refused("application/vnd.sqlite3", "sqlite", _DATABASE)),
    (rb"PAR1", _refused("application/vnd.apache.parquet", "parquet", _DATABASE)),
    (rb"ARROW1\x00", _refused("application/vnd.apache.arrow.file", "arrow", _DATABASE)),
    (rb"\x89HDF\r\n\x1a\n", _refused("application/x-hdf5", "h5", _DATABASE)),
    (rb"\x00\x01\x00\x00Standard (?:Jet|ACE) DB", _refused("application/x-msaccess", "mdb", _DATABASE)),
)
_BINARY = tuple((re.compile(pattern, re.DOTALL), kind) for pattern, kind in _SIGNATURES)

# What the `mimetype` entry of an archive begins with, the longest first.
_MIMETYPES: tuple[tuple[str, FileType], ...] = (
    ("application/epub+zip", EPUB),
    (_ODF + "text", FileType(_ODF + "text", "file", "odt", "office.opendocument")),
    (_ODF + "presentation", FileType(_ODF + "presentation", "file", "odp", "office.opendocument")),
    (_ODF + "graphics", FileType(_ODF + "graphics", "file", "odg", "office.opendocument")),
    (_ODF + "spreadsheet", FileType(_ODF + "spreadsheet", "table", "ods", "office.spreadsheets")),
    (_ODF, _refused(_ODF + "other", "odf", "This kind of OpenDocument is not read; save it as PDF and add that.")),
)

# What an entry of an archive begins with, the telling ones first.
_ENTRIES: tuple[tuple[str, FileType], ...] = (
    ("xl/workbook.bin", XLSB),
    ("word/", DOCX),
    ("ppt/", PPTX),
    ("xl/", XLSX),
    ("META-INF/container.xml", EPUB),
    ("Index/Document.iwa", _refused("application/vnd.apple.iwork", "iwork", _APPLE)),
    ("Index.zip", _refused("application/vnd.apple.iwork", "iwork", _APPLE)),
    ("visio/", _refused("application/vnd.ms-visio.drawing", "vsdx", "Visio is not read; save the file as PDF.")),
    ("FixedDocumentSequence.fdseq", _refused("application/oxps", "xps", "XPS is not read; save the file as PDF.")),
    ("AndroidManifest.xml", _refused("application/vnd.android.package-archive", "apk", _PROGRAM)),
    ("META-INF/MANIFEST.MF", _refused("application/java-archive", "jar", _PROGRAM)),
)

# The stream by which a compound file shows what it is.
_STREAMS: tuple[tuple[str, FileType], ...] = (
    ("EncryptedPackage", ENCRYPTED_OFFICE),
    ("EncryptionInfo", ENCRYPTED_OFFICE),
    ("WordDocument", _refused("application/msword", "doc", _OLD_OFFICE.format("DOCX"))),
    ("PowerPoint Document", _refused("application/vnd.ms-powerpoint", "ppt", _OLD_OFFICE.format("PPTX"))),
    ("__properties_version1.0", _refused("application/vnd.ms-outlook", "msg", "Save the message as EML and add that.")),
    ("VisioDocument", _refused("application/vnd.visio", "vsd", "Visio is not read; save the file as PDF.")),
    ("Workbook", XLS),
    ("Book", XLS),
)

_TEXTS: dict[str, FileType] = {
    **{extension: FileType("text/plain", "text", extension, "text.plain_text") for extension in (
        "txt", "text", "log", "rst", "adoc", "asciidoc", "org", "tex", "bib", "srt", "vtt", "ini", "cfg", "conf",
        "toml", "yaml", "yml", "properties", "env", "diff", "patch", "po",
    )},
    **dict.fromkeys(("md", "markdown", "mdown", "mkd", "mdx", "qmd", "rmd"), MARKDOWN),
    **dict.fromkeys(("html", "htm", "xhtml", "shtml"), HTML),
    **dict.fromkeys(("jsonl", "ndjson", "jsonlines"), JSONL),
    **dict.fromkeys(("tsv", "tab"), TSV),
    **dict.fromkeys(("xml", "xsd", "xsl", "xslt", "rss", "atom", "kml", "gpx", "plist", "resx", "xliff"), XML),
    "csv": CSV,
    "json": JSON,
    "geojson": JSON,
    "ipynb": NOTEBOOK,
    "eml": MAIL,
    "svg": SVG,
}  # fmt: skip

_CODE_TYPES: dict[str, tuple[str, ...]] = {
    "text/x-python": ("py", "pyi", "pyw"),
    "text/javascript": ("js", "mjs", "cjs", "jsx"),
    "text/x-typescript": ("ts", "tsx", "mts", "cts"),
    "text/x-java": ("java",),
    "text/x-c": ("c", "h"),
    "text/x-c++": ("cc", "cpp", "cxx", "hh", "hpp", "hxx", "ino"),
    "text/x-csharp": ("cs",),
    "text/x-go": ("go",),
    "text/x-rust": ("rs",),
    "text/x-ruby": ("rb", "rake", "gemspec"),
    "text/x-php": ("php", "phtml"),
    "text/x-kotlin": ("kt", "kts"),
    "text/x-swift": ("swift",),
    "text/x-scala": ("scala", "sc"),
    "application/sql": ("sql", "ddl"),
    "application/x-sh": ("sh", "bash", "zsh", "ksh"),
    "text/x-perl": ("pl", "pm"),
    "text/x-lua": ("lua",),
    "text/x-r": ("r",),
    "text/css": ("css", "scss", "less"),
    "text/x-source": (
        "dart", "ex", "exs", "erl", "hs", "ml", "clj", "groovy", "gradle", "m", "mm", "jl", "nim", "zig", "vb", "fs",
        "ps1", "bat", "cmd", "vue", "svelte", "proto", "graphql", "tf", "hcl", "cmake", "mk", "dockerfile", "makefile",
        "asm", "s", "v", "sv", "vhd", "sol",
    ),
}  # fmt: skip
_NAMED: dict[str, FileType] = _TEXTS | {
    extension: FileType(mime_type, "code", extension, "text.source_code")
    for mime_type, extensions in _CODE_TYPES.items()
    for extension in extensions
}

_KINDS = {kind for table in (_SIGNATURES, _MIMETYPES, _ENTRIES, _STREAMS) for _, kind in table} | {*_NAMED.values()}
PARSERS = {kind.parser for kind in _KINDS} - {""}

_SHEBANGS = {
    "python": "py",
    "node": "js",
    "ruby": "rb",
    "perl": "pl",
    "php": "php",
    "bash": "sh",
    "sh": "sh",
    "zsh": "sh",
}

# Atomic, because the server itself looks: a comment ends at its first end, or a hundred of them take for ever.
_COMMENT = r"(?><!--.{0,4000}?-->)\s*+"
_COMMENTS = rf"\s*+(?:(?><\?[^>]{{0,500}}\?>)\s*+|{_COMMENT}|(?><!DOCTYPE[^>\[]{{0,500}}>)\s*+){{0,20}}+"
_HTML = re.compile(rf"\s*+(?:{_COMMENT}){{0,20}}+<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_XHTML = re.compile(_COMMENTS + r"<html\b", re.I | re.S)
_SVG = re.compile(_COMMENTS + r"<svg\b", re.I | re.S)
_XML = re.compile(r"\s*<\?xml\s")
_JSON = re.compile(r'\s*(?:\{\s*(?:"|\}|$)|\[\s*(?:["\[{\d\]-]|true|false|null|$))')
_NOTEBOOK = re.compile(r'\s*\{.{0,60000}"(?:nbformat|cells|cell_type)"\s*:', re.S)
_HEADERS = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]{0,60}+:[^\n]*+\n(?:[ \t][^\n]*+\n){0,200}+){1,200}+\n?")
_MAIL = re.compile(r"^(from|to|subject|date|message-id|received|mime-version|return-path|delivered-to):", re.I | re.M)
_ANY_TAG = re.compile(r"<[a-z!?/]", re.I)
_HEADING = re.compile(r"^#{1,4} \S", re.M)
_MARKS = re.compile(r"^(?:[-*] |\d+\. |```|> |\|)|\*\*\S|\]\(", re.M)
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a]")
_LATE_PDF = re.compile(rb".{1,1024}?%PDF-\d", re.DOTALL)


def detect_file_type(content: bytes | Path, name: str) -> FileType:
    """What a file is. Of bytes, the first 64 KB are enough, though some archives then stay plain archives."""
    head = content[:SNIFF_BYTES] if isinstance(content, bytes) else _head(content)
    found, is_certain = _by_signature(head)
    if found is ZIP:
        return _in_archive(content)
    if found is OLE:
        return _in_compound(content)
    if found and (is_certain or found in (PDF, RTF, POSTSCRIPT) or not encodings.is_text(head)):
        return found  # a text may begin with `ID3` or `MZ`, but only these three are texts themselves
    if encodings.is_text(head):
        return _of_text(_as_text(head), name)
    return PDF if _LATE_PDF.match(head) else UNKNOWN


def _by_signature(head: bytes) -> tuple[FileType | None, bool]:
    """The kind that a signature shows, and whether no text could begin with it."""
    matches = ((pattern.match(head), kind) for pattern, kind in _BINARY)
    found, kind = next(((match, kind) for match, kind in matches if match), (None, None))
    return kind, found is not None and _CONTROL.search(found[0]) is not None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(SNIFF_BYTES)


def _in_archive(content: bytes | Path) -> FileType:
    listing = archives.list_archive(content)
    if listing.mimetype:
        return next((kind for prefix, kind in _MIMETYPES if listing.mimetype.startswith(prefix)), ZIP)
    return next((k for prefix, k in _ENTRIES if any(name.startswith(prefix) for name in listing.names)), ZIP)


def _in_compound(content: bytes | Path) -> FileType:
    return next((kind for stream, kind in _STREAMS if archives.has_stream(content, stream)), OLE)


def _as_text(head: bytes) -> str:
    """Enough to recognise markup, which is ASCII in every encoding that has no mark."""
    return head.decode(encodings.marked(head) or "latin-1", "replace").lstrip("\ufeff").replace("\r\n", "\n")


def _of_text(text: str, name: str) -> FileType:
    named = _NAMED.get(extension_of(name))
    if named is None or named.parser in ("text.plain_text", "text.markdown"):
        return _by_look(text, named)
    if named.parser == "data.json_file":
        return _records(text, named)
    if named is HTML or named is XML:
        return _markup(text) or named if _ANY_TAG.search(text) else PLAIN
    return named


def extension_of(name: str) -> str:
    """The extension of a name, in lower case and without its dot; of `Makefile` and its like, the name."""
    plain = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return plain.rpartition(".")[2] if "." in plain else plain


def _by_look(text: str, named: FileType | None) -> FileType:
    """A text whose name says little: what it begins with decides, if that is unmistakable."""
    found = _markup(text) or (MAIL if _is_mail(text) else None)
    if found or named:
        return found or named or PLAIN
    if text.startswith("#!"):
        return _NAMED[_SHEBANGS.get(_interpreter(text), "sh")]
    if _JSON.match(text):
        return _records(text, PLAIN)
    if _HEADING.search(text) and _MARKS.search(text):
        return MARKDOWN
    return _delimited(text) or PLAIN


def _markup(text: str) -> FileType | None:
    if _HTML.match(text) or _XHTML.match(text):
        return HTML
    if _SVG.match(text):
        return SVG
    return XML if _XML.match(text) else None


def _is_mail(text: str) -> bool:
    headers = _HEADERS.match(text)
    return headers is not None and len({found.lower() for found in _MAIL.findall(headers[0])}) >= 2


def _interpreter(text: str) -> str:
    words = re.findall(r"[a-z]+", text.partition("\n")[0].rpartition("/")[2])
    return next((word for word in words if word in _SHEBANGS), "")


def _records(text: str, otherwise: FileType) -> FileType:
    """JSON, JSON lines or a notebook: they share their extensions more often than not."""
    lines = [line for line in text.split("\n", 6) if line.strip()]
    whole = lines[:-1] if len(lines) > 1 else lines  # the last may be cut
    if len(lines) > 1 and all(_is_record(line) for line in whole):
        return JSONL
    if otherwise is NOTEBOOK or _NOTEBOOK.match(text):
        return NOTEBOOK
    return JSON if _JSON.match(text) and otherwise is not JSONL else otherwise


def _is_record(line: str) -> bool:
    try:
        return isinstance(orjson.loads(line), dict | list)
    except orjson.JSONDecodeError:
        return False


def _delimited(text: str) -> FileType | None:
    """A table without a name to say so: every line has as many delimiters, and there are enough lines to tell."""
    lines = text.split("\n")[:-1][:50]
    for delimiter, kind in (("\t", TSV), (";", CSV), (",", CSV)):
        counts = {line.count(delimiter) for line in lines}
        if len(lines) >= 4 and len(counts) == 1 and counts.pop() >= 2:
            return kind
    return None
