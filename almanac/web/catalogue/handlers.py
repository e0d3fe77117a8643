"""The REST endpoints of the catalogue: from the contract to verbs, and back."""

import asyncio
import hmac
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
from almanac.core import clock
from almanac.core.call import Actor
from almanac.core.errors import BadRequest, Forbidden, InsufficientScope, NotFound
from almanac.identity import orgs
from almanac.identity.credentials import InvalidKey, MissingKey, api_key
from almanac.net.http_exchange import HttpExchange
from almanac.operations import namespace_search
from almanac.operations.catalogue import GATEWAY_SCOPES, REQUIRED_SCOPE
from almanac.operations.context import AppContext, Authentication, RequestContext
from almanac.operations.namespace_search import NamespaceQuery
from almanac.web.catalogue import models as s
from almanac.web.rest import RestAnswer

MAX_VERIFY_BODY_BYTES = 10_000


async def by_key(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the key in X-API-Key, X-Access-Key or Bearer. A gateway in front of this server shows the service
    key instead and names the organisation it asks for."""
    key = api_key(http.headers)
    if not key:
        raise MissingKey()
    service_key = app.settings.gateway_service_key.encode()
    if service_key and hmac.compare_digest(key.encode("latin-1"), service_key):
        return Authentication(await _tenant(app, http.headers.get(b"x-tenant-id", b"").decode("latin-1")))
    actor = await app.token_resolver.resolve(key)
    if actor is None:
        raise InvalidKey()
    return Authentication(actor)


async def by_body(app: AppContext, http: HttpExchange) -> Authentication:
    """Authenticate by the key in the body, which is the key to verify."""
    try:
        given: Any = orjson.loads(await http.read_body(MAX_VERIFY_BODY_BYTES) or b"{}")
        asked = s.VerifyKey.model_validate(given)
    except ValueError:
        raise BadRequest('Send {"key": "…", "scope": "knowledge-base"}.') from None
    if not asked.key.strip():
        raise MissingKey()
    actor = await app.token_resolver.resolve(asked.key.strip())
    if actor is None or REQUIRED_SCOPE not in actor.scopes:
        raise InvalidKey()
    return Authentication(actor)


async def _tenant(app: AppContext, org_id: str) -> Actor:
    org = await orgs.get_or_none(app.db, org_id) if org_id else None
    if org is None:
        raise NotFound("There is no such tenant.", remedy="Name one in X-Tenant-Id.")
    return Actor(
        id=0,
        name="gateway",
        kind="agent",
        org_id=org.id,
        org_name=org.name,
        is_admin=False,
        token_id=0,
        token_kind="service",  # noqa: S106 - a kind
        scopes=GATEWAY_SCOPES,
    )


async def verify_key(ctx: RequestContext, _: Any, __: Any) -> dict[str, Any]:
    """Whose key it is: what let the request in."""
    actor = ctx.actor
    return {
        "valid": True,
        "tenantId": actor.org_id,
        "name": actor.name,
        "scopes": sorted(actor.scopes),
        "expiresAt": clock.format_timestamp(actor.expires_at),
    }


# Categories


async def list_categories(ctx: RequestContext, place: s.CategoryListParameters, _: Any) -> list[dict[str, Any]]:
    """Categories, each with all below it."""
    org_id = ctx.actor.org_id
    tree = await categories.tree(ctx.db, org_id)
    found = tree.children(categories.TOP)
    if place.parent not in (None, "null"):
        found = tree.children(tree.pick(place.parent or "").number)
    if place.search is not None or place.policy is not None or place.categoryAlias is not None:
        below = tree.descend(each.number for each in found)
        found = [each for number in below if _matches(each := tree.by_number[number], place)]
    terms = None
    if place.extended:
        words = [await vocabulary.find(ctx.db, org_id, kind) for kind in ("alias", "policy")]
        terms = {term.id: term for listed in words for term in listed}
    view = contract_json.CategoryRenderer(tree, await categories.counts(ctx.db, org_id), terms)
    nodes = [await view.whole(ctx, each, True) if place.extended else view.node(each) for each in found]
    return _select_fields(nodes, place.fields)


async def get_category(ctx: RequestContext, place: s.CategoryPath, _: Any) -> Any:
    """One category, or those that share an alias key."""
    tree = await categories.tree(ctx.db, ctx.actor.org_id)
    return await contract_json.category(ctx, tree, place.key, recursive=place.recursive)


async def add_category(ctx: RequestContext, _: Any, given: s.NewCategory) -> Any:
    """Make a category."""
    made = await ctx.db.write(
        lambda tx: categories.add(
            tx, ctx, given.name, description=given.description, alias=given.categoryAlias, policy=given.policy,
            parent=given.parent,
        )
    )  # fmt: skip
    return await _category(ctx, made.id)


async def change_category(ctx: RequestContext, place: s.KeyPath, given: s.CategoryChanges) -> Any:
    """Change a category."""
    wanted = given.model_dump(exclude_none=True)
    if not wanted:
        raise BadRequest("There is nothing to change.", remedy="Send at least one field.")
    if "categoryAlias" in wanted:
        wanted["alias"] = wanted.pop("categoryAlias")
    changed = await ctx.db.write(lambda tx: categories.update(tx, ctx, place.key, **wanted))
    return await _category(ctx, changed.id)


async def remove_category(ctx: RequestContext, place: s.KeyPath, _: Any) -> None:
    """Remove a category that nothing is in."""
    await ctx.db.write(lambda tx: categories.remove(tx, ctx, place.key))


async def _category(ctx: RequestContext, id: str) -> Any:
    return await contract_json.category(ctx, await categories.tree(ctx.db, ctx.actor.org_id), id)


def _matches(category: categories.Category, place: s.CategoryListParameters) -> bool:
    text = f"{category.name}\n{category.description}".casefold()
    return (
        (place.search is None or place.search.casefold() in text)
        and (place.policy is None or place.policy in (category.policy_key, category.policy_id))
        and (place.categoryAlias is None or place.categoryAlias in (category.alias_key, category.alias_id))
    )


# Entities


async def list_entities(ctx: RequestContext, place: s.EntityListParameters, _: Any) -> RestAnswer:
    """A page of entities."""
    chosen: tuple[int, ...] = ()
    if place.categoryId is not None:
        tree = await categories.tree(ctx.db, ctx.actor.org_id)
        named = [tree.pick(key.strip()).number for key in place.categoryId.split(",") if key.strip()]
        chosen = tuple(tree.descend(named) if place.recursive else named) or (-1,)
    wanted = EntityFilter(
        text=place.search or "",
        categories=chosen,
        source=place.source or "",
        sku=place.sku or "",
        tags=tuple(tag.strip() for tag in (place.tags or "").split(",") if tag.strip()),
        status=place.status or "",
    )
    page = await entities.find(ctx.db, ctx.actor.org_id, wanted, limit=place.limit, offset=place.offset)
    found = _select_fields(await contract_json.entity_list(ctx, list(page.items)), place.fields)
    return RestAnswer(found, 200, ((b"x-total-count", b"%d" % page.total),))


async def get_entity(ctx: RequestContext, place: s.KeyPath, _: Any) -> Any:
    """One entity, or those in the categories with an alias key."""
    return await contract_json.entity(ctx, place.key)


async def add_entity(ctx: RequestContext, _: Any, given: s.NewEntity) -> Any:
    """Make an entity."""
    made = await ctx.db.write(lambda tx: entities.add(tx, ctx, given))
    return await contract_json.entity_with_links(ctx, made)


async def change_entity(ctx: RequestContext, place: s.KeyPath, given: EntityChanges) -> Any:
    """Change an entity."""
    changed = await ctx.db.write(lambda tx: entities.update(tx, ctx, place.key, given))
    return await contract_json.entity_with_links(ctx, changed)


async def remove_entity(ctx: RequestContext, place: s.KeyPath, _: Any) -> None:
    """Remove an entity."""
    await ctx.db.write(lambda tx: entities.remove(tx, ctx, place.key))


async def list_relations(ctx: RequestContext, place: s.RelationListParameters, _: Any) -> Any:
    """The relations of an entity."""
    entity = await entities.get(ctx.db, ctx, place.id)
    tree = await categories.tree(ctx.db, ctx.actor.org_id)
    found = await relations.of(ctx.db, ctx.actor.org_id, entity.id, place.type)
    return [contract_json.relation(each, tree) for each in found]


async def add_relation(ctx: RequestContext, place: s.IdPath, given: s.NewRelation) -> Any:
    """Relate an entity to another."""
    await ctx.db.write(
        lambda tx: relations.link(tx, ctx, place.id, given.targetEntity, given.type, given.relationDescription)
    )
    return await list_relations(ctx, s.RelationListParameters(id=place.id), None)


async def remove_relation(ctx: RequestContext, place: s.RelationParameters, _: Any) -> None:
    """End a relation."""
    await ctx.db.write(lambda tx: relations.unlink(tx, ctx, place.id, place.target, place.type))


async def list_entity_attachments(ctx: RequestContext, place: s.IdPath, _: Any) -> Any:
    """What is attached to an entity."""
    entity = await entities.get(ctx.db, ctx, place.id)
    found = await attachments.of(ctx.db, ctx.actor.org_id, entity.id)
    return [await contract_json.attachment(ctx, each) for each in found]


# Attachments, namespaces, vocabulary


async def list_attachments(ctx: RequestContext, place: s.AttachmentListParameters, _: Any) -> Any:
    """A page of attachments."""
    found = await attachments.find(ctx.db, ctx.actor.org_id, limit=place.limit, offset=place.offset)
    return [await contract_json.attachment(ctx, each) for each in found]


async def get_attachment(ctx: RequestContext, place: s.IdPath, _: Any) -> Any:
    """One attachment."""
    return await contract_json.attachment(ctx, await attachments.get(ctx.db, ctx, place.id))


async def remove_attachment(ctx: RequestContext, place: s.IdPath, _: Any) -> None:
    """Remove an attachment from everywhere."""
    await ctx.db.write(lambda tx: attachments.remove(tx, ctx, place.id))


async def link_attachment(ctx: RequestContext, _: Any, given: s.LinkAttachment) -> Any:
    """Attach something to an entity, or detach it."""
    found = await ctx.db.write(
        lambda tx: attachments.link(
            tx, ctx, given.entityId, id=given.attachmentId, url=given.attachmentUrl, is_linked=given.action == "link"
        )
    )
    return await contract_json.attachment(ctx, found)


async def list_namespaces(ctx: RequestContext, place: s.NamespaceListParameters, _: Any) -> Any:
    """Namespaces."""
    tree = await categories.tree(ctx.db, ctx.actor.org_id)
    found = [await contract_json.namespace(ctx, each, tree) for each in await namespaces.find(ctx.db, ctx.actor.org_id)]
    return [
        each
        for each in found
        if (place.name is None or each["name"] == place.name)
        and (place.notes is None or place.notes.casefold() in each["notes"].casefold())
        and (place.categoryId is None or place.categoryId in each["categories"])
        and (place.status is None or each["status"] == place.status)
    ]


async def add_namespace(ctx: RequestContext, _: Any, given: s.NewNamespace) -> Any:
    """Make a namespace."""
    made = await ctx.db.write(lambda tx: namespaces.add(tx, ctx, given.name, given.notes, given.categories))
    return await contract_json.namespace(ctx, made, await categories.tree(ctx.db, ctx.actor.org_id))


async def remove_namespace(ctx: RequestContext, place: s.IdPath, _: Any) -> None:
    """Remove a namespace; what it is over stays."""
    await ctx.db.write(lambda tx: namespaces.remove(tx, ctx, place.id))


async def list_aliases(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Category aliases."""
    return await contract_json.terms(ctx, "alias")


async def list_policies(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Policies."""
    return await contract_json.terms(ctx, "policy")


async def list_relation_types(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Kinds of relations."""
    return await contract_json.terms(ctx, "relation")


async def list_attachment_types(ctx: RequestContext, _: Any, __: Any) -> Any:
    """Kinds of attachments."""
    return await contract_json.terms(ctx, "attachment")


async def add_alias(ctx: RequestContext, _: Any, given: s.NewAlias) -> Any:
    """Make a category alias."""
    return await _add_term(ctx, "alias", given.aliasKey, given.name, given.description)


async def add_policy(ctx: RequestContext, _: Any, given: s.NewPolicy) -> Any:
    """Make a policy."""
    details = given.model_dump(include=set(vocabulary.PolicyDetails.model_fields))
    return await _add_term(ctx, "policy", given.policyKey, given.name, given.description, details)


async def add_relation_type(ctx: RequestContext, _: Any, given: s.NewType) -> Any:
    """Make a kind of relation."""
    return await _add_term(ctx, "relation", given.typeKey, given.name, given.description)


async def add_attachment_type(ctx: RequestContext, _: Any, given: s.NewType) -> Any:
    """Make a kind of attachment."""
    return await _add_term(ctx, "attachment", given.typeKey, given.name, given.description)


async def _add_term(
    ctx: RequestContext, kind: str, key: str, name: str, description: str, details: dict[str, Any] | None = None
) -> Any:
    made = await ctx.db.write(lambda tx: vocabulary.add(tx, ctx, kind, key, name, description, details))
    return contract_json.term(made)


# Searching and seeding


async def retrieve(ctx: RequestContext, _: Any, given: NamespaceQuery) -> Any:
    """What of a namespace answers a question best."""
    if "search:read" not in ctx.actor.scopes:
        raise InsufficientScope("Your token lacks the scope search:read.")
    found = await namespace_search.retrieve(ctx, ctx.app.search, given)
    return [{"id": each.id, "score": each.score, "values": [], "metadata": each.metadata} for each in found]


async def import_catalogue(ctx: RequestContext, place: s.ImportParameters, given: s.CatalogueBody) -> Any:
    """Fill the catalogue from a seed."""
    if given.tenantId not in (None, ctx.actor.org_id):
        raise _other_tenant("Leave tenantId out.")
    raw = orjson.dumps(given.model_dump(exclude_none=True))
    read = await asyncio.to_thread(catalogue_file.parse, raw, "json")
    report = await CatalogueImport(ctx, read, dry=place.dryRun).run()
    counts: dict[str, dict[str, int]] = {}
    for (what, action), number in sorted(report.counts.items()):
        counts.setdefault(what, {})[action] = number
    changes = [
        {"action": each.action, "what": each.what, "name": each.name, "fields": list(each.fields)}
        for each in report.changes
    ]
    return {"dryRun": place.dryRun, "counts": counts, "changes": changes}


async def clear(ctx: RequestContext, place: s.IdPath, _: Any) -> None:
    """Remove all of a catalogue."""
    if place.id != ctx.actor.org_id:
        raise _other_tenant("Name the tenant that it is a key of.")
    await access.remove_all(ctx)


def _other_tenant(remedy: str) -> Forbidden:
    return Forbidden("This key cannot change another tenant's catalogue.", remedy=remedy)


def _select_fields(found: Sequence[dict[str, Any]], fields: str | None) -> list[dict[str, Any]]:
    """What was found with only these fields, and its id, which everything has."""
    if fields is None:
        return list(found)
    kept = {"_id", *(name.strip() for name in fields.split(","))}
    return [{name: value for name, value in each.items() if name in kept} for each in found]
