"""The REST operations of the catalogue, under the paths of the gateway's contract."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel

from almanac.catalogue.entities import EntityChanges
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.namespace_search import NamespaceQuery
from almanac.operations.operation import Example, Form, NoArguments, Operation, Rest
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.web.catalogue import attachments, auth, handlers, models, vocabulary_handlers
from almanac.web.rest import UrlParameters

CATALOGUE_PREFIX = "/knowledge-base"
CREDENTIALS = ("key", "access", "bearer")

_READ = "catalogue:read"
_WRITE = "catalogue:write"

_ENTITY: dict[str, Any] = {
    "name": "PowerJet 1800",
    "category": "washers",
    "description": "A compact electric pressure washer.",
    "sku": "PJ-1800",
    "tags": ["electric"],
    "metadata": {"psi": 1800},
}
_ALIAS = {"name": "Pressure washers", "aliasKey": "washers"}
_TYPE = {"name": "Accessory", "typeKey": "accessory"}


CatalogueHandler = Callable[[RequestContext, Any, Any], Awaitable[Any]]


def _operation(
    method: str,
    path: str,
    name: str,
    summary: str,
    run: CatalogueHandler,
    scope: str,
    *,
    parameters: type[BaseModel] | None = None,
    body: type[BaseModel] | None = None,
    answer: Any = None,
    status: int = 200,
    statuses: Mapping[int, str] | None = None,
    form: Form | None = None,
    example: Mapping[str, Any] | None = None,
    authenticate: Callable[[AppContext, HttpExchange], Awaitable[Authentication]] = auth.by_key,
) -> Operation:
    async def handler(ctx: RequestContext, args: Any) -> Any:
        return await run(ctx, ctx.parameters, args)

    path = path if path.startswith(("/keys", "/tenants")) else CATALOGUE_PREFIX + path
    rest = Rest(
        method,
        path,
        status=status,
        parameters=parameters or UrlParameters,
        other_statuses=statuses or {},
        form=form,
        authenticate=authenticate,
        credentials=CREDENTIALS,
    )
    return Operation(
        name,
        summary,
        handler,
        arguments=body or NoArguments,
        answer=answer,
        scopes=frozenset({scope}) if scope else frozenset(),
        rest=rest,
        example=Example(example),
    )


_get = partial(_operation, "GET")
_post = partial(_operation, "POST", scope=_WRITE, status=201)
_delete = partial(_operation, "DELETE", scope=_WRITE, status=204)

CATALOGUE_OPERATIONS: tuple[Operation, ...] = (
    _get("/categories", "list_categories", "Categories as a tree", handlers.list_categories, _READ,
        parameters=models.CategoryListParameters, answer=models.CategoryList),
    _post("/categories", "add_category", "Create a category", handlers.add_category, body=models.NewCategory,
        answer=models.CategoryAnswer,
        example={"name": "Washers", "description": "", "categoryAlias": "washers", "policy": "default"}),
    _get("/categories/{key}", "get_category", "One category by id, path or name, or a list by alias key",
        handlers.get_category, _READ, parameters=models.CategoryPath, answer=models.CategoryOrList),
    _operation("PATCH", "/categories/{key}", "change_category", "Change or move a category", handlers.change_category,
        _WRITE, parameters=models.KeyPath, body=models.CategoryChanges, answer=models.CategoryAnswer,
        example={"name": "Pressure washers"}),
    _delete("/categories/{key}", "remove_category", "Remove an empty category", handlers.remove_category,
        parameters=models.KeyPath),
    _get("/category-aliases", "list_category_aliases", "Category aliases", vocabulary_handlers.list_aliases, _READ,
        answer=models.TermList),
    _post("/category-aliases", "add_category_alias", "Create a category alias", vocabulary_handlers.add_alias,
        body=models.NewAlias, answer=models.TermAnswer, example=_ALIAS),
    _get("/relationship-types", "list_relationship_types", "Relation types", vocabulary_handlers.list_relation_types,
        _READ, answer=models.TermList),
    _post("/relationship-types", "add_relationship_type", "Create a relation type",
        vocabulary_handlers.add_relation_type, body=models.NewType, answer=models.TermAnswer, example=_TYPE),
    _get("/attachment-types", "list_attachment_types", "Attachment types", vocabulary_handlers.list_attachment_types,
        _READ, answer=models.TermList),
    _post("/attachment-types", "add_attachment_type", "Create an attachment type",
        vocabulary_handlers.add_attachment_type, body=models.NewType, answer=models.TermAnswer,
        example={"name": "Image", "typeKey": "image"}),
    _get("/policies", "list_policies", "Policies", vocabulary_handlers.list_policies, _READ, answer=models.TermList),
    _post("/policies", "add_policy", "Create a policy", vocabulary_handlers.add_policy, body=models.NewPolicy,
        answer=models.TermAnswer,
        example={"name": "Default", "policyKey": "default", "inputType": "TXT", "outputFormat": "MARKDOWN"}),
    _get("/attachments", "list_attachments", "Attachments, oldest first", handlers.list_attachments, _READ,
        parameters=models.AttachmentListParameters, answer=models.AttachmentList),
    _post("/attachments", "add_attachment", "Create an attachment from a file or a URL", attachments.add_attachment,
        body=attachments.NewAttachment, answer=models.AddedAttachment,
        form=Form(frozenset(attachments.AttachmentFields.model_fields)),
        example={"filename": "front.png", "file": "data:image/png;base64,iVBORw0KGgo=", "type": "image"}),
    _operation("POST", "/attachments/link", "link_attachment", "Attach an attachment to an entity, or detach it",
        handlers.link_attachment, _WRITE, body=models.LinkAttachment, answer=models.AttachmentAnswer,
        example={"entityId": "68dfc8fd5e40fe1ae99c6b5b", "attachmentUrl": "https://example.org/front.png"}),
    _get("/attachments/{id}", "get_attachment", "One attachment", handlers.get_attachment, _READ,
        parameters=models.IdPath, answer=models.AttachmentAnswer),
    _get("/attachments/{id}/file", "get_attachment_file",
        "The file of an attachment that was uploaded; whole or in ranges", attachments.open_file, _READ,
        parameters=models.IdPath, answer=FileAnswer,
        statuses={206: "The requested ranges of the file.", 416: "The file has no such range."}),
    _delete("/attachments/{id}", "remove_attachment", "Remove an attachment", handlers.remove_attachment,
        parameters=models.IdPath),
    _get("/entities", "list_entities", "Entities, oldest first", handlers.list_entities, _READ,
        parameters=models.EntityListParameters, answer=models.EntityList),
    _post("/entities", "add_entity", "Create an entity", handlers.add_entity, body=models.NewEntity,
        answer=models.EntityAnswer, example=_ENTITY),
    _get("/entities/{id}/relationships", "list_relationships", "The relations of an entity", handlers.list_relations,
        _READ, parameters=models.RelationListParameters, answer=models.RelationList),
    _post("/entities/{id}/relationships", "add_relationship", "Relate an entity to another", handlers.add_relation,
        parameters=models.IdPath, body=models.NewRelation, answer=models.RelationList,
        example={"targetEntity": "68dfc8fd5e40fe1ae99c6b5c", "type": "accessory"}),
    _delete("/entities/{id}/relationships", "remove_relationship", "Remove a relation", handlers.remove_relation,
        parameters=models.RelationParameters),
    _get("/entities/{id}/attachments", "list_entity_attachments", "The attachments of an entity",
        handlers.list_entity_attachments, _READ, parameters=models.IdPath, answer=models.AttachmentList),
    _get("/entities/{key}", "get_entity", "One entity by id or exact name, or a list by alias key",
        handlers.get_entity, _READ, parameters=models.KeyPath, answer=models.EntityOrList),
    _operation("PATCH", "/entities/{key}", "change_entity", "Change an entity, by its id", handlers.change_entity,
        _WRITE, parameters=models.KeyPath, body=EntityChanges, answer=models.EntityAnswer,
        example={"status": "archived"}),
    _delete("/entities/{key}", "remove_entity", "Remove an entity, by its id", handlers.remove_entity,
        parameters=models.KeyPath),
    _get("/indexes", "list_indexes", "Namespaces", handlers.list_namespaces, _READ,
        parameters=models.NamespaceListParameters, answer=models.NamespaceList),
    _post("/indexes", "add_index", "Create a namespace over categories", handlers.add_namespace,
        body=models.NewNamespace, answer=models.NamespaceAnswer,
        example={"name": "products", "notes": "All we sell", "categories": ["washers"]}),
    _delete("/indexes/{id}", "remove_index", "Remove a namespace", handlers.remove_namespace,
        parameters=models.IdPath),
    _operation("POST", "/retrieve", "retrieve", "Search a namespace", handlers.retrieve, _READ, body=NamespaceQuery,
        answer=models.MatchList,
        example={"namespace": "products", "query": "quiet pressure washer", "metadata": {"psi": {"$lt": 2000}}}),
    _operation("POST", "/tenants/seed", "seed_catalogue", "Import a catalogue file", handlers.import_catalogue, _WRITE,
        parameters=models.ImportParameters, body=models.CatalogueBody, answer=models.CatalogueImportReport,
        example={"categories": [{"name": "Washers"}]}),
    _delete("/tenants/{id}", "clear_catalogue", "Remove the whole catalogue of a tenant; the tenant stays",
        handlers.clear, parameters=models.IdPath),
    _operation("POST", "/keys/verify", "verify_key", "The owner of a key, if the key is valid for the knowledge base",
        auth.verify_key, _READ, authenticate=auth.by_key_in_body, body=models.VerifyKey, answer=models.KeyInfo,
        example={"key": "ak-…", "scope": "knowledge-base"}),
)  # fmt: skip
