"""A text while it is being written, block by block, in the one form every document ends up in.

Headings begin with `#` marks, lists with `-` or a number, tables are lines of cells between pipes with a row of
dashes under the header, and a blank line separates blocks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal

from almanac.knowledge.parsers.parsed_file import Block, ParsedFile, TextPage

MOST_LEVELS = 6

_GAP = "\n\n"


@dataclass(slots=True)
class TextBuilder:
    """What has been written so far."""

    parts: list[str] = field(default_factory=list[str])
    length: int = 0
    blocks: list[Block] = field(default_factory=list[Block])
    starts: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])  # of pages, with their names

    def page(self, name: str = "") -> None:
        """Begin a page; what follows stands on it."""
        self.starts.append((self.length + len(_GAP) if self.blocks else 0, name))

    def heading(self, text: str, level: int) -> None:
        if name := squeeze(text):
            marks = "#" * max(1, min(level, MOST_LEVELS))
            self._add(f"{marks} {name}", "heading", level=len(marks), name=name)

    def text(self, text: str) -> None:
        """A paragraph, or several lines that belong together."""
        if tidy := "\n".join(line.rstrip() for line in text.strip("\n").split("\n")).rstrip():
            self._add(tidy, "text")

    def code(self, text: str, name: str = "") -> None:
        if tidy := text.strip("\n").rstrip():
            self._add(tidy, "code", name=name)

    def paste(self, text: str, blocks: Iterable[Block]) -> None:
        """A text that has been cut into blocks already."""
        shift = self.length + len(_GAP) if self.blocks else 0
        moved = [replace(b, start=b.start + shift, end=b.end + shift, header_end=b.header_end and b.header_end + shift)
                 for b in blocks]  # fmt: skip
        if moved:
            self.parts += [_GAP, text] if self.blocks else [text]
            self.length = shift + len(text)
            self.blocks += moved

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Rows of cells, the first of them the header."""
        filled = [row for row in map(_trim, rows) if row]
        titles = count_titles(filled)
        self.text("\n".join(squeeze("".join(row)) for row in filled[:titles]))
        filled = filled[titles:]
        width = max(map(len, filled), default=0)
        if len(filled) < 2 or width < 2:  # a frame around text
            self.text("\n".join(" | ".join(filter(None, map(squeeze, row))) for row in filled))
            return
        lines = [table_line(row, width) for row in filled]
        header = f"{lines[0]}\n{'|' + ' --- |' * width}\n"
        self._add(header + "\n".join(lines[1:]), "table", header=len(header))

    def _add(
        self,
        text: str,
        kind: Literal["heading", "text", "table", "code"],
        *,
        level: int = 0,
        name: str = "",
        header: int = 0,
    ) -> None:
        if self.blocks:
            self.parts.append(_GAP)
            self.length += len(_GAP)
        start = self.length
        self.parts.append(text)
        self.length += len(text)
        self.blocks.append(Block(kind, start, self.length, level, name, start + header if header else 0))

    def parsed(
        self, title: str = "", metadata: Mapping[str, str] | None = None, warnings: Sequence[str] = ()
    ) -> ParsedFile:
        """What was written. Without a title, the first heading of the highest level seen first is one."""
        pages = tuple(
            TextPage(number, min(start, self.length), min(end, self.length), name=name)
            for number, (start, name, end) in enumerate(self._spans(), 1)
        )
        first = next((block.name for block in self.blocks if block.kind == "heading"), "")
        kept = {key: value for key, value in (metadata or {}).items() if value}
        text = "".join(self.parts).replace("\r", "\n").replace("\x00", " ")
        return ParsedFile(text, tuple(self.blocks), pages, (), title or first, kept, tuple(warnings))

    def _spans(self) -> list[tuple[int, str, int]]:
        ends = [start for start, _ in self.starts[1:]] + [self.length]
        return [(start, name, end) for (start, name), end in zip(self.starts, ends, strict=False)]


def count_titles(rows: Sequence[Sequence[str]]) -> int:
    """How many rows above the header of a table are titles: those with a single cell filled."""
    widest = max(map(len, rows), default=0)
    alone = takewhile(lambda row: sum(map(bool, row)) == 1, rows[:-2])
    return sum(1 for _ in alone) if widest > 2 else 0


def _trim(row: Sequence[str]) -> Sequence[str]:
    """A row without the empty cells at its end."""
    if row and row[-1]:
        return row
    end = len(row)
    while end and not row[end - 1].strip():
        end -= 1
    return row[:end]


def squeeze(text: str) -> str:
    """Text on one line, with single spaces."""
    return " ".join(text.split())


def tidy(text: str) -> str:
    """Text with single spaces, its line breaks kept."""
    if "\n" not in text:
        return " ".join(text.split())
    return "\n".join(" ".join(line.split()) for line in text.split("\n")).strip("\n")


def table_line(cells: Sequence[str], width: int) -> str:
    """One row of a table, filled up to its width."""
    shown = [" ".join(cell.split()).replace("|", "\\|") for cell in cells] + [""] * (width - len(cells))
    return f"| {' | '.join(shown)} |"


def bullet(text: str, depth: int, mark: str = "-") -> str:
    """An item of a list; `depth` is 0 for the outermost."""
    lines = text.strip().split("\n")
    indent = "  " * min(depth, 20)
    return "\n".join([f"{indent}{mark} {lines[0]}", *(f"{indent}  {line}" for line in lines[1:])])
