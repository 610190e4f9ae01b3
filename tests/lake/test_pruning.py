"""Files that a filter excludes are deleted before the query, and the result is still correct."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import Lake
from scope import sample
from skiway.client import AirportClient, col
from skiway.errors import PreconditionFailed

START = datetime(2026, 1, 1, tzinfo=UTC)
PARTS, ROWS = 4, 50


def part(number: int) -> pa.Table:
    """The rows of one partition: ids, timestamps and texts increase from one partition to the next."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "region": [f"region {number}"] * ROWS,
            "seen": pa.array([START + timedelta(hours=each) for each in ids], pa.timestamp("us", "UTC")),
            "name": [f"name {each:05d}" for each in ids],
        }
    )


def parquet(lake: Lake, folder: Path) -> tuple[str, str, str]:
    for number in range(PARTS):
        place = folder / "t" / f"region=region {number}"
        place.mkdir(parents=True)
        pq.write_table(part(number).drop_columns(["region"]), place / "f.parquet")
    lake.mirror("parquet", str(folder))
    return "parquet", "root", "t"


def delta(lake: Lake, folder: Path) -> tuple[str, str, str]:
    from deltalake import write_deltalake

    for number in range(PARTS):
        write_deltalake(folder / "t", part(number), mode="append", partition_by=["region"])
    lake.mirror("delta", str(folder))
    return "delta", "root", "t"


def iceberg(lake: Lake, folder: Path) -> tuple[str, str, str]:
    from pyiceberg.catalog.sql import SqlCatalog

    folder.mkdir()
    uri = f"sqlite:///{folder}/catalog.db"
    with SqlCatalog("lake", uri=uri, warehouse=f"file://{folder}/warehouse") as catalog:
        catalog.create_namespace("sales")
        table = catalog.create_table("sales.t", part(0).schema)
        with table.update_spec() as update:
            update.add_field("region", "identity", "region")
        for number in range(PARTS):
            table.append(part(number))
    lake.mirror("iceberg", uri, options={"catalog-name": "lake", "warehouse": f"file://{folder}/warehouse"})
    return "iceberg", "sales", "t"


def managed(lake: Lake, folder: Path) -> tuple[str, str, str]:
    with lake.rest() as rest, lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", part(0).schema)
        with rest.load_table("s.t").update_spec() as update:
            update.add_field("seen", "day", "day")
            update.add_field("region", "truncate[8]", "short")
            update.add_field("region", "identity", "region_key")
        for number in range(PARTS):
            db.insert("s.t", part(number))
    return "managed", "s", "t"


def sorted_only(lake: Lake, folder: Path) -> tuple[str, str, str]:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", part(0).schema)
        for number in range(PARTS):
            db.insert("s.t", part(number))
    return "managed", "s", "t"


FILTERS = {
    "the partition": col("region") == "region 2",
    "two partitions": col("region").isin(["region 2", "region 9"]),
    "a number": col("id") == 120,
    "a range of numbers": (col("id") >= 110) & (col("id") < 130),
    "a moment": (col("seen") >= START + timedelta(hours=101)) & (col("seen") < START + timedelta(hours=149)),
    "a text": col("name") == "name 00120",
    "the start of a text": (col("name") >= "name 0010") & (col("name") < "name 0013"),
}


@pytest.mark.parametrize(
    ("where", "make"), sample(product(FILTERS, [parquet, delta, iceberg, managed, sorted_only]), every=6)
)
def test_files_that_cannot_match_may_be_missing(
    lake: Lake, tmp_path: Path, make: Callable[[Lake, Path], tuple[str, str, str]], where: str
) -> None:
    catalog, *name = make(lake, tmp_path / "files")
    table = (name[0], name[1])
    with lake.served() as location, AirportClient(location, catalog) as db, db.transaction():
        if make is parquet:
            assert db.count(table) == PARTS * ROWS  # the folder is listed when the transaction first reads it
        gone = [file for file in tmp_path.rglob("*.parquet") if _ids(file)[0] // ROWS != 2]
        assert len(gone) >= PARTS - 1
        for file in gone:
            file.unlink()
        found = db.scan(table, where=FILTERS[where]).read_all().sort_by("id")
        assert found.select(["id", "region", "name"]).to_pylist() == _expected(where)
        with pytest.raises(PreconditionFailed, match="is missing"):
            db.scan(table, where=col("id") == 7).read_all()


def _ids(file: Path) -> list[int]:
    found: list[int] = pq.ParquetFile(file).read(columns=["id"])["id"].to_pylist()
    return found


def _expected(where: str) -> list[dict[str, object]]:
    import pyarrow.compute as pc

    rows = part(2).select(["id", "region", "name"])
    conditions = {
        "a number": pc.field("id") == 120,
        "a range of numbers": (pc.field("id") >= 110) & (pc.field("id") < 130),
        "a moment": (pc.field("id") >= 101) & (pc.field("id") < 149),
        "a text": pc.field("id") == 120,
        "the start of a text": (pc.field("id") >= 100) & (pc.field("id") < 130),
    }
    found: list[dict[str, object]] = (rows.filter(conditions[where]) if where in conditions else rows).to_pylist()
    return found
