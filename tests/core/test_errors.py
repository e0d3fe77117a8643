"""Errors: the tree in the docstring is the tree in the code."""

import inspect
import re

import pytest

from almanac.core import errors
from almanac.core.errors import AlmanacError, BadRequest, QuotaExceeded, RateLimited

LINE = re.compile(r"^(?P<indent>[\s│├└─]*?)[├└]── (?P<name>\w+)(?:\s+(?P<code>[a-z_]+)\s+(?P<status>\d{3}))?")


def drawn() -> dict[str, tuple[str, str | None, int | None]]:
    """The tree in the docstring: each class with its parent, its code and its status."""
    above = {-1: "AlmanacError"}
    found: dict[str, tuple[str, str | None, int | None]] = {}
    for line in (errors.__doc__ or "").splitlines():
        if match := LINE.match(line):
            depth = len(match["indent"]) // 4
            parent = above[max((level for level in above if level < depth), default=-1)]
            above = {level: name for level, name in above.items() if level < depth} | {depth: match["name"]}
            found[match["name"]] = (parent, match["code"], int(match["status"]) if match["status"] else None)
    return found


def written() -> dict[str, type[AlmanacError]]:
    """The classes in the code."""
    classes = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in classes if issubclass(kind, AlmanacError) and kind is not AlmanacError}


def test_every_class_is_drawn_and_every_drawn_class_exists():
    assert drawn().keys() == written().keys()


@pytest.mark.parametrize("name", sorted(written()))
def test_each_has_the_parent_code_and_status_of_the_drawing(name: str):
    parent, code, status = drawn()[name]
    kind = written()[name]
    assert [base.__name__ for base in kind.__bases__] == [parent]
    if code is None:
        assert "code" not in vars(kind), "it has that of its parent"
    else:
        assert (kind.code, kind.status) == (code, status)


def test_no_two_have_the_same_code():
    codes = [code for _, code, _ in drawn().values() if code]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("name", sorted(written()))
def test_the_default_message_is_the_docstring_and_the_text_adds_the_remedy(name: str):
    kind = written()[name]
    error = RateLimited(3) if kind is RateLimited else kind()
    assert error.message == (kind.__doc__ or "").strip()
    assert str(error) == error.message
    assert error.text == f"{error.message} {error.remedy}".strip()
    assert "\n" not in error.text


def test_a_message_and_a_remedy_can_be_given():
    assert BadRequest("No.", remedy="Ask again.").text == "No. Ask again."
    assert BadRequest("No.").text == "No."
    assert errors.Forbidden("No.", remedy="").text == "No."


@pytest.mark.parametrize(("given", "waits"), [(0, 1), (-5, 1), (1, 1), (30, 30)])
def test_a_rate_limit_says_how_long_to_wait_and_never_less_than_a_second(given: int, waits: int):
    error = RateLimited(given)
    assert error.retry_after == waits
    assert error.text == f"Rate limit exceeded. Wait {waits} s, then call again."


def test_a_spent_quota_says_when_there_is_more():
    assert "first of the next month (UTC)" in QuotaExceeded().text
