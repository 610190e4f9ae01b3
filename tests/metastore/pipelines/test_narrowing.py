"""Which columns and rows of its inputs a query needs. The pipelines of the other tests read no more than that, either."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import sqlglot

from skiway.formats import TableName
from skiway.formats.files import Files
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.changes.evolution import partition_spec
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.lineage import InputState
from skiway.metastore.pipelines.narrowing import narrowed
from skiway.metastore.pipelines.spark_sql import parse_query

COLUMNS = pa.schema({"id": pa.int64(), "Region": pa.string(), "day": pa.date32(), "price": pa.float64()})


class Table(Input):
    """An input that is not read."""

    columns = COLUMNS  # type: ignore[assignment]


def need(sql: str, table: str = "t") -> tuple[tuple[str, ...] | None, str]:
    query = parse_query(sql)
    read = Table(None, None, None, InputState("", 0, ""))  # type: ignore[arg-type]
    found = narrowed(query, dict.fromkeys(query.reads, read))[TableName((), table)]
    shown = [] if found.where is None else [str(sorted(found.where.columns))]
    return found.selected, "".join(shown)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT id FROM t", ("id",)),
        ("SELECT sum(PRICE) FROM t GROUP BY `region`", ("Region", "price")),
        ("SELECT count(*) FROM t", ("id",)),
        ("SELECT 1 FROM t", ("id",)),
        ("SELECT t.id FROM t JOIN u USING (day)", ("id", "day")),
        ("SELECT x.id FROM (SELECT id, price FROM t) x", ("id", "price")),
        ("SELECT * FROM t", None),
        ("SELECT t.* FROM t", None),
        ("SELECT u.id FROM u NATURAL JOIN t", None),
        ("SELECT a FROM t AS x(a, b, c, d)", None),
        ("SELECT id FROM t TABLESAMPLE (10 ROWS)", None),
    ],
)
def test_columns(sql, columns):
    assert need(sql)[0] == columns


@pytest.mark.parametrize(
    ("sql", "filtered"),
    [
        ("SELECT id FROM t WHERE day = DATE '2026-01-01' AND Region IN ('a', 'b')", "['Region', 'day']"),
        ("SELECT id FROM t WHERE 5 < id", "['id']"),
        ("SELECT id FROM t WHERE (id BETWEEN 1 AND 2) AND price > 1", "['id']"),
        ("SELECT count(*) FROM (SELECT id FROM t WHERE day = '2026-01-01') x WHERE id > 1", "['day']"),
        ("SELECT t.id FROM u LEFT JOIN t ON t.id = u.id WHERE t.id = 3", "['id']"),
        ("SELECT id FROM u JOIN t USING (id) WHERE day = '2026-01-01'", ""),  # it may be the column of u
        ("SELECT id FROM t WHERE id = 1 OR day = '2026-01-01'", ""),
        ("SELECT id FROM t WHERE NOT id = 1", ""),
        ("SELECT id FROM t WHERE id IS NULL", ""),
        ("SELECT id FROM t WHERE id = '1'", ""),  # Spark casts the text
        ("SELECT id FROM t WHERE id < 5.5", ""),
        ("SELECT id FROM t WHERE day = '2026-1-1'", ""),
        ("SELECT id FROM t WHERE id = 1 UNION ALL SELECT id FROM t", ""),
        ("SELECT id, rank() OVER (ORDER BY price) AS r FROM t HAVING id = 1", ""),
        ("SELECT id FROM u WHERE id IN (SELECT id FROM t) AND day = '2026-01-01'", ""),
    ],
)
def test_rows(sql, filtered):
    assert need(sql)[1] == filtered


def test_results_of_random_queries_stay_the_same():
    rng = random.Random(4)
    rows = pa.table(
        {
            "id": [rng.choice([None, 1, 2, 3]) for _ in range(60)],
            "Region": [rng.choice([None, "a", "b"]) for _ in range(60)],
            "day": pa.array([rng.choice([None, 20454, 20455]) for _ in range(60)], pa.int32()).cast(pa.date32()),
            "price": [rng.choice([None, 1.0, 2.5]) for _ in range(60)],
        }
    )
    conditions = [
        "{}id = 2",
        "{}id IN (1, 3)",
        "{}day = DATE '2026-01-01'",
        "{}Region > 'a'",
        "2 <= {}id",
        "{}id IS NULL",
        "{}price > 1",
    ]
    narrower = 0
    database = duckdb.connect(config={"threads": 1})
    for _ in range(60):
        kind = rng.choice(["", "INNER", "LEFT", "RIGHT", "FULL"])
        own = "t." if kind else rng.choice(["", "t."])
        where = rng.choice([" AND ", " OR "]).join(
            rng.choice(conditions).format(own) for _ in range(rng.randrange(1, 4))
        )
        joined = f" {kind} JOIN u ON t.id = u.id" if kind else ""
        sql = f"SELECT count(*) AS n, sum(t.price) AS s FROM t{joined} WHERE {where}"
        query = parse_query(sql)
        read = Table(None, None, None, InputState("", 0, ""))  # type: ignore[arg-type]
        needed = narrowed(query, dict.fromkeys(query.reads, read))
        results = []
        for is_narrow in (False, True):
            for name, each in needed.items():
                part = rows
                if is_narrow and each.where is not None:
                    narrower += 1
                    part = part.filter(_mask(each, rows))
                database.register(name.name, part.select(each.selected or COLUMNS.names) if is_narrow else part)
            (text,) = sqlglot.transpile(sql, read="spark", write="duckdb")
            results.append(database.execute(text).fetchall())
        assert results[0] == results[1], sql
    assert narrower > 20
    database.close()


def _mask(read: Input, rows: pa.Table) -> pa.Array:
    from skiway.airport.filters.arrow import row_mask

    assert read.where is not None
    (batch,) = rows.cast(COLUMNS).combine_chunks().to_batches()
    mask = row_mask(read.where, COLUMNS)
    assert mask is not None
    return mask(batch)


class Counted:
    """A file that counts the bytes that are read from it."""

    def __init__(self, path: str, counts: dict[str, int]) -> None:
        self.file, self.path, self.counts, self.closed = Path(path).open("rb"), path, counts, False  # noqa: SIM115

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.counts[self.path] = self.counts.get(self.path, 0) + len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_model_of_two_columns_and_one_partition_reads_only_their_bytes(lake, monkeypatch):
    """The same call of the reader is made in tasks of Spark."""
    names = [f"c{number}" for number in range(48)]
    schema = pa.schema({"day": pa.int32(), "id": pa.int64()} | dict.fromkeys(names, pa.int64()))
    made = iceberg_schema(schema)
    wide = lake.lake.create("wide", made, spec=partition_spec(made, ["day"]))
    rng = np.random.default_rng(1)

    def rows(day: int, count: int) -> pa.Table:
        noise = {name: rng.integers(0, 2**62, count) for name in names}
        return pa.table({"day": np.full(count, day, np.int32), "id": rng.integers(0, 2**62, count), **noise})

    with DataFileWriter(wide.files, wide.metadata) as writer:
        for day in range(100):
            writer.write(rows(day, 20_000 if day == 42 else 5).combine_chunks().to_batches()[0])
        files = writer.close()
    managed.change(lake.lake.home, lake.lake.warehouse, wide.table.resource_id, append(files))
    assert len(files) == 100
    counts: dict[str, int] = {}
    monkeypatch.setattr(Files, "_open_local", lambda _, path: (pa.PythonFile(Counted(path, counts), mode="r"), None))
    lake.queries = {"narrow": "SELECT id, c7 FROM wide WHERE day = 42"}
    assert lake.run().failures == {}
    own = {file.file_path.removeprefix("file://") for file in files}
    read = {path: count for path, count in counts.items() if path in own}
    monkeypatch.undo()
    assert len(read) == 1, list(read)
    assert 2 * 8 * 20_000 < sum(read.values()) < 2 * 8 * 20_000 + 200_000
    assert len(lake.rows("narrow")) == 20_000
