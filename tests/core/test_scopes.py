"""Scopes: the table of the design, and the roles that may have them."""

import pytest

from almanac.core import scopes
from almanac.core.errors import BadRequest
from almanac.surfaces.almanac.tools import SURFACE

PLANNED = [
    *("knowledge:read", "knowledge:write", "search:read", "catalogue:read", "catalogue:write"),
    *("memory:read", "memory:write", "data:read", "data:write", "boards:read", "boards:write"),
    *("delivery:read", "delivery:write", "assist:use", "audit:read", "admin"),
]


def test_the_table_is_the_planned_one_and_each_scope_is_explained():
    assert list(scopes.SCOPES) == PLANNED
    assert all(len(meaning) > 10 for meaning in scopes.SCOPES.values())


def test_privileged_and_everyday_scopes_are_all_of_them_and_share_none():
    assert {"admin", "audit:read"} == scopes.PRIVILEGED
    assert set(scopes.SCOPES) == scopes.UNPRIVILEGED_SCOPES | scopes.PRIVILEGED
    assert not scopes.UNPRIVILEGED_SCOPES & scopes.PRIVILEGED


def test_an_agent_reads_everything_remembers_and_changes_nothing_else():
    writes = {scope for scope in scopes.DEFAULT_AGENT_SCOPES if scope.endswith(":write")}
    assert writes == {"memory:write"}
    assert {s for s in scopes.UNPRIVILEGED_SCOPES if s.endswith(":read")} <= scopes.DEFAULT_AGENT_SCOPES
    assert not scopes.DEFAULT_AGENT_SCOPES & scopes.PRIVILEGED


def test_known_scopes_come_back_as_a_set():
    assert scopes.parse_scopes(["admin", "data:read", "admin"]) == {"admin", "data:read"}
    assert scopes.parse_scopes([]) == frozenset()


@pytest.mark.parametrize("name", ["", "Admin", "knowledge", "knowledge:delete", " admin", "admin data:read"])
def test_an_unknown_scope_is_refused_and_the_known_ones_are_listed(name: str):
    with pytest.raises(BadRequest) as caught:
        scopes.parse_scopes(["data:read", name])
    assert caught.value.message == f"Unknown scope {name}."
    assert all(scope in caught.value.remedy for scope in scopes.SCOPES)


def test_tools_ask_only_for_scopes_that_exist():
    for tool in SURFACE.operations:
        assert tool.scopes <= set(scopes.SCOPES)
