"""Keeps search up to date with datasets, in the transaction that changes them.

Everybody in the organisation may read a dataset, but row rules hide rows and fields from some. The index has one text
for all callers, so it contains only what no rule hides from anybody: a field that any rule hides is left out, and a
dataset with any rule has no values. Each change of a rule updates the text in the same transaction.
"""

from collections.abc import Collection, Iterable

import orjson

from almanac.core.database import Database, Transaction
from almanac.data import profiles
from almanac.data.dataset import KIND, SELECT, Dataset, FieldNote, dataset_from_row
from almanac.data.fields import Field
from almanac.data.profiles import DatasetProfile
from almanac.search import passage_store, sources
from almanac.search.passage import Passage
from almanac.search.sources import Source
from almanac.search.splitting import split_prose

DATASET_PASSAGE_CHARS = 2_000
MAX_INDEXED_CHARS = 20_000  # analysed within a transaction

# Datasets without a source, or with a wrong one, and sources without a dataset.
_DIFFERENT = f"""
SELECT d.id FROM datasets d LEFT JOIN sources s ON s.kind = '{KIND}' AND s.owner_id = CAST(d.id AS TEXT)
WHERE (d.removed_at IS NULL AND (s.id IS NULL OR s.title <> d.name OR s.collection <> 'data:' || d.org_id))
    OR (d.removed_at IS NOT NULL AND s.id IS NOT NULL)
UNION ALL SELECT CAST(s.owner_id AS BIGINT) FROM sources s WHERE s.kind = '{KIND}'
    AND NOT EXISTS (SELECT 1 FROM datasets d WHERE d.id = CAST(s.owner_id AS BIGINT))
"""  # noqa: S608 - constants


def collection_of(org_id: str) -> str:
    """The collection of an organisation's datasets."""
    return f"data:{org_id}"


async def update(tx: Transaction, dataset_id: int) -> None:
    """Index a dataset as it is now."""
    # Locked, so that a text that was read before a change of a rule is never stored after it.
    await tx.execute("UPDATE datasets SET version = version WHERE id = $1", dataset_id)
    row = await tx.fetch_one(f"{SELECT} WHERE d.id = $1", dataset_id)
    if row is None or row["removed_at"] is not None:
        await remove(tx, [dataset_id])
        return
    dataset = dataset_from_row(row)
    rules = await tx.fetch("SELECT hidden FROM row_rules WHERE dataset_id = $1", dataset_id)
    hidden = {name for rule in rules for name in orjson.loads(rule["hidden"])}
    text = _text(dataset, hidden, None if rules else await profiles.get(tx, dataset_id))
    passages = [Passage(start, end, text[start:end]) for start, end in split_prose(text, DATASET_PASSAGE_CHARS)]
    indexed = await passage_store.find_in_transaction(tx, KIND, str(dataset_id))
    if [each.text for each in indexed] == [each.text for each in passages]:
        await sources.put(tx, _source(dataset))  # keeps the vectors, unless the name has changed
    else:
        await passage_store.replace(tx, _source(dataset), passage_store.analyse(dataset.name, passages))


async def compare(db: Database) -> list[int]:
    """The ids of datasets that the index lacks, has under another name, or should not have."""
    return [row["id"] for row in await db.scan(_DIFFERENT)]


async def repair(db: Database) -> int:
    """Correct all differences; return their number."""
    ids = await compare(db)
    for dataset_id in ids:
        await db.write(lambda tx, id=dataset_id: update(tx, id))
    return len(ids)


async def remove(tx: Transaction, dataset_ids: Iterable[int]) -> None:
    """Remove datasets from the index."""
    await sources.remove(tx, KIND, map(str, dataset_ids))


def _text(dataset: Dataset, hidden: Collection[str], profile: DatasetProfile | None) -> str:
    """The description and a line for each field. Without any, the name, because a source is found by its passages."""
    values = {each.name: [value for value, _ in each.frequent] for each in profile.fields} if profile else {}
    lines = [
        _line(field, dataset.notes.get(field.name, FieldNote()), values.get(field.name, []))
        for field in dataset.fields
        if field.name not in hidden
    ]
    return "\n".join([*filter(None, [dataset.description]), *lines])[:MAX_INDEXED_CHARS] or dataset.name


def _line(field: Field, note: FieldNote, values: Iterable[str]) -> str:
    name = f"{note.label} ({field.name})" if note.label else field.name
    parts = (name, note.unit, note.description, ", ".join(note.synonyms), ", ".join(values))
    return ": ".join(filter(None, parts))


def _source(dataset: Dataset) -> Source:
    return Source(
        org_id=dataset.org_id,
        collection=collection_of(dataset.org_id),
        kind=KIND,
        object_id=str(dataset.id),
        title=dataset.name,
        created_at=dataset.created_at,
        updated_at=dataset.updated_at,
    )
