"""The examples of docs/reference/c9ql.md. Run as a program, it writes their results into the page."""

import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import duckdb
import orjson

from almanac.data.c9ql import Context, compile_query, parse
from almanac.data.fields import DATE, INTEGER, TEXT, Field, list_of, record_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "c9ql.md"
NOW = datetime(2026, 1, 15, 10, 30)
EXAMPLE = re.compile(r"```c9ql ?(\w*)\n(.+?)\n```\n\n((?:\|.*\n)*)")

LINE = record_of(Field("sku", TEXT), Field("count", INTEGER))
FIELDS = {
    "sales": [
        Field("Day", DATE),
        Field("Customer", TEXT),
        Field("Message Type", TEXT),
        Field("Sent", INTEGER),
        Field("Opened", INTEGER),
    ],
    "orders": [
        Field("Id", INTEGER),
        Field("Tags", list_of(TEXT)),
        Field("Lines", list_of(LINE)),
        Field("Address", record_of(Field("city", TEXT), Field("zip", TEXT))),
        Field("Note", TEXT),
    ],
}
TABLES = {
    "sales": """
        ("Day" DATE, "Customer" VARCHAR, "Message Type" VARCHAR, "Sent" BIGINT, "Opened" BIGINT);
        INSERT INTO sales VALUES ('2026-01-05', 'Acme', 'Transactional', 100, 40),
        ('2026-01-05', 'Borealis', 'Newsletter', 300, 90), ('2026-01-06', 'Acme', 'Newsletter', 200, NULL),
        ('2026-01-14', 'Borealis', 'Transactional', 50, 25)
    """,
    "orders": """
        ("Id" BIGINT, "Tags" VARCHAR[], "Lines" STRUCT(sku VARCHAR, count BIGINT)[],
         "Address" STRUCT(city VARCHAR, zip VARCHAR), "Note" VARCHAR);
        INSERT INTO orders VALUES
        (1, ['new', 'eu'], [{'sku': 'A', 'count': 2}, {'sku': 'B', 'count': 1}], {'city': 'Oslo', 'zip': '0150'},
         '{"from":"web","items":[7,8]}'),
        (2, [], [{'sku': 'C', 'count': 5}], {'city': 'Bonn', 'zip': '53111'}, NULL)
    """,
}


def connect() -> duckdb.DuckDBPyConnection:
    """Return a database with the tables of the page."""
    connection = duckdb.connect(config={"threads": 1})
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {name} {columns}")
    return connection


def run(connection: duckdb.DuckDBPyConnection, table: str, text: str) -> str:
    """Return the result of a query as a table of Markdown."""
    query, keys = parse(text, FIELDS[table]), list[list[str]]()
    while True:
        compiled = compile_query(query, FIELDS[table], table, context=Context(NOW), transposed=keys)
        rows = connection.execute(compiled.query.sql("duckdb")).fetchall()
        if not compiled.asks_for_keys:
            names = [each.name for each in compiled.fields]
            return (
                "".join(map(line, [names, ["---"] * len(names), *rows]))
                .replace("| --- ", "|---")
                .replace("--- |", "---|")
            )
        keys.append([row[0] for row in rows])


def line(cells: Any) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(map(cell, cells)) + " |\n"


def cell(value: Any) -> str:
    """Return a value as it is shown on the page."""
    if value is None:
        return "—"
    if isinstance(value, list | dict):
        return orjson.dumps(value).decode()
    return str(value) if isinstance(value, date | str | int) else f"{value:.6g}"


def filled(page: str) -> str:
    """Return the page with the results of its examples."""
    connection = connect()

    def with_result(found: re.Match[str]) -> str:
        header = f"```c9ql {found[1]}".rstrip()
        return f"{header}\n{found[2]}\n```\n\n{run(connection, found[1] or 'sales', found[2])}"

    text = EXAMPLE.sub(with_result, page)
    connection.close()
    return text


if __name__ == "__main__":
    PAGE.write_text(re.sub(r"(\|\n)(?=[^|\n])", r"\1\n", filled(PAGE.read_text("utf-8"))), "utf-8")
