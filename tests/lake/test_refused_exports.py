"""Tables that Iceberg clients would read incorrectly are refused with the reason, and listed as generic tables."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from lake.lakes import opened_lake
from skiway.formats.iceberg.export import data_files

NS = datetime(2026, 1, 1)


def write(folder: Path, *tables: pa.Table, path: str = "", **options: Any) -> None:
    for number, table in enumerate(tables):
        file = folder / "t" / path / f"{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file, **options)


def column(*values: Any, of: pa.DataType) -> pa.Table:
    return pa.table({"x": pa.array(values, of)})


def edit_log(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the actions of the only commit of a Delta table."""
    log = folder / "t" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        edit(action)
    log.write_text("\n".join(map(json.dumps, actions)))


def deletion_vector(folder: Path) -> None:
    deltalake.write_deltalake(str(folder / "t"), pa.table({"x": [1, 2, 3]}))
    # One deleted row, at position 1: a 64-bit Roaring bitmap with one array container.
    roaring = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 1)
    bitmap = struct.pack("<IQI", 1681511377, 1, 0) + roaring
    text = base64.b85encode(bitmap + b"\0" * (-len(bitmap) % 4)).decode()
    text = text.translate(str.maketrans(_B85, _Z85))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(bitmap), "cardinality": 1}

    def edit(action: dict[str, Any]) -> None:
        if "protocol" in action:
            features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        if "add" in action:
            action["add"]["deletionVector"] = vector

    edit_log(folder, edit)


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def column_mapping(folder: Path) -> None:
    deltalake.write_deltalake(str(folder / "t"), pa.table({"x": [1, 2, 3]}))

    def edit(action: dict[str, Any]) -> None:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
            schema = json.loads(action["metaData"]["schemaString"])
            schema["fields"][0]["name"] = "renamed"
            facts = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
            schema["fields"][0]["metadata"] = facts
            action["metaData"]["schemaString"] = json.dumps(schema)
        if "add" in action:
            action["add"].pop("stats", None)

    edit_log(folder, edit)


def delta_int96(folder: Path) -> None:
    """A Delta table as Spark writes it by default: timestamps are INT96."""
    rows = pa.table({"x": pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))})
    deltalake.write_deltalake(str(folder / "t"), rows)
    (file,) = (folder / "t").glob("*.parquet")
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True)

    def edit(action: dict[str, Any]) -> None:
        if "add" in action:
            action["add"]["size"] = file.stat().st_size

    edit_log(folder, edit)


def with_field_id(folder: Path) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={b"PARQUET:field_id": b"7"})])
    write(folder, pa.table({"x": [1]}, schema=schema))


def old_list(folder: Path) -> None:
    """A list with other names of its levels, as old versions of Hive and Spark write it."""
    write(folder, column([1, 2], of=pa.list_(pa.int32())))
    file = folder / "t" / "0.parquet"
    file.write_bytes(file.read_bytes().replace(b"\x04list", b"\x04bags"))


UTC_TIME = pa.timestamp("us", tz="UTC")
PARQUET: dict[str, tuple[Callable[[Path], None], str]] = {
    "unsigned": (lambda to: write(to, column(2**32 - 1, of=pa.uint32())), "column 'x' has type uint32"),
    "unsigned 8": (lambda to: write(to, column(255, of=pa.uint8())), "column 'x' has type uint8"),
    "half float": (lambda to: write(to, column(1.5, of=pa.float16())), "column 'x' has type halffloat"),
    "nanoseconds": (lambda to: write(to, column(NS, of=pa.timestamp("ns"))), "column 'x' has type timestamp[ns]"),
    "milliseconds": (lambda to: write(to, column(NS, of=pa.timestamp("ms"))), "column 'x' has type timestamp[ms]"),
    "time zone": (
        lambda to: write(to, column(NS, of=pa.timestamp("us", tz="Europe/Berlin"))),
        "has type timestamp[us, tz=Europe/Berlin]",
    ),
    "times of milliseconds": (lambda to: write(to, column(5, of=pa.time32("ms"))), "has type time32[ms]"),
    "fixed": (lambda to: write(to, column(b"abcd", of=pa.binary(4))), "has type fixed_size_binary[4]"),
    "uuid": (lambda to: write(to, column(UUID(int=1).bytes, of=pa.uuid())), "extension<arrow.uuid>"),
    "only nulls": (lambda to: write(to, pa.table({"x": pa.nulls(1), "y": [1]})), "column 'x' has type null"),
    "nested": (
        lambda to: write(to, pa.table({"x": pa.array([[{"a": 1}]], pa.list_(pa.struct({"a": pa.uint64()})))})),
        "column 'x.element.a' has type uint64",
    ),
    "INT96": (
        lambda to: write(to, column(NS, of=pa.timestamp("us")), use_deprecated_int96_timestamps=True),
        "has timestamps in the old type INT96",
    ),
    "field ids": (with_field_id, "has a field id, by which clients would look for another column"),
    "integers and doubles": (
        lambda to: write(to, column(1, of=pa.int32()), column(1.5, of=pa.float64())),
        "column 'x' is double in the table, but int32 in file",
    ),
    "scales": (
        lambda to: write(
            to, column(Decimal("1.5"), of=pa.decimal128(5, 1)), column(Decimal("1.25"), of=pa.decimal128(9, 2))
        ),
        "column 'x' is decimal128(9, 2) in the table, but decimal128(5, 1) in file",
    ),
    "with and without time zone": (
        lambda to: write(to, column(NS, of=pa.timestamp("us")), column(NS, of=UTC_TIME)),
        "but timestamp[us] in file",
    ),
    "dates and timestamps": (
        lambda to: write(to, column(date(2026, 1, 1), of=pa.date32()), column(NS, of=pa.timestamp("us"))),
        "column 'x' is timestamp[us] in the table, but date32[day] in file",
    ),
    "strings and bytes": (
        lambda to: write(to, column("a", of=pa.string()), column(b"b", of=pa.binary())),
        "column 'x' is binary in the table, but string in file",
    ),
    "partition column in the file": (
        lambda to: write(to, pa.table({"x": [1], "k": ["other"]}), path="k=a"),
        "also has the partition column 'k'",
    ),
    "old list": (old_list, "is a list or a map in an old layout"),
    "unusual path": (lambda to: write(to, pa.table({"x": [1]}), path="k=a#b"), "contains '#'"),
}
DELTA: dict[str, tuple[Callable[[Path], None], str]] = {
    "deletion vector": (deletion_vector, "it has deleted rows that are still in the files"),
    "column mapping": (column_mapping, "it uses column mapping"),
    "INT96 in Delta": (delta_int96, "has timestamps in the old type INT96"),
}


@pytest.mark.parametrize("case", [*PARQUET, *DELTA])
def test_table_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    kind = "parquet" if case in PARQUET else "delta"
    make, reason = (PARQUET | DELTA)[case]
    source = tmp_path / "source"
    make(source)
    with opened_lake(tmp_path / "lake") as lake:
        lake.mirror(kind, str(source), catalog="c")
        with lake.client("c") as db:
            assert db.scan(("root", "t")).read_all().num_rows, "Airport reads it"
        with lake.rest_served() as uri, httpx.Client(verify=False) as http:
            here = f"{uri}/v1/c/namespaces/root/tables"
            for _ in range(2):  # the second time from the stored reason
                answer = http.get(f"{here}/t")
                assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchTableException")
                message = answer.json()["error"]["message"]
                assert f"table t is of format {kind} and cannot be read as Iceberg, because " in message
                assert reason in message
                assert "attach this server in DuckDB by its Airport address" in message
            assert http.head(f"{here}/t").status_code == 404
            assert http.get(here).json()["identifiers"] == []
            generic = f"{uri}/polaris/v1/c/namespaces/root/generic-tables"
            assert http.get(generic).json()["identifiers"] == [{"namespace": ["root"], "name": "t"}]
            assert http.get(f"{generic}/t").json()["table"]["format"] == kind


@pytest.mark.full
@pytest.mark.needs("duckdb extensions")
def test_clients_read_different_times_from_int96(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this test fails, clients have improved: export such tables, and change docs/rest.md."""
    monkeypatch.setattr(data_files, "check_shape", lambda *_: None)
    times = [datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)]
    write(tmp_path / "source", column(*times, of=UTC_TIME), use_deprecated_int96_timestamps=True)
    with opened_lake(tmp_path / "lake") as lake:
        lake.mirror("parquet", str(tmp_path / "source"), catalog="c")
        with lake.client("c") as db:
            assert db.scan(("root", "t")).read_all()["x"].to_pylist() == times
        with lake.rest_served() as uri:
            table = RestCatalog("lake", uri=uri, warehouse="c", token="writer").load_table("root.t")
            usual, far = table.scan().to_arrow()["x"].to_pylist()
            assert (usual, far.year) == (times[0], 1830), "PyIceberg"
            duck.execute("CREATE OR REPLACE SECRET lake (TYPE iceberg, TOKEN 'writer')")
            duck.execute(f"ATTACH OR REPLACE 'c' AS int96 (TYPE iceberg, ENDPOINT '{uri}', SECRET lake)")
            for zone, found in (("UTC", times[0]), ("America/New_York", times[0] + timedelta(hours=4))):
                duck.execute(f"SET TimeZone = '{zone}'")
                rows = duck.execute("SELECT epoch_us(min(x)) FROM int96.root.t").fetchall()
                assert rows == [(int(found.timestamp()) * 10**6,)], f"DuckDB in {zone}"
            duck.execute("DETACH int96")
