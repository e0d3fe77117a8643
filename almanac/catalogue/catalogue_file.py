"""A seed: a file that a catalogue is filled from, read and checked before anything is written.

JSON is the whole of it: vocabulary, a nested tree of categories, namespaces and entities; or only a list of entities.
JSONL has an entity in each line. CSV has a column for each field; columns it does not know are metadata, in which
numbers, true and false are taken for what they look like.
"""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
from pydantic import AfterValidator, Field, ValidationError

from almanac.catalogue import attachments, vocabulary
from almanac.catalogue.entities import EntityDraft
from almanac.core.arguments import Arguments, describe_problems
from almanac.core.errors import BadRequest

FORMS = ("json", "jsonl", "csv")
MOST_PROBLEMS = 10
MOST_BYTES = 2_000_000_000
MAX_FILE_DEPTH = 40

_UNKNOWN = "is not known here"
_FIELDS = frozenset({"_id", "name", "category", "description", "details", "source", "sku", "status", "tags"})


class TermEntry(Arguments):
    """A category alias, or a kind of relation or attachment."""

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
    """A category, with those below it."""

    id: Annotated[str | None, Field(alias="_id", pattern=r"^[0-9a-f]{24}$")] = None
    name: vocabulary.Name
    description: vocabulary.Text = ""
    aliasKey: vocabulary.Key | None = None
    policyKey: vocabulary.Key | None = None
    children: "list[CategoryEntry]" = []  # noqa: RUF012 - pydantic copies it


class NamespaceEntry(Arguments):
    """A namespace."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    notes: vocabulary.Text = ""
    categories: Annotated[list[str], Field(default_factory=list[str])]


class RelationEntry(Arguments):
    """A relation to another entity, which is named by id, SKU or name."""

    target: Annotated[str, Field(min_length=1, max_length=500)]
    type: vocabulary.Key
    description: vocabulary.Text = ""


class EntityEntry(EntityDraft):
    """An entity, with what it has."""

    id: Annotated[str | None, Field(alias="_id", pattern=r"^[0-9a-f]{24}$")] = None
    relations: Annotated[list[RelationEntry], Field(default_factory=list[RelationEntry])]
    attachments: Annotated[list[attachments.AttachmentDraft], Field(default_factory=list[attachments.AttachmentDraft])]


def _keyed(words: list[TermEntry], name: str) -> list[TermEntry]:
    if any(getattr(word, name) is None for word in words):
        raise ValueError(f"one of them has no {name}")
    return words


Aliases = Annotated[list[TermEntry], AfterValidator(lambda words: _keyed(words, "aliasKey"))]
Types = Annotated[list[TermEntry], AfterValidator(lambda words: _keyed(words, "typeKey"))]


class CatalogueFile(Arguments):
    """A whole catalogue."""

    tenantId: str | None = None  # whose it was; it is imported into the organisation that is asked for
    categoryAliases: Annotated[Aliases, Field(default_factory=list[TermEntry])]
    policies: Annotated[list[Policy], Field(default_factory=list[Policy])]
    relationshipTypes: Annotated[Types, Field(default_factory=list[TermEntry])]
    attachmentTypes: Annotated[Types, Field(default_factory=list[TermEntry])]
    categories: Annotated[list[CategoryEntry], Field(default_factory=list[CategoryEntry])]
    indexes: Annotated[list[NamespaceEntry], Field(default_factory=list[NamespaceEntry])]
    entities: Annotated[list[EntityEntry], Field(default_factory=list[EntityEntry])]


def read(path: Path) -> CatalogueFile:
    """The seed in a file, or an error that says which parts of it are wrong."""
    form = path.suffix.lower().lstrip(".").replace("ndjson", "jsonl")
    if form not in FORMS:
        raise BadRequest(f"A file named {path.suffix or 'without an ending'} cannot be imported.",
                         remedy="Use .json, .jsonl or .csv.")  # fmt: skip
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadRequest("The file is larger than 2 GB.", remedy="Import it in parts.")
        raw = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"The file cannot be read: {error.strerror}.") from None
    return parse(raw, form)


def parse(raw: bytes, form: str) -> CatalogueFile:
    """The seed that bytes of a form hold."""
    if form == "csv":
        return _only(_items(_rows(raw), "line", 2))
    if form == "jsonl":
        return _only(_items(_objects(raw.split(b"\n")), "line", 1))
    whole = _loads(raw, "The file")
    if isinstance(whole, list):
        return _only(_items(cast("list[Any]", whole), "entity", 1))
    if not isinstance(whole, dict):
        raise BadRequest("The file is neither a JSON object nor a list.")
    given = cast("dict[str, Any]", whole)
    _check_depth(given.get("categories"))
    listed = given.pop("entities", [])
    if not isinstance(listed, list):
        raise BadRequest("entities: is not a list.")
    try:
        seed = CatalogueFile.model_validate(given)
    except ValidationError as error:
        raise BadRequest(describe_problems(error, _UNKNOWN)) from None
    return seed.model_copy(update={"entities": _items(cast("list[Any]", listed), "entity", 1)})


def _only(found: list[EntityEntry]) -> CatalogueFile:
    return CatalogueFile.model_validate({}).model_copy(update={"entities": found})


def _items(given: Iterable[Any], what: str, first: int) -> list[EntityEntry]:
    """Every entity, or an error that names the first few that are wrong."""
    found: list[EntityEntry] = []
    wrong: list[str] = []
    for number, each in enumerate(given, first):
        if each is None:
            continue  # an empty line
        try:
            found.append(EntityEntry.model_validate(each))
        except ValidationError as error:
            wrong.append(f"{what} {number}: {describe_problems(error, _UNKNOWN)}")
            if len(wrong) >= MOST_PROBLEMS:
                break
    if wrong:
        raise BadRequest("Nothing was imported. " + " ".join(wrong), remedy="Mend the file and import it again.")
    return found


def _objects(lines: Iterable[bytes]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        yield _loads(line, f"Line {number}") if line.strip() else None


def _loads(raw: bytes, what: str) -> Any:
    try:
        return orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{what} is not valid JSON: {error.msg} at character {error.pos}.") from None


def _check_depth(branches: Any, depth: int = 1) -> None:
    for branch in cast("list[Any]", branches) if isinstance(branches, list) else ():
        if isinstance(branch, dict) and "children" in branch:
            if depth > MAX_FILE_DEPTH:
                raise BadRequest(f"categories: are nested deeper than {MAX_FILE_DEPTH}.")
            _check_depth(cast("dict[str, Any]", branch)["children"], depth + 1)


def _rows(raw: bytes) -> Iterator[Any]:
    """The rows of a CSV as entities."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadRequest("The file is not UTF-8.", remedy="Save it as CSV UTF-8.") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        if reader.fieldnames is None or not {"name", "category"} <= set(reader.fieldnames):
            raise BadRequest("The CSV has no columns 'name' and 'category'.", remedy="Put them in its first line.")
        for row in reader:
            yield _row(row)
    except csv.Error as error:
        raise BadRequest(f"The CSV cannot be read: {error}.") from None


def _row(row: dict[str, Any]) -> dict[str, Any]:
    given = {name.strip(): text.strip() for name, text in row.items() if isinstance(text, str) and text.strip()}
    item: dict[str, Any] = {name: text for name, text in given.items() if name in _FIELDS}
    if "tags" in item:
        item["tags"] = [tag.strip() for tag in item["tags"].replace(";", ",").split(",") if tag.strip()]
    metadata = {name.removeprefix("metadata."): _guess(text) for name, text in given.items() if name not in _FIELDS}
    return {**item, "metadata": metadata}


def _guess(text: str) -> Any:
    """A number or a truth value, where a text is exactly how one is written; a text otherwise, such as 007."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text
