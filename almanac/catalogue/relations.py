"""Relations between two entities. The relation type is a vocabulary term."""

from collections.abc import Sequence
from dataclasses import dataclass

from almanac.catalogue import access, entities, ids, vocabulary
from almanac.core import clock
from almanac.core.call import Call
from almanac.core.database import Reader, Transaction
from almanac.core.errors import NotFound
from almanac.db.sql import placeholders

_SELECT = """
SELECT r.*, v.key AS type_key, s.name AS source_name, t.name AS target_name, t.category AS target_category,
    s.category AS source_category
FROM relations r JOIN vocabulary v ON v.id = r.type_id
JOIN entities s ON s.id = r.source_id JOIN entities t ON t.id = r.target_id
"""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation from a source entity to a target entity."""

    source_id: str
    source_name: str
    target_id: str
    target_name: str
    other_category: int  # of the entity at the other end, seen from the one passed to `of`
    type_key: str
    description: str


async def link(
    tx: Transaction, call: Call, source_id: str, target_id: str, type: str, description: str | None = None
) -> None:
    """Add a relation between two entities, or replace the description of an existing one, unless it is None."""
    await access.require_write(tx, call)
    org_id = call.actor.org_id
    for id in (source_id, target_id):
        if await entities.get_or_none(tx, org_id, id) is None:
            raise entities.missing(id)
    term = await vocabulary.get_by_key(tx, org_id, "relation", type)
    if description is None:
        description = (await descriptions(tx, org_id, [source_id])).get((source_id, target_id, term.key), "")
    await put(tx, org_id, [(source_id, target_id, term.id, vocabulary.check_text(description, "description"))])
    call.record_access("entity", source_id)


async def put(tx: Transaction, org_id: str, rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Store relations, each as source id, target id, type id and description."""
    now = clock.now()
    await tx.execute_many(
        "INSERT INTO relations (id, org_id, source_id, target_id, type_id, description, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7)"
        " ON CONFLICT (source_id, target_id, type_id) DO UPDATE SET description = excluded.description",
        [(ids.new(), org_id, *row, now) for row in rows],
    )


async def descriptions(db: Reader, org_id: str, source_ids: Sequence[str]) -> dict[tuple[str, str, str], str]:
    """The descriptions of the relations from some entities, by source id, target id and type key."""
    rows = await db.fetch(
        "SELECT r.source_id, r.target_id, r.description, v.key FROM relations r JOIN vocabulary v ON v.id = r.type_id"  # noqa: S608
        f" WHERE r.org_id = $1 AND r.source_id IN ({placeholders(len(source_ids), 2)})",
        org_id,
        *source_ids,
    )
    return {(row["source_id"], row["target_id"], row["key"]): row["description"] for row in rows}


async def unlink(tx: Transaction, call: Call, source_id: str, target_id: str, type: str) -> None:
    """Remove a relation. Raises NotFound if it does not exist."""
    await access.require_write(tx, call)
    term = await vocabulary.get_by_key(tx, call.actor.org_id, "relation", type)
    sql = "DELETE FROM relations WHERE org_id = $1 AND source_id = $2 AND target_id = $3 AND type_id = $4"
    removed = await tx.execute(sql, call.actor.org_id, source_id, target_id, term.id)
    if not removed:
        raise NotFound("There is no such relation.", remedy="List the relations of the entity.")
    call.record_access("entity", source_id)


async def of(db: Reader, org_id: str, entity_id: str, type: str | None = None) -> list[Relation]:
    """The relations from and to an entity, optionally of one type."""
    rows = await db.fetch(
        f"{_SELECT} WHERE r.org_id = $1 AND r.source_id = $2"
        f" UNION ALL {_SELECT} WHERE r.org_id = $1 AND r.target_id = $2 AND r.source_id <> $2",
        org_id,
        entity_id,
    )
    all_relations = [
        Relation(
            source_id=row["source_id"],
            source_name=row["source_name"],
            target_id=row["target_id"],
            target_name=row["target_name"],
            other_category=row["target_category" if row["source_id"] == entity_id else "source_category"],
            type_key=row["type_key"],
            description=row["description"],
        )
        for row in rows
    ]
    return sorted(
        (relation for relation in all_relations if type in (None, relation.type_key)),
        key=lambda relation: (relation.type_key, relation.source_id != entity_id, relation.target_name),
    )
