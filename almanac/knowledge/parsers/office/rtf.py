"""Rich Text Format: a stream of control words, read in one pass.

Groups in braces inherit the state of the group around them. A group that begins with an unknown or unwanted
destination is omitted with all its content.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from almanac.core.text import one_line
from almanac.knowledge.parsers.parsed_file import NESTED_TOO_DEEPLY, ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, join_text, list_item, single_spaces

MAX_GROUP_DEPTH = 500
MAX_LIST_DEPTH = 20
MAX_SKIP_CHARS = 20  # after a character in Unicode

_TOKEN = re.compile(
    r"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?"
    r"|\\'(?P<byte>[0-9a-fA-F]{2})"
    r"|\\(?P<symbol>[^a-zA-Z'])"
    r"|(?P<brace>[{}])"
    r"|(?P<text>[^\\{}\r\n]+)"
    r"|.",
    re.DOTALL,
)
# Destinations with no text of the document.
_OMITTED = frozenset((
    "colortbl", "pict", "object", "objdata", "header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr",
    "footerf", "fldinst", "listtable", "listoverridetable", "revtbl", "rsidtbl", "generator", "xmlnstbl", "themedata",
    "colorschememapping", "datastore", "latentstyles", "nonshppict", "bkmkstart", "bkmkend", "filetbl", "ftnsep",
    "ftnsepc", "aftnsep", "aftnsepc", "pgdsctbl", "atnid", "atnauthor", "annotation", "atrfstart", "atrfend", "tc",
    "xe", "sp", "panose", "falt", "pn", "template", "private", "wgrffmtfilter", "docvar", "operator", "company",
    "creatim", "revtim", "printim", "buptim", "doccomm", "manager", "category", "hlinkbase", "keywords", "comment",
    "subject",
))  # fmt: skip
_IGNORABLE_WITH_TEXT = {"shpinst", "shptxt", "shprslt", "fldrslt", "result"}  # marked with `*`, but they contain text
# Destinations with text that is kept apart from the document.
_DESTINATIONS = {"fonttbl", "stylesheet", "info", "title", "author", "footnote", "listtext", "pntext"}
_FIRST_ONLY = {"title", "author"}  # a second one is ignored
_SYMBOLS = {"~": "\u00a0", "_": "-", "\t": "\t"}
_CHARACTERS = {"line": "\n", "tab": "\t", "emdash": "—", "endash": "–", "bullet": "•", "lquote": "‘", "rquote": "’",
               "ldblquote": "“", "rdblquote": "”", "emspace": " ", "enspace": " ", "nestcell": " ", "zwj": "\u200d",
               "zwnj": "\u200c", "rtlmark": "", "ltrmark": ""}  # fmt: skip
_CODEPAGE_BY_CHARSET = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 134: "gb18030", 136: "cp950", 161: "cp1253", 162: "cp1254",
    163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
    255: "cp437",
}  # fmt: skip
_CODEPAGES = {936: "gb18030", 65001: "utf-8", 10000: "mac_roman"}
_TWO_BYTE_CODEPAGES = {"cp932", "cp949", "cp950", "gb18030"}
_HEADING = re.compile(r"\s*heading (\d)", re.IGNORECASE)
_CODE = re.compile(r"preformatted|source ?code|\bcode\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RtfGroup:
    """The state of a group."""

    destination: str = ""  # of its text: empty for the document, "-" for nowhere
    skip: int = 1  # characters after one in Unicode that replace it for old readers
    hidden: bool = False
    font: int = 0


@dataclass(frozen=True, slots=True)
class RtfParagraph:
    """The state of a paragraph."""

    style: int = -1
    outline: int = -1
    in_table: bool = False
    depth: int = 0


@dataclass(slots=True)
class RtfReader:
    """The state while a document is read."""

    builder: TextBuilder = field(default_factory=TextBuilder)
    group: RtfGroup = field(default_factory=RtfGroup)
    outer_groups: list[RtfGroup] = field(default_factory=list[RtfGroup])
    codepage: str = "cp1252"
    font_codepages: dict[int, str] = field(default_factory=dict[int, str])
    current_style: tuple[int, int] = (-1, -1)  # number and outline level of the style that is being defined
    styles: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])  # name, outline level
    paragraph: RtfParagraph = field(default_factory=RtfParagraph)
    words: dict[str, list[str]] = field(default_factory=lambda: {"": []})  # by destination
    pending_bytes: bytearray = field(default_factory=bytearray)  # the last character may be incomplete
    skips_left: int = 0
    is_ignorable: bool = False
    cells: list[str] = field(default_factory=list[str])
    rows: list[list[str]] = field(default_factory=list[list[str]])
    merged_columns: list[bool] = field(default_factory=list[bool])  # whether the column continues the cell above
    is_next_merged: bool = False
    notes: list[str] = field(default_factory=list[str])

    def read(self, text: str) -> None:
        position = 0
        while token := _TOKEN.match(text, position):
            position = token.end()
            if token["text"]:
                self._add_text(token["text"])
            elif token["word"]:
                number = int(token["number"]) if token["number"] else None
                position += max(0, number or 0) if token["word"] == "bin" else 0
                self._control_word(token["word"], number)
            elif token["byte"]:
                self._add_byte(int(token["byte"], 16))
            elif token["brace"]:
                self._open_group() if token["brace"] == "{" else self._close_group()
            elif token["symbol"]:
                self._control_symbol(token["symbol"])

    def _open_group(self) -> None:
        self._decode_pending()
        if len(self.outer_groups) > MAX_GROUP_DEPTH:
            raise UnreadableFile("corrupt", NESTED_TOO_DEEPLY)
        self.outer_groups.append(self.group)
        self.skips_left = 0

    def _close_group(self) -> None:
        self._decode_pending()
        inner = self.group
        self.group = self.outer_groups.pop() if self.outer_groups else RtfGroup()
        self.skips_left = 0
        if inner.destination == "stylesheet":
            self._define_style()
        elif inner.destination == "footnote" and self.group.destination != "footnote":
            self._add_note()

    def _define_style(self) -> None:
        name = join_text(self.words.pop("stylesheet", [])).strip(" ;")
        number, outline = self.current_style
        if name and number >= 0:
            self.styles[number] = (name, outline)
        self.current_style = (-1, -1)

    def _add_note(self) -> None:
        if text := one_line(join_text(self.words.pop("footnote", []))):
            self.notes.append(text)
            self.words[""].append(f"[^{len(self.notes)}]")

    def _control_symbol(self, symbol: str) -> None:
        if symbol == "*":
            self.is_ignorable = True
        elif symbol in "\r\n":
            self._control_word("par", None)
        else:
            self._add_text(_SYMBOLS.get(symbol, symbol if symbol in "\\{}" else ""))

    def _add_byte(self, value: int) -> None:
        if self.skips_left:
            self.skips_left -= 1
        else:
            self.pending_bytes.append(value)

    def _add_text(self, text: str) -> None:
        text = self._decode_pending(text)
        if self.skips_left:
            skipped = min(self.skips_left, len(text))
            self.skips_left -= skipped
            text = text[skipped:]
        self._append(text if text.isascii() else _decode(text.encode("latin-1", "replace"), self._codepage()))

    def _append(self, text: str) -> None:
        if text and not self.group.hidden and self.group.destination != "-":
            self.words.setdefault(self.group.destination, []).append(text)

    def _decode_pending(self, following: str = "") -> str:
        """Decode the pending bytes. If the second byte of a character is a plain character, remove it from the text
        that follows; return that text."""
        if not self.pending_bytes:
            return following
        content, codepage = bytes(self.pending_bytes), self._codepage()
        self.pending_bytes.clear()
        if following and codepage in _TWO_BYTE_CODEPAGES and _is_incomplete(content, codepage):
            content += following[0].encode("latin-1", "replace")
            following = following[1:]
        self._append(_decode(content, codepage))
        return following

    def _codepage(self) -> str:
        return self.font_codepages.get(self.group.font) or self.codepage

    def _control_word(self, word: str, number: int | None) -> None:
        if word == "u":
            self._decode_pending()
            self._append(chr((number or 0) % 0x10000))
            self.skips_left = self.group.skip
            return
        if self.skips_left:
            self.skips_left -= 1
            return
        self._decode_pending()
        is_ignorable, self.is_ignorable = self.is_ignorable, False
        is_known = word in _IGNORABLE_WITH_TEXT or word in _DESTINATIONS
        if word in _OMITTED or (is_ignorable and not is_known):
            self.group = replace(self.group, destination="-")
        elif word in _DESTINATIONS and self.group.destination != "-":
            self.group = replace(self.group, destination="-" if word in _FIRST_ONLY and word in self.words else word)
        elif word in _CHARACTERS:
            self._append(_CHARACTERS[word])
        elif action := _ACTIONS.get(word):
            action(self, 1 if number is None else number)

    def end_paragraph(self, _: int = 1) -> None:
        if self.group.destination:
            self._append("\n")
        elif self.paragraph.in_table:
            self.words[""].append("\n")
        else:
            text = join_text(self.words[""])
            self.words[""] = []
            self._write_paragraph(text)

    def _write_paragraph(self, text: str) -> None:
        """Write a paragraph as a heading, a list item, code or text."""
        label = one_line(join_text(self.words.pop("listtext", []) + self.words.pop("pntext", [])))
        style, style_outline = self.styles.get(self.paragraph.style, ("", -1))
        heading = _HEADING.match("heading 1" if style == "Title" else style)
        outline = self.paragraph.outline if self.paragraph.outline >= 0 else style_outline
        self._write_table()
        if not text.strip():
            return
        if heading or 0 <= outline < 9:
            numbered = f"{label} {text}" if label[:1].isalnum() else text
            self.builder.add_heading(numbered, int(heading[1]) if heading else outline + 1)
        elif label:
            mark = label if label[:1].isalnum() else "-"
            self.builder.add_item(list_item(single_spaces(text), self.paragraph.depth, mark))
        elif _CODE.search(style):
            self.builder.add_code_line(text.rstrip())
        else:
            self.builder.add_text(single_spaces(text))

    def end_cell(self, _: int = 1) -> None:
        text = one_line(join_text(self.words[""]))
        self.words[""] = []
        column = len(self.cells)
        above = self.rows[-1][column] if self.rows and column < len(self.rows[-1]) else ""
        is_merged = column < len(self.merged_columns) and self.merged_columns[column]
        self.cells.append(above if is_merged and not text else text)

    def end_row(self, _: int = 1) -> None:
        if self.cells:
            self.builder.flush()
            self.rows.append(self.cells)
        self.cells = []

    def _write_table(self) -> None:
        if self.rows:
            self.builder.add_table(self.rows)
            self.rows = []

    def finish(self) -> None:
        """Write the last paragraph and the footnotes."""
        self.paragraph = RtfParagraph()
        self.end_paragraph()
        self._write_table()
        for number, note in enumerate(self.notes, 1):
            self.builder.add_text(f"[^{number}]: {note}")

    def select_font(self, number: int) -> None:
        self.group = replace(self.group, font=number)

    def define_charset(self, number: int) -> None:
        if self.group.destination == "fonttbl" and number in _CODEPAGE_BY_CHARSET:
            self.font_codepages[self.group.font] = _CODEPAGE_BY_CHARSET[number]

    def select_style(self, number: int) -> None:
        if self.group.destination == "stylesheet":
            self.current_style = (number, -1)
        else:
            self.paragraph = replace(self.paragraph, style=number)

    def select_outline(self, number: int) -> None:
        if self.group.destination == "stylesheet":
            self.current_style = (self.current_style[0], number)
        else:
            self.paragraph = replace(self.paragraph, outline=number)

    def select_codepage(self, number: int) -> None:
        self.codepage = _CODEPAGES.get(number, f"cp{number}")

    def set_skip(self, number: int) -> None:
        self.group = replace(self.group, skip=max(0, min(number, MAX_SKIP_CHARS)))

    def set_in_table(self, _: int = 1) -> None:
        self.paragraph = replace(self.paragraph, in_table=True)

    def set_depth(self, number: int) -> None:
        self.paragraph = replace(self.paragraph, depth=max(0, min(number, MAX_LIST_DEPTH)))

    def begin_row(self, _: int = 1) -> None:
        self.merged_columns = []
        self.is_next_merged = False

    def merge_cell(self, _: int = 1) -> None:
        self.is_next_merged = True

    def define_cell(self, _: int = 1) -> None:
        self.merged_columns.append(self.is_next_merged)
        self.is_next_merged = False

    def hide(self, number: int) -> None:
        self.group = replace(self.group, hidden=number != 0)

    def show(self, _: int = 1) -> None:
        self.group = replace(self.group, hidden=False)

    def reset_paragraph(self, _: int = 1) -> None:
        if self.group.destination == "":
            self.paragraph = RtfParagraph()


# The methods of control words. They receive the number of the word, by default 1.
_ACTIONS: dict[str, Callable[[RtfReader, int], None]] = {
    **dict.fromkeys(("par", "sect", "page"), RtfReader.end_paragraph),
    **dict.fromkeys(("v", "deleted"), RtfReader.hide),
    "cell": RtfReader.end_cell,
    "row": RtfReader.end_row,
    "trowd": RtfReader.begin_row,
    "clvmrg": RtfReader.merge_cell,
    "cellx": RtfReader.define_cell,
    "pard": RtfReader.reset_paragraph,
    "plain": RtfReader.show,
    "f": RtfReader.select_font,
    "fcharset": RtfReader.define_charset,
    "s": RtfReader.select_style,
    "outlinelevel": RtfReader.select_outline,
    "ansicpg": RtfReader.select_codepage,
    "uc": RtfReader.set_skip,
    "intbl": RtfReader.set_in_table,
    "ilvl": RtfReader.set_depth,
}


def parse(path: Path, name: str) -> ParsedFile:
    reader = RtfReader()
    reader.read(path.read_bytes().decode("latin-1"))
    reader.finish()
    title, author = (one_line(join_text(reader.words.get(key, []))) for key in ("title", "author"))
    return reader.builder.finish(title, {"author": author})


def _decode(content: bytes, codepage: str) -> str:
    try:
        return content.decode(codepage, "replace")
    except LookupError:
        return content.decode("cp1252", "replace")


def _is_incomplete(content: bytes, codepage: str) -> bool:
    """Whether the last character lacks its second byte."""
    try:
        content.decode(codepage)
    except UnicodeDecodeError as error:
        return error.end == len(content)
    return False
