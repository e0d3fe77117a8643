"""Test sets of retrieval in BEIR form: documents, queries and relevance judgements, read from three files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from almanac.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class SetLine:
    """A document or a query."""

    id: str
    text: str
    title: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Documents, queries, and for each query the grades of documents."""

    name: str
    corpus: Sequence[SetLine]
    queries: Sequence[SetLine]
    grades: Mapping[str, Mapping[str, float]]


def read_set(folder: Path) -> RetrievalSet:
    """Read a set from corpus.jsonl, queries.jsonl and qrels.jsonl. Queries without a judgement are left out."""
    corpus = _read_lines(folder / "corpus.jsonl")
    queries = _read_lines(folder / "queries.jsonl", has_text=True)
    parts = {line.part for line in corpus}
    for number, query in enumerate(queries, 1):
        if query.part and query.part not in parts:
            raise BadRequest(f"queries.jsonl, line {number}: no document has this 'conv'.")
    grades: dict[str, dict[str, float]] = {}
    for number, row in _rows(folder / "qrels.jsonl"):
        query, document, grade = row.get("query-id"), row.get("corpus-id"), row.get("score")
        if query is None or document is None or not isinstance(grade, int | float) or isinstance(grade, bool):
            raise BadRequest(f"qrels.jsonl, line {number}: it needs 'query-id', 'corpus-id' and a number as 'score'.")
        grades.setdefault(str(query), {})[str(document)] = grade
    judged = [query for query in queries if any(grade > 0 for grade in grades.get(query.id, {}).values())]
    if not corpus or not judged:
        raise BadRequest("There is nothing to measure.", remedy="qrels.jsonl has to judge queries of queries.jsonl.")
    return RetrievalSet(folder.resolve().name, corpus, judged, grades)


def _read_lines(file: Path, *, has_text: bool = False) -> list[SetLine]:
    lines: dict[str, SetLine] = {}
    for number, row in _rows(file):
        id, text, title, part = (row.get(name, "") for name in ("_id", "text", "title", "conv"))
        if not isinstance(id, str | int) or id == "" or not isinstance(text, str) or not isinstance(title, str):
            raise BadRequest(f"{file.name}, line {number}: it needs '_id', and texts as 'text' and 'title'.")
        if has_text and not text.strip():
            raise BadRequest(f"{file.name}, line {number}: 'text' is empty.")
        if str(id) in lines:
            raise BadRequest(f"{file.name}, line {number}: an earlier line has this '_id'.")
        lines[str(id)] = SetLine(str(id), text, title, str(part))
    return list(lines.values())


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the objects of a file, each with its line number."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _row(file, number, line)
    except OSError as error:
        raise BadRequest(
            f"{file.name} cannot be read: {error.strerror}.",
            remedy="The folder needs corpus.jsonl, queries.jsonl and qrels.jsonl.",
        ) from None


def _row(file: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise BadRequest(f"{file.name}, line {number}: it is not JSON.") from None
    if not isinstance(row, dict):
        raise BadRequest(f"{file.name}, line {number}: it is not a JSON object.")
    return cast("dict[str, Any]", row)
