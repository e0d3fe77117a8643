"""Three agents of two organisations, with shortcuts to store and search notes."""

from dataclasses import dataclass
from typing import Any

from almanac.core.call import Call
from almanac.core.database import Database
from almanac.memory import notes, supersession
from almanac.memory.note import Note, NoteDraft
from almanac.memory.note_search import NoteQuery, find
from almanac.memory.supersession import SupersedeResult
from almanac.quotas.idempotency import DatabaseIdempotencyStore, IdempotencyStore
from almanac.search.engine import SearchEngine
from tests.identity.people import Town, settle


@dataclass
class AgentMemory:
    """Ada and Bob of one organisation, Eve of another."""

    town: Town
    search: SearchEngine
    ada: Call
    bob: Call
    eve: Call
    idempotency: IdempotencyStore
    quota: int = 0

    @property
    def db(self) -> Database:
        return self.town.db

    async def store(self, body: str, *, by: Call | None = None, token: str | None = None, **draft: Any) -> Note:
        note = NoteDraft(draft.pop("title", "A note"), body, **draft)
        return await notes.store(by or self.ada, note, self.idempotency, self.quota, token)

    async def supersede(self, old: Note | str, new: Note | str, *, by: Call | None = None) -> SupersedeResult:
        old_id, new_id = (note if isinstance(note, str) else note.id for note in (old, new))
        return await self.db.write(lambda tx: supersession.supersede(by or self.ada, tx, old_id, new_id))

    async def find(self, query: str, *, by: Call | None = None, **options: Any) -> list[str]:
        """The bodies of the matching notes."""
        results = await find(by or self.ada, self.search, NoteQuery(query, **options))
        return [result.note.body for result in results.hits]

    async def get(self, note: Note | str) -> Note:
        return await notes.get(self.db, self.ada, note if isinstance(note, str) else note.id)


async def open_memory(db: Database, search: SearchEngine) -> AgentMemory:
    town = await settle(db)
    ada, bob, eve = [
        town.call(await town.actor(await town.add(name, kind="agent", org=org)))
        for name, org in (("ada", town.acme), ("bob", town.acme), ("eve", town.other))
    ]
    return AgentMemory(town, search, ada, bob, eve, DatabaseIdempotencyStore(db))
