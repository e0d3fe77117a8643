"""The operations of the catalogue. REST has them under /knowledge-base, in the form of the gateway's contract."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, cast

from pydantic import Field

from almanac.catalogue import contract_json, entities
from almanac.catalogue.entities import EntityChanges, EntityDraft, Metadata, Status, Tags
from almanac.core.arguments import Arguments
from almanac.core.errors import BadRequest
from almanac.operations import namespace_search
from almanac.operations.context import RequestContext
from almanac.operations.operation import SAVES, Mcp, operation

# The gateway's contract: a key needs REQUIRED_SCOPE; the service key of a gateway acts with GATEWAY_SCOPES.
REQUIRED_SCOPE = "catalogue:read"
GATEWAY_SCOPES = frozenset({"catalogue:read", "search:read"})

_READ = frozenset({"catalogue:read"})
_WRITE = frozenset({"catalogue:write"})
_CAPITAL = re.compile("([A-Z])")


class FindEntities(Arguments):
    query: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4000,
            description='A need in words; entities within bounds such as "under 2000 PSI" come first.',
        ),
    ]
    category: Annotated[
        str | None, Field(description="Only in and below this: id, alias key or path, from browse_categories.")
    ] = None
    namespace: Annotated[str | None, Field(description="Name of a set of categories; only in them.")] = None
    metadata: Annotated[
        dict[str, Any] | None, Field(description='Filter: {"psi": {"$lt": 2000}, "status": "active"}.')
    ] = None
    limit: Annotated[int, Field(ge=1, le=50, description="Entities to return.")] = 10


class GetEntity(Arguments):
    key: Annotated[str, Field(min_length=1, max_length=2000, description="Id from find_entities, exact name, or SKU.")]


class BrowseCategories(Arguments):
    category: Annotated[str | None, Field(description="Id, alias key or path such as Tools/Washers. Default: all.")] = (
        None
    )


class SaveEntity(Arguments):
    id: Annotated[str | None, Field(description="Of the entity to change. Default: add one.")] = None
    name: Annotated[str | None, Field(max_length=500, description="Needed for a new one.")] = None
    category: Annotated[
        str | None, Field(description="Id, alias key or path of an existing category; needed for a new one.")
    ] = None
    description: Annotated[str | None, Field(description="A few sentences.")] = None
    details: Annotated[str | None, Field(description="The whole text, in Markdown or HTML.")] = None
    source: Annotated[str | None, Field(description="Where the data comes from.")] = None
    sku: Annotated[str | None, Field(description="Article number.")] = None
    status: Annotated[Status | None, Field(description="Default of a new one: active.")] = None
    tags: Annotated[Tags | None, Field(description="Replace all tags.")] = None
    metadata: Annotated[Metadata | None, Field(description="Names and values that find_entities filters by.")] = None


@dataclass(slots=True)
class FoundEntities:
    """The answer of `find_entities`."""

    entities: Annotated[list[dict[str, Any]], Field(description="id, name, category, score, sku, text, metadata.")]
    notes: list[str]


@dataclass(slots=True)
class OneEntity:
    """The answer of `get_entity` and `save_entity`."""

    entity: dict[str, Any]


@dataclass(slots=True)
class CategoryTrees:
    """The answer of `browse_categories`."""

    categories: list[dict[str, Any]]


async def find_entities(ctx: RequestContext, args: FindEntities) -> FoundEntities:
    """Find things of the catalogue (products, people, services) by meaning, words and metadata."""
    found, notes = await namespace_search.find(
        ctx,
        ctx.app.search,
        args.query,
        namespace=args.namespace,
        category=args.category,
        metadata=args.metadata,
        limit=args.limit,
    )
    for entity, _ in found:
        ctx.record_access("entity", entity.id)
    return FoundEntities(
        [
            {
                "id": entity.id,
                "name": entity.name,
                "category": entity.category_name,
                "score": each.score,
                "sku": entity.sku,
                "text": each.text,
                "metadata": entity.metadata,
            }
            for entity, each in found
        ],
        list(notes),
    )


async def get_entity(ctx: RequestContext, args: GetEntity) -> OneEntity:
    """One thing of the catalogue: details, relations, attachments."""
    entity = await entities.get(ctx.db, ctx, args.key, ("name", "sku"))
    return OneEntity(_snake_case(await contract_json.entity_with_links(ctx, entity)))


async def browse_categories(ctx: RequestContext, args: BrowseCategories) -> CategoryTrees:
    """The tree of categories, or one category with what is in it."""
    found = await contract_json.structure(ctx, args.category)
    return CategoryTrees(_snake_case(found if isinstance(found, list) else [found]))


async def save_entity(ctx: RequestContext, args: SaveEntity) -> OneEntity:
    """Add a thing to the catalogue, or change given fields."""
    fields = args.model_dump(exclude_none=True, exclude={"id"})
    if args.id is None:
        if args.name is None or args.category is None:
            raise BadRequest("A new entity needs a name and a category.", remedy="Or give the id of one to change.")
        saved = await entities.store(ctx, EntityDraft.model_validate(fields))
    else:
        saved = await entities.change(ctx, args.id, EntityChanges.model_validate(fields))
    return OneEntity(_snake_case(await contract_json.entity_with_links(ctx, saved)))


def _snake_case(value: Any) -> Any:
    """An answer in the gateway's spelling, with the field names of our own surface. Metadata stays as it is stored."""
    if isinstance(value, list):
        return [_snake_case(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        _CAPITAL.sub(r"_\1", name).lower().lstrip("_"): member if name == "metadata" else _snake_case(member)
        for name, member in cast("dict[str, Any]", value).items()
    }


OPERATIONS = (
    operation(find_entities, title="Find entities", scopes=_READ | {"search:read"}, mcp=Mcp()),
    operation(get_entity, title="Get an entity", scopes=_READ, mcp=Mcp()),
    operation(browse_categories, title="Browse the catalogue", scopes=_READ, mcp=Mcp()),
    operation(save_entity, title="Save an entity", scopes=_WRITE, safety=SAVES, mcp=Mcp()),
)
