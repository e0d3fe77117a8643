"""CSV files as people have them."""

from datetime import date, datetime
from typing import Any

import pytest

from tests.data.imports.importing import Importing

# name: content, types, rows as lists
FILES: dict[str, tuple[str | bytes, dict[str, str], list[list[Any]]]] = {
    "plain": ("a,b\n1,x\n2,y\n", {"a": "integer", "b": "text"}, [[1, "x"], [2, "y"]]),
    "semicolons and decimal commas": (
        "a;b\n1,5;x\n-2,25;y\n",
        {"a": "decimal", "b": "text"},
        [[1.5, "x"], [-2.25, "y"]],
    ),
    "points between thousands": (
        "a;b\n1.234,5;1\n2.000,25;2\n",
        {"a": "decimal", "b": "integer"},
        [[1234.5, 1], [2000.25, 2]],
    ),
    "commas between thousands": (
        'a;b\n"1,234";x\n"12,234,567";y\n5;z\n',
        {"a": "integer", "b": "text"},
        [[1234, "x"], [12234567, "y"], [5, "z"]],
    ),
    "tabs": ("a\tb\n1\tx\n", {"a": "integer", "b": "text"}, [[1, "x"]]),
    "pipes": ("a|b\n1|2\n", {"a": "integer", "b": "integer"}, [[1, 2]]),
    "a byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", {"a": "integer", "b": "integer"}, [[1, 2]]),
    "windows-1252": ("näme,b\n“ä€”,2\n".encode("cp1252"), {"näme": "text", "b": "integer"}, [["“ä€”", 2]]),
    "utf-16": ("näme,b\nä,2\n".encode("utf-16"), {"näme": "text", "b": "integer"}, [["ä", 2]]),
    "utf-16 without a mark": ("name,b\nadä,2\n".encode("utf-16-le"), {"name": "text", "b": "integer"}, [["adä", 2]]),
    "carriage returns": (b"a,b\r1,2\r3,4\r", {"a": "integer", "b": "integer"}, [[1, 2], [3, 4]]),
    "lines of Windows": (b"a,b\r\n1,2\r\n3,4\r\n", {"a": "integer", "b": "integer"}, [[1, 2], [3, 4]]),
    "line breaks and quotes in values": (
        'a,b\n"x\ny",2\n"z ""q""",3\n',
        {"a": "text", "b": "integer"},
        [["x\ny", 2], ['z "q"', 3]],
    ),
    "leading zeros": ("zip,b\n01234,1\n90123,2\n", {"zip": "text", "b": "integer"}, [["01234", 1], ["90123", 2]]),
    "digits beyond 64 bits": (
        "a,b\n12345678901234567890123,1\n2,2\n",
        {"a": "text", "b": "integer"},
        [["12345678901234567890123", 1], ["2", 2]],
    ),
    "no header": ("1,2\n3,4\n", {"column_1": "integer", "column_2": "integer"}, [[1, 2], [3, 4]]),
    "equal, empty and similar names": (
        "a,a,,A\n1,2,3,4\n",
        {"a": "integer", "a_2": "integer", "column_3": "integer", "A": "integer"},
        [[1, 2, 3, 4]],
    ),
    "names with spaces and other letters": (
        "Net amount,城市\n1,x\n",
        {"Net amount": "integer", "城市": "text"},
        [[1, "x"]],
    ),
    "lines before the table": (
        "Report of sales\nGenerated 2024\n\na,b,c\n1,2,3\n4,5,6\n",
        {"a": "integer", "b": "integer", "c": "integer"},
        [[1, 2, 3], [4, 5, 6]],
    ),
    "the delimiter of Excel": ("sep=;\na;b\n1;2\n", {"a": "integer", "b": "integer"}, [[1, 2]]),
    "words for a missing number": (
        "a,b\n1,x\nNA,y\n,z\n2,w\n",
        {"a": "integer", "b": "text"},
        [[1, "x"], [None, "y"], [None, "z"], [2, "w"]],
    ),
    "truth values": ("a,b\ntrue,1\nFALSE,2\n", {"a": "boolean", "b": "integer"}, [[True, 1], [False, 2]]),
    "ISO dates": (
        "d,t\n2024-01-31,2024-01-31T10:00:00+02:00\n",
        {"d": "date", "t": "timestamp"},
        [[date(2024, 1, 31), datetime(2024, 1, 31, 8)]],
    ),
    "days first": (
        "d,x\n03/04/2024,1\n13/04/2024,2\n",
        {"d": "date", "x": "integer"},
        [[date(2024, 4, 3), 1], [date(2024, 4, 13), 2]],
    ),
    "months first": (
        "d,x\n03/04/2024,1\n03/14/2024,2\n",
        {"d": "date", "x": "integer"},
        [[date(2024, 3, 4), 1], [date(2024, 3, 14), 2]],
    ),
    "dates with points": ("d;x\n31.12.2024;1\n", {"d": "date", "x": "integer"}, [[date(2024, 12, 31), 1]]),
    "dates with times": (
        "d,x\n13/04/2024 09:05,1\n",
        {"d": "timestamp", "x": "integer"},
        [[datetime(2024, 4, 13, 9, 5), 1]],
    ),
    "names of months": (
        "d,x\n3 Apr 2024,1\n13 May 2024,2\n",
        {"d": "date", "x": "integer"},
        [[date(2024, 4, 3), 1], [date(2024, 5, 13), 2]],
    ),
    "impossible dates": ("d,x\n2024-02-30,1\n", {"d": "text", "x": "integer"}, [["2024-02-30", 1]]),
    "money and shares": ("a,b\n$5,12%\n$6,13%\n", {"a": "text", "b": "text"}, [["$5", "12%"], ["$6", "13%"]]),
    "one column": ("name\nada\nbob\n", {"name": "text"}, [["ada"], ["bob"]]),
    "a column without values": ("a,b\n1,\n2,\n", {"a": "integer", "b": "text"}, [[1, None], [2, None]]),
}


@pytest.mark.parametrize("name", FILES)
async def test_a_file_is_read_as_people_mean_it(importing: Importing, name: str):
    content, types, rows = FILES[name]
    result = await importing.load(content)
    assert (result.format, result.row_count) == ("csv", len(rows))
    assert await importing.types() == types
    assert [list(row.values()) for row in await importing.rows()] == rows


async def test_a_late_value_decides_the_type(importing: Importing):
    await importing.load("a,b\n" + "1,1\n" * 60_000 + "1.5,x\n")
    assert await importing.types() == {"a": "decimal", "b": "text"}
    assert (await importing.rows())[-1] == {"a": 1.5, "b": "x"}
