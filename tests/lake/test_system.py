"""The schema `skiway`, visibility by permission, and statistics for the optimizer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import NotFound, PermissionDenied, PreconditionFailed, Unsupported
from skiway.lake.context import Versions
from skiway.metastore import connectors, jobs, statistics
from skiway.metastore.resources import directory
from skiway.model import v1

ONE = pa.schema({"id": pa.int64()})


def filled(db: AirportClient) -> None:
    db.create_schema("s")
    db.create_schema("s.deep.er")
    db.create_table("s.t", pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.float64())]))
    db.create_table(("s.deep.er", "u"), ONE)
    db.insert("s.t", pa.table({"id": [1, 2], "x": [0.5, None]}))
    db.insert("s.t", pa.table({"id": [3], "x": [1.5]}))


def test_system_schema_describes_the_lake(lake: Lake) -> None:
    with lake.client() as db:
        filled(db)
        assert [schema.name for schema in db.schemas()] == ["s", "s.deep", "s.deep.er", "skiway"]
        tables = {row["table_name"]: row for row in rows(db, "tables")}
        assert tables.keys() == {"t", "u"}
        assert (tables["t"]["kind"], tables["t"]["row_count"], tables["t"]["file_count"]) == ("managed", 3, 2)
        assert (tables["u"]["schema_name"], tables["u"]["row_count"]) == ("s.deep.er", None)
        columns = [row for row in rows(db, "columns") if row["table_name"] == "t"]
        assert [(c["column_name"], c["ordinal"], c["column_id"], c["is_nullable"]) for c in columns] == [
            ("id", 1, 1, False),
            ("x", 2, 2, True),
        ]
        files = rows(db, "files")
        assert sorted(row["row_count"] for row in files) == [1, 2]
        assert all(Path(row["path"].removeprefix("file://")).stat().st_size == row["size_bytes"] for row in files)
        snapshots = rows(db, "snapshots")
        assert len(snapshots) == 2
        now = next(row for row in snapshots if row["is_current"])
        assert now["parent_id"] in {row["snapshot_id"] for row in snapshots}
        assert dict(now["summary"])["total-records"] == "3"
        assert rows(db, "jobs") == []


def test_only_tables_selected_by_the_filter_are_inspected(lake: Lake) -> None:
    with lake.client() as db:
        filled(db)
        assert {row["table_name"] for row in rows(db, "files", where=col("table_name") == "t")} == {"t"}
        assert rows(db, "files", where=col("schema_name") == "s.deep.er") == []
        assert [row["table_name"] for row in rows(db, "tables", where=col("row_count") == 3)] == ["t"]


def test_system_tables_reject_writes_clearly(lake: Lake) -> None:
    with lake.client() as db:
        filled(db)
        for schema in db.schemas():
            for table in schema.tables:
                assert table.rowid is not None, "without one, DuckDB fails with an internal error before it calls"
        name = ("skiway", "tables")
        with pytest.raises(PreconditionFailed, match="table 'tables' does not support UPDATE"):
            db.update(name, {"table_name": "x"})
        with pytest.raises(PreconditionFailed, match="table 'tables' does not support DELETE"):
            db.truncate(name)
        with pytest.raises(PreconditionFailed, match="table 'tables' does not support INSERT"):
            db.insert(name, db.scan(name).read_all())
        with pytest.raises(Unsupported, match="schema 'skiway' is read-only"):
            db.create_table(("skiway", "x"), ONE)
        assert db.count(name) == 2


def test_jobs_are_visible_only_to_connector_managers(mirrors: Lake) -> None:
    found = connectors.list_(mirrors.realm, v1.ListConnectorsRequest()).connectors[0]
    job = jobs.enqueue(mirrors.realm, v1.Job(connector_id=found.resource_id))
    with mirrors.client("iceberg") as db, mirrors.client("iceberg", token="reader") as reader:
        reported = rows(db, "jobs")
        assert [(row["job_id"], row["state"], row["connector"]) for row in reported] == [
            (job.job_id, "queued", found.display_name)
        ]
        assert rows(reader, "jobs") == []


def test_partial_job_is_shown_with_the_errors_of_its_tables(lake: Lake) -> None:
    made = lake.connector(lake.catalog("files"), "parquet", "/data", {})
    jobs.enqueue(lake.realm, v1.Job(connector_id=made.resource_id))
    queue = jobs.JobQueue(lake.realm.stores)
    lease = queue.lease("w")
    assert lease is not None
    queue.complete(lease, jobs.Progress(3, 2, {"t": "is corrupt"}, "1 of 3 tables failed"))
    with lake.client() as db:
        [row] = rows(db, "jobs")
    assert (row["state"], row["errors"], row["message"]) == ("partial", 1, "1 of 3 tables failed")
    assert row["table_errors"] == [("t", "is corrupt")]


def test_reader_can_read_but_not_write(lake: Lake) -> None:
    with lake.client() as db, lake.client(token="reader") as reader:
        filled(db)
        assert reader.count("s.t") == 3
        for statement in (
            lambda: reader.insert("s.t", pa.table({"id": [9], "x": [1.0]})),
            lambda: reader.delete("s.t", where=col("id") == 1),
            lambda: reader.create_table("s.mine", ONE),
            lambda: reader.drop_table("s.t"),
            lambda: reader.add_column("s.t", pa.field("y", pa.int64())),
            lambda: reader.create_schema("mine"),
            lambda: reader.drop_schema("s.deep"),
        ):
            with pytest.raises(PermissionDenied, match=r"(table|namespace)\.write"):
                statement()
        assert db.count("s.t") == 3


def test_caller_without_table_permissions_sees_no_tables(lake: Lake) -> None:
    with lake.client() as db, lake.client(token="nothing") as restricted:
        filled(db)
        assert [len(schema.tables) for schema in restricted.schemas()] == [0, 0, 0, 22]
        assert rows(restricted, "tables") == []
        assert rows(restricted, "plans") == []
        with pytest.raises(PermissionDenied):
            restricted.take_flight(["managed", "s", "t"], headers={"airport-catalog": "managed"}).read_all()


def test_unknown_catalog_is_not_found(lake: Lake) -> None:
    with lake.client("nowhere") as db, pytest.raises(NotFound, match="'nowhere' is not served here"):
        db.schemas()
    with lake.client("") as db:
        assert [schema.name for schema in db.schemas()] == ["skiway"]


def test_every_change_changes_the_catalog_version(lake: Lake) -> None:
    with lake.client() as db:
        seen = [db.version().version]
        for statement in (
            lambda: db.create_schema("s"),
            lambda: db.create_table("s.t", ONE),
            lambda: db.insert("s.t", pa.table({"id": [1]})),
            lambda: db.add_column("s.t", pa.field("x", pa.int64())),
            lambda: db.rename_table("s.t", "u"),
            lambda: db.drop_table("s.u"),
            lambda: db.drop_schema("s"),
        ):
            statement()
            seen.append(db.version().version)
        assert all(before != after for before, after in pairwise(seen))


def test_catalog_version_changes_only_with_changes_including_those_of_other_servers(lake: Lake) -> None:
    moment = [0.0]
    versions = Versions(clock=lambda: moment[0])
    first = versions.of(lake.realm)
    assert Versions(clock=lambda: moment[0]).of(lake.realm) == first
    lake.catalog("other")
    assert versions.of(lake.realm) == first  # cached for a moment
    moment[0] = 1.5
    assert versions.of(lake.realm) != first


# -- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_of_managed_tables_match_duckdb(lake: Lake) -> None:
    with lake.client() as db, duckdb.connect() as duck:
        data = pa.table(
            {
                "i": pa.array([5, -3, None, 9], pa.int32()),
                "s": ["b", "a", None, "zz"],
                "f": [1.5, 2.5, -7.0, None],
                "n": [1.0, float("nan"), 2.0, 3.0],
                "d": pa.array([1, 2, 3, 4], pa.int32()).cast(pa.date32()),
                "t": pa.array([1, 2, 3, 4], pa.timestamp("us")),
                "all": pa.nulls(4, pa.int64()),
            }
        )
        db.create_schema("s")
        db.create_table("s.t", data.schema)
        db.insert("s.t", data.slice(0, 2))
        db.insert("s.t", data.slice(2))
        for column in ("i", "s", "f", "d", "t"):
            known = db.statistics("s.t", column)
            sql = f"SELECT min({column}), max({column}), count({column}) < count(*) FROM data"
            assert (known.min, known.max, known.has_null) == duck.execute(sql).fetchall()[0]
        assert db.statistics("s.t", "n").max is None  # NaN is greater than every bound
        assert db.statistics("s.t", "all").has_not_null is False


def test_profiles_add_statistics_that_files_lack(mirrors: Lake) -> None:
    with mirrors.client("iceberg") as db:
        ref = v1.NameRef(catalog="iceberg", path=["sales"], name="many")
        table_id = directory.resolve_table(mirrors.realm, v1.ResolveTableRequest(ref=ref)).resource_id
        now = next(row for row in rows(db, "snapshots", where=col("table_name") == "many") if row["is_current"])
        column = v1.ColumnStats(
            column_id=1,
            column_name="id",
            logical_type="INT",
            value_count=12,
            null_count=0,
            ndv=v1.Ndv(exact=12),
            min="0",
            max="11",
        )
        request = v1.PutColumnStatsRequest(table_id=table_id, snapshot_id=now["snapshot_id"], columns=[column])
        statistics.put_columns(mirrors.realm, [request])
        known = db.statistics("sales.many", "id")
        assert (known.min, known.max, known.has_null, known.distinct_count) == (0, 11, False, 12)
        reported = rows(db, "column_stats")
        names = ("column_name", "min", "max", "distinct_count", "null_count", "nan_count")
        assert [tuple(row[name] for name in names) for row in reported] == [("id", "0", "11", 12.0, 0, None)]
        column.properties.update({"quantiles": '{"0.5": "5"}', "top_values": '[["3", 2]]'})
        stats = v1.TableStats(table_id=table_id, snapshot_id=now["snapshot_id"], row_count=12)
        statistics.add_to_history(mirrors.realm, stats, [column])
        [then] = rows(db, "column_history")
        assert tuple(then[name] for name in names) == ("id", "0", "11", 12.0, 0, None)
        assert (then["quantiles"], then["top_values"]) == ([("0.5", "5")], [{"value": "3", "count": 2}])
        assert then["snapshot_id"] == now["snapshot_id"]
        assert then["profiled_at"] is not None


def test_partitions_are_a_table(mirrors: Lake) -> None:
    """They have the same sums as the files."""
    with mirrors.client("iceberg") as db:
        files, partitions = rows(db, "files"), rows(db, "partitions")
    assert {row["damage"] for row in partitions} == {None}
    for table in {row["table_name"] for row in files}:
        data = [row for row in files if row["table_name"] == table and row["content"] == "data"]
        found = [row for row in partitions if row["table_name"] == table]
        assert len(found) == len({row["partition"] for row in files if row["table_name"] == table})
        assert sum(row["row_count"] for row in found) == sum(row["row_count"] for row in data)
        assert sum(row["data_file_count"] for row in found) == len(data)


def rows(db: AirportClient, table: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = db.scan(("skiway", table), **options).read_all().to_pylist()
    return found


def test_events_are_a_table(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        db.insert("s.t", pa.table({"id": [1]}))
        db.rename_table("s.t", "u")
        db.drop_table("s.u")
        rows = db.scan("skiway.events").read_all().to_pylist()
    found = [(row["kind"], row["action"], row["name"], row["caller"]) for row in rows if row["kind"] == "table"]
    assert found == [
        ("table", "created", "t", "writer"),
        ("table", "committed", "t", "writer"),
        ("table", "renamed", "u", "writer"),
        ("table", "deleted", "u", "writer"),
    ]
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    assert next(row["snapshot_id"] for row in rows if row["action"] == "committed") > 0
    assert next(row["previous_name"] for row in rows if row["action"] == "renamed") == "t"
