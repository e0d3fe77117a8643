"""The operations of folders."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from almanac.core.arguments import Arguments, Id, RecordId
from almanac.core.database import Transaction
from almanac.knowledge import folders
from almanac.knowledge.folders import ROOT, Folder
from almanac.operations.context import RequestContext
from almanac.operations.models import (
    EXAMPLE_TIMESTAMP,
    Action,
    Done,
    OneBase,
    Timestamp,
    read_operation,
    require,
    require_change,
    run_action,
    timestamp,
    write_operation,
)
from almanac.operations.operation import CHANGES, Example, Mcp, Rest

ParentId = Annotated[Id, Field(ge=0, description="A folder; 0 is the top.")]


class OneFolder(Arguments):
    folder_id: Annotated[RecordId, Field(description="From browse.")]


class AddFolder(OneBase):
    name: Annotated[str, Field(description="Without slashes.")]
    parent_id: ParentId = ROOT


class ChangeFolder(OneFolder):
    name: Annotated[str | None, Field(description="New name.")] = None
    parent_id: Annotated[ParentId | None, Field(description="Move it into this folder; 0 is the top.")] = None


class RemoveFolder(OneFolder):
    contents: Annotated[
        Literal["move", "delete"], Field(description="move: to the folder's parent. delete: to the trash with it.")
    ]


class ManageFolder(Arguments):
    action: Annotated[
        Literal["create", "rename", "move", "delete", "restore"],
        Field(description="delete: into the trash, for 30 days."),
    ]
    base_id: Annotated[RecordId | None, Field(description="create: from list_bases.")] = None
    folder_id: Annotated[RecordId | None, Field(description="From browse; for all actions but create.")] = None
    name: Annotated[
        str | None, Field(max_length=2000, description="create: a name or a path such as a/b; rename: the new name.")
    ] = None
    parent_id: Annotated[Id | None, Field(ge=0, description="create, move: the folder above; 0 is the top.")] = None
    contents: Annotated[
        Literal["move", "delete"] | None, Field(description="delete: contents move up, or are deleted too.")
    ] = None


@dataclass(slots=True)
class FolderInfo:
    """A folder."""

    id: int
    base_id: int
    parent_id: Annotated[int, Field(description="0: at the top.")]
    name: str
    created_at: Timestamp
    updated_at: Timestamp


async def add_folder(ctx: RequestContext, args: AddFolder) -> FolderInfo:
    """Create a folder."""
    return _info(await ctx.db.write(lambda tx: folders.add(ctx, tx, args.base_id, args.name, args.parent_id)))


async def get_folder(ctx: RequestContext, args: OneFolder) -> FolderInfo:
    """One folder."""
    return _info(await folders.get(ctx.db, ctx, args.folder_id))


async def change_folder(ctx: RequestContext, args: ChangeFolder) -> FolderInfo:
    """Rename or move a folder."""
    require_change(args, "folder_id")

    async def change(tx: Transaction) -> Folder:
        if args.name is not None:
            await folders.rename(ctx, tx, args.folder_id, args.name)
        if args.parent_id is not None:
            await folders.move(ctx, tx, args.folder_id, args.parent_id)
        return await folders.get(tx, ctx, args.folder_id, "write")

    return _info(await ctx.db.write(change))


async def remove_folder(ctx: RequestContext, args: RemoveFolder) -> None:
    """Remove a folder; its content moves up, or goes to the trash with it."""
    await ctx.db.write(lambda tx: folders.remove(ctx, tx, args.folder_id, contents=args.contents))


async def restore_folder(ctx: RequestContext, args: OneFolder) -> FolderInfo:
    """Take a folder out of the trash, with the content that was removed with it."""
    return _info(await ctx.db.write(lambda tx: folders.restore(ctx, tx, args.folder_id)))


async def manage_folder(ctx: RequestContext, args: ManageFolder) -> Done:
    """Create, rename, move, delete or restore a folder of a knowledge base."""
    action = args.action
    if action == "create":  # of a path, where `add_folder` creates one folder
        base_id, name = require(args.base_id, "base_id", action), require(args.name, "name", action)
        created = await ctx.db.write(lambda tx: folders.ensure(ctx, tx, base_id, name, args.parent_id or ROOT))
        return Done(action, [created])
    await run_action(ctx, args, _ACTIONS[action])
    return Done(action, [require(args.folder_id, "folder_id", action)])


_ACTIONS = {
    "rename": Action(change_folder, ChangeFolder, needs=("folder_id", "name")),
    "move": Action(change_folder, ChangeFolder, needs=("folder_id", "parent_id")),
    "delete": Action(remove_folder, RemoveFolder),
    "restore": Action(restore_folder, OneFolder),
}


def _info(folder: Folder) -> FolderInfo:
    return FolderInfo(
        folder.id,
        folder.base_id,
        folder.parent_id,
        folder.name,
        timestamp(folder.created_at),
        timestamp(folder.updated_at),
    )


_FOLDER = FolderInfo(3, 7, 0, "pumps", EXAMPLE_TIMESTAMP, EXAMPLE_TIMESTAMP)

OPERATIONS = (
    write_operation(
        add_folder,
        rest=Rest("POST", "/bases/{base_id}/folders", status=201, location="/folders/{id}"),
        example=Example({"name": "pumps"}, _FOLDER),
    ),
    read_operation(get_folder, rest=Rest("GET", "/folders/{folder_id}"), example=Example(answer=_FOLDER)),
    write_operation(
        change_folder, rest=Rest("PATCH", "/folders/{folder_id}"), example=Example({"parent_id": 0}, _FOLDER)
    ),
    write_operation(remove_folder, rest=Rest("DELETE", "/folders/{folder_id}", status=204)),
    write_operation(restore_folder, rest=Rest("POST", "/folders/{folder_id}/restore"), example=Example(answer=_FOLDER)),
    write_operation(
        manage_folder,
        title="Manage folders",
        safety=CHANGES,
        mcp=Mcp(outlines_answer=False),
        covers=("add_folder", "change_folder", "remove_folder", "restore_folder"),
    ),
)
