"""The tools that take an asset of any type: its details, and its deletion.

Datasets are the assets that exist now. An id of another type is not found.
"""

from dataclasses import asdict
from typing import Literal

from almanac.core.arguments import Arguments, RecordId
from almanac.data import datasets
from almanac.operations.context import RequestContext
from almanac.operations.datasets import info_of
from almanac.surfaces.knowi import object_access
from almanac.surfaces.knowi.datasets import dataset_url
from almanac.surfaces.knowi.object_access import require_confirmation
from almanac.surfaces.knowi.responses import KnowiAnswer, counted


class DetailsArguments(Arguments):
    assetType: Literal["dashboard", "widget", "dataset", "query", "report", "alert", "datasource"]
    assetId: RecordId


class DeleteArguments(Arguments):
    assetType: Literal["dashboard", "widget", "dataset", "report", "alert"]
    assetId: RecordId
    confirm: bool


async def knowi_get_details(ctx: RequestContext, args: DetailsArguments) -> KnowiAnswer:
    """Return what is known of an asset."""
    if args.assetType != "dataset":
        raise object_access.missing(args.assetType, args.assetId)
    info = await info_of(ctx, await object_access.get_dataset(ctx, args.assetId))
    rows = "" if info.rows is None else f" and {counted(info.rows, 'row')}"
    return KnowiAnswer(
        f"Dataset {info.name} ({info.id}) of {info.owner} has {counted(len(info.fields), 'field')}{rows}",
        {
            "assetType": args.assetType,
            "assetId": info.id,
            "name": info.name,
            "description": info.description,
            "schema": [asdict(field) for field in info.fields],
            "rowCount": info.rows,
            "version": info.version,
            "owner": info.owner,
            "role": info.role,
            "createdAt": info.created_at,
            "updatedAt": info.updated_at,
            "url": dataset_url(ctx, info.id),
        },
        is_untrusted=True,
    )


async def knowi_delete(ctx: RequestContext, args: DeleteArguments) -> KnowiAnswer:
    """Put an asset into the trash."""
    require_confirmation(args.confirm)
    if args.assetType != "dataset":
        raise object_access.missing(args.assetType, args.assetId)
    dataset = await object_access.get_dataset(ctx, args.assetId, "manage")
    await ctx.db.write(lambda tx: datasets.remove(ctx, tx, dataset.id))
    return KnowiAnswer(
        f"Deleted dataset {dataset.name} ({dataset.id}). It can be restored from the trash for 30 days.",
        {"assetType": args.assetType, "assetId": dataset.id, "name": dataset.name, "deleted": True},
    )
