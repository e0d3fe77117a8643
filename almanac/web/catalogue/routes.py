"""The table of the catalogue's REST endpoints, under the paths that the gateway's contract gives them."""

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
from almanac.web.catalogue import attachments as a
from almanac.web.catalogue import handlers as c
from almanac.web.catalogue import models as s
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
    authenticate: Callable[[AppContext, HttpExchange], Awaitable[Authentication]] = c.by_key,
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
    _get("/categories", "list_categories", "Categories as a tree", c.list_categories, _READ,
         parameters=s.CategoryListParameters, answer=s.CategoryList),
    _post("/categories", "add_category", "Make a category", c.add_category, body=s.NewCategory, answer=s.CategoryAnswer,
          example={"name": "Washers", "description": "", "categoryAlias": "washers", "policy": "default"}),
    _get("/categories/{key}", "get_category", "One category by id, path or name, or a list by alias key",
         c.get_category, _READ, parameters=s.CategoryPath, answer=s.CategoryOrList),
    _operation("PATCH", "/categories/{key}", "change_category", "Change or move a category", c.change_category, _WRITE,
        parameters=s.KeyPath, body=s.CategoryChanges, answer=s.CategoryAnswer, example={"name": "Pressure washers"}),
    _delete("/categories/{key}", "remove_category", "Remove a category that nothing is in", c.remove_category,
            parameters=s.KeyPath),
    _get("/category-aliases", "list_category_aliases", "Category aliases", c.list_aliases, _READ, answer=s.TermList),
    _post("/category-aliases", "add_category_alias", "Make a category alias", c.add_alias, body=s.NewAlias,
          answer=s.TermAnswer, example=_ALIAS),
    _get("/relationship-types", "list_relationship_types", "Kinds of relations", c.list_relation_types, _READ,
         answer=s.TermList),
    _post("/relationship-types", "add_relationship_type", "Make a kind of relation", c.add_relation_type,
          body=s.NewType, answer=s.TermAnswer, example=_TYPE),
    _get("/attachment-types", "list_attachment_types", "Kinds of attachments", c.list_attachment_types, _READ,
         answer=s.TermList),
    _post("/attachment-types", "add_attachment_type", "Make a kind of attachment", c.add_attachment_type,
          body=s.NewType, answer=s.TermAnswer, example={"name": "Image", "typeKey": "image"}),
    _get("/policies", "list_policies", "Policies", c.list_policies, _READ, answer=s.TermList),
    _post("/policies", "add_policy", "Make a policy", c.add_policy, body=s.NewPolicy, answer=s.TermAnswer,
          example={"name": "Default", "policyKey": "default", "inputType": "TXT", "outputFormat": "MARKDOWN"}),
    _get("/attachments", "list_attachments", "Attachments, oldest first", c.list_attachments, _READ,
         parameters=s.AttachmentListParameters, answer=s.AttachmentList),
    _post("/attachments", "add_attachment", "Make an attachment: upload a file, or name what is at a URL", a.add_attachment,
          body=a.NewAttachment, answer=s.AddedAttachment, form=Form(frozenset(a.AttachmentFields.model_fields)),
          example={"filename": "front.png", "file": "data:image/png;base64,iVBORw0KGgo=", "type": "image"}),
    _operation("POST", "/attachments/link", "link_attachment", "Attach something to an entity, or detach it",
        c.link_attachment, _WRITE, body=s.LinkAttachment, answer=s.AttachmentAnswer,
        example={"entityId": "68dfc8fd5e40fe1ae99c6b5b", "attachmentUrl": "https://example.org/front.png"}),
    _get("/attachments/{id}", "get_attachment", "One attachment", c.get_attachment, _READ, parameters=s.IdPath,
         answer=s.AttachmentAnswer),
    _get("/attachments/{id}/file", "get_attachment_file", "The file of an attachment that was uploaded; whole or in"
         " ranges", a.open_file, _READ, parameters=s.IdPath, answer=FileAnswer,
         statuses={206: "The ranges that were asked for.", 416: "There is no such range."}),
    _delete("/attachments/{id}", "remove_attachment", "Remove an attachment", c.remove_attachment, parameters=s.IdPath),
    _get("/entities", "list_entities", "Entities, oldest first", c.list_entities, _READ, parameters=s.EntityListParameters,
         answer=s.EntityList),
    _post("/entities", "add_entity", "Make an entity", c.add_entity, body=s.NewEntity, answer=s.EntityAnswer,
          example=_ENTITY),
    _get("/entities/{id}/relationships", "list_relationships", "The relations of an entity", c.list_relations, _READ,
         parameters=s.RelationListParameters, answer=s.RelationList),
    _post("/entities/{id}/relationships", "add_relationship", "Relate an entity to another", c.add_relation,
          parameters=s.IdPath, body=s.NewRelation, answer=s.RelationList,
          example={"targetEntity": "68dfc8fd5e40fe1ae99c6b5c", "type": "accessory"}),
    _delete("/entities/{id}/relationships", "remove_relationship", "End a relation", c.remove_relation,
            parameters=s.RelationParameters),
    _get("/entities/{id}/attachments", "list_entity_attachments", "What is attached to an entity", c.list_entity_attachments,
         _READ, parameters=s.IdPath, answer=s.AttachmentList),
    _get("/entities/{key}", "get_entity", "One entity by id or exact name, or a list by alias key", c.get_entity, _READ,
         parameters=s.KeyPath, answer=s.EntityOrList),
    _operation("PATCH", "/entities/{key}", "change_entity", "Change an entity, by its id", c.change_entity, _WRITE,
        parameters=s.KeyPath, body=EntityChanges, answer=s.EntityAnswer, example={"status": "archived"}),
    _delete("/entities/{key}", "remove_entity", "Remove an entity, by its id", c.remove_entity, parameters=s.KeyPath),
    _get("/indexes", "list_indexes", "Namespaces", c.list_namespaces, _READ, parameters=s.NamespaceListParameters, answer=s.NamespaceList),
    _post("/indexes", "add_index", "Make a namespace over categories", c.add_namespace, body=s.NewNamespace,
          answer=s.NamespaceAnswer, example={"name": "products", "notes": "All we sell", "categories": ["washers"]}),
    _delete("/indexes/{id}", "remove_index", "Remove a namespace", c.remove_namespace, parameters=s.IdPath),
    _operation("POST", "/retrieve", "retrieve", "What of a namespace answers a question best", c.retrieve, _READ,
        body=NamespaceQuery, answer=s.MatchList,
        example={"namespace": "products", "query": "quiet pressure washer", "metadata": {"psi": {"$lt": 2000}}}),
    _operation("POST", "/tenants/seed", "seed_catalogue", "Fill the catalogue from a seed", c.import_catalogue, _WRITE,
        parameters=s.ImportParameters, body=s.CatalogueBody, answer=s.ImportReport, example={"categories": [{"name": "Washers"}]}),
    _delete("/tenants/{id}", "clear_catalogue", "Remove all of a tenant's catalogue; the tenant stays", c.clear,
            parameters=s.IdPath),
    _operation("POST", "/keys/verify", "verify_key", "Whose a key is, if it is good for the knowledge base", c.verify_key,
        _READ, authenticate=c.by_body, body=s.VerifyKey, answer=s.KeyInfo,
        example={"key": "ak-…", "scope": "knowledge-base"}),
)  # fmt: skip
