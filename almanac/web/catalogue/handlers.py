"""The REST operations of the catalogue, in the form of the gateway's contract."""

from collections.abc import Sequence
from typing import Any

import orjson

from almanac.catalogue import (
    access,
    attachments,
    catalogue_file,
    categories,
    contract_json,
    entities,
    namespaces,
    relations,
    vocabulary,
)
from almanac.catalogue.entities import EntityChanges, EntityFilter
from almanac.catalogue.importer import CatalogueImport
from almanac.core.errors import BadRequest, Forbidden, InsufficientScope
from almanac.core.fair_slots import compute, compute_for
from almanac.operations import namespace_search
from almanac.operations.context import RequestContext
from almanac.operations.namespace_search import NamespaceQuery
from almanac.web.catalogue import models
from almanac.web.rest import RestAnswer, notes_header

# Categories


async def list_categories(
    ctx: RequestContext, parameters: models.CategoryListParameters, _: Any
) -> list[dict[str, Any]]:
    """Categories as a tree."""
    org_id = ctx.actor.org_id
    tree = await categories.tree(ctx.db, org_id)
    found = tree.children(categories.TOP)
    if parameters.parent not in (None, "null"):
        found = tree.children(tree.pick(parameters.parent or "").number)
    if parameters.search is not None or parameters.policy is not None or parameters.categoryAlias is not None:
        descendants = tree.descend(each.number for each in found)
        found = [each for number in descendants if _matches(each := tree.by_number[number], parameters)]
    terms = None
    if parameters.extended:
        lists = [await vocabulary.find(ctx.db, org_id, kind) for kind in ("alias", "policy")]
        terms = {term.id: term for listed in lists for term in listed}
    view = contract_json.CategoryRenderer(tree, await categories.counts(ctx.db, org_id), terms)
    if parameters.extended:
        nodes = await view.whole(ctx, found, True)
    else:
        nodes = await compute_for(len(tree.by_number), view.nodes, found)
    return _select_fields(nodes, parameters.fields)


async def get_category(ctx: RequestContext, parameters: models.CategoryPath, _: Any) -> Any:
    """One category by id, path or name, or a list by alias key."""
    tree = await categories.tree(ctx.db, ctx.actor.org_id)
    return await contract_json.category(ctx, tree, parameters.key, recursive=parameters.recursive)


async def add_category(ctx: RequestContext, _: Any, body: models.NewCategory) -> Any:
    """Create a category."""
    category = await ctx.db.write(
        lambda tx: categories.add(
            tx, ctx, body.name, description=body.description, alias=body.categoryAlias, policy=body.policy,
            parent=body.parent,
        )
    )  # fmt: skip
    return await _category(ctx, category.id)


async def change_category(ctx: RequestContext, parameters: models.KeyPath, body: models.CategoryChanges) -> Any:
    """Change or move a category."""
    changes = body.model_dump(exclude_none=True)
    if not changes:
        raise BadRequest("There is nothing to change.", remedy="Send at least one field.")
    if "categoryAlias" in changes:
        changes["alias"] = changes.pop("categoryAlias")
    category = await ctx.db.write(lambda tx: categories.update(tx, ctx, parameters.key, **changes))
    return await _category(ctx, category.id)


async def remove_category(ctx: RequestContext, parameters: models.KeyPath, _: Any) -> None:
    """Remove an empty category."""
    await ctx.db.write(lambda tx: categories.remove(tx, ctx, parameters.key))


async def _category(ctx: RequestContext, id: str) -> Any:
    return await contract_json.category(ctx, await categories.tree(ctx.db, ctx.actor.org_id), id)


def _matches(category: categories.Category, parameters: models.CategoryListParameters) -> bool:
    text = f"{category.name}\n{category.description}".casefold()
    return (
        (parameters.search is None or parameters.search.casefold() in text)
        and (parameters.policy is None or parameters.policy in (category.policy_key, category.policy_id))
        and (parameters.categoryAlias is None or parameters.categoryAlias in (category.alias_key, category.alias_id))
    )


# Entities


async def list_entities(ctx: RequestContext, parameters: models.EntityListParameters, _: Any) -> RestAnswer:
    """Entities, oldest first."""
    numbers: tuple[int, ...] = ()
    if parameters.categoryId is not None:
        tree = await categories.tree(ctx.db, ctx.actor.org_id)
        roots = [tree.pick(key.strip()).number for key in parameters.categoryId.split(",") if key.strip()]
        numbers = tuple(tree.descend(roots) if parameters.recursive else roots) or (-1,)
    filter = EntityFilter(
        text=parameters.search or "",
        categories=numbers,
        source=parameters.source or "",
        sku=parameters.sku or "",
        tags=tuple(tag.strip() for tag in (parameters.tags or "").split(",") if tag.strip()),
        status=parameters.status or "",
    )
    page = await entities.find(ctx.db, ctx.actor.org_id, filter, limit=parameters.limit, offset=parameters.offset)
    found = _select_fields(await contract_json.entity_list(ctx, list(page.items)), parameters.fields)
    return RestAnswer(found, 200, ((b"x-total-count", b"%d" % page.total),))


async def get_entity(ctx: RequestContext, parameters: models.KeyPath, _: Any) -> Any:
    """One entity by id or exact name, or a list by alias key."""
    return await contract_json.entity(ctx, parameters.key)


async def add_entity(ctx: RequestContext, _: Any, body: models.NewEntity) -> Any:
    """Create an entity."""
    entity = await entities.store(ctx, body)
    return await contract_json.entity_with_links(ctx, entity)


async def change_entity(ctx: RequestContext, parameters: models.KeyPath, body: EntityChanges) -> Any:
    """Change an entity, by its id."""
    entity = await entities.change(ctx, parameters.key, body)
    return await contract_json.entity_with_links(ctx, entity)


async def remove_entity(ctx: RequestContext, parameters: models.KeyPath, _: Any) -> None:
    """Remove an entity, by its id."""
    await ctx.db.write(lambda tx: entities.remove(tx, ctx, parameters.key))


async def list_relationships(ctx: RequestContext, parameters: models.RelationListParameters, _: Any) -> Any:
    """The relations of an entity."""
    entity = await entities.get(ctx.db, ctx, parameters.id)
    tree = await categories.tree(ctx.db, ctx.actor.org_id)
    found = await relations.of(ctx.db, ctx.actor.org_id, entity.id, parameters.type)
    return [contract_json.relation(each, tree) for each in found]


async def add_relationship(ctx: RequestContext, parameters: models.IdPath, body: models.NewRelation) -> Any:
    """Relate an entity to another."""
    description = body.relationDescription if "relationDescription" in body.model_fields_set else None
    await ctx.db.write(lambda tx: relations.link(tx, ctx, parameters.id, body.targetEntity, body.type, description))
    return await list_relationships(ctx, models.RelationListParameters(id=parameters.id), None)


async def remove_relationship(ctx: RequestContext, parameters: models.RelationParameters, _: Any) -> None:
    """Remove a relation."""
    await ctx.db.write(lambda tx: relations.unlink(tx, ctx, parameters.id, parameters.target, parameters.type))


async def list_entity_attachments(ctx: RequestContext, parameters: models.IdPath, _: Any) -> Any:
    """The attachments of an entity."""
    entity = await entities.get(ctx.db, ctx, parameters.id)
    found = await attachments.of(ctx.db, ctx.actor.org_id, entity.id)
    return [await contract_json.attachment(ctx, each) for each in found]


# Attachments and namespaces


async def list_attachments(ctx: RequestContext, parameters: models.AttachmentListParameters, _: Any) -> Any:
    """Attachments, oldest first."""
    found = await attachments.find(ctx.db, ctx.actor.org_id, limit=parameters.limit, offset=parameters.offset)
    return [await contract_json.attachment(ctx, each) for each in found]


async def get_attachment(ctx: RequestContext, parameters: models.IdPath, _: Any) -> Any:
    """One attachment."""
    return await contract_json.attachment(ctx, await attachments.get(ctx.db, ctx, parameters.id))


async def remove_attachment(ctx: RequestContext, parameters: models.IdPath, _: Any) -> None:
    """Remove an attachment."""
    await ctx.db.write(lambda tx: attachments.remove(tx, ctx, parameters.id))


async def link_attachment(ctx: RequestContext, _: Any, body: models.LinkAttachment) -> Any:
    """Attach an attachment to an entity, or detach it."""
    attachment = await ctx.db.write(
        lambda tx: attachments.link(
            tx, ctx, body.entityId, id=body.attachmentId, url=body.attachmentUrl, is_linked=body.action == "link"
        )
    )
    return await contract_json.attachment(ctx, attachment)


async def list_indexes(ctx: RequestContext, parameters: models.NamespaceListParameters, _: Any) -> Any:
    """Namespaces."""
    tree = await categories.tree(ctx.db, ctx.actor.org_id)
    found = [await contract_json.namespace(ctx, each, tree) for each in await namespaces.find(ctx.db, ctx.actor.org_id)]
    return [
        each
        for each in found
        if (parameters.name is None or each["name"] == parameters.name)
        and (parameters.notes is None or parameters.notes.casefold() in each["notes"].casefold())
        and (parameters.categoryId is None or parameters.categoryId in each["categories"])
        and (parameters.status is None or each["status"] == parameters.status)
    ]


async def add_index(ctx: RequestContext, _: Any, body: models.NewNamespace) -> Any:
    """Create a namespace over categories."""
    namespace = await ctx.db.write(lambda tx: namespaces.add(tx, ctx, body.name, body.notes, body.categories))
    return await contract_json.namespace(ctx, namespace, await categories.tree(ctx.db, ctx.actor.org_id))


async def remove_index(ctx: RequestContext, parameters: models.IdPath, _: Any) -> None:
    """Remove a namespace."""
    await ctx.db.write(lambda tx: namespaces.remove(tx, ctx, parameters.id))


# Search and import


async def retrieve(ctx: RequestContext, _: Any, body: NamespaceQuery) -> RestAnswer:
    """Search a namespace."""
    if "search:read" not in ctx.actor.scopes:
        raise InsufficientScope("Your token lacks the scope search:read.")
    matches, notes = await namespace_search.retrieve(ctx, ctx.app.search, body)
    found = [namespace_search.render_match(match, values=[]) for match in matches]
    return RestAnswer(found, 200, notes_header(notes))


async def seed_catalogue(ctx: RequestContext, parameters: models.ImportParameters, body: models.CatalogueBody) -> Any:
    """Import a catalogue file."""
    if body.tenantId not in (None, ctx.actor.org_id):
        raise _other_tenant("Leave tenantId out.")
    catalogue = await compute(_catalogue_from, body)
    report = await CatalogueImport(ctx, catalogue, dry=parameters.dryRun).run()
    return {"dryRun": parameters.dryRun, **report.to_json()}


def _catalogue_from(body: models.CatalogueBody) -> catalogue_file.CatalogueFile:
    return catalogue_file.parse(orjson.dumps(body.model_dump(exclude_none=True)), "json")


async def clear_catalogue(ctx: RequestContext, parameters: models.IdPath, _: Any) -> None:
    """Remove the whole catalogue of a tenant; the tenant stays."""
    if parameters.id != ctx.actor.org_id:
        raise _other_tenant("Name the tenant of the key.")
    await access.remove_all(ctx)


def _other_tenant(remedy: str) -> Forbidden:
    return Forbidden("This key cannot change another tenant's catalogue.", remedy=remedy)


def _select_fields(objects: Sequence[dict[str, Any]], fields: str | None) -> list[dict[str, Any]]:
    """Return objects with only the named fields and the id."""
    if fields is None:
        return list(objects)
    selected = {"_id", *(name.strip() for name in fields.split(","))}
    return [{name: value for name, value in each.items() if name in selected} for each in objects]
