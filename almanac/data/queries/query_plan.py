"""A query to run: the caller's text, the files of the datasets that it may name, and its limits. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from almanac.data.fields import Field, field_from_value
from almanac.sandbox.confinement import MIB

MAX_ROWS = 200_000
MAX_RESULT_BYTES = 32 * MIB
MAX_FILES = 2_000  # of all datasets of a query; compaction keeps a dataset far below this


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The Parquet files of one version of a dataset, and the part of it that the caller may see."""

    files: Sequence[Path]
    fields: Sequence[Field]  # of the version; a field has the type that holds the values of all files
    condition: str | None = None  # SQL over the fields of one row; None: all rows
    hidden: Sequence[str] = ()  # names of fields
    stored: Sequence[tuple[Field, ...]] = ()  # the fields of each file, if types of the version are wider
    explains_condition: bool = False  # the caller manages the dataset: an error tells what is wrong with the condition


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A caller's query over datasets, or over one dataset in C9QL."""

    text: str
    datasets: Mapping[str, DatasetFiles]  # by the name that the query uses, compared without case
    limit: int = 10_000  # rows of the answer
    max_bytes: int = MAX_RESULT_BYTES  # of the rows as JSON
    language: Literal["sql", "c9ql"] = "sql"
    now: datetime = field(default_factory=lambda: datetime.now(UTC))  # the current time for the query


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query as JSON values."""

    fields: tuple[Field, ...]
    rows: list[list[Any]]
    total_rows: int  # of the query without the limits of the answer
    truncation: str | None  # why rows are missing, and the remedy
    sql: str  # as it was run, with internal names of tables
    datasets: tuple[str, ...]  # that the query read

    @property
    def returned_rows(self) -> int:
        """The number of rows in the answer."""
        return len(self.rows)

    def objects(self) -> list[dict[str, Any]]:
        """The rows as objects. The names of the fields differ."""
        names = [each.name for each in self.fields]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


def result_from_value(value: Mapping[str, Any], plan: QueryPlan) -> QueryResult:
    """The result that a child process packed. Raises TypeError, KeyError or ValueError for anything else."""
    fields = tuple(field_from_value(each) for each in value["fields"])
    rows: list[list[Any]] = value["rows"]
    if len(rows) > plan.limit or any(type(row) is not list or len(row) != len(fields) for row in rows):
        raise ValueError("the rows do not have the form of a result")
    total = int(value["total_rows"])
    return QueryResult(
        fields, rows, total, _truncation(len(rows), total, plan, bool(value["stopped_by_bytes"])), str(value["sql"]),
        tuple(map(str, value["tables"])),
    )  # fmt: skip


def _truncation(returned: int, total: int, plan: QueryPlan, stopped_by_bytes: bool) -> str | None:
    if returned >= total:
        return None
    reason = f"{plan.max_bytes // 1024:,} KiB" if stopped_by_bytes else f"{plan.limit:,} rows"
    return (
        f"The answer has {returned:,} of {total:,} rows, because it is limited to {reason}. Aggregate or filter in the "
        "query, or select fewer fields."
    )
