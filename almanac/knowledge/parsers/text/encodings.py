"""How the bytes of a text show their encoding: by a mark at the beginning, or by where their NULs stand."""

from collections import Counter

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
_SAME = 0.85
_STRAY = 0.005  # the share of control characters a damaged text may have and still be one
_TEXTUAL = bytes({*range(0x20, 0x7F), *range(0x80, 0x100), 7, 8, 9, 10, 11, 12, 13, 26, 27})


def marked(head: bytes) -> str:
    """The encoding that the first bytes of a text show; empty if none."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    return _by_nuls(head[:_SAMPLE])


def _by_nuls(sample: bytes) -> str:
    """UTF-16 and UTF-32 without a mark: each character brings NULs, or the same high byte as its neighbours."""
    if 0 not in sample or len(sample) < 8:
        return ""
    nuls = [sample[offset::4].count(0) * 4 / len(sample) > 0.5 for offset in range(4)]
    if nuls in ([False, True, True, True], [True, True, True, False]):
        return "utf-32-le" if nuls[3] else "utf-32-be"
    even, odd = _sameness(sample[::2]), _sameness(sample[1::2])
    if odd > _SAME > even + 0.2:
        return "utf-16-le"
    return "utf-16-be" if even > _SAME > odd + 0.2 else ""


def _sameness(some: bytes) -> float:
    """The share of the two commonest bytes: for a script and the spaces between its words, two are enough."""
    return sum(count for _, count in Counter(some).most_common(2)) / len(some)


def is_text(head: bytes) -> bool:
    """Whether bytes can be a text in some encoding that has no NULs, or show which one it is."""
    return bool(marked(head)) or len(head.translate(None, _TEXTUAL)) <= len(head) * _STRAY
