"""Migrations: each applied once, in order, and only where it belongs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from almanac.core.database import Database
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.db.errors import DatabaseError, MigrationRefused
from almanac.db.migrate import Migration

STEPS = [
    Migration(1, "birds", "CREATE TABLE birds (id {id}, song {bytes}, facts {json}, weight {float});"),
    Migration(2, "names", "ALTER TABLE birds ADD COLUMN name TEXT; CREATE INDEX birds_name ON birds (name);"),
    Migration(3, "nests", "CREATE TABLE nests (bird BIGINT REFERENCES birds (id)); -- one; or more"),
]
SCHEMA = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master ORDER BY type, name",
    "postgres": """
        SELECT table_name || '.' || column_name, data_type || is_nullable || coalesce(column_default, ''), 'column'
        FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL SELECT indexname, indexdef, 'index' FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT conname, pg_get_constraintdef(oid), 'constraint' FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace
        ORDER BY 1, 2
    """,
}
MIGRATE = """
import asyncio, sys
from almanac.db import migrate
from almanac.db.connect import connect

async def main():
    db = await connect(sys.argv[1])
    print(*(each.version for each in await migrate.apply(db)))
    await db.close()

asyncio.run(main())
"""


@pytest.fixture
async def empty(empty_database_url: str) -> AsyncIterator[Database]:
    db = await connect(empty_database_url)
    yield db
    await db.close()


@pytest.fixture
async def migrated(empty: Database, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """Another database of the same kind, brought up to date in one go."""
    postgres = empty.dialect == "postgres"
    url = request.getfixturevalue("postgres_cluster").blank() if postgres else f"sqlite:///{tmp_path / 'm.db'}"
    db = await connect(url)
    await migrate.apply(db)
    yield db
    await db.close()


async def schema(db: Database) -> list[tuple[str, ...]]:
    return [tuple(row[column] for column in range(3)) for row in await db.fetch(SCHEMA[db.dialect])]


async def test_an_empty_database_has_version_0_and_everything_pending(empty: Database) -> None:
    assert await migrate.version(empty) == 0
    assert await migrate.pending(empty) == migrate.packaged()
    assert await migrate.apply(empty) == migrate.packaged()
    assert await migrate.pending(empty) == []
    assert await migrate.apply(empty) == []
    assert await migrate.version(empty) == migrate.packaged()[-1].version


@pytest.mark.parametrize("applied", range(len(migrate.packaged()) + 1))
async def test_every_past_version_leads_to_the_same_schema(applied: int, empty: Database, migrated: Database) -> None:
    steps = migrate.packaged()
    assert await migrate.apply(empty, steps[:applied]) == steps[:applied]
    assert await migrate.apply(empty, steps) == steps[applied:]
    assert await schema(empty) == await schema(migrated)


async def test_words_in_braces_become_the_databases_own(empty: Database) -> None:
    await migrate.apply(empty, STEPS)
    sql = "INSERT INTO birds (song, facts, weight) VALUES ($1, $2, $3) RETURNING id, song, facts, weight"
    rows = [await empty.write(lambda tx: tx.fetch_one(sql, b"\x01", '{"b": 1,  "a": 2}', 0.5)) for _ in range(2)]
    assert [tuple(row[n] for n in range(4)) for row in rows if row] == [
        (1, b"\x01", '{"b": 1,  "a": 2}', 0.5),
        (2, b"\x01", '{"b": 1,  "a": 2}', 0.5),
    ]
    names = await empty.fetch("SELECT facts ->> 'a' AS a FROM birds")
    assert [str(row["a"]) for row in names] == ["2", "2"]


async def test_a_changed_file_is_refused_by_name(empty: Database) -> None:
    await migrate.apply(empty, STEPS)
    changed = [STEPS[0], replace(STEPS[1], sql=STEPS[1].sql + " "), STEPS[2]]
    for step in (migrate.pending, migrate.apply):
        with pytest.raises(MigrationRefused, match=r"0002_names\.sql has changed .* in a new migration"):
            await step(empty, changed)


async def test_a_database_from_a_newer_program_is_refused(empty: Database) -> None:
    await migrate.apply(empty, STEPS)
    with pytest.raises(MigrationRefused, match=r"0003_nests\.sql.*newer.*install that version"):
        await migrate.apply(empty, STEPS[:2])


async def test_a_file_numbered_below_the_newest_applied_is_refused(empty: Database) -> None:
    await migrate.apply(empty, [STEPS[0], STEPS[2]])
    with pytest.raises(MigrationRefused, match=r"0002_names\.sql comes before 0003.*next free number"):
        await migrate.apply(empty, STEPS)


async def test_a_migration_that_fails_leaves_no_trace_and_can_be_mended(empty: Database) -> None:
    broken = Migration(2, "broken", "CREATE TABLE half (id BIGINT); CREATE TABLE half (id BIGINT);")
    with pytest.raises(DatabaseError):
        await migrate.apply(empty, [STEPS[0], broken, STEPS[2]])
    assert await migrate.version(empty) == 1
    assert not [row for row in await schema(empty) if "half" in str(row)]
    assert await migrate.apply(empty, STEPS) == STEPS[1:]


async def test_two_processes_at_once_apply_each_file_once(empty_database_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, empty_database_url, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = [(await process.communicate())[0].decode().split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(int(word) for words in outputs for word in words) == [step.version for step in migrate.packaged()]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("", []),
        (" ;; -- nothing; at all\n /* ; */ ;", []),
        ("A; B", ["A", "B"]),
        ("A ';' \";\" 'it''s;' ;B", ["A ';' \";\" 'it''s;'", "B"]),
        ("A -- why; not 'this\nB; C /* x; ' */ D;", ["A \nB", "C  D"]),
        ("A $$ x; 'y $$; B $tag$ ; $$ ; $tag$", ["A $$ x; 'y $$", "B $tag$ ; $$ ; $tag$"]),
        ("A '-- not a comment; '; B", ["A '-- not a comment; '", "B"]),
    ],
)
def test_only_a_bare_semicolon_ends_a_statement(sql: str, expected: list[str]) -> None:
    assert list(migrate.statements(sql)) == expected


@pytest.mark.parametrize("names", [["1_a.sql"], ["0001_a.sql", "0001_b.sql"], ["0001-a.sql"]])
def test_misnamed_files_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(MigrationRefused, match=r"call it like|renumber one"):
        migrate.packaged(tmp_path)
