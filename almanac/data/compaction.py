"""Compaction: many small files of a dataset become one, so that a query does not open hundreds of them.

The newest files are merged until they are large; a large file is never written again. Pushes continue meanwhile: the
merged file takes the place of its parts, and files that were added later stay behind it.
"""

from collections.abc import Sequence

from almanac.core.database import Database, Transaction
from almanac.data import datasets, value_types, versions
from almanac.data.engine import DataEngine
from almanac.data.fields import Field
from almanac.data.parquet_source import ParquetFile
from almanac.data.row_writer import Kept
from almanac.data.versions import COMPACTION, Commit, DataFile, NewFile
from almanac.jobs.queue import Job
from almanac.jobs.worker import Effect

LARGE_FILE_ROWS = 200_000
MIN_MERGED_FILES = 8


class CompactDataset:
    """The handler of the job `versions.COMPACT_JOB`."""

    def __init__(self, db: Database, engine: DataEngine) -> None:
        self._db = db
        self._engine = engine

    async def __call__(self, job: Job) -> Effect | None:
        await compact(self._db, self._engine, job.payload["dataset"])
        return None


async def compact(db: Database, engine: DataEngine, dataset_id: int) -> bool:
    """Merge the small files at the end of a dataset. Return whether there were enough of them."""
    dataset = await datasets.get_or_none(db, dataset_id)
    files = _small_files(await versions.files_of(db, dataset)) if dataset is not None else []
    if dataset is None or len(files) < MIN_MERGED_FILES:
        return False
    fields = _merged_fields(dataset.fields, files)
    kept = Kept(
        [ParquetFile(engine.files.path(file.name), file.fields) for file in files],
        sum(file.row_count for file in files),
    )
    written = await engine.writer.write(fields, None, kept)
    async with engine.files.receive(db) as incoming:
        await incoming.write(written.content)
        merged = NewFile(await incoming.finish(), fields, written.row_count, position=files[0].position)

        async def replace_files(tx: Transaction) -> bool:
            await versions.lock(tx, dataset_id)
            now = await datasets.get_or_none(tx, dataset_id)
            current = {file.id for file in await versions.files_of(tx, now)} if now is not None else set[int]()
            parts = [file.id for file in files]
            if now is None or not current.issuperset(parts):
                return False  # the rows were replaced meanwhile
            await versions.commit(tx, now, Commit(COMPACTION, now.fields, [merged], ended=parts), None)
            return True

        return await db.write(replace_files)


def _small_files(files: Sequence[DataFile]) -> list[DataFile]:
    """The newest files, from the last large one on."""
    small: list[DataFile] = []
    for file in reversed(files):
        if file.row_count >= LARGE_FILE_ROWS:
            break
        small.insert(0, file)
    return small


def _merged_fields(fields: Sequence[Field], files: Sequence[DataFile]) -> tuple[Field, ...]:
    """The fields with values in these files, each as wide as its values need. The version may have wider types."""
    stored = [{field.name: field.type for field in file.fields} for file in files]
    types = {field.name: value_types.widest(types.get(field.name) for types in stored) for field in fields}
    return tuple(Field(field.name, kind, field.column) for field in fields if (kind := types[field.name]) is not None)
