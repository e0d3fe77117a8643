"""Fields with ordinary and odd names, and random trees over them."""

from hypothesis import strategies as st

from almanac.data.c9ql.functions import FUNCTIONS, Function
from almanac.data.c9ql.tree import (
    AllFields,
    Between,
    Binary,
    Call,
    Case,
    Constant,
    Expression,
    In,
    IsNull,
    Item,
    Logic,
    Name,
    Number,
    Over,
    Path,
    Placeholder,
    Query,
    Sort,
    Statement,
    Text,
    Unary,
    Without,
    Word,
)

ODD_NAMES = (
    *(
        "Customer",
        "Message Type",
        "order",
        "Order By Date",
        "a-b",
        "a",
        "b",
        "Cost (USD)",
        "sum(sent)",
        "2024",
        "1st Quarter",
    ),
    *("select", "case", "Größe", "売上", "it's", 'say "hi"', "back`tick", "a.b", "50%", "not", "And", "limit 5"),
)

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6)
NAMES = st.sampled_from(ODD_NAMES) | TEXTS.map(lambda text: " ".join(text.split()) or "x")
DIGITS = st.sampled_from(["0", "7", "42", "007", "1.5", ".5", "2e3", "1e-2", "123456789012345678901234567890"])
PLACEHOLDERS = st.sampled_from(
    ["{$c9_today}", "{$c9_now-1d:HH}", "$c9_x$", "$c9_x$(West)$", "$c9_x$(a b)$[L]$", '$c9_l${list|"|,}$(A,B)$']
)  # fmt: skip

NAMED = st.builds(Name, NAMES)
LEAVES = st.one_of(
    NAMED,
    st.builds(Word, TEXTS),
    st.builds(Text, TEXTS),
    st.builds(Number, DIGITS),
    st.builds(Constant, st.sampled_from([True, False, None])),
    st.builds(Placeholder, PLACEHOLDERS),
    st.builds(Call, st.just("count"), st.just((AllFields(),))),
)


def _calls(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Call]:
    def of(function: Function) -> st.SearchStrategy[Call]:
        parts = [
            st.builds(Text, TEXTS.filter(bool)) if parameter.form == "literal" else inner
            for parameter in function.parameters
        ]
        over = st.none() if function.role.name not in ("AGGREGATE", "RANKING") else st.none() | _overs(inner)
        return st.builds(Call, st.just(function.name), st.tuples(*parts), over)

    return st.sampled_from(sorted(FUNCTIONS)).flatmap(lambda name: of(FUNCTIONS[name]))


def _overs(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Over]:
    return st.builds(Over, st.lists(inner, max_size=2).map(tuple), _sorts(inner))


def _sorts(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[tuple[Sort, ...]]:
    return st.lists(st.builds(Sort, inner, st.booleans()), max_size=2).map(tuple)


def _larger(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    operators = st.sampled_from(["+", "-", "*", "/", "%", "^", "=", "!=", "<", "<=", ">", ">=", "like", "not like"])
    steps = st.lists(NAMES | st.integers(0, 9), min_size=1, max_size=3).map(tuple)
    conditions = st.lists(inner, min_size=2, max_size=3).map(tuple)
    branches = st.lists(st.tuples(inner, inner), min_size=1, max_size=2).map(tuple)
    return st.one_of(
        st.builds(Path, NAMED | _calls(inner), steps),
        st.builds(Unary, st.sampled_from(["-", "not"]), inner),
        st.builds(Binary, operators, inner, inner),
        st.builds(Logic, st.sampled_from(["and", "or"]), conditions),
        st.builds(IsNull, inner, st.booleans()),
        st.builds(In, inner, conditions, st.booleans()),
        st.builds(Between, inner, inner, inner, st.booleans()),
        st.builds(Case, st.none() | inner, branches, st.none() | inner),
        _calls(inner),
    )


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(LEAVES, _larger, max_leaves=8)
ITEMS = st.one_of(
    st.builds(Item, st.just(AllFields())),
    st.builds(Item, EXPRESSIONS, st.none() | NAMES),
    st.builds(Without, NAMED),
)
STATEMENTS = st.builds(
    Statement,
    st.lists(ITEMS, min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.none() | EXPRESSIONS,
    st.lists(EXPRESSIONS, max_size=2).map(tuple),
    st.none() | EXPRESSIONS,
    _sorts(EXPRESSIONS),
    st.none() | st.integers(0, 1000),
)
QUERIES = st.builds(Query, st.lists(STATEMENTS, min_size=1, max_size=2).map(tuple))
