"""PostgreSQL with pgvector, as used by hand: a table, three indexes, and both legs joined by their ranks."""
# psycopg is not installed beside our pins, so its types are unknown here.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
import search_asking
from search_asking import DEPTH, TOP
from search_corpus import DIMENSION, Corpus, Question

_AT_ONCE = 10_000
_TABLE = f"""
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE passages (
    id BIGINT PRIMARY KEY, collection INT NOT NULL, text TEXT NOT NULL, vector halfvec({DIMENSION}) NOT NULL,
    words TSVECTOR GENERATED ALWAYS AS (to_tsvector('english', text)) STORED
)
"""
_INDEXES = (
    "SET maintenance_work_mem = '2GB'",
    "CREATE INDEX ON passages (collection)",
    "CREATE INDEX ON passages USING gin (words)",
    "CREATE INDEX ON passages USING hnsw (vector halfvec_cosine_ops)",
    "VACUUM ANALYZE passages",
)
_VECTORS = """
SELECT id FROM passages WHERE {where} ORDER BY vector <=> CAST(%(vector)s AS halfvec) LIMIT {depth}
"""
_WORDS = """
SELECT id FROM passages, to_tsquery('english', %(words)s) q WHERE words @@ q AND {where}
ORDER BY ts_rank(words, q) DESC LIMIT {depth}
"""
_WHOLE = f"""
WITH near AS ({_VECTORS}), matching AS ({_WORDS}),
ranked AS (SELECT id, row_number() OVER () AS rank FROM near
    UNION ALL SELECT id, row_number() OVER () FROM matching)
SELECT id FROM ranked GROUP BY id ORDER BY sum(1.0 / (60 + rank)) DESC LIMIT {TOP}
"""
_LEGS = {"vectors": _VECTORS, "words": _WORDS, "whole": _WHOLE}
_SCOPES = {False: "TRUE", True: "collection = %(collection)s"}


def build(corpus: Corpus, place: str) -> None:
    with psycopg.connect(place, autocommit=True) as connection:
        connection.execute(_TABLE)
        described = corpus.described()
        with connection.cursor().copy(
            "COPY passages (id, collection, text, vector) FROM STDIN (FORMAT binary)"
        ) as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for part in corpus.batches(_AT_ONCE):
                vectors = np.asarray(corpus.vectors[part]).astype(">f2")
                homes: list[int] = corpus.homes[part].tolist()
                rows = zip(range(part.start, part.stop), homes, described[part], vectors, strict=True)
                copy.write(b"".join(_packed(*row) for row in rows))
            copy.write(struct.pack("!h", -1))
        for sql in _INDEXES:
            connection.execute(sql)


def _packed(number: int, home: int, text: str, vector: Any) -> bytes:
    """A row, as COPY takes it."""
    written = text.encode()
    head = struct.pack("!hiqiii", 4, 8, number, 4, home, len(written))
    return head + written + struct.pack("!ihh", 4 + 2 * DIMENSION, DIMENSION, 0) + vector.tobytes()


def disk(place: str) -> int:
    with psycopg.connect(place) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(found[0])


class ByHand:
    """The database, with a connection for each caller."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._mine = threading.local()

    def ask(self, leg: str, question: Question) -> Sequence[int]:
        sql = _LEGS[leg].format(where=_SCOPES[question.collection is not None], depth=DEPTH)
        values = {
            "vector": str(question.vector.tolist()),
            "words": " | ".join(re.findall(r"\w+", question.text)),
            "collection": question.collection,
        }
        return [row[0] for row in self._connection().execute(sql, values, prepare=True)]

    def _connection(self) -> Any:
        if not hasattr(self._mine, "connection"):
            self._mine.connection = psycopg.connect(self._place, autocommit=True)
            # Otherwise the filter sees only the nearest few, and most of the results are missing.
            self._mine.connection.execute("SET hnsw.iterative_scan = strict_order")
            self._mine.connection.execute(f"SET hnsw.ef_search = {DEPTH}")
        return self._mine.connection


if __name__ == "__main__":
    search_asking.run(build, disk, ByHand)
