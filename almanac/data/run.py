"""The only way to the rows of datasets: permission, row rules, limits, execution, and the receipt of the result.

    resolve the datasets that the text names → check permission → add row rules → run in a confined process → receipt

Whoever reads rows calls `run`, so that no interface can forget a rule.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from almanac.core import clock
from almanac.core.call import Call
from almanac.core.errors import BadRequest
from almanac.data import datasets, profiles, receipts, row_rules, versions
from almanac.data.dataset import Dataset
from almanac.data.engine import DataEngine
from almanac.data.fields import Field, field_to_value
from almanac.data.parquet_source import quoted
from almanac.data.profiles import DatasetProfile
from almanac.data.queries.query_plan import MAX_ROWS, DatasetFiles, QueryPlan, QueryResult
from almanac.data.receipts import ReadDataset, Receipt
from almanac.data.row_rules import RowRule
from almanac.data.versions import DatasetVersion

MAX_QUERY_CHARS = 20_000
MAX_NAMED_DATASETS = 50
MAX_CANDIDATE_NAMES = 1_000
NO_PROFILE_NOTE = "A rule limits the rows or fields that you see of this dataset, so its profile is not shown."
LATE_PROFILE_NOTE = "The profile is made in the background: ask again in a few seconds."

_NAMES = re.compile(r'"((?:[^"]|"")+)"|([^\W\d]\w*)')


@dataclass(frozen=True, slots=True)
class DataQuery:
    """A question about rows: SQL over any datasets, or C9QL over one."""

    text: str
    language: Literal["sql", "c9ql"] = "sql"
    dataset: str = ""  # c9ql: its name or id
    limit: int = 100
    as_of: int | None = None  # a time: the versions that were current then
    parameters: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class DataAnswer:
    """The rows of a query and their receipt."""

    fields: tuple[Field, ...]
    rows: list[list[Any]]
    total_rows: int
    truncation: str | None
    receipt: Receipt
    sealed: str  # the receipt as signed text

    def objects(self) -> list[dict[str, Any]]:
        """The rows as objects."""
        names = [field.name for field in self.fields]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of running the query of a receipt again."""

    is_confirmed: bool
    reason: str  # why it is not confirmed
    receipt: Receipt
    changes: tuple[DatasetVersion, ...]  # of the datasets since then


@dataclass(frozen=True, slots=True)
class _Source:
    """A dataset as this caller sees it."""

    dataset: Dataset
    version: DatasetVersion
    files: DatasetFiles
    rules: Sequence[RowRule]


async def run(call: Call, engine: DataEngine, query: DataQuery) -> DataAnswer:
    """Run a query with the rights of the caller."""
    _check(query)
    return await _answer(call, engine, query, await _sources(call, engine, query))


async def read(call: Call, engine: DataEngine, dataset: Dataset, limit: int) -> DataAnswer:
    """The rows of one dataset that the caller sees. The caller's role on it is in `dataset.role`."""
    query = DataQuery(f"SELECT * FROM {quoted(dataset.name)}", limit=limit)  # noqa: S608 - the name is quoted
    _check(query)
    source = await _current_source(call, engine, dataset)
    answer = await _answer(call, engine, query, [source])
    if all(field.name in source.files.hidden for field in source.version.fields):
        # The engine has no table without columns, so its result has one that the dataset does not have.
        return replace(answer, fields=(), rows=[[] for _ in answer.rows])
    return answer


async def _answer(call: Call, engine: DataEngine, query: DataQuery, sources: Sequence[_Source]) -> DataAnswer:
    result, used = await _execute(call, engine, query, sources)
    receipt = Receipt(
        org_id=call.actor.org_id,
        language=query.language,
        query=query.text,
        limit=query.limit,
        datasets=tuple(_read(source) for source in used),
        rights=_rights(used),
        result=_digest(result),
        total_rows=result.total_rows,
        at=clock.now(),
        by=call.actor.name,
    )
    sealed = receipts.seal(receipt, engine.key)
    return DataAnswer(result.fields, result.rows, result.total_rows, result.truncation, receipt, sealed)


async def verify(call: Call, engine: DataEngine, sealed: str) -> Verification:
    """Run the query of a receipt again on the same versions, and compare the results."""
    receipt = receipts.open_sealed(sealed, engine.key, call.actor.org_id)
    query = DataQuery(receipt.query, receipt.language, limit=receipt.limit)
    sources: list[_Source] = []
    changes: list[DatasetVersion] = []
    for read in receipt.datasets:
        dataset = await datasets.get(call.db, call, read.id)
        source = await _source(call, engine, dataset, await versions.get(call.db, dataset, read.version))
        # The text names the dataset as it was called then.
        sources.append(replace(source, dataset=replace(dataset, name=read.name)))
        later = await versions.find(call.db, dataset)
        changes += [each for each in later if each.number > read.version]
    result, used = await _execute(call, engine, query, sources)
    reason = _difference(receipt, used, result)
    return Verification(not reason, reason, receipt, tuple(changes))


async def check_condition(call: Call, engine: DataEngine, dataset: Dataset, condition: str) -> None:
    """Refuse a condition of a row rule that cannot be applied to the rows of a dataset."""
    files = DatasetFiles([], dataset.fields, condition, explains_condition=True)
    await engine.pool.run(QueryPlan('SELECT count(*) AS n FROM "data"', {"data": files}, 1))


async def profile_seen(call: Call, dataset: Dataset) -> tuple[DatasetProfile | None, str]:
    """The latest profile of a dataset, or None and the reason. It covers all rows, so a caller with a rule has none."""
    if await row_rules.applying(call.db, call, dataset):
        return None, NO_PROFILE_NOTE
    profile = await profiles.get(call.db, dataset.id)
    return profile, LATE_PROFILE_NOTE if profile is None and dataset.version else ""


async def _sources(call: Call, engine: DataEngine, query: DataQuery) -> list[_Source]:
    if query.language == "c9ql":
        named = [await datasets.get_by_key(call.db, call, query.dataset)]
    else:
        named = await _named_datasets(call, query.text)
    sources: list[_Source] = []
    for dataset in named:
        if query.as_of is None:
            sources.append(await _current_source(call, engine, dataset))
        else:
            sources.append(await _source(call, engine, dataset, await versions.as_of(call.db, dataset, query.as_of)))
    return sources


async def _named_datasets(call: Call, sql: str) -> list[Dataset]:
    """The datasets whose names are words of the text. Words that are no tables do no harm."""
    words = (quoted.replace('""', '"') if quoted else bare for quoted, bare in _NAMES.findall(sql))
    names = list(dict.fromkeys(datasets.fold(word) for word in words))
    if len(names) > MAX_CANDIDATE_NAMES:
        raise BadRequest(f"The query has more than {MAX_CANDIDATE_NAMES:,} names.", remedy="Shorten it.")
    found = await datasets.find_by_names(call, names)
    if len(found) > MAX_NAMED_DATASETS:
        raise BadRequest(f"The query names more than {MAX_NAMED_DATASETS} datasets.", remedy="Query fewer at once.")
    return found


async def _current_source(call: Call, engine: DataEngine, dataset: Dataset) -> _Source:
    version = await versions.get(call.db, dataset) if dataset.version else _empty(dataset)
    return await _source(call, engine, dataset, version)


async def _source(call: Call, engine: DataEngine, dataset: Dataset, version: DatasetVersion) -> _Source:
    stored = await versions.files_of(call.db, dataset, version.number)
    rules = await row_rules.applying(call.db, call, dataset)
    conditions = [f"({rule.condition}\n)" for rule in rules if rule.condition]
    files = DatasetFiles(
        [engine.files.path(file.name) for file in stored],
        version.fields,
        " AND ".join(conditions) or None,
        sorted(_hidden(rules)),
        [file.fields for file in stored],
    )
    return _Source(dataset, version, files, rules)


async def _execute(
    call: Call, engine: DataEngine, query: DataQuery, sources: Sequence[_Source]
) -> tuple[QueryResult, list[_Source]]:
    key = _cache_key(call, query, sources)
    result = engine.cache.get(key)
    if result is None:
        by_name = {source.dataset.name: source.files for source in sources}
        result = await engine.pool.run(QueryPlan(query.text, by_name, query.limit, language=query.language))
        if not _depends_on_time(query.text):
            engine.cache.put(key, result)
    read = {name.casefold() for name in result.datasets}
    return result, [source for source in sources if source.dataset.name.casefold() in read]


def _difference(receipt: Receipt, used: Sequence[_Source], result: QueryResult) -> str:
    """Why a result does not confirm a receipt; empty if it does."""
    if [each.digest for each in receipt.datasets] != [each.version.digest for each in used]:
        return "The stored versions are not those of the receipt."
    if receipt.rights != _rights(used):
        return "You see other rows or fields of these datasets than the caller of the query did."
    if receipt.result != _digest(result):
        return "The query has another result now."
    return ""


def _hidden(rules: Sequence[RowRule]) -> set[str]:
    return {name for rule in rules for name in rule.hidden}


def _rights(sources: Sequence[_Source]) -> str:
    rules = [[source.dataset.id, rule.condition, rule.hidden] for source in sources for rule in source.rules]
    return hashlib.sha256(orjson.dumps(rules)).hexdigest()[:16] if rules else ""


def _cache_key(call: Call, query: DataQuery, sources: Sequence[_Source]) -> str:
    read = [[source.dataset.id, source.dataset.name, source.version.number] for source in sources]
    content = [call.actor.org_id, query.language, query.text, query.dataset, query.limit, read, _rights(sources)]
    return hashlib.sha256(orjson.dumps(content)).hexdigest()


def _read(source: _Source) -> ReadDataset:
    version = source.version
    return ReadDataset(source.dataset.id, source.dataset.name, version.number, version.digest, version.row_count)


def _digest(result: QueryResult) -> str:
    return receipts.digest_of([field_to_value(field) for field in result.fields], result.rows)


def _empty(dataset: Dataset) -> DatasetVersion:
    """The version of a dataset that never had rows."""
    return DatasetVersion(dataset.id, 0, "append", (), 0, "", dataset.created_at, None)


def _depends_on_time(text: str) -> bool:
    return re.search(r"now|current_|today|yesterday|random|uuid|\$c9_", text, re.IGNORECASE) is not None


def _check(query: DataQuery) -> None:
    if not query.text.strip() or len(query.text) > MAX_QUERY_CHARS:
        raise BadRequest(f"A query has 1 to {MAX_QUERY_CHARS:,} characters.")
    if not 1 <= query.limit <= MAX_ROWS:
        raise BadRequest(f"limit: is not between 1 and {MAX_ROWS:,}.")
    if query.language == "c9ql" and not query.dataset:
        raise BadRequest("C9QL needs a dataset.", remedy="Name one, or write SQL.")
