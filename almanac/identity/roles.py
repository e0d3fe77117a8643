"""The five roles, in order. Where several apply to a thing, the highest wins."""

from enum import IntEnum

from almanac.core.errors import BadRequest


class Role(IntEnum):
    """How much someone may do with a thing."""

    RestrictedAnalyst = 1  # may search in restricted mode, may not browse
    Reporter = 2
    Developer = 3
    Maintainer = 4
    Owner = 5


def parse(name: str) -> Role:
    """A role by its name, in any case."""
    for role in Role:
        if role.name.lower() == name.strip().lower():
            return role
    names = ", ".join(role.name for role in reversed(Role))
    raise BadRequest(f"There is no role {name!r}.", remedy=f"The roles are: {names}.")
