"""The operations of knowledge bases."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.core import clock
from almanac.core.arguments import Arguments, RecordId
from almanac.identity.roles import Role
from almanac.knowledge import bases, document_status, documents
from almanac.knowledge.bases import KnowledgeBase
from almanac.knowledge.ingest.splitter import PassageSplitter
from almanac.operations.context import RequestContext
from almanac.operations.models import (
    EXAMPLE_TIMESTAMP,
    Action,
    DocumentCount,
    Done,
    Level,
    Limit,
    Offset,
    OneBase,
    RoleName,
    Timestamp,
    read_operation,
    require,
    require_change,
    run_action,
    timestamp,
    write_operation,
)
from almanac.operations.operation import CHANGES, REST_ONLY, Example, Mcp, Rest
from almanac.search.index.protocol import Coverage

# Arguments


class ListBases(Arguments):
    scope: Annotated[
        Literal["all", "personal", "group", "organization"],
        Field(description="personal: yours and those shared with you."),
    ] = "all"
    group: Annotated[str | None, Field(max_length=200, description="Only those of this group.")] = None
    query: Annotated[str | None, Field(max_length=200, description="Part of the name or description.")] = None
    owner: Annotated[str | None, Field(max_length=200, description="Only those of this user or agent.")] = None
    removed: Annotated[bool, Field(description="Those in the trash.")] = False
    limit: Limit = 50
    offset: Offset = 0


class SplitterOptions(Arguments):
    """How documents are cut into passages; options that are left out have their usual values."""

    strategy: Annotated[
        Literal["flat", "hierarchical"], Field(description="hierarchical: short passages within longer parents.")
    ] = "flat"
    size: Annotated[int | None, Field(description="Characters of a passage.")] = None
    overlap: Annotated[int | None, Field(description="Characters repeated of the passage before.")] = None
    parent_size: Annotated[int | None, Field(description="Characters of a parent; hierarchical only.")] = None


class AddBase(Arguments):
    name: Annotated[str, Field(description="What users and agents call it.")]
    description: Annotated[str, Field(description="What it contains.")] = ""
    level: Annotated[Level, Field(description="Who may read it: you, a group, or everyone in the organisation.")] = (
        "personal"
    )
    group: Annotated[str | None, Field(description="Its group, by name, where the level is group.")] = None
    splitter: Annotated[SplitterOptions | None, Field(description="How its documents are cut into passages.")] = None


class ChangeBase(OneBase):
    name: Annotated[str | None, Field(description="New name.")] = None
    description: Annotated[str | None, Field(description="New description.")] = None
    splitter: Annotated[SplitterOptions | None, Field(description="For documents read from now on.")] = None


class ShareBase(OneBase):
    role: Annotated[RoleName, Field(description="The role to give, at most your own.")]
    user: Annotated[str | None, Field(max_length=200, description="A user or agent, by name.")] = None
    group: Annotated[str | None, Field(max_length=200, description="A group, by name.")] = None


class UnshareBase(OneBase):
    user: Annotated[str | None, Field(max_length=200, description="A user or agent, by name.")] = None
    group: Annotated[str | None, Field(max_length=200, description="A group, by name.")] = None


class ManageBase(Arguments):
    action: Annotated[
        Literal["create", "change", "share", "unshare", "delete", "restore", "retry"],
        Field(description="retry: parse failed documents again."),
    ]
    base_id: Annotated[RecordId | None, Field(description="From list_bases; for all actions but create.")] = None
    name: Annotated[str | None, Field(description="create, change.")] = None
    description: Annotated[str | None, Field(description="create, change: what it contains.")] = None
    level: Annotated[Level, Field(description="create: who may read it.")] = "personal"
    group: Annotated[str | None, Field(description="Name; create with level group, share, unshare.")] = None
    user: Annotated[str | None, Field(description="share, unshare: name of a user or agent.")] = None
    role: Annotated[RoleName | None, Field(description="share: at most your own.")] = None
    splitter: Annotated[
        dict[str, Any] | None,
        Field(description="create, change: strategy (flat, hierarchical), size, overlap, parent_size in characters."),
    ] = None


# Answers


@dataclass(slots=True)
class SplitterInfo:
    """How documents are cut into passages."""

    strategy: str
    size: int
    overlap: int
    parent_size: int | None


@dataclass(slots=True)
class BaseInfo:
    """A knowledge base."""

    id: int
    name: str
    description: str
    level: str
    owner: str
    group: str | None
    role: Annotated[str, Field(description="Yours.")]
    documents: int | None
    passages: Annotated[int | None, Field(description="Null unless some lack vectors.")]
    embedded: int | None
    updated_at: str | None
    created_at: Annotated[Timestamp, REST_ONLY]
    removed_at: Annotated[Timestamp | None, REST_ONLY]
    splitter: Annotated[SplitterInfo, REST_ONLY]


@dataclass(slots=True)
class BaseList:
    """A page of knowledge bases, newest first."""

    items: list[BaseInfo]
    total: int
    has_more: bool
    offset: Annotated[int, REST_ONLY]


@dataclass(slots=True)
class ShareInfo:
    """A role that a user, an agent or a group has on a knowledge base."""

    kind: Annotated[str, Field(description="user, agent or group")]
    name: str
    role: str


@dataclass(slots=True)
class ShareList:
    """The roles on a knowledge base."""

    items: list[ShareInfo]


# Handlers


async def list_bases(ctx: RequestContext, args: ListBases) -> BaseList:
    """The knowledge bases you may see, newest first, with your role and the number of documents."""
    page = await bases.find(ctx, **args.model_dump())
    return BaseList(await _infos(ctx, page.items), page.total, page.has_more, page.offset)


async def add_base(ctx: RequestContext, args: AddBase) -> BaseInfo:
    """Create a knowledge base."""
    splitter = _splitter(args.splitter)
    base = await ctx.db.write(
        lambda tx: bases.add(
            ctx, tx, args.name, description=args.description, level=args.level, group=args.group, splitter=splitter
        )
    )
    return await _info(ctx, base)


async def get_base(ctx: RequestContext, args: OneBase) -> BaseInfo:
    """One knowledge base."""
    return await _info(ctx, await bases.get(ctx.db, ctx, args.base_id))


async def change_base(ctx: RequestContext, args: ChangeBase) -> BaseInfo:
    """Rename or describe a knowledge base, or cut its documents otherwise from now on."""
    require_change(args, "base_id")
    splitter = _splitter(args.splitter)
    base = await ctx.db.write(
        lambda tx: bases.update(ctx, tx, args.base_id, name=args.name, description=args.description, splitter=splitter)
    )
    return await _info(ctx, base)


async def remove_base(ctx: RequestContext, args: OneBase) -> None:
    """Put a knowledge base into the trash."""
    await ctx.db.write(lambda tx: bases.remove(ctx, tx, args.base_id))


async def restore_base(ctx: RequestContext, args: OneBase) -> BaseInfo:
    """Take a knowledge base out of the trash."""
    return await _info(ctx, await ctx.db.write(lambda tx: bases.restore(ctx, tx, args.base_id)))


async def list_shares(ctx: RequestContext, args: OneBase) -> ShareList:
    """The roles that users, agents and groups have on a knowledge base."""
    shares = await bases.shares(ctx.db, ctx, args.base_id)
    return ShareList([ShareInfo(share.kind, share.name, share.role.name) for share in shares])


async def share_base(ctx: RequestContext, args: ShareBase) -> None:
    """Give a user, an agent or a group a role on a knowledge base."""
    # The answer is empty, because callers may have lowered their own role.
    role = Role[args.role]
    await ctx.db.write(lambda tx: bases.share(ctx, tx, args.base_id, role, user=args.user, group=args.group))


async def unshare_base(ctx: RequestContext, args: UnshareBase) -> None:
    """Revoke the role of a user, an agent or a group on a knowledge base."""
    await ctx.db.write(lambda tx: bases.share(ctx, tx, args.base_id, None, user=args.user, group=args.group))


async def retry_base(ctx: RequestContext, args: OneBase) -> DocumentCount:
    """Parse every failed document of a knowledge base again."""
    return DocumentCount(await documents.retry_all(ctx, args.base_id))


async def manage_base(ctx: RequestContext, args: ManageBase) -> Done:
    """Create, change, share, unshare, delete or restore a knowledge base, or retry its failed documents."""
    result = await run_action(ctx, args, _ACTIONS[args.action])
    base_id = result.id if args.action == "create" else require(args.base_id, "base_id", args.action)
    return Done(args.action, [base_id])


_ACTIONS = {
    "create": Action(add_base, AddBase),
    "change": Action(change_base, ChangeBase),
    "share": Action(share_base, ShareBase),
    "unshare": Action(unshare_base, UnshareBase),
    "delete": Action(remove_base, OneBase),
    "restore": Action(restore_base, OneBase),
    "retry": Action(retry_base, OneBase),
}


def _splitter(options: SplitterOptions | None) -> PassageSplitter | None:
    return None if options is None else PassageSplitter.from_options(options.model_dump(exclude_none=True))


async def _info(ctx: RequestContext, base: KnowledgeBase) -> BaseInfo:
    return (await _infos(ctx, [base]))[0]


async def _infos(ctx: RequestContext, found: Sequence[KnowledgeBase]) -> list[BaseInfo]:
    coverage = await document_status.coverages(ctx.db, ctx.app.search.index, [base.id for base in found])
    return [_base_info(base, coverage.get(base.id)) for base in found]


def _base_info(base: KnowledgeBase, coverage: Coverage | None) -> BaseInfo:
    splitter = base.splitter
    parent_size = splitter.parent_size if splitter.strategy == "hierarchical" else None
    return BaseInfo(
        id=base.id,
        name=base.name,
        description=base.description,
        level=base.level,
        owner=base.owner_name,
        group=base.group_name,
        role=base.role.name if base.role else "",
        documents=base.documents,
        passages=coverage and coverage.passages,
        embedded=coverage and coverage.embedded,
        updated_at=clock.format_timestamp(base.updated_at),
        created_at=timestamp(base.created_at),
        removed_at=clock.format_timestamp(base.removed_at),
        splitter=SplitterInfo(splitter.strategy, splitter.size, splitter.overlap, parent_size),
    )


# Declarations

_AT = EXAMPLE_TIMESTAMP
_BASE = BaseInfo(
    id=7,
    name="Manuals",
    description="The manuals of our machines",
    level="group",
    owner="ada",
    group="workshop",
    role="Owner",
    documents=None,
    passages=None,
    embedded=None,
    updated_at=_AT,
    created_at=_AT,
    removed_at=None,
    splitter=SplitterInfo("flat", 2000, 250, None),
)
OPERATIONS = (
    read_operation(
        list_bases,
        title="List knowledge bases",
        rest=Rest("GET", "/bases"),
        mcp=Mcp(omit=frozenset({"group", "owner", "removed"})),
        covers=("get_base",),
        example=Example(answer=BaseList([_BASE], 1, False, 0)),
    ),
    write_operation(
        add_base,
        rest=Rest("POST", "/bases", status=201, location="/bases/{id}"),
        example=Example({"name": "Manuals", "level": "group", "group": "workshop"}, _BASE),
    ),
    read_operation(get_base, rest=Rest("GET", "/bases/{base_id}"), example=Example(answer=_BASE)),
    write_operation(
        change_base,
        rest=Rest("PATCH", "/bases/{base_id}"),
        example=Example({"description": "The manuals of our machines"}, _BASE),
    ),
    write_operation(remove_base, rest=Rest("DELETE", "/bases/{base_id}", status=204)),
    write_operation(restore_base, rest=Rest("POST", "/bases/{base_id}/restore"), example=Example(answer=_BASE)),
    read_operation(
        list_shares,
        rest=Rest("GET", "/bases/{base_id}/shares"),
        people_only="An agent sets roles by name and needs no list of its owner's colleagues.",
        example=Example(answer=ShareList([ShareInfo("group", "workshop", "Reporter")])),
    ),
    write_operation(
        share_base,
        rest=Rest("PUT", "/bases/{base_id}/shares", status=204),
        example=Example({"role": "Reporter", "group": "workshop"}),
    ),
    write_operation(unshare_base, rest=Rest("DELETE", "/bases/{base_id}/shares", status=204)),
    write_operation(retry_base, rest=Rest("POST", "/bases/{base_id}/retry"), example=Example(answer=DocumentCount(2))),
    write_operation(
        manage_base,
        title="Manage knowledge bases",
        safety=CHANGES,
        mcp=Mcp(outlines_answer=False),
        covers=("add_base", "change_base", "share_base", "unshare_base", "remove_base", "restore_base", "retry_base"),
    ),
)
