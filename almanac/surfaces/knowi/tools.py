"""The Knowi surface: the tools of the seed's document, as far as they exist.

`contract.json` has the 31 tools of the document, and `missing_tools.json` the names of those that do not exist yet.
"""

from pathlib import Path

import orjson
from pydantic import BaseModel

from almanac.operations.operation import AgentUse, Handler, Operation
from almanac.surfaces.knowi import assets, datasets, document_question, documents
from almanac.surfaces.knowi.endpoint import SERVER_NAME, SERVER_VERSION, KnowiAuthenticator, KnowiEndpoint
from almanac.surfaces.knowi.guards import strip_controls
from almanac.surfaces.knowi.repeats import repeatable
from almanac.surfaces.knowi.responses import http_error, render_error, render_result, unknown_tool_text
from almanac.surfaces.knowi.sessions import open_sessions
from almanac.surfaces.surface import Surface
from almanac.surfaces.tool import load_contract, operation_from_contract

PATH = "/api/2.0/mcp"
CONTRACT = load_contract(__file__)
MISSING_TOOLS: frozenset[str] = frozenset(orjson.loads(Path(__file__).with_name("missing_tools.json").read_bytes()))

_READ, _WRITE = frozenset({"knowledge:read"}), frozenset({"knowledge:write"})
_READ_DATA, _WRITE_DATA = frozenset({"data:read"}), frozenset({"data:write"})
_HANDLERS: dict[str, tuple[Handler, frozenset[str], type[BaseModel]]] = {
    "knowi_get_data": (datasets.knowi_get_data, _READ_DATA, datasets.GetDataArguments),
    "knowi_get_details": (assets.knowi_get_details, _READ_DATA, assets.DetailsArguments),
    "knowi_push_data": (repeatable(datasets.knowi_push_data), _WRITE_DATA, datasets.PushArguments),
    "knowi_ingest_document": (repeatable(documents.knowi_ingest_document), _WRITE, documents.IngestArguments),
    "knowi_ask_document": (document_question.knowi_ask_document, _READ, document_question.AskArguments),
    "knowi_list_documents": (documents.knowi_list_documents, _READ, documents.ListArguments),
    "knowi_delete_document": (documents.knowi_delete_document, _WRITE, documents.DeleteArguments),
    "knowi_delete": (assets.knowi_delete, _WRITE_DATA, assets.DeleteArguments),
}
_AGENT_USES = {"knowi_ask_document": AgentUse(prompt="question", only_with_model=True)}


def _operations() -> tuple[Operation, ...]:
    """Return the operations in the order of the document."""
    names = [name for name in CONTRACT if name not in MISSING_TOOLS]
    return tuple(
        operation_from_contract(CONTRACT[name], *_HANDLERS[name], agent=_AGENT_USES.get(name)) for name in names
    )


SURFACE = Surface(
    name="knowi",
    path=PATH,
    server_name=SERVER_NAME,
    server_version=SERVER_VERSION,
    title="Knowi",
    operations=_operations(),
    missing_tools=MISSING_TOOLS,
    authenticator=KnowiAuthenticator,
    open_state=open_sessions,
    endpoint=KnowiEndpoint,
    render_error=render_error,
    render_result=render_result,
    http_error=http_error,
    unknown_tool_text=unknown_tool_text,
    clean_arguments=strip_controls,
    lists_all_tools=True,  # the document lists all tools for every caller
)
