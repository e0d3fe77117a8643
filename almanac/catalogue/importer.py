"""Imports a catalogue file into the catalogue of an organisation.

Objects in the file are added or updated; other objects stay as they are. The same holds for fields: an update changes
the fields that the file names, and the metadata keys that it names. A term is identified by its key, a category by
its id or its path, a namespace by its name, an entity by its id, its SKU, or its name within its category. A file can
therefore be imported again, after an interruption or with changes, and equal objects are left alone. A dry run makes
the same comparisons and writes nothing. The import is refused before any write if the file uses undeclared terms.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from almanac.catalogue import (
    access,
    attachments,
    categories,
    entities,
    entity_index,
    ids,
    namespaces,
    relations,
    vocabulary,
)
from almanac.catalogue.attachments import AttachmentDraft
from almanac.catalogue.catalogue_file import CatalogueFile, CategoryEntry, DeclaredTerm, EntityEntry, NamespaceEntry
from almanac.catalogue.categories import TOP, Category, Tree
from almanac.catalogue.entity import Entity
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, NotFound
from almanac.core.fair_slots import compute
from almanac.db.sql import placeholders
from almanac.search.passage_store import AnalysedPassages

BATCH_ENTITIES = 50  # entities in one transaction: others wait for it
MAX_LISTED_CHANGES = 200
MAX_LISTED_TERMS = 20  # undeclared terms in an error message
_CHANGEABLE_FIELDS = ("name", "category_id", "description", "details", "source", "sku", "status", "tags", "metadata")

Progress = Callable[[int, int], None]  # called with the numbers of imported entities and of all entities
LinkedEntries = dict[str, list[EntityEntry]]  # the entries that have relations or attachments, by entity id
RelationRow = tuple[str, str, str, str]  # source id, target id, type key, description
AttachmentRow = tuple[str, AttachmentDraft, bool]  # entity id, draft, whether the draft may change the stored fields
IndexedEntity = tuple[Entity, AnalysedPassages]


@dataclass(frozen=True, slots=True)
class ImportChange:
    """One object that the import adds or changes, or would in a dry run."""

    action: str  # add or change
    what: str  # the kind of object: category, entity …
    name: str
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class ImportReport:
    """The outcome of an import, or of a dry run."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # by kind of object and action
    changes: list[ImportChange] = field(default_factory=list[ImportChange])  # the first `MAX_LISTED_CHANGES`

    def record(self, action: str, what: str, name: str, fields: tuple[str, ...] = ()) -> None:
        """Count one object, and list it if it is added or changed."""
        self.counts[what, action] += 1
        if action != "same" and len(self.changes) < MAX_LISTED_CHANGES:
            self.changes.append(ImportChange(action, what, name, fields))

    def to_json(self) -> dict[str, Any]:
        """Return the counts by kind of object, and the listed changes."""
        counts: dict[str, dict[str, int]] = {}
        for (what, action), number in sorted(self.counts.items()):
            counts.setdefault(what, {})[action] = number
        return {"counts": counts, "changes": [asdict(change) for change in self.changes]}


class CatalogueImport:
    """The import of one catalogue file into one organisation."""

    def __init__(self, call: Call, file: CatalogueFile, *, dry: bool = False) -> None:
        self._call = call
        self._org_id = call.actor.org_id
        self._file = file
        self._dry = dry
        self._tree = Tree(())
        # The possible targets of relations: the ids of imported entities by ("id" | "sku" | "name", value).
        self._imported_ids: dict[tuple[str, str], str] = {}
        self._attachment_urls: set[str] = set()  # the first entry of a URL determines the fields of its attachment
        self._has_relations = any(entry.relations for entry in file.entities)
        self.report = ImportReport()

    async def run(self, progress: Progress = lambda done, total: None) -> ImportReport:
        """Import vocabulary, categories and namespaces in one transaction, then entities in batches, then links."""
        db = self._call.db
        await access.require_write(db, self._call)
        await self._check_terms()
        if self._dry:
            await self._import_structure(db, None)
        else:
            await db.write(lambda tx: self._import_structure(tx, tx))
            self._tree = await categories.tree(db, self._org_id)
        entries = self._file.entities
        linked: LinkedEntries = {}
        for start in range(0, len(entries), BATCH_ENTITIES):
            batch = entries[start : start + BATCH_ENTITIES]
            await self._import_entities(batch, linked)
            progress(start + len(batch), len(entries))
        await self._import_links(linked)
        return self.report

    # Vocabulary, categories and namespaces. In a dry run there is no transaction: `tx` is None.

    async def _check_terms(self) -> None:
        """Refuse a file that uses a term which neither the file nor the organisation declares."""
        undeclared = set(self._file.used_terms())
        for kind in {kind for kind, _ in undeclared}:
            terms = await vocabulary.find(self._call.db, self._org_id, kind)
            undeclared -= {(kind, key) for term in terms for key in (term.key, term.id)}
        undeclared -= {(term.kind, term.key) for term in self._file.declared_terms()}
        if undeclared:
            names = sorted(f"{vocabulary.KINDS[kind]} {key!r}" for kind, key in undeclared)
            more = "" if len(names) <= MAX_LISTED_TERMS else f" and {len(names) - MAX_LISTED_TERMS} more"
            raise BadRequest(
                f"The file uses undeclared terms: {', '.join(names[:MAX_LISTED_TERMS])}{more}.",
                remedy="Nothing was imported. Declare them in the file.",
            )

    async def _import_structure(self, db: Reader, tx: Transaction | None) -> None:
        self.report = ImportReport()  # the transaction may be run again
        self._tree = await categories.tree_in(db, self._org_id)
        for term in self._file.declared_terms():
            await self._import_term(db, tx, term)
        for entry in self._file.categories:
            await self._import_category(tx, entry, TOP, "")
        for entry in self._file.indexes:
            await self._import_namespace(db, tx, entry)

    async def _import_term(self, db: Reader, tx: Transaction | None, term: DeclaredTerm) -> None:
        kind, key, name, description, details = term
        old = await vocabulary.get_or_none(db, self._org_id, kind, key)
        if kind == "policy":
            details = {**vocabulary.PolicyDetails().model_dump(), **(old.details if old else {}), **details}
        if old is not None and description is None:
            description = old.description
        is_same = old is not None and (old.name, old.description, old.details) == (name, description, details)
        self.report.record("add" if old is None else "same" if is_same else "change", vocabulary.KINDS[kind], key)
        if tx and old is None:
            await vocabulary.add(tx, self._call, kind, key, name, description or "", details)
        elif tx and old and not is_same:
            await vocabulary.update(tx, self._call, old, name, description or "", details)

    async def _import_category(self, tx: Transaction | None, entry: CategoryEntry, parent: int, prefix: str) -> None:
        path = f"{prefix}/{entry.name}" if prefix else entry.name
        category = self._tree.by_id.get(entry.id or "") or next(
            (child for child in self._tree.children(parent) if child.name == entry.name), None
        )
        if category is None:
            self.report.record("add", "category", path)
            category = await self._add_category(tx, entry, parent)
        else:
            await self._update_category(tx, category, entry, path)
        for child in entry.children:
            await self._import_category(tx, child, category.number, path)

    async def _add_category(self, tx: Transaction | None, entry: CategoryEntry, parent: int) -> Category:
        above = self._tree.by_number.get(parent)
        if tx:
            free_id = entry.id if entry.id and not await _used_ids(tx, "categories", [entry.id]) else None
            category = await categories.add(
                tx, self._call, entry.name, description=entry.description, alias=entry.aliasKey,
                policy=entry.policyKey, parent=above.id if above else None, id=free_id,
            )  # fmt: skip
        else:
            category = Category(
                number=-1 - len(self._tree.by_number),  # stored categories have positive numbers
                id=entry.id or ids.new(),
                parent=parent,
                name=entry.name,
                description="",
                alias_id=None,
                alias_key=entry.aliasKey,
                policy_id=None,
                policy_key=entry.policyKey,
                created_at=0,
                updated_at=0,
            )
        self._tree = Tree((*self._tree.by_number.values(), category))
        return category

    async def _update_category(self, tx: Transaction | None, old: Category, entry: CategoryEntry, path: str) -> None:
        values = {
            "name": entry.name,
            "description": entry.description if "description" in entry.model_fields_set else old.description,
            "alias_key": entry.aliasKey or old.alias_key,
            "policy_key": entry.policyKey or old.policy_key,
        }
        fields = tuple(name for name, value in values.items() if getattr(old, name) != value)
        self.report.record("change" if fields else "same", "category", path, fields)
        if fields and tx:
            await categories.update(
                tx, self._call, old.id, name=entry.name, description=values["description"], alias=entry.aliasKey,
                policy=entry.policyKey,
            )  # fmt: skip
        if fields:  # later entries refer to the category by its new name and alias
            new = replace(old, **values)
            self._tree = Tree(new if category.id == old.id else category for category in self._tree.by_number.values())

    async def _import_namespace(self, db: Reader, tx: Transaction | None, entry: NamespaceEntry) -> None:
        category_ids = list(dict.fromkeys(self._tree.pick(key).id for key in entry.categories))
        try:
            old = await namespaces.get_by_key(db, self._org_id, namespaces.check_name(entry.name))
        except NotFound:
            self.report.record("add", "namespace", entry.name)
            if tx:
                await namespaces.add(tx, self._call, entry.name, entry.notes, category_ids)
            return
        notes = entry.notes if "notes" in entry.model_fields_set else old.notes
        if "categories" not in entry.model_fields_set:
            category_ids = list(old.categories)
        is_same = (old.notes, list(old.categories)) == (notes, category_ids)
        self.report.record("same" if is_same else "change", "namespace", entry.name)
        if tx and not is_same:
            await namespaces.update(tx, self._call, old.id, notes, category_ids)

    # Entities

    async def _import_entities(self, batch: Sequence[EntityEntry], linked: LinkedEntries) -> None:
        known = await self._find_known(batch)
        used_ids = await _used_ids(self._call.db, "entities", [entry.id for entry in batch if entry.id])
        new, changed = await compute(self._compare, batch, known, used_ids, linked)
        if new or changed:
            await self._call.db.write(lambda tx: _store(tx, new, changed))

    def _compare(
        self, batch: Sequence[EntityEntry], existing: Sequence[Entity], used_ids: set[str], linked: LinkedEntries
    ) -> tuple[list[IndexedEntity], list[IndexedEntity]]:
        """Compare entries with the stored entities; return the new and the changed ones, ready to be stored."""
        new: list[IndexedEntity] = []
        changed: list[IndexedEntity] = []
        known = _KnownEntities(existing)
        categories_by_key = {key: self._tree.pick(key) for key in {entry.category: None for entry in batch}}
        for entry in batch:
            category = categories_by_key[entry.category]
            old = known.find(entry, category)
            entity = _entity_from_entry(self._org_id, entry, category, old, used_ids)
            if old is None:
                self.report.record("add", "entity", entry.name)
                if not self._dry:
                    new.append((entity, entity_index.prepare(entity)))
            elif fields := _changed_fields(old, entity):
                self.report.record("change", "entity", entry.name, fields)
                if not self._dry:
                    changed.append((entity, entity_index.prepare(entity)))
            else:
                self.report.record("same", "entity", entry.name)
            known.add(entity)
            if self._has_relations:
                self._add_target(entry, entity)
            if entry.relations or entry.attachments:
                linked.setdefault(entity.id, []).append(entry)
        return new, changed

    async def _find_known(self, batch: Sequence[EntityEntry]) -> list[Entity]:
        db, org_id = self._call.db, self._org_id
        return [
            *await entities.find_by(db, org_id, "id", (entry.id for entry in batch if entry.id)),
            *await entities.find_by(db, org_id, "sku", (entry.sku for entry in batch if entry.sku)),
            *await entities.find_by(db, org_id, "name", (entry.name for entry in batch if not entry.sku)),
        ]

    def _add_target(self, entry: EntityEntry, entity: Entity) -> None:
        for column, value in (("id", entry.id), ("id", entity.id), ("sku", entity.sku), ("name", entity.name)):
            if value:
                self._imported_ids.setdefault((column, value), entity.id)

    # Relations and attachments

    async def _import_links(self, linked: LinkedEntries) -> None:
        """Import relations and attachments, after all entities because a relation may refer to any of them."""
        entries = list(linked.items())
        for start in range(0, len(entries), BATCH_ENTITIES):
            batch = dict(entries[start : start + BATCH_ENTITIES])
            rows, drafts = await self._changed_relations(batch), await self._changed_attachments(batch)
            if not self._dry and (rows or drafts):
                await self._call.db.write(lambda tx, rows=rows, drafts=drafts: self._store_links(tx, rows, drafts))

    async def _changed_relations(self, batch: LinkedEntries) -> list[RelationRow]:
        """The relations that are missing or have another description."""
        db, org_id = self._call.db, self._org_id
        descriptions = await relations.descriptions(db, org_id, list(batch))
        type_keys = {term.id: term.key for term in await vocabulary.find(db, org_id, "relation")}
        rows: list[RelationRow] = []
        for id, relation in (
            (id, relation) for id, entries in batch.items() for entry in entries for relation in entry.relations
        ):
            target_id = await self._target_id(relation.target)
            type = type_keys.get(relation.type, relation.type)  # the file may name the type by its id
            old = descriptions.get((id, target_id, type))
            new = relation.description if old is None or "description" in relation.model_fields_set else old
            action = "add" if old is None else "same" if old == new else "change"
            self.report.record(action, "relation", f"{type}: {relation.target}")
            if action != "same":
                descriptions[id, target_id, type] = new
                rows.append((id, target_id, type, vocabulary.check_text(new, "description")))
        return rows

    async def _changed_attachments(self, batch: LinkedEntries) -> list[AttachmentRow]:
        """The attachments that are not linked yet or have other fields, each with the entity's id."""
        db, org_id = self._call.db, self._org_id
        type_keys = {term.id: term.key for term in await vocabulary.find(db, org_id, "attachment")}
        drafts = [(id, draft) for id, entries in batch.items() for entry in entries for draft in entry.attachments]
        linked = await attachments.attached_urls(db, org_id, list(batch))
        known = await attachments.find_by_urls(db, org_id, list({draft.url for _, draft in drafts}))
        rows: list[AttachmentRow] = []
        for id, draft in drafts:
            if draft.type in type_keys:  # the file may name the type by its id
                draft = draft.model_copy(update={"type": type_keys[draft.type]})
            is_first = draft.url not in self._attachment_urls
            old = known.get(draft.url) if is_first else None
            fields = tuple(attachments.changed_fields(old, draft)) if old else ()
            is_linked = (id, draft.url) in linked
            action = "add" if not is_linked else "change" if fields else "same"
            self.report.record(action, "attachment", draft.name, fields)
            self._attachment_urls.add(draft.url)
            linked.add((id, draft.url))
            if action != "same":
                rows.append((id, draft, is_first))
        return rows

    async def _store_links(self, tx: Transaction, rows: list[RelationRow], drafts: list[AttachmentRow]) -> None:
        terms = await vocabulary.find(tx, self._org_id, "relation") if rows else []
        type_ids = {key: term.id for term in terms for key in (term.id, term.key)}
        for id, draft, is_first in drafts:
            attachment = await attachments.find_by_url(tx, self._org_id, draft.url)
            if attachment is None:
                attachment = await attachments.add(tx, self._call, draft)
            elif is_first:
                await attachments.update(tx, self._call, attachment, draft)
            await attachments.attach(tx, [(id, attachment.id)])
        await relations.put(
            tx, self._org_id, [(id, target, type_ids[key], description) for id, target, key, description in rows]
        )

    async def _target_id(self, key: str) -> str:
        for column in ("id", "sku", "name"):
            if (imported_id := self._imported_ids.get((column, key))) is not None:
                return imported_id
            if matches := await entities.find_by(self._call.db, self._org_id, column, [key]):
                return matches[0].id
        raise BadRequest(
            f"A relation names {key[:100]!r}, but there is no such entity.", remedy="Use an id, a SKU or a name."
        )


class _KnownEntities:
    """The existing entities of a batch, by id, SKU, and name within a category."""

    def __init__(self, known: Sequence[Entity]) -> None:
        self._by_key: dict[tuple[str, ...], Entity] = {}
        for entity in known:
            self.add(entity)

    def add(self, entity: Entity) -> None:
        self._by_key["id", entity.id] = entity
        if entity.sku:
            self._by_key["sku", entity.sku] = entity
        self._by_key.setdefault(("name", entity.category_id, entity.name), entity)

    def find(self, entry: EntityEntry, category: Category) -> Entity | None:
        if entry.id and (entity := self._by_key.get(("id", entry.id))):
            return entity
        return self._by_key.get(("sku", entry.sku) if entry.sku else ("name", category.id, entry.name))


def _entity_from_entry(
    org_id: str, entry: EntityEntry, category: Category, old: Entity | None, used_ids: set[str]
) -> Entity:
    """The old entity with the fields that the entry names, or a new one, which keeps the entry's id if that is free."""
    if old is None:
        return entities.new_entity(org_id, entry, category, entry.id if entry.id not in used_ids else None)
    new = entities.new_entity(org_id, entry, category, old.id)
    unnamed = EntityEntry.model_fields.keys() - entry.model_fields_set
    kept = {name: getattr(old, name) for name in _CHANGEABLE_FIELDS if name in unnamed}
    try:
        metadata = entities.check_metadata({**old.metadata, **entry.metadata})
    except ValueError as error:
        raise BadRequest(f"The metadata of the entity {entry.name[:100]!r}, with the stored keys, {error}.") from None
    return replace(new, **{**kept, "metadata": metadata}, created_at=old.created_at)


def _changed_fields(old: Entity, new: Entity) -> tuple[str, ...]:
    return tuple(name.removesuffix("_id") for name in _CHANGEABLE_FIELDS if getattr(old, name) != getattr(new, name))


async def _store(tx: Transaction, new: Sequence[IndexedEntity], changed: Sequence[IndexedEntity]) -> None:
    await entities.write(tx, [entity for entity, _ in new])
    for entity, _ in changed:
        await entities.rewrite(tx, entity)
    await entity_index.put(tx, [*new, *changed])


async def _used_ids(db: Reader, table: str, candidates: Sequence[str]) -> set[str]:
    """The ids that exist in any organisation."""
    if not candidates:
        return set()
    sql = f"SELECT id FROM {table} WHERE id IN ({placeholders(len(candidates))})"  # noqa: S608 - our own names
    rows = await db.fetch(sql, *candidates)
    return {row["id"] for row in rows}
