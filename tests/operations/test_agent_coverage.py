"""Agents can do everything that people can, unless a reason says otherwise.

People use REST routes and commands. Each of them is listed here or in the declaration of its operation: with the MCP
tool that does the same, or with the reason why there is none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from typer.main import get_command

from almanac.app import SURFACES
from almanac.cli import build
from almanac.operations.operation import Operation
from almanac.operations.server import USAGE_REPORT
from almanac.operations.table import OPERATIONS
from almanac.surfaces.external.http_endpoint import DOCUMENT_FILE
from almanac.web.agents.a2a import AGENT_RPC
from almanac.web.agents.messages import AGENT_OPERATIONS
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS
from almanac.web.login import MANAGEMENT_OPERATIONS
from almanac.web.weknora_search import KNOWLEDGE_SEARCH


class Tool(str):
    """The MCP tool that does the same."""


class Reason(str):
    """Why agents have no tool for it."""


VOCABULARY = Reason("The structure of the catalogue is designed by people; agents fill it with entities.")
LINKS = Reason("Relationships and files of entities come from the import or from REST; an agent reads them.")
REMOVAL = Reason("Catalogue records have no trash, so only people remove them; an agent archives with `save_entity`.")
INDEXES = Reason("Namespaces are set up by people; agents search them.")
ACCOUNTS = Reason("Who may enter and with which rights is decided outside the reach of agents.")
PROCESS = Reason("It runs or repairs the server's own processes, so it needs the machine and not a token.")
BULK = Reason("It moves files between the operator's machine and the server; an agent works record by record.")

# Operations outside the table of /mcp and /api/v1.
ROUTES: Mapping[str, Tool | Reason] = {
    "list_categories": Tool("browse_categories"),
    "add_category": VOCABULARY,
    "get_category": Tool("browse_categories"),
    "change_category": VOCABULARY,
    "remove_category": VOCABULARY,
    "list_category_aliases": VOCABULARY,
    "add_category_alias": VOCABULARY,
    "list_relationship_types": VOCABULARY,
    "add_relationship_type": VOCABULARY,
    "list_attachment_types": VOCABULARY,
    "add_attachment_type": VOCABULARY,
    "list_policies": VOCABULARY,
    "add_policy": VOCABULARY,
    "list_attachments": Tool("get_entity"),
    "add_attachment": LINKS,
    "link_attachment": LINKS,
    "get_attachment": Tool("get_entity"),
    "get_attachment_file": LINKS,
    "remove_attachment": REMOVAL,
    "list_entities": Tool("find_entities"),
    "add_entity": Tool("save_entity"),
    "list_relationships": Tool("get_entity"),
    "add_relationship": LINKS,
    "remove_relationship": LINKS,
    "list_entity_attachments": Tool("get_entity"),
    "get_entity": Tool("get_entity"),
    "change_entity": Tool("save_entity"),
    "remove_entity": REMOVAL,
    "list_indexes": INDEXES,
    "add_index": INDEXES,
    "remove_index": INDEXES,
    "retrieve": Tool("find_entities"),
    "seed_catalogue": BULK,
    "clear_catalogue": REMOVAL,
    "verify_key": Tool("whoami"),
    "send_message": Tool("search"),
    "agent_rpc": Tool("search"),
    "document_file": Tool("download_document"),
    "get_agent_task": Reason("A tool call is cancelled and followed by the MCP client itself."),
    "cancel_agent_task": Reason("A tool call is cancelled and followed by the MCP client itself."),
    "knowledge_search": Tool("search"),
    "usage": Tool("server_status"),
    "login": ACCOUNTS,
}

COMMANDS: Mapping[str, Tool | Reason] = {
    "serve": PROCESS,
    "worker": PROCESS,
    "stdio": PROCESS,
    "migrate": PROCESS,
    "doctor": Tool("server_status"),
    "contracts": Reason("It serves the developers of this program."),
    "bench retrieval": Reason("It measures the server on files of the operator."),
    "index status": Tool("list_bases"),
    "index rebuild": PROCESS,
    "jobs list": Tool("server_status"),
    "jobs retry": PROCESS,
    "jobs discard": PROCESS,
    "ingest": Tool("add_document"),
    "search": Tool("search"),
    "docs": Tool("browse"),
    "read": Tool("read_document"),
    "retry": Tool("manage_base"),
    "doc remove": Tool("manage_document"),
    "doc restore": Tool("manage_document"),
    "kb add": Tool("manage_base"),
    "kb list": Tool("list_bases"),
    "kb remove": Tool("manage_base"),
    "kb restore": Tool("manage_base"),
    "kb share": Tool("manage_base"),
    "kb shares": Reason("An agent sets roles by name and needs no list of its owner's colleagues."),
    "kb trash": Reason("An agent restores by the ids that it removed."),
    "catalogue export": BULK,
    "catalogue import": BULK,
    "catalogue share": ACCOUNTS,
    "category add": VOCABULARY,
    "category list": Tool("browse_categories"),
    "data list": Tool("find_datasets"),
    "data show": Tool("find_datasets"),
    "data versions": Tool("find_datasets"),
    "data push": Tool("push_data"),
    "data query": Tool("query_data"),
    "data verify": Tool("verify_result"),
    "data describe": Tool("manage_dataset"),
    "data remove": Tool("manage_dataset"),
    "data restore": Tool("manage_dataset"),
    "data share": Tool("manage_dataset"),
    "data rule": Tool("manage_dataset"),
    "data export": BULK,
    "data shares": Reason("An agent sets roles by name and needs no list of its owner's colleagues."),
    "data rules": Reason("An agent sets rules by name and needs no list of its owner's colleagues."),
    "data trash": Reason("An agent restores by the ids that it removed."),
    "memory export": BULK,
    "memory import": BULK,
    "audit": Reason("The trail records agents, so that it is not theirs to read."),
    "audit executions": Reason("They are about agents, so that they are not theirs to read."),
    "quota list": Tool("server_status"),
    "quota set": ACCOUNTS,
    **dict.fromkeys(("org add", "org list", "user add", "user list", "user remove"), ACCOUNTS),
    **dict.fromkeys(("agent add", "agent list", "agent remove", "token add", "token list", "token revoke"), ACCOUNTS),
    **dict.fromkeys(("client add", "client list", "client revoke"), ACCOUNTS),
    **dict.fromkeys(("group add", "group leave", "group list", "group member"), ACCOUNTS),
}

OTHER_OPERATIONS = (
    *CATALOGUE_OPERATIONS, *AGENT_OPERATIONS, *MANAGEMENT_OPERATIONS,
    AGENT_RPC, KNOWLEDGE_SEARCH, USAGE_REPORT, DOCUMENT_FILE,
)  # fmt: skip
TOOLS = {operation.name: operation for operation in OPERATIONS if operation.mcp}


def test_every_rest_operation_of_the_table_has_a_tool_or_a_reason():
    covered = {name for operation in TOOLS.values() for name in operation.covers}
    missing = [
        operation.name
        for operation in OPERATIONS
        if operation.rest and not (operation.mcp or operation.name in covered or operation.people_only)
    ]
    assert missing == []


def test_no_operation_has_both_a_tool_and_a_reason():
    covered = [name for operation in TOOLS.values() for name in operation.covers]
    assert len(covered) == len(set(covered))
    assert set(covered) <= {operation.name for operation in OPERATIONS if operation.rest and not operation.mcp}
    reasons = {operation.name for operation in OPERATIONS if operation.people_only}
    assert reasons.isdisjoint({*covered, *TOOLS})


@pytest.mark.parametrize(
    ("listed", "served"),
    [
        (ROUTES, [each.name for each in OTHER_OPERATIONS]),
        (COMMANDS, []),
    ],
    ids=["routes", "commands"],
)
def test_every_route_and_command_is_listed_once_with_a_tool_or_a_reason(
    listed: Mapping[str, Tool | Reason], served: list[str]
):
    assert sorted(listed) == sorted(served or commands(get_command(build())))
    assert {tool for tool in listed.values() if isinstance(tool, Tool)} <= set(TOOLS)


def test_the_tools_of_the_table_are_those_that_the_server_offers():
    surface = next(surface for surface in SURFACES if surface.name == "almanac")
    offered: list[Operation] = list(surface.operations)
    assert [operation.name for operation in offered] == list(TOOLS)


def commands(group: Any, path: str = "") -> Iterator[str]:
    """The full names of all commands."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield path + name
            yield from commands(command, f"{path}{name} ")
        else:
            yield path + name
