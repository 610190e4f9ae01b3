"""CREATE OR REPLACE TABLE: one commit, before which everyone sees the old table, and after which the new one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from lake.lakes import Lake
from runtime.servers import eventually
from skiway.airport import Server
from skiway.airport.memory import MemoryCatalog
from skiway.client import AirportClient, col
from skiway.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    Unsupported,
)

OLD = pa.table({"id": [1, 2], "name": ["a", "b"]})
NEW = pa.table({"name": [10, 20, 30], "extra": [1.5, None, 2.5]})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", OLD.schema)
        db.insert("s.t", OLD)
        yield db


def test_replaced_table_is_empty_and_has_the_new_columns(lake: Lake, db: AirportClient) -> None:
    db.create_table("s.T", NEW.schema, on_conflict="replace")
    assert db.scan("s.t").read_all().to_pydict() == {"name": [], "extra": []}
    db.insert("s.t", NEW)
    with lake.client() as another, lake.rest() as rest:
        assert another.scan("s.t").read_all().to_pydict() == NEW.to_pydict()
        assert rest.load_table("s.t").scan().to_arrow().to_pydict() == NEW.to_pydict()


def test_replaced_table_keeps_its_id_and_history(lake: Lake, db: AirportClient) -> None:
    with lake.rest() as rest:
        before = rest.load_table("s.t")
        db.create_table("s.t", NEW.schema, on_conflict="replace")
        after = rest.load_table("s.t")
    assert after.metadata.table_uuid == before.metadata.table_uuid
    old = before.metadata.current_snapshot_id
    assert old in [each.snapshot_id for each in after.metadata.snapshots]
    assert after.metadata.current_snapshot_id != old
    assert db.scan("s.t", at_version=old).read_all().to_pydict() == OLD.to_pydict()
    assert len(after.metadata.snapshots) == 2  # the replacement is one commit


def test_readers_see_the_old_or_the_new_table_but_never_a_missing_one(lake: Lake, db: AirportClient) -> None:
    seen: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with lake.client() as fresh:
                try:
                    seen.append(tuple(fresh.scan("s.t").read_all().column_names))
                except PreconditionFailed as error:
                    assert "the table changed" in str(error)  # noqa: PT017 - attached before and read after the replacement
                except SkiwayError as error:
                    seen.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for turn in range(12):
        db.create_table("s.t", (NEW if turn % 2 else OLD).schema, on_conflict="replace")
    done.set()
    for reader in readers:
        reader.join()
    assert len(seen) > 3
    assert set(seen) <= {("id", "name"), ("name", "extra")}


def test_scan_planned_before_the_replacement_reads_the_old_rows(db: AirportClient) -> None:
    planned = db.bind("s.t").read()  # endpoints are planned; rows are streamed when they are read
    with AirportClient(db.location, "managed") as other:
        other.create_table("s.t", NEW.schema, on_conflict="replace")
    assert planned.read_all().to_pydict() == OLD.to_pydict()


def test_transaction_that_read_the_old_rows_reads_them_again(db: AirportClient) -> None:
    with db.transaction():
        first = db.scan("s.t").read_all()
        with AirportClient(db.location, "managed") as other:
            other.create_table("s.t", NEW.schema, on_conflict="replace")
            other.insert("s.t", NEW)
        assert db.scan("s.t").read_all() == first
        assert db.scan("s.t", where=col("id") == 2).read_all().to_pydict() == {"id": [2], "name": ["b"]}


def test_client_with_the_old_columns_must_attach_again(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other:
        other.schemas()
        other.table("s.t")
        db.create_table("s.t", NEW.schema, on_conflict="replace")
        db.insert("s.t", NEW)
        with pytest.raises(PreconditionFailed, match=r"replaced and has other columns\): DETACH and ATTACH"):
            other.scan("s.t").read_all()
        with pytest.raises(PreconditionFailed, match="DETACH and ATTACH"):
            other.insert("s.t", OLD)
        assert db.count("s.t") == 3


def test_statements_started_before_the_replacement_fail_with_a_conflict(lake: Lake, db: AirportClient) -> None:
    ids = db.scan("s.t", columns=["id", "rowid"]).read_all()["rowid"]

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"rowid": ids.combine_chunks(), "name": ["x", "y"]})
        with lake.client() as other:
            other.create_table("s.t", NEW.schema, on_conflict="replace")

    with pytest.raises(Conflict):
        db.update("s.t", rows())
    with lake.client() as other:
        assert other.count("s.t") == 0


def test_failed_replacement_leaves_the_old_table(db: AirportClient) -> None:
    with pytest.raises(Unsupported, match="column 'much'"):
        db.create_table("s.t", pa.schema({"much": pa.month_day_nano_interval()}), on_conflict="replace")
    with pytest.raises(Unsupported, match="PRIMARY KEY"):
        db.create_table("s.t", OLD.schema, primary_key=["id"], on_conflict="replace")
    assert db.scan("s.t", where=col("id") == 2).read_all().to_pydict() == {"id": [2], "name": ["b"]}


def test_table_of_another_schema_is_not_affected(db: AirportClient) -> None:
    db.create_schema("other")
    db.create_table("other.t", NEW.schema, on_conflict="replace")
    assert db.count("s.t") == 2
    with pytest.raises(NotFound):
        db.create_table("nowhere.t", NEW.schema, on_conflict="replace")


# --- CREATE TABLE … AS ------------------------------------------------------------------------------------------------


def test_table_is_created_together_with_its_rows(lake: Lake, db: AirportClient) -> None:
    assert db.create_table_as("s.new", NEW).count == 3
    assert db.scan("s.new").read_all().to_pydict() == NEW.to_pydict()
    with lake.rest() as rest:
        made = rest.load_table("s.new")
        assert made.scan().to_arrow().to_pydict() == NEW.to_pydict()
        assert len(made.metadata.snapshots) == 1
    assert db.update("s.new", {"extra": 0.0}).count == 3


def test_table_is_replaced_with_rows_in_one_commit(lake: Lake, db: AirportClient) -> None:
    with lake.rest() as rest:
        before = rest.load_table("s.t").metadata
        assert db.create_table_as("s.t", NEW, on_conflict="replace").count == 3
        after = rest.load_table("s.t").metadata
    assert db.scan("s.t").read_all().to_pydict() == NEW.to_pydict()
    assert after.table_uuid == before.table_uuid
    assert len(after.snapshots) == len(before.snapshots) + 1
    assert db.scan("s.t", at_version=before.current_snapshot_id).read_all().to_pydict() == OLD.to_pydict()


def test_table_is_invisible_until_all_its_rows_are_written(lake: Lake, db: AirportClient) -> None:
    seen: list[object] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in NEW.to_batches(max_chunksize=1):
            with lake.client() as other:
                names = [table.name for schema in other.schemas() for table in schema.tables if schema.name == "s"]
                seen.append((names, other.scan("s.t").read_all().to_pydict()))
            yield batch

    db.create_table_as("s.t", rows(), on_conflict="replace")
    db.create_table_as("s.u", rows())
    assert seen == [(["t"], OLD.to_pydict())] * 3 + [(["t"], NEW.to_pydict())] * 3
    assert db.scan("s.u").read_all().to_pydict() == NEW.to_pydict()


def test_failed_row_stream_leaves_the_old_table_and_no_files(lake: Lake, db: AirportClient) -> None:
    def files() -> set[str]:
        return {str(file) for file in (lake.folder / "warehouse").rglob("*") if file.is_file()}

    def rows() -> Iterator[pa.RecordBatch]:
        yield from NEW.to_batches()
        raise RuntimeError("enough")

    before = files()
    for name in ("s.t", "s.new"):
        with pytest.raises(RuntimeError, match="enough"):
            db.create_table_as(name, rows(), on_conflict="replace")
    with lake.client() as other:
        assert other.scan("s.t").read_all().to_pydict() == OLD.to_pydict()
        with pytest.raises(NotFound):
            other.scan("s.new")
    eventually(lambda: files() == before)


@pytest.mark.full
def test_empty_and_wide_tables_can_be_created(db: AirportClient) -> None:
    db.create_table_as("s.t", NEW.slice(0, 0), on_conflict="replace")
    assert db.scan("s.t").read_all().to_pydict() == {"name": [], "extra": []}
    wide = pa.table({f"a column with a long name, number {number}": [number] for number in range(1500)})
    db.create_table_as("s.wide", wide)
    assert db.scan("s.wide").read_all().to_pydict() == wide.to_pydict()


def test_concurrently_taken_name_is_rejected(lake: Lake, db: AirportClient) -> None:
    with pytest.raises(AlreadyExists):
        db.create_table_as("s.t", NEW)

    def rows() -> Iterator[pa.RecordBatch]:
        yield from NEW.to_batches()
        with lake.client() as other:
            other.create_table("s.new", OLD.schema)

    with pytest.raises(AlreadyExists):
        db.create_table_as("s.new", rows())
    with lake.client() as other:
        assert other.scan("s.new").read_all().column_names == ["id", "name"]


def test_ignore_keeps_the_existing_table(db: AirportClient) -> None:
    assert db.create_table_as("s.t", NEW, on_conflict="ignore").count == 0
    assert db.scan("s.t").read_all().to_pydict() == OLD.to_pydict()


@pytest.mark.parametrize("binding", ["rows-follow:", "rows-follow:%%", "rows-follow:eJwDAAAAAAE=", "rows-follow:AAAA"])
def test_forged_binding_is_rejected(db: AirportClient, binding: str) -> None:
    with pytest.raises(InvalidArgument, match="CREATE the table again"):
        db.take_flight(["managed", "s", "t", "table", binding], headers={"airport-catalog": "managed"})


def test_reader_may_not_create_tables(lake: Lake, db: AirportClient) -> None:
    with lake.client(token="reader") as reader, pytest.raises(PermissionDenied):
        reader.create_table_as("s.new", NEW)
    with pytest.raises(NotFound):
        db.scan("s.new")


def test_other_servers_create_first_and_insert_afterwards() -> None:
    with Server(MemoryCatalog("c"), port=0) as server, AirportClient(server.location, "c") as db:
        db.create_schema("s")
        assert db.create_table_as("s.t", NEW).count == 3
        assert db.scan("s.t").read_all().to_pydict() == NEW.to_pydict()
