"""Our own surface: the operations of the table that are MCP tools."""

from almanac.operations.table import OPERATIONS
from almanac.surfaces.almanac.resources import PROMPTS, RESOURCES
from almanac.surfaces.surface import Surface

INSTRUCTIONS = (
    "Almanac contains the knowledge of this organisation: documents in knowledge bases, and a catalogue of entities "
    "(find_entities, browse_categories). Begin with search, then fetch or read_document; list_bases and browse show "
    "the bases and their documents. Cite by id and hash. Call whoami to see your user and the scopes of your token; "
    "tools that your token may not use are not listed."
)

SURFACE = Surface(
    name="almanac",
    path="/mcp",
    title="Almanac",
    instructions=INSTRUCTIONS,
    operations=tuple(operation for operation in OPERATIONS if operation.mcp is not None),
    resources=RESOURCES,
    prompts=PROMPTS,
)
