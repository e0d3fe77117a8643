"""Our own surface: the operations of the table that are MCP tools."""

from almanac.operations.table import OPERATIONS
from almanac.surfaces.surface import Surface

INSTRUCTIONS = (
    "Almanac holds what this organisation knows, in knowledge bases of documents and a catalogue of things "
    "(find_entities, browse_categories). Begin with search, then fetch or "
    "read_document; list_bases and browse show what there is. Cite by id and hash. Call whoami to see who "
    "you act for and what your token allows; tools that your token may not use are not listed."
)

SURFACE = Surface(
    name="almanac",
    path="/mcp",
    title="Almanac",
    instructions=INSTRUCTIONS,
    operations=tuple(operation for operation in OPERATIONS if operation.mcp is not None),
)
