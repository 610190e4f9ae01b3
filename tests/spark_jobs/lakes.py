"""Tables of Parquet files, and the statistics that DuckDB computes for their columns."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skiway.formats import Snapshot, TableHandle, open_source
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1

ROWS = 900
SPARK = [
    pytest.mark.needs("java", "spark"),
    pytest.mark.timeout(600),
    # Spark leaves the sockets through which rows arrive to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


def rows_of_all_types(seed: int, rows: int = ROWS) -> pa.Table:
    """Every profiled type, with NULLs, NaN, both zeros and days before 1970."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-1000, 1000, rows)
    words = [f"wörd-{number % 700}" for number in integers]
    floats = rng.normal(size=rows)
    floats[:6] = [math.nan, -0.0, 0.0, math.inf, -math.inf, math.nan]

    def some(values: Any, of: pa.DataType) -> pa.Array:
        present = rng.random(rows) >= 0.1
        plain = getattr(values, "tolist", lambda: values)()
        return pa.array([value if keep else None for value, keep in zip(plain, present, strict=True)], of)

    return pa.table(
        {
            "small": some(integers % 100, pa.int8()),
            "number": some(integers, pa.int32()),
            "long": some(integers * 10**15, pa.int64()),
            "unsigned": some(2**63 + integers.astype(object) * 10**15, pa.uint64()),
            "float": some(floats.astype(np.float32), pa.float32()),
            "double": some(floats, pa.float64()),
            "price": some([Decimal(int(number)).scaleb(-2) for number in integers], pa.decimal128(9, 2)),
            "huge": some([Decimal(int(number)).scaleb(-4) for number in integers], pa.decimal128(38, 4)),
            "day": some(integers, pa.date32()),
            "moment": some(integers * 10**9 + 1, pa.timestamp("us")),
            "instant": some(integers * 10**9 + 1, pa.timestamp("us", tz="UTC")),
            "millis": some(integers * 1000, pa.timestamp("ms")),
            "nanos": some(integers * 10**9, pa.timestamp("ns")),
            "clock": some(np.abs(integers) * 10**6, pa.time64("us")),
            "word": some(words, pa.string()),
            "large": some(words, pa.large_string()),
            "bytes": some([word.encode() for word in words], pa.binary()),
            "fixed": some([f"{number:05d}".encode() for number in np.abs(integers)], pa.binary(5)),
            "uuid": some([uuid.UUID(int=int(number)).bytes for number in np.abs(integers)], pa.uuid()),
            "flag": some(integers % 2 == 0, pa.bool_()),
            "void": pa.nulls(rows, pa.int64()),
            "box": pa.array([None if number == 7 else {"in.side": int(number)} for number in integers]),
            "kinds": pa.array([["a", "b"][number % 2] for number in integers]).dictionary_encode(),
        }
    )


def write(folder: Path, *tables: pa.Table, **options: Any) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:05d}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path, **options)
    return paths


@contextmanager
def opened(folder: Path, name: str = "t") -> Iterator[tuple[TableHandle, Snapshot]]:
    with open_source("parquet", str(folder)) as source:
        handle = source.load((), name)
        current = handle.current()
        assert current is not None
        yield handle, current


@dataclass(frozen=True)
class Oracle:
    """What DuckDB reports for one column."""

    rows: int
    nulls: int
    nans: int
    distinct: int
    values: list[Any]  # in order, without NULL and NaN


def oracle(table: pa.Table, path: str) -> Oracle:
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        duck.register("t", table)
        rows, values = duck.execute(f"SELECT count(*), count({path}) FROM t").fetchone() or (0, 0)
        kind = str(duck.execute(f"SELECT typeof({path}) FROM t LIMIT 1").fetchall())
        if "ZONE" in kind:
            path = f"({path} AT TIME ZONE 'UTC')"
        is_nan = f"isnan({path})" if "FLOAT" in kind or "DOUBLE" in kind else "false"
        (nans,) = duck.execute(f"SELECT count(*) FROM t WHERE {is_nan}").fetchone() or (0,)
        (distinct,) = duck.execute(f"SELECT count(DISTINCT {path}) FROM t").fetchone() or (0,)
        found = duck.execute(f"SELECT {path} FROM t WHERE {path} IS NOT NULL AND NOT {is_nan} ORDER BY 1").fetchall()
    return Oracle(rows, rows - values, nans, distinct, [value for (value,) in found])


def comparable(text: str, stats: v1.ColumnStats) -> Any:
    return bound(logical_type(stats.logical_type), text).value


def comparable_value(value: Any) -> Any:
    """DuckDB's Python values in the form in which bounds are compared."""
    return value.bytes if isinstance(value, uuid.UUID) else value


def quantiles(stats: v1.ColumnStats) -> dict[float, Any]:
    quantiles_by_rank = json.loads(stats.properties["quantiles"])
    return {float(rank): comparable(text, stats) for rank, text in quantiles_by_rank.items()}
