"""How data files are encoded: on a thread, within a bound of memory, and with dictionaries where they help."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.managed import LooseTable
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.formats.iceberg.writing.parquet_files import ParquetFile, dictionary_columns

NUMBERS = pa.schema({"x": pa.int64()})


def numbers(count: int, first: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(first, first + count), pa.int64())})


class Gate:
    """Lets a test decide when rows are encoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.threads = threading.Event(), list[str]()
        write = ParquetFile.write

        def waiting(file: ParquetFile, rows: pa.Table) -> None:
            self.threads.append(threading.current_thread().name)
            assert self.opened.wait(200)
            write(file, rows)

        monkeypatch.setattr(ParquetFile, "write", waiting)


def test_rows_are_encoded_while_others_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, table = Gate(monkeypatch), LooseTable(tmp_path, NUMBERS)
    with DataFileWriter(table.files, table.metadata, buffer_bytes=16_000) as writer:
        writer.write(numbers(1000))  # half of the buffer: these are being encoded
        writer.write(numbers(900, first=1000))
        gate.opened.set()
        (file,) = writer.close()
    assert gate.threads[0].startswith("encode-rows")
    assert file.record_count == 1900
    assert pq.read_table(file.file_path.removeprefix("file://"))["x"].to_pylist() == list(range(1900))
    assert not [each for each in threading.enumerate() if each.name.startswith("encode-rows")]


def test_writer_waits_when_the_buffer_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, table = Gate(monkeypatch), LooseTable(tmp_path, NUMBERS)
    taken = threading.Event()
    with DataFileWriter(table.files, table.metadata, buffer_bytes=16_000) as writer:
        writer.write(numbers(1000))
        assert writer._rows_in_memory() == 8000

        def more() -> None:
            writer.write(numbers(1001))
            taken.set()

        thread = threading.Thread(target=more)
        thread.start()
        assert not taken.wait(0.2), "16,008 bytes would be in memory"
        gate.opened.set()
        thread.join(200)
        assert taken.is_set()
        assert writer._rows_in_memory() <= 16_000
        assert sum(file.record_count for file in writer.close()) == 2001


def test_abort_waits_for_the_thread_before_it_deletes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, table = Gate(monkeypatch), LooseTable(tmp_path, NUMBERS)
    writer = DataFileWriter(table.files, table.metadata, buffer_bytes=16_000)
    writer.write(numbers(1000))
    aborting = threading.Thread(target=writer.abort)
    aborting.start()
    aborting.join(0.2)
    assert aborting.is_alive()
    assert list(tmp_path.rglob("*.parquet"))
    gate.opened.set()
    aborting.join(200)
    assert not list(tmp_path.rglob("*.parquet"))


def test_small_writes_start_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, table = Gate(monkeypatch), LooseTable(tmp_path, NUMBERS)
    gate.opened.set()
    table.append(numbers(10), numbers(10))
    assert gate.threads == [threading.current_thread().name]


@pytest.mark.parametrize("failing", [1, 2])
def test_failure_on_the_thread_ends_the_write_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    table, write, calls = LooseTable(tmp_path, NUMBERS), ParquetFile.write, list[int]()

    def broken(file: ParquetFile, rows: pa.Table) -> None:
        calls.append(rows.num_rows)
        if len(calls) == failing:
            raise OSError("no space left")
        write(file, rows)

    monkeypatch.setattr(ParquetFile, "write", broken)
    with pytest.raises(OSError, match="no space left"):
        table.write(*[numbers(1000)] * 4, buffer_bytes=16_000)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("buffer", [1, 2000, 50_000, 10_000_000])
def test_rows_do_not_depend_on_the_buffer(tmp_path: Path, buffer: int) -> None:
    table = LooseTable(tmp_path, pa.schema({"part": pa.int64(), "x": pa.int64()}), "part")
    values = np.random.default_rng(7).integers(0, 5, 3000)
    rows = pa.table({"part": values, "x": range(3000)})
    table.append(*rows.to_batches(max_chunksize=170), buffer_bytes=buffer, max_open_files=2)
    assert table.rows().sort_by("x").select(["part", "x"]).equals(rows)


# -- dictionaries -------------------------------------------------------------------------------------------------------


def encodings(table: LooseTable, rows: pa.Table) -> dict[str, bool]:
    """Whether each leaf of the file with these rows has a dictionary. The rows must be read as they were written."""
    (file,) = table.append(rows)
    path = file.file_path.removeprefix("file://")
    assert pq.read_table(path).cast(rows.schema).equals(rows)
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    return {each.path_in_schema: each.has_dictionary_page for each in columns}


def test_columns_with_few_values_have_dictionaries(tmp_path: Path) -> None:
    count, random = 20_000, np.random.default_rng(3)
    rows = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "a.b": pa.array(random.integers(0, 50, count)),
            "amount": pa.array(random.random(count)),
            "name": pa.array([f"name {number % 9}" for number in range(count)]),
            "text": pa.array([f"text {number}" for number in range(count)]),
            "none": pa.nulls(count, pa.string()),
            "sorted": pa.array([number // 1000 for number in range(count)], pa.int32()),
            "place": pa.array([{"zip": number, "tags": ["a", None]} for number in range(count)]),
        }
    )
    table = LooseTable(tmp_path, rows.schema)
    assert encodings(table, rows) == {
        "id": False,
        "a.b": True,
        "amount": False,
        "name": True,
        "text": False,
        "none": True,
        "sorted": True,
        "place.zip": True,
        "place.tags.list.element": True,
    }


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (pa.table({"x": range(1023)}), True),
        (pa.table({"x": range(1024)}), []),
        (pa.table({"x": [1] * 5000, "y": range(5000)}), ["x"]),
        (pa.table({"x": [number // 2 for number in range(5000)]}), True),
        (pa.table({"x": [None] * 4000 + list(range(4000))}), []),
    ],
    ids=["few rows", "all different", "one of two", "each twice", "without NULL"],
)
def test_rows_decide_which_columns_have_dictionaries(rows: pa.Table, expected: Any) -> None:
    assert dictionary_columns(rows) == expected
