"""The arguments and answers of the operations of documents."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.core import arguments, clock
from almanac.core.arguments import Arguments, Id, RecordId
from almanac.knowledge import document_text, documents
from almanac.knowledge.document_search import DocumentId
from almanac.knowledge.document_text import TextExcerpt
from almanac.knowledge.documents import Document, DocumentDraft
from almanac.knowledge.ingest import queue
from almanac.operations.models import EXAMPLE_TIMESTAMP, IfExists, Limit, Offset, Timestamp, UntrustedAnswer, timestamp
from almanac.operations.operation import REST_ONLY

Ids = Annotated[
    list[DocumentId],
    Field(min_length=1, max_length=documents.MAX_BATCH_DOCUMENTS, description="From search or browse."),
]
Tags = Annotated[list[str], Field(max_length=documents.MAX_TAGS)]
ReadLimit = Annotated[int, Field(ge=1, le=document_text.MAX_READ_CHARS, description="Characters to return.")]


# Arguments


class OneDocument(Arguments):
    document_id: Annotated[DocumentId, Field(description="From search or browse: 12 or document:12.")]


class Content(Arguments):
    """The content of a document, in one of three ways."""

    content: Annotated[str | None, Field(description="Text or Markdown.")] = None
    file_base64: Annotated[str | None, Field(description="A file in Base64, up to 10 MB.")] = None
    url: Annotated[
        str | None, Field(max_length=4000, description="Address of a file, which the server fetches now.")
    ] = None


class AddDocument(Content):
    base_id: Annotated[RecordId | None, Field(description="Base of a new document, from list_bases.")] = None
    document_id: Annotated[DocumentId | None, Field(description="Instead of base_id: replace its content.")] = None
    name: Annotated[str, Field(max_length=255, description="File name; optional with url.")] = ""
    folder: Annotated[str, Field(max_length=2000, description="Path such as manuals/pumps; made if missing.")] = ""
    folder_id: Annotated[Id, Field(ge=0, description="A folder instead of its path; 0 is the top.")] = 0
    tags: Annotated[Tags, Field(default_factory=list[str], description="Labels to filter by.")]
    metadata: Annotated[
        dict[str, Any] | None, Field(description="Names and values that conditions of search test.")
    ] = None
    if_exists: Annotated[IfExists, Field(description="If the folder has a document of this name.")] = "error"

    def draft(self, file_name: str = "") -> DocumentDraft:
        """Return the document to add. `file_name` is the name of an uploaded file."""
        return DocumentDraft(
            name=self.name or file_name,
            folder_id=self.folder_id,
            folder=self.folder,
            tags=tuple(self.tags) if "tags" in self.model_fields_set else None,
            metadata=self.metadata,
            if_exists=self.if_exists,
        )


class ReplaceContent(OneDocument, Content):
    """Arguments of `replace_content`."""


class ChangeDocument(OneDocument):
    name: Annotated[str | None, Field(description="New file name.")] = None
    tags: Annotated[Tags | None, Field(description="Replace all tags.")] = None
    metadata: Annotated[dict[str, Any] | None, Field(description="Replaces all metadata.")] = None
    is_enabled: Annotated[bool | None, Field(description="Whether search finds it.")] = None
    folder_id: Annotated[Id | None, Field(ge=0, description="Move it to this folder; 0 is the top.")] = None
    base_id: Annotated[RecordId | None, Field(description="Move it to this base; to folder_id, or to its top.")] = None


class ChangeDocuments(Arguments):
    action: Annotated[
        Literal["move", "enable", "disable", "delete", "restore", "reindex"],
        Field(description="move needs folder_id; enable and disable are for search; reindex parses again."),
    ]
    ids: Ids
    folder_id: Annotated[Id | None, Field(ge=0, description="move: to here; 0 is the top.")] = None
    base_id: Annotated[RecordId | None, Field(description="move: into another base.")] = None


class ManageDocument(Arguments):
    action: Annotated[
        Literal["rename", "move", "tag", "describe", "enable", "disable", "delete", "restore", "reindex"],
        Field(description="describe: set metadata. enable, disable: for search. reindex: parse again."),
    ]
    document_ids: Ids
    name: Annotated[str | None, Field(max_length=255, description="rename: new file name of one document.")] = None
    folder_id: Annotated[Id | None, Field(ge=0, description="move: to here; 0 is the top.")] = None
    base_id: Annotated[RecordId | None, Field(description="move: into another base.")] = None
    tags: Annotated[list[str] | None, Field(description="tag: replace all tags.")] = None
    metadata: Annotated[dict[str, Any] | None, Field(description="describe: replaces all metadata.")] = None


class ReadDocument(OneDocument):
    page: Annotated[int | None, Field(ge=1, description="One page, instead of offset and limit.")] = None
    offset: Annotated[
        arguments.Offset, Field(description="First character: next_offset, or the start of a result's span.")
    ] = 0
    limit: ReadLimit = document_text.DEFAULT_READ_CHARS


class ListPassages(OneDocument):
    limit: Limit = 100
    offset: Offset = 0


class DownloadDocument(OneDocument):
    disposition: Annotated[
        Literal["attachment", "inline"], Field(description="Whether a browser saves the file or shows it.")
    ] = "attachment"


class DownloadFile(OneDocument):
    token: Annotated[
        str | None, Field(max_length=4096, description="The download token, unless it is in the header.")
    ] = None


# Answers


@dataclass(slots=True)
class FailureInfo:
    """Why a document could not be read."""

    code: str
    message: str
    stage: Annotated[str, REST_ONLY]
    retryable: Annotated[bool, REST_ONLY]
    occurred_at: Annotated[Timestamp, REST_ONLY]


@dataclass(slots=True)
class DocumentInfo:
    """A document."""

    id: int
    base_id: int
    folder_id: int
    name: str
    title: str | None
    index_status: Annotated[str, Field(description=f"One of: {', '.join(queue.STATUSES)}.")]
    failure: FailureInfo | None
    warnings: Annotated[list[str], Field(description="What its text lacks.")]
    mime_type: str
    size: int
    page_count: int | None
    characters: int | None
    tags: list[str]
    metadata: dict[str, Any]
    is_enabled: bool
    source_url: str | None
    creator: str
    updated_at: str | None
    created_at: Annotated[Timestamp, REST_ONLY]
    source_type: Annotated[str, REST_ONLY]
    extension: Annotated[str, REST_ONLY]
    sha256: Annotated[str, REST_ONLY]
    generation: Annotated[int, Field(description="Rises with every new content."), REST_ONLY]
    passages: Annotated[int | None, REST_ONLY]

    @classmethod
    def of(cls, document: Document) -> "DocumentInfo":
        """Return a document as callers see it."""
        failure = document.failure
        return cls(
            id=document.id,
            base_id=document.base_id,
            folder_id=document.folder_id,
            name=document.name,
            title=document.title,
            index_status=document.index_status,
            failure=failure
            and FailureInfo(
                failure.code, failure.message, failure.stage, failure.retryable, timestamp(failure.occurred_at)
            ),
            warnings=list(document.warnings),
            mime_type=document.mime_type,
            size=document.size,
            page_count=document.page_count,
            characters=document.characters,
            tags=list(document.tags),
            metadata=document.metadata,
            is_enabled=document.is_enabled,
            source_url=document.source_url,
            creator=document.creator_name,
            updated_at=clock.format_timestamp(document.updated_at),
            created_at=timestamp(document.created_at),
            source_type=document.source_type,
            extension=document.extension,
            sha256=document.blob_hash,
            generation=document.generation,
            passages=document.passages,
        )


@dataclass(slots=True)
class AddedDocument:
    """A document and the outcome of the upload."""

    outcome: Annotated[str, Field(description="added, replaced, or unchanged.")]
    document: DocumentInfo


@dataclass(slots=True)
class DocumentExcerpt(UntrustedAnswer):
    """Some of a document's text."""

    document: DocumentInfo
    text: str
    offset: int
    next_offset: Annotated[int | None, Field(description="Read on from here; null at the end.")]
    page: int | None
    page_name: Annotated[str | None, REST_ONLY]
    total: Annotated[int, Field(description="Characters of the whole text."), REST_ONLY]

    @classmethod
    def of(cls, excerpt: TextExcerpt) -> "DocumentExcerpt":
        """Return a part of a text as callers see it."""
        return cls(
            document=DocumentInfo.of(excerpt.document),
            text=excerpt.text,
            offset=excerpt.offset,
            next_offset=excerpt.offset + len(excerpt.text) if excerpt.has_more else None,
            page=excerpt.page,
            page_name=excerpt.page_name or None,
            total=excerpt.total,
        )


@dataclass(slots=True)
class PassageInfo:
    """A passage of a document's text, as it is searched."""

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
class PassageList(UntrustedAnswer):
    """A page of a document's passages, in the order of its text."""

    items: list[PassageInfo]
    total: int
    offset: int
    has_more: bool


@dataclass(slots=True)
class DownloadInfo:
    """Where to fetch a file, and with which headers."""

    url: str
    headers: Annotated[dict[str, str], Field(description="Send these with the GET.")]
    expires_in: Annotated[int, Field(description="Seconds.")]
    file_name: str
    mime_type: str
    size: int
    disposition: Annotated[str, REST_ONLY]


EXAMPLE_DOCUMENT = DocumentInfo(
    id=12,
    base_id=7,
    folder_id=3,
    name="pump.pdf",
    title="Pump P-40",
    index_status="success",
    failure=None,
    warnings=[],
    mime_type="application/pdf",
    size=48213,
    page_count=4,
    characters=5312,
    tags=["pump"],
    metadata={"year": 2024},
    is_enabled=True,
    source_url=None,
    creator="ada",
    updated_at=EXAMPLE_TIMESTAMP,
    created_at=EXAMPLE_TIMESTAMP,
    source_type="file",
    extension="pdf",
    sha256="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    generation=1,
    passages=6,
)
