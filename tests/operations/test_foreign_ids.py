"""Every operation that takes an id treats an id of another organisation as one that was never issued: the answer is the
same, and so are the statements, from which the time of the answer follows."""

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from almanac.app import open_app
from almanac.assist import agent_tasks
from almanac.core.call import Actor, Call
from almanac.core.database import Database, Transaction
from almanac.core.errors import AlmanacError
from almanac.data import datasets
from almanac.operations.context import RequestContext
from almanac.operations.operation import Operation, parse_arguments
from almanac.operations.table import OPERATIONS
from almanac.web.agents.messages import AGENT_OPERATIONS
from almanac.web.catalogue.routes import CATALOGUE_OPERATIONS
from tests.catalogue.sample_catalogue import call_of
from tests.live_server import settings_for, work_off
from tests.statements import Recorder, Statement

_IS_ID = re.compile(r"(.*_)?(ids?|key|by|cites|target|category|namespace)|.*(Ids?|Entity|Alias)")

AGENT = "weknora"

# The kind of object that a field names, and the other arguments. An operation of the tables that is missing here fails
# a test.
BY_ID: dict[str, tuple[str, dict[str, Any]]] = {
    "search.base_ids": ("base", {"query": "oil"}),
    "search.folder_ids": ("folder", {"query": "oil"}),
    "search.document_ids": ("document", {"query": "oil"}),
    "fetch.id": ("document ref", {}),
    "verify_citation.id": ("document ref", {"text": "Oil it."}),
    "get_base.base_id": ("base", {}),
    "change_base.base_id": ("base", {"name": "Other"}),
    "remove_base.base_id": ("base", {}),
    "restore_base.base_id": ("removed base", {}),
    "list_shares.base_id": ("base", {}),
    "share_base.base_id": ("base", {"role": "Reporter", "user": "admin"}),
    "unshare_base.base_id": ("base", {"user": "admin"}),
    "retry_base.base_id": ("base", {}),
    "manage_base.base_id": ("base", {"action": "retry"}),
    "browse.base_id": ("base", {}),
    "browse.folder_id": ("folder", {"base_id": "own base"}),
    "list_trash.base_id": ("base", {}),
    "list_documents.base_id": ("base", {}),
    "add_folder.base_id": ("base", {"name": "New"}),
    "add_folder.parent_id": ("folder", {"base_id": "own base", "name": "New"}),
    "get_folder.folder_id": ("folder", {}),
    "change_folder.folder_id": ("folder", {"name": "New"}),
    "change_folder.parent_id": ("folder", {"folder_id": "own folder"}),
    "remove_folder.folder_id": ("folder", {"contents": "delete"}),
    "restore_folder.folder_id": ("removed folder", {}),
    "manage_folder.base_id": ("base", {"action": "create", "name": "a/b"}),
    "manage_folder.folder_id": ("folder", {"action": "rename", "name": "New"}),
    "manage_folder.parent_id": ("folder", {"action": "move", "folder_id": "own folder"}),
    "add_document.base_id": ("base", {"name": "a.md", "content": "A"}),
    "add_document.document_id": ("document", {"content": "A"}),
    "add_document.folder_id": ("folder", {"base_id": "own base", "name": "a.md", "content": "A"}),
    "replace_content.document_id": ("document", {"content": "A"}),
    "change_documents.ids": ("document", {"action": "disable"}),
    "change_documents.folder_id": ("folder", {"action": "move", "ids": ["own document"]}),
    "change_documents.base_id": ("base", {"action": "move", "ids": ["own document"], "folder_id": 0}),
    "get_document.document_id": ("document", {}),
    "change_document.document_id": ("document", {"tags": ["x"]}),
    "change_document.folder_id": ("folder", {"document_id": "own document"}),
    "change_document.base_id": ("base", {"document_id": "own document"}),
    "remove_document.document_id": ("document", {}),
    "restore_document.document_id": ("removed document", {}),
    "reindex_document.document_id": ("document", {}),
    "read_document.document_id": ("document", {}),
    "list_passages.document_id": ("document", {}),
    "manage_document.document_ids": ("document", {"action": "tag", "tags": ["x"]}),
    "manage_document.folder_id": ("folder", {"action": "move", "document_ids": ["own document"]}),
    "manage_document.base_id": ("base", {"action": "move", "document_ids": ["own document"], "folder_id": 0}),
    "download_document.document_id": ("document", {}),
    "find_entities.category": ("category", {"query": "pump"}),
    "find_entities.namespace": ("namespace", {"query": "pump"}),
    "get_entity.key": ("entity", {}),
    "browse_categories.category": ("category", {}),
    "save_entity.id": ("entity", {"name": "Other"}),
    "save_entity.category": ("category", {"name": "Other"}),
    "remember.cites": ("note", {"title": "T", "body": "B"}),
    "recall.id": ("note", {}),
    "revise.id": ("note", {"body": "B"}),
    "revise.by": ("note", {"id": "own note"}),
    "find_datasets.dataset": ("dataset key", {}),
    "get_dataset.dataset_id": ("dataset", {}),
    "get_dataset_profile.dataset_id": ("dataset", {}),
    "change_dataset.dataset_id": ("dataset", {"name": "Other"}),
    "remove_dataset.dataset_id": ("dataset", {}),
    "restore_dataset.dataset_id": ("removed dataset", {}),
    "list_dataset_versions.dataset_id": ("dataset", {}),
    "restore_dataset_version.dataset_id": ("dataset", {"version": 1}),
    "share_dataset.dataset_id": ("dataset", {"role": "Reporter", "user": "admin"}),
    "unshare_dataset.dataset_id": ("dataset", {"user": "admin"}),
    "list_row_rules.dataset_id": ("dataset", {}),
    "set_row_rule.dataset_id": ("dataset", {"user": "admin", "condition": "1 = 1"}),
    "lift_row_rule.dataset_id": ("dataset", {"user": "admin"}),
    "manage_dataset.dataset_id": ("dataset", {"action": "change", "name": "Other"}),
    # REST of the catalogue
    "list_categories.categoryAlias": ("alias", {}),
    "get_category.key": ("category", {}),
    "add_category.categoryAlias": ("alias", {"name": "N", "description": "", "policy": "own"}),
    "change_category.key": ("category", {"name": "Other"}),
    "change_category.categoryAlias": ("alias", {"key": "own category"}),
    "remove_category.key": ("category", {}),
    "add_attachment.entities": ("entity", {"name": "front", "url": "https://example.org/front.png"}),
    "link_attachment.entityId": ("entity", {"attachmentUrl": "https://example.org/front.png"}),
    "link_attachment.attachmentId": ("attachment", {"entityId": "own entity"}),
    "get_attachment.id": ("attachment", {}),
    "get_attachment_file.id": ("attachment", {}),
    "remove_attachment.id": ("attachment", {}),
    "list_entities.categoryId": ("category", {}),
    "add_entity.category": ("category", {"name": "N"}),
    "list_relationships.id": ("entity", {}),
    "add_relationship.id": ("entity", {"targetEntity": "own entity", "type": "own"}),
    "add_relationship.targetEntity": ("entity", {"id": "own entity", "type": "own"}),
    "remove_relationship.id": ("entity", {"target": "own entity", "type": "own"}),
    "remove_relationship.target": ("entity", {"id": "own entity", "type": "own"}),
    "list_entity_attachments.id": ("entity", {}),
    "change_entity.key": ("entity", {"description": "Other"}),
    "change_entity.category": ("category", {"key": "own entity"}),
    "remove_entity.key": ("entity", {}),
    "list_indexes.categoryId": ("category", {}),
    "remove_index.id": ("namespace id", {}),
    "retrieve.namespace": ("namespace", {"query": "pump"}),
    # The agent
    "get_agent_task.task_id": ("task", {"agent": AGENT}),
    "cancel_agent_task.task_id": ("task", {"agent": AGENT}),
}
# Fields that are named as ids are and name nothing that another organisation could have.
NO_OBJECT = {
    "download_file.document_id": "The document is named by the download token, which is checked before.",
    "clear_catalogue.id": "It is the id of the caller's own organisation.",
    "verify_key.key": "It is a secret.",
    "send_message.sessionId": "A conversation is found by its id and its caller together.",
    "push_data.idempotency_key": "It is looked up among the pushes of the caller to the dataset.",
    "import_data.idempotency_key": "It is looked up among the imports of the caller to the dataset.",
    "seed_catalogue.tenantId": "It names the organisation of an exported catalogue and is ignored.",
}
ABSENT: dict[str, Any] = {
    "document ref": "document:77001",
    "note": "00000000-0000-4000-8000-000000000000",
    "task": "00000000-0000-4000-8000-000000000000",
    **dict.fromkeys(("entity", "category", "attachment", "namespace id", "alias"), "f" * 24),
    "namespace": "absent",
    "dataset key": "77001",
    **dict.fromkeys(("base", "folder", "document", "removed base", "removed folder", "removed document"), 77_001),
    **dict.fromkeys(("dataset", "removed dataset"), 77_001),
}
_ALL: dict[str, Operation] = {each.name: each for each in (*CATALOGUE_OPERATIONS, *AGENT_OPERATIONS, *OPERATIONS)}


def test_every_operation_that_takes_an_id_is_compared():
    fields = {
        f"{each.name}.{name}"
        for each in _ALL.values()
        for model in (each.arguments, each.rest.parameters if each.rest else None)
        for name in (model.model_fields if model else ())
        if _IS_ID.fullmatch(name)
    }
    assert fields - NO_OBJECT.keys() - BY_ID.keys() == set()
    assert NO_OBJECT.keys() <= fields


class Caller:
    """Runs operations for the administrator of an organisation, in process."""

    def __init__(self, app: Any, actor: Actor) -> None:
        self.app = app
        self.actor = actor
        self.statements: list[Statement] = []

    async def run(self, name: str, /, **arguments: Any) -> Any:
        db = cast("Database", Recorder(self.app.db, self.statements))
        ctx = RequestContext(self.actor, db, "test", app=replace(self.app, db=db))
        operation = _ALL[name]
        in_url = operation.rest.parameters.model_fields if operation.rest and operation.rest.parameters else {}
        if operation.rest is not None and operation.rest.parameters is not None:
            given = {key: value for key, value in arguments.items() if key in in_url}
            ctx.parameters = parse_arguments(operation.rest.parameters, given)
        return await operation.handler(ctx, operation.parse({k: v for k, v in arguments.items() if k not in in_url}))

    async def outcome(self, name: str, /, **arguments: Any) -> tuple[Any, list[Statement]]:
        """The answer or the error of an operation, and its statements."""
        self.statements = []
        try:
            answer = await self.run(name, **arguments)
        except AlmanacError as error:
            answer = (type(error).__name__, error.text)
        return answer, self.statements


async def _add_dataset(call: Call, name: str, tx: Transaction) -> int:
    return (await datasets.add(call, tx, name)).id


async def add_objects(caller: Caller, settings: Any) -> dict[str, Any]:
    """Add an object of each kind; return the ids."""
    run = caller.run
    ids: dict[str, Any] = {}
    for kind in ("base", "removed base"):
        ids[kind] = (await run("add_base", name=kind)).id
    for kind in ("folder", "removed folder"):
        ids[kind] = (await run("add_folder", base_id=ids["base"], name=kind)).id
    for kind in ("document", "removed document"):
        added = await run("add_document", base_id=ids["base"], name=f"{kind}.md", content="Oil it.")
        ids[kind] = added.document.id
    ids["document ref"] = f"document:{ids['document']}"
    await work_off(caller.app.db, settings)
    await run("remove_base", base_id=ids["removed base"])
    await run("remove_folder", folder_id=ids["removed folder"], contents="delete")
    await run("remove_document", document_id=ids["removed document"])
    ids["note"] = (await run("remember", title="T", body="Oil it.")).id
    call = Call(caller.actor, caller.app.db, "test")
    for kind in ("dataset", "removed dataset"):
        ids[kind] = await caller.app.db.write(partial(_add_dataset, call, f"{kind}s"))
    await run("remove_dataset", dataset_id=ids["removed dataset"])
    ids["dataset key"] = str(ids["dataset"])
    key = caller.actor.org_name
    ids["alias"] = (await run("add_category_alias", name="A", aliasKey=key))["_id"]
    await run("add_policy", name="P", policyKey=key)
    await run("add_relationship_type", name="R", typeKey=key)
    ids["category"] = (await run("add_category", name=f"{key} pumps", description="", categoryAlias=key, policy=key))[
        "_id"
    ]
    for kind in ("entity", "second entity"):
        ids[kind] = (await run("add_entity", name=f"{key} {kind}", category=ids["category"]))["_id"]
    added = await run("add_attachment", name="front", url=f"https://example.org/{key}.png")
    ids["attachment"] = added["attachment"]["_id"]
    ids["namespace"] = f"{key} things"
    ids["namespace id"] = (await run("add_index", name=ids["namespace"], categories=[]))["_id"]
    ids["task"] = (await agent_tasks.begin(call, AGENT, "a session", "How?")).id
    return ids


def filled(value: Any, own: dict[str, Any]) -> Any:
    """An argument with the caller's own ids in place of their names."""
    if isinstance(value, list):
        return [filled(each, own) for each in cast("list[Any]", value)]
    if value == "own":
        return own["key"]
    return own.get(value.removeprefix("own "), value) if isinstance(value, str) and value.startswith("own ") else value


@asynccontextmanager
async def two_organisations(settings: Any) -> AsyncGenerator[tuple[Caller, dict[str, Any], dict[str, Any]]]:
    """A caller with the ids of the own and of another organisation."""
    async with open_app(settings, ()) as running:
        app = running.context
        ours, theirs = Caller(app, (await call_of(app.db)).actor), Caller(app, (await call_of(app.db, "other")).actor)
        foreign = await add_objects(theirs, settings)
        own = {**await add_objects(ours, settings), "key": ours.actor.org_name}
        yield ours, own, foreign


def without_ids(outcome: Any, *ids: Any) -> str:
    text = repr(outcome)
    for id in ids:
        text = text.replace(str(id), "ID")
    return text


async def test_an_id_of_another_organisation_is_treated_as_one_that_nobody_has(database_url: str, tmp_path: Path):
    wrong: list[str] = []
    async with two_organisations(settings_for(database_url, tmp_path / "home", embedding=False)) as (
        ours,
        own,
        foreign,
    ):
        for name, (kind, rest) in BY_ID.items():
            operation, field = name.split(".")
            arguments = {key: filled(value, own) for key, value in rest.items()}
            outcomes: list[tuple[str, list[Statement]]] = []
            for id in (foreign[kind], ABSENT[kind]):
                is_list = field.endswith(("ids", "cites", "entities"))
                answer, statements = await ours.outcome(operation, **{**arguments, field: [id] if is_list else id})
                outcomes.append((without_ids(answer, id, str(id).removeprefix("document:")), statements))
            if outcomes[0] != outcomes[1]:
                wrong.append(f"{name}: {outcomes[0]}\n  but {outcomes[1]}")
    assert wrong == []
