"""One dataset: a named table of rows that belongs to an organisation. Values only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from almanac.core.database import Row
from almanac.data.fields import Field, fields_from_json
from almanac.db.sql import from_row
from almanac.identity.access import ProtectedObject
from almanac.identity.roles import Role

KIND = "dataset"

SELECT = """
SELECT d.*, p.name AS owner_name, coalesce(v.fields, '[]') AS fields, coalesce(v.row_count, 0) AS row_count
FROM datasets d JOIN principals p ON p.id = d.owner_id
LEFT JOIN dataset_versions v ON v.dataset_id = d.id AND v.number = d.version
"""


@dataclass(frozen=True, slots=True)
class FieldNote:
    """The label, description, unit and synonyms of a field."""

    label: str = ""
    description: str = ""
    unit: str = ""
    synonyms: tuple[str, ...] = ()
    declared_type: str = ""  # pushes may not widen it; empty: inferred


@dataclass(frozen=True, slots=True)
class FieldEdit:
    """A change of the note of a field: None leaves a value as it is."""

    label: str | None = None
    description: str | None = None
    unit: str | None = None
    synonyms: tuple[str, ...] | None = None
    declared_type: str | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table of rows with versions."""

    id: int
    org_id: str
    owner_id: int
    owner_name: str
    name: str
    description: str
    version: int
    fields: tuple[Field, ...]
    row_count: int
    created_at: int
    updated_at: int
    removed_at: int | None
    notes: Mapping[str, FieldNote] = field(default_factory=dict[str, FieldNote])
    role: Role | None = None  # the caller's

    @property
    def protected_object(self) -> ProtectedObject:
        """The dataset in the form that the access rules use."""
        return ProtectedObject(KIND, self.id, self.org_id, "organization", self.owner_id)


def dataset_from_row(row: Row) -> Dataset:
    """A dataset from a row of `SELECT`."""
    return from_row(
        Dataset, row, fields=fields_from_json(row["fields"]), notes=notes_from_json(row["notes"]), role=None
    )


def notes_to_json(notes: Mapping[str, FieldNote]) -> str:
    """The notes of all fields as they are stored; values without content are left out."""
    said = {name: {key: value for key, value in asdict(note).items() if value} for name, note in notes.items()}
    return orjson.dumps({name: values for name, values in said.items() if values}).decode()


def notes_from_json(text: str) -> dict[str, FieldNote]:
    """The notes that `notes_to_json` wrote."""
    stored: dict[str, dict[str, Any]] = orjson.loads(text)
    return {name: _note(values) for name, values in stored.items()}


def _note(values: dict[str, Any]) -> FieldNote:
    note = FieldNote(**values)
    return replace(note, synonyms=tuple(note.synonyms))  # JSON has lists only
