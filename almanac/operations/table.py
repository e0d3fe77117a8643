"""The table of operations: everything that /mcp and /api/v1 can do."""

from almanac.operations import (
    audit,
    bases,
    browse,
    catalogue,
    data_rows,
    datasets,
    documents,
    downloads,
    folders,
    notes,
    search,
    server,
)
from almanac.operations.operation import Operation

# Clients may load some toolsets only, because each tool in the list costs an agent words. The tools of the server are
# always listed.
TOOLSETS: dict[str, tuple[Operation, ...]] = {
    "knowledge": (
        *search.OPERATIONS,
        *bases.OPERATIONS,
        *browse.OPERATIONS,
        *folders.OPERATIONS,
        *documents.OPERATIONS,
        *downloads.OPERATIONS,
    ),
    "catalogue": catalogue.OPERATIONS,
    "memory": notes.OPERATIONS,
    "data": (*datasets.OPERATIONS, *data_rows.OPERATIONS),
}

OPERATIONS: tuple[Operation, ...] = (
    *server.OPERATIONS,
    *audit.OPERATIONS,
    *(each for operations in TOOLSETS.values() for each in operations),
)
