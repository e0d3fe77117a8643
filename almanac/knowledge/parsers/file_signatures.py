"""The file types, and the signatures, names of archive entries and extensions by which files are recognised."""

import re
from dataclasses import dataclass
from typing import Literal

from almanac.knowledge.parsers import archives

SourceType = Literal["file", "text", "table", "web", "code"]


@dataclass(frozen=True, slots=True)
class FileType:
    """A type of file."""

    mime_type: str
    source_type: SourceType
    extension: str  # without a dot
    parser: str = ""  # the module in this package; empty for a type without a parser
    code: str = ""  # of a type without a parser: the error code
    advice: str = ""  # and a sentence with the reason and the remedy


def _unsupported(mime_type: str, extension: str, advice: str, code: str = "unsupported_format") -> FileType:
    return FileType(mime_type, "file", extension, code=code, advice=advice)


_OOXML = "application/vnd.openxmlformats-officedocument."
_ODF = "application/vnd.oasis.opendocument."

_ARCHIVE = "The file is an archive; unpack it and add the files that it contains."
_COMPRESSED = "The file is compressed; unpack it and add the file that it contains."
_PROGRAM = "The file is a program or a library, which contains no text."
_AUDIO = "The file is a recording; add its transcript as text."
_VIDEO = "The file is a video; add its transcript or subtitles as text."
_FONT = "The file is a font, which contains no text."
_DATABASE = "The file is a database or a data set; export the relevant tables as CSV and add those."
_APPLE = "The file is an Apple iWork document; export it as PDF, DOCX or XLSX and add that."
_IMAGE = "This image format is not supported; save the image as PNG or JPEG and add it again."
_NEEDS_PDF = "The file is in a format that is not supported; save it as PDF and add that."
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
POSTSCRIPT = _unsupported("application/postscript", "ps", _NEEDS_PDF)
ZIP = _unsupported("application/zip", "zip", _ARCHIVE)
OLE = _unsupported(
    "application/x-ole-storage",
    "ole",
    "The file is in an old Office format that is not supported. Save it as PDF, DOCX or text and add that.",
)
UNKNOWN = _unsupported(
    "application/octet-stream",
    "bin",
    "The file is in a format that is not supported. Save it as PDF, DOCX or text and add that.",
)
ENCRYPTED_OFFICE = _unsupported("application/x-ole-storage", "ole", archives.ENCRYPTED, "encrypted")

# Patterns of the first bytes, tried in this order. A dot stands for any byte.
_PATTERNS: tuple[tuple[bytes, FileType], ...] = (
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
    (rb"\x00\x00[\x01\x02]\x00[\x01-\x40]\x00", _unsupported("image/vnd.microsoft.icon", "ico", _IMAGE)),
    (rb"8BPS\x00", _unsupported("image/vnd.adobe.photoshop", "psd", _IMAGE)),
    (rb"....ftyp(?:hei[cfmsx]|mif1|msf1|avi[fs])", _unsupported("image/heic", "heic", _IMAGE)),
    (rb"AT&TFORM", _unsupported("image/vnd.djvu", "djvu", _NEEDS_PDF)),
    (rb"%!PS-Adobe", POSTSCRIPT),
    (rb".{60}BOOKMOBI", _unsupported("application/x-mobipocket-ebook", "mobi", "Save the book as EPUB and add that.")),
    (
        rb"\xe4\x52\x5c\x7b\x8c\xd8\xa7\x4d",
        _unsupported("application/onenote", "one", "Export the notes as PDF or DOCX."),
    ),
    (rb"\x7fELF", _unsupported("application/x-executable", "elf", _PROGRAM)),
    (rb"MZ.{28}", _unsupported("application/vnd.microsoft.portable-executable", "exe", _PROGRAM)),
    (rb"\xfe\xed\xfa[\xce\xcf]|[\xce\xcf]\xfa\xed\xfe", _unsupported("application/x-mach-binary", "macho", _PROGRAM)),
    (rb"\xca\xfe\xba\xbe", _unsupported("application/java-vm", "class", _PROGRAM)),
    (rb"\x00asm", _unsupported("application/wasm", "wasm", _PROGRAM)),
    (rb"dex\n03", _unsupported("application/vnd.android.dex", "dex", _PROGRAM)),
    (rb"\x1f\x8b", _unsupported("application/gzip", "gz", _COMPRESSED)),
    (rb"BZh[1-9]1AY&SY", _unsupported("application/x-bzip2", "bz2", _ARCHIVE)),
    (rb"\xfd7zXZ\x00", _unsupported("application/x-xz", "xz", _ARCHIVE)),
    (rb"\x28\xb5\x2f\xfd", _unsupported("application/zstd", "zst", _ARCHIVE)),
    (rb"\x04\x22\x4d\x18", _unsupported("application/x-lz4", "lz4", _ARCHIVE)),
    (rb"7z\xbc\xaf\x27\x1c", _unsupported("application/x-7z-compressed", "7z", _ARCHIVE)),
    (rb"Rar!\x1a\x07", _unsupported("application/vnd.rar", "rar", _ARCHIVE)),
    (rb"MSCF\x00\x00\x00\x00", _unsupported("application/vnd.ms-cab-compressed", "cab", _ARCHIVE)),
    (rb"!<arch>\n", _unsupported("application/x-archive", "ar", _ARCHIVE)),
    (rb"\xed\xab\xee\xdb", _unsupported("application/x-rpm", "rpm", _ARCHIVE)),
    (rb".{257}ustar", _unsupported("application/x-tar", "tar", _ARCHIVE)),
    (rb"ID3|\xff[\xfb\xf3\xf2][\x10-\xef]", _unsupported("audio/mpeg", "mp3", _AUDIO)),
    (rb"fLaC", _unsupported("audio/flac", "flac", _AUDIO)),
    (rb"OggS", _unsupported("audio/ogg", "ogg", _AUDIO)),
    (rb"RIFF....WAVE", _unsupported("audio/wav", "wav", _AUDIO)),
    (rb"....ftypM4A", _unsupported("audio/mp4", "m4a", _AUDIO)),
    (rb"MThd\x00\x00\x00\x06", _unsupported("audio/midi", "mid", _AUDIO)),
    (rb"#!AMR", _unsupported("audio/amr", "amr", _AUDIO)),
    (rb"RIFF....AVI ", _unsupported("video/x-msvideo", "avi", _VIDEO)),
    (rb"....(?:ftyp|moov|mdat)", _unsupported("video/mp4", "mp4", _VIDEO)),
    (rb"\x1a\x45\xdf\xa3", _unsupported("video/x-matroska", "mkv", _VIDEO)),
    (rb"FLV\x01", _unsupported("video/x-flv", "flv", _VIDEO)),
    (rb"\x00\x00\x01[\xb3\xba]", _unsupported("video/mpeg", "mpg", _VIDEO)),
    (rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11", _unsupported("video/x-ms-asf", "wmv", _VIDEO)),
    (rb"wOF[F2]|OTTO\x00|\x00\x01\x00\x00\x00[\x01-\x40]|ttcf\x00", _unsupported("font/sfnt", "ttf", _FONT)),
    (rb"SQLite format 3\x00", _unsupported("application/vnd.sqlite3", "sqlite", _DATABASE)),
    (rb"PAR1", _unsupported("application/vnd.apache.parquet", "parquet", _DATABASE)),
    (rb"ARROW1\x00", _unsupported("application/vnd.apache.arrow.file", "arrow", _DATABASE)),
    (rb"\x89HDF\r\n\x1a\n", _unsupported("application/x-hdf5", "h5", _DATABASE)),
    (rb"\x00\x01\x00\x00Standard (?:Jet|ACE) DB", _unsupported("application/x-msaccess", "mdb", _DATABASE)),
)
SIGNATURES = tuple((re.compile(pattern, re.DOTALL), file_type) for pattern, file_type in _PATTERNS)

# Beginnings of the `mimetype` entry of an archive, the longest first.
MIMETYPES: tuple[tuple[str, FileType], ...] = (
    ("application/epub+zip", EPUB),
    (_ODF + "text", FileType(_ODF + "text", "file", "odt", "office.opendocument")),
    (_ODF + "presentation", FileType(_ODF + "presentation", "file", "odp", "office.opendocument")),
    (_ODF + "graphics", FileType(_ODF + "graphics", "file", "odg", "office.opendocument")),
    (_ODF + "spreadsheet", FileType(_ODF + "spreadsheet", "table", "ods", "office.spreadsheets")),
    (_ODF, _unsupported(_ODF + "other", "odf", _NEEDS_PDF)),
)

# Beginnings of entry names in an archive, the most specific first.
ENTRIES: tuple[tuple[str, FileType], ...] = (
    ("xl/workbook.bin", XLSB),
    ("word/", DOCX),
    ("ppt/", PPTX),
    ("xl/", XLSX),
    ("META-INF/container.xml", EPUB),
    ("Index/Document.iwa", _unsupported("application/vnd.apple.iwork", "iwork", _APPLE)),
    ("Index.zip", _unsupported("application/vnd.apple.iwork", "iwork", _APPLE)),
    ("visio/", _unsupported("application/vnd.ms-visio.drawing", "vsdx", _NEEDS_PDF)),
    ("FixedDocumentSequence.fdseq", _unsupported("application/oxps", "xps", _NEEDS_PDF)),
    ("AndroidManifest.xml", _unsupported("application/vnd.android.package-archive", "apk", _PROGRAM)),
    ("META-INF/MANIFEST.MF", _unsupported("application/java-archive", "jar", _PROGRAM)),
)

# Streams of compound files that show the type.
STREAMS: tuple[tuple[str, FileType], ...] = (
    ("EncryptedPackage", ENCRYPTED_OFFICE),
    ("EncryptionInfo", ENCRYPTED_OFFICE),
    ("WordDocument", _unsupported("application/msword", "doc", _OLD_OFFICE.format("DOCX"))),
    ("PowerPoint Document", _unsupported("application/vnd.ms-powerpoint", "ppt", _OLD_OFFICE.format("PPTX"))),
    (
        "__properties_version1.0",
        _unsupported("application/vnd.ms-outlook", "msg", "Save the message as EML and add that."),
    ),
    ("VisioDocument", _unsupported("application/vnd.visio", "vsd", _NEEDS_PDF)),
    ("Workbook", XLS),
    ("Book", XLS),
)

_TEXT_EXTENSIONS: dict[str, FileType] = {
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

_CODE_EXTENSIONS: dict[str, tuple[str, ...]] = {
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
BY_EXTENSION: dict[str, FileType] = _TEXT_EXTENSIONS | {
    extension: FileType(mime_type, "code", extension, "text.source_code")
    for mime_type, extensions in _CODE_EXTENSIONS.items()
    for extension in extensions
}

_ALL = {file_type for table in (SIGNATURES, MIMETYPES, ENTRIES, STREAMS) for _, file_type in table}
PARSERS = {file_type.parser for file_type in _ALL | {*BY_EXTENSION.values()}} - {""}
