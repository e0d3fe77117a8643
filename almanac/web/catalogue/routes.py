"""The REST operations of the catalogue, under the paths of the gateway's contract."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, get_type_hints

from pydantic import BaseModel

from almanac.catalogue import contract_json, vocabulary
from almanac.net.http_exchange import HttpExchange
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.operation import Example, Form, NoArguments, Operation, Rest
from almanac.operations.pipeline.file_answer import FileAnswer
from almanac.web.catalogue import attachments, auth, handlers, models
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
_RELATION_TYPE = {"name": "Accessory", "typeKey": "accessory"}
_ATTACHMENT_TYPE = {"name": "Image", "typeKey": "image"}
_POLICY = {"name": "Default", "policyKey": "default", "inputType": "TXT", "outputFormat": "MARKDOWN"}


class CatalogueHandler(Protocol):
    """A function that runs an operation with the values of path and query, and with the body."""

    __name__: str
    __doc__: str | None

    def __call__(self, ctx: RequestContext, parameters: Any, body: Any, /) -> Awaitable[Any]: ...


def _operation(
    method: str,
    path: str,
    run: CatalogueHandler,
    scope: str,
    *,
    answer: Any = None,
    status: int = 200,
    statuses: Mapping[int, str] | None = None,
    form: Form | None = None,
    example: Mapping[str, Any] | None = None,
    authenticate: Callable[[AppContext, HttpExchange], Awaitable[Authentication]] = auth.by_key,
) -> Operation:
    """Declare an operation by its handler. Its annotations are the models of path and query, and of the body."""
    _, parameters, body, _ = get_type_hints(run).values()

    async def handler(ctx: RequestContext, args: Any) -> Any:
        return await run(ctx, ctx.parameters, args)

    rest = Rest(
        method,
        path if path.startswith(("/keys", "/tenants")) else CATALOGUE_PREFIX + path,
        status=status,
        parameters=UrlParameters if parameters is Any else parameters,
        other_statuses=statuses or {},
        form=form,
        authenticate=authenticate,
        credentials=CREDENTIALS,
    )
    return Operation(
        run.__name__,
        " ".join((run.__doc__ or "").split()).removesuffix("."),
        handler,
        arguments=NoArguments if body is Any else body,
        answer=answer,
        scopes=frozenset({scope}),
        rest=rest,
        example=Example(example),
    )


_get = partial(_operation, "GET", scope=_READ)
_post = partial(_operation, "POST", scope=_WRITE, status=201)
_patch = partial(_operation, "PATCH", scope=_WRITE)
_delete = partial(_operation, "DELETE", scope=_WRITE, status=204)


def _vocabulary(
    kind: str, path: str, names: tuple[str, str], texts: tuple[str, str], body: type[BaseModel], example: dict[str, str]
) -> tuple[Operation, Operation]:
    """Return the operations that list the terms of a kind and add one. `names` and `texts`: of all, of one."""

    async def list_terms(ctx: RequestContext, _: Any, __: Any) -> Any:
        return await contract_json.terms(ctx, kind)

    async def add_term(ctx: RequestContext, _: Any, args: Any) -> Any:
        details: dict[str, Any] = args.model_dump()
        key, name, description = (details.pop(field) for field in (vocabulary.KEY_FIELDS[kind], "name", "description"))
        term = await ctx.db.write(lambda tx: vocabulary.add(tx, ctx, kind, key, name, description, details or None))
        return contract_json.term(term)

    listing = _get(path, list_terms, answer=models.TermList)
    adding = _post(path, add_term, answer=models.TermInfo, example=example)
    return (
        replace(listing, name=f"list_{names[0]}", summary=texts[0]),
        replace(adding, name=f"add_{names[1]}", summary=f"Create {texts[1]}", arguments=body),
    )


CATALOGUE_OPERATIONS: tuple[Operation, ...] = (
    _get("/categories", handlers.list_categories, answer=models.CategoryList),
    _post("/categories", handlers.add_category, answer=models.CategoryInfo,
        example={"name": "Washers", "description": "", "categoryAlias": "washers", "policy": "default"}),
    _get("/categories/{key}", handlers.get_category, answer=models.CategoryOrList),
    _patch("/categories/{key}", handlers.change_category, answer=models.CategoryInfo,
        example={"name": "Pressure washers"}),
    _delete("/categories/{key}", handlers.remove_category),
    *_vocabulary("alias", "/category-aliases", ("category_aliases", "category_alias"),
        ("Category aliases", "a category alias"), models.NewAlias, _ALIAS),
    *_vocabulary("relation", "/relationship-types", ("relationship_types", "relationship_type"),
        ("Relation types", "a relation type"), models.NewType, _RELATION_TYPE),
    *_vocabulary("attachment", "/attachment-types", ("attachment_types", "attachment_type"),
        ("Attachment types", "an attachment type"), models.NewType, _ATTACHMENT_TYPE),
    *_vocabulary("policy", "/policies", ("policies", "policy"), ("Policies", "a policy"), models.NewPolicy, _POLICY),
    _get("/attachments", handlers.list_attachments, answer=models.AttachmentList),
    _post("/attachments", attachments.add_attachment, answer=models.AddedAttachment,
        form=Form(frozenset(attachments.AttachmentFields.model_fields)),
        example={"filename": "front.png", "file": "data:image/png;base64,iVBORw0KGgo=", "type": "image"}),
    _post("/attachments/link", handlers.link_attachment, answer=models.AttachmentInfo, status=200,
        example={"entityId": "68dfc8fd5e40fe1ae99c6b5b", "attachmentUrl": "https://example.org/front.png"}),
    _get("/attachments/{id}", handlers.get_attachment, answer=models.AttachmentInfo),
    _get("/attachments/{id}/file", attachments.get_attachment_file, answer=FileAnswer,
        statuses={206: "The requested ranges of the file.", 416: "The file has no such range."}),
    _delete("/attachments/{id}", handlers.remove_attachment),
    _get("/entities", handlers.list_entities, answer=models.EntityList),
    _post("/entities", handlers.add_entity, answer=models.EntityInfo, example=_ENTITY),
    _get("/entities/{id}/relationships", handlers.list_relationships, answer=models.RelationList),
    _post("/entities/{id}/relationships", handlers.add_relationship, answer=models.RelationList,
        example={"targetEntity": "68dfc8fd5e40fe1ae99c6b5c", "type": "accessory"}),
    _delete("/entities/{id}/relationships", handlers.remove_relationship),
    _get("/entities/{id}/attachments", handlers.list_entity_attachments, answer=models.AttachmentList),
    _get("/entities/{key}", handlers.get_entity, answer=models.EntityOrList),
    _patch("/entities/{key}", handlers.change_entity, answer=models.EntityInfo, example={"status": "archived"}),
    _delete("/entities/{key}", handlers.remove_entity),
    _get("/indexes", handlers.list_indexes, answer=models.NamespaceList),
    _post("/indexes", handlers.add_index, answer=models.NamespaceInfo,
        example={"name": "products", "notes": "All we sell", "categories": ["washers"]}),
    _delete("/indexes/{id}", handlers.remove_index),
    _post("/retrieve", handlers.retrieve, scope=_READ, status=200, answer=models.MatchList,
        example={"namespace": "products", "query": "quiet pressure washer", "metadata": {"psi": {"$lt": 2000}}}),
    _post("/tenants/seed", handlers.seed_catalogue, status=200, answer=models.CatalogueImportReport,
        example={"categories": [{"name": "Washers"}]}),
    _delete("/tenants/{id}", handlers.clear_catalogue),
    _post("/keys/verify", auth.verify_key, scope=_READ, status=200, authenticate=auth.by_key_in_body,
        answer=models.KeyInfo, example={"key": "ak-…", "scope": "knowledge-base"}),
)  # fmt: skip
