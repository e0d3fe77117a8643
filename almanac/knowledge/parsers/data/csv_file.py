"""Tables in text: values separated by commas, semicolons, tabs or pipes."""

import csv
from collections import Counter
from itertools import islice
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import ParsedFile
from almanac.knowledge.parsers.text import encodings
from almanac.knowledge.parsers.text_builder import TextBuilder

MAX_FIELD_CHARS = 10_000_000

_DELIMITERS = "\t;,|"
_SAMPLE_CHARS = 64 * 1024
_SAMPLE_ROWS = 100


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = encodings.decode(path.read_bytes())
    builder = TextBuilder()
    builder.add_table(split_rows(text, detect_delimiter(text)))
    return builder.finish()


def split_rows(text: str, delimiter: str) -> list[list[str]]:
    """The rows of a table. If a quotation mark is never closed, quotation marks are ordinary characters."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    lines = text.splitlines(keepends=True) if '"' in text else text.split("\n")
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return list(csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def detect_delimiter(text: str) -> str:
    """The delimiter that splits most lines into the same number of values, and into more than one."""
    head = text[:_SAMPLE_CHARS]
    first_line = head.partition("\n")[0]
    if first_line.startswith("sep=") and len(first_line.strip()) == 5:
        return first_line.strip()[-1]
    return max(_DELIMITERS, key=lambda delimiter: _score(head, delimiter))


def _score(head: str, delimiter: str) -> tuple[float, int]:
    """The share of rows with the most common number of values, and this number."""
    lines = head.split("\n")
    whole_lines = lines[:-1] if len(lines) > 1 else lines  # the last line may be cut off
    widths = Counter(len(row) for row in islice(csv.reader(whole_lines, delimiter=delimiter), _SAMPLE_ROWS) if row)
    width, count = widths.most_common(1)[0] if widths else (1, 0)
    return (count / widths.total() if width > 1 else 0.0, width)
