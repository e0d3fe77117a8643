"""The first start creates the first administrator, once."""

import asyncio
import subprocess
import sys

import pytest

from almanac.core import scopes
from almanac.core.database import Database, Transaction
from almanac.db.connect import connect
from almanac.identity import first_start, orgs, tokens

BEGIN = """
import asyncio, sys
from almanac.db.connect import connect
from almanac.identity import first_start

async def main():
    db = await connect(sys.argv[1], pool_size=2)
    sys.stdin.readline()
    print(await first_start.create_first_admin(db) or "nothing", flush=True)
    await db.close()

asyncio.run(main())
"""


async def test_on_an_empty_database_there_is_then_an_administrator_with_a_token(database: Database):
    secret = await first_start.create_first_admin(database)
    assert secret is not None
    actor = await tokens.resolve(database, secret)
    assert actor is not None
    assert (actor.org_name, actor.name, actor.kind, actor.is_admin) == ("main", "admin", "user", True)
    assert actor.scopes == set(scopes.SCOPES)
    assert (actor.bases, actor.tools, actor.expires_at) == (None, None, None)


async def test_it_happens_once_only(database: Database):
    assert await first_start.create_first_admin(database) is not None
    assert await first_start.create_first_admin(database) is None
    assert [org.name for org in await orgs.find(database)] == ["main"]


async def test_it_does_not_happen_where_somebody_lives_already(database: Database):
    await database.write(lambda tx: orgs.add(tx, "Acme"))
    assert await first_start.create_first_admin(database) is None
    assert [org.name for org in await orgs.find(database)] == ["Acme"]


async def test_if_it_fails_half_way_nothing_is_left_and_the_next_start_begins_afresh(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: object, **__: object) -> tuple[str, int]:
        raise RuntimeError("no entropy")

    with monkeypatch.context() as broken:
        broken.setattr(tokens, "issue", fail)
        with pytest.raises(RuntimeError):
            await first_start.create_first_admin(database)
    assert await orgs.find(database) == []
    assert await first_start.create_first_admin(database) is not None


async def test_of_many_that_begin_at_once_one_does(database_url: str):
    opened = [await connect(database_url, pool_size=1) for _ in range(5)]
    made = await asyncio.gather(*(first_start.create_first_admin(db) for db in opened))
    rows = await opened[0].fetch("SELECT id FROM tokens")
    for db in opened:
        await db.close()
    assert len([secret for secret in made if secret]) == 1
    assert len(rows) == 1


async def test_of_two_processes_that_race_one_begins_and_its_token_works(database_url: str, database: Database):
    command = [sys.executable, "-c", BEGIN, database_url]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = sorted(racer.communicate(timeout=30)[0].strip() for racer in racers)
    assert said[0] == "nothing"
    assert await tokens.resolve(database, said[1]) is not None
    assert await _count(database, "principals") == await _count(database, "tokens") == 1


async def _count(db: Database, table: str) -> int:
    async def body(tx: Transaction) -> int:
        return len(await tx.fetch(f"SELECT id FROM {table}"))

    return await db.write(body)
