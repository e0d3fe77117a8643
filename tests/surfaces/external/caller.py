"""An external caller, as in the surface's document, and a small organisation for it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx2

from almanac.core import clock
from almanac.core.call import Actor, Call
from almanac.core.database import Database, Transaction
from almanac.files.file_store import FileStore
from almanac.identity import groups, orgs, principals, tokens
from almanac.identity.roles import Role
from almanac.knowledge import bases, documents, folders
from almanac.knowledge.documents import DocumentDraft
from almanac.surfaces.external.tools import MOUNT, TRANSPORT
from tests.live_server import LEGACY, Running, request

PATH = MOUNT + TRANSPORT
HEADER = "X-Wegent-Download-Token"
NO_LIMITS: dict[str, Any] = {
    "external_enabled": True,
    "external_rate_limit_enabled": False,
    "external_search_rate_limit_enabled": False,
    "external_download_rate_limit_enabled": False,
}


@dataclass
class Caller:
    """A caller with a token."""

    live: Running
    token: str
    mount: str = MOUNT

    def post(
        self, method: str, params: Mapping[str, Any], era: str = LEGACY, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        message, sent = request(method, params, era=era)
        sent |= {"authorization": f"Bearer {self.token}", **(headers or {})}
        return self.live.post(json.dumps(message), sent, self.mount + TRANSPORT)

    def call(self, tool: str, arguments: Mapping[str, Any] | None = None, **how: Any) -> Any:
        """Call a tool; return its result, one text with JSON."""
        response = self.post("tools/call", {"name": f"wegent_kb_{tool}", "arguments": arguments or {}}, **how)
        assert response.status_code == 200, response.text
        result = response.json()["result"]
        assert result["isError"] is False
        assert "structuredContent" not in result
        [content] = result["content"]
        assert content["type"] == "text"
        return json.loads(content["text"])

    def bases(self, **arguments: Any) -> Any:
        return self.call("list_knowledge_bases", arguments)

    def nodes(self, **arguments: Any) -> Any:
        return self.call("list_nodes", arguments)

    def content(self, **arguments: Any) -> Any:
        return self.call("get_document_content", arguments)

    def download(self, **arguments: Any) -> Any:
        return self.call("get_document_download", arguments)

    def search(self, **arguments: Any) -> Any:
        return self.call("search_content", arguments)

    def fetch(self, document_id: int, token: str | None = None, **headers: str) -> httpx2.Response:
        """Download the file of a document with a new credential."""
        sent = headers | ({HEADER: token} if token is not None else {})
        return self.live.http.get(f"{self.mount}/documents/{document_id}/file", headers=sent)

    def redeem(self, credential: Mapping[str, Any]) -> httpx2.Response:
        """Request `resource_url` with the returned headers, as the document says."""
        return self.live.http.get(credential["resource_url"], headers=credential["headers"])


def failed(code: str, message: str) -> dict[str, str]:
    return {"error": message, "code": code}


@dataclass
class Town:
    """An organisation with users, a group and a few bases; and a second organisation."""

    live: Running
    ids: dict[str, int] = field(default_factory=dict[str, int])
    callers: dict[str, Caller] = field(default_factory=dict[str, Caller])

    def __getitem__(self, name: str) -> int:
        return self.ids[name]

    def caller(self, name: str) -> Caller:
        return self.callers[name]


TEXTS = {
    "guide": "# Pumps\n\nThe pump runs at forty turns a minute.\n\nOil it every spring, before the thaw.\n",
    "secret": "The vault opens at midnight with a silver key.\n",
    "foreign": "Elsewhere they oil the pump with honey.\n",
}
PAGE = "<!DOCTYPE html><html><body><p>The valve is shut in winter.</p></body></html>"


async def _actor(db: Database, secret: str) -> Actor:
    actor = await tokens.resolve(db, secret)
    assert actor is not None
    return actor


async def found(live: Running, db: Database) -> Town:
    """Ada has a base of her own and one of her group, and sees the organisation's. Bob's base is private."""
    town, files = Town(live), FileStore(live.settings.home, 10_000_000)
    org = await orgs.get_by_name(db, "main")
    other = await db.write(lambda tx: orgs.add(tx, "elsewhere"))
    people = {"ada": org.id, "bob": org.id, "eve": other.id, "rita": org.id}
    for name, org_id in people.items():
        who, secret = await db.write(lambda tx, name=name, org_id=org_id: _enrol(tx, org_id, name))
        town.ids[name] = who
        town.callers[name] = Caller(live, secret)
    group = await db.write(lambda tx: groups.add(tx, org.id, "pumpers", "The Pump People"))
    ada = await principals.get_by_name(db, org.id, "ada")
    await db.write(lambda tx: groups.set_member(tx, group, ada, Role.Owner))
    calls = {name: Call(await _actor(db, caller.token), db, "setup") for name, caller in town.callers.items()}
    calls["admin"] = Call(await _actor(db, live.token), db, "setup")
    made: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("own", "ada", {"name": "Manuals", "description": "How Things work"}),
        ("group", "ada", {"name": "Shared 100%_sure", "level": "group", "group": "pumpers"}),
        ("org", "admin", {"name": "Handbook", "level": "organization", "description": "For all"}),
        ("bobs", "bob", {"name": "Diary"}),
        ("foreign", "eve", {"name": "Abroad"}),
    )
    for name, owner, how in made:
        base = await db.write(lambda tx, owner=owner, how=how: bases.add(calls[owner], tx, **how))
        town.ids[name] = base.id
    call = calls["ada"]
    await db.write(lambda tx: bases.share(call, tx, town["own"], Role.RestrictedAnalyst, user="rita"))
    for name, parent in (("machines", 0), ("wet", "machines"), ("empty", 0)):
        place = town.ids.get(str(parent), 0)
        folder = await db.write(lambda tx, name=name, place=place: folders.add(call, tx, town["own"], name, place))
        town.ids[name] = folder.id
    await _add(db, files, call, town, "guide", "own", "guide.md", TEXTS["guide"], town["wet"])
    await _add(db, files, call, town, "page", "own", "valve.html", PAGE, 0)
    await _add(db, files, call, town, "notes", "group", "notes.txt", "Nothing here about water.\n", 0)
    await _add(db, files, calls["bob"], town, "secret", "bobs", "secret.txt", TEXTS["secret"], 0)
    await _add(db, files, calls["eve"], town, "foreign_text", "foreign", "abroad.txt", TEXTS["foreign"], 0)
    files.close()
    return town


async def _enrol(tx: Transaction, org_id: str, name: str) -> tuple[int, str]:
    who = await principals.add(tx, org_id, "user", name)
    return who.id, (await tokens.issue(tx, who))[0]


async def _add(
    db: Database, files: FileStore, call: Call, town: Town, key: str, base: str, name: str, text: str, folder_id: int
) -> None:
    town.ids[key] = await add_document(db, files, call, town[base], name, text, folder_id)


async def add_document(
    db: Database, files: FileStore, call: Call, base_id: int, name: str, text: str, folder_id: int = 0
) -> int:
    async with files.receive(db) as incoming:
        await incoming.write(text.encode())
        stored = await incoming.finish()
        draft = DocumentDraft(name, folder_id=folder_id)
        added = await db.write(lambda tx: documents.add(call, tx, base_id, draft, stored))
    return added.document.id


async def acting(db: Database, caller: Caller) -> Call:
    """The call of a user, outside the server."""
    return Call(await _actor(db, caller.token), db, "beside")


def moment(text: str) -> int:
    """A time in an answer, as stored in the database."""
    return round(datetime.fromisoformat(text).timestamp() * clock.SECOND)
