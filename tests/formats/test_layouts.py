"""Arrow's layouts of the same values (views, large offsets, dictionaries, run ends, kinds of lists) are read and written
like the plain one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from formats.managed import LooseTable
from formats.pushed_filters import pushed_filter
from skiway.airport.conversion import plain_array, plain_type, without_views
from skiway.formats import open_source
from skiway.formats.iceberg.deletes import positions_by_file

LONG = "a value that does not fit into the twelve bytes of a view"


def nested(values: list[Any], of: pa.DataType) -> pa.Array:
    return pa.array(values, of)


WRITTEN: dict[str, pa.Array] = {
    "string_view": nested([LONG, None, "b", ""], pa.string_view()),
    "binary_view": nested([LONG.encode(), None, b"b", b""], pa.binary_view()),
    "large_string": nested([LONG, None, "b", ""], pa.large_string()),
    "large_binary": nested([LONG.encode(), None, b"b", b""], pa.large_binary()),
    "dictionary": nested([LONG, None, "b", "b"], pa.dictionary(pa.int8(), pa.string())),
    "dictionary of large strings": nested([LONG, None, "b", "b"], pa.dictionary(pa.int32(), pa.large_string())),
    "large_list": nested([[1, None], None, [], [2]], pa.large_list(pa.int32())),
    "fixed_size_list": nested([[1, None], None, [2, 3], [4, 5]], pa.list_(pa.int32(), 2)),
    "list_view": nested([[1, None], None, [], [2]], pa.list_view(pa.int32())),
    "large_list_view of views": nested([[LONG, None], None, [], ["b"]], pa.large_list_view(pa.string_view())),
    "list of views": nested([[LONG, None], None, [], ["b"]], pa.list_(pa.string_view())),
    "struct of views": nested(
        [{"x": LONG}, None, {"x": None}, {"x": "b"}], pa.struct([pa.field("x", pa.string_view())])
    ),
    "struct of dictionaries": nested(
        [{"x": "a"}, None, {"x": None}, {"x": "b"}], pa.struct({"x": pa.dictionary(pa.int8(), pa.string())})
    ),
    "map of views": nested([[(LONG, "x")], None, [], [("k", None)]], pa.map_(pa.string_view(), pa.string_view())),
    "list of maps of dictionaries": nested(
        [[[("k", "v")]], None, [None], []], pa.list_(pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string())))
    ),
    "decimal32": nested([1, None, 2, 3], pa.decimal32(5, 2)),
}
RUNS: dict[str, pa.Array] = {
    "run ends": pc.run_end_encode(pa.array(["a", "a", None, "b"])),
    "run ends of views": pa.RunEndEncodedArray.from_arrays([2, 4], pa.array([LONG, None], pa.string_view())),
    "struct of run ends": pa.StructArray.from_arrays([pc.run_end_encode(pa.array([1, 1, None, 2]))], names=["x"]),
    "list of run ends": pa.ListArray.from_arrays([0, 1, 1, 3, 4], pc.run_end_encode(pa.array(["a", "a", "b", None]))),
}
ALL = {**WRITTEN, **RUNS}


def logical(array: pa.Array) -> list[Any]:
    """The values, taken one by one: `to_pylist` of a run-end encoded array is that of its scalars too."""
    return [each.as_py() for each in array]


@pytest.mark.parametrize("name", ALL)
def test_plain_array_has_the_same_values_in_the_plain_type(name: str) -> None:
    array = ALL[name]
    for part in (array, array.slice(1), array.slice(1, 2), array.slice(4)):
        plain = plain_array(part)
        plain.validate(full=True)
        assert plain.type == plain_type(array.type)
        assert logical(plain) == logical(part)
        assert plain_array(plain) is plain
        assert without_views(part).take(pa.array(range(len(part)), pa.int64())).to_pylist() == logical(part)


@pytest.mark.parametrize("name", WRITTEN)
def test_filtered_scan_of_a_parquet_file_in_any_layout(tmp_path: Path, name: str) -> None:
    values = WRITTEN[name]
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "c": values}), tmp_path / "t.parquet")
    with open_source("parquet", str(tmp_path)) as source:
        table = source.load((), "t")
        snapshot = table.current()
        assert snapshot is not None
        assert table.schema.arrow.field("c").type == plain_type(values.type)
        everything = table.read(snapshot).read_all()
        assert everything["c"].to_pylist() == values.to_pylist()
        pushed = pushed_filter("id > 2", pa.schema({"id": pa.int64()}))
        found = table.read(snapshot, filter=pushed, columns=["c"]).read_all()
        assert found["c"].to_pylist() == values.to_pylist()[2:]
        positions = table.read(snapshot, filter=pushed, columns=["c"], positions=True).read_all()
        assert positions["$position"].to_pylist() == [2, 3]


@pytest.mark.parametrize("name", ALL)
def test_iceberg_table_stores_rows_in_any_layout(tmp_path: Path, name: str) -> None:
    values = ALL[name]
    rows = pa.table({"id": pa.array([1, 2, 3, 4]), "c": values})
    table = LooseTable(tmp_path, rows.schema)
    table.append(rows)
    assert table.rows()["c"].to_pylist() == logical(values)


def test_position_deletes_may_name_files_in_any_layout() -> None:
    paths = pa.array(["b", "a", "b"])
    for named in (paths.cast(pa.string_view()), paths.dictionary_encode(), paths.cast(pa.large_string())):
        found = positions_by_file(pa.table({"file_path": named, "pos": [3, 1, 2]}))
        assert {path: each.to_pylist() for path, each in found.items()} == {"a": [1], "b": [2, 3]}
