"""The tools for rows of datasets. They are ordinary datasets, which every other surface sees."""

from typing import Annotated, Any

from pydantic import Field

from almanac.core.arguments import Arguments, RecordId
from almanac.core.errors import BadRequest, Forbidden
from almanac.data import datasets, push, run
from almanac.data.fields import Field as DataField
from almanac.data.fields import type_to_value
from almanac.data.push import PushOptions, PushResult
from almanac.data.queries.query_plan import MAX_ROWS
from almanac.data.run import DataAnswer
from almanac.operations.context import RequestContext
from almanac.operations.datasets import info_of
from almanac.surfaces.knowi import object_access, repeats
from almanac.surfaces.knowi.responses import KnowiAnswer, counted

DEFAULT_ROWS = 100


class PushArguments(Arguments):
    datasetName: Annotated[str, Field(max_length=datasets.MAX_NAME_CHARS)]
    rows: list[dict[str, Any]]


class GetDataArguments(Arguments):
    widgetId: RecordId | None = None
    datasetId: RecordId | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = DEFAULT_ROWS


async def knowi_push_data(ctx: RequestContext, args: PushArguments) -> KnowiAnswer:
    """Append rows to the dataset of this name, which is created if there is none."""
    # The push keeps the key as well: a server that ends before its answer is stored does not append the rows twice.
    options = PushOptions(idempotency_key=repeats.key_of(ctx))
    try:
        done = await push.push(ctx, ctx.app.data, args.datasetName, args.rows, options)
    except Forbidden:
        dataset = await datasets.get_by_name(ctx.db, ctx, args.datasetName)
        raise object_access.dataset_denied(ctx, dataset) from None
    info = await info_of(ctx, done.dataset)
    visible = {field.name for field in info.fields}
    widened = [{"field": name, "before": before, "now": now} for name, before, now in done.widened if name in visible]
    return KnowiAnswer(
        _pushed_text(done, info.rows, widened),
        {
            "datasetId": done.dataset.id,
            "datasetName": done.dataset.name,
            "created": done.is_new,
            "pushedRows": done.pushed_rows,
            "totalRows": info.rows,
            "version": done.dataset.version,
            "widened": widened,
            "repeated": done.is_repeated,
            "url": dataset_url(ctx, done.dataset.id),
        },
    )


async def knowi_get_data(ctx: RequestContext, args: GetDataArguments) -> KnowiAnswer:
    """Return the rows of a dataset that the caller may see."""
    if (args.widgetId is None) == (args.datasetId is None):
        raise BadRequest("One of widgetId or datasetId is required.", remedy="Give one of them, not both.")
    if args.datasetId is None:
        raise object_access.missing("widget", args.widgetId or 0)
    dataset = await object_access.get_dataset(ctx, args.datasetId)
    answer = await run.read(ctx, ctx.app.data, dataset, args.limit)
    number = len(answer.rows)
    return KnowiAnswer(
        f"Returned {number:,} of {counted(answer.total_rows, 'row')} of dataset {dataset.name} ({dataset.id})"
        f"{_reason(answer, args.limit)}",
        {
            "datasetId": dataset.id,
            "datasetName": dataset.name,
            "fields": [_field(field) for field in answer.fields],
            "rows": answer.objects(),
            "totalRows": answer.total_rows,
            "returnedRows": number,
            "version": answer.receipt.datasets[0].version,
            "receipt": answer.sealed,
        },
        is_untrusted=True,
    )


def dataset_url(ctx: RequestContext, dataset_id: int) -> str:
    """Return the address of a dataset on this server."""
    return f"{ctx.app.settings.url}/api/v1/datasets/{dataset_id}"


def _pushed_text(done: PushResult, total: int | None, widened: list[dict[str, str]]) -> str:
    name = f"{done.dataset.name} ({done.dataset.id})"
    if done.is_repeated:
        return f"The rows of this idempotency key are in dataset {name} already; nothing was stored."
    has = "" if total is None else f", which has {counted(total, 'row')} now"
    changes = "".join(f" The field {each['field']} was {each['before']} and is {each['now']} now." for each in widened)
    return (
        f"Pushed {counted(done.pushed_rows, 'row')} to {'the new ' if done.is_new else ''}dataset {name}{has}.{changes}"
    )


def _reason(answer: DataAnswer, limit: int) -> str:
    """Return why an answer has fewer rows than were asked for; empty if it has them."""
    if len(answer.rows) >= min(limit, answer.total_rows):
        return ""
    return ". The others do not fit into one answer."


def _field(field: DataField) -> dict[str, Any]:
    return {"name": field.name, "type": type_to_value(field.type)}
