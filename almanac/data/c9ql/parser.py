"""Reads a C9QL query into its tree.

The fields of a statement are those of the result before it, so the caller gives a function that returns them. They can
be unknown, as after `transpose`: a name is then the words up to the next symbol or word with a meaning.
"""

from collections.abc import Callable, Sequence

from almanac.data.c9ql import lexer
from almanac.data.c9ql.errors import C9qlError
from almanac.data.c9ql.expressions import ExpressionReader, unknown_word
from almanac.data.c9ql.lexer import Scanner
from almanac.data.c9ql.names import FieldNames
from almanac.data.c9ql.printer import name_of
from almanac.data.c9ql.tree import AllFields, Expression, Item, Name, Query, Statement, Without
from almanac.data.fields import Field

MAX_QUERY_CHARS = 20_000
MAX_STATEMENTS = 50
MAX_LIMIT = 1_000_000_000
CLAUSES = ("where", "group by", "having", "order by", "limit")

Fields = Sequence[Field] | None
FieldsAfter = Callable[[Statement, Sequence[Field]], Fields]


def read_query(text: str, fields: Fields, fields_after: FieldsAfter) -> Query:
    """Return the tree of a query over these fields; `fields` is None if they are not known."""
    try:
        _check_text(text)
        return Query(_read(Scanner(text), fields, fields_after), text)
    except C9qlError as error:
        raise error.within(text) from None


def _check_text(text: str) -> None:
    if len(text) > MAX_QUERY_CHARS:
        raise C9qlError(f"the query is longer than {MAX_QUERY_CHARS:,} characters.")
    refused = next((at for at, each in enumerate(text) if each == "\0" or "\ud800" <= each <= "\udfff"), None)
    if refused is not None:
        raise C9qlError("this character cannot be part of a query.", at=refused)


def _read(scanner: Scanner, fields: Fields, fields_after: FieldsAfter) -> tuple[Statement, ...]:
    statements: list[Statement] = []
    while True:
        while scanner.take_symbol(";"):
            continue
        if scanner.ended:
            break
        if len(statements) == MAX_STATEMENTS:
            raise C9qlError(f"a query has at most {MAX_STATEMENTS} statements.", at=scanner.position)
        statement = StatementReader(scanner, fields).statement()
        fields = None if fields is None else fields_after(statement, fields)
        statements.append(statement)
    if not statements:
        raise C9qlError("the query is empty.", at=0, remedy="Start with 'select *'.")
    return tuple(statements)


class StatementReader(ExpressionReader):
    """Reads one statement, up to a semicolon or the end."""

    def __init__(self, scanner: Scanner, fields: Fields) -> None:
        super().__init__(scanner, None if fields is None else FieldNames(each.name for each in fields))

    def statement(self) -> Statement:
        """Read the statement."""
        self.scanner.take_words("select")
        distinct = self._distinct()
        items = (Item(AllFields(self.scanner.position)),) if self._clause_follows() else self._items()
        where = self.expression() if self.scanner.take_words("where") else None
        self._add_aliases(items)
        group = self.expressions() if self.scanner.take_words("group", "by") else ()
        having = self.expression() if self.scanner.take_words("having") else None
        order = self.sorts() if self.scanner.take_words("order", "by") else ()
        limit = self._limit() if self.scanner.take_words("limit") else None
        if not (self.scanner.ended or self.scanner.sees(";")):
            error = self.expect("the end of the statement, ';' or a clause in the order 'where', 'group by', 'having',"
                                " 'order by', 'limit'")  # fmt: skip
            raise C9qlError(error.problem, at=error.at, remedy=unknown_word(self, CLAUSES))
        return Statement(items, distinct, where, group, having, order, limit)

    def _add_aliases(self, items: tuple[Item | Without, ...]) -> None:
        """Make the names of the items known to the clauses after `where`."""
        if self.names is not None:
            listed = [each for each in items if isinstance(each, Item) and not isinstance(each.expression, AllFields)]
            self.names = FieldNames([*self.names.names, *(each.alias or name_of(each.expression) for each in listed)])

    def _distinct(self) -> bool:
        """Read `distinct`, except as the function `distinct(…)` or at the start of the name of a field."""
        if not self.scanner.sees_words("distinct") or self._field_here(longer_than=len("distinct")):
            return False
        follower = self.scanner.text[self.scanner.position + len("distinct") :][:1]
        return follower != "(" and self.scanner.take_words("distinct")

    def _clause_follows(self) -> bool:
        return self.scanner.peek(lexer.STOP) is not None and self._field_here(longer_than=len("having")) is None

    def _items(self) -> tuple[Item | Without, ...]:
        items = [self._item()]
        while self.scanner.take_symbol(","):
            items.append(self._item())
        return tuple(items)

    def _item(self) -> Item | Without:
        at = self.scanner.position
        if self.scanner.take_symbol("*"):
            return Item(AllFields(at))
        if self.scanner.take_symbol("~"):
            return Without(self._excluded())
        return self._aliased(self.expression())

    def _excluded(self) -> Name:
        expression = self._operand(bare=False)
        if not isinstance(expression, Name):
            raise C9qlError("expected the name of a field after '~'.", at=expression.at)
        return expression

    def _aliased(self, expression: Expression) -> Item:
        scanner = self.scanner
        named = scanner.take_words("as")
        for quote in (lexer.BACKTICK, lexer.DOUBLE, lexer.SINGLE):
            if (quoted := scanner.take_quoted(quote)) is not None:
                return Item(expression, " ".join(quoted.split()) or self._fail("a name that is not empty"))
        if named or (scanner.peek(lexer.WORD) and not scanner.peek(lexer.STOP)):
            return Item(expression, scanner.take_raw(",;", lexer.STOP) or self._fail("a name after 'as'"))
        return Item(expression)

    def _limit(self) -> int:
        found = self.scanner.take(lexer.NUMBER)
        if found is None or not found[0].isdigit() or int(found[0][:12]) > MAX_LIMIT:
            raise self.expect(f"a whole number up to {MAX_LIMIT:,}")
        return int(found[0])
