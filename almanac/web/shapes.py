"""The shapes of what is asked and answered over REST: requests are strict models, answers are dataclasses."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from almanac.core.arguments import MAX_ID, Arguments
from almanac.knowledge import document_text, documents
from almanac.web.rest import Parameters

_FURTHEST = 1_000_000_000
_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def _whole(value: Any) -> Any:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise PydanticCustomError("whole_number", "Input should be a whole number")
    return value


# In a path or a query; the limits come first, to be a part of what is described
Id = Annotated[int, Field(ge=1, le=MAX_ID), BeforeValidator(_whole)]
Place = Annotated[int, Field(ge=0, le=MAX_ID, description="A folder; 0 is the top."), BeforeValidator(_whole)]
Offset = Annotated[int, Field(ge=0, le=_FURTHEST, description="How many to skip."), BeforeValidator(_whole)]
Limit = Annotated[int, Field(ge=1, le=500, description="How many at most."), BeforeValidator(_whole)]
# In a body
IdGiven = Annotated[int, Field(ge=1, le=MAX_ID)]
PlaceGiven = Annotated[int, Field(ge=0, le=MAX_ID, description="A folder; 0 is the top.")]

Moment = Annotated[str, Field(description="ISO 8601, UTC.", examples=["2026-11-02T09:30:00.000Z"])]
RoleName = Literal["RestrictedAnalyst", "Reporter", "Developer", "Maintainer", "Owner"]
IfExists = Literal["error", "replace", "keep_both"]
Tags = Annotated[list[str], Field(max_length=documents.MOST_TAGS)]

# Where


class AtBase(Parameters):
    """A knowledge base."""

    base_id: Id


class AtFolder(Parameters):
    """A folder."""

    folder_id: Id


class AtDocument(Parameters):
    """A document."""

    document_id: Id


class FindBases(Parameters):
    """Which knowledge bases."""

    scope: Annotated[
        Literal["all", "personal", "group", "organization"],
        Field(description="personal: your own and those shared with you."),
    ] = "all"
    group: Annotated[str, Field(max_length=200, description="Only those of this group.")] | None = None
    query: Annotated[str, Field(max_length=200, description="Part of the name or description.")] | None = None
    removed: Annotated[bool, Field(description="Those in the trash.")] = False
    limit: Limit = 50
    offset: Offset = 0


class AtNodes(AtBase):
    """A part of a tree."""

    folder_id: Place = 0
    recursive: Annotated[
        bool, Field(description="Everything below, up to 5,000 nodes; limit and offset do not apply.")
    ] = False
    limit: Limit = 100
    offset: Offset = 0


class AtTrash(AtBase):
    """A part of the trash."""

    limit: Limit = 100
    offset: Offset = 0


class AtShare(AtBase):
    """With whom a base is shared."""

    user: Annotated[str, Field(max_length=200, description="A user or agent, by name.")] | None = None
    group: Annotated[str, Field(max_length=200, description="A group, by name.")] | None = None


class RemoveFolder(AtFolder):
    """What becomes of what is in a folder."""

    contents: Annotated[
        Literal["move", "delete"], Field(description="move: to where the folder was. delete: to the trash with it.")
    ]


class AtContent(AtDocument):
    """A part of a document's text."""

    page: Annotated[int, Field(ge=1, le=_FURTHEST), BeforeValidator(_whole)] | None = None
    offset: Annotated[Offset, Field(description="The first character.")] = 0
    limit: Annotated[
        int,
        Field(ge=1, le=document_text.MAX_READ_CHARS, description="How many characters at most."),
        BeforeValidator(_whole),
    ] = 20_000


class AtPassages(AtDocument):
    """Some of a document's passages."""

    limit: Limit = 100
    offset: Offset = 0


class AtFile(AtDocument):
    """A file, with the credential for it."""

    token: Annotated[str, Field(max_length=4096, description="The credential, unless it is in the header.")] | None = (
        None
    )


# What is sent


class Splitting(Arguments):
    """How documents are cut into passages; what is left out has its usual value."""

    strategy: Literal["flat", "hierarchical"] = "flat"
    size: Annotated[int, Field(description="Characters of a passage.")] | None = None
    overlap: Annotated[int, Field(description="Characters repeated of the passage before.")] | None = None
    parent_size: Annotated[int, Field(description="Characters of a parent; hierarchical only.")] | None = None


class AddBase(Arguments):
    """A knowledge base to be."""

    name: str
    description: str = ""
    level: Literal["personal", "group", "organization"] = "personal"
    group: Annotated[str, Field(description="Its group, by name, where the level is group.")] | None = None
    splitter: Splitting | None = None


class ChangeBase(Arguments):
    """What to change; the rest stays."""

    name: str | None = None
    description: str | None = None
    splitter: Annotated[Splitting, Field(description="For documents read from now on.")] | None = None


class ShareBase(Arguments):
    """Whom to give which role: a user (or agent) or a group, by name."""

    role: RoleName
    user: str | None = None
    group: str | None = None


class AddFolder(Arguments):
    """A folder to be."""

    name: str
    parent_id: PlaceGiven = 0


class ChangeFolder(Arguments):
    """What to change; the rest stays."""

    name: str | None = None
    parent_id: PlaceGiven | None = None


class Content(Arguments):
    """Content, in one of three ways."""

    content: Annotated[str, Field(description="Text; Markdown, unless the name says otherwise.")] | None = None
    file_base64: Annotated[str, Field(description="A small file.")] | None = None
    url: Annotated[str, Field(max_length=4096, description="Fetched now, by the server.")] | None = None


class AboutFile(Arguments):
    """What is said of a file that is added."""

    name: Annotated[str, Field(description="Unless given, the file's own.")] | None = None
    folder_id: PlaceGiven = 0
    tags: Tags = Field(default_factory=list[str])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    if_exists: Annotated[
        IfExists, Field(description="replace: a new version of the document of that name. keep_both: number this one.")
    ] = "error"


class AddDocument(AboutFile, Content):
    """A document to be; its content in one of three ways."""


class ChangeDocument(Arguments):
    """What to change; the rest stays."""

    name: str | None = None
    tags: Tags | None = None
    metadata: dict[str, Any] | None = None
    is_enabled: Annotated[bool, Field(description="Whether search finds it.")] | None = None
    folder_id: Annotated[PlaceGiven, Field(description="Move it there.")] | None = None
    base_id: Annotated[IdGiven, Field(description="Move it to this base; with folder_id, or to its top.")] | None = None


class AskDownload(Arguments):
    """How the file shall be sent."""

    disposition: Annotated[
        Literal["attachment", "inline"], Field(description="inline: to be shown, for kinds a browser can show safely.")
    ] = "attachment"


class Batch(Arguments):
    """Documents, and what to do with all of them or none."""

    action: Literal["move", "enable", "disable", "delete", "restore", "reindex"]
    ids: Annotated[list[IdGiven], Field(min_length=1, max_length=documents.MOST_AT_ONCE)]
    folder_id: Annotated[PlaceGiven, Field(description="Where to, for move.")] | None = None
    base_id: Annotated[IdGiven, Field(description="The base to move to, if it is another.")] | None = None


# What is answered


@dataclass(slots=True)
class SplitterFacts:
    """How documents are cut into passages."""

    strategy: str
    size: int
    overlap: int
    parent_size: int | None


@dataclass(slots=True)
class BaseFacts:
    """A knowledge base."""

    id: int
    name: str
    description: str
    level: str
    owner: str
    group: str | None
    role: Annotated[str, Field(description="Yours.")]
    documents: Annotated[int | None, Field(description="How many; told in lists only.")]
    passages: Annotated[int | None, Field(description="How many; told while some still lack vectors.")]
    embedded: Annotated[int | None, Field(description="Those of them that have vectors; null when all do.")]
    splitter: SplitterFacts
    created_at: Moment
    updated_at: Moment
    removed_at: Moment | None


@dataclass(slots=True)
class BaseList:
    """Some knowledge bases."""

    items: list[BaseFacts]
    total: int
    offset: int
    has_more: bool


@dataclass(slots=True)
class ShareFacts:
    """A role on a base that someone was given."""

    kind: Annotated[str, Field(description="user, agent or group")]
    name: str
    role: str


@dataclass(slots=True)
class ShareList:
    """With whom a base is shared."""

    items: list[ShareFacts]


@dataclass(slots=True)
class FolderFacts:
    """A folder."""

    id: int
    base_id: int
    parent_id: Annotated[int, Field(description="0: at the top.")]
    name: str
    created_at: Moment
    updated_at: Moment


@dataclass(slots=True)
class FailureFacts:
    """Why a document could not be read."""

    stage: str
    code: str
    message: str
    retryable: bool
    occurred_at: Moment


@dataclass(slots=True)
class DocumentFacts:
    """A document."""

    id: int
    base_id: int
    folder_id: int
    name: str
    title: str | None
    source_type: str
    source_url: str | None
    mime_type: Annotated[str, Field(description="Told from the content.")]
    extension: str
    size: int
    sha256: str
    tags: list[str]
    metadata: dict[str, Any]
    is_enabled: bool
    creator: str
    created_at: Moment
    updated_at: Moment
    generation: Annotated[int, Field(description="Rises with every new content.")]
    index_status: Annotated[str, Field(description=f"One of: {', '.join(documents.STATUSES)}.")]
    failure: FailureFacts | None
    characters: Annotated[int | None, Field(description="Of its text; null until it has been read.")]
    page_count: int | None
    passages: int | None
    warnings: Annotated[list[str], Field(description="What reading it had to leave out.")]


@dataclass(slots=True)
class AddedFacts(DocumentFacts):
    """A document, and what became of what was sent."""

    outcome: Annotated[str, Field(description="added, replaced or unchanged")]


@dataclass(slots=True)
class NodeFacts:
    """A folder or a document in its place."""

    kind: Literal["folder", "document"]
    folder: FolderFacts | None
    document: DocumentFacts | None
    has_children: bool
    is_orphan: Annotated[bool, Field(description="Its place is broken; it is shown at the top.")]
    children: Annotated[list["NodeFacts"] | None, Field(description="Where everything below was asked for.")]


@dataclass(slots=True)
class NodeList:
    """What is in a folder, folders first, then the newest first."""

    base_id: int
    folder_id: int
    items: list[NodeFacts]
    offset: int
    has_more: bool
    count: Annotated[int | None, Field(description="Of all nodes below, where everything was asked for.")]
    warnings: list[str]


@dataclass(slots=True)
class RemovedFacts:
    """Something in the trash."""

    kind: str
    id: int
    name: str
    removed_at: Moment


@dataclass(slots=True)
class RemovedList:
    """Some of the trash, the latest first."""

    items: list[RemovedFacts]
    offset: int
    has_more: bool


@dataclass(slots=True)
class Excerpt:
    """Some of a document's text."""

    document_id: int
    name: str
    index_status: str
    text: str
    offset: Annotated[int, Field(description="Of its first character in the whole text.")]
    total: Annotated[int, Field(description="Characters of the whole text.")]
    has_more: bool
    page: int | None
    page_name: str | None


@dataclass(slots=True)
class PassageFacts:
    """A piece of a document's text, as it is searched."""

    ordinal: int
    kind: str
    text: str
    start: Annotated[int, Field(description="In the document's text.")]
    end: int
    headings: list[str]
    page: int | None
    boxes: Annotated[list[list[float]], Field(description="Page, x0, y0, x1, y1.")]
    parent: int | None


@dataclass(slots=True)
class PassageList:
    """Some of a document's passages, in the order of its text."""

    items: list[PassageFacts]
    total: int
    offset: int
    has_more: bool


@dataclass(slots=True)
class DownloadFacts:
    """Where a file can be fetched, and with what."""

    url: str
    header: Annotated[str, Field(description="The header to send the token in.")]
    token: str
    expires_in: Annotated[int, Field(description="Seconds.")]
    disposition: str
    file_name: str
    mime_type: str
    size: int


@dataclass(slots=True)
class Counted:
    """How many documents something was done to."""

    count: int
