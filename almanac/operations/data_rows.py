"""The operations on the rows of datasets: pushing, querying, and verifying the result of a query."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from almanac.core.arguments import Arguments
from almanac.core.errors import BadRequest
from almanac.data import push, run
from almanac.data.fields import Field as DataField
from almanac.data.fields import type_to_value
from almanac.data.imports import importer
from almanac.data.imports.importer import ImportOptions, ImportRequest, ImportResult, Source
from almanac.data.push import PushOptions
from almanac.data.queries.query_plan import MAX_ROWS
from almanac.data.receipts import Receipt
from almanac.data.run import DataAnswer, DataQuery
from almanac.files.file_store import IncomingFile
from almanac.memory.note_text import parse_timestamp
from almanac.operations.context import RequestContext
from almanac.operations.datasets import READ_DATA, WRITE_DATA, VersionInfo
from almanac.operations.models import EXAMPLE_TIMESTAMP, UntrustedAnswer, timestamp
from almanac.operations.operation import SAVES, Example, Form, Mcp, Rest, Safety, operation
from almanac.operations.schemas import value_from_text

_read = partial(operation, scopes=READ_DATA)
_write = partial(operation, scopes=WRITE_DATA)

DatasetName = Annotated[str, Field(max_length=200, description="Its name; created if new.")]


# Arguments


class PushData(Arguments):
    dataset: DatasetName
    rows: Annotated[list[dict[str, Any]], Field(description="Objects with the same keys.")]
    strategy: Annotated[
        Literal["append", "replace", "replace_even_if_empty", "upsert", "expire"],
        Field(description="upsert: by keys. expire: append, and drop rows older than keep_for."),
    ] = "append"
    keys: Annotated[list[str], Field(default_factory=list[str], description="upsert: fields that identify a row.")]
    date_field: Annotated[str, Field(description="expire: the field with the date.")] = ""
    keep_for: Annotated[str, Field(description="expire: such as 90d or 3m.")] = ""
    idempotency_key: Annotated[
        str | None, Field(max_length=200, description="A repeat within 24 h with it stores nothing.")
    ] = None


class ImportData(Arguments):
    dataset: DatasetName = ""  # an upload has it in the form
    content: Annotated[str | None, Field(description="The text of the file, or give file_base64 or url.")] = None
    file_base64: Annotated[str | None, Field(description="A small file as base64.")] = None
    url: Annotated[str | None, Field(description="The web address of the file.")] = None
    file_type: Annotated[
        Literal["csv", "json", "parquet"] | None, Field(description="Detected if left out. json: also lines.")
    ] = None
    delimiter: Annotated[str | None, Field(max_length=1, description="CSV, if detection fails.")] = None
    encoding: Annotated[str | None, Field(max_length=20, description="Such as windows-1252.")] = None
    header: Annotated[bool | None, Field(description="CSV: the first row has names.")] = None
    strategy: Annotated[Literal["replace", "append"], Field(description="replace: all rows.")] = "replace"
    on_error: Annotated[Literal["refuse", "skip"], Field(description="Bad rows: store nothing, or the others.")] = (
        "refuse"
    )
    dry_run: Annotated[bool, Field(description="Only show fields and 20 rows.")] = False
    idempotency_key: Annotated[str | None, Field(max_length=200, description="As of push_data.")] = None

    def request(self, file_name: str = "") -> ImportRequest:
        """The dataset and the options."""
        given = self.model_dump(exclude={"dataset", "content", "file_base64", "url"})
        return ImportRequest(self.dataset, file_name, ImportOptions(**given))


class QueryData(Arguments):
    sql: Annotated[
        str | None,
        Field(description='A SELECT (DuckDB) over datasets by name: SELECT city, sum("Net amount") FROM "My orders" …'),
    ] = None
    dataset: Annotated[str | None, Field(max_length=200, description="With c9ql: name or id.")] = None
    c9ql: Annotated[str | None, Field(description="Cloud9QL over one dataset, in place of sql.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS, description="Rows of the answer.")] = 100
    as_of: Annotated[str | None, Field(description="ISO 8601: the rows as they were then.")] = None


class VerifyResult(Arguments):
    receipt: Annotated[str, Field(description="The field receipt of an answer of query_data.")]


# Answers


@dataclass(slots=True)
class WidenedField:
    """A field whose type became wider, because a value did not fit."""

    field: str
    before: str
    now: str


@dataclass(slots=True)
class PushedRows:
    """The result of a push."""

    dataset_id: int
    dataset: str
    created: bool
    pushed: int
    rows: int
    version: int
    widened: list[WidenedField]
    repeated: bool


@dataclass(slots=True)
class BadRowInfo:
    """A row that cannot be read."""

    line: int
    reason: str
    content: str


@dataclass(slots=True)
class ImportedData(UntrustedAnswer):
    """What an import has done, or would do."""

    dataset_id: Annotated[int | None, Field(description="null: not stored.")]
    dataset: str
    created: bool
    version: int | None
    imported: int
    rows: Annotated[int | None, Field(description="Of the dataset now.")]
    fields: "list[ResultField]"
    format: str
    assumed: Annotated[dict[str, Any], Field(description="Delimiter, encoding, order of dates and the like: check it.")]
    bad_rows: int
    first_bad_rows: list[BadRowInfo]
    widened: list[WidenedField]
    preview: list[dict[str, Any]]
    repeated: bool


@dataclass(slots=True)
class ResultField:
    """A field of a result."""

    name: str
    type: Any


@dataclass(slots=True)
class ReadVersion:
    """A version of a dataset that a query has read."""

    id: int
    name: str
    version: int
    rows: int


@dataclass(slots=True)
class QueryRows(UntrustedAnswer):
    """The rows of a query, and what they came from."""

    fields: list[ResultField]
    rows: list[dict[str, Any]]
    total_rows: int
    returned_rows: int
    truncated: str | None
    datasets: list[ReadVersion]
    receipt: Annotated[str, Field(description="For verify_result.")]


@dataclass(slots=True)
class VerifiedResult:
    """Whether a result still follows from the versions that it was computed from."""

    confirmed: bool
    reason: str
    query: str
    datasets: list[ReadVersion]
    rows_read: int
    at: str
    by: str
    changes_since: list[VersionInfo]


# Handlers


async def push_data(ctx: RequestContext, args: PushData) -> PushedRows:
    """Add rows to a dataset, which is created if it is new. One push is one version."""
    options = PushOptions(args.strategy, tuple(args.keys), args.date_field, args.keep_for, args.idempotency_key)
    done = await push.push(ctx, ctx.app.data, args.dataset, args.rows, options)
    return PushedRows(
        dataset_id=done.dataset.id,
        dataset=done.dataset.name,
        created=done.is_new,
        pushed=done.pushed_rows,
        rows=done.dataset.row_count,
        version=done.dataset.version,
        widened=[WidenedField(*each) for each in done.widened],
        repeated=done.is_repeated,
    )


async def import_data(ctx: RequestContext, args: ImportData) -> ImportedData:
    """Import a file into a dataset, which is created if it is new: CSV, JSON or Parquet."""
    result = await importer.import_file(ctx, ctx.app.data, _import_source(ctx, args))
    return _imported(result)


async def query_data(ctx: RequestContext, args: QueryData) -> QueryRows:
    """Query the rows of datasets with SQL, or of one dataset with C9QL. Find names and fields with find_datasets."""
    if (args.sql is None) == (args.c9ql is None):
        raise BadRequest("Give either sql, or dataset and c9ql.")
    answer = await run.run(
        ctx,
        ctx.app.data,
        DataQuery(
            text=args.sql if args.sql is not None else args.c9ql or "",
            language="sql" if args.sql is not None else "c9ql",
            dataset=args.dataset or "",
            limit=args.limit,
            as_of=None if args.as_of is None else parse_timestamp("as_of", args.as_of),
        ),
    )
    return query_rows(answer)


async def verify_result(ctx: RequestContext, args: VerifyResult) -> VerifiedResult:
    """Run the query of a receipt again on the same versions: confirms the result, and lists changes since."""
    done = await run.verify(ctx, ctx.app.data, args.receipt)
    return VerifiedResult(
        confirmed=done.is_confirmed,
        reason=done.reason,
        query=done.receipt.query,
        datasets=_read_versions(done.receipt),
        rows_read=done.receipt.rows_read,
        at=timestamp(done.receipt.at),
        by=done.receipt.by,
        changes_since=[
            VersionInfo(each.number, each.change, each.row_count, timestamp(each.created_at), each.author_name)
            for each in done.changes
        ],
    )


def _import_source(ctx: RequestContext, args: ImportData) -> Source:
    if (upload := ctx.upload) is not None:

        async def write(incoming: IncomingFile) -> ImportRequest:
            fields = await upload.write_to(ctx, incoming)
            arguments = {name: value_from_text(ImportData, name, text) for name, text in fields.items()}
            return IMPORT_DATA.parse(arguments).request(upload.file_name)

        return write
    if sum(value is not None for value in (args.content, args.file_base64, args.url)) != 1:
        raise BadRequest("Give the file in one way: content, file_base64 or url.")
    request = args.request()
    if args.url is not None:
        return importer.url_source(request, ctx.app.fetcher, args.url)
    if args.content is not None:
        return importer.text_source(request, args.content)
    return importer.base64_source(request, args.file_base64 or "")


def _imported(result: ImportResult) -> ImportedData:
    names = [field.name for field in result.fields]
    return ImportedData(
        dataset_id=result.dataset.id if result.dataset else None,
        dataset=result.name,
        created=result.is_new,
        version=result.version.number if result.version else None,
        imported=result.row_count,
        rows=result.version.row_count if result.version else None,
        fields=[_result_field(field) for field in result.fields],
        format=result.format,
        assumed=dict(result.assumed),
        bad_rows=result.bad.count,
        first_bad_rows=[BadRowInfo(each.line, each.reason, each.content) for each in result.bad.first],
        widened=[WidenedField(*each) for each in result.widened],
        preview=[dict(zip(names, row, strict=True)) for row in result.preview],
        repeated=result.is_repeated,
    )


def query_rows(answer: DataAnswer) -> QueryRows:
    """Return the rows of a query as callers see them."""
    return QueryRows(
        fields=[_result_field(field) for field in answer.fields],
        rows=answer.objects(),
        total_rows=answer.total_rows,
        returned_rows=len(answer.rows),
        truncated=answer.truncation,
        datasets=_read_versions(answer.receipt),
        receipt=answer.sealed,
    )


def _result_field(field: DataField) -> ResultField:
    return ResultField(field.name, type_to_value(field.type))


def _read_versions(receipt: Receipt) -> list[ReadVersion]:
    return [ReadVersion(each.id, each.name, each.version, each.rows) for each in receipt.datasets]


# Declarations

_READ = ReadVersion(12, "Orders", 3, 2400)
_ROWS = QueryRows(
    [ResultField("city", "text"), ResultField("total", "decimal")],
    [{"city": "Graz", "total": 1250.5}],
    1,
    1,
    None,
    [_READ],
    "pX2…",
)
IMPORT_DATA = _write(
    import_data,
    title="Import a file",
    safety=Safety(destructive=True, idempotent=False, open_world=True),
    rest=Rest(
        "POST",
        "/data/import",
        form=Form(frozenset(ImportData.model_fields) - {"content", "file_base64", "url"}),
    ),
    mcp=Mcp(),
    example=Example(
        {"dataset": "Orders", "content": "city;amount\nGraz;12,5\n"},
        ImportedData(
            12,
            "Orders",
            False,
            5,
            1,
            1,
            [ResultField("city", "text"), ResultField("amount", "decimal")],
            "csv",
            {"delimiter": ";", "header": True, "encoding": "utf-8", "fields": {"amount": "decimal comma"}},
            0,
            [],
            [],
            [],
            False,
        ),
    ),
)
OPERATIONS = (
    IMPORT_DATA,
    _read(
        query_data,
        title="Query data",
        rest=Rest("POST", "/data/query"),
        mcp=Mcp(),
        example=Example({"sql": "SELECT city, sum(amount) AS total FROM Orders GROUP BY city"}, _ROWS),
    ),
    _read(
        verify_result,
        title="Verify a result",
        rest=Rest("POST", "/data/verify"),
        mcp=Mcp(),
        example=Example(
            {"receipt": "pX2…"},
            VerifiedResult(True, "", "SELECT count(*) FROM Orders", [_READ], 2400, EXAMPLE_TIMESTAMP, "ada", []),
        ),
    ),
    _write(
        push_data,
        title="Push rows",
        safety=SAVES,
        rest=Rest("POST", "/data/push"),
        mcp=Mcp(),
        example=Example(
            {"dataset": "Orders", "rows": [{"city": "Graz", "amount": 12.5}]},
            PushedRows(12, "Orders", False, 1, 2401, 4, [], False),
        ),
    ),
)
