"""The profile of a dataset in the answers of operations."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from almanac.data import run
from almanac.data.dataset import Dataset
from almanac.data.profiles import FieldProfile
from almanac.operations.context import RequestContext
from almanac.operations.models import EXAMPLE_TIMESTAMP, UntrustedAnswer, timestamp


@dataclass(slots=True)
class FieldValues:
    """The values of a field in all rows."""

    name: str
    nulls: int | None
    distinct: Annotated[int | None, Field(description="Approximately.")]
    min: Any
    max: Any
    frequent: Annotated[list[Any], Field(description="Short texts with their numbers of rows.")]
    histogram: Annotated[list[int], Field(description="Rows in ten equal parts of the range.")]


@dataclass(slots=True)
class ProfileInfo(UntrustedAnswer):
    """The values of the fields of a dataset; without fields, note says why."""

    version: int | None
    at: str | None
    fields: list[FieldValues]
    note: str


async def profile_info(ctx: RequestContext, dataset: Dataset) -> ProfileInfo:
    """Return the profile of a dataset as a caller sees it."""
    profile, note = await run.profile_seen(ctx, dataset)
    if profile is None:
        return ProfileInfo(None, None, [], note)
    return ProfileInfo(profile.version, timestamp(profile.created_at), [_values(each) for each in profile.fields], note)


def _values(field: FieldProfile) -> FieldValues:
    return FieldValues(
        field.name,
        field.nulls,
        field.distinct,
        field.lowest,
        field.highest,
        [list(each) for each in field.frequent],
        list(field.histogram),
    )


PROFILE_EXAMPLE = ProfileInfo(
    3,
    EXAMPLE_TIMESTAMP,
    [
        FieldValues("City", 0, 2, "Graz", "Wien", [["Graz", 1900], ["Wien", 500]], []),
        FieldValues("Amount", 12, 1800, 0.5, 980, [], [1200, 700, 300, 100, 50, 20, 10, 5, 2, 1]),
    ],
    "",
)
