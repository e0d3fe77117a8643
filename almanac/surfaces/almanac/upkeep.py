"""The tools of our own surface that change knowledge bases: add documents and keep all in order."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from almanac.core.arguments import Id
from almanac.core.database import Transaction
from almanac.core.errors import BadRequest
from almanac.identity import roles
from almanac.knowledge import bases, documents, folders
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.documents import DocumentDraft
from almanac.knowledge.folders import ROOT
from almanac.knowledge.ingest import uploads
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.knowledge.ingest.uploads import UploadTarget
from almanac.surfaces.almanac.knowledge import DocumentFacts, document_facts
from almanac.surfaces.tool import Arguments, Tool, ToolCall

_WRITE = frozenset({"knowledge:read", "knowledge:write"})
_ADDS = {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": True}
_CHANGES = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False}

Ids = Annotated[list[Id], Field(min_length=1, max_length=documents.MOST_AT_ONCE)]
T = TypeVar("T")


class AddDocument(Arguments):
    """Arguments of `add_document`."""

    base_id: Annotated[Id | None, Field(description="Where a new document goes.")] = None
    document_id: Annotated[Id | None, Field(description="Instead of base_id: give this document new content.")] = None
    name: Annotated[str, Field(max_length=255, description="File name; may be left out with a url.")] = ""
    content: Annotated[str | None, Field(description="Text or Markdown.")] = None
    file_base64: Annotated[str | None, Field(description="Up to 10 MB.")] = None
    url: Annotated[str | None, Field(max_length=4000, description="Fetched now, by the server.")] = None
    folder: Annotated[str, Field(max_length=2000, description="Path such as manuals/pumps; made if missing.")] = ""
    tags: Annotated[list[str], Field(max_length=documents.MOST_TAGS, default_factory=list)]
    metadata: dict[str, Any] | None = None
    if_exists: Annotated[
        Literal["error", "replace", "keep_both"], Field(description="If the name is taken in that folder.")
    ] = "error"


class ManageDocument(Arguments):
    """Arguments of `manage_document`."""

    action: Literal["rename", "move", "tag", "describe", "enable", "disable", "delete", "restore", "reindex"]
    document_ids: Ids
    name: Annotated[str | None, Field(max_length=255, description="rename: of one document.")] = None
    folder_id: Annotated[Id | None, Field(ge=0, description="move: to here; 0 is the top.")] = None
    base_id: Annotated[Id | None, Field(description="move: into another base.")] = None
    tags: Annotated[list[str] | None, Field(description="tag: these instead of those it had.")] = None
    metadata: Annotated[dict[str, Any] | None, Field(description="describe: this instead.")] = None


class ManageFolder(Arguments):
    """Arguments of `manage_folder`."""

    action: Literal["create", "rename", "move", "delete", "restore"]
    base_id: Annotated[Id | None, Field(description="create")] = None
    folder_id: Annotated[Id | None, Field(ge=1, description="All but create.")] = None
    name: Annotated[str | None, Field(max_length=2000, description="create: a path such as a/b; rename.")] = None
    parent_id: Annotated[Id | None, Field(ge=0, description="move; create, if not at the top. 0 is the top.")] = None
    contents: Annotated[
        Literal["move", "delete"] | None, Field(description="delete: what is inside moves up, or goes too.")
    ] = None


class ManageBase(Arguments):
    """Arguments of `manage_base`."""

    action: Literal["create", "change", "share", "unshare", "delete", "restore", "retry"]
    base_id: Annotated[Id | None, Field(description="All but create.")] = None
    name: str | None = None
    description: str | None = None
    level: Literal["personal", "group", "organization"] = "personal"
    group: Annotated[str | None, Field(description="create at level group; share with a group.")] = None
    user: Annotated[str | None, Field(description="share with a user or agent.")] = None
    role: Annotated[
        Literal["Owner", "Maintainer", "Developer", "Reporter", "RestrictedAnalyst"] | None, Field(description="share")
    ] = None
    splitter: Annotated[
        dict[str, Any] | None, Field(description="strategy flat or hierarchical, size, overlap, parent_size.")
    ] = None


@dataclass(slots=True)
class Outcome:
    """The answer of `add_document`."""

    outcome: Annotated[str, Field(description="added, replaced, or unchanged.")]
    document: DocumentFacts


@dataclass(slots=True)
class Done:
    """The answer of the tools that change something."""

    done: str
    ids: list[int]


async def add_document(call: ToolCall, given: AddDocument) -> Outcome:
    """A new document, or new content for one."""
    sources = [given.content, given.file_base64, given.url]
    if sum(source is not None for source in sources) != 1:
        raise BadRequest("Give the document's content in one way: content, file_base64 or url.")
    if (given.base_id is None) == (given.document_id is None):
        raise BadRequest("Give base_id for a new document, or document_id to replace one's content.")
    if given.document_id is not None and (given.name or given.folder):
        raise BadRequest("With document_id a name or folder is not taken.", remedy="Use manage_document for those.")
    if not given.name and given.url is None and given.document_id is None:
        raise BadRequest("name: a new document needs one.", remedy="Give a file name, such as notes.md.")
    target, files = UploadTarget(given.base_id, given.document_id), call.house.files
    draft = DocumentDraft(
        name=given.name,
        folder=given.folder,
        tags=tuple(given.tags),
        metadata=given.metadata,
        if_exists=given.if_exists,
    )
    if given.content is not None:
        added = await uploads.take_text(call, files, target, draft, given.content)
    elif given.file_base64 is not None:
        added = await uploads.take_base64(call, files, target, draft, given.file_base64)
    else:
        added = await uploads.take_url(call, files, call.house.fetcher, target, draft, given.url or "")
    return Outcome(added.outcome, document_facts(added.document))


async def manage_document(call: ToolCall, given: ManageDocument) -> Done:
    """Keep documents in order."""
    ids, action = given.document_ids, given.action
    if action in ("rename", "tag", "describe"):
        await _describe(call, given)
    elif action == "move":
        folder_id = _needed(given.folder_id, "folder_id", action)
        await call.db.write(lambda tx: documents.move(call, tx, ids, folder_id, given.base_id))
    elif action in ("enable", "disable"):
        await call.db.write(lambda tx: documents.enable(call, tx, ids, action == "enable"))
    else:
        verb = {"delete": documents.remove, "restore": documents.restore, "reindex": documents.reindex}[action]
        await call.db.write(lambda tx: verb(call, tx, ids))
    return Done(action, sorted(set(ids)))


async def manage_folder(call: ToolCall, given: ManageFolder) -> Done:
    """Keep folders in order."""
    action = given.action
    if action == "create":
        base_id, name = _needed(given.base_id, "base_id", action), _needed(given.name, "name", action)
        made = await call.db.write(lambda tx: folders.ensure(call, tx, base_id, name, given.parent_id or ROOT))
        return Done(action, [made])
    folder_id = _needed(given.folder_id, "folder_id", action)
    if action == "rename":
        name = _needed(given.name, "name", action)
        await call.db.write(lambda tx: folders.rename(call, tx, folder_id, name))
    elif action == "move":
        parent_id = _needed(given.parent_id, "parent_id", action)
        await call.db.write(lambda tx: folders.move(call, tx, folder_id, parent_id))
    elif action == "delete":
        contents = _needed(given.contents, "contents", action)
        await call.db.write(lambda tx: folders.remove(call, tx, folder_id, contents=contents))
    else:
        await call.db.write(lambda tx: folders.restore(call, tx, folder_id))
    return Done(action, [folder_id])


async def manage_base(call: ToolCall, given: ManageBase) -> Done:
    """Make a base, change it, share it, remove it."""
    action = given.action
    if action == "create":
        return Done(action, [(await _create(call, given)).id])
    base_id = _needed(given.base_id, "base_id", action)
    if action == "change":
        splitter = None if given.splitter is None else PassageSplitter.from_options(given.splitter)
        name, description = given.name, given.description
        await call.db.write(
            lambda tx: bases.update(call, tx, base_id, name=name, description=description, splitter=splitter)
        )
    elif action == "retry":
        await documents.retry_all(call, base_id)
    elif action in ("share", "unshare"):
        role = roles.parse(_needed(given.role, "role", action)) if action == "share" else None
        await call.db.write(lambda tx: bases.share(call, tx, base_id, role, user=given.user, group=given.group))
    else:
        verb = {"delete": bases.remove, "restore": bases.restore}[action]
        await call.db.write(lambda tx: verb(call, tx, base_id))
    return Done(action, [base_id])


async def _create(call: ToolCall, given: ManageBase) -> KnowledgeBase:
    name = _needed(given.name, "name", "create")
    splitter = None if given.splitter is None else PassageSplitter.from_options(given.splitter)
    return await call.db.write(
        lambda tx: bases.add(
            call,
            tx,
            name,
            description=given.description or "",
            level=given.level,
            group=given.group,
            splitter=splitter,
        )
    )


async def _describe(call: ToolCall, given: ManageDocument) -> None:
    changes = {"rename": "name", "tag": "tags", "describe": "metadata"}
    field = changes[given.action]
    value = _needed(getattr(given, field), field, given.action)
    if given.action == "rename" and len(given.document_ids) > 1:
        raise BadRequest("Rename one document at a time.")

    async def change(tx: Transaction) -> None:
        for document_id in sorted(set(given.document_ids)):
            await documents.update(call, tx, document_id, **{field: value})

    await call.db.write(change)


def _needed(value: T | None, name: str, action: str) -> T:
    if value is None:
        raise BadRequest(f"{name}: the action {action!r} needs it.")
    return value


TOOLS = (
    Tool(
        name="add_document",
        title="Add or replace a document",
        description=(
            "Add a document to a knowledge base from text, a file or a URL, or give an existing one new content. "
            "It is read in the background: read_document shows its status."
        ),
        run=add_document,
        arguments=AddDocument,
        output=Outcome,
        scopes=_WRITE,
        annotations=_ADDS,
    ),
    Tool(
        name="manage_document",
        title="Manage documents",
        description=(
            "Rename, move, tag, describe, enable or disable (for search), reindex, delete or restore documents. "
            "All or none. Restore within 30 days."
        ),
        run=manage_document,
        arguments=ManageDocument,
        output=Done,
        scopes=_WRITE,
        annotations=_CHANGES,
    ),
    Tool(
        name="manage_folder",
        title="Manage folders",
        description="Create, rename, move, delete or restore a folder of a knowledge base.",
        run=manage_folder,
        arguments=ManageFolder,
        output=Done,
        scopes=_WRITE,
        annotations=_CHANGES,
    ),
    Tool(
        name="manage_base",
        title="Manage knowledge bases",
        description=(
            "Create, change, share, unshare, delete or restore a knowledge base, or retry its failed documents."
        ),
        run=manage_base,
        arguments=ManageBase,
        output=Done,
        scopes=_WRITE,
        annotations=_CHANGES,
    ),
)
