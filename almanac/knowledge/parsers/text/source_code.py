"""Source code: one block for each function, class and method, named after what it defines.

No grammar is needed for that. Code is indented, whatever its language: a definition belongs to the nearest class
above it that is indented less, and ends where the next one begins. Code that is not indented still comes out whole,
with fewer names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from almanac.knowledge.parsers import file_types
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.knowledge.parsers.text import plain_text

LONGEST_LINE = 1_000  # characters; a longer line defines nothing, it is data or minified

_MODIFIERS = (
    r"(?:(?:public|private|protected|internal|static|final|abstract|sealed|open|override|virtual|partial|async|export"
    r"|default|declare|inline|const|constexpr|unsafe|extern|suspend|data|case|implicit|lazy|mutating|synchronized|native"
    r"|readonly|fileprivate|required|convenience|pub|pub\([^)]{1,40}\)|extern \"C\"|template<[^>]{0,200}>)\s+){0,8}"
)
_BRACED = r"(?:class|interface|enum|record|struct|trait|object|protocol|extension|namespace|module|union|actor)"
_NOT_NAMES = r"(?!(?:if|for|foreach|while|switch|catch|return|function|else|do|try|using|lock|new|throw|await|case)\b)"
_TYPE = r"[A-Za-z_][\w:.]*(?:<[^;{}()]{0,100}>)?(?:\[\])*[?*&\s]+"


@dataclass(frozen=True, slots=True)
class Language:
    """How definitions look in a language, at the beginning of a line after its indentation."""

    name: str
    holders: str  # what has other definitions inside it; the first group is its name
    leaves: str  # what has none
    members: str = ""  # a leaf, but only inside a holder, where it looks like nothing else
    comment: tuple[str, str] = ("/*", "*/")  # between these, nothing is defined
    stop: str = ""  # where this ends every statement, a definition goes on until a line has it at its end


_C_FUNCTION = (
    rf"{_NOT_NAMES}{_MODIFIERS}(?:(?:{_TYPE}){{1,4}}((?:\w+::){{0,9}}~?\w+|operator\S{{1,3}})"
    r"|((?:\w+::){1,9}~?\w+))\s*\([^;]*$"
)
_JAVA_METHOD = rf"{_NOT_NAMES}{_MODIFIERS}(?:<[^>]{{1,100}}>\s*)?(?:{_TYPE})?(\w+)\s*\([^;=]*$"
_HOLDER = rf"{_MODIFIERS}{_BRACED}\s+(?:class\s+)?([\w$.:]+)"
_KEYWORD = rf"{_MODIFIERS}(?:fun|func|function|def|fn|sub|proc)\s*\*?\s+(?:<[^>]{{1,100}}>\s*)?([\w$.?!=]+)"

PYTHON = Language("python", r"class\s+(\w+)\s*[:(\[]", r"(?:async\s+)?def\s+(\w+)\s*[(\[]", comment=('"""', '"""'))
SCRIPT = Language(
    "javascript",
    _HOLDER,
    rf"{_MODIFIERS}(?:function\s*\*?\s*([\w$]+)|(?:const|let|var|type)\s+([\w$]+)\s*(?::[^=]{{1,200}})?="
    r"\s*(?:async\s*)?(?:\(|function|<|[\w$]+\s*=>|\{\s*$))",
    rf"{_NOT_NAMES}(?:(?:public|private|protected|static|async|readonly|get|set|override|abstract)\s+)*\*?([\w$#]+)"
    r"\s*(?:<[^>]{0,100}>)?\([^;]*$",
)
JAVA = Language("java", _HOLDER, _JAVA_METHOD, _JAVA_METHOD)
C = Language("c", rf"(?:typedef\s+)?{_MODIFIERS}(?:class|struct|namespace|union|enum)\s+(?:class\s+)?([\w:]+)[^;()]*$",
             _C_FUNCTION, rf"(?:explicit\s+|virtual\s+)?(~?\w+)\s*\([^;]*$|{_C_FUNCTION}")  # fmt: skip
GO = Language("go", r"type\s+(\w+)\s+(?:struct|interface)\b", r"func\s+(?:\(\s*\w*\s*\*?(\w+)[^)]*\)\s*)?(\w+)")
RUST = Language(
    "rust",
    rf"{_MODIFIERS}(?:(?:struct|enum|trait|mod|union)\s+(\w+)"
    r"|impl(?:<[^>]{0,100}>)?\s+(?:[\w:<>', ]{1,200}\s+for\s+)?(\w+))",
    rf"{_MODIFIERS}(?:fn\s+(\w+)|macro_rules!\s*(\w+))",
)
RUBY = Language("ruby", r"(?:class|module)\s+([\w:]+)", r"def\s+((?:self\.)?[\w?!=]+)", comment=("=begin", "=end"))
KEYWORD = Language("other", _HOLDER, _KEYWORD)
SHELL = Language("shell", r"(?!)()", r"(?:function\s+([\w-]+)|([\w-]+)\s*\(\)\s*\{?\s*$)", comment=("", ""))
SQL = Language(
    "sql",
    r"(?!)()",
    r"(?i:create|alter)\s+(?i:(?:or\s+replace|temporary|temp|unique|materialized|global)\s+){0,4}"
    r"(?i:table|view|function|procedure|index|trigger|type|schema|sequence|role|policy|database)\s+"
    r"(?i:if\s+not\s+exists\s+)?([\w.\"`\[\]]+)",
    stop=";",
)

LANGUAGES: dict[str, Language] = {
    **dict.fromkeys(("py", "pyi", "pyw"), PYTHON),
    **dict.fromkeys(("js", "mjs", "cjs", "jsx", "ts", "tsx", "mts", "cts", "vue", "svelte"), SCRIPT),
    **dict.fromkeys(("java", "cs", "dart", "groovy"), JAVA),
    **dict.fromkeys(("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "hxx", "ino", "m", "mm"), C),
    **dict.fromkeys(("rb", "rake", "gemspec"), RUBY),
    **dict.fromkeys(("sh", "bash", "zsh", "ksh"), SHELL),
    **dict.fromkeys(("sql", "ddl"), SQL),
    "go": GO,
    "rs": RUST,
}

_LEAD = re.compile(r"@|#\[|///?|/\*|\*|#(?!include|define|if|endif|pragma)|--|\[\w")  # comments and decorators above
_CONTINUES = re.compile(
    r"[)}\]{#:]|\$\$|(?:end|else|elif|elsif|except|finally|catch|rescue|ensure|then|begin|where|as|returns?|language"
    r"|public|private|protected)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition: where it begins, and what it is called. Nameless: code that defines nothing."""

    start: int
    indent: int
    name: str = ""
    holds: bool = False


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = plain_text.decode(path.read_bytes())
    kind = file_types.detect_file_type(text[: file_types.SNIFF_BYTES].encode("utf-8", "replace"), name)
    language = LANGUAGES.get(kind.extension, KEYWORD)
    return ParsedFile(text, tuple(blocks(text, language)), metadata={"programming_language": kind.extension})


def blocks(text: str, language: Language) -> Iterator[Block]:
    """The definitions of a text and all that stands between them."""
    symbols = [Symbol(0, 0), *_symbols(text, language)]
    for symbol, end in zip(symbols, [*(each.start for each in symbols[1:]), len(text)], strict=True):
        body = text[symbol.start : end]
        start = symbol.start + len(body) - len(body.lstrip("\n"))
        if body.strip():
            yield Block("code", start, symbol.start + len(body.rstrip()), name=symbol.name)


def _symbols(text: str, language: Language) -> Iterator[Symbol]:
    patterns = [re.compile(each) if each else None for each in (language.holders, language.leaves, language.members)]
    open_ones: list[Symbol] = []
    lead: int | None = None  # where the comments right above begin
    last = ""
    for start, line in _lines(text, language.comment):
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if not bare:
            lead = None
            continue
        found = _definition(bare, indent, open_ones, patterns)
        if found:
            while open_ones and open_ones[-1].indent >= indent:
                open_ones.pop()
            name, holds = found
            qualified = f"{open_ones[-1].name}.{name}" if open_ones else name
            open_ones.append(Symbol(start, indent, qualified, holds))
            yield Symbol(start if lead is None else lead, indent, qualified, holds)
            lead = None
        elif _LEAD.match(bare):
            lead = start if lead is None else lead
        else:
            is_over = last.endswith(language.stop) and not _CONTINUES.match(bare)
            if open_ones and indent <= open_ones[0].indent and is_over:
                open_ones.clear()
                yield Symbol(start if lead is None else lead, indent)
            lead = None
        last = bare.rstrip()


def _lines(text: str, comment: tuple[str, str]) -> Iterator[tuple[int, str]]:
    """Lines that may define something: not those in the middle of a long comment, nor endless ones."""
    begin, end = comment
    start, inside = 0, False
    for line in text.split("\n"):
        if inside:
            inside = end not in line
        elif len(line) <= LONGEST_LINE:
            yield start, line
            inside = bool(begin) and begin in line and end not in line.split(begin, 1)[1]
        start += len(line) + 1


def _definition(
    line: str, indent: int, open_ones: list[Symbol], patterns: list[re.Pattern[str] | None]
) -> tuple[str, bool] | None:
    """The name a line defines, and whether others are defined inside it. What a function defines is its own affair."""
    around = [each for each in open_ones if each.indent < indent]
    if (around and not around[-1].holds) or (indent and not around):
        return None
    holders, leaves, members = patterns
    if holders and (found := holders.match(line)):
        return _name(found), True
    found = leaves.match(line) if leaves else None
    if not found and around and members:
        found = members.match(line)
    return (_name(found), False) if found else None


def _name(found: re.Match[str]) -> str:
    return ".".join(group.strip('"`[]') for group in found.groups() if group).replace("::", ".")
