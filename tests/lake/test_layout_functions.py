"""`skiway.partition_by` and `sort_by`: how rows of managed tables are written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import Lake
from lake.lakes import call_function as call
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, SkiwayError
from skiway.formats.iceberg.metadata_files import WritingIO
from skiway.metastore import catalogs, managed, namespaces, tables

SCHEMA = pa.schema(
    {"id": pa.int64(), "at": pa.timestamp("us"), "Two Words": pa.string(), "tags": pa.list_(pa.string())}
)
DAYS = [dt.datetime(2026, 1, day) for day in (2, 1, 2)]
ROWS = pa.table({"id": [3, 1, 2], "at": DAYS, "Two Words": ["c", None, "b"], "tags": [[], None, ["x"]]}, SCHEMA)


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", SCHEMA)
        yield client


def loaded(lake: Lake) -> Any:
    """The table as it is in the metastore."""
    catalog = next(each for each in catalogs.scan(lake.realm) if each.display_name == "managed")
    (namespace,) = namespaces.scan(lake.realm, catalog.resource_id.id)
    (table,) = tables.scan(lake.realm, namespace.resource_id.id)
    return managed.load(lake.realm, lake.warehouse, table.resource_id)


def files(db: AirportClient) -> list[dict[str, Any]]:
    return db.scan("skiway.files").read_all().to_pylist()


def test_new_rows_are_partitioned_and_old_ones_stay(db: AirportClient) -> None:
    db.insert("s.t", ROWS)
    done = call(db, "partition_by", "s.t", "day(AT), bucket(4, id)")
    assert done == {"table": "managed.s.t", "before": "", "now": "day(at), bucket(4, id)"}
    db.insert("s.t", ROWS)
    assert sorted(db.scan("s.t").read_all()["id"].to_pylist()) == [1, 1, 2, 2, 3, 3]
    old, *new = sorted(files(db), key=lambda file: -file["row_count"])
    assert old["row_count"] == 3
    assert len(new) >= 2
    assert sum(file["row_count"] for file in new) == 3


def test_partitions_keep_their_ids_when_they_come_back(lake: Lake, db: AirportClient) -> None:
    for partitions in ("day(at)", '"two words"', "", 'day(at), "Two Words"'):
        call(db, "partition_by", "s.t", partitions)
        db.insert("s.t", ROWS)
    assert db.scan("s.t").read_all().num_rows == 12
    specs = loaded(lake).metadata.partition_specs
    numbers = {(field.name, field.field_id) for spec in specs for field in spec.fields}
    assert numbers == {("at_day", 1000), ("Two Words", 1001)}


@pytest.mark.parametrize(
    ("keys", "shown", "ids"),
    [
        ("id", "id ASC NULLS FIRST", [1, 2, 3]),
        ("ID desc", "id DESC NULLS LAST", [3, 2, 1]),
        ("at, id DESC nulls first", "at ASC NULLS FIRST, id DESC NULLS FIRST", [1, 3, 2]),
        ('"two words" NULLS LAST', "Two Words ASC NULLS LAST", [2, 3, 1]),
        ('"two words", id NULLS LAST', "Two Words ASC NULLS FIRST, id ASC NULLS LAST", [1, 2, 3]),
    ],
)
def test_new_rows_are_sorted(lake: Lake, db: AirportClient, keys: str, shown: str, ids: list[int]) -> None:
    assert call(db, "sort_by", "s.t", keys)["now"] == shown
    db.insert("s.t", ROWS)
    (file,) = files(db)
    assert pq.read_table(file["path"].removeprefix("file://"))["id"].to_pylist() == ids
    table = loaded(lake)
    (manifest,) = table.metadata.current_snapshot().manifests(WritingIO(table.files))
    (entry,) = manifest.fetch_manifest_entry(WritingIO(table.files))
    assert entry.data_file.sort_order_id == table.metadata.default_sort_order_id
    assert call(db, "sort_by", "s.t", "") == {"table": "managed.s.t", "before": shown, "now": ""}


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        ("partition_by", ("s.t", "week(at)"), InvalidArgument, "unknown transform"),
        ("partition_by", ("s.t", "nope"), InvalidArgument, "unknown column 'nope'"),
        ("partition_by", ("s.t", "day(id)"), InvalidArgument, "column 'id' has type long"),
        ("partition_by", ("s.t", "day(at), day(at)"), InvalidArgument, "name a column twice"),
        ("partition_by", ("s.nothing", "id"), NotFound, "does not exist"),
        ("comment_on", ("s.t", "nope", "x"), NotFound, "no column 'nope'"),
        ("sort_by", ("s.t", "nope DESC"), InvalidArgument, "unknown column 'nope'"),
        ("sort_by", ("s.t", "tags"), InvalidArgument, r"column 'tags' has type list"),
        ("sort_by", ("s.t", "day(at)"), InvalidArgument, "unknown column"),
    ],
)
def test_invalid_calls_change_nothing(
    lake: Lake, db: AirportClient, function: str, arguments: tuple[str, str], error: type[SkiwayError], message: str
) -> None:
    before = loaded(lake).metadata
    with pytest.raises(error, match=message):
        call(db, function, *arguments)
    assert loaded(lake).metadata == before


def test_a_column_gets_a_comment_that_every_client_sees(lake: Lake, db: AirportClient) -> None:
    done = call(db, "comment_on", "s.t", "ID", "the number of the row")
    assert done == {"table": "managed.s.t", "column": "id", "before": "", "now": "the number of the row"}
    assert loaded(lake).metadata.schema().find_field("id").doc == "the number of the row"
    done = call(db, "comment_on", "s.t", "id", "")
    assert (done["before"], done["now"]) == ("the number of the row", "")
    assert not loaded(lake).metadata.schema().find_field("id").doc


def test_readers_cannot_change_layouts(lake: Lake, db: AirportClient) -> None:
    with lake.client(token="reader") as reader:
        for function in ("partition_by", "sort_by"):
            with pytest.raises(PermissionDenied):
                call(reader, function, "s.t", "id")
    assert not loaded(lake).metadata.spec().fields
