"""Source code: one block for each function, class and method, with its name.

This needs no grammar, because code in all languages is indented: a definition belongs to the nearest class above it
that is indented less, and ends where the next definition begins. Code without indentation is kept whole too, with fewer
names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from almanac.knowledge.parsers import file_types
from almanac.knowledge.parsers.parsed_file import Block, ParsedFile
from almanac.knowledge.parsers.text import encodings

MAX_LINE_CHARS = 1_000  # a longer line is data or minified code, and defines nothing

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
    """The patterns of definitions in a language, for lines without indentation. Their groups form the name."""

    containers: str  # definitions that contain others, such as classes
    leaves: str  # definitions that contain no others, such as functions
    members: str = ""  # leaves within a container; elsewhere the pattern could match other code
    comment: tuple[str, str] = ("/*", "*/")  # nothing is defined between these
    stop: str = ""  # if every statement ends with this, a definition continues until a line that ends with it


_C_FUNCTION = (
    rf"{_NOT_NAMES}{_MODIFIERS}(?:(?:{_TYPE}){{1,4}}((?:\w+::){{0,9}}~?\w+|operator\S{{1,3}})"
    r"|((?:\w+::){1,9}~?\w+))\s*\([^;]*$"
)
_JAVA_METHOD = rf"{_NOT_NAMES}{_MODIFIERS}(?:<[^>]{{1,100}}>\s*)?(?:{_TYPE})?(\w+)\s*\([^;=]*$"
_CONTAINER = rf"{_MODIFIERS}{_BRACED}\s+(?:class\s+)?([\w$.:]+)"
_KEYWORD = rf"{_MODIFIERS}(?:fun|func|function|def|fn|sub|proc)\s*\*?\s+(?:<[^>]{{1,100}}>\s*)?([\w$.?!=]+)"

PYTHON = Language(r"class\s+(\w+)\s*[:(\[]", r"(?:async\s+)?def\s+(\w+)\s*[(\[]", comment=('"""', '"""'))
SCRIPT = Language(
    _CONTAINER,
    rf"{_MODIFIERS}(?:function\s*\*?\s*([\w$]+)|(?:const|let|var|type)\s+([\w$]+)\s*(?::[^=]{{1,200}})?="
    r"\s*(?:async\s*)?(?:\(|function|<|[\w$]+\s*=>|\{\s*$))",
    rf"{_NOT_NAMES}(?:(?:public|private|protected|static|async|readonly|get|set|override|abstract)\s+)*\*?([\w$#]+)"
    r"\s*(?:<[^>]{0,100}>)?\([^;]*$",
)
JAVA = Language(_CONTAINER, _JAVA_METHOD, _JAVA_METHOD)
C = Language(rf"(?:typedef\s+)?{_MODIFIERS}(?:class|struct|namespace|union|enum)\s+(?:class\s+)?([\w:]+)[^;()]*$",
             _C_FUNCTION, rf"(?:explicit\s+|virtual\s+)?(~?\w+)\s*\([^;]*$|{_C_FUNCTION}")  # fmt: skip
GO = Language(r"type\s+(\w+)\s+(?:struct|interface)\b", r"func\s+(?:\(\s*\w*\s*\*?(\w+)[^)]*\)\s*)?(\w+)")
RUST = Language(
    rf"{_MODIFIERS}(?:(?:struct|enum|trait|mod|union)\s+(\w+)"
    r"|impl(?:<[^>]{0,100}>)?\s+(?:[\w:<>', ]{1,200}\s+for\s+)?(\w+))",
    rf"{_MODIFIERS}(?:fn\s+(\w+)|macro_rules!\s*(\w+))",
)
RUBY = Language(r"(?:class|module)\s+([\w:]+)", r"def\s+((?:self\.)?[\w?!=]+)", comment=("=begin", "=end"))
KEYWORD = Language(_CONTAINER, _KEYWORD)
SHELL = Language(r"(?!)()", r"(?:function\s+([\w-]+)|([\w-]+)\s*\(\)\s*\{?\s*$)", comment=("", ""))
SQL = Language(
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

# Comments and decorators; those directly above a definition belong to it.
_LEADING_LINE = re.compile(r"@|#\[|///?|/\*|\*|#(?!include|define|if|endif|pragma)|--|\[\w")
_CONTINUATION = re.compile(
    r"[)}\]{#:]|\$\$|(?:end|else|elif|elsif|except|finally|catch|rescue|ensure|then|begin|where|as|returns?|language"
    r"|public|private|protected)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition, or code that defines nothing and has no name."""

    start: int
    indent: int
    name: str = ""
    is_container: bool = False


def parse(path: Path, name: str) -> ParsedFile:
    text, _ = encodings.decode(path.read_bytes())
    file_type = file_types.detect_file_type(text[: file_types.SNIFF_BYTES].encode("utf-8", "replace"), name)
    language = LANGUAGES.get(file_type.extension, KEYWORD)
    return ParsedFile(text, tuple(blocks(text, language)), metadata={"programming_language": file_type.extension})


def blocks(text: str, language: Language) -> Iterator[Block]:
    """The definitions of a text, and the code between them."""
    symbols = [Symbol(0, 0), *_symbols(text, language)]
    for symbol, end in zip(symbols, [*(symbol.start for symbol in symbols[1:]), len(text)], strict=True):
        body = text[symbol.start : end]
        start = symbol.start + len(body) - len(body.lstrip("\n"))
        if body.strip():
            yield Block("code", start, symbol.start + len(body.rstrip()), name=symbol.name)


def _symbols(text: str, language: Language) -> Iterator[Symbol]:
    patterns = [re.compile(each) if each else None for each in (language.containers, language.leaves, language.members)]
    enclosing: list[Symbol] = []
    lead_start: int | None = None  # of the comments and decorators directly above
    previous = ""
    for start, line in _lines(text, language.comment):
        bare = line.lstrip()
        indent = len(line) - len(bare)
        if not bare:
            lead_start = None
            continue
        definition = _definition(bare, indent, enclosing, patterns)
        if definition:
            while enclosing and enclosing[-1].indent >= indent:
                enclosing.pop()
            name, is_container = definition
            qualified = f"{enclosing[-1].name}.{name}" if enclosing else name
            enclosing.append(Symbol(start, indent, qualified, is_container))
            yield Symbol(start if lead_start is None else lead_start, indent, qualified, is_container)
            lead_start = None
        elif _LEADING_LINE.match(bare):
            lead_start = start if lead_start is None else lead_start
        else:
            is_over = previous.endswith(language.stop) and not _CONTINUATION.match(bare)
            if enclosing and indent <= enclosing[0].indent and is_over:
                enclosing.clear()
                yield Symbol(start if lead_start is None else lead_start, indent)
            lead_start = None
        previous = bare.rstrip()


def _lines(text: str, comment: tuple[str, str]) -> Iterator[tuple[int, str]]:
    """Lines that may define something, with their offsets: no lines within a long comment, and no very long lines."""
    begin, end = comment
    start, in_comment = 0, False
    for line in text.split("\n"):
        if in_comment:
            in_comment = end not in line
        elif len(line) <= MAX_LINE_CHARS:
            yield start, line
            in_comment = bool(begin) and begin in line and end not in line.split(begin, 1)[1]
        start += len(line) + 1


def _definition(
    line: str, indent: int, enclosing: list[Symbol], patterns: list[re.Pattern[str] | None]
) -> tuple[str, bool] | None:
    """The name that a line defines, and whether it is a container. Definitions within functions do not count."""
    around = [symbol for symbol in enclosing if symbol.indent < indent]
    if (around and not around[-1].is_container) or (indent and not around):
        return None
    containers, leaves, members = patterns
    if containers and (match := containers.match(line)):
        return _name(match), True
    match = leaves.match(line) if leaves else None
    if not match and around and members:
        match = members.match(line)
    return (_name(match), False) if match else None


def _name(match: re.Match[str]) -> str:
    return ".".join(group.strip('"`[]') for group in match.groups() if group).replace("::", ".")
