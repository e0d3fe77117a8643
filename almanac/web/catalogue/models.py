"""The models of the catalogue's REST operations: parameters, bodies and answers, with the names of the contract."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel
from typing_extensions import TypedDict

from almanac.catalogue import attachments, vocabulary
from almanac.catalogue.entities import EntityDraft
from almanac.core.arguments import Arguments
from almanac.web.rest import UrlParameters

MAX_PAGE_ITEMS = 500

Limit = Annotated[int, Field(ge=1, le=MAX_PAGE_ITEMS, description="Items on a page.")]
Offset = Annotated[int, Field(ge=0, le=2**53, description="Items to skip.")]
Key = Annotated[str, Field(min_length=1, max_length=2000, description="Its id or another key, as the summary says.")]
Fields = Annotated[str, Field(max_length=2000, description="Return only these fields, comma-separated.")]
JsonObject = dict[str, Any]


class KeyPath(UrlParameters):
    """The path of an object: its id or another key."""

    key: Key


class IdPath(UrlParameters):
    """The path of an object: its id."""

    id: Annotated[str, Field(min_length=1, max_length=100, description="Its id, as lists return it.")]


class CategoryPath(KeyPath):
    """The path of a category."""

    recursive: Annotated[bool, Field(description="Include all descendants with their entities.")] = False


class CategoryListParameters(UrlParameters):
    """The filter of a category list."""

    extended: Annotated[bool, Field(description="Aliases and policies as objects; entities with names.")] = False
    fields: Fields | None = None
    search: Annotated[str, Field(max_length=500, description="Part of the name or description.")] | None = None
    parent: Annotated[str, Field(max_length=2000, description="Children of this category; null: the top.")] | None = (
        None
    )
    policy: Annotated[str, Field(max_length=100, description="Key or id.")] | None = None
    categoryAlias: Annotated[str, Field(max_length=100, description="Key or id.")] | None = None


class EntityListParameters(UrlParameters):
    """The filter and the page of an entity list."""

    recursive: Annotated[bool, Field(description="Include the descendants of the categories.")] = False
    fields: Fields | None = None
    search: (
        Annotated[str, Field(max_length=500, description="Part of name, description or details; case-insensitive.")]
        | None
    ) = None
    source: Annotated[str, Field(max_length=2000, description="Exactly this source.")] | None = None
    sku: Annotated[str, Field(max_length=200, description="Exactly this article number.")] | None = None
    status: Annotated[Literal["draft", "active", "archived"], Field(description="Only with this status.")] | None = None
    tags: Annotated[str, Field(max_length=5000, description="Comma-separated; any of them matches.")] | None = None
    categoryId: Annotated[str, Field(max_length=20_000, description="Ids, comma-separated.")] | None = None
    limit: Limit = 100
    offset: Offset = 0


class AttachmentListParameters(UrlParameters):
    """The page of an attachment list."""

    limit: Limit = 100
    offset: Offset = 0


class NamespaceListParameters(UrlParameters):
    """The filter of a namespace list."""

    notes: Annotated[str, Field(max_length=500, description="Part of the notes.")] | None = None
    name: Annotated[str, Field(max_length=200, description="Exactly this name.")] | None = None
    categoryId: Annotated[str, Field(max_length=100, description="Only namespaces with this category.")] | None = None
    status: (
        Annotated[Literal["initial", "vectorised", "fail"], Field(description="Whether its entities have vectors.")]
        | None
    ) = None


class RelationListParameters(IdPath):
    """The filter of an entity's relations."""

    type: Annotated[str, Field(max_length=100, description="Key of a relationship type.")] | None = None


class RelationParameters(IdPath):
    """The target and the type of a relation."""

    target: Annotated[str, Field(min_length=1, max_length=100, description="Id of the other entity.")]
    type: Annotated[str, Field(min_length=1, max_length=100, description="Key of the relationship type.")]


class ImportParameters(UrlParameters):
    """The options of an import."""

    dryRun: Annotated[bool, Field(description="Report the changes without writing them.")] = False


class NewEntity(EntityDraft):
    """A new entity."""


class NewCategory(Arguments):
    """A new category."""

    name: vocabulary.Name
    description: vocabulary.Text
    categoryAlias: Annotated[str, Field(min_length=1, max_length=100, description="Key or id.")]
    policy: Annotated[str, Field(min_length=1, max_length=100, description="Key or id.")]
    parent: Annotated[str | None, Field(max_length=2000, description="Id, alias key or path; null: the top.")] = None


class CategoryChanges(Arguments):
    """The changes of a category."""

    name: Annotated[vocabulary.Name | None, Field(description="New name.")] = None
    description: Annotated[vocabulary.Text | None, Field(description="New description.")] = None
    categoryAlias: Annotated[str | None, Field(min_length=1, max_length=100, description="Key or id.")] = None
    policy: Annotated[str | None, Field(min_length=1, max_length=100, description="Key or id.")] = None
    parent: Annotated[str | None, Field(max_length=2000, description='"null" moves it to the top level.')] = None


class NewAlias(Arguments):
    """A new category alias."""

    name: vocabulary.Name
    aliasKey: vocabulary.Key
    description: vocabulary.Text = ""


class NewType(Arguments):
    """A new relation type or attachment type."""

    name: vocabulary.Name
    typeKey: vocabulary.Key
    description: vocabulary.Text = ""


class NewPolicy(vocabulary.PolicyDetails):
    """A new policy."""

    name: vocabulary.Name
    policyKey: vocabulary.Key
    description: vocabulary.Text = ""


class NewNamespace(Arguments):
    """A new namespace."""

    name: Annotated[str, Field(min_length=1, max_length=200, description="Searches name it by this.")]
    notes: Annotated[vocabulary.Text, Field(description="What the namespace is for.")] = ""
    categories: Annotated[
        list[str], Field(default_factory=list[str], description="Ids, alias keys or paths; none: all categories.")
    ]


class NewRelation(Arguments):
    """A new relation."""

    targetEntity: Annotated[str, Field(min_length=1, max_length=100, description="Id of the other entity.")]
    type: Annotated[vocabulary.Key, Field(description="Key of a relationship type.")]
    relationDescription: Annotated[vocabulary.Text, Field(description="How the two belong together.")] = ""


class LinkAttachment(Arguments):
    """An entity and the attachment to attach or detach."""

    entityId: Annotated[str, Field(min_length=1, max_length=100, description="Id of the entity.")]
    attachmentId: Annotated[str | None, Field(max_length=100, description="Id of the attachment.")] = None
    attachmentUrl: Annotated[attachments.Url | None, Field(description="Instead of its id: its http or https URL.")] = (
        None
    )
    action: Annotated[Literal["link", "unlink"], Field(description="Attach or detach.")] = "link"


class VerifyKey(Arguments):
    """A key, and the scope that it needs."""

    key: Annotated[str, Field(max_length=500, description="The key to verify.")]
    scope: Annotated[Literal["knowledge-base"], Field(description="The scope that the key needs.")] = "knowledge-base"


class CatalogueBody(Arguments):
    """A catalogue; see the how-to for its parts."""

    tenantId: Annotated[str | None, Field(description="The organisation of an exported catalogue; ignored.")] = None
    categoryAliases: Annotated[list[JsonObject] | None, Field(description="aliasKey, name, description.")] = None
    policies: Annotated[list[JsonObject] | None, Field(description="policyKey, name, description, inputType.")] = None
    relationshipTypes: Annotated[list[JsonObject] | None, Field(description="typeKey, name, description.")] = None
    attachmentTypes: Annotated[list[JsonObject] | None, Field(description="typeKey, name, description.")] = None
    categories: Annotated[list[JsonObject] | None, Field(description="Trees of categories, with `children`.")] = None
    indexes: Annotated[list[JsonObject] | None, Field(description="Namespaces: name, notes, categories.")] = None
    entities: Annotated[
        list[JsonObject] | None, Field(description="Entities with their relations and attachments.")
    ] = None


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
    """An entity."""

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
    """A category."""

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
    """A term of the vocabulary."""

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
    """An attachment."""

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
    """A namespace."""

    _id: str
    name: str
    notes: str
    status: Literal["initial", "vectorised", "fail"]
    categories: list[str]
    createdAt: str
    updatedAt: str


class EntityOrList(RootModel[EntityInfo | list[EntityInfo]]):
    """The entity with this id or exact name; for the alias key of a category, a list of its entities."""


class EntityList(RootModel[list[EntityInfo]]):
    """Entities, oldest first. The header X-Total-Count contains the total number."""


class CategoryOrList(RootModel[CategoryInfo | list[CategoryInfo]]):
    """The category with this id; for an alias key, a list of its categories."""


class CategoryList(RootModel[list[CategoryInfo]]):
    """Categories, each with its descendants."""


class TermList(RootModel[list[TermInfo]]):
    """Terms of the vocabulary, ordered by key."""


class AddedAttachment(BaseModel):
    """The new attachment."""

    success: bool
    attachment: AttachmentInfo


class AttachmentList(RootModel[list[AttachmentInfo]]):
    """Attachments, oldest first."""


class NamespaceList(RootModel[list[NamespaceInfo]]):
    """Namespaces, ordered by name."""


class RelationList(RootModel[list[RelationInfo]]):
    """The relations of an entity, in both directions."""


class MatchInfo(BaseModel):
    """An object that matches the query."""

    id: str
    score: Annotated[float, Field(description="A cautious estimate of relevance, 0 to 1.")]
    values: Annotated[list[float], Field(description="Always empty: vectors are not returned.")]
    metadata: JsonObject


class MatchList(RootModel[list[MatchInfo]]):
    """Matches, best first."""


class KeyInfo(BaseModel):
    """The owner of a key."""

    valid: bool
    tenantId: str
    name: str
    scopes: list[str]
    expiresAt: str | None


class CatalogueImportReport(BaseModel):
    """The changes of an import, or of a dry run."""

    dryRun: bool
    counts: Annotated[
        dict[str, dict[str, int]],
        Field(description="Numbers of objects by kind, with relations and attachments: add, change, same."),
    ]
    changes: Annotated[list[JsonObject], Field(description="The first 200 changes.")]
