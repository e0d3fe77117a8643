"""Reads a catalogue file and validates all of it before the import starts.

A JSON file contains the vocabulary, the category tree, namespaces and entities, or only a list of entities. A JSONL
file has one entity per line. A CSV file has one column per field. Unknown columns are metadata: their numbers, `true`
and `false` become numbers and booleans.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import orjson
from pydantic import AfterValidator, Field, ValidationError

from almanac.catalogue import attachments, vocabulary
from almanac.catalogue.categories import MAX_CATEGORY_DEPTH
from almanac.catalogue.entities import EntityDraft
from almanac.core.arguments import Arguments, describe_problems
from almanac.core.errors import BadRequest

FORMATS = ("json", "jsonl", "csv")
MAX_REPORTED_ENTITIES = 10  # invalid entities in an error message
MAX_FILE_BYTES = 2_000_000_000

_UNKNOWN_FIELD = "is not a known field"
_CSV_FIELDS = frozenset({"_id", "name", "category", "description", "details", "source", "sku", "status", "tags"})


class TermEntry(Arguments):
    """A category alias, a relation type or an attachment type."""

    name: vocabulary.Name
    description: vocabulary.Text = ""
    aliasKey: vocabulary.Key | None = None
    typeKey: vocabulary.Key | None = None


class Policy(vocabulary.PolicyDetails):
    """A policy."""

    name: vocabulary.Name
    policyKey: vocabulary.Key
    description: vocabulary.Text = ""


class CategoryEntry(Arguments):
    """A category with its children."""

    id: Annotated[str | None, Field(alias="_id", pattern=r"^[0-9a-f]{24}$")] = None
    name: vocabulary.Name
    description: vocabulary.Text = ""
    aliasKey: vocabulary.Key | None = None
    policyKey: vocabulary.Key | None = None
    children: "list[CategoryEntry]" = []  # noqa: RUF012 - pydantic copies the default


class NamespaceEntry(Arguments):
    """A namespace."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    notes: vocabulary.Text = ""
    categories: Annotated[list[str], Field(default_factory=list[str])]


class RelationEntry(Arguments):
    """A relation to another entity. `target` is its id, SKU or name."""

    target: Annotated[str, Field(min_length=1, max_length=500)]
    type: vocabulary.Key
    description: vocabulary.Text = ""


class EntityEntry(EntityDraft):
    """An entity with its relations and attachments."""

    id: Annotated[str | None, Field(alias="_id", pattern=r"^[0-9a-f]{24}$")] = None
    relations: Annotated[list[RelationEntry], Field(default_factory=list[RelationEntry])]
    attachments: Annotated[list[attachments.AttachmentDraft], Field(default_factory=list[attachments.AttachmentDraft])]


def _require_keys(terms: list[TermEntry], key_field: str) -> list[TermEntry]:
    if any(getattr(term, key_field) is None for term in terms):
        raise ValueError(f"one of them has no {key_field}")
    return terms


Aliases = Annotated[list[TermEntry], AfterValidator(lambda terms: _require_keys(terms, "aliasKey"))]
Types = Annotated[list[TermEntry], AfterValidator(lambda terms: _require_keys(terms, "typeKey"))]


class DeclaredTerm(NamedTuple):
    """A vocabulary term that a catalogue file declares."""

    kind: str
    key: str
    name: str
    description: str | None  # None: not given
    details: dict[str, Any]


class CatalogueFile(Arguments):
    """A whole catalogue."""

    tenantId: str | None = None  # the organisation that exported the file; ignored
    categoryAliases: Annotated[Aliases, Field(default_factory=list[TermEntry])]
    policies: Annotated[list[Policy], Field(default_factory=list[Policy])]
    relationshipTypes: Annotated[Types, Field(default_factory=list[TermEntry])]
    attachmentTypes: Annotated[Types, Field(default_factory=list[TermEntry])]
    categories: Annotated[list[CategoryEntry], Field(default_factory=list[CategoryEntry])]
    indexes: Annotated[list[NamespaceEntry], Field(default_factory=list[NamespaceEntry])]
    entities: Annotated[list[EntityEntry], Field(default_factory=list[EntityEntry])]

    def used_terms(self) -> Iterator[tuple[str, str]]:
        """The kind and key of each term that a category or an entity refers to."""
        pending = list(self.categories)
        while pending:
            category = pending.pop()
            pending += category.children
            terms = (("alias", category.aliasKey), ("policy", category.policyKey))
            yield from ((kind, key) for kind, key in terms if key)
        for entity in self.entities:
            yield from (("relation", relation.type) for relation in entity.relations)
            yield from (("attachment", attachment.type) for attachment in entity.attachments if attachment.type)

    def declared_terms(self) -> Iterator[DeclaredTerm]:
        """All terms that the file declares."""
        for kind, terms in (
            ("alias", self.categoryAliases),
            ("relation", self.relationshipTypes),
            ("attachment", self.attachmentTypes),
        ):
            for term in terms:
                key = getattr(term, vocabulary.KEY_FIELDS[kind])
                yield DeclaredTerm(kind, key, term.name, _given_description(term), {})
        for policy in self.policies:
            details = policy.model_dump(include=set(vocabulary.PolicyDetails.model_fields), exclude_unset=True)
            yield DeclaredTerm("policy", policy.policyKey, policy.name, _given_description(policy), details)


def _given_description(term: TermEntry | Policy) -> str | None:
    return term.description if "description" in term.model_fields_set else None


def read(path: Path) -> CatalogueFile:
    """The catalogue in a file. Raises BadRequest, with the invalid parts, if it cannot be imported."""
    format = path.suffix.lower().lstrip(".").replace("ndjson", "jsonl")
    if format not in FORMATS:
        name = f"{path.suffix} file" if path.suffix else "file without an extension"
        raise BadRequest(f"A {name} cannot be imported.", remedy="Use .json, .jsonl or .csv.")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadRequest("The file is larger than 2 GB.", remedy="Import it in parts.")
        raw = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"The file cannot be read: {error.strerror}.") from None
    return parse(raw, format)


def parse(raw: bytes, format: str) -> CatalogueFile:
    """The catalogue in the content of a file of this format. Raises BadRequest, with the invalid parts."""
    if format == "csv":
        return _entities_only(_parse_entities(_csv_rows(raw), "line", 2))
    if format == "jsonl":
        return _entities_only(_parse_entities(_json_lines(raw.split(b"\n")), "line", 1))
    value = _parse_json(raw, "The file")
    if isinstance(value, list):
        return _entities_only(_parse_entities(cast("list[Any]", value), "entity", 1))
    if not isinstance(value, dict):
        raise BadRequest("The file is neither a JSON object nor a list.")
    fields = cast("dict[str, Any]", value)
    _check_depth(fields.get("categories"))
    entities = fields.pop("entities", [])
    if not isinstance(entities, list):
        raise BadRequest("entities: is not a list.")
    try:
        file = CatalogueFile.model_validate(fields)
    except ValidationError as error:
        raise BadRequest(describe_problems(error, _UNKNOWN_FIELD)) from None
    return file.model_copy(update={"entities": _parse_entities(cast("list[Any]", entities), "entity", 1)})


def _entities_only(entities: list[EntityEntry]) -> CatalogueFile:
    return CatalogueFile.model_validate({}).model_copy(update={"entities": entities})


def _parse_entities(values: Iterable[Any], label: str, first_number: int) -> list[EntityEntry]:
    """Validate all entities. Raises BadRequest with the problems of the first few invalid ones."""
    entities: list[EntityEntry] = []
    problems: list[str] = []
    for number, value in enumerate(values, first_number):
        if value is None:
            continue  # an empty line
        try:
            entities.append(EntityEntry.model_validate(value))
        except ValidationError as error:
            problems.append(f"{label} {number}: {describe_problems(error, _UNKNOWN_FIELD)}")
            if len(problems) >= MAX_REPORTED_ENTITIES:
                break
    if problems:
        raise BadRequest("Nothing was imported. " + " ".join(problems), remedy="Correct the file and import it again.")
    return entities


def _json_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        yield _parse_json(line, f"Line {number}") if line.strip() else None


def _parse_json(raw: bytes, label: str) -> Any:
    try:
        return orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{label} is not valid JSON: {error.msg} at character {error.pos}.") from None


def _check_depth(categories: Any, depth: int = 1) -> None:
    for category in cast("list[Any]", categories) if isinstance(categories, list) else ():
        if isinstance(category, dict) and "children" in category:
            if depth > MAX_CATEGORY_DEPTH:
                raise BadRequest(
                    f"categories: are nested deeper than {MAX_CATEGORY_DEPTH}.", remedy="Nest fewer of them."
                )
            _check_depth(cast("dict[str, Any]", category)["children"], depth + 1)


def _csv_rows(raw: bytes) -> Iterator[Any]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadRequest("The file is not UTF-8.", remedy="Save it as CSV UTF-8.") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        if reader.fieldnames is None or not {"name", "category"} <= set(reader.fieldnames):
            raise BadRequest("The CSV has no columns 'name' and 'category'.", remedy="Name them in its first line.")
        for row in reader:
            yield _entity_from_csv_row(row)
    except csv.Error as error:
        raise BadRequest(f"The CSV cannot be read: {error}.") from None


def _entity_from_csv_row(row: dict[str, Any]) -> dict[str, Any]:
    cells = {name.strip(): text.strip() for name, text in row.items() if isinstance(text, str) and text.strip()}
    entity: dict[str, Any] = {name: text for name, text in cells.items() if name in _CSV_FIELDS}
    if "tags" in entity:
        entity["tags"] = [tag.strip() for tag in entity["tags"].replace(";", ",").split(",") if tag.strip()]
    metadata = {
        name.removeprefix("metadata."): _parse_cell(text) for name, text in cells.items() if name not in _CSV_FIELDS
    }
    return {**entity, "metadata": metadata}


def _parse_cell(text: str) -> Any:
    """A number or boolean if the text is one in JSON, otherwise the text: `007` stays a text."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text
