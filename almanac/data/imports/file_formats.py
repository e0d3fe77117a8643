"""The format of a file that is imported, from its first bytes and its name."""

from almanac.core.errors import BadRequest

FORMATS = ("csv", "json", "parquet")

_SIGNATURES = ((b"PAR1", "parquet"), (b"PK\x03\x04", "excel"), (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "excel"))
_EXTENSIONS = {
    "csv": "csv", "tsv": "csv", "tab": "csv", "txt": "csv", "psv": "csv",
    "json": "json", "ndjson": "json", "jsonl": "json", "geojson": "json",
    "xml": "xml", "xlsx": "excel", "xlsm": "excel", "xlsb": "excel", "xls": "excel", "ods": "excel",
    "parquet": "parquet", "pq": "parquet",
}  # fmt: skip
_UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_BINARY = frozenset({"excel", "parquet"})


def detect_format(head: bytes, file_name: str) -> str:
    """Return the format. Binary formats are known by their first bytes; of a text, the extension decides."""
    found = next((each for signature, each in _SIGNATURES if head.startswith(signature)), None)
    if found is not None:
        return found
    if head[:2] == b"\x1f\x8b" or head[:5] == b"%PDF-":
        raise _unknown()
    by_name = _EXTENSIONS.get(file_name.rpartition(".")[2].lower()) if "." in file_name else None
    if by_name is not None and by_name not in _BINARY:
        return by_name
    return _detect_text(head)


def detect_utf_16(head: bytes) -> str | None:
    """Return the name of the encoding if the file is in UTF-16."""
    if head[:2] in _UTF_16:
        return _UTF_16[head[:2]]
    sample = head[:2000]
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if half < 2 or max(even, odd) < half * 0.7 or min(even, odd) > half * 0.1:
        return None
    return "utf-16-le" if odd > even else "utf-16-be"


def _detect_text(head: bytes) -> str:
    encoding = detect_utf_16(head)
    if encoding is None and head.count(0) > len(head) // 100:
        raise _unknown()
    text = head.decode(encoding or "utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("<"):
        return "xml"
    return "json" if text.startswith(("{", "[")) else "csv"


def _unknown() -> BadRequest:
    return BadRequest(
        "The format of the file is not known. Nothing was stored.",
        remedy="Send CSV, JSON or Parquet, not compressed.",
    )
