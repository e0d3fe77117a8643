"""Importing: a seed becomes a catalogue, or what an organisation has of it becomes what the seed says.

Whatever is in the seed is added or changed; what is not in it stays. A word is known by its key, a category by its id
or its place, a namespace by its name, an entity by its id, its SKU or its name within its category. So a file can be
imported again, after an interruption or with changes, and what is the same is left alone. A dry run looks at everything
in the same way and writes nothing. What a file names and nobody has declared is said before anything is written.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from almanac.catalogue.catalogue_file import CatalogueFile, CategoryEntry, EntityEntry
from almanac.catalogue.categories import TOP, Category, Tree
from almanac.catalogue.entity import Entity
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import BadRequest, NotFound
from almanac.search.passage_store import AnalysedPassages

AT_ONCE = 500  # entities in a transaction
MOST_SHOWN = 200  # changes that a report lists
MOST_NAMED = 20  # words that are missing

Progress = Callable[[int, int], None]  # entities done, of how many
Placed = dict[str, list[EntityEntry]]  # what belongs to an entity, by its id


@dataclass(frozen=True, slots=True)
class Change:
    """What is done, or would be."""

    action: str  # add or change
    what: str  # category, entity …
    name: str
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """What an import did, or would do."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # by kind of thing and action
    changes: list[Change] = field(default_factory=list[Change])  # the first of them

    def note(self, action: str, what: str, name: str, fields: tuple[str, ...] = ()) -> None:
        """Take down one thing; what is the same is only counted."""
        self.counts[what, action] += 1
        if action != "same" and len(self.changes) < MOST_SHOWN:
            self.changes.append(Change(action, what, name, fields))


class CatalogueImport:
    """One seed on its way into one organisation's catalogue."""

    def __init__(self, call: Call, seed: CatalogueFile, *, dry: bool = False) -> None:
        self._call = call
        self._org_id = call.actor.org_id
        self._seed = seed
        self._dry = dry
        self._tree = Tree(())
        # Where a relation may lead: the ids that the file's entities have here, by what they can be named by.
        self._brought: dict[tuple[str, str], str] = {}
        self._has_ties = any(item.relations for item in seed.entities)
        self.report = Report()

    async def run(self, progress: Progress = lambda done, total: None) -> Report:
        """Bring all of it in: the frame in one transaction, entities by the hundred, then what is between them."""
        db = self._call.db
        await access.require_write(db, self._call)
        await self._check_words()
        if self._dry:
            await self._frame(db, None)
        else:
            await db.write(lambda tx: self._frame(tx, tx))
            self._tree = await categories.tree(db, self._org_id)
        items = self._seed.entities
        placed: Placed = {}
        for start in range(0, len(items), AT_ONCE):
            part = items[start : start + AT_ONCE]
            await self._bring(part, placed)
            progress(start + len(part), len(items))
        await self._tie(placed)
        return self.report

    # The frame

    async def _check_words(self) -> None:
        """Refuse a file that names a word which neither it nor the organisation has."""
        used = set(_used(self._seed))
        for kind in {kind for kind, _ in used}:
            terms = await vocabulary.find(self._call.db, self._org_id, kind)
            used -= {(kind, name) for term in terms for name in (term.key, term.id)}
        used -= {(kind, key) for kind, key, *_ in _words(self._seed)}
        if used:
            named = sorted(f"{vocabulary.KINDS[kind]} {key!r}" for kind, key in used)
            more = "" if len(named) <= MOST_NAMED else f" and {len(named) - MOST_NAMED} more"
            raise BadRequest(
                f"The file names what is not declared: {', '.join(named[:MOST_NAMED])}{more}.",
                remedy="Nothing was imported. Declare them in the file.",
            )

    async def _frame(self, db: Reader, tx: Transaction | None) -> None:
        self.report = Report()  # a transaction may be run again
        self._tree = await categories.tree_in(db, self._org_id)
        for kind, key, name, description, details in _words(self._seed):
            await self._word(db, tx, kind, key, name, description, details)
        for branch in self._seed.categories:
            await self._branch(tx, branch, TOP, "")
        for index in self._seed.indexes:
            await self._index(db, tx, index.name, index.notes, index.categories)

    async def _word(
        self,
        db: Reader,
        tx: Transaction | None,
        kind: str,
        key: str,
        name: str,
        description: str,
        details: dict[str, Any],
    ) -> None:
        old = await vocabulary.get_or_none(db, self._org_id, kind, key)
        what = vocabulary.KINDS[kind]
        if old is None:
            self.report.note("add", what, key)
            if tx:
                await vocabulary.add(tx, self._call, kind, key, name, description, details)
        elif (old.name, old.description, old.details) != (name, description, details):
            self.report.note("change", what, key)
            if tx:
                await vocabulary.update(tx, self._call, old, name, description, details)
        else:
            self.report.note("same", what, key)

    async def _branch(self, tx: Transaction | None, branch: CategoryEntry, parent: int, above: str) -> None:
        path = f"{above}/{branch.name}" if above else branch.name
        old = self._tree.by_id.get(branch.id or "") or next(
            (each for each in self._tree.children(parent) if each.name == branch.name), None
        )
        if old is None:
            self.report.note("add", "category", path)
            old = await self._add(tx, branch, parent)
        else:
            await self._alter(tx, old, branch, path)
        for child in branch.children:
            await self._branch(tx, child, old.number, path)

    async def _add(self, tx: Transaction | None, branch: CategoryEntry, parent: int) -> Category:
        above = self._tree.by_number.get(parent)
        if tx:
            free = branch.id if branch.id and not await _taken(tx, "categories", [branch.id]) else None
            made = await categories.add(
                tx, self._call, branch.name, description=branch.description, alias=branch.aliasKey,
                policy=branch.policyKey, parent=above.id if above else None, id=free,
            )  # fmt: skip
        else:  # one that would be there, under a number that none has
            number = -1 - len(self._tree.by_number)
            made = Category(
                number,
                branch.id or ids.new(),
                parent,
                branch.name,
                "",
                None,
                branch.aliasKey,
                None,
                branch.policyKey,
                0,
                0,
            )
        self._tree = Tree((*self._tree.by_number.values(), made))
        return made

    async def _alter(self, tx: Transaction | None, old: Category, branch: CategoryEntry, path: str) -> None:
        wanted = {
            "name": branch.name,
            "description": branch.description,
            "alias_key": branch.aliasKey or old.alias_key,
            "policy_key": branch.policyKey or old.policy_key,
        }
        fields = tuple(name for name, value in wanted.items() if getattr(old, name) != value)
        self.report.note("change" if fields else "same", "category", path, fields)
        if fields and tx:
            await categories.update(
                tx, self._call, old.id, name=branch.name, description=branch.description, alias=branch.aliasKey,
                policy=branch.policyKey,
            )  # fmt: skip
        if fields:  # what follows names it as it is now
            now = replace(old, **wanted)
            self._tree = Tree(now if each.id == old.id else each for each in self._tree.by_number.values())

    async def _index(self, db: Reader, tx: Transaction | None, name: str, notes: str, named: list[str]) -> None:
        chosen = list(dict.fromkeys(self._tree.pick(key).id for key in named))
        try:
            old = await namespaces.get_by_key(db, self._org_id, namespaces.check_name(name))
        except NotFound:
            self.report.note("add", "namespace", name)
            if tx:
                await namespaces.add(tx, self._call, name, notes, chosen)
            return
        is_same = (old.notes, list(old.categories)) == (notes, chosen)
        self.report.note("same" if is_same else "change", "namespace", name)
        if tx and not is_same:
            await namespaces.update(tx, self._call, old.id, notes, chosen)

    # The entities

    async def _bring(self, part: Sequence[EntityEntry], placed: Placed) -> None:
        homes = [self._tree.pick(item.category) for item in part]
        known = _Known(await self._look_up(part))
        new: list[tuple[Entity, AnalysedPassages]] = []
        changed: list[tuple[Entity, AnalysedPassages]] = []
        taken = await _taken(self._call.db, "entities", [item.id for item in part if item.id])
        for item, home in zip(part, homes, strict=True):
            old = known.find(item, home)
            entity = _as_said(self._org_id, item, home, old, taken)
            if old is None:
                self.report.note("add", "entity", item.name)
                new.append(
                    (entity, entity_index.prepare(entity)) if not self._dry else (entity, AnalysedPassages("", (), ()))
                )
            elif fields := _differences(old, entity):
                self.report.note("change", "entity", item.name, fields)
                changed.append((entity, entity_index.prepare(entity)))
            else:
                self.report.note("same", "entity", item.name)
            known.add(entity)
            if self._has_ties:
                self._remember(item, entity)
            if item.relations or item.attachments:
                placed.setdefault(entity.id, []).append(item)
        if not self._dry and (new or changed):
            await self._call.db.write(lambda tx: _store(tx, new, changed))

    async def _look_up(self, part: Sequence[EntityEntry]) -> list[Entity]:
        db = self._call.db
        found = await entities.among(db, self._org_id, "id", (item.id for item in part if item.id))
        found += await entities.among(db, self._org_id, "sku", (item.sku for item in part if item.sku))
        return found + await entities.among(db, self._org_id, "name", (item.name for item in part if not item.sku))

    def _remember(self, item: EntityEntry, entity: Entity) -> None:
        for name in (("id", item.id), ("id", entity.id), ("sku", entity.sku), ("name", entity.name)):
            if name[1]:
                self._brought.setdefault((name[0], name[1]), entity.id)

    # What is between them

    async def _tie(self, placed: Placed) -> None:
        """Relate entities, and attach what belongs to them, once all of them are there."""
        waiting = list(placed.items())
        for start in range(0, len(waiting), AT_ONCE):
            part = dict(waiting[start : start + AT_ONCE])
            ties, papers = await self._ties(part), await self._papers(part)
            if not self._dry and (ties or papers):
                await self._call.db.write(lambda tx, ties=ties, papers=papers: self._tie_some(tx, ties, papers))

    async def _ties(self, part: Placed) -> list[tuple[str, str, str, str]]:
        """The relations that are not there yet as they are described, by the keys of their kinds."""
        db, org_id = self._call.db, self._org_id
        there = await relations.described(db, org_id, list(part))
        keys = {term.id: term.key for term in await vocabulary.find(db, org_id, "relation")}
        found: list[tuple[str, str, str, str]] = []
        for id, tie in ((id, tie) for id, items in part.items() for item in items for tie in item.relations):
            target = await self._target(tie.target)
            type = keys.get(tie.type, tie.type)  # which may be named by its id
            old = there.get((id, target, type))
            action = "add" if old is None else "same" if old == tie.description else "change"
            self.report.note(action, "relation", f"{type}: {tie.target}")
            if action != "same":
                there[id, target, type] = tie.description
                found.append((id, target, type, vocabulary.fit(tie.description, "description")))
        return found

    async def _papers(self, part: Placed) -> list[tuple[str, attachments.AttachmentDraft]]:
        """What is not attached yet, each with the entity's id."""
        there = await attachments.attached_urls(self._call.db, self._org_id, list(part))
        found: list[tuple[str, attachments.AttachmentDraft]] = []
        for id, paper in ((id, paper) for id, items in part.items() for item in items for paper in item.attachments):
            self.report.note("same" if (id, paper.url) in there else "add", "attachment", paper.name)
            if (id, paper.url) not in there:
                there.add((id, paper.url))
                found.append((id, paper))
        return found

    async def _tie_some(
        self,
        tx: Transaction,
        ties: list[tuple[str, str, str, str]],
        papers: list[tuple[str, attachments.AttachmentDraft]],
    ) -> None:
        terms = await vocabulary.find(tx, self._org_id, "relation") if ties else []
        types = {name: term.id for term in terms for name in (term.id, term.key)}
        for id, paper in papers:
            there = await attachments.known_at(tx, self._org_id, paper.url)
            there = there or await attachments.add(tx, self._call, paper)
            await attachments.attach(tx, [(id, there.id)])
        await relations.put(tx, self._org_id, [(id, target, types[key], said) for id, target, key, said in ties])

    async def _target(self, key: str) -> str:
        for column in ("id", "sku", "name"):
            if (brought := self._brought.get((column, key))) is not None:
                return brought
            if found := await entities.among(self._call.db, self._org_id, column, [key]):
                return found[0].id
        raise BadRequest(f"A relation names {key[:100]!r}, which is no entity.", remedy="Name an id, a SKU or a name.")


class _Known:
    """The entities that are there, by whatever they are known by."""

    def __init__(self, found: Sequence[Entity]) -> None:
        self._by: dict[tuple[str, ...], Entity] = {}
        for each in found:
            self.add(each)

    def add(self, entity: Entity) -> None:
        self._by["id", entity.id] = entity
        if entity.sku:
            self._by["sku", entity.sku] = entity
        self._by.setdefault(("name", entity.category_id, entity.name), entity)

    def find(self, item: EntityEntry, home: Category) -> Entity | None:
        if item.id and (found := self._by.get(("id", item.id))):
            return found
        return self._by.get(("sku", item.sku) if item.sku else ("name", home.id, item.name))


def _as_said(org_id: str, item: EntityEntry, home: Category, old: Entity | None, taken: set[str]) -> Entity:
    """The entity that an item describes: the old one changed, or a new one, under its id if that is free."""
    if old is None:
        return entities.new_entity(org_id, item, home, item.id if item.id not in taken else None)
    return replace(entities.new_entity(org_id, item, home, old.id), created_at=old.created_at, updated_at=clock.now())


def _differences(old: Entity, new: Entity) -> tuple[str, ...]:
    names = ("name", "category_id", "description", "details", "source", "sku", "status", "tags", "metadata")
    return tuple(name.removesuffix("_id") for name in names if getattr(old, name) != getattr(new, name))


async def _store(
    tx: Transaction, new: Sequence[tuple[Entity, AnalysedPassages]], changed: Sequence[tuple[Entity, AnalysedPassages]]
) -> None:
    await entities.write(tx, [entity for entity, _ in new])
    for entity, _ in changed:
        await entities.rewrite(tx, entity)
    await entity_index.put(tx, [*new, *changed])


async def _taken(db: Reader, table: str, wanted: Sequence[str]) -> set[str]:
    """Those of some ids that are given out, to whomever."""
    if not wanted:
        return set()
    listed = ", ".join(f"${place + 1}" for place in range(len(wanted)))
    rows = await db.fetch(f"SELECT id FROM {table} WHERE id IN ({listed})", *wanted)  # noqa: S608 - names of our own
    return {row["id"] for row in rows}


def _used(seed: CatalogueFile) -> Iterator[tuple[str, str]]:
    """The words that categories and entities name, each with its kind."""
    waiting = list(seed.categories)
    while waiting:
        branch = waiting.pop()
        waiting += branch.children
        yield from ((kind, key) for kind, key in (("alias", branch.aliasKey), ("policy", branch.policyKey)) if key)
    for item in seed.entities:
        yield from (("relation", tie.type) for tie in item.relations)
        yield from (("attachment", paper.type) for paper in item.attachments if paper.type)


def _words(seed: CatalogueFile) -> Iterator[tuple[str, str, str, str, dict[str, Any]]]:
    for kind, key, words in (
        ("alias", "aliasKey", seed.categoryAliases),
        ("relation", "typeKey", seed.relationshipTypes),
        ("attachment", "typeKey", seed.attachmentTypes),
    ):
        for word in words:
            yield kind, getattr(word, key), word.name, word.description, {}
    for policy in seed.policies:
        details = policy.model_dump(include=set(vocabulary.PolicyDetails.model_fields))
        yield "policy", policy.policyKey, policy.name, policy.description, details
