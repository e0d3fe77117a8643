"""Small text functions that several packages share."""

import re
from string import ascii_lowercase, ascii_uppercase

# Characters that names and descriptions may not contain. Tab, line feed and carriage return are allowed.
# PostgreSQL cannot store NUL, and UTF-8 has no encoding for surrogates.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

# Characters that a name may not contain: also C1 controls, which a terminal obeys, and characters that change the
# direction of a line.
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_ASCII_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def lower_ascii(text: str) -> str:
    """The text with the letters A to Z in lower case. The databases agree on no other letters."""
    return text.translate(_ASCII_LOWER)


def one_line(text: str) -> str:
    """The text with each run of white space, line breaks included, replaced by one space."""
    return " ".join(text.split())


def escape_like(text: str) -> str:
    """The text for a LIKE pattern in which every character matches only itself. The SQL needs `ESCAPE '\\'`."""
    return text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
