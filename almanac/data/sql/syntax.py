"""The text of a query as a tree: limits of size and depth, and errors that tell the position.

sqlglot takes exponential time for some texts, so this runs in a confined child process with a deadline only.
"""

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from almanac.data.sql.errors import SqlError, TextPosition, quote

MAX_SQL_CHARS = 20_000
MAX_SQL_TOKENS = 5_000
MAX_BRACKET_DEPTH = 40
MAX_TREE_DEPTH = 150
MAX_TREE_NODES = 10_000

# sqlglot raises these, too, for some texts that are no SQL.
_PARSER_FAILURES = (TokenError, TypeError, ValueError, AttributeError, LookupError, AssertionError)

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}


def parse_sql(text: str) -> exp.Query:
    """Parse exactly one SELECT query in the dialect of DuckDB."""
    if len(text) > MAX_SQL_CHARS:
        raise SqlError(f"The query has {len(text):,} characters; at most {MAX_SQL_CHARS:,} are allowed.")
    tokens = _tokenise(text)
    _check_depth(tokens)
    try:
        trees = sqlglot.parse(text, dialect="duckdb")
    except ParseError as error:
        raise _syntax_error(error) from None
    except RecursionError:
        raise _too_deep() from None
    except _PARSER_FAILURES:
        raise SqlError("The query cannot be read.", expected="Write DuckDB's SQL.") from None
    return single_query([tree for tree in trees if tree is not None])


def single_query(trees: list[exp.Expr]) -> exp.Query:
    """The tree, if it is one query of limited size."""
    if len(trees) != 1:
        raise SqlError(f"There are {len(trees)} statements.", expected="Write exactly one SELECT query.")
    [tree] = trees
    if not isinstance(tree, exp.Query) or isinstance(tree, exp.Table):
        raise SqlError(f"The statement {tree.key.upper()} is not a query.", expected="Only SELECT is possible.")
    check_size(tree)
    return tree


def check_size(tree: exp.Expr) -> None:
    """Refuse a tree with too many nodes or levels. It does not recurse."""
    level, depth, count = [tree], 0, 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > MAX_TREE_DEPTH:
            raise _too_deep()
        if count > MAX_TREE_NODES:
            raise SqlError(f"The query has more than {MAX_TREE_NODES:,} parts.", expected="Split it.")
        level = [child for node in level for child in node.iter_expressions()]


def _tokenise(text: str) -> list[Token]:
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except TokenError as error:
        raise SqlError(f"The query cannot be read: {_first_line(error)}") from None
    if not tokens:
        raise SqlError("The query is empty.", expected="Write a SELECT query.")
    if len(tokens) > MAX_SQL_TOKENS:
        raise SqlError(f"The query has more than {MAX_SQL_TOKENS:,} words and signs.", expected="Split it.")
    return tokens


def _check_depth(tokens: list[Token]) -> None:
    depth = 0
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > MAX_BRACKET_DEPTH:
            raise _too_deep(TextPosition(token.line, token.col))


def _too_deep(position: TextPosition | None = None) -> SqlError:
    return SqlError("The query is nested too deeply.", position, "Use WITH to name its parts.")


def _syntax_error(error: ParseError) -> SqlError:
    if not error.errors:
        return SqlError("The query cannot be read.")
    first = error.errors[0]
    description = str(first.get("description") or "Invalid expression").rstrip(".")
    near = str(first.get("highlight") or "")
    message = f"{description} near {quote(near)}." if near else f"{description}."
    return SqlError(message, TextPosition(first.get("line") or 1, first.get("col") or 1), "Write DuckDB's SQL.")


def _first_line(error: Exception) -> str:
    return quote(str(error).splitlines()[0]) if str(error) else ""
