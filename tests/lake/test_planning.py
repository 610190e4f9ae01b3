"""Scan planning: a scan reads only files that may match its filter, in several parts if large, from one snapshot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.lakes import Lake, opened_lake
from skiway.airport.wire.frames import BatchReader
from skiway.client import AirportClient, col
from skiway.errors import NotFound, PreconditionFailed, SkiwayError
from skiway.formats import TableHandle, open_source
from skiway.lake.reading.scans import Part, split
from skiway.model import flight_pb2 as flight


def parquet_files(folder: Path, count: int, rows: int = 100) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        ids = range(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"id": ids, "s": [f"text {n:05d}" for n in ids]}), folder / f"{number:03d}.parquet")


def test_files_excluded_by_the_filter_are_not_read(tmp_path: Path) -> None:
    parquet_files(tmp_path / "files" / "many", 10)
    with opened_lake(tmp_path) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        with lake.client("parquet") as db:
            assert db.count("root.many") == 1000
            for number in set(range(10)) - {4}:
                _damage(tmp_path / "files" / "many" / f"{number:03d}.parquet")
            where = (col("id") >= 420) & (col("id") < 430)
            assert db.scan("root.many", where=where).read_all()["id"].to_pylist() == list(range(420, 430))
            with pytest.raises(PreconditionFailed, match="is corrupt"):
                db.scan("root.many", where=col("id") < 10).read_all()


def _damage(file: Path, content: bytes | bytearray = b"") -> None:
    """Overwrite the content of a file in a way that its listing does not show."""
    before = file.stat()
    file.write_bytes(content or bytes(before.st_size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_files_of_managed_tables_are_pruned(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        for start in (0, 100, 200):
            db.insert("s.t", pa.table({"id": range(start, start + 100)}))
        for file in (lake.folder / "warehouse").rglob("*.parquet"):
            if pq.read_table(file)["id"][0].as_py() != 100:
                file.unlink()
        assert db.count("s.t", where=col("id") == 150) == 1
        plan = db.scan("skiway.plans").read_all().to_pylist()[-1]
        assert (plan["files_considered"], plan["files_read"], plan["files_pruned"]) == (3, 1, 2)
        assert plan["bytes_read"] * 2 < plan["bytes_considered"]
        assert "150" in plan["filter"]


def test_large_scan_is_split_into_parts_that_cover_all_rows(tmp_path: Path) -> None:
    parquet_files(tmp_path / "files" / "many", 9)
    with opened_lake(tmp_path, part_bytes=5000, max_parts=4) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        with lake.client("parquet") as db:
            assert len(db.endpoints("root.many")) == 4
            assert len(db.endpoints("root.many", where=col("id") < 10)) == 1
            assert sorted(db.scan("root.many", columns=["id"]).read_all()["id"].to_pylist()) == list(range(900))


def file_table(sizes: list[int], *, of: str = "parquet") -> pa.Table:
    numbers = pa.array(range(len(sizes)), pa.int32())
    return pa.table({"ordinal": numbers, "size_bytes": pa.array(sizes, pa.int64()), "format": [of] * len(sizes)})


def test_large_files_are_split() -> None:
    def parts(sizes: list[int], **options: Any) -> list[tuple[list[int], tuple[int, int] | None]]:
        found = split(
            7, file_table(sizes, of=options.pop("of", "parquet")), part_bytes=100, within_files=True, **options
        )
        assert all(Part.unpacked(part.packed()) == part for part in found)
        return [(part.ordinals, part.share) for part in found]

    assert parts([250]) == [([0], (0, 3)), ([0], (1, 3)), ([0], (2, 3))]
    assert parts([100]) == [([0], None)]
    assert parts([250], of="orc") == [([0], None)]
    assert parts([2500], most=2) == [([0], (0, 2)), ([0], (1, 2))]
    assert parts([10, 390, 10]) == [([1], (number, 4)) for number in range(4)] + [([0, 2], None)]
    assert parts([101, 101]) == [([1], None), ([0], None)], "three parts could not have equal sizes"
    assert parts([]) == []
    assert [each.share for each in split(7, file_table([250]), part_bytes=100)] == [None]


@given(st.lists(st.integers(0, 1000), max_size=20), st.integers(1, 500), st.integers(1, 16))
def test_parts_cover_every_file_once(sizes: list[int], part_bytes: int, most: int) -> None:
    parts = split(7, file_table(sizes), part_bytes=part_bytes, most=most, within_files=True)
    assert len(parts) <= most
    covered = [(ordinal, part.share or (0, 1)) for part in parts for ordinal in part.ordinals]
    for ordinal in range(len(sizes)):
        shares = [share for number, share in covered if number == ordinal]
        assert shares == [(number, len(shares)) for number in range(len(shares))]
        assert shares


def test_parts_of_one_file_are_read_and_changed_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "files" / "large"
    folder.mkdir(parents=True)
    rows = pa.table({"id": range(1000), "s": [f"text {number:05d}" for number in range(1000)]})
    pq.write_table(rows, folder / "one.parquet", row_group_size=100)
    with opened_lake(tmp_path, part_bytes=4000, max_parts=4) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        with lake.client("parquet") as db:
            assert len(db.endpoints("root.large")) == 4
            assert db.scan("root.large").read_all().select(["id", "s"]).sort_by("id").equals(rows)
            assert db.scan("root.large", where=col("id") == 555).read_all()["s"].to_pylist() == ["text 00555"]
        with lake.client() as db:
            db.create_schema("s")
            db.create_table("s.t", rows.schema)
            db.insert("s.t", rows)
            assert db.delete("s.t", where=col("id") < 500).count == 500
            assert db.update("s.t", {"s": "changed"}, where=col("id") > 990).count == 9
            assert sorted(db.scan("s.t").read_all()["id"].to_pylist()) == list(range(500, 1000))


def test_parts_without_matching_row_groups_are_not_planned(tmp_path: Path) -> None:
    """The ids of a file have gaps between its row groups."""
    folder = tmp_path / "files" / "large"
    folder.mkdir(parents=True)
    ids = [group * 1000 + number for group in range(10) for number in range(100)]
    rows = pa.table({"id": ids, "s": [f"text {number:05d}" for number in ids]})
    pq.write_table(rows, folder / "one.parquet", row_group_size=100)
    with opened_lake(tmp_path, part_bytes=1000, max_parts=4) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        with lake.client("parquet") as db:
            for where, parts, found in (
                (None, 4, 1000),
                (col("id") == 5055, 1, 1),
                (col("id").isin([5055, 7000]), 2, 2),
                (col("id") >= 5000, 4, 500),
                (col("id") == 5500, 0, 0),
            ):
                assert len(db.endpoints("root.large", where=where)) == parts, where
                assert db.scan("root.large", where=where).read_all().num_rows == found
            plan = db.scan("skiway.plans").read_all().to_pylist()[-1]
            assert (plan["files_considered"], plan["files_read"], plan["endpoints"]) == (1, 0, 0)


def test_parts_have_about_equal_size() -> None:
    sizes = [100, 90, 80, 10, 10, 10, 10, 5, 5, 300]
    files = file_table(sizes)
    parts = split(7, files, part_bytes=200, most=16)
    loads = sorted(sum(sizes[ordinal] for ordinal in part.ordinals) for part in parts)
    assert loads == [105, 105, 110, 300] or max(loads) == 300
    assert sorted(ordinal for part in parts for ordinal in part.ordinals) == list(range(10))
    assert all(Part.unpacked(part.packed()) == part for part in parts)
    assert split(7, files.slice(0, 0)) == []


def test_unrequested_columns_are_not_read(tmp_path: Path) -> None:
    """A file whose other column is overwritten with garbage still returns this one."""
    parquet_files(tmp_path / "files" / "many", 1, rows=10_000)
    file = tmp_path / "files" / "many" / "000.parquet"
    chunk = pq.ParquetFile(file).metadata.row_group(0).column(1)
    with opened_lake(tmp_path) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        data = bytearray(file.read_bytes())
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        _damage(file, data)
        with lake.client("parquet") as db:
            assert db.scan("root.many", columns=["id"]).read_all().num_rows == 10_000
            with pytest.raises(SkiwayError):
                db.scan("root.many", columns=["s"]).read_all()


def test_unavailable_source_fails_only_its_own_tables(tmp_path: Path) -> None:
    parquet_files(tmp_path / "files" / "many", 1)
    with opened_lake(tmp_path) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        made = lake.catalog("mixed", connector_ref="both")
        good = lake.connector(made, "parquet", str(tmp_path / "files"), {})
        with open_source("parquet", str(tmp_path / "files")) as source:
            handle = source.load((), "many")
        namespace = lake.namespace(made, ["all"])
        lake.mirror_table(namespace, good, handle)
        (tmp_path / "files").rename(tmp_path / "elsewhere")
        with lake.client("mixed") as db:
            assert [table.name for table in db.schemas()[0].tables] == ["many"]
            with pytest.raises(SkiwayError, match=r"table 'many'.*check the address"):
                db.scan("all.many").read_all()
            assert db.scan("skiway.tables").read_all().num_rows == 1


def test_folder_is_read_as_of_its_last_synchronization(tmp_path: Path) -> None:
    folder = tmp_path / "files" / "many"
    parquet_files(folder, 2)

    def listed() -> TableHandle:
        with open_source("parquet", str(tmp_path / "files")) as source:
            return source.load((), "many")

    with opened_lake(tmp_path) as lake:
        catalog = lake.catalog("folders", connector_ref="files")
        connector = lake.connector(catalog, "parquet", str(tmp_path / "files"), {})
        first = listed()
        table = lake.mirror_table(lake.namespace(catalog, ["root"]), connector, first)
        pq.write_table(pa.table({"id": [7777], "s": ["new"], "more": [1]}), folder / "999.parquet")
        with lake.client("folders") as db:
            assert db.count("root.many") == 200
            lake.sync_snapshots(table, listed(), first.snapshots())
            assert db.count("root.many") == 201
            assert db.scan("root.many", at_version=2).read_all().num_rows == 201
            assert db.scan("root.many", at_version=1).read_all().num_rows == 200
            assert db.scan("root.many", at_version=1, where=col("id") == 3).read_all().num_rows == 1


def test_listing_with_changed_files_is_replaced_by_the_current_one(tmp_path: Path) -> None:
    folder = tmp_path / "files" / "many"
    parquet_files(folder, 2)
    with opened_lake(tmp_path) as lake:
        lake.mirror("parquet", str(tmp_path / "files"))
        changed = sorted(folder.iterdir())[0]
        pq.write_table(pq.read_table(changed).slice(0, 1), changed)
        with lake.client("parquet") as db:
            assert db.count("root.many") == 101
            with pytest.raises(NotFound, match="listing 1 of table 'many' can no longer be read"):
                db.scan("root.many", at_version=1)


def test_ticket_is_bound_to_one_snapshot(lake: Lake) -> None:
    with lake.client() as db, lake.client() as other:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        db.insert("s.t", pa.table({"id": [1, 2]}))
        (endpoint,) = db.endpoints("s.t")
        other.update("s.t", {"id": 7})
        other.insert("s.t", pa.table({"id": [3]}))
        with grpc.insecure_channel(lake.location.removeprefix("grpc://")) as channel:
            stream = channel.unary_stream("/arrow.flight.protocol.FlightService/DoGet")
            ticket = flight.Ticket(ticket=endpoint.ticket).SerializeToString()
            frames = stream(ticket, metadata=[("airport-catalog", "managed")])
            batches = list(BatchReader(iter(frames)))
        assert pa.Table.from_batches(batches)["id"].to_pylist() == [1, 2]


def test_transaction_has_repeatable_reads_and_sees_its_own_writes(lake: Lake) -> None:
    with lake.client() as db, lake.client() as other:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        db.insert("s.t", pa.table({"id": [1]}))
        with db.transaction():
            assert db.count("s.t") == 1
            other.insert("s.t", pa.table({"id": [2]}))
            assert other.count("s.t") == 2
            assert db.count("s.t") == 1
            db.insert("s.t", pa.table({"id": [3]}))
            assert sorted(db.scan("s.t").read_all()["id"].to_pylist()) == [1, 2, 3]
            other.insert("s.t", pa.table({"id": [4]}))
            assert db.count("s.t") == 3
        assert db.count("s.t") == 4


def test_another_server_reads_as_of_the_start_of_the_transaction_with_its_own_writes(lake: Lake) -> None:
    with lake.client() as db, lake.served() as location, AirportClient(location, "managed") as other_client:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        db.insert("s.t", pa.table({"id": [1]}))
        with db.transaction() as unit:
            within = {"airport-transaction-id": unit.id, "airport-catalog": "managed"}
            with lake.client() as third:
                third.insert("s.t", pa.table({"id": [3]}))
            seen = other_client.take_flight(["managed", "s", "t"], headers=within)
            assert seen.read_all()["id"].to_pylist() == [1]
        with db.transaction() as unit:
            within = {"airport-transaction-id": unit.id, "airport-catalog": "managed"}
            db.insert("s.t", pa.table({"id": [2]}))
            with lake.client() as third:
                third.insert("s.t", pa.table({"id": [4]}))
            seen = other_client.take_flight(["managed", "s", "t"], headers=within)
            assert sorted(seen.read_all()["id"].to_pylist()) == [1, 2, 3]


def test_transaction_of_another_caller_cannot_be_used(lake: Lake) -> None:
    with lake.client(token="writer") as db, lake.client(token="reader") as other:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"id": pa.int64()}))
        db.insert("s.t", pa.table({"id": [1]}))
        with db.transaction() as unit:
            assert db.count("s.t") == 1
            db.insert("s.t", pa.table({"id": [2]}))
            with lake.client(token="writer") as third:
                third.insert("s.t", pa.table({"id": [3]}))
            theirs = {"airport-transaction-id": unit.id, "airport-catalog": "managed"}
            with pytest.raises(NotFound, match="is unknown"):
                other.take_flight(["managed", "s", "t"], headers=theirs).read_all()
            assert db.count("s.t") == 2
