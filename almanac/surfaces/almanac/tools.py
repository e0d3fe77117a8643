"""Our own surface: the operations of the table that are MCP tools."""

from collections.abc import Container

from almanac.operations import server
from almanac.operations.table import OPERATIONS, TOOLSETS
from almanac.surfaces.almanac.resources import PROMPTS, RESOURCES
from almanac.surfaces.surface import Surface

# Tools, and a sentence about those of them that the caller has.
_GUIDANCE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("search",), "Begin with {tools}, which finds passages of documents; cite them by id and hash."),
    (("fetch", "read_document"), "Read a document with {tools}."),
    (("list_bases", "browse"), "See the knowledge bases and their documents with {tools}."),
    (("find_entities", "browse_categories"), "See the entities of the catalogue with {tools}."),
    (("find_datasets",), "Find tables of rows with {tools}."),
    (("query_data",), "Compute numbers with {tools}, and give its receipt with them."),
    (("recall",), "Search the notes of agents with {tools}."),
    (("remember",), "Keep what you have learnt with {tools}."),
    (("whoami",), "Call {tools} to see your user and the scopes of your token."),
)


def instructions(tools: Container[str]) -> str:
    """Return the instructions for a caller who has these tools."""
    sentences = ["Almanac contains the knowledge of this organisation."]
    for names, sentence in _GUIDANCE:
        if available := [name for name in names if name in tools]:
            sentences.append(sentence.format(tools=" or ".join(available)))
    return " ".join((*sentences, "Tools that your token may not use are not listed."))


SURFACE = Surface(
    name="almanac",
    path="/mcp",
    title="Almanac",
    instructions=instructions,
    operations=tuple(operation for operation in OPERATIONS if operation.mcp is not None),
    resources=RESOURCES,
    prompts=PROMPTS,
    toolsets={
        name: frozenset(each.name for each in (*server.OPERATIONS, *operations))
        for name, operations in TOOLSETS.items()
    },
)
