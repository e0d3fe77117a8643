"""The shapes of the catalogue's REST endpoints: what they take, and what they answer, in the contract's own words."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel
from typing_extensions import TypedDict

from almanac.catalogue import vocabulary
from almanac.catalogue.entities import EntityDraft
from almanac.core.arguments import Arguments
from almanac.web.rest import UrlParameters

MAX_PAGE_ITEMS = 500

Limit = Annotated[int, Field(ge=1, le=MAX_PAGE_ITEMS)]
Offset = Annotated[int, Field(ge=0, le=2**53)]
Key = Annotated[str, Field(min_length=1, max_length=2000)]
Fields = Annotated[str, Field(max_length=2000, description="Only these fields, comma-separated.")]
JsonObject = dict[str, Any]


class KeyPath(UrlParameters):
    """Something by its id, or by what else it is called."""

    key: Key


class IdPath(UrlParameters):
    """Something by its id."""

    id: Annotated[str, Field(min_length=1, max_length=100)]


class CategoryPath(KeyPath):
    """A category."""

    recursive: Annotated[bool, Field(description="Also all below it, with their entities.")] = False


class CategoryListParameters(UrlParameters):
    """Which categories."""

    extended: Annotated[bool, Field(description="Aliases and policies as a whole; entities by name.")] = False
    fields: Fields | None = None
    search: Annotated[str, Field(max_length=500, description="Part of the name or description.")] | None = None
    parent: Annotated[str, Field(max_length=2000, description="What is below this one; null: the top.")] | None = None
    policy: Annotated[str, Field(max_length=100, description="Key or id.")] | None = None
    categoryAlias: Annotated[str, Field(max_length=100, description="Key or id.")] | None = None


class EntityListParameters(UrlParameters):
    """Which entities."""

    recursive: Annotated[bool, Field(description="Also those below the categories.")] = False
    fields: Fields | None = None
    search: (
        Annotated[str, Field(max_length=500, description="Part of name, description or details, in any case.")] | None
    ) = None
    source: Annotated[str, Field(max_length=2000)] | None = None
    sku: Annotated[str, Field(max_length=200)] | None = None
    status: Literal["draft", "active", "archived"] | None = None
    tags: Annotated[str, Field(max_length=5000, description="Comma-separated; any of them.")] | None = None
    categoryId: Annotated[str, Field(max_length=20_000, description="Comma-separated.")] | None = None
    limit: Limit = 100
    offset: Offset = 0


class AttachmentListParameters(UrlParameters):
    """A page of them."""

    limit: Limit = 100
    offset: Offset = 0


class NamespaceListParameters(UrlParameters):
    """Which namespaces."""

    notes: Annotated[str, Field(max_length=500, description="Part of the notes.")] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None
    categoryId: Annotated[str, Field(max_length=100)] | None = None
    status: Literal["initial", "vectorised", "fail"] | None = None


class RelationListParameters(IdPath):
    """The relations of an entity."""

    type: Annotated[str, Field(max_length=100, description="Key of a relationship type.")] | None = None


class RelationParameters(IdPath):
    """One relation of an entity."""

    target: Annotated[str, Field(min_length=1, max_length=100)]
    type: Annotated[str, Field(min_length=1, max_length=100)]


class ImportParameters(UrlParameters):
    """Whether to write."""

    dryRun: Annotated[bool, Field(description="Only say what would change.")] = False


class NewEntity(EntityDraft):
    """An entity to be made."""


class NewCategory(Arguments):
    """A category to be made."""

    name: vocabulary.Name
    description: vocabulary.Text
    categoryAlias: Annotated[str, Field(min_length=1, max_length=100, description="Key or id.")]
    policy: Annotated[str, Field(min_length=1, max_length=100, description="Key or id.")]
    parent: Annotated[str | None, Field(max_length=2000, description="Id, alias key or path; null: the top.")] = None


class CategoryChanges(Arguments):
    """What is to be different about a category."""

    name: vocabulary.Name | None = None
    description: vocabulary.Text | None = None
    categoryAlias: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    policy: Annotated[str | None, Field(min_length=1, max_length=100)] = None
    parent: Annotated[str | None, Field(max_length=2000, description='"null" moves it to the top.')] = None


class NewAlias(Arguments):
    """A category alias to be made."""

    name: vocabulary.Name
    aliasKey: vocabulary.Key
    description: vocabulary.Text = ""


class NewType(Arguments):
    """A kind of relation or attachment to be made."""

    name: vocabulary.Name
    typeKey: vocabulary.Key
    description: vocabulary.Text = ""


class NewPolicy(vocabulary.PolicyDetails):
    """A policy to be made."""

    name: vocabulary.Name
    policyKey: vocabulary.Key
    description: vocabulary.Text = ""


class NewNamespace(Arguments):
    """A namespace to be made."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    notes: vocabulary.Text = ""
    categories: Annotated[
        list[str], Field(default_factory=list[str], description="Ids, alias keys or paths; none: all there are.")
    ]


class NewRelation(Arguments):
    """A relation to be made."""

    targetEntity: Annotated[str, Field(min_length=1, max_length=100)]
    type: vocabulary.Key
    relationDescription: vocabulary.Text = ""


class LinkAttachment(Arguments):
    """What to attach, or to detach."""

    entityId: Annotated[str, Field(min_length=1, max_length=100)]
    attachmentId: Annotated[str | None, Field(max_length=100)] = None
    attachmentUrl: Annotated[str | None, Field(max_length=2000)] = None
    action: Literal["link", "unlink"] = "link"


class VerifyKey(Arguments):
    """A key, and what it is to be good for."""

    key: Annotated[str, Field(max_length=500)]
    scope: Literal["knowledge-base"] = "knowledge-base"


class CatalogueBody(Arguments):
    """A whole catalogue; see the how-to for its parts."""

    tenantId: str | None = None
    categoryAliases: list[JsonObject] | None = None
    policies: list[JsonObject] | None = None
    relationshipTypes: list[JsonObject] | None = None
    attachmentTypes: list[JsonObject] | None = None
    categories: list[JsonObject] | None = None
    indexes: list[JsonObject] | None = None
    entities: list[JsonObject] | None = None


class EntityReference(TypedDict):
    _id: str
    name: str


class CategoryReference(TypedDict):
    _id: str
    name: str
    aliasKey: str | None


class AttachmentReference(TypedDict):
    id: str
    type: str | None
    url: str
    name: str


class RelationInfo(TypedDict):
    sourceEntity: EntityReference
    targetEntity: EntityReference
    categoryPath: list[str]
    type: str
    relationDescription: str


class EntityInfo(TypedDict, total=False):
    _id: str
    name: str
    description: str
    details: str
    source: str
    sku: str
    status: Literal["draft", "active", "archived"]
    category: CategoryReference
    isVectorized: bool
    tags: list[str]
    metadata: JsonObject
    attachments: list[AttachmentReference]
    relations: list[RelationInfo]
    createdAt: str
    updatedAt: str


class CategoryInfo(TypedDict, total=False):
    _id: str
    name: str
    description: str
    categoryAlias: JsonObject | str | None
    policy: JsonObject | str | None
    parent: str | None
    children: list[JsonObject]
    entities: list[EntityReference]
    entityCount: int
    permissions: dict[str, bool]
    createdAt: str
    updatedAt: str


class TermInfo(TypedDict, total=False):
    _id: str
    name: str
    description: str
    aliasKey: str
    typeKey: str
    policyKey: str
    inputType: str | None
    processingPromptTemplate: str
    outputFormat: str | None
    createdAt: str
    updatedAt: str


class AttachmentInfo(TypedDict):
    _id: str
    name: str
    url: str
    description: str
    annotations: JsonObject
    type: str | None
    contentType: str | None
    size: int | None
    entities: list[str]
    createdAt: str
    updatedAt: str


class NamespaceInfo(TypedDict):
    _id: str
    name: str
    notes: str
    status: Literal["initial", "vectorised", "fail"]
    categories: list[str]
    createdAt: str
    updatedAt: str


class EntityAnswer(RootModel[EntityInfo]):
    """An entity."""


class EntityOrList(RootModel[EntityInfo | list[EntityInfo]]):
    """The entity with this id or exact name; for the alias key of a category, a list of what is in it."""


class EntityList(RootModel[list[EntityInfo]]):
    """Entities, oldest first; the header X-Total-Count says how many there are in all."""


class CategoryAnswer(RootModel[CategoryInfo]):
    """A category."""


class CategoryOrList(RootModel[CategoryInfo | list[CategoryInfo]]):
    """The category with this id; for an alias key, a list of those that have it."""


class CategoryList(RootModel[list[CategoryInfo]]):
    """Categories, each with those below it."""


class TermAnswer(RootModel[TermInfo]):
    """A word of the vocabulary."""


class TermList(RootModel[list[TermInfo]]):
    """Words of the vocabulary, by their keys."""


class AttachmentAnswer(RootModel[AttachmentInfo]):
    """An attachment."""


class AddedAttachment(BaseModel):
    """The attachment that was made."""

    success: bool
    attachment: AttachmentInfo


class AttachmentList(RootModel[list[AttachmentInfo]]):
    """Attachments, oldest first."""


class NamespaceAnswer(RootModel[NamespaceInfo]):
    """A namespace."""


class NamespaceList(RootModel[list[NamespaceInfo]]):
    """Namespaces, by name."""


class RelationList(RootModel[list[RelationInfo]]):
    """The relations of an entity, from it and to it."""


class MatchInfo(BaseModel):
    """Something that answers."""

    id: str
    score: Annotated[float, Field(description="How likely it answers, 0 to 1; a cautious guess.")]
    values: Annotated[list[float], Field(description="Always empty: vectors stay here.")]
    metadata: JsonObject


class MatchList(RootModel[list[MatchInfo]]):
    """What answers best, the best first."""


class KeyInfo(BaseModel):
    """Whose a key is."""

    valid: bool
    tenantId: str
    name: str
    scopes: list[str]
    expiresAt: str | None


class ImportReport(BaseModel):
    """What a seed changed, or would change."""

    dryRun: bool
    counts: Annotated[
        dict[str, dict[str, int]],
        Field(description="Of each kind of thing, relations and attachments too: add, change, same."),
    ]
    changes: Annotated[list[JsonObject], Field(description="The first 200 of them.")]
