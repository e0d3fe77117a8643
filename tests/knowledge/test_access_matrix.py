"""Who may do what in a knowledge base: every verb, by every kind of caller, at every level, against a table."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from almanac.core.call import Actor, Call
from almanac.core.database import Transaction
from almanac.core.errors import AlmanacError, Forbidden, NotFound
from almanac.identity import access, groups
from almanac.identity.principals import Principal
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_text, document_tree, documents, downloads, folders, trash
from almanac.knowledge.bases import LEVELS, KnowledgeBase
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.ingest import uploads
from almanac.knowledge.ingest.uploads import UploadTarget
from tests.knowledge.library import Library, operator_of

KEY = b"a key that is long enough for HS256"

# Caller, and the role that they have on a personal base, a group's and the organisation's. A "-" is none: for them
# the base does not exist. The bases are the founder's, who has left the group; the keeper's are their own.
CALLERS = """
stranger                    -                   -                   Reporter
admin                       -                   Owner               Owner
operator                    Owner               Owner               Owner
founder                     Owner               -                   Reporter
founder-limited-to-these    Owner               -                   Reporter
founder-limited-elsewhere   -                   -                   -
admin-limited-elsewhere     -                   -                   -
keeper                      Owner               Owner               Owner
member-RestrictedAnalyst    -                   RestrictedAnalyst   Reporter
member-Reporter             -                   Reporter            Reporter
member-Developer            -                   Developer           Reporter
member-Maintainer           -                   Maintainer          Reporter
member-Owner                -                   Owner               Reporter
granted-RestrictedAnalyst   RestrictedAnalyst   RestrictedAnalyst   Reporter
granted-Reporter            Reporter            Reporter            Reporter
granted-Developer           Developer           Developer           Developer
granted-Maintainer          Maintainer          Maintainer          Maintainer
granted-Owner               Owner               Owner               Owner
friends-RestrictedAnalyst   RestrictedAnalyst   RestrictedAnalyst   Reporter
friends-Reporter            Reporter            Reporter            Reporter
friends-Developer           Developer           Developer           Developer
friends-Maintainer          Maintainer          Maintainer          Maintainer
friends-Owner               Owner               Owner               Owner
foreign-stranger            -                   -                   -
foreign-admin               -                   -                   -
foreign-granted-Owner       -                   -                   -
"""


@dataclass(frozen=True)
class Shelf:
    """A base and one of everything in it, by id."""

    base: int
    folder: int = 0
    inner: int = 0  # a folder in the folder
    document: int = 0
    removed_folder: int = 0
    removed_document: int = 0


Write = Callable[[Call, Transaction, Shelf], Awaitable[Any]]
Read = Callable[[Call, Library, Shelf], Awaitable[Any]]

# What the contract lets each role do: a Reporter reads, a Developer writes, a Maintainer manages.
READS: dict[str, tuple[Role, Read]] = {
    "bases.get": (Role.Reporter, lambda c, _, s: bases.get(c.db, c, s.base)),
    "bases.get to search": (Role.RestrictedAnalyst, lambda c, _, s: bases.get(c.db, c, s.base, "search")),
    "bases.shares": (Role.Maintainer, lambda c, _, s: bases.shares(c.db, c, s.base)),
    "folders.get": (Role.Reporter, lambda c, _, s: folders.get(c.db, c, s.folder)),
    "documents.get": (Role.Reporter, lambda c, _, s: documents.get(c.db, c, s.document)),
    "documents.get removed": (Role.Reporter, lambda c, _, s: documents.get(c.db, c, s.removed_document, removed=True)),
    "readings.read": (Role.Reporter, lambda c, _, s: document_text.read(c, s.document)),
    "readings.read_page": (Role.Reporter, lambda c, _, s: document_text.read_page(c, s.document, 2)),
    "nodes.browse": (Role.Reporter, lambda c, _, s: document_tree.browse(c, s.base)),
    "nodes.browse folder": (Role.Reporter, lambda c, _, s: document_tree.browse(c, s.base, s.folder)),
    "nodes.tree": (Role.Reporter, lambda c, _, s: document_tree.tree(c, s.base)),
    "nodes.tree folder": (Role.Reporter, lambda c, _, s: document_tree.tree(c, s.base, s.folder)),
    "trash.find": (Role.Developer, lambda c, _, s: trash.find(c, s.base)),
    "downloads.issue": (Role.Reporter, lambda c, _, s: downloads.issue(c, KEY, s.document)),
    "downloads.open_file": (Role.Reporter, lambda c, it, s: downloads.open_file(c, it.files, s.document, "inline")),
}
WRITES: dict[str, tuple[Role, Write]] = {
    "bases.change": (Role.Maintainer, lambda c, tx, s: bases.update(c, tx, s.base, name="Other")),
    "bases.share": (Role.Maintainer, lambda c, tx, s: bases.share(c, tx, s.base, Role.Reporter, user="guest")),
    "bases.unshare": (Role.Maintainer, lambda c, tx, s: bases.share(c, tx, s.base, None, group="friends")),
    "bases.remove": (Role.Maintainer, lambda c, tx, s: bases.remove(c, tx, s.base)),
    "bases.restore": (Role.Maintainer, lambda c, tx, s: _restored(c, tx, s)),
    "folders.add": (Role.Developer, lambda c, tx, s: folders.add(c, tx, s.base, "New")),
    "folders.add inside": (Role.Developer, lambda c, tx, s: folders.add(c, tx, s.base, "New", s.folder)),
    "folders.ensure": (Role.Developer, lambda c, tx, s: folders.ensure(c, tx, s.base, "a/b")),
    "folders.rename": (Role.Developer, lambda c, tx, s: folders.rename(c, tx, s.folder, "New")),
    "folders.move": (Role.Developer, lambda c, tx, s: folders.move(c, tx, s.inner, 0)),
    "folders.remove": (Role.Developer, lambda c, tx, s: folders.remove(c, tx, s.folder, contents="delete")),
    "folders.empty": (Role.Developer, lambda c, tx, s: folders.remove(c, tx, s.folder, contents="move")),
    "folders.restore": (Role.Developer, lambda c, tx, s: folders.restore(c, tx, s.removed_folder)),
    "documents.change": (Role.Developer, lambda c, tx, s: documents.update(c, tx, s.document, tags=["x"])),
    "documents.move": (Role.Developer, lambda c, tx, s: documents.move(c, tx, [s.document], 0)),
    "documents.enable": (Role.Developer, lambda c, tx, s: documents.enable(c, tx, [s.document], False)),
    "documents.remove": (Role.Developer, lambda c, tx, s: documents.remove(c, tx, [s.document])),
    "documents.restore": (Role.Developer, lambda c, tx, s: documents.restore(c, tx, [s.removed_document])),
    "documents.reindex": (Role.Developer, lambda c, tx, s: documents.reindex(c, tx, [s.document])),
    "documents.retry": (Role.Developer, lambda c, tx, s: documents.retry(c, tx, s.base)),
}


async def _restored(call: Call, tx: Transaction, shelf: Shelf) -> KnowledgeBase:
    await tx.execute("UPDATE bases SET removed_at = 1 WHERE id = $1", shelf.base)
    return await bases.restore(call, tx, shelf.base)


class Undo(Exception):
    """Raised where a verb has done what it should, so that the next one finds everything as it was."""


class City:
    """Bases of each level, and a caller for each line of the table."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.town = library.town
        self.shelves: dict[tuple[str, str], Shelf] = {}  # by whose they are, and level
        self.actors: dict[str, Actor] = {}

    async def build(self) -> "City":
        town = self.town
        await town.add("guest")
        founder, keeper = await town.add("founder"), await town.add("keeper")
        team = await town.group("team", keeper=Role.Developer)
        await town.group("friends")
        for owner in (founder, keeper):
            for level in LEVELS:
                self.shelves[owner.name, level] = await self._furnish(owner, level)
        for line in CALLERS.strip().splitlines():
            name = line.split()[0]
            self.actors[name] = await self._person(name, founder, keeper, team)
        for shelf in self.shelves.values():
            base = await bases.get_or_none(town.db, shelf.base)
            assert base is not None
            await town.do(lambda tx, base=base: access.grant(tx, base.thing, Role.Developer, principal_id=keeper.id))
        return self

    def shelf(self, caller: str, level: str) -> Shelf:
        return self.shelves["keeper" if caller == "keeper" else "founder", level]

    async def _furnish(self, owner: Principal, level: str) -> Shelf:
        call = self.town.call(operator_of(await self.town.actor(owner)))
        self.library.call = call
        group = "team" if level == "group" else None
        base = await self.town.do(lambda tx: bases.add(call, tx, "Manuals", level=level, group=group))
        await self.town.do(lambda tx: bases.share(call, tx, base.id, Role.RestrictedAnalyst, group="friends"))
        folder = await self.library.folder("Pumps", base=base)
        inner = await self.library.folder("Valves", folder.id, base=base)
        document = await self.library.shelve("pump.txt", "One.\fTwo.", base=base, folder_id=folder.id)
        lost = await self.library.folder("Lost", base=base)
        gone = await self.library.shelve("gone.txt", "Gone.", base=base)
        await self.town.do(lambda tx: folders.remove(call, tx, lost.id, contents="delete"))
        await self.town.do(lambda tx: documents.remove(call, tx, [gone.id]))
        return Shelf(base.id, folder.id, inner.id, document.id, lost.id, gone.id)

    async def _person(self, name: str, founder: Principal, keeper: Principal, team: groups.Group) -> Actor:
        town = self.town
        kind, last = name.split("-")[0], name.split("-")[-1]
        if kind in ("founder", "keeper", "operator"):
            mine = [shelf.base for (owner, _), shelf in self.shelves.items() if owner == "founder"]
            limits: dict[str, dict[str, Any]] = {"these": {"bases": mine}, "elsewhere": {"bases": [10_000]}}
            actor = await town.actor(keeper if kind == "keeper" else founder, **limits.get(last, {}))
            return operator_of(actor) if kind == "operator" else actor
        org = town.other if kind == "foreign" else town.acme
        person = await town.add(name.lower(), org=org, admin="admin" in name)
        if last in Role.__members__:
            await town.do(lambda tx: self._relate(tx, name, person, team, Role[last]))
        return await town.actor(person, **({"bases": [10_000]} if last == "elsewhere" else {}))

    async def _relate(self, tx: Transaction, name: str, person: Principal, team: groups.Group, role: Role) -> None:
        if name.startswith("member"):
            await groups.set_member(tx, team, person, role)
            return
        holder = {"principal_id": person.id}
        if name.startswith("friends"):
            circle = await groups.add(tx, self.town.acme.id, name.lower())
            await groups.set_member(tx, circle, person, Role.RestrictedAnalyst)  # counts for what is the group's own
            holder = {"group_id": circle.id}
        for (owner, _), shelf in self.shelves.items():
            base = await bases.get_or_none(tx, shelf.base)
            assert base is not None
            if owner == "founder":
                await access.grant(tx, base.thing, role, **holder)

    async def attempt(self, actor: Actor, verb: str, shelf: Shelf) -> AlmanacError | None:
        """What somebody is told who tries this; None if it was done."""
        call = self.town.call(actor)
        try:
            if verb in READS:
                await READS[verb][1](call, self.library, shelf)
                return None
            await self.town.do(lambda tx: self._undone(call, tx, verb, shelf))
        except Undo:
            return None
        except AlmanacError as error:
            return error
        return None

    async def _undone(self, call: Call, tx: Transaction, verb: str, shelf: Shelf) -> None:
        await WRITES[verb][1](call, tx, shelf)
        raise Undo


def expectations() -> list[tuple[str, str, Role | None]]:
    found: list[tuple[str, str, Role | None]] = []
    for line in CALLERS.strip().splitlines():
        name, *held = line.split()
        found += [(name, level, Role.__members__.get(role)) for level, role in zip(LEVELS, held, strict=True)]
    return found


def kind_of(outcome: Exception | None) -> type:
    """What it is, exactly: of things that are not there some are told apart by how they are called, and no more."""
    return NotFound if isinstance(outcome, NotFound) else type(outcome)


def generalised(error: AlmanacError | None) -> tuple[str, str]:
    return type(error).__name__, re.sub(r"\d+", "N", error.text if error else "")


NEEDED = {verb: role for verb, (role, _) in (*READS.items(), *WRITES.items())}


async def test_every_verb_at_every_level_is_open_to_exactly_those_whom_the_table_lets_in(library: Library):
    city = await City(library).build()
    wrong: list[str] = []
    for caller, level, held in expectations():
        for verb, needed in NEEDED.items():
            outcome = await city.attempt(city.actors[caller], verb, city.shelf(caller, level))
            expected = type(None) if held and held >= needed else Forbidden if held else NotFound
            if kind_of(outcome) is not expected:
                wrong.append(f"{caller}: {verb} on a {level} base: {outcome!r}, not {expected.__name__}")
    assert wrong == []
    assert len(expectations()) * len(NEEDED) == 26 * 3 * 35


async def test_what_is_hidden_is_told_apart_in_nothing_from_what_never_was(library: Library):
    city = await City(library).build()
    nothing = Shelf(77_001, 77_002, 77_003, 77_004, 77_005, 77_006)
    wrong: list[str] = []
    for caller, level, held in expectations():
        if held is not None:
            continue
        for verb in NEEDED:
            hidden = await city.attempt(city.actors[caller], verb, city.shelf(caller, level))
            unknown = await city.attempt(city.actors[caller], verb, nothing)
            if generalised(hidden) != generalised(unknown):
                wrong.append(f"{caller}: {verb}: {hidden!r} but {unknown!r}")
            numbers = re.findall(r"\d+", hidden.text if hidden else "")
            if set(numbers) - {str(value) for value in vars(city.shelf(caller, level)).values()}:
                wrong.append(f"{caller}: {verb}: names more than was asked for: {hidden!r}")
    assert wrong == []


@pytest.mark.parametrize("way", ["add", "replace", "text", "base64"])
async def test_content_is_taken_in_from_developers_only_and_of_others_nothing_is_stored(library: Library, way: str):
    city = await City(library).build()
    files = library.files
    held_before = library.stored()
    for caller, level, held in expectations():
        call, shelf = city.town.call(city.actors[caller]), city.shelf(caller, level)
        place, there = UploadTarget(base_id=shelf.base), UploadTarget(document_id=shelf.document)
        draft = DocumentDraft(f"{caller} {level} {way}.txt")
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "add": lambda c=call, p=place, d=draft: uploads.store_content(
                c, files, p, d, lambda i: i.write(d.name.encode())
            ),
            "replace": lambda c=call, t=there, d=draft: uploads.store_content(
                c, files, t, d, lambda i: i.write(d.name.encode())
            ),
            "text": lambda c=call, p=place, d=draft: uploads.take_text(c, files, p, d, d.name),
            "base64": lambda c=call, p=place, d=draft: uploads.take_base64(c, files, p, d, "QUJD"),
        }
        if held and held >= Role.Developer:
            await ways[way]()
            held_before = library.stored()
        else:
            with pytest.raises(Forbidden if held else NotFound):
                await ways[way]()
            assert library.stored() == held_before
    assert library.drafts() == []


async def test_a_listing_of_bases_shows_each_caller_what_the_table_gives_them_and_their_role(library: Library):
    city = await City(library).build()
    wrong: list[str] = []
    for caller, level, held in expectations():
        found = await bases.find(city.town.call(city.actors[caller]), limit=100)
        listed = {base.id: base for base in found.items}
        base = listed.get(city.shelf(caller, level).base)
        if (base.role if base else None) != held:
            wrong.append(f"{caller}: the {level} base is listed with {base.role if base else None}, not {held}")
        if found.total != len(found.items) or (base and base.documents != 1):
            wrong.append(f"{caller}: counts {found.total} of {len(found.items)}, {base.documents if base else 0}")
    assert wrong == []


async def test_documents_move_between_bases_only_where_the_caller_may_write_in_both(library: Library):
    city = await City(library).build()
    for caller, level, held in expectations():
        if caller == "keeper":
            continue
        actor, shelf = city.actors[caller], city.shelf(caller, level)
        own = await city.town.do(lambda tx, a=actor: bases.add(city.town.call(replace(a, bases=None)), tx, "Own"))
        wider = replace(actor, bases=None if actor.bases is None else actor.bases | {own.id})
        call = city.town.call(wider)
        mine = await city.library.store(
            "mine", lambda tx, s, c=call, b=own.id: documents.add(c, tx, b, DocumentDraft("mine.txt"), s)
        )
        expected = type(None) if held and held >= Role.Developer else Forbidden if held else NotFound
        for ids, target in (([mine.document.id], shelf.base), ([shelf.document], own.id)):
            outcome: Exception | None = None
            try:
                await city.town.do(lambda tx, c=call, i=ids, t=target: _moved(c, tx, i, t))
            except Undo:
                pass
            except AlmanacError as error:
                outcome = error
            assert kind_of(outcome) is expected, (caller, level, outcome)


async def _moved(call: Call, tx: Transaction, ids: list[int], base_id: int) -> None:
    await documents.move(call, tx, ids, 0, base_id)
    raise Undo


@pytest.mark.parametrize(
    ("who", "may"),
    [("admin", True), ("keeper", True), ("member-Developer", True), ("member-Reporter", False), ("stranger", False)],
)
async def test_a_group_s_base_is_made_by_developers_of_the_group(library: Library, who: str, may: bool):
    city = await City(library).build()
    call = city.town.call(city.actors[who])
    if may:
        made = await city.town.do(lambda tx: bases.add(call, tx, "Ours", level="group", group="team"))
        assert (made.level, made.group_name, made.role) == ("group", "team", Role.Owner)
    else:
        with pytest.raises((Forbidden, NotFound)):
            await city.town.do(lambda tx: bases.add(call, tx, "Ours", level="group", group="team"))


async def test_the_organisation_s_bases_are_made_by_administrators_and_none_by_a_limited_token(library: Library):
    city = await City(library).build()
    for who, actor in city.actors.items():
        call = city.town.call(actor)
        may = who in ("admin", "operator", "foreign-admin")
        try:
            made = await city.town.do(lambda tx, c=call: bases.add(c, tx, "All of us", level="organization"))
            assert may, who
            assert made.org_id == actor.org_id
        except Forbidden:
            assert not may, who
    limited = city.town.call(city.actors["founder-limited-to-these"])
    with pytest.raises(Forbidden, match="limited to some"):
        await city.town.do(lambda tx: bases.add(limited, tx, "Mine"))
