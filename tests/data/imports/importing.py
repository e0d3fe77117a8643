"""Imports files, and reads the rows back with a bare engine."""

from typing import Any

import duckdb

from almanac.core.call import Call
from almanac.core.errors import NotFound
from almanac.data import datasets, versions
from almanac.data.dataset import Dataset
from almanac.data.engine import DataEngine
from almanac.data.imports import importer
from almanac.data.imports.importer import ImportOptions, ImportRequest, ImportResult
from almanac.data.parquet_source import ParquetFile, source_sql
from almanac.files.file_store import IncomingFile
from tests.data.warehouse import Warehouse


class Importing:
    """Imports files as Ada, unless another person is named."""

    def __init__(self, warehouse: Warehouse, engine: DataEngine) -> None:
        self.warehouse = warehouse
        self.engine = engine

    async def load(
        self, content: str | bytes, *, dataset: str = "Sales", file: str = "", by: Call | None = None, **how: Any
    ) -> ImportResult:
        request = ImportRequest(dataset, file, ImportOptions(**how))

        async def source(incoming: IncomingFile) -> ImportRequest:
            await incoming.write(content.encode() if isinstance(content, str) else content)
            return request

        return await importer.import_file(by or self.warehouse.ada, self.engine, source)

    async def rows(self, dataset: str = "Sales") -> list[dict[str, Any]]:
        found = await self.dataset(dataset)
        stored = await versions.files_of(self.warehouse.db, found)
        files = [ParquetFile(self.warehouse.files.path(file.name), file.fields) for file in stored]
        with duckdb.connect() as connection:
            rows = connection.sql(source_sql(files, found.fields)).fetchall()
        assert len(rows) == found.row_count
        return [dict(zip((field.name for field in found.fields), row, strict=True)) for row in rows]

    async def types(self, dataset: str = "Sales") -> dict[str, str]:
        return {field.name: str(field.type.kind) for field in (await self.dataset(dataset)).fields}

    async def dataset(self, name: str = "Sales") -> Dataset:
        return await datasets.get_by_name(self.warehouse.db, self.warehouse.ada, name)

    async def exists(self, name: str = "Sales") -> bool:
        try:
            return bool(await self.dataset(name))
        except NotFound:
            return False
