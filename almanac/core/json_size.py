"""The number of values in a JSON text, counted before the text is parsed.

The JSON parser and the validation of arguments hold the interpreter while they run. Their time grows with the number
of values, not with the length of texts: a text of 16 MB takes 15 ms, 8 million numbers of the same size take seconds.
"""

MAX_JSON_VALUES = 100_000
_SEPARATORS = (b",", b"[", b"{")


def has_too_many_values(raw: bytes) -> bool:
    """Return whether a JSON text has more than MAX_JSON_VALUES values."""
    if _count(raw) <= MAX_JSON_VALUES:
        return False
    # Separators inside of strings do not count. Once escaped characters are removed, each quote begins or ends a
    # string. Each separator is followed by two strings at most, a key and a value.
    max_quotes = 4 * MAX_JSON_VALUES + 4
    parts = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', max_quotes + 1)
    return len(parts) > max_quotes + 1 or sum(map(_count, parts[::2])) > MAX_JSON_VALUES


def _count(raw: bytes) -> int:
    return sum(map(raw.count, _SEPARATORS))
