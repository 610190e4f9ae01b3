"""Data files in Avro and ORC have the rows that were written, by field id, with deletes applied, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from formats.data_formats import append_avro, append_orc
from formats.delete_files import add_equality_deletes, add_position_deletes
from formats.foreign_tables import make_fixtures
from formats.iceberg.test_deletes import read
from formats.managed import LooseTable
from formats.oracles import assert_same_rows
from formats.pushed_filters import pushed_filter
from skiway.errors import LimitExceeded, PreconditionFailed, Unsupported
from skiway.formats.iceberg.changes.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn, evolve
from skiway.formats.readers import avro
from skiway.formats.readers.orc import _signed
from skiway.formats.readers.scanning import ROW_POSITION

Append = Callable[..., Path]
FORMATS = pytest.mark.parametrize("write", [append_avro, append_orc], ids=["avro", "orc"])
NUMBERS = pa.schema({"x": pa.int32(), "note": pa.string()})


def numbers(start: int = 0, count: int = 100) -> pa.Table:
    found = range(start, start + count)
    return pa.table({"x": list(found), "note": [f"n{each}" for each in found]}, schema=NUMBERS)


@pytest.mark.parametrize(
    ("write", "codec"),
    [(append_avro, each) for each in ("null", "deflate", "bzip2")]
    + [(append_orc, each) for each in ("uncompressed", "zlib", "snappy", "zstd")],
)
def test_values_of_all_types_are_read(tmp_path: Path, write: Append, codec: str) -> None:
    table = LooseTable(tmp_path, make_fixtures.TYPES)
    rows = make_fixtures.rows(0, 60)
    write(table, rows, codec=codec)
    found = read(table)
    assert found.schema == table.handle.schema.arrow
    assert_same_rows(found, rows)


@FORMATS
def test_first_share_is_the_whole_file(tmp_path: Path, write: Append) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    write(table, numbers())
    snapshot = table.handle.current()
    assert snapshot is not None
    shares = [table.handle.read(snapshot, share=(number, 3)).read_all()["x"].to_pylist() for number in range(3)]
    assert shares == [list(range(100)), [], []]


@pytest.mark.parametrize("write", [append_avro], ids=["avro"])
def test_maps_with_other_keys_than_strings_are_read(tmp_path: Path, write: Append) -> None:
    schema = pa.schema({"m": pa.map_(pa.int32(), pa.list_(pa.date32()))})
    table = LooseTable(tmp_path, schema)
    rows = pa.table({"m": pa.array([[(1, [None, 7]), (2, None)], None, []], pa.map_(pa.int32(), pa.list_(pa.int32())))})
    write(table, rows)
    assert read(table)["m"].to_pylist() == rows.cast(schema)["m"].to_pylist()


@FORMATS
@pytest.mark.parametrize("columns", [["s"], ["tz", "id"], ["st"], []], ids=str)
def test_only_requested_columns_are_read(tmp_path: Path, write: Append, columns: list[str]) -> None:
    table = LooseTable(tmp_path, make_fixtures.TYPES)
    rows = make_fixtures.rows(0, 30)
    write(table, rows)
    found = read(table, columns=columns, positions=True, batch_rows=7)
    assert found.column_names[:-2] == columns
    assert found[ROW_POSITION].to_pylist() == list(range(30))
    if columns:
        assert_same_rows(found.select(columns), rows.select(columns))


def test_columns_that_are_not_requested_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    append_avro(table, numbers())
    decoded: list[str] = []
    batch = avro._batch

    def observed(records: list[Any], *rest: Any) -> pa.RecordBatch:
        decoded.extend(key for record in records[:1] for key in record)
        return batch(records, *rest)

    monkeypatch.setattr(avro, "_batch", observed)
    assert read(table, columns=["x"]).num_rows == 100
    assert decoded == ["x"]


@FORMATS
def test_columns_are_matched_by_id(tmp_path: Path, write: Append) -> None:
    schema = pa.schema({"a": pa.int32(), "b": pa.string(), "st": pa.struct({"k": pa.int32(), "l": pa.string()})})
    table = LooseTable(tmp_path, schema)
    write(table, pa.table({"a": [1], "b": ["x"], "st": [{"k": 7, "l": "y"}]}, schema=schema))
    table.change(
        evolve(
            [
                RenameColumn("a", "number"),
                WidenColumn("number", pa.int64()),
                DropColumn("b"),
                AddColumn("b", pa.string()),
                RenameColumn(("st", "k"), "key"),
                DropColumn(("st", "l")),
                AddColumn(("st", "more"), pa.date32()),
            ]
        )
    )
    now = table.handle.schema.arrow
    found = read(table, schema=now)
    assert found.schema.field("number").type == pa.int64()
    assert found.to_pylist() == [{"number": 1, "st": {"key": 7, "more": None}, "b": None}]


def test_avro_files_without_ids_use_the_name_mapping(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    append_avro(table, numbers(), with_ids=False)
    with pytest.raises(Unsupported, match="has no field ids, and the table has no name mapping"):
        read(table)
    table.metadata.properties["schema.name-mapping.default"] = (
        '[{"field-id": 1, "names": ["x"]}, {"field-id": 2, "names": ["note"]}]'
    )
    assert_same_rows(read(table), numbers())


@FORMATS
@pytest.mark.parametrize("predicate", ["", "x > 21 AND x < 60", "x = 40", "note = 'n42'"])
def test_deletes_and_filters_are_applied(tmp_path: Path, write: Append, predicate: str) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    place = write(table, numbers())
    add_position_deletes(table, f"file://{place}", 0, 30, 99)
    add_equality_deletes(table, pa.table({"note": [f"n{number}" for number in range(0, 100, 7)]}), [2])
    write(table, numbers(0, 8))
    first = [each for each in range(100) if each % 7 and each not in (0, 30, 99)]
    rows = [*first, *range(8)]
    matching = {
        "": rows,
        "x > 21 AND x < 60": [each for each in rows if 21 < each < 60],
        "x = 40": [40],
        "note = 'n42'": [],
    }
    condition = pushed_filter(predicate, NUMBERS) if predicate else None
    for columns in (["x", "note"], ["x"]):
        found = read(table, filter=condition, columns=columns, batch_rows=13)
        assert sorted(found["x"].to_pylist()) == sorted(matching[predicate])


@FORMATS
def test_updates_of_other_formats_are_read_together(tmp_path: Path, write: Append) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers(0, 10))
    write(table, numbers(10, 10))
    files = table.handle.files(table.handle.current())["format"].to_pylist()  # type: ignore[arg-type]
    assert sorted(files) == sorted(["parquet", "avro" if write is append_avro else "orc"])
    assert sorted(read(table)["x"].to_pylist()) == list(range(20))


@pytest.mark.parametrize(
    ("write", "damage"),
    [
        (append_avro, each)
        for each in ("truncated", "after a block", "marker", "other bytes", "empty", "not even a header")
    ]
    + [(append_orc, each) for each in ("truncated", "empty", "not even a header")],  # its pages have no checksums
)
def test_error_names_the_damaged_file(tmp_path: Path, write: Append, damage: str) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    options: dict[str, Any] = {"sync_interval": 2000} if write is append_avro else {}
    place = write(table, numbers(0, 5000), **options)
    data = place.read_bytes()
    middle = len(data) // 2
    place.write_bytes(
        {
            "truncated": data[: middle + 7],
            "after a block": data[: data.index(data[-16:], middle) + 16],
            "marker": data[:-1] + bytes([data[-1] ^ 1]),
            "other bytes": data[:middle] + bytes(300) + data[middle + 300 :],
            "empty": b"",
            "not even a header": b"nonsense",
        }[damage]
    )
    with pytest.raises(PreconditionFailed, match=rf"{place.name}' is corrupt"):
        read(table)


def test_block_that_expands_beyond_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    append_avro(table, pa.table({"x": [1], "note": ["x" * 1_000_000]}, schema=NUMBERS))
    assert read(table).num_rows == 1
    monkeypatch.setattr(avro, "_MAX_BLOCK_BYTES", 500_000)
    with pytest.raises(LimitExceeded, match="takes more than 500000 bytes"):
        read(table)


@pytest.mark.parametrize("year", [1600, 2500])
def test_orc_timestamps_that_arrow_cannot_represent_are_rejected(tmp_path: Path, year: int) -> None:
    """Arrow would return other timestamps. Other columns of the file can be read."""
    schema = pa.schema({"id": pa.int64(), "st": pa.struct({"ts": pa.timestamp("us")})})
    table = LooseTable(tmp_path, schema)
    place = append_orc(table, pa.table({"id": [1], "st": [{"ts": datetime(2026, 1, 1)}]}, schema=schema))
    assert read(table)["st"].to_pylist() == [{"ts": datetime(2026, 1, 1)}]
    far = pa.timestamp("ms")
    seconds = pa.table({"id": [1], "st": pa.array([{"ts": datetime(year, 1, 1)}], pa.struct({"ts": far}))})
    _rewritten_orc(place, seconds)
    assert read(table, columns=["id"])["id"].to_pylist() == [1]
    with pytest.raises(
        Unsupported, match=r"column 'st' of file '.*orc' has timestamps outside of the years 1677 to 2262"
    ):
        read(table)


def _rewritten_orc(place: Path, rows: pa.Table) -> None:
    """Write the file again with timestamps of milliseconds, which have a wider range, and the same attributes."""
    from pyarrow import orc

    before = orc.ORCFile(place).schema
    ts = before.field("st").type.field("ts").with_type(pa.timestamp("ms"))
    st = before.field("st").with_type(pa.struct([ts]))
    orc.write_table(rows.cast(pa.schema([before.field("id"), st])), place)


PROGRAM = """
import resource, sys
from skiway.formats import open_source

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with open_source("iceberg", sys.argv[1]) as source:
    table = source.load((), source.tables(())[0])
    table.read(table.current(), columns=["x"], batch_rows=1000).read_next_batch()
    rows, before = 0, peak()
    for batch in table.read(table.current(), batch_rows=1000):
        rows += batch.num_rows
        del batch
print(rows, peak() - before)
"""


def test_signed_numbers_of_orc_footers() -> None:
    assert [_signed(number) for number in range(6)] == [0, -1, 1, -2, 2, -3]


@pytest.mark.full
@FORMATS
def test_long_scan_uses_little_memory(tmp_path: Path, write: Append) -> None:
    """Runs in a process of its own, because a process remembers its peak."""
    table = LooseTable(tmp_path, NUMBERS)
    rows = pa.table({"x": pa.array(range(60_000), pa.int32()), "note": ["x" * 2000] * 60_000}, schema=NUMBERS)
    options: dict[str, Any] = {"stripe_size": 1 << 20} if write is append_orc else {}
    write(table, rows, **options)
    run = [sys.executable, "-c", PROGRAM, table.location]
    seen, peak = map(int, subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
    assert seen == 60_000
    assert peak < rows.nbytes / 3, f"{peak} more bytes at the peak, while reading {rows.nbytes} bytes"


def test_unknown_format_is_rejected(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    table.append(numbers())
    files = table.handle.plan(table.handle.current())  # type: ignore[arg-type]
    lance = files.set_column(files.column_names.index("format"), "format", pa.array(["lance"]))
    with pytest.raises(Unsupported, match="has the format 'lance', which is not supported"):
        read(table, files=lance)
