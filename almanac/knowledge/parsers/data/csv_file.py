"""Tables in text: values between commas, semicolons, tabs or pipes."""

import csv
from collections import Counter
from itertools import islice
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings
from almanac.knowledge.parsers.text_builder import TextBuilder

LONGEST_FIELD = 10_000_000  # characters

_DELIMITERS = "\t;,|"
_SAMPLE = 64 * 1024
_LINES = 100


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = encodings.decode(path.read_bytes())
    draft = TextBuilder()
    draft.table(rows(text, delimiter_of(text)))
    return draft.parsed()


def rows(text: str, delimiter: str) -> list[list[str]]:
    """The rows of a table. In one with a quotation mark that is never closed, they mean nothing."""
    csv.field_size_limit(LONGEST_FIELD)
    lines = text.splitlines(keepends=True) if '"' in text else text.split("\n")
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return list(csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def delimiter_of(text: str) -> str:
    """The sign between the values: the one that cuts most lines into equally many, and into more than one."""
    head = text[:_SAMPLE]
    named = head.partition("\n")[0]
    if named.startswith("sep=") and len(named.strip()) == 5:
        return named.strip()[-1]
    return max(_DELIMITERS, key=lambda sign: _agreement(head, sign))


def _agreement(head: str, delimiter: str) -> tuple[float, int]:
    lines = head.split("\n")
    whole = lines[:-1] if len(lines) > 1 else lines  # the last may be cut
    widths = Counter(len(row) for row in islice(csv.reader(whole, delimiter=delimiter), _LINES) if row)
    width, count = widths.most_common(1)[0] if widths else (1, 0)
    return (count / widths.total() if width > 1 else 0.0, width)
