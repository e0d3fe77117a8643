"""The table of operations: everything that /mcp and /api/v1 can do."""

from almanac.operations import bases, browse, catalogue, documents, downloads, folders, notes, search, server
from almanac.operations.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *server.OPERATIONS,
    *search.OPERATIONS,
    *bases.OPERATIONS,
    *browse.OPERATIONS,
    *folders.OPERATIONS,
    *documents.OPERATIONS,
    *downloads.OPERATIONS,
    *catalogue.OPERATIONS,
    *notes.OPERATIONS,
)
