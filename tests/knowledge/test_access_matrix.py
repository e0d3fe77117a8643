"""Permissions on a knowledge base: every verb, for every kind of caller and every level, against a table."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from almanac.core.call import Actor, Call
from almanac.core.database import Transaction
from almanac.core.errors import AlmanacError, Forbidden, NotFound
from almanac.identity import access, groups
from almanac.identity.principals import Principal
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_search, document_text, document_tree, documents, downloads, folders, trash
from almanac.knowledge.bases import LEVELS
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.ingest import uploads
from almanac.knowledge.ingest.uploads import UploadTarget
from tests.knowledge.workspace import Workspace, operator_of
from tests.statements import Recorder, Statement

KEY = b"a key that is long enough for HS256"

# A caller and their role on a personal base, on a base of a group and on a base of the organisation. A "-" is no role:
# the base does not exist for the caller. The bases belong to the founder, who has left the group; the keeper has other
# bases, which belong to the keeper.
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
class BaseIds:
    """The ids of a base and of its contents."""

    base: int
    folder: int = 0
    inner: int = 0  # a folder in the folder
    document: int = 0
    removed_folder: int = 0
    removed_document: int = 0
    removed_base: int = 0

    @property
    def both_bases(self) -> tuple[int, int]:
        """The base and the removed base, on which callers have the same roles."""
        return self.base, self.removed_base


Write = Callable[[Call, Transaction, BaseIds], Awaitable[Any]]
Read = Callable[[Call, Workspace, BaseIds], Awaitable[Any]]

# The role that each verb needs: a Reporter reads, a Developer writes, a Maintainer manages.
READS: dict[str, tuple[Role, Read]] = {
    "bases.get": (Role.Reporter, lambda c, _, s: bases.get(c.db, c, s.base)),
    "bases.shares": (Role.Maintainer, lambda c, _, s: bases.shares(c.db, c, s.base)),
    "folders.get": (Role.Reporter, lambda c, _, s: folders.get(c.db, c, s.folder)),
    "documents.get": (Role.Reporter, lambda c, _, s: documents.get(c.db, c, s.document)),
    "documents.get removed": (Role.Reporter, lambda c, _, s: documents.get(c.db, c, s.removed_document, removed=True)),
    "document_text.read": (Role.Reporter, lambda c, _, s: document_text.read(c, s.document)),
    "document_text.read_page": (Role.Reporter, lambda c, _, s: document_text.read_page(c, s.document, 2)),
    "document_tree.browse": (Role.Reporter, lambda c, _, s: document_tree.browse(c, s.base)),
    "document_tree.browse folder": (Role.Reporter, lambda c, _, s: document_tree.browse(c, s.base, s.folder)),
    "document_tree.tree": (Role.Reporter, lambda c, _, s: document_tree.tree(c, s.base)),
    "document_tree.tree folder": (Role.Reporter, lambda c, _, s: document_tree.tree(c, s.base, s.folder)),
    "trash.find": (Role.Developer, lambda c, _, s: trash.find(c, s.base)),
    "document_search.resolve_scope bases": (
        Role.Reporter,
        lambda c, _, s: document_search.resolve_scope(c, base_ids=[s.base]),
    ),
    "document_search.resolve_scope folders": (
        Role.Reporter,
        lambda c, _, s: document_search.resolve_scope(c, folder_ids=[s.folder]),
    ),
    "document_search.resolve_scope documents": (
        Role.Reporter,
        lambda c, _, s: document_search.resolve_scope(c, document_ids=[s.document]),
    ),
    "downloads.issue": (Role.Reporter, lambda c, _, s: downloads.issue(c, KEY, s.document)),
    "downloads.open_file": (Role.Reporter, lambda c, w, s: downloads.open_file(c, w.files, s.document, "inline")),
}
WRITES: dict[str, tuple[Role, Write]] = {
    "bases.update": (Role.Maintainer, lambda c, tx, s: bases.update(c, tx, s.base, name="Other")),
    "bases.share": (Role.Maintainer, lambda c, tx, s: bases.share(c, tx, s.base, Role.Reporter, user="guest")),
    "bases.unshare": (Role.Maintainer, lambda c, tx, s: bases.share(c, tx, s.base, None, group="friends")),
    "bases.remove": (Role.Maintainer, lambda c, tx, s: bases.remove(c, tx, s.base)),
    "bases.restore": (Role.Maintainer, lambda c, tx, s: bases.restore(c, tx, s.removed_base)),
    "folders.add": (Role.Developer, lambda c, tx, s: folders.add(c, tx, s.base, "New")),
    "folders.add inside": (Role.Developer, lambda c, tx, s: folders.add(c, tx, s.base, "New", s.folder)),
    "folders.ensure": (Role.Developer, lambda c, tx, s: folders.ensure(c, tx, s.base, "a/b")),
    "folders.rename": (Role.Developer, lambda c, tx, s: folders.rename(c, tx, s.folder, "New")),
    "folders.move": (Role.Developer, lambda c, tx, s: folders.move(c, tx, s.inner, 0)),
    "folders.remove": (Role.Developer, lambda c, tx, s: folders.remove(c, tx, s.folder, contents="delete")),
    "folders.empty": (Role.Developer, lambda c, tx, s: folders.remove(c, tx, s.folder, contents="move")),
    "folders.restore": (Role.Developer, lambda c, tx, s: folders.restore(c, tx, s.removed_folder)),
    "documents.update": (Role.Developer, lambda c, tx, s: documents.update(c, tx, s.document, tags=["x"])),
    "documents.move": (Role.Developer, lambda c, tx, s: documents.move(c, tx, [s.document], 0)),
    "documents.enable": (Role.Developer, lambda c, tx, s: documents.enable(c, tx, [s.document], False)),
    "documents.remove": (Role.Developer, lambda c, tx, s: documents.remove(c, tx, [s.document])),
    "documents.restore": (Role.Developer, lambda c, tx, s: documents.restore(c, tx, [s.removed_document])),
    "documents.reindex": (Role.Developer, lambda c, tx, s: documents.reindex(c, tx, [s.document])),
    "documents.retry": (Role.Developer, lambda c, tx, s: documents.retry(c, tx, s.base)),
}


class Undo(Exception):
    """Raised after a verb has succeeded, to roll back its changes for the next verb."""


class Scenario:
    """Bases of each level, and an actor for each line of the table."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.town = workspace.town
        self.base_ids: dict[tuple[str, str], BaseIds] = {}  # by owner and level
        self.actors: dict[str, Actor] = {}

    async def build(self) -> "Scenario":
        town = self.town
        await town.add("guest")
        founder, keeper = await town.add("founder"), await town.add("keeper")
        team = await town.group("team", keeper=Role.Developer)
        await town.group("friends")
        for owner in (founder, keeper):
            for level in LEVELS:
                self.base_ids[owner.name, level] = await self._add_base(owner, level)
        for line in CALLERS.strip().splitlines():
            name = line.split()[0]
            self.actors[name] = await self._add_actor(name, founder, keeper, team)
        for base_id in (id for ids in self.base_ids.values() for id in ids.both_bases):
            base = await bases.get_or_none(town.db, base_id)
            assert base is not None
            await town.do(
                lambda tx, base=base: access.grant(tx, base.protected_object, Role.Developer, principal_id=keeper.id)
            )
        return self

    def ids(self, caller: str, level: str) -> BaseIds:
        return self.base_ids["keeper" if caller == "keeper" else "founder", level]

    async def _add_base(self, owner: Principal, level: str) -> BaseIds:
        call = self.town.call(operator_of(await self.town.actor(owner)))
        self.workspace.call = call
        group = "team" if level == "group" else None
        base = await self.town.do(lambda tx: bases.add(call, tx, "Manuals", level=level, group=group))
        former = await self.town.do(lambda tx: bases.add(call, tx, "Former", level=level, group=group))
        for each in (base, former):
            await self.town.do(
                lambda tx, id=each.id: bases.share(call, tx, id, Role.RestrictedAnalyst, group="friends")
            )
        await self.town.do(lambda tx: bases.remove(call, tx, former.id))
        folder = await self.workspace.add_folder("Pumps", base=base)
        inner = await self.workspace.add_folder("Valves", folder.id, base=base)
        document = await self.workspace.add_parsed("pump.txt", "One.\fTwo.", base=base, folder_id=folder.id)
        lost = await self.workspace.add_folder("Lost", base=base)
        gone = await self.workspace.add_parsed("gone.txt", "Gone.", base=base)
        await self.town.do(lambda tx: folders.remove(call, tx, lost.id, contents="delete"))
        await self.town.do(lambda tx: documents.remove(call, tx, [gone.id]))
        return BaseIds(base.id, folder.id, inner.id, document.id, lost.id, gone.id, former.id)

    async def _add_actor(self, name: str, founder: Principal, keeper: Principal, team: groups.Group) -> Actor:
        town = self.town
        kind, last = name.split("-")[0], name.split("-")[-1]
        if kind in ("founder", "keeper", "operator"):
            mine = [id for (owner, _), ids in self.base_ids.items() if owner == "founder" for id in ids.both_bases]
            limits: dict[str, dict[str, Any]] = {"these": {"bases": mine}, "elsewhere": {"bases": [10_000]}}
            actor = await town.actor(keeper if kind == "keeper" else founder, **limits.get(last, {}))
            return operator_of(actor) if kind == "operator" else actor
        org = town.other if kind == "foreign" else town.acme
        person = await town.add(name.lower(), org=org, admin="admin" in name)
        if last in Role.__members__:
            await town.do(lambda tx: self._give_role(tx, name, person, team, Role[last]))
        return await town.actor(person, **({"bases": [10_000]} if last == "elsewhere" else {}))

    async def _give_role(self, tx: Transaction, name: str, person: Principal, team: groups.Group, role: Role) -> None:
        if name.startswith("member"):
            await groups.set_member(tx, team, person, role)
            return
        holder = {"principal_id": person.id}
        if name.startswith("friends"):
            circle = await groups.add(tx, self.town.acme.id, name.lower())
            # The role in the group matters only for bases of that group.
            await groups.set_member(tx, circle, person, Role.RestrictedAnalyst)
            holder = {"group_id": circle.id}
        founders = (ids for (owner, _), ids in self.base_ids.items() if owner == "founder")
        for base_id in (id for ids in founders for id in ids.both_bases):
            base = await bases.get_or_none(tx, base_id)
            assert base is not None
            await access.grant(tx, base.protected_object, role, **holder)

    async def attempt(self, actor: Actor, verb: str, ids: BaseIds) -> AlmanacError | None:
        """The error of a verb, or None if it succeeded."""
        call = self.town.call(actor)
        try:
            if verb in READS:
                await READS[verb][1](call, self.workspace, ids)
                return None
            await self.town.do(lambda tx: self._run_and_undo(call, tx, verb, ids))
        except Undo:
            return None
        except AlmanacError as error:
            return error
        return None

    async def _run_and_undo(self, call: Call, tx: Transaction, verb: str, ids: BaseIds) -> None:
        await WRITES[verb][1](call, tx, ids)
        raise Undo


def expectations() -> list[tuple[str, str, Role | None]]:
    """A caller, a level and the role of the table, for each cell of the table."""
    cells: list[tuple[str, str, Role | None]] = []
    for line in CALLERS.strip().splitlines():
        name, *roles = line.split()
        cells += [(name, level, Role.__members__.get(role)) for level, role in zip(LEVELS, roles, strict=True)]
    return cells


def type_of(outcome: Exception | None) -> type:
    """The type of an outcome. Subclasses of NotFound count as NotFound, because they differ only in their names."""
    return NotFound if isinstance(outcome, NotFound) else type(outcome)


def generalised(error: AlmanacError | None) -> tuple[str, str]:
    """The type and the text of an error, without ids."""
    return type(error).__name__, re.sub(r"\d+", "N", error.text if error else "")


NEEDED_ROLES = {verb: role for verb, (role, _) in (*READS.items(), *WRITES.items())}


async def test_every_verb_is_permitted_to_exactly_the_callers_of_the_table(workspace: Workspace):
    scenario = await Scenario(workspace).build()
    wrong: list[str] = []
    for caller, level, role in expectations():
        for verb, needed_role in NEEDED_ROLES.items():
            outcome = await scenario.attempt(scenario.actors[caller], verb, scenario.ids(caller, level))
            expected = type(None) if role and role >= needed_role else Forbidden if role else NotFound
            if type_of(outcome) is not expected:
                wrong.append(f"{caller}: {verb} on a {level} base: {outcome!r}, not {expected.__name__}")
    assert wrong == []
    assert len(expectations()) * len(NEEDED_ROLES) == 26 * 3 * 37


async def test_errors_for_a_hidden_and_for_a_missing_object_are_the_same(workspace: Workspace):
    scenario = await Scenario(workspace).build()
    nothing = BaseIds(77_001, 77_002, 77_003, 77_004, 77_005, 77_006, 77_007)
    wrong: list[str] = []
    for caller, level, role in expectations():
        if role is not None:
            continue
        for verb in NEEDED_ROLES:
            hidden = await scenario.attempt(scenario.actors[caller], verb, scenario.ids(caller, level))
            unknown = await scenario.attempt(scenario.actors[caller], verb, nothing)
            if generalised(hidden) != generalised(unknown):
                wrong.append(f"{caller}: {verb}: {hidden!r} but {unknown!r}")
            numbers = re.findall(r"\d+", hidden.text if hidden else "")
            if set(numbers) - {str(value) for value in vars(scenario.ids(caller, level)).values()}:
                wrong.append(f"{caller}: {verb}: names more than was asked for: {hidden!r}")
    assert wrong == []


async def test_a_foreign_and_a_missing_object_run_the_same_statements(workspace: Workspace):
    scenario = await Scenario(workspace).build()
    nothing = BaseIds(77_001, 77_002, 77_003, 77_004, 77_005, 77_006, 77_007)
    real, wrong = workspace.town.db, list[str]()

    async def statements(caller: str, verb: str, ids: BaseIds) -> list[Statement]:
        recorded: list[Statement] = []
        workspace.town.db = cast("Any", Recorder(real, recorded))
        try:
            await scenario.attempt(scenario.actors[caller], verb, ids)
        finally:
            workspace.town.db = real
        return recorded

    for caller in ("foreign-stranger", "foreign-admin", "founder-limited-elsewhere"):
        for verb in NEEDED_ROLES:
            hidden = await statements(caller, verb, scenario.ids(caller, "personal"))
            missing = await statements(caller, verb, nothing)
            is_foreign = caller.startswith("foreign")
            if hidden != missing if is_foreign else [sql for sql, _ in hidden] != [sql for sql, _ in missing]:
                wrong.append(f"{caller}: {verb}: {hidden} but {missing}")
    assert wrong == []


@pytest.mark.parametrize("way", ["add", "replace", "text", "base64"])
async def test_only_developers_can_add_content_and_of_other_callers_nothing_is_stored(workspace: Workspace, way: str):
    scenario = await Scenario(workspace).build()
    files = workspace.files
    stored_before = workspace.stored_names()
    for caller, level, role in expectations():
        call, ids = scenario.town.call(scenario.actors[caller]), scenario.ids(caller, level)
        new_target, existing_target = UploadTarget(base_id=ids.base), UploadTarget(document_id=ids.document)
        draft = DocumentDraft(f"{caller} {level} {way}.txt")
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "add": lambda c=call, p=new_target, d=draft: uploads.store_content(
                c, files, p, d, lambda i: i.write(d.name.encode())
            ),
            "replace": lambda c=call, t=existing_target, d=draft: uploads.store_content(
                c, files, t, d, lambda i: i.write(d.name.encode())
            ),
            "text": lambda c=call, p=new_target, d=draft: uploads.take_text(c, files, p, d, d.name),
            "base64": lambda c=call, p=new_target, d=draft: uploads.take_base64(c, files, p, d, "QUJD"),
        }
        if role and role >= Role.Developer:
            await ways[way]()
            stored_before = workspace.stored_names()
        else:
            with pytest.raises(Forbidden if role else NotFound):
                await ways[way]()
            assert workspace.stored_names() == stored_before
    assert workspace.incoming_files() == []


async def test_a_list_of_bases_has_the_bases_and_roles_of_the_table_for_each_caller(workspace: Workspace):
    scenario = await Scenario(workspace).build()
    wrong: list[str] = []
    for caller, level, role in expectations():
        page = await bases.find(scenario.town.call(scenario.actors[caller]), limit=100)
        listed = {base.id: base for base in page.items}
        base = listed.get(scenario.ids(caller, level).base)
        if (base.role if base else None) != role:
            wrong.append(f"{caller}: the {level} base is listed with {base.role if base else None}, not {role}")
        if page.total != len(page.items) or (base and base.documents != 1):
            wrong.append(f"{caller}: counts {page.total} of {len(page.items)}, {base.documents if base else 0}")
    assert wrong == []


async def test_documents_move_between_bases_only_if_the_caller_may_write_in_both(workspace: Workspace):
    scenario = await Scenario(workspace).build()
    for caller, level, role in expectations():
        if caller == "keeper":
            continue
        actor, ids = scenario.actors[caller], scenario.ids(caller, level)
        own = await scenario.town.do(
            lambda tx, a=actor: bases.add(scenario.town.call(replace(a, bases=None)), tx, "Own")
        )
        wider = replace(actor, bases=None if actor.bases is None else actor.bases | {own.id})
        call = scenario.town.call(wider)
        mine = await scenario.workspace.store(
            "mine", lambda tx, s, c=call, b=own.id: documents.add(c, tx, b, DocumentDraft("mine.txt"), s)
        )
        expected = type(None) if role and role >= Role.Developer else Forbidden if role else NotFound
        for document_ids, target in (([mine.document.id], ids.base), ([ids.document], own.id)):
            outcome: Exception | None = None
            try:
                await scenario.town.do(lambda tx, c=call, i=document_ids, t=target: _moved(c, tx, i, t))
            except Undo:
                pass
            except AlmanacError as error:
                outcome = error
            assert type_of(outcome) is expected, (caller, level, outcome)


async def _moved(call: Call, tx: Transaction, ids: list[int], base_id: int) -> None:
    await documents.move(call, tx, ids, 0, base_id)
    raise Undo


@pytest.mark.parametrize(
    ("who", "may"),
    [("admin", True), ("keeper", True), ("member-Developer", True), ("member-Reporter", False), ("stranger", False)],
)
async def test_developers_of_a_group_can_add_a_base_for_it(workspace: Workspace, who: str, may: bool):
    scenario = await Scenario(workspace).build()
    call = scenario.town.call(scenario.actors[who])
    if may:
        made = await scenario.town.do(lambda tx: bases.add(call, tx, "Ours", level="group", group="team"))
        assert (made.level, made.group_name, made.role) == ("group", "team", Role.Owner)
    else:
        with pytest.raises((Forbidden, NotFound)):
            await scenario.town.do(lambda tx: bases.add(call, tx, "Ours", level="group", group="team"))


async def test_only_administrators_can_add_a_base_of_the_organisation_and_no_limited_token_can(workspace: Workspace):
    scenario = await Scenario(workspace).build()
    for who, actor in scenario.actors.items():
        call = scenario.town.call(actor)
        may = who in ("admin", "operator", "foreign-admin")
        try:
            made = await scenario.town.do(lambda tx, c=call: bases.add(c, tx, "All of us", level="organization"))
            assert may, who
            assert made.org_id == actor.org_id
        except Forbidden:
            assert not may, who
    limited = scenario.town.call(scenario.actors["founder-limited-to-these"])
    with pytest.raises(Forbidden, match="limited to some"):
        await scenario.town.do(lambda tx: bases.add(limited, tx, "Mine"))
