"""Reads the expressions of a C9QL statement."""

from collections.abc import Callable
from typing import cast

from almanac.data.c9ql import lexer
from almanac.data.c9ql.errors import C9qlError, did_you_mean, no_field, no_function
from almanac.data.c9ql.functions import FUNCTIONS, Function, Parameter
from almanac.data.c9ql.lexer import Scanner
from almanac.data.c9ql.names import FieldNames
from almanac.data.c9ql.tree import (
    AllFields,
    Between,
    Binary,
    BinaryOperator,
    Call,
    Case,
    Constant,
    Expression,
    In,
    IsNull,
    Logic,
    LogicOperator,
    Name,
    Number,
    Over,
    Path,
    Placeholder,
    Sort,
    Text,
    Unary,
    Word,
)

MAX_NESTING = 40  # parentheses, calls and signs inside each other
MAX_CHAIN = 40  # operators of one precedence in a row, except `and` and `or`

LITERAL_ENDS = ",;=<>!"
COMPARISONS: dict[str, BinaryOperator] = {"<>": "!=", "==": "="}
CONSTANTS = {"true": True, "false": False, "null": None}


class ExpressionReader:
    """Reads expressions from a scanner. `names` is None if the fields are not known."""

    def __init__(self, scanner: Scanner, names: FieldNames | None) -> None:
        self.scanner = scanner
        self.names: FieldNames | None = names
        self._nesting = 0

    def expect(self, expectation: str) -> C9qlError:
        """Return the error for a text that goes on with something else."""
        return C9qlError(f"expected {expectation}, found {self.scanner.describe_next()}.", at=self.scanner.position)

    def require(self, symbol: str) -> None:
        """Move behind a symbol that must come next."""
        if not self.scanner.take_symbol(symbol):
            raise self.expect(f"'{symbol}'")

    # Conditions

    def expression(self, *, bare: bool = False) -> Expression:
        """Read a whole expression. With `bare`, a word that is no field is a text."""
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise C9qlError("the expression is nested too deeply.", at=self.scanner.position,
                            remedy="Split it into several statements, separated by ';'.")  # fmt: skip
        found = self._logic("or", lambda: self._logic("and", lambda: self._negation(bare)))
        self._nesting -= 1
        return found

    def _logic(self, operator: LogicOperator, operand: Callable[[], Expression]) -> Expression:
        at, operands = self.scanner.position, [operand()]
        while self.scanner.take_words(operator):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Logic(operator, tuple(operands), at)

    def _negation(self, bare: bool) -> Expression:
        at = self.scanner.position
        if not self.scanner.sees_words("not") or self._field_here(longer_than=3):
            return self._predicate(bare)
        self.scanner.take_words("not")
        return Unary("not", self._nested(lambda: self._negation(bare)), at)

    def _nested(self, read: Callable[[], Expression]) -> Expression:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise C9qlError("the expression is nested too deeply.", at=self.scanner.position)
        found = read()
        self._nesting -= 1
        return found

    def _predicate(self, bare: bool) -> Expression:
        at, left = self.scanner.position, self._sum(bare)
        while (found := self._comparison(left, at)) is not None:
            left = found
        return left

    def _comparison(self, left: Expression, at: int) -> Expression | None:
        scanner = self.scanner
        if (symbol := scanner.take(lexer.COMPARISON)) is not None:
            operator = cast(BinaryOperator, COMPARISONS.get(symbol[0], symbol[0]))
            return Binary(operator, left, self._sum(bare=True), at)
        if scanner.take_words("is", "not", "null"):
            return IsNull(left, negated=True, at=at)
        if scanner.take_words("is", "null"):
            return IsNull(left, at=at)
        negated = scanner.take_words("not")
        if scanner.take_words("like"):
            return Binary("not like" if negated else "like", left, self._sum(bare=True), at)
        if scanner.take_words("in"):
            return In(left, self._options(), negated, at)
        if scanner.take_words("between"):
            low = self._sum(bare=True)
            if not scanner.take_words("and"):
                raise self.expect("'and' and the upper bound")
            return Between(left, low, self._sum(bare=True), negated, at)
        if negated:
            raise self.expect("'like', 'in' or 'between' after 'not'")
        return None

    def _options(self) -> tuple[Expression, ...]:
        if not self.scanner.sees("("):
            return (self._sum(bare=True),)
        self.require("(")
        options = [self._sum(bare=True)]
        while self.scanner.take_symbol(","):
            options.append(self._sum(bare=True))
        self.require(")")
        return tuple(options)

    # Arithmetic

    def _sum(self, bare: bool) -> Expression:
        return self._chain(("+", "-"), lambda: self._product(bare))

    def _product(self, bare: bool) -> Expression:
        return self._chain(("*", "/", "%"), lambda: self._signed(bare))

    def _chain(self, operators: tuple[BinaryOperator, ...], operand: Callable[[], Expression]) -> Expression:
        at, left = self.scanner.position, operand()
        for _ in range(MAX_CHAIN):
            operator = self.scanner.take_symbol(*operators)
            if operator is None:
                return left
            left = Binary(cast(BinaryOperator, operator), left, operand(), at)
        raise C9qlError(f"more than {MAX_CHAIN} operators in a row.", at=self.scanner.position,
                        remedy="Split the expression into several statements, separated by ';'.")  # fmt: skip

    def _signed(self, bare: bool) -> Expression:
        at = self.scanner.position
        if self.scanner.take_symbol("-"):
            return Unary("-", self._nested(lambda: self._signed(bare)), at)
        self.scanner.take_symbol("+")
        return self._power(bare)

    def _power(self, bare: bool) -> Expression:
        at, base = self.scanner.position, self._path(bare)
        if not self.scanner.take_symbol("^"):
            return base
        return Binary("^", base, self._nested(lambda: self._signed(bare)), at)

    # Operands

    def _path(self, bare: bool) -> Expression:
        at, base = self.scanner.position, self._operand(bare)
        steps: list[str | int] = []
        while (step := self._step(base)) is not None:
            steps.append(step)
            if len(steps) > MAX_CHAIN:
                raise C9qlError("the path is too long.", at=at)
        return Path(base, tuple(steps), at) if steps else base

    def _step(self, base: Expression) -> str | int | None:
        if isinstance(base, Text | Number | Constant):
            return None
        if self.scanner.take_symbol("["):
            found = self.scanner.take(lexer.NUMBER)
            if found is None or not found[0].isdigit() or len(found[0]) > 9:
                raise self.expect("an index from 0")
            self.require("]")
            return int(found[0])
        if not self.scanner.take_symbol("."):
            return None
        name = self.scanner.take_quoted(lexer.BACKTICK)
        word = None if name is not None else self.scanner.take(lexer.WORD)
        if name is None and word is None:
            raise self.expect("the name of a field in the record")
        return name if word is None else word[0]

    def _operand(self, bare: bool) -> Expression:
        scanner, at = self.scanner, self.scanner.position
        if scanner.take_symbol("("):
            inside = self.expression(bare=bare)
            self.require(")")
            return inside
        quoted = self._quoted(at)
        if quoted is not None:
            return quoted
        if (found := scanner.take(lexer.DATE_TOKEN) or scanner.take(lexer.PARAMETER)) is not None:
            return Placeholder(found[0], at)
        return self._constant(at) or self._field_or_call(at, bare)

    def _quoted(self, at: int) -> Expression | None:
        scanner = self.scanner
        if (text := scanner.take_quoted(lexer.SINGLE)) is not None:
            return Text(text, at)
        if (text := scanner.take_quoted(lexer.DOUBLE)) is not None:
            return Word(text, at)
        name = scanner.take_quoted(lexer.BACKTICK)
        return None if name is None else self._checked(name, at)

    def _constant(self, at: int) -> Expression | None:
        """Read a number, date, `case`, `true`, `false` or `null`, unless a field has a longer name."""
        scanner = self.scanner
        found = scanner.peek(lexer.ISO_DATE) or scanner.peek(lexer.NUMBER)
        word = None if found else scanner.peek(lexer.WORD)
        is_case = word is not None and word[0].lower() == "case"
        is_constant = word is not None and word[0].lower() in CONSTANTS
        if not (found or is_case or is_constant):
            return None
        if self._field_here(longer_than=len((found or word or ("",))[0])):
            return None
        if found:
            scanner.take(found.re)
            return Text(found[0], at) if found.re is lexer.ISO_DATE else Number(found[0], at)
        assert word is not None
        scanner.take(lexer.WORD)
        return self._case(at) if is_case else Constant(CONSTANTS[word[0].lower()], at)

    def _case(self, at: int) -> Expression:
        scanner = self.scanner
        operand = None if scanner.sees_words("when") else self.expression()
        branches: list[tuple[Expression, Expression]] = []
        while scanner.take_words("when"):
            condition = self.expression(bare=operand is not None)
            if not scanner.take_words("then"):
                raise self.expect("'then'")
            branches.append((condition, self.expression(bare=True)))
        if not branches:
            raise self.expect("'when'")
        otherwise = self.expression(bare=True) if scanner.take_words("else") else None
        if not scanner.take_words("end"):
            raise self.expect("'end' after 'case'")
        return Case(operand, tuple(branches), otherwise, at)

    def _field_here(self, longer_than: int = 0) -> tuple[str, int] | None:
        if self.names is None:
            return None
        found = self.names.longest(self.scanner.text, self.scanner.position)
        return found if found and found[1] - self.scanner.position > longer_than else None

    def _field_or_call(self, at: int, bare: bool) -> Expression:
        scanner, word = self.scanner, self.scanner.peek(lexer.WORD)
        called = self._called(word[0] if word else "")
        field = self._field_here(longer_than=len(word[0]) if word and called else 0)
        if field is not None:
            scanner.position = field[1]
            scanner.skip_space()
            return Name(field[0], at)
        if called is not None:
            return self._call(called, at)
        if bare:
            return self._bare(at)
        return self._unquoted_name(at)

    def _called(self, word: str) -> Function | None:
        """Return the function if the text goes on with a call of it."""
        if not word:
            return None
        ahead = Scanner(self.scanner.text, self.scanner.position + len(word))
        if not ahead.sees("("):
            return None
        function = FUNCTIONS.get(word.lower())
        if function is None and not self._field_here():
            raise no_function(word, FUNCTIONS, self.scanner.position)
        return function

    def _bare(self, at: int) -> Expression:
        if self.names is None:
            return Word(self._words() or self._fail("a value"), at)
        text = self.scanner.take_raw(LITERAL_ENDS, lexer.LITERAL_STOP)
        return Text(text or self._fail("a value"), at)

    def _unquoted_name(self, at: int) -> Expression:
        name = self._words()
        if not name:
            raise self.expect("a field, a value or a function")
        return self._checked(name, at)

    def _checked(self, name: str, at: int) -> Name:
        if self.names is None:
            return Name(name, at)
        found = self.names.find(name)
        if found is None:
            raise no_field(name, self.names.names, at)
        return Name(found, at)

    def _words(self) -> str:
        """Read words up to a symbol or a word with a meaning."""
        words: list[str] = []
        while not self.scanner.peek(lexer.NAME_STOP) and (word := self.scanner.take(lexer.WORD)):
            words.append(word[0])
        return " ".join(words)

    def _fail(self, expectation: str) -> str:
        raise self.expect(expectation)

    # Calls

    def _call(self, function: Function, at: int) -> Expression:
        self.scanner.take(lexer.WORD)
        self.require("(")
        if function.name == "count" and self.scanner.sees_words("distinct") and not self._field_here(longer_than=8):
            self.scanner.take_words("distinct")
            function = FUNCTIONS["distinct"]
        arguments: list[Expression] = []
        while not self.scanner.sees(")"):
            if arguments and not self.scanner.take_symbol(","):
                raise self.expect("',' or ')'")
            arguments.append(self._argument(function, len(arguments)))
        self.require(")")
        function.check_count(len(arguments), at)
        return Call(function.name, tuple(arguments), self._over(), at)

    def _argument(self, function: Function, position: int) -> Expression:
        at, parameter = self.scanner.position, function.parameter(position)
        if function.name == "count" and self.scanner.take_symbol("*"):
            return AllFields(at)
        if parameter is not None and parameter.form == "literal":
            return self._literal(parameter, at)
        return self.expression(bare=parameter is not None and parameter.form == "word")

    def _literal(self, parameter: Parameter, at: int) -> Expression:
        quoted = self._quoted(at) if self.scanner.text[at : at + 1] in ("'", '"') else None
        if quoted is not None:
            return Text(quoted.text, at) if isinstance(quoted, Word) else quoted
        found = self.scanner.take(lexer.DATE_TOKEN) or self.scanner.take(lexer.PARAMETER)
        if found is not None:
            return Placeholder(found[0], at)
        text = self.scanner.take_raw(",", None)
        return Text(text or self._fail(f"a text for '{parameter.name}'"), at)

    def _over(self) -> Over | None:
        if not self.scanner.take_words("over"):
            return None
        self.require("(")
        partition = self.expressions() if self.scanner.take_words("partition", "by") else ()
        order = self.sorts() if self.scanner.take_words("order", "by") else ()
        self.require(")")
        return Over(partition, order)

    def expressions(self) -> tuple[Expression, ...]:
        """Read expressions with commas between them."""
        found = [self.expression()]
        while self.scanner.take_symbol(","):
            found.append(self.expression())
        return tuple(found)

    def sorts(self) -> tuple[Sort, ...]:
        """Read the keys of an order."""
        found = [self._sort()]
        while self.scanner.take_symbol(","):
            found.append(self._sort())
        return tuple(found)

    def _sort(self) -> Sort:
        expression = self.expression()
        if self.scanner.take_words("desc"):
            return Sort(expression, descending=True)
        self.scanner.take_words("asc")
        return Sort(expression)


def unknown_word(reader: ExpressionReader, words: tuple[str, ...]) -> str:
    """Return a question with the nearest of these words, for an error."""
    found = reader.scanner.peek(lexer.WORD)
    return did_you_mean(found[0], words) if found else ""
