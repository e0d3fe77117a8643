"""The tools of our own surface for the catalogue."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from almanac.assist import retrieval
from almanac.catalogue import contract_json, entities
from almanac.catalogue.entities import EntityChanges, EntityDraft, Metadata, Status, Tags
from almanac.core.errors import BadRequest
from almanac.surfaces.tool import READS, Arguments, Tool, ToolCall

_READ = frozenset({"catalogue:read"})
_WRITE = frozenset({"catalogue:write"})
_CHANGES = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}


class FindEntities(Arguments):
    """Arguments of `find_entities`."""

    query: Annotated[str, Field(min_length=1, max_length=4000)]
    category: Annotated[str | None, Field(description="Id, alias key or path; all below counts.")] = None
    namespace: str | None = None
    metadata: Annotated[
        dict[str, Any] | None, Field(description='Filter: {"psi": {"$lt": 2000}, "status": "active"}.')
    ] = None
    limit: Annotated[int, Field(ge=1, le=50)] = 10


class GetEntity(Arguments):
    """Arguments of `get_entity`."""

    key: Annotated[str, Field(min_length=1, max_length=2000, description="Id or exact name.")]


class BrowseCategories(Arguments):
    """Arguments of `browse_categories`."""

    category: Annotated[str | None, Field(description="Id, alias key or path; otherwise the whole tree.")] = None


class SaveEntity(Arguments):
    """Arguments of `save_entity`."""

    id: Annotated[str | None, Field(description="To change one; otherwise one is made.")] = None
    name: Annotated[str | None, Field(max_length=500)] = None
    category: str | None = None
    description: str | None = None
    details: str | None = None
    source: str | None = None
    sku: str | None = None
    status: Status | None = None
    tags: Tags | None = None
    metadata: Metadata | None = None


@dataclass(slots=True)
class FoundEntities:
    """The answer of `find_entities`."""

    entities: Annotated[list[dict[str, Any]], Field(description="id, name, category, score, sku, text, metadata.")]


@dataclass(slots=True)
class OneEntity:
    """The answer of `get_entity` and `save_entity`."""

    entity: dict[str, Any]


@dataclass(slots=True)
class Categories:
    """The answer of `browse_categories`."""

    categories: list[dict[str, Any]]


async def find_entities(call: ToolCall, given: FindEntities) -> FoundEntities:
    """The entities that answer best."""
    found = await retrieval.find(
        call,
        call.house.search,
        given.query,
        namespace=given.namespace,
        category=given.category,
        metadata=given.metadata,
        limit=given.limit,
    )
    for entity, _ in found:
        call.record_access("entity", entity.id)
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
        ]
    )


async def get_entity(call: ToolCall, given: GetEntity) -> OneEntity:
    """One entity with all it has."""
    return OneEntity(await contract_json.entity_with_links(call, await entities.get(call.db, call, given.key)))


async def browse_categories(call: ToolCall, given: BrowseCategories) -> Categories:
    """The tree, or what is in one category."""
    found = await contract_json.structure(call, given.category)
    return Categories(found if isinstance(found, list) else [found])


async def save_entity(call: ToolCall, given: SaveEntity) -> OneEntity:
    """Make an entity, or change one."""
    fields = given.model_dump(exclude_none=True, exclude={"id"})
    if given.id is None:
        if given.name is None or given.category is None:
            raise BadRequest("A new entity needs a name and a category.", remedy="Or give the id of one to change.")
        draft = EntityDraft.model_validate(fields)
        saved = await call.db.write(lambda tx: entities.add(tx, call, draft))
    else:
        id, changes = given.id, EntityChanges.model_validate(fields)
        saved = await call.db.write(lambda tx: entities.update(tx, call, id, changes))
    return OneEntity(await contract_json.entity_with_links(call, saved))


TOOLS = (
    Tool(
        name="find_entities",
        title="Find entities",
        description="Find things of the catalogue (products, people, services) by meaning, words and metadata.",
        run=find_entities,
        arguments=FindEntities,
        output=FoundEntities,
        scopes=_READ | {"search:read"},
        annotations=READS,
    ),
    Tool(
        name="get_entity",
        title="Get an entity",
        description="All that the catalogue has of one thing: details, relations, attachments.",
        run=get_entity,
        arguments=GetEntity,
        output=OneEntity,
        scopes=_READ,
        annotations=READS,
    ),
    Tool(
        name="browse_categories",
        title="Browse the catalogue",
        description="The tree of categories, or one category with what is in it.",
        run=browse_categories,
        arguments=BrowseCategories,
        output=Categories,
        scopes=_READ,
        annotations=READS,
    ),
    Tool(
        name="save_entity",
        title="Save an entity",
        description="Add a thing to the catalogue, or change what is given of one.",
        run=save_entity,
        arguments=SaveEntity,
        output=OneEntity,
        scopes=_WRITE,
        annotations=_CHANGES,
    ),
)
