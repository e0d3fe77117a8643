"""Migrations: each applied once, in order, and only on its database."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from almanac import reactions
from almanac.core.database import Database, Transaction
from almanac.core.settings import Settings
from almanac.db import migrate
from almanac.db.connect import connect
from almanac.db.errors import DatabaseError, MigrationRefused
from almanac.db.migrate import Migration
from almanac.search.filters import metadata_index
from almanac.search.index import title_index
from tests.conftest import Cluster

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
BEFORE_SEARCH = """
INSERT INTO orgs (id, name, created_at) VALUES ('o', 'an-org', 1);
INSERT INTO principals (org_id, kind, name, created_at) VALUES ('o', 'user', 'ann', 1);
INSERT INTO bases (org_id, level, owner_id, name, description, folded, splitter, created_at, updated_at)
    VALUES ('o', 'personal', 1, 'b', '', 'b', '{}', 1, 1);
INSERT INTO blobs (hash, name, size, created_at) VALUES ('h', 'n', 1, 1);
INSERT INTO documents (base_id, folder_id, name, source_type, extension, mime_type, size, blob_id, tags, metadata,
    is_enabled, creator_id, created_at, updated_at, generation, index_status)
    VALUES (1, 4, 'pumps.txt', 'file', 'txt', 'text/plain', 1, 1, '["a"]', '{}', 1, 1, 1, 1, 1, 'indexed'),
        (1, 0, 'valves.txt', 'file', 'txt', 'text/plain', 1, 1, '[]', '{}', 0, 1, 1, 1, 1, 'indexed');
INSERT INTO readings (document_id, generation, title, characters, passages, pages, page_count, facts, warnings)
    VALUES (1, 1, 'All about pumps', 1, 2, '[]', 0, '{}', '[]'), (2, 1, '', 1, 1, '[]', 0, '{}', '[]');
INSERT INTO passages (org_id, collection, owner_kind, owner_id, ordinal, parent, form, text, span_start, span_end,
    headings, page, boxes, is_live)
    VALUES ('o', 'base:1', 'document', '1', 0, NULL, 'text', 'a pump', 0, 6, '["Care"]', NULL, '[]', 1),
        ('o', 'base:1', 'document', '1', 1, 0, 'text', 'its valve', 7, 9, '[]', NULL, '[]', 1),
        ('o', 'base:1', 'document', '2', 0, NULL, 'text', 'a valve', 0, 7, '[]', NULL, '[]', 0);
"""
SET_METADATA = "UPDATE sources SET metadata = $2 WHERE id = $1"
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
    """Another database of the same kind, with all migrations applied at once."""
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
    assert await migrate.pending(empty) == migrate.bundled_migrations()
    assert await migrate.apply(empty) == migrate.bundled_migrations()
    assert await migrate.pending(empty) == []
    assert await migrate.apply(empty) == []
    assert await migrate.version(empty) == migrate.bundled_migrations()[-1].version


@pytest.mark.parametrize("applied", range(len(migrate.bundled_migrations()) + 1))
async def test_every_past_version_leads_to_the_same_schema(applied: int, empty: Database, migrated: Database) -> None:
    steps = migrate.bundled_migrations()
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
    assert sorted(int(word) for words in outputs for word in words) == [
        step.version for step in migrate.bundled_migrations()
    ]


async def test_passages_from_before_search_become_sources_and_passages_to_be_analysed(empty: Database) -> None:
    steps = migrate.bundled_migrations()
    await migrate.apply(empty, steps[:3])
    for statement in migrate.statements(BEFORE_SEARCH):
        await empty.write(lambda tx, sql=statement: tx.execute(sql))
    await migrate.apply(empty, steps)
    found = await empty.fetch("SELECT collection, owner_id, title, folder_id, tags, is_live FROM sources ORDER BY id")
    assert [tuple(row[n] for n in range(6)) for row in found] == [
        ("base:1", "1", "All about pumps", 4, '["a"]', 1),
        ("base:1", "2", "valves.txt", 0, "[]", 0),
    ]
    found = await empty.fetch(
        "SELECT s.owner_id, p.ordinal, p.parent, p.text, p.headings, p.words"
        " FROM passages p JOIN sources s ON s.id = p.source_id ORDER BY p.id"
    )
    assert [tuple(row[n] for n in range(6)) for row in found] == [
        ("1", 0, None, "a pump", '["Care"]', None),
        ("1", 1, 0, "its valve", "[]", None),
        ("2", 0, None, "a valve", "[]", None),
    ]
    found = await empty.fetch("SELECT name, org_id, model, next_model FROM collections")
    assert [tuple(row[n] for n in range(4)) for row in found] == [("base:1", "o", "", None)]


async def test_metadata_from_before_the_catalogue_can_be_looked_up_as_if_it_were_written_now(empty: Database) -> None:
    steps = migrate.bundled_migrations()
    before = next(place for place, step in enumerate(steps) if step.name == "catalogue")
    metadata = {
        "t": "x" * 50,
        "n": 5,
        "f": 0.5,
        "yes": True,
        "l": ["a", 1, False, {"o": 1}, None],
        "o": {"a": 1},
        "z": None,
    }
    await migrate.apply(empty, steps[:3])
    for statement in migrate.statements(BEFORE_SEARCH):
        await empty.write(lambda tx, sql=statement: tx.execute(sql))
    await migrate.apply(empty, steps[:before])
    for id, packed in ((1, json.dumps(metadata)), (2, '{"t": "a\\u0000b", "n": 5}')):
        await empty.write(lambda tx, id=id, packed=packed: tx.execute(SET_METADATA, id, packed))
    await migrate.apply(empty, steps)
    read = "SELECT f.source_id, d.name, f.text, f.number FROM facts f JOIN fields d ON d.id = f.field"
    moved = {tuple(row[n] for n in range(4)) for row in await empty.fetch(read)}
    await empty.write(lambda tx: metadata_index.rewrite(tx, (1, "base:1", metadata, ["a"])))
    assert {tuple(row[n] for n in range(4)) for row in await empty.fetch(read)} == moved
    assert (1, "n", None, 5.0) in moved
    assert {row[0] for row in moved} == {1}
    assert [row["media"] for row in await empty.fetch("SELECT media FROM sources")] == ["text/plain"] * 2


async def test_jobs_queued_under_an_old_kind_have_a_handler_and_the_key_of_new_ones(
    empty: Database, tmp_path: Path
) -> None:
    steps = migrate.bundled_migrations()
    await migrate.apply(empty, [each for each in steps if each.version < 12])
    old = {
        "embed": "embed:base:1", "forget": "forget:base:1:m", "reword": "reword", "shelve": "shelve:3:9",
        "picture": "picture:x", "housekeeping": "schedule:housekeeping", "tidy": "schedule:tidy",
        "index": "schedule:index", "ingest": "ingest:1:1",
    }  # fmt: skip
    insert = """INSERT INTO jobs (kind, payload, key, state, run_at, attempts, max_attempts, fence, added_at)
        VALUES ($1, '{}', $2, 'queued', 1, 0, 5, 0, 1)"""
    for kind, key in old.items():
        await empty.write(lambda tx, kind=kind, key=key: tx.execute(insert, kind, key))
    await migrate.apply(empty, steps)
    renamed = {row["kind"]: row["key"] for row in await empty.fetch("SELECT kind, key FROM jobs")}
    settings = Settings(home=tmp_path, embedding=False)
    async with reactions.open_job_handlers(empty, settings) as handlers:
        assert renamed.keys() <= handlers.keys()
    assert renamed["embed_passages"] == "embed_passages:base:1"
    assert {each.kind: f"schedule:{each.name}" for each in reactions.SCHEDULES}.items() <= renamed.items()


async def test_titles_of_notes_from_before_the_title_index_are_in_it(empty: Database) -> None:
    steps = migrate.bundled_migrations()
    await migrate.apply(empty, steps[: next(place for place, step in enumerate(steps) if step.name == "title_grams")])
    titles = {1: "A pump, É and 😀", 2: "Ox", 3: "x", 4: "aaaa", 5: "A document"}
    add = """INSERT INTO sources (id, org_id, collection, kind, owner_id, title, folder_id, tags, metadata, created_at,
        updated_at, is_live, version, is_embedded) VALUES ($1, 'o', $2, $3, $4, $5, 0, '[]', '{}', 0, 0, 1, 1, 1)"""

    async def fill(tx: Transaction) -> None:
        await tx.execute("INSERT INTO orgs (id, name, created_at) VALUES ('o', 'Acme', 0)")
        for name in ("memory:o", "memory:o:superseded", "base:7"):
            await tx.execute("INSERT INTO collections (name, org_id, model) VALUES ($1, 'o', '')", name)
        for id, title in titles.items():
            kind = "document" if id == 5 else "note"
            name = {2: "memory:o:superseded", 5: "base:7"}.get(id, "memory:o")
            await tx.execute(add, id, name, kind, str(id), title)

    await empty.write(fill)
    await migrate.apply(empty, steps)
    rows = await empty.fetch(
        "SELECT source_id, gram, collection FROM title_grams g JOIN title_scopes s ON s.number = g.scope"
    )
    expected = {(id, gram) for id, title in titles.items() if id != 5 for gram in title_index.grams(title)}
    assert {(row["source_id"], row["gram"]) for row in rows} == expected
    assert {row["collection"] for row in rows if row["source_id"] == 2} == {"memory:o:superseded"}


async def test_an_extension_that_cannot_be_had_is_asked_for_by_name(postgres_cluster: Cluster) -> None:
    db = await connect(postgres_cluster.blank())
    lacking = Migration(1, "maps", "CREATE EXTENSION IF NOT EXISTS no_such_thing;")
    with pytest.raises(MigrationRefused, match=r"'no_such_thing'.*Install it.*superuser run CREATE EXTENSION"):
        await migrate.apply(db, [lacking])
    assert await migrate.version(db) == 0
    await db.close()


async def test_someone_who_may_not_create_extensions_is_told_who_may(postgres_cluster: Cluster) -> None:
    url = postgres_cluster.blank()
    parts = urlsplit(url)
    name, host = parts.path.strip("/"), parts.netloc.rpartition("@")[2]
    admin = await connect(url)
    await admin.fetch(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    await admin.fetch(f"ALTER DATABASE {name} OWNER TO {name}")
    try:
        db = await connect(urlunsplit(parts._replace(netloc=f"{name}:secret@{host}")))
        with pytest.raises(MigrationRefused, match=r"\(pgvector\).*permission denied.*CREATE EXTENSION vector"):
            await migrate.apply(db)
        assert await migrate.version(db) == 3
        await admin.fetch("CREATE EXTENSION vector")
        await migrate.apply(db)
        await db.close()
    finally:
        await admin.fetch(f"REASSIGN OWNED BY {name} TO CURRENT_USER")
        await admin.fetch(f"DROP OWNED BY {name}")
        await admin.fetch(f"DROP ROLE {name}")
        await admin.close()


async def test_an_extension_that_is_too_old_is_refused(
    postgres_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(migrate.MIN_EXTENSION_VERSIONS, "vector", (99, 1))
    db = await connect(postgres_cluster.blank())
    with pytest.raises(MigrationRefused, match=r"version 0\.\S+, and 99\.1 is needed.*ALTER EXTENSION vector UPDATE"):
        await migrate.apply(db)
    await db.close()


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
        migrate.bundled_migrations(tmp_path)
