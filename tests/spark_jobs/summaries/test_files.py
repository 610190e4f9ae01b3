"""Files that are read in parts, and those that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skiway.spark_jobs.profile.sketches import distinct_count
from skiway.spark_jobs.summaries import files
from skiway.spark_jobs.summaries.columns import ColumnRequest, ColumnSummary
from skiway.spark_jobs.summaries.files import FileColumn, FilePart, converted, summarized

FIGURES = ("values", "min", "max")
WANTED = ColumnRequest(frozenset(FIGURES), 12, 16, 256)
SCHEMA = pa.schema(
    {"file": pa.int64(), "rows": pa.int64(), "error": pa.string()}
    | {f"{name}{place}": pa.int64() for place in (0, 1) for name in FIGURES}
)


def summary(file: FilePart) -> dict[str, Any]:
    inside = FileColumn(0, ("box", "n"), pa.int64(), "us", WANTED)
    constant = FileColumn(1, None, pa.int64(), "us", WANTED)
    (row,) = summarized(file, [inside, constant], SCHEMA).to_pylist()
    return dict(row)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [None if number == 5 else {"n": number, "m": "x"} for number in range(10)]
    pq.write_table(pa.table({"box": rows}), tmp_path / "a.parquet", row_group_size=2)
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_parts_have_each_row_once(path: Path, parts: int) -> None:
    found = [summary(FilePart(3, str(path), part, parts, {1: pa.array([7])})) for part in range(parts)]
    assert {each["error"] for each in found} == {None}
    assert sum(each["rows"] for each in found) == sum(each["values1"] for each in found) == 10
    assert sum(each["values0"] for each in found) == 9
    least = [each["min0"] for each in found if each["rows"]]
    assert (least, least[0], {each["file"] for each in found}) == (sorted(least), 0, {3})
    assert {each["max1"] for each in found if each["rows"]} == {7}


def test_large_rows_come_in_small_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    values = files._values
    monkeypatch.setattr(files, "_BATCH_BYTES", 1)
    monkeypatch.setattr(files, "_values", lambda batch, *rest: sizes.append(batch.num_rows) or values(batch, *rest))
    assert summary(FilePart(0, str(path), constants={1: pa.array([7])}))["rows"] == 10
    assert set(sizes) == {1}


def test_file_that_cannot_be_read_has_an_error(path: Path) -> None:
    path.write_bytes(b"PAR1 but nothing else PAR1")
    found = summary(FilePart(0, str(path), constants={1: pa.array([7])}))
    assert found["error"]
    assert found["rows"] is found["values0"] is None
    assert summary(FilePart(0, str(path) + "x"))["error"]


@pytest.mark.parametrize(
    ("values", "of", "unit", "numbers"),
    [
        (pa.array([-1500], pa.timestamp("ns")), pa.timestamp("us"), "us", -1),
        (pa.array([-1500], pa.timestamp("ns")), pa.int64(), "ns", -1500),
        (pa.array([5], pa.timestamp("ms")), pa.timestamp("us", "UTC"), "us", 5000),
        (pa.array([5], pa.timestamp("us", "UTC")), pa.timestamp("us"), "us", 5),
        (pa.array([5], pa.time32("ms")), pa.int64(), "us", 5000),
        (pa.array([5000], pa.time64("ns")), pa.int64(), "ns", 5000),
        (pa.array([200], pa.uint8()), pa.int32(), "us", 200),
        (pa.array([2**32 - 1], pa.uint32()), pa.int64(), "us", 2**32 - 1),
    ],
)
def test_values_are_converted_as_spark_does(values: pa.Array, of: pa.DataType, unit: str, numbers: int) -> None:
    found = converted(values, of, unit)
    assert found.type == of
    assert np.array(found.view(pa.int32() if of.bit_width == 32 else pa.int64())).tolist() == [numbers]


# --- strings ----------------------------------------------------------------------------------------------------------

TEXT_FIGURES = ("values", "width", "theta", "top", "min", "max")
TEXT = FileColumn(0, ("s",), pa.string(), "us", ColumnRequest(frozenset(TEXT_FIGURES), 12, 16, 256))
TEXT_SCHEMA = pa.schema(
    {"file": pa.int64(), "rows": pa.int64(), "error": pa.string(), "values0": pa.int64(), "width0": pa.int64()}
    | {"theta0": pa.binary(), "min0": pa.string(), "max0": pa.string()}
    | {"top0": pa.list_(pa.struct({"item": pa.string(), "count": pa.int64()}))}
)


def test_repeated_strings_need_little_memory(tmp_path: Path) -> None:
    """A small file can have a gigabyte of strings."""
    path, long = tmp_path / "a.parquet", "x" * 20_000
    indices = pa.array([0, 1, None, 0] * 12_500, pa.int32())
    rows = pa.table({"s": pa.DictionaryArray.from_arrays(indices, pa.array([long, "y"]))})
    pq.write_table(rows, path, store_schema=False)  # as other engines write it
    assert path.stat().st_size < 50_000
    measured = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(measured)
    try:
        (found,) = summarized(FilePart(0, str(path)), [TEXT], TEXT_SCHEMA).to_pylist()
    finally:
        pa.set_memory_pool(before)
    assert (found["error"], found["rows"], found["values0"]) == (None, 50_000, 37_500)
    assert (found["width0"], found["min0"] == long, found["max0"]) == (25_000 * 20_000 + 12_500, True, "y")
    assert found["top0"] == [{"item": "y", "count": 12_500}]
    assert measured.max_memory() < 16 << 20


def test_figures_do_not_depend_on_dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [None if number % 7 == 0 else f"word {number % 3_000}" for number in range(20_000)]
    pq.write_table(pa.table({"s": words}), tmp_path / "a.parquet", row_group_size=7_000)
    monkeypatch.setattr(files, "_BATCH_ROWS", 1_000)
    file = FilePart(0, str(tmp_path / "a.parquet"))
    found = summarized(file, [TEXT], TEXT_SCHEMA)
    monkeypatch.setattr(files, "_dictionaries", lambda *_: [])
    plain = summarized(file, [TEXT], TEXT_SCHEMA)
    assert found.drop_columns(["top0"]) == plain.drop_columns(["top0"])
    counts = [[pair["count"] for pair in each["top0"][0].as_py()] for each in (found, plain)]
    assert counts[0] == counts[1]


def test_unused_values_of_a_dictionary_do_not_count() -> None:
    summary_of_text = ColumnSummary(TEXT.wanted)
    summary_of_text.add(pa.DictionaryArray.from_arrays(pa.array([1, None, 1], pa.int32()), pa.array(["a", "b", "c"])))
    found = summary_of_text.result()
    assert (found["values"], found["min"].as_py(), found["max"].as_py()) == (2, "b", "b")
    assert found["top"].as_py() == [{"item": "b", "count": 2}]
    assert distinct_count([found["theta"]]).estimate == 1


def test_large_strings_are_read_as_plain_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow would make a dictionary of a whole row group."""
    pq.write_table(
        pa.table({"s": [f"{number:09}" for number in range(1_000)], "n": range(1_000)}), tmp_path / "a.parquet"
    )
    kinds: list[pa.DataType] = []
    values = files._values
    monkeypatch.setattr(
        files, "_values", lambda batch, *rest: kinds.append(batch.schema.field("s").type) or values(batch, *rest)
    )
    for limit, kind in ((64 << 20, pa.dictionary(pa.int32(), pa.string())), (5_000, pa.string())):
        kinds.clear()
        monkeypatch.setattr(files, "_BATCH_BYTES", limit)
        summarized(FilePart(0, str(tmp_path / "a.parquet")), [TEXT], TEXT_SCHEMA)
        assert set(kinds) == {kind}
