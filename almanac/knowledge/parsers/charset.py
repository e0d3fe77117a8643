"""How the bytes of a text show their encoding: by a mark at the beginning, or by where their NULs stand."""

_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"+/v8", "utf-7"),
    (b"+/v9", "utf-7"),
    (b"\x84\x31\x95\x33", "gb18030"),
)
_SAMPLE = 4096
_STRAY = 0.005  # the share of control characters a damaged text may have and still be one
_TEXTUAL = bytes({*range(0x20, 0x7F), *range(0x80, 0x100), 7, 8, 9, 10, 11, 12, 13, 26, 27})


def marked(head: bytes) -> str:
    """The encoding that the first bytes of a text show; empty if none."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    return _by_nuls(head[:_SAMPLE])


def _by_nuls(sample: bytes) -> str:
    """UTF-16 and UTF-32 without a mark: in most scripts every second byte, or three of four, is NUL."""
    if sample.count(0) * 5 < len(sample) or len(sample) < 4:
        return ""
    nuls = [sample[offset::4].count(0) * 4 / len(sample) for offset in range(4)]
    high = [share > 0.5 for share in nuls]
    layouts = {
        (False, True, True, True): "utf-32-le",
        (True, True, True, False): "utf-32-be",
        (False, True, False, True): "utf-16-le",
        (True, False, True, False): "utf-16-be",
    }
    return layouts.get((high[0], high[1], high[2], high[3]), "")


def is_text(head: bytes) -> bool:
    """Whether bytes can be a text in some encoding that has no NULs, or show which one it is."""
    return bool(marked(head)) or len(head.translate(None, _TEXTUAL)) <= len(head) * _STRAY
