"""Builds the text of a document block by block, in the one form that all formats share.

Headings begin with `#` marks, list items with `-` or a number, tables are lines of cells between pipes with a row of
dashes under the header, and a blank line separates blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage

MAX_HEADING_LEVEL = 6
MAX_LIST_INDENT = 20  # levels

_GAP = "\n\n"


@dataclass(slots=True)
class TextBuilder:
    """The parts of the text so far."""

    parts: list[str] = field(default_factory=list[str])
    length: int = 0
    blocks: list[Block] = field(default_factory=list[Block])
    page_starts: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])  # with the names of the pages
    items: list[str] = field(default_factory=list[str])  # of an unfinished list
    code_lines: list[str] = field(default_factory=list[str])  # of an unfinished code block

    def start_page(self, name: str = "") -> None:
        self.flush()
        self.page_starts.append((self._next_start(), name))

    def add_heading(self, text: str, level: int) -> None:
        if name := one_line(text):
            marks = "#" * max(1, min(level, MAX_HEADING_LEVEL))
            self._add(f"{marks} {name}", "heading", level=len(marks), name=name)

    def add_text(self, text: str) -> None:
        """Add a paragraph, or several lines that belong together."""
        if stripped := "\n".join(line.rstrip() for line in text.strip("\n").split("\n")).rstrip():
            self._add(stripped, "text")

    def add_code(self, text: str) -> None:
        if stripped := text.strip("\n").rstrip():
            self._add(stripped, "code")

    def add_item(self, item: str) -> None:
        """Add an item, formatted by `list_item`, to the current list; any other block ends the list."""
        if self.code_lines:
            self.flush()
        self.items.append(item)

    def add_code_line(self, line: str) -> None:
        """Add a line to the current code block; any other block ends it."""
        if self.items:
            self.flush()
        self.code_lines.append(line)

    def flush(self) -> None:
        """End the current list or code block."""
        items, self.items = self.items, []
        code_lines, self.code_lines = self.code_lines, []
        self.add_text("\n".join(items))
        self.add_code("\n".join(code_lines))

    def add_blocks(self, text: str, blocks: Iterable[Block]) -> None:
        """Add a text with the blocks that were found in it."""
        self.flush()
        shift = self._next_start()
        moved = [replace(b, start=b.start + shift, end=b.end + shift, header_end=b.header_end and b.header_end + shift)
                 for b in blocks]  # fmt: skip
        if moved:
            self.parts += [_GAP, text] if self.blocks else [text]
            self.length = shift + len(text)
            self.blocks += moved

    def add_table(self, rows: Sequence[Sequence[str]]) -> None:
        """Add rows of cells; the first is the header, after rows that are titles of the table."""
        filled = [row for row in map(_trim, rows) if row]
        titles = count_title_rows(filled)
        self.add_text("\n".join(one_line("".join(row)) for row in filled[:titles]))
        filled = filled[titles:]
        width = max(map(len, filled), default=0)
        if len(filled) < 2 or width < 2:  # a frame around text
            self.add_text("\n".join(" | ".join(filter(None, map(one_line, row))) for row in filled))
            return
        lines = [table_line(row, width) for row in filled]
        header = f"{lines[0]}\n{'|' + ' --- |' * width}\n"
        self._add(header + "\n".join(lines[1:]), "table", header_length=len(header))

    def _add(
        self,
        text: str,
        kind: Literal["heading", "text", "table", "code"],
        *,
        level: int = 0,
        name: str = "",
        header_length: int = 0,
    ) -> None:
        if self.items or self.code_lines:
            self.flush()
        if self.blocks:
            self.parts.append(_GAP)
            self.length += len(_GAP)
        start = self.length
        self.parts.append(text)
        self.length += len(text)
        header_end = start + header_length if header_length else 0
        self.blocks.append(Block(kind, start, self.length, level, name, header_end))

    def _next_start(self) -> int:
        return self.length + len(_GAP) if self.blocks else 0

    def finish(
        self, title: str = "", metadata: Mapping[str, str] | None = None, warnings: Sequence[str] = ()
    ) -> ParsedFile:
        """The complete text with its blocks and pages. The default title is the first heading."""
        self.flush()
        ends = [start for start, _ in self.page_starts[1:]] + [self.length]
        pages = tuple(
            TextPage(number, min(start, self.length), min(end, self.length), name=name)
            for number, ((start, name), end) in enumerate(zip(self.page_starts, ends, strict=False), 1)
        )
        first_heading = next((block.name for block in self.blocks if block.kind == "heading"), "")
        known = {key: value for key, value in (metadata or {}).items() if value}
        text = "".join(self.parts).replace("\r", "\n").replace("\x00", " ")
        return ParsedFile(text, tuple(self.blocks), pages, (), title or first_heading, known, tuple(warnings))


def count_title_rows(rows: Sequence[Sequence[str]]) -> int:
    """The number of rows above the header of a table that are titles: they have a single filled cell."""
    width = max(map(len, rows), default=0)
    titles = takewhile(lambda row: sum(map(bool, row)) == 1, rows[:-2])
    return sum(1 for _ in titles) if width > 2 else 0


def _trim(row: Sequence[str]) -> Sequence[str]:
    """The row without the empty cells at its end."""
    if row and row[-1]:
        return row
    end = len(row)
    while end and not row[end - 1].strip():
        end -= 1
    return row[:end]


def join_text(parts: Iterable[str]) -> str:
    """The parts as one text, with surrogate pairs combined into characters."""
    text = "".join(parts)
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def single_spaces(text: str) -> str:
    """The text with single spaces and its line breaks."""
    if "\n" not in text:
        return one_line(text)
    return "\n".join(one_line(line) for line in text.split("\n")).strip("\n")


def table_line(cells: Sequence[str], width: int) -> str:
    """One row of a table with so many columns."""
    escaped = [one_line(cell).replace("|", "\\|") for cell in cells] + [""] * (width - len(cells))
    return f"| {' | '.join(escaped)} |"


def list_item(text: str, depth: int, mark: str = "-") -> str:
    """An item of a list; `depth` is 0 for the outermost list."""
    lines = text.strip().split("\n")
    indent = "  " * min(depth, MAX_LIST_INDENT)
    return "\n".join([f"{indent}{mark} {lines[0]}", *(f"{indent}  {line}" for line in lines[1:])])
