"""What an import does to a dataset: all of the file or nothing, once."""

from typing import Any

import pytest

from almanac.core.errors import AlmanacError, BadRequest, Forbidden
from almanac.data import datasets
from almanac.data.dataset import FieldEdit
from tests.data.imports.importing import Importing

RAGGED = "a,b,c\n1,2,3\n4,5\n6,7,8,9\n1,2,3\n"


async def test_a_file_replaces_the_rows_unless_it_is_appended(importing: Importing):
    first = await importing.load("a\n1\n2\n")
    await importing.load("a\n3\n")
    assert await importing.rows() == [{"a": 3}]
    added = await importing.load("a,b\n1.5,x\n", strategy="append")
    assert await importing.rows() == [{"a": 3.0, "b": None}, {"a": 1.5, "b": "x"}]
    assert (first.is_new, added.is_new, added.widened) == (True, False, (("a", "integer", "decimal"),))


async def test_a_repeated_import_stores_nothing(importing: Importing):
    await importing.load("a\n1\n", strategy="append", idempotency_key="k")
    again = await importing.load("a\n1\n", strategy="append", idempotency_key="k")
    assert again.is_repeated
    assert await importing.rows() == [{"a": 1}]


async def test_bad_rows_refuse_the_file_with_lines_and_reasons(importing: Importing):
    await importing.load("a\n1\n")
    with pytest.raises(BadRequest, match=r"2 bad rows.* 3: too few values; 4: too many values. Nothing was stored"):
        await importing.load(RAGGED)
    assert await importing.rows() == [{"a": 1}]


async def test_bad_rows_are_left_out_on_request(importing: Importing):
    result = await importing.load(RAGGED, on_error="skip")
    assert (result.row_count, result.bad.count) == (2, 2)
    assert [(each.line, each.content) for each in result.bad.first] == [(3, "4,5"), (4, "6,7,8,9")]
    assert await importing.rows() == [{"a": 1, "b": 2, "c": 3}] * 2


async def test_a_dry_run_shows_fields_and_twenty_rows_and_stores_nothing(importing: Importing):
    result = await importing.load("n,when\n" + "".join(f"{n},03/04/2024\n" for n in range(50)), dry_run=True)
    assert (result.version, result.row_count, len(result.preview)) == (None, 50, 20)
    assert result.preview[1] == [1, "2024-04-03"]
    assert [(field.name, field.type.kind) for field in result.fields] == [("n", "integer"), ("when", "date")]
    assert not await importing.exists()


async def test_the_answer_says_what_was_assumed(importing: Importing):
    result = await importing.load("Däte;x\n03/04/2024;1,5\n".encode("cp1252"))
    assert result.assumed == {
        "delimiter": ";",
        "header": True,
        "skipped_lines": 0,
        "encoding": "windows-1252",
        "fields": {"Däte": "dates as d/m/Y, day first; month first is possible too", "x": "decimal comma"},
    }


async def test_the_caller_decides_where_detection_may_fail(importing: Importing):
    await importing.load("x,y\nz,w\n", header=False, delimiter=",")
    assert await importing.rows() == [{"column_1": "x", "column_2": "y"}, {"column_1": "z", "column_2": "w"}]
    await importing.load("Привет,b\n1,2\n".encode("cp1251"), encoding="windows-1251")
    assert await importing.rows() == [{"Привет": 1, "b": 2}]


async def test_a_declared_type_holds_or_refuses_the_file(importing: Importing):
    await importing.load("a\n1.5\n")
    warehouse, dataset = importing.warehouse, await importing.dataset()
    notes = {"a": FieldEdit(declared_type="decimal")}
    await warehouse.do(lambda tx: datasets.update(warehouse.ada, tx, dataset.id, notes=notes))
    await importing.load("a\n2\n")
    assert await importing.types() == {"a": "decimal"}
    with pytest.raises(BadRequest, match="declared type is decimal"):
        await importing.load("a\nx\n")
    assert await importing.rows() == [{"a": 2.0}]


async def test_a_colleague_cannot_replace_the_rows_and_another_organisation_has_its_own(importing: Importing):
    await importing.load("a\n1\n")
    with pytest.raises(Forbidden):
        await importing.load("a\n2\n", by=importing.warehouse.bob)
    assert (await importing.load("a\n3\n", by=importing.warehouse.eve)).is_new
    assert await importing.rows() == [{"a": 1}]


@pytest.mark.parametrize(
    ("content", "how"),
    [
        ("", {}),
        ("a,b\n", {}),
        (",".join(f"c{n}" for n in range(2_000)) + "\n" + ",".join(["1"] * 2_000) + "\n", {}),
        ("x" * 20_000_000 + ",b\n1,2\n", {}),
        (b"\x1f\x8b" + b"\0" * 100, {}),
        (b"\x00\x01\x02\x03" * 1000, {}),
        (b"PK\x03\x04" + b"\0" * 100, {}),
        ("<a><b/></a>", {}),
        ("a\n1\n", {"file_type": "parquet"}),
        ("a\n1\n", {"delimiter": "\n"}),
        ("a\n1\n", {"encoding": "klingon"}),
    ],
    ids=[
        "empty", "header only", "too many columns", "a line without an end", "gzip", "binary", "zip", "xml",
        "wrong type", "wrong delimiter", "unknown encoding",
    ],
)  # fmt: skip
async def test_a_file_that_cannot_be_read_changes_nothing(
    importing: Importing, content: str | bytes, how: dict[str, Any]
):
    await importing.load("a\n1\n")
    with pytest.raises(AlmanacError) as refused:
        await importing.load(content, **how)
    assert refused.value.status < 500
    assert await importing.rows() == [{"a": 1}]
    # No scratch file and no stored file without a row remains.
    incoming = importing.warehouse.files.path("x").parents[1] / "incoming"
    assert [file for file in incoming.rglob("*") if file.is_file()] == []


async def test_zero_bytes_and_formulas_are_text(importing: Importing):
    await importing.load(b"a,b\nx\0y,\"=1+cmd|' /C calc'!A0\"\n", file="t.csv")
    assert await importing.rows() == [{"a": "x\0y", "b": "=1+cmd|' /C calc'!A0"}]
