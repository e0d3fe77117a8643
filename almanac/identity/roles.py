"""The five roles, in ascending order. If several roles apply to an object, the highest counts."""

from enum import IntEnum

from almanac.core.errors import BadRequest


class Role(IntEnum):
    """The level of a principal on one object."""

    RestrictedAnalyst = 1  # sees a knowledge base in lists, but may neither read nor search it
    Reporter = 2
    Developer = 3
    Maintainer = 4
    Owner = 5


def parse(name: str) -> Role:
    """The role of a name, in upper or lower case."""
    for role in Role:
        if role.name.lower() == name.strip().lower():
            return role
    names = ", ".join(role.name for role in reversed(Role))
    raise BadRequest(f"There is no role {name!r}.", remedy=f"The roles are: {names}.")
