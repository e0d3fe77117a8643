"""Revision: a new note in the place of one that no longer holds, stored and linked in one step."""

import uuid
from dataclasses import dataclass

from almanac.core.call import Call
from almanac.core.database import Transaction
from almanac.memory import notes, supersession
from almanac.memory.note import Note, NoteDraft
from almanac.memory.supersession import SupersedeResult
from almanac.quotas import allowances


@dataclass(frozen=True, slots=True)
class Revised:
    """The note that holds now, and what became of the one that did."""

    note: Note
    superseded: SupersedeResult


async def revise(call: Call, old_id: str, draft: NoteDraft, usual_quota: int) -> Revised:
    """Store a note and let it supersede another: both or neither."""
    org_id, id = call.actor.org_id, str(uuid.uuid4())
    limit = await allowances.monthly_limit(call.db, org_id, notes.STORED_NOTES_METRIC, usual_quota)
    await allowances.check(call.db, org_id, notes.STORED_NOTES_METRIC, limit)
    await notes.get(call.db, call, old_id)  # says that it is not there before any work is done
    prepared = await notes.prepare(call.db, call, draft)

    async def body(tx: Transaction) -> Revised:
        note = await notes.add(tx, call, id, draft, prepared, limit)
        return Revised(note, await supersession.supersede(call, tx, old_id, id))

    return await call.db.write(body)
