"""The REST endpoints of the catalogue: from the contract to verbs, and back."""

import asyncio
import hmac
from collections.abc import Sequence
from typing import Any

import orjson

from almanac.assist import retrieval
from almanac.assist.retrieval import NamespaceQuery
from almanac.catalogue import (
    attachments,
    catalogue_file,
    categories,
    clearing,
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
from almanac.core.errors import BadRequest, Forbidden, InsufficientScope, NotFound, Unauthorized
from almanac.identity import orgs
from almanac.net.http_exchange import HttpExchange
from almanac.web.catalogue import models as s
from almanac.web.rest import Admission, Ask, Rest, RestAnswer

READS = frozenset({"catalogue:read", "search:read"})
NEEDED = "catalogue:read"


class MissingKey(Unauthorized):
    """Missing API key"""

    remedy = ""


class InvalidKey(Unauthorized):
    """Invalid API key"""

    remedy = ""


async def by_key(rest: Rest, exchange: HttpExchange) -> Admission:
    """Whoever's key came with the request: x-api-key, x-access-key or Bearer, the first that is not empty. A gateway in
    front of this server shows its own key, and names the organisation it asks for."""
    headers = exchange.headers
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    bearer = token.strip() if scheme.lower() == b"bearer" else b""
    key = headers.get(b"x-api-key") or headers.get(b"x-access-key") or bearer
    if not key:
        raise MissingKey()
    service = rest.settings.gateway_service_key.encode()
    if service and hmac.compare_digest(key, service):
        return Admission(await _tenant(rest, headers.get(b"x-tenant-id", b"").decode("latin-1")))
    actor = await rest.keyring.resolve(key.decode("latin-1"))
    if actor is None:
        raise InvalidKey()
    return Admission(actor)


async def by_body(rest: Rest, exchange: HttpExchange) -> Admission:
    """Whoever's key is in the body, which is what is asked about."""
    try:
        given: Any = orjson.loads(await exchange.read_body(10_000) or b"{}")
        asked = s.VerifyKey.model_validate(given)
    except ValueError:
        raise BadRequest('Send {"key": "…", "scope": "knowledge-base"}.') from None
    if not asked.key.strip():
        raise MissingKey()
    actor = await rest.keyring.resolve(asked.key.strip())
    if actor is None or NEEDED not in actor.scopes:
        raise InvalidKey()
    return Admission(actor)


async def _tenant(rest: Rest, org_id: str) -> Actor:
    org = await orgs.get_or_none(rest.db, org_id) if org_id else None
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
        scopes=READS,
    )


async def verify_key(ask: Ask, _: Any, __: Any) -> dict[str, Any]:
    """Whose key it is: what let the request in."""
    actor = ask.actor
    return {
        "valid": True,
        "tenantId": actor.org_id,
        "name": actor.name,
        "scopes": sorted(actor.scopes),
        "expiresAt": clock.format_timestamp(actor.expires_at),
    }


# Categories


async def list_categories(ask: Ask, place: s.FindCategories, _: Any) -> list[dict[str, Any]]:
    """Categories, each with all below it."""
    org_id = ask.actor.org_id
    tree = await categories.tree(ask.db, org_id)
    found = tree.children(categories.TOP)
    if place.parent not in (None, "null"):
        found = tree.children(tree.pick(place.parent or "").number)
    if place.search is not None or place.policy is not None or place.categoryAlias is not None:
        below = tree.descend(each.number for each in found)
        found = [each for number in below if _is_wanted(each := tree.by_number[number], place)]
    terms = None
    if place.extended:
        words = [await vocabulary.find(ask.db, org_id, kind) for kind in ("alias", "policy")]
        terms = {term.id: term for listed in words for term in listed}
    view = contract_json.CategoryRenderer(tree, await categories.counts(ask.db, org_id), terms)
    nodes = [await view.whole(ask, each, True) if place.extended else view.node(each) for each in found]
    return _only(nodes, place.fields)


async def get_category(ask: Ask, place: s.AtCategory, _: Any) -> Any:
    """One category, or those that share an alias key."""
    tree = await categories.tree(ask.db, ask.actor.org_id)
    return await contract_json.category(ask, tree, place.key, recursive=place.recursive)


async def add_category(ask: Ask, _: Any, given: s.NewCategory) -> Any:
    """Make a category."""
    made = await ask.db.write(
        lambda tx: categories.add(
            tx, ask, given.name, description=given.description, alias=given.categoryAlias, policy=given.policy,
            parent=given.parent,
        )
    )  # fmt: skip
    return await _category(ask, made.id)


async def change_category(ask: Ask, place: s.AtKey, given: s.CategoryChanges) -> Any:
    """Change a category."""
    wanted = given.model_dump(exclude_none=True)
    if not wanted:
        raise BadRequest("There is nothing to change.", remedy="Send at least one field.")
    if "categoryAlias" in wanted:
        wanted["alias"] = wanted.pop("categoryAlias")
    changed = await ask.db.write(lambda tx: categories.update(tx, ask, place.key, **wanted))
    return await _category(ask, changed.id)


async def remove_category(ask: Ask, place: s.AtKey, _: Any) -> None:
    """Remove a category that nothing is in."""
    await ask.db.write(lambda tx: categories.remove(tx, ask, place.key))


async def _category(ask: Ask, id: str) -> Any:
    return await contract_json.category(ask, await categories.tree(ask.db, ask.actor.org_id), id)


def _is_wanted(category: categories.Category, place: s.FindCategories) -> bool:
    text = f"{category.name}\n{category.description}".casefold()
    return (
        (place.search is None or place.search.casefold() in text)
        and (place.policy is None or place.policy in (category.policy_key, category.policy_id))
        and (place.categoryAlias is None or place.categoryAlias in (category.alias_key, category.alias_id))
    )


# Entities


async def list_entities(ask: Ask, place: s.FindEntities, _: Any) -> RestAnswer:
    """A page of entities."""
    chosen: tuple[int, ...] = ()
    if place.categoryId is not None:
        tree = await categories.tree(ask.db, ask.actor.org_id)
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
    page = await entities.find(ask.db, ask.actor.org_id, wanted, limit=place.limit, offset=place.offset)
    found = _only(await contract_json.entity_list(ask, list(page.items)), place.fields)
    return RestAnswer(found, 200, ((b"x-total-count", b"%d" % page.total),))


async def get_entity(ask: Ask, place: s.AtKey, _: Any) -> Any:
    """One entity, or those in the categories with an alias key."""
    return await contract_json.entity(ask, place.key)


async def add_entity(ask: Ask, _: Any, given: s.NewEntity) -> Any:
    """Make an entity."""
    made = await ask.db.write(lambda tx: entities.add(tx, ask, given))
    return await contract_json.entity_with_links(ask, made)


async def change_entity(ask: Ask, place: s.AtKey, given: EntityChanges) -> Any:
    """Change an entity."""
    changed = await ask.db.write(lambda tx: entities.update(tx, ask, place.key, given))
    return await contract_json.entity_with_links(ask, changed)


async def remove_entity(ask: Ask, place: s.AtKey, _: Any) -> None:
    """Remove an entity."""
    await ask.db.write(lambda tx: entities.remove(tx, ask, place.key))


async def list_relations(ask: Ask, place: s.AtRelations, _: Any) -> Any:
    """The relations of an entity."""
    entity = await entities.get(ask.db, ask, place.id)
    tree = await categories.tree(ask.db, ask.actor.org_id)
    found = await relations.of(ask.db, ask.actor.org_id, entity.id, place.type)
    return [contract_json.relation(each, tree) for each in found]


async def add_relation(ask: Ask, place: s.AtId, given: s.NewRelation) -> Any:
    """Relate an entity to another."""
    await ask.db.write(
        lambda tx: relations.link(tx, ask, place.id, given.targetEntity, given.type, given.relationDescription)
    )
    return await list_relations(ask, s.AtRelations(id=place.id), None)


async def remove_relation(ask: Ask, place: s.AtRelation, _: Any) -> None:
    """End a relation."""
    await ask.db.write(lambda tx: relations.unlink(tx, ask, place.id, place.target, place.type))


async def list_attached(ask: Ask, place: s.AtId, _: Any) -> Any:
    """What is attached to an entity."""
    entity = await entities.get(ask.db, ask, place.id)
    found = await attachments.of(ask.db, ask.actor.org_id, entity.id)
    return [await contract_json.attachment(ask, each) for each in found]


# Attachments, namespaces, vocabulary


async def list_attachments(ask: Ask, place: s.FindAttachments, _: Any) -> Any:
    """A page of attachments."""
    found = await attachments.find(ask.db, ask.actor.org_id, limit=place.limit, offset=place.offset)
    return [await contract_json.attachment(ask, each) for each in found]


async def get_attachment(ask: Ask, place: s.AtId, _: Any) -> Any:
    """One attachment."""
    return await contract_json.attachment(ask, await attachments.get(ask.db, ask, place.id))


async def remove_attachment(ask: Ask, place: s.AtId, _: Any) -> None:
    """Remove an attachment from everywhere."""
    await ask.db.write(lambda tx: attachments.remove(tx, ask, place.id))


async def link_attachment(ask: Ask, _: Any, given: s.Link) -> Any:
    """Attach something to an entity, or detach it."""
    found = await ask.db.write(
        lambda tx: attachments.link(
            tx, ask, given.entityId, id=given.attachmentId, url=given.attachmentUrl, is_linked=given.action == "link"
        )
    )
    return await contract_json.attachment(ask, found)


async def list_indexes(ask: Ask, place: s.FindIndexes, _: Any) -> Any:
    """Namespaces."""
    tree = await categories.tree(ask.db, ask.actor.org_id)
    found = [await contract_json.namespace(ask, each, tree) for each in await namespaces.find(ask.db, ask.actor.org_id)]
    return [
        each
        for each in found
        if (place.name is None or each["name"] == place.name)
        and (place.notes is None or place.notes.casefold() in each["notes"].casefold())
        and (place.categoryId is None or place.categoryId in each["categories"])
        and (place.status is None or each["status"] == place.status)
    ]


async def add_index(ask: Ask, _: Any, given: s.NewIndex) -> Any:
    """Make a namespace."""
    made = await ask.db.write(lambda tx: namespaces.add(tx, ask, given.name, given.notes, given.categories))
    return await contract_json.namespace(ask, made, await categories.tree(ask.db, ask.actor.org_id))


async def remove_index(ask: Ask, place: s.AtId, _: Any) -> None:
    """Remove a namespace; what it is over stays."""
    await ask.db.write(lambda tx: namespaces.remove(tx, ask, place.id))


async def list_aliases(ask: Ask, _: Any, __: Any) -> Any:
    """Category aliases."""
    return await contract_json.terms(ask, "alias")


async def list_policies(ask: Ask, _: Any, __: Any) -> Any:
    """Policies."""
    return await contract_json.terms(ask, "policy")


async def list_relation_types(ask: Ask, _: Any, __: Any) -> Any:
    """Kinds of relations."""
    return await contract_json.terms(ask, "relation")


async def list_attachment_types(ask: Ask, _: Any, __: Any) -> Any:
    """Kinds of attachments."""
    return await contract_json.terms(ask, "attachment")


async def add_alias(ask: Ask, _: Any, given: s.NewAlias) -> Any:
    """Make a category alias."""
    return await _add_term(ask, "alias", given.aliasKey, given.name, given.description)


async def add_policy(ask: Ask, _: Any, given: s.NewPolicy) -> Any:
    """Make a policy."""
    details = given.model_dump(include=set(vocabulary.PolicyDetails.model_fields))
    return await _add_term(ask, "policy", given.policyKey, given.name, given.description, details)


async def add_relation_type(ask: Ask, _: Any, given: s.NewType) -> Any:
    """Make a kind of relation."""
    return await _add_term(ask, "relation", given.typeKey, given.name, given.description)


async def add_attachment_type(ask: Ask, _: Any, given: s.NewType) -> Any:
    """Make a kind of attachment."""
    return await _add_term(ask, "attachment", given.typeKey, given.name, given.description)


async def _add_term(
    ask: Ask, kind: str, key: str, name: str, description: str, details: dict[str, Any] | None = None
) -> Any:
    made = await ask.db.write(lambda tx: vocabulary.add(tx, ask, kind, key, name, description, details))
    return contract_json.term(made)


# Searching and seeding


async def retrieve(ask: Ask, _: Any, given: NamespaceQuery) -> Any:
    """What of a namespace answers a question best."""
    if "search:read" not in ask.actor.scopes:
        raise InsufficientScope("Your token lacks the scope search:read.")
    found = await retrieval.retrieve(ask, ask.rest.search, given)
    return [{"id": each.id, "score": each.score, "values": [], "metadata": each.metadata} for each in found]


async def import_catalogue(ask: Ask, place: s.DryRun, given: s.SeedBody) -> Any:
    """Fill the catalogue from a seed."""
    if given.tenantId not in (None, ask.actor.org_id):
        raise _foreign("Leave tenantId out.")
    raw = orjson.dumps(given.model_dump(exclude_none=True))
    read = await asyncio.to_thread(catalogue_file.parse, raw, "json")
    report = await CatalogueImport(ask, read, dry=place.dryRun).run()
    counts: dict[str, dict[str, int]] = {}
    for (what, action), number in sorted(report.counts.items()):
        counts.setdefault(what, {})[action] = number
    changes = [
        {"action": each.action, "what": each.what, "name": each.name, "fields": list(each.fields)}
        for each in report.changes
    ]
    return {"dryRun": place.dryRun, "counts": counts, "changes": changes}


async def clear(ask: Ask, place: s.AtId, _: Any) -> None:
    """Remove all of a catalogue."""
    if place.id != ask.actor.org_id:
        raise _foreign("Name the tenant that it is a key of.")
    await clearing.clear(ask)


def _foreign(remedy: str) -> Forbidden:
    return Forbidden("This key cannot change another tenant's catalogue.", remedy=remedy)


def _only(found: Sequence[dict[str, Any]], fields: str | None) -> list[dict[str, Any]]:
    """What was found with only these fields, and its id, which everything has."""
    if fields is None:
        return list(found)
    kept = {"_id", *(name.strip() for name in fields.split(","))}
    return [{name: value for name, value in each.items() if name in kept} for each in found]
