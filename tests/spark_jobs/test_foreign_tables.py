"""Tables written by Spark: merge-on-read deletes, deletion vectors, column mapping, INT96. Spark's own reads are the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scope
from formats.foreign_tables import make_fixtures
from formats.oracles import assert_same_rows
from formats.pushed_filters import pushed_filter
from skiway.formats import Content, Snapshot, Source, TableHandle, open_source
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

MERGED_ON_READ = make_fixtures.MERGED_ON_READ if scope.ALL else ["v2", "v3_partitioned"]
ICEBERG = ["evolved", *MERGED_ON_READ]
DELTA = ["by_id", "mapped", "vectors", "widened"]

# Tables that Spark wrote are part of `tests/formats`. Here the installed version writes them again.
pytestmark = [*SPARK, pytest.mark.full]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    session = session_with_jars(make_fixtures.spark_catalogs(folder))
    make_fixtures.write_with_spark(folder, session, MERGED_ON_READ)
    return folder


@pytest.fixture(scope="module")
def iceberg(written: Path) -> Iterator[Source]:
    with open_source("iceberg", str(written / "iceberg")) as source:
        yield source


@pytest.fixture(scope="module")
def delta(written: Path) -> Iterator[Source]:
    with open_source("delta", str(written / "delta")) as source:
        yield source


def expected(written: Path, *path: str) -> pa.Table:
    return pq.read_table(written.joinpath("expected", *path))


@pytest.mark.parametrize("name", ICEBERG)
def test_iceberg_snapshots_have_the_rows_that_spark_reads(written: Path, iceberg: Source, name: str) -> None:
    table = iceberg.load(("sales",), name)
    for snapshot in table.snapshots():
        assert_same_rows(table.read(snapshot).read_all(), expected(written, "iceberg", name, str(snapshot.id)))
    rows = table.read(now(table), schema=table.schema.arrow).read_all()
    assert_same_rows(rows, expected(written, "iceberg", name, "now"))


@pytest.mark.parametrize("name", DELTA)
def test_delta_versions_have_the_rows_that_spark_reads(written: Path, delta: Source, name: str) -> None:
    table = delta.load((), name)
    for snapshot in table.snapshots():
        assert_same_rows(table.read(snapshot).read_all(), expected(written, "delta", name, str(snapshot.id)))


@pytest.mark.parametrize("name", MERGED_ON_READ)
def test_deletes_exist_and_are_known_per_file(iceberg: Source, name: str) -> None:
    table = iceberg.load(("sales",), name)
    files = table.files(now(table)).to_pylist()
    deletes = [file["ordinal"] for file in files if file["content"] == Content.POSITION_DELETES]
    used = {ordinal for file in files for ordinal in file["deletes"]}
    assert used
    assert used <= set(deletes)
    known = [file["deleted_rows"] for file in files if file["deletes"]]
    assert all(known) if name.startswith("v3") else set(known) == {None}


def test_delta_deletion_vectors_are_counted(delta: Source) -> None:
    table = delta.load((), "vectors")
    counts = table.files(now(table))["deleted_rows"].to_pylist()
    rows = table.read(now(table)).read_all().num_rows
    assert sum(counts) > 0
    assert sum(table.files(now(table))["row_count"].to_pylist()) - sum(counts) == rows


@pytest.mark.parametrize(
    ("name", "predicate"),
    [
        *[(name, "id > 65") for name in MERGED_ON_READ],
        *[(name, "part = 2 AND id < 40") for name in MERGED_ON_READ],
        *[(name, "title = 'changed' OR id IN (31, 33)") for name in MERGED_ON_READ],
        ("evolved", "id = 5000000000"),
        ("evolved", "f > 2"),
        ("evolved", "text IS NULL"),
        ("evolved", "text LIKE 'b%'"),
    ],
)
def test_filters_lose_no_row_in_tables_with_deletes(written: Path, iceberg: Source, name: str, predicate: str) -> None:
    table = iceberg.load(("sales",), name)
    schema = table.schema.arrow
    found = table.read(now(table), schema=schema, filter=pushed_filter(predicate, schema)).read_all()
    everything = expected(written, "iceberg", name, "now")
    with duckdb.connect() as duck:
        duck.register("everything", everything)
        duck.register("found", found)
        sql = "SELECT id FROM {} WHERE " + predicate + " ORDER BY id"
        filtered = duck.execute(sql.format("found")).fetchall()
        assert filtered == duck.execute(sql.format("everything")).fetchall()
        assert filtered


def test_filter_on_a_mapped_partition_reads_only_its_files(delta: Source) -> None:
    table = delta.load((), "mapped")
    condition = pushed_filter("shard = 2", table.schema.arrow)
    files = table.plan(now(table), condition)
    assert 0 < files.num_rows < table.files(now(table)).num_rows
    assert set(table.read(now(table), filter=condition).read_all()["shard"].to_pylist()) == {2}


def test_int96_timestamps_beyond_the_nanosecond_range_are_read(written: Path) -> None:
    with open_source("parquet", str(written / "parquet")) as source:
        old, new = (source.load((), name) for name in ("old", "new"))
        assert old.schema.arrow.field("ts").type == new.schema.arrow.field("ts").type == pa.timestamp("us", tz="UTC")
        rows = old.read(now(old)).read_all()
        assert_same_rows(rows, new.read(now(new)).read_all())
        assert max(rows["ts"].to_pylist()).year > 2262


def now(table: TableHandle) -> Snapshot:
    current = table.current()
    assert current is not None
    return current
