"""Stores notes and prints their ids until it is killed.

python -m tests.memory.store_until_killed DATABASE_URL ORG AGENT
"""

import asyncio
import sys

from almanac.cli.support.operator_call import call_as_principal
from almanac.db.connect import connect
from almanac.identity import orgs, principals
from almanac.memory import notes
from almanac.memory.note import NoteDraft
from almanac.quotas.idempotency import DatabaseIdempotencyStore


async def main(url: str, org: str, agent: str) -> None:
    db = await connect(url)
    stored_org = await orgs.get_by_name(db, org)
    call = call_as_principal(db, stored_org, await principals.get_by_name(db, stored_org.id, agent))

    async def store(number: int) -> None:
        while True:
            note = await notes.store(
                call, NoteDraft("A note", f"By {number}."), DatabaseIdempotencyStore(db), 1_000_000
            )
            sys.stdout.write(note.id + "\n")
            sys.stdout.flush()

    await asyncio.gather(*(store(number) for number in range(4)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
