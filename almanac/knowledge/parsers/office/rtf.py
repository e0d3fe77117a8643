"""Rich Text Format: a stream of control words, read in one pass.

Groups in braces inherit what holds around them. A group that begins with a destination we do not know, or do not
want, is left out with all inside it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from almanac.knowledge.parsers.parsed_file import ParsedFile, UnreadableFile
from almanac.knowledge.parsers.text_builder import TextBuilder, bullet, squeeze, tidy

MAX_GROUP_DEPTH = 500  # groups inside groups
DEEP = "The file nests its parts deeper than any honest document; it is not read."

_TOKEN = re.compile(
    r"\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?"
    r"|\\'(?P<byte>[0-9a-fA-F]{2})"
    r"|\\(?P<sign>[^a-zA-Z'])"
    r"|(?P<brace>[{}])"
    r"|(?P<text>[^\\{}\r\n]+)"
    r"|.",
    re.DOTALL,
)
_LEFT_OUT = frozenset((
    "colortbl", "pict", "object", "objdata", "header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr",
    "footerf", "fldinst", "listtable", "listoverridetable", "revtbl", "rsidtbl", "generator", "xmlnstbl", "themedata",
    "colorschememapping", "datastore", "latentstyles", "nonshppict", "bkmkstart", "bkmkend", "filetbl", "ftnsep",
    "ftnsepc", "aftnsep", "aftnsepc", "pgdsctbl", "atnid", "atnauthor", "annotation", "atrfstart", "atrfend", "tc",
    "xe", "sp", "panose", "falt", "pn", "template", "private", "wgrffmtfilter", "docvar", "operator", "company",
    "creatim", "revtim", "printim", "buptim", "doccomm", "manager", "category", "hlinkbase", "keywords", "comment",
    "subject",
))  # fmt: skip
_KEPT = {"shpinst", "shptxt", "shprslt", "fldrslt", "result"}  # marked as ignorable, though they hold text
_APART = {"fonttbl", "stylesheet", "info", "title", "author", "footnote", "listtext", "pntext"}
_ONCE = {"title", "author"}
_SIGNS = {"~": "\u00a0", "_": "-", "\t": "\t"}
_WORDS = {"line": "\n", "tab": "\t", "emdash": "—", "endash": "–", "bullet": "•", "lquote": "‘", "rquote": "’",
          "ldblquote": "“", "rdblquote": "”", "emspace": " ", "enspace": " ", "nestcell": " ", "zwj": "\u200d",
          "zwnj": "\u200c", "rtlmark": "", "ltrmark": ""}  # fmt: skip
_CHARSETS = {77: "mac_roman", 128: "cp932", 129: "cp949", 134: "gb18030", 136: "cp950", 161: "cp1253", 162: "cp1254",
             163: "cp1258", 177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
             255: "cp437"}  # fmt: skip
_CODEPAGES = {936: "gb18030", 65001: "utf-8", 10000: "mac_roman"}
_TWO_BYTES = {"cp932", "cp949", "cp950", "gb18030"}
_HEADING = re.compile(r"\s*heading (\d)", re.IGNORECASE)
_CODE = re.compile(r"preformatted|source ?code|\bcode\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RtfGroup:
    """What holds inside a group."""

    into: str = ""  # the destination text goes to; empty for the document, "-" for nowhere
    skip: int = 1  # characters after one in Unicode that stand for it
    hidden: bool = False
    font: int = 0


@dataclass(frozen=True, slots=True)
class Paragraph:
    """What holds for a paragraph."""

    style: int = -1
    outline: int = -1
    in_table: bool = False
    depth: int = 0


@dataclass(slots=True)
class Reader:
    """A document while it is being read."""

    draft: TextBuilder = field(default_factory=TextBuilder)
    group: RtfGroup = field(default_factory=RtfGroup)
    stack: list[RtfGroup] = field(default_factory=list[RtfGroup])
    codepage: str = "cp1252"
    fonts: dict[int, str] = field(default_factory=dict[int, str])
    defined: tuple[int, int] = (-1, -1)  # the style being defined: its number and outline level
    styles: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])  # name, outline level
    paragraph: Paragraph = field(default_factory=Paragraph)
    words: dict[str, list[str]] = field(default_factory=lambda: {"": []})  # by destination
    waiting: bytearray = field(default_factory=bytearray)  # bytes of a character that may not be whole
    to_skip: int = 0
    star: bool = False
    cells: list[str] = field(default_factory=list[str])
    rows: list[list[str]] = field(default_factory=list[list[str]])
    merges: list[bool] = field(default_factory=list[bool])  # which columns of the row continue the cell above
    merging: bool = False
    items: list[str] = field(default_factory=list[str])
    listing: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def read(self, text: str) -> None:
        place = 0
        while token := _TOKEN.match(text, place):
            place = token.end()
            if token["text"]:
                self._say(token["text"])
            elif token["word"]:
                number = int(token["number"]) if token["number"] else None
                place += max(0, number or 0) if token["word"] == "bin" else 0
                self._control(token["word"], number)
            elif token["byte"]:
                self._byte(int(token["byte"], 16))
            elif token["brace"]:
                self._open() if token["brace"] == "{" else self._close()
            elif token["sign"]:
                self._sign(token["sign"])

    def _open(self) -> None:
        self._settle()
        if len(self.stack) > MAX_GROUP_DEPTH:
            raise UnreadableFile("corrupt", DEEP)
        self.stack.append(self.group)
        self.to_skip = 0

    def _close(self) -> None:
        self._settle()
        inner = self.group
        self.group = self.stack.pop() if self.stack else RtfGroup()
        self.to_skip = 0
        if inner.into == "stylesheet":
            self._define_style()
        elif inner.into == "footnote" and self.group.into != "footnote":
            self._note()

    def _define_style(self) -> None:
        name = _whole(self.words.pop("stylesheet", [])).strip(" ;")
        if name and self.defined[0] >= 0:
            self.styles[self.defined[0]] = (name, self.defined[1])
        self.defined = (-1, -1)

    def _note(self) -> None:
        if text := squeeze(_whole(self.words.pop("footnote", []))):
            self.notes.append(text)
            self.words[""].append(f"[^{len(self.notes)}]")

    def _sign(self, sign: str) -> None:
        if sign == "*":
            self.star = True
        elif sign in "\r\n":
            self._control("par", None)
        else:
            self._say(_SIGNS.get(sign, sign if sign in "\\{}" else ""))

    def _byte(self, value: int) -> None:
        if self.to_skip:
            self.to_skip -= 1
        else:
            self.waiting.append(value)

    def _say(self, text: str) -> None:
        text = self._settle(text)
        if self.to_skip:
            cut = min(self.to_skip, len(text))
            self.to_skip -= cut
            text = text[cut:]
        self._put(text if text.isascii() else _in(text.encode("latin-1", "replace"), self._codepage()))

    def _put(self, text: str) -> None:
        if text and not self.group.hidden and self.group.into != "-":
            self.words.setdefault(self.group.into, []).append(text)

    def _settle(self, following: str = "") -> str:
        """Turn bytes into letters. The second byte of one may be written as a plain character: it is taken away."""
        if not self.waiting:
            return following
        content, codepage = bytes(self.waiting), self._codepage()
        self.waiting.clear()
        if following and codepage in _TWO_BYTES and _is_cut(content, codepage):
            content += following[0].encode("latin-1", "replace")
            following = following[1:]
        self._put(_in(content, codepage))
        return following

    def _codepage(self) -> str:
        return self.fonts.get(self.group.font) or self.codepage

    def _control(self, word: str, number: int | None) -> None:
        if word == "u":
            self._settle()
            self._put(chr((number or 0) % 0x10000))
            self.to_skip = self.group.skip
            return
        if self.to_skip:
            self.to_skip -= 1
            return
        self._settle()
        star, self.star = self.star, False
        if word in _LEFT_OUT or (star and word not in _KEPT and word not in _APART):
            self.group = replace(self.group, into="-")
        elif word in _APART and self.group.into != "-":
            self.group = replace(self.group, into="-" if word in _ONCE and word in self.words else word)
        elif word in _WORDS:
            self._put(_WORDS[word])
        elif action := _ACTIONS.get(word):
            action(self, 1 if number is None else number)

    def end_paragraph(self, _: int = 1) -> None:
        if self.group.into:
            self._put("\n")
        elif self.paragraph.in_table:
            self.words[""].append("\n")
        else:
            text = _whole(self.words[""])
            self.words[""] = []
            self._place(text)

    def _place(self, text: str) -> None:
        """A paragraph goes to where its kind goes: a list, code, or the text."""
        label = squeeze(_whole(self.words.pop("listtext", []) + self.words.pop("pntext", [])))
        name, outline = self.styles.get(self.paragraph.style, ("", -1))
        heading = _HEADING.match("heading 1" if name == "Title" else name)
        level = self.paragraph.outline if self.paragraph.outline >= 0 else outline
        self._flush_table()
        if not text.strip():
            return
        if heading or 0 <= level < 9:
            self.flush()
            numbered = f"{label} {text}" if label[:1].isalnum() else text
            self.draft.heading(numbered, int(heading[1]) if heading else level + 1)
        elif label:
            self.flush(keep=self.items)
            self.items.append(bullet(tidy(text), self.paragraph.depth, label if label[:1].isalnum() else "-"))
        elif _CODE.search(name):
            self.flush(keep=self.listing)
            self.listing.append(text.rstrip())
        else:
            self.flush()
            self.draft.text(tidy(text))

    def flush(self, keep: list[str] | None = None) -> None:
        """Finish the list or the code that the next paragraph does not continue."""
        if self.items and keep is not self.items:
            self.draft.text("\n".join(self.items))
            self.items.clear()
        if self.listing and keep is not self.listing:
            self.draft.code("\n".join(self.listing))
            self.listing.clear()

    def end_cell(self, _: int = 1) -> None:
        text = squeeze(_whole(self.words[""]))
        self.words[""] = []
        column = len(self.cells)
        above = self.rows[-1][column] if self.rows and column < len(self.rows[-1]) else ""
        continues = column < len(self.merges) and self.merges[column]
        self.cells.append(above if continues and not text else text)

    def end_row(self, _: int = 1) -> None:
        if self.cells:
            self.flush()
            self.rows.append(self.cells)
        self.cells = []

    def _flush_table(self) -> None:
        if self.rows:
            self.draft.table(self.rows)
            self.rows = []

    def finish(self) -> None:
        self.paragraph = Paragraph()
        self.end_paragraph()
        self._flush_table()
        self.flush()
        for number, note in enumerate(self.notes, 1):
            self.draft.text(f"[^{number}]: {note}")

    def select_font(self, number: int) -> None:
        self.group = replace(self.group, font=number)

    def define_charset(self, number: int) -> None:
        if self.group.into == "fonttbl" and number in _CHARSETS:
            self.fonts[self.group.font] = _CHARSETS[number]

    def select_style(self, number: int) -> None:
        if self.group.into == "stylesheet":
            self.defined = (number, -1)
        else:
            self.paragraph = replace(self.paragraph, style=number)

    def select_outline(self, number: int) -> None:
        if self.group.into == "stylesheet":
            self.defined = (self.defined[0], number)
        else:
            self.paragraph = replace(self.paragraph, outline=number)

    def select_codepage(self, number: int) -> None:
        self.codepage = _CODEPAGES.get(number, f"cp{number}")

    def set_skip(self, number: int) -> None:
        self.group = replace(self.group, skip=max(0, min(number, 20)))

    def set_in_table(self, _: int = 1) -> None:
        self.paragraph = replace(self.paragraph, in_table=True)

    def set_depth(self, number: int) -> None:
        self.paragraph = replace(self.paragraph, depth=max(0, min(number, 20)))

    def begin_row(self, _: int = 1) -> None:
        self.merges = []
        self.merging = False

    def merge(self, _: int = 1) -> None:
        self.merging = True

    def define_cell(self, _: int = 1) -> None:
        self.merges.append(self.merging)
        self.merging = False

    def hide(self, number: int) -> None:
        self.group = replace(self.group, hidden=number != 0)

    def show(self, _: int = 1) -> None:
        self.group = replace(self.group, hidden=False)

    def reset(self, _: int = 1) -> None:
        if self.group.into == "":
            self.paragraph = Paragraph()


# What a control word does with its number, which is 1 where none is written.
_ACTIONS: dict[str, Callable[[Reader, int], None]] = {
    **dict.fromkeys(("par", "sect", "page"), Reader.end_paragraph),
    **dict.fromkeys(("v", "deleted"), Reader.hide),
    "cell": Reader.end_cell,
    "row": Reader.end_row,
    "trowd": Reader.begin_row,
    "clvmrg": Reader.merge,
    "cellx": Reader.define_cell,
    "pard": Reader.reset,
    "plain": Reader.show,
    "f": Reader.select_font,
    "fcharset": Reader.define_charset,
    "s": Reader.select_style,
    "outlinelevel": Reader.select_outline,
    "ansicpg": Reader.select_codepage,
    "uc": Reader.set_skip,
    "intbl": Reader.set_in_table,
    "ilvl": Reader.set_depth,
}


def parse(path: Path, name: str) -> ParsedFile:
    reader = Reader()
    reader.read(path.read_bytes().decode("latin-1"))
    reader.finish()
    title, author = (squeeze(_whole(reader.words.get(key, []))) for key in ("title", "author"))
    return reader.draft.parsed(title, {"author": author})


def _whole(words: list[str]) -> str:
    """Words as one text, in which the halves of characters beyond the first 65,536 have found each other."""
    text = "".join(words)
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _in(content: bytes, codepage: str) -> str:
    try:
        return content.decode(codepage, "replace")
    except LookupError:
        return content.decode("cp1252", "replace")


def _is_cut(content: bytes, codepage: str) -> bool:
    """Whether the last character of some bytes lacks its second half."""
    try:
        content.decode(codepage)
    except UnicodeDecodeError as error:
        return error.end == len(content)
    return False
