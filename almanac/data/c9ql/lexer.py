"""Reads C9QL text one token at a time, as the parser asks for them.

The parser asks because the meaning of a word depends on its place: `order` is a field in `select order` if there is
such a field, and begins a clause in `order by`. Every read is one match of an anchored pattern without nested
repetition, so that the time grows with the length of the text only.
"""

import re

from almanac.data.c9ql.errors import C9qlError

SPACE = re.compile(r"\s*")
WORD = re.compile(r"[^\W\d]\w*")
NUMBER = re.compile(r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?!\w)")
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?!\w)")
SINGLE = re.compile(r"'((?:[^']|'')*)'")
DOUBLE = re.compile(r'"((?:[^"]|"")*)"')
BACKTICK = re.compile(r"`((?:[^`]|``)*)`")
DATE_TOKEN = re.compile(r"\{\$c9_\w+(?:[+-]\d+\w+)?(?::[^{}]*)?\}")
PARAMETER = re.compile(
    r"\$c9_(?P<name>\w+?)\$(?P<form>\{[^{}]*\}\$)?(?:\((?P<default>[^()]*)\)\$?)?(?:\[(?P<label>[^\[\]]*)\]\$?)?"
)
COMPARISON = re.compile(r"!=|<>|<=|>=|==|=|<|>")

# Words that end an unquoted text, name or alias.
STOP = re.compile(r"(?:where|having|limit|(?:group|order)\s+by)(?!\w)", re.IGNORECASE)
LITERAL_STOP = re.compile(
    r"(?:and|or|where|having|limit|when|then|else|end|as|asc|desc|(?:group|order)\s+by)(?!\w)", re.IGNORECASE
)
NAME_STOP = re.compile(
    r"(?:and|or|not|like|in|is|between|where|having|limit|when|then|else|end|as|asc|desc|over"
    r"|(?:group|order|partition)\s+by)(?!\w)",
    re.IGNORECASE,
)


class Scanner:
    """A position in a text."""

    def __init__(self, text: str, position: int = 0) -> None:
        self.text = text
        self.position = position
        self.skip_space()

    def skip_space(self) -> None:
        """Move to the next character that is not white space."""
        found = SPACE.match(self.text, self.position)
        self.position = found.end() if found else self.position

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        return self.position >= len(self.text)

    def peek(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match at this position, without moving."""
        return pattern.match(self.text, self.position)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match at this position, and move behind it and the white space that follows."""
        found = pattern.match(self.text, self.position)
        if found:
            self.position = found.end()
            self.skip_space()
        return found

    def sees(self, symbol: str) -> bool:
        """Return whether the text goes on with this symbol."""
        return self.text.startswith(symbol, self.position)

    def take_symbol(self, *symbols: str) -> str | None:
        """Move behind the first of these symbols that comes next, and return it."""
        for symbol in symbols:
            if self.sees(symbol):
                self.position += len(symbol)
                self.skip_space()
                return symbol
        return None

    def sees_words(self, *words: str) -> bool:
        """Return whether the text goes on with these words."""
        return self.peek(words_pattern(words)) is not None

    def take_words(self, *words: str) -> bool:
        """Move behind these words if they come next."""
        return self.take(words_pattern(words)) is not None

    def take_quoted(self, pattern: re.Pattern[str]) -> str | None:
        """Return the inside of a quoted text with doubled quotes made single; None if none comes next."""
        quote = pattern.pattern[0]
        if not self.sees(quote):
            return None
        start, found = self.position, self.take(pattern)
        if not found:
            raise C9qlError(f"the quote {quote} is not closed.", at=start)
        return found[1].replace(quote * 2, quote)

    def take_raw(self, ends: str, stop: re.Pattern[str] | None) -> str:
        """Return the text up to one of these characters or words outside of parentheses, with single spaces."""
        start, depth = self.position, 0
        while not self.ended:
            character = self.text[self.position]
            if depth == 0 and (character in ends or character == ")" or (stop and self.peek(stop))):
                break
            depth += (character == "(") - (character == ")")
            self._move_over_raw(character)
        return " ".join(self.text[start : self.position].split())

    def _move_over_raw(self, character: str) -> None:
        word = WORD.match(self.text, self.position) if character.isalpha() or character == "_" else None
        self.position = word.end() if word else self.position + 1
        self.skip_space()

    def describe_next(self) -> str:
        """Return the next word or symbol, for an error."""
        if self.ended:
            return "the end"
        found = self.peek(WORD) or self.peek(NUMBER)
        return f"'{found[0] if found else self.text[self.position]}'"


_PATTERNS: dict[tuple[str, ...], re.Pattern[str]] = {}


def words_pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of these words in any case, which other word characters may not follow."""
    if words not in _PATTERNS:
        _PATTERNS[words] = re.compile(r"\s+".join(words) + r"(?!\w)", re.IGNORECASE)
    return _PATTERNS[words]
