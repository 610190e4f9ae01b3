"""Data files of managed tables: their rows and their manifest entries, compared with PyIceberg and DuckDB."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StringType

import scope
from formats.managed import LooseTable
from formats.oracles import assert_same_rows
from skiway.errors import ConstraintViolation, InvalidArgument, PermissionDenied, Unsupported
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.changes.evolution import partition_spec
from skiway.formats.iceberg.manifest_files import entries, manifests
from skiway.formats.iceberg.metadata import new_metadata, updated, write_metadata
from skiway.formats.iceberg.metadata_files import WritingIO
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from storage.homes import running_aws


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """Options for a warehouse in the empty S3 bucket `lake`."""
    with running_aws("lake") as endpoint:
        yield {
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
        }


KINDS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int32()),
        ("flag", pa.bool_()),
        ("ratio", pa.float32()),
        ("amount", pa.float64()),
        ("price", pa.decimal128(12, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("name", pa.string()),
        ("blob", pa.binary()),
        ("fixed", pa.binary(4)),
        ("day", pa.date32()),
        ("clock", pa.time64("us")),
        ("at", pa.timestamp("us")),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
        ("marks", pa.map_(pa.string(), pa.float64())),
    ]
)


def rows(count: int, *, seed: int = 1) -> pa.Table:
    """Rows of every type: a fifth of the values NULL, some NaN, some texts longer than bounds."""
    rng = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.2 else value

    def number() -> float:
        return rng.choice([float("nan"), float("inf"), -0.0, rng.uniform(-9, 9)])

    made = [
        {
            "id": place,
            "small": maybe(rng.randint(-(2**31), 2**31 - 1)),
            "flag": maybe(rng.random() < 0.5),
            "ratio": maybe(float(np.float32(rng.uniform(-5, 5)))),
            "amount": maybe(number()),
            "price": maybe(Decimal(rng.randint(-(10**6), 10**6)).scaleb(-2)),
            "wide": maybe(Decimal(rng.randint(-(10**30), 10**30)).scaleb(-10)),
            "name": maybe("".join(rng.choices("aäß€😀z", k=rng.randint(0, 40)))),
            "blob": maybe(rng.randbytes(rng.randint(0, 30))),
            "fixed": maybe(rng.randbytes(4)),
            "day": maybe(date.fromordinal(rng.randint(500_000, 800_000))),
            "clock": maybe(time(rng.randint(0, 23), 59, 3, rng.randint(0, 999_999))),
            "at": maybe(datetime.fromtimestamp(rng.randint(-(10**9), 10**9), UTC).replace(tzinfo=None)),
            "moment": maybe(datetime.fromtimestamp(rng.randint(-(10**9), 10**9), UTC)),
            "place": maybe({"city": maybe("x"), "zip": maybe(rng.randint(0, 99))}),
            "tags": maybe([maybe("t") for _ in range(rng.randint(0, 3))]),
            "marks": maybe([("k", maybe(1.5))]),
        }
        for place in range(count)
    ]
    return pa.Table.from_pylist(made, schema=KINDS)


@pytest.mark.parametrize("version", ["2", "3"])
def test_pyiceberg_and_duckdb_read_rows_of_every_type(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, version: str
) -> None:
    table, written = LooseTable(tmp_path, KINDS, format_version=version), rows(200)
    table.append(*written.to_batches(max_chunksize=70))
    assert_same_rows(table.rows().cast(KINDS), written)
    found = duck.execute("FROM iceberg_scan(?)", [table.location]).to_arrow_table()
    assert_same_rows(found.drop_columns(["moment"]).cast(found.drop_columns(["moment"]).schema), _plain(written))
    assert_same_rows(table.handle.read(table.handle.current()).read_all().cast(KINDS), written)


def _plain(written: pa.Table) -> pa.Table:
    """Convert to the types DuckDB returns: BLOBs have no fixed width."""
    fixed = written.schema.get_field_index("fixed")
    return written.set_column(fixed, "fixed", written["fixed"].cast(pa.binary())).drop_columns(["moment"])


def test_manifest_entries_equal_those_of_pyiceberg(tmp_path: Path) -> None:
    written = rows(300)
    table = LooseTable(tmp_path / "ours", KINDS)
    (ours,) = table.append(written)
    catalog = SqlCatalog("peer", uri=f"sqlite:///{tmp_path}/peer.db", warehouse=f"file://{tmp_path}/peer")
    catalog.create_namespace("n")
    peer = catalog.create_table("n.t", table.metadata.schema(), partition_spec=UNPARTITIONED_PARTITION_SPEC)
    peer.append(written)
    catalog.close()
    (manifest,) = peer.current_snapshot().manifests(peer.io)
    (entry,) = manifest.fetch_manifest_entry(peer.io)
    theirs = entry.data_file
    assert ours.record_count == theirs.record_count
    assert ours.value_counts == theirs.value_counts
    assert ours.null_value_counts == theirs.null_value_counts
    assert ours.lower_bounds == theirs.lower_bounds
    assert ours.upper_bounds == theirs.upper_bounds
    assert ours.column_sizes.keys() == theirs.column_sizes.keys()
    assert len(ours.split_offsets) == len(theirs.split_offsets) == 1


def test_bounds_of_dates_and_timestamps_are_exact_beyond_what_python_can_represent(tmp_path: Path) -> None:
    columns = {
        "date": pa.array([2**31 - 2, None, -(2**31) + 2], pa.int32()).view(pa.date32()),
        "us": pa.array([2**63 - 2, None, -(2**63) + 2]).view(pa.timestamp("us")),
        "ns": pa.array([1_577_934_245_123_456_789, None, 7]).view(pa.timestamp("ns", "UTC")),
    }
    rows = pa.table(columns)
    table = LooseTable(tmp_path, rows.schema, format_version="3")
    (file,) = table.append(rows)
    for place, name in enumerate(columns, start=1):
        present = sorted(columns[name].drop_null().view(pa.int32() if name == "date" else pa.int64()).to_pylist())
        found = [
            int.from_bytes(bounds[place], "little", signed=True) for bounds in (file.lower_bounds, file.upper_bounds)
        ]
        assert found == present
        assert file.null_value_counts[place] == 1


def test_nan_is_counted_and_excluded_from_bounds(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.float64()), ("s", pa.struct([("y", pa.float32())]))])
    table = LooseTable(tmp_path, schema)
    values = [{"x": float("nan"), "s": {"y": float("nan")}}, {"x": 1.0, "s": None}, {"x": float("nan"), "s": {"y": 2}}]
    (file,) = table.append(pa.Table.from_pylist(values, schema=schema))
    number = {field.name: field.field_id for field in table.metadata.schema().fields}
    nested = table.metadata.schema().find_field("s.y").field_id
    assert file.nan_value_counts == {number["x"]: 2, nested: 1}
    assert file.lower_bounds[number["x"]] == file.upper_bounds[number["x"]] == np.float64(1).tobytes()


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (pa.int8(), "int"),
        (pa.uint16(), "int"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20, 0)"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.decimal256(30, 3), "decimal(30, 3)"),
        (pa.date64(), "date"),
        (pa.time32("ms"), "time"),
        (pa.timestamp("s"), "timestamp"),
        (pa.timestamp("us", tz="Europe/Berlin"), "timestamptz"),
        (pa.uuid(), "uuid"),
        (pa.json_(), "string"),
        (pa.bool8(), "boolean"),
        (pa.opaque(pa.binary(16), "hugeint", "DuckDB"), "decimal(38, 0)"),
        (pa.opaque(pa.binary(16), "uhugeint", "DuckDB"), "decimal(38, 0)"),
        (pa.run_end_encoded(pa.int32(), pa.string_view()), "string"),
        (pa.large_list_view(pa.int8()), "list<int>"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string()), 2), "list<string>"),
    ],
)
def test_types_missing_in_iceberg_are_widened(given: pa.DataType, stored: str) -> None:
    assert str(iceberg_schema(pa.schema({"x": given})).find_field("x").field_type) == stored


@pytest.mark.parametrize(
    "given",
    [
        pa.null(),
        pa.month_day_nano_interval(),
        pa.duration("us"),
        pa.decimal256(50, 0),
        pa.opaque(pa.binary(), "bignum", "DuckDB"),
        pa.opaque(pa.binary(16), "hugeint", "another vendor"),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.list_(pa.duration("s")),
    ],
)
def test_unsupported_types_are_rejected_with_the_column_name(given: pa.DataType) -> None:
    with pytest.raises(Unsupported, match=r"'wait'.*cannot store"):
        iceberg_schema(pa.schema({"id": pa.int32(), "wait": given}))


@pytest.mark.parametrize(
    ("field", "stored"),
    [
        (pa.field("x", pa.timestamp("ns")), "timestamp_ns"),
        (pa.field("x", pa.timestamp("ns", tz="Europe/Berlin")), "timestamptz_ns"),
        (pa.field("x", pa.list_(pa.timestamp("ns"))), "list<timestamp_ns>"),
        (pa.field("x", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"}), "geometry(srid:0)"),
    ],
)
def test_types_of_version_3_are_rejected_in_version_2(field: pa.Field, stored: str) -> None:
    schema = pa.schema([pa.field("id", pa.int32()), field])
    assert format_version(schema) == 3
    assert str(iceberg_schema(schema, format_version=3).find_field("x").field_type) == stored
    with pytest.raises(Unsupported, match=r"column 'x' has type .* from format version 3 on"):
        iceberg_schema(schema, format_version=2)


def test_lowest_format_version_is_used() -> None:
    nested = pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.timestamp("us", "UTC")))})
    assert format_version(pa.schema({"id": pa.int32(), "n": nested, "t": pa.time64("ns")})) == 2


def test_values_of_widened_types_round_trip(tmp_path: Path) -> None:
    given = pa.table(
        {
            "u": pa.array([2**64 - 1, None], pa.uint64()),
            "h": pa.array([0.5, None], pa.float16()),
            "c": pa.array(["a", None]).dictionary_encode(),
            "l": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
            "z": pa.array([0, None], pa.timestamp("s", tz="Europe/Berlin")),
            "v": pa.array(["x", None], pa.string_view()),
            "d": pa.array([[{"q": "a"}], None], pa.list_(pa.struct([("q", pa.dictionary(pa.int8(), pa.string()))]))),
        }
    )
    table = LooseTable(tmp_path, given.schema)
    table.append(given)
    first, second = table.rows().to_pylist()
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    assert first == {"u": Decimal(2**64 - 1), "h": 0.5, "c": "a", "l": [1, 2], "z": moment, "v": "x", "d": [{"q": "a"}]}
    assert list(second.values()) == [None] * 6 + [[]], "PyIceberg reads a NULL list of structs as empty"
    found = table.handle.read(table.handle.current()).read_all().to_pylist()
    assert list(found[1].values()) == [None] * 7


def test_unknown_arrow_extension_type_is_rejected_instead_of_stored_as_bytes() -> None:
    field = pa.field("x", pa.binary(16), metadata={"ARROW:extension:name": "duckdb.hugeint"})
    with pytest.raises(Unsupported, match=r"duckdb\.hugeint"):
        iceberg_schema(pa.schema([field]))


def test_version_3_preserves_nanoseconds() -> None:
    made = iceberg_schema(pa.schema({"x": pa.timestamp("ns", tz="UTC")}), format_version=3)
    assert str(made.find_field("x").field_type) == "timestamptz_ns"


def test_dotted_column_that_collides_with_a_struct_field_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="are ambiguous"):
        iceberg_schema(pa.schema([("a.b", pa.int8()), ("a", pa.struct([("b", pa.int8())]))]))


@pytest.mark.parametrize("names", [["a", "A"], ["a", "a"]])
def test_columns_that_engines_cannot_distinguish_are_rejected(names: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="have the same name"):
        iceberg_schema(pa.schema([(name, pa.int8()) for name in names]))


def test_timestamp_finer_than_microseconds_is_rejected_with_its_column(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"at": pa.timestamp("us")}))
    table.append(pa.record_batch({"at": pa.array([1000], pa.timestamp("ns"))}))
    with pytest.raises(InvalidArgument, match=r"column 'at'.*lose data"):
        table.write(pa.record_batch({"at": pa.array([1001], pa.timestamp("ns"))}))


def test_out_of_range_numbers_are_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int32()}))
    with pytest.raises(InvalidArgument, match="column 'x' have type int64"):
        table.write(pa.record_batch({"x": [2**40]}))


def test_columns_are_matched_by_name_and_missing_ones_are_null(tmp_path: Path) -> None:
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    table = LooseTable(tmp_path, pa.schema([("x", pa.int64()), ("y", pa.string()), ("s", inner)]))
    given = pa.array([{"b": "q"}], pa.struct([("b", pa.large_string())]))
    table.append(pa.RecordBatch.from_arrays([given, pa.array([7], pa.int8())], names=["s", "x"]))
    assert table.rows().to_pylist() == [{"x": 7, "y": None, "s": {"a": None, "b": "q"}}]


def test_unknown_column_is_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64()}))
    with pytest.raises(InvalidArgument, match="no column 'z'; it has x"):
        table.write(pa.record_batch({"x": [1], "z": [1]}))


def test_duplicate_column_is_rejected(tmp_path: Path) -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(InvalidArgument, match="duplicate column names"):
        LooseTable(tmp_path, pa.schema({"x": pa.int64()})).write(twice)


@pytest.mark.parametrize("wrap", [lambda of: of, pa.list_, lambda of: pa.map_(pa.string(), of)])
def test_unknown_struct_field_is_rejected_at_any_depth(tmp_path: Path, wrap: Any) -> None:
    known, given = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("more", pa.int64())])
    table = LooseTable(tmp_path, pa.schema([("s", wrap(known))]))
    with pytest.raises(InvalidArgument, match="it has no field 'more'"):
        table.write(pa.RecordBatch.from_arrays([pa.nulls(1, wrap(given))], names=["s"]))


@pytest.mark.parametrize("batch", [pa.record_batch({"id": [1, None]}), pa.record_batch({"other": [1, 2]})])
def test_required_column_rejects_null(tmp_path: Path, batch: pa.RecordBatch) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("other", pa.int64())])
    with pytest.raises(ConstraintViolation, match="'id' is NOT NULL"):
        LooseTable(tmp_path, schema).write(batch)


@pytest.mark.parametrize(
    "partition_by",
    scope.sample(
        [
            ["name"],
            ["year(day)"],
            ["price"],
            ["bucket[3](id)", "truncate[1](name)"],
            ["day(at)"],
            ["hour(moment)"],
            ["month(moment)", "flag"],
            ["day"],
            ["amount"],
            ["fixed"],
            ["bucket[2](name)", "bucket[3](id)"],
        ],
        every=3,
    ),
)
def test_partitioned_rows_are_stored_in_the_partition_of_their_values(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, partition_by: list[str]
) -> None:
    table, written = LooseTable(tmp_path, KINDS, *partition_by), rows(60)
    table.append(*written.to_batches(max_chunksize=25))
    assert_same_rows(table.rows().cast(KINDS), written)
    assert duck.execute("SELECT count(*) FROM iceberg_scan(?)", [table.location]).fetchone() == (60,)
    (manifest,) = manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    spec, schema = table.metadata.spec(), table.metadata.schema()
    for entry in entries(manifest, WritingIO(table.files)):
        with table.files.open(entry.data_file.file_path) as file:
            found = pa.parquet.read_table(file)
        for place, field in enumerate(spec.fields):
            source = schema.find_field(field.source_id)
            made = field.transform.pyarrow_transform(source.field_type)(found[source.name])
            assert len(made.unique()) == 1
            wanted = field.transform.transform(source.field_type)
            assert wanted is not None
            assert (entry.data_file.partition[place] is None) == (made.null_count > 0)


def test_pyiceberg_reads_a_table_partitioned_by_uuid(tmp_path: Path) -> None:
    schema = pa.schema({"u": pa.uuid(), "x": pa.int64()})
    table = LooseTable(tmp_path, schema, "u")
    ids = [uuid.UUID(int=number).bytes for number in (1, 2, 1)]
    table.append(pa.record_batch({"u": pa.array(ids, pa.uuid()), "x": [1, 2, 3]}))
    assert sorted(table.rows()["x"].to_pylist()) == [1, 2, 3]
    assert len(list(table.peer.scan().plan_files())) == 2


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ("nobody", "unknown column 'nobody'"),
        ("week(at)", "unknown transform"),
        ("bucket(id)", "unknown transform"),
        ("bucket(0, id)", "unknown transform"),
        ("truncate[0](id)", "unknown transform"),
        ("day[3](at)", "unknown transform"),
        ("void(id)", "unknown transform"),
        ("day(id)", "is not possible"),
    ],
)
def test_invalid_partition_spec_is_rejected(part: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        partition_spec(iceberg_schema(pa.schema({"id": pa.int64(), "at": pa.timestamp("us")})), [part])


def test_many_partitions_need_few_open_files_and_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    flush = DataFileWriter._flush

    def watched(self: DataFileWriter, part: Any) -> None:
        flush(self, part)
        opened.append(sum(1 for each in self._parts.values() if each.file))
        assert sum(each.buffered_bytes for each in self._parts.values()) <= 40_000

    monkeypatch.setattr(DataFileWriter, "_flush", watched)
    table = LooseTable(tmp_path, pa.schema({"part": pa.int64(), "text": pa.string()}), "part")
    batches = [
        pa.record_batch({"part": [number % 50 for number in range(200)], "text": [f"{turn}" * 50] * 200})
        for turn in range(8)
    ]
    files = table.append(*batches, buffer_bytes=20_000, max_open_files=5)
    assert max(opened) <= 5
    assert len({file.partition[0] for file in files}) == 50
    assert table.rows().num_rows == 1600


def test_files_roll_over_at_the_target_size_and_split_at_row_groups(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64()}))
    table.metadata.properties["write.target-file-size-bytes"] = "50000"
    table.metadata.properties["write.parquet.row-group-size-bytes"] = "20000"
    numbers = np.random.default_rng(1).integers(0, 2**62, 40_000)
    batches = pa.table({"x": numbers}).to_batches(max_chunksize=2500)
    files = table.append(*batches)
    assert len(files) > 3
    assert all(file.file_size_in_bytes < 90_000 for file in files)
    assert any(len(file.split_offsets) > 1 for file in files)
    assert sum(file.record_count for file in files) == 40_000


@pytest.mark.parametrize(("mode", "has_bounds"), [("none", False), ("counts", False), ("full", True)])
def test_columns_have_the_bounds_that_the_table_wants(tmp_path: Path, mode: str, has_bounds: bool) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64(), "at": pa.timestamp("us")}))
    table.metadata.properties["write.metadata.metrics.default"] = mode
    (file,) = table.append(pa.record_batch({"x": [2, 9], "at": pa.array([1, 2], pa.timestamp("us"))}))
    assert set(file.lower_bounds) == set(file.upper_bounds) == ({1, 2} if has_bounds else set())
    assert set(file.value_counts) == (set() if mode == "none" else {1, 2})


def test_rows_are_sorted_by_the_sort_order_of_the_table(tmp_path: Path) -> None:
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform(), direction="desc", null_order="nulls-last"))
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64()}), order=order)
    (file,) = table.append(pa.record_batch({"x": [2, 9, 4]}))
    with table.files.open(file.file_path) as opened:
        assert pa.parquet.read_table(opened)["x"].to_pylist() == [9, 4, 2]
    assert file.sort_order_id == table.metadata.default_sort_order_id


def test_abort_removes_written_files(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"part": pa.int64()}), "part")
    writer = DataFileWriter(table.files, table.metadata, buffer_bytes=1, max_open_files=2)
    writer.write(pa.record_batch({"part": list(range(9))}))
    assert list(tmp_path.rglob("*.parquet"))
    writer.abort()
    assert not list(tmp_path.rglob("*.parquet"))


def test_exception_in_the_block_removes_written_files(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64()}))
    rows = [pa.record_batch({"x": [1]}), pa.record_batch({"y": [1]})]
    with pytest.raises(InvalidArgument):
        table.write(*rows, buffer_bytes=1)
    assert not list(tmp_path.rglob("*.parquet"))


def test_writer_without_rows_writes_nothing(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"x": pa.int64()}))
    assert table.write(pa.record_batch({"x": pa.array([], pa.int64())})) == []


@pytest.mark.parametrize("place", ["{folder}/../elsewhere/x", "{outside}/x", "{folder}2/x", "s3://bucket/x"])
def test_paths_outside_the_table_folder_are_neither_written_nor_read(tmp_path: Path, place: str) -> None:
    warehouse = Warehouse.at(str(tmp_path))
    files = warehouse.files(warehouse.folder("a", "t"))
    outside = tmp_path.parent / f"{tmp_path.name}-outside"  # a path that is harmless even if the check is broken
    uri = place.format(folder=tmp_path / "a" / "t", outside=outside)
    for act in (files.create, files.open, lambda uri: files.remove([uri])):
        with pytest.raises((PermissionDenied, InvalidArgument)):
            act(uri)


@pytest.mark.parametrize("folder", ["..", "/somewhere/else", ""])
def test_table_outside_the_warehouse_is_rejected(tmp_path: Path, folder: str) -> None:
    warehouse = Warehouse.at(str(tmp_path / "warehouse"))
    with pytest.raises((PermissionDenied, InvalidArgument)):
        warehouse.files(folder if folder.startswith("/") else f"{tmp_path}/warehouse/{folder}")


def test_column_docs_are_preserved() -> None:
    made = iceberg_schema(pa.schema([pa.field("x", pa.string(), metadata={"doc": "a text"})]))
    assert made == Schema(NestedField(1, "x", StringType(), required=False, doc="a text"))


def test_table_in_s3_is_written_and_read_like_a_local_one(bucket: dict[str, str]) -> None:
    warehouse = Warehouse.at("s3://lake/warehouse", bucket)
    location = warehouse.folder("account", "table")
    files = warehouse.files(location)
    metadata = new_metadata(iceberg_schema(pa.schema({"x": pa.int64()})), location=location)
    with DataFileWriter(files, metadata) as writer:
        writer.write(pa.record_batch({"x": [1, 2]}))
        made = append(writer.close())(metadata, files, lambda: datetime.now(UTC))
    after = updated(metadata, made.requirements, made.updates)
    written = write_metadata(files, after, version=1)
    assert sorted(StaticTable.from_metadata(written, bucket).scan().to_arrow()["x"].to_pylist()) == [1, 2]
    with pytest.raises(PermissionDenied):
        files.read("s3://lake/other/secret")
    files.remove(str(each.location) for each in files.walk(files.reach.roots[0]))
    assert files.walk(files.reach.roots[0]) == []
    files.remove([written])
