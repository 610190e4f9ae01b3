"""Entries of exported data files: bounds that all clients may use, in Iceberg's serialization."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile

from skiway.errors import Unsupported
from skiway.formats import TableHandle, open_source
from skiway.formats.extension_types import UNKNOWN_CRS, as_geometry
from skiway.formats.iceberg.export.data_files import (
    check_deletes,
    check_shape,
    check_types,
    entries_of,
    iceberg_schema,
    name_mapping,
    path_of,
)
from skiway.formats.readers.parquet import FileShape
from skiway.formats.schemas import path_id, with_ids

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)
COLUMNS: dict[str, tuple[pa.DataType, list[Any], Any, Any]] = {
    "i8": (pa.int8(), [3, -5], -5, 3),
    "i": (pa.int32(), [3, -5], -5, 3),
    "l": (pa.int64(), [2**40, -5], -5, 2**40),
    "bo": (pa.bool_(), [True, False], False, True),
    "dec": (pa.decimal128(10, 2), [Decimal("12.34"), Decimal("-128.00")], Decimal("-128.00"), Decimal("12.34")),
    "day": (pa.date32(), [date(1969, 1, 1), date(2026, 1, 1)], -365, 20454),
    "ts": (pa.timestamp("us"), [MOMENT, MOMENT], 1767323045678901, 1767323045678901),
    "s": (pa.string(), ["b", "aß"], "aß", "b"),
    "b": (pa.binary(), [b"\xff", b"\0"], b"\0", b"\xff"),
    "nulls": (pa.int64(), [None, 7], 7, 7),
}


def exported(handle: TableHandle) -> list[DataFile]:
    snapshot = handle.current()
    assert snapshot is not None
    return entries_of(handle, handle.files(snapshot), handle.schema.arrow, spec_id=0, sources={})


def parquet_table(folder: Path, rows: pa.Table) -> TableHandle:
    (folder / "t").mkdir(parents=True)
    pq.write_table(rows, folder / "t" / "0.parquet")
    with open_source("parquet", str(folder)) as source:
        return source.load((), "t")


@pytest.mark.parametrize("name", COLUMNS)
def test_bounds_are_the_smallest_and_the_largest_value(tmp_path: Path, name: str) -> None:
    of, values, low, high = COLUMNS[name]
    handle = parquet_table(tmp_path, pa.table({name: pa.array(values, of)}))
    (entry,) = exported(handle)
    number = path_id((name,))
    as_iceberg = iceberg_schema(handle.schema.arrow).find_field(number).field_type
    assert from_bytes(as_iceberg, entry.lower_bounds[number]) == low
    assert from_bytes(as_iceberg, entry.upper_bounds[number]) == high
    assert (entry.record_count, entry.value_counts[number]) == (len(values), len(values))
    assert entry.null_value_counts[number] == values.count(None)


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (pa.float64(), [1.0, float("nan")]),
        (pa.float32(), [1.0, 2.0]),
        (pa.list_(pa.int64()), [[1]]),
        (pa.string(), ["x" * 65]),
        (pa.int64(), [None]),
    ],
)
def test_bounds_that_are_not_certain_are_left_out(tmp_path: Path, of: pa.DataType, values: list[Any]) -> None:
    """A client that knows bounds may skip a file, or answer MIN and MAX with them, although it contains NaN."""
    (entry,) = exported(parquet_table(tmp_path, pa.table({"x": pa.array(values, of)})))
    assert (entry.lower_bounds, entry.upper_bounds, entry.nan_value_counts) == ({}, {}, None)


def test_truncated_times_of_delta_are_no_bounds(tmp_path: Path) -> None:
    """Delta's statistics have milliseconds. Spark would return them as the greatest value."""
    rows = pa.table({"x": pa.array([MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", tz="UTC")), "n": [5]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    with open_source("delta", str(tmp_path)) as source:
        (entry,) = exported(source.load((), "t"))
    assert entry.lower_bounds == entry.upper_bounds == {path_id(("n",)): struct.pack("<q", 5)}


def test_rows_are_counted_in_the_file(tmp_path: Path) -> None:
    """Statistics in a Delta log are optional, but Iceberg clients rely on the count."""
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"x": [1, 2, 3]}))
    log = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('\\"numRecords\\":3', '\\"numRecords\\":4'))
    with open_source("delta", str(tmp_path)) as source:
        (entry,) = exported(source.load((), "t"))
    assert entry.record_count == 3


def test_all_columns_are_optional_except_keys() -> None:
    required = pa.schema(
        [
            pa.field("x", pa.int64(), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), nullable=False),
        ]
    )
    schema = iceberg_schema(with_ids(required))
    assert [field.required for field in schema.fields] == [False, False]
    assert not schema.find_field("m.value").required
    assert schema.find_field("m.key").required


@pytest.mark.parametrize(
    ("id_of", "message"),
    [(lambda _: 7, "the same field id"), (lambda path: 2**31 - 1 - len(path[0]), "a reserved one")],
)
def test_ids_that_iceberg_cannot_use_are_refused(id_of: Callable[..., int], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        iceberg_schema(with_ids(pa.schema({"x": pa.int64(), "yy": pa.int64()}), id_of))


def test_ambiguous_names_are_refused() -> None:
    with pytest.raises(Unsupported, match="ambiguous"):
        iceberg_schema(with_ids(pa.schema({"a": pa.struct({"b": pa.int64()}), "a.b": pa.int64()})))


def test_name_mapping_has_the_fields_of_all_schemas() -> None:
    old = with_ids(pa.schema({"s": pa.struct({"a": pa.int64()})}))
    new = with_ids(pa.schema({"s": pa.struct({"b": pa.list_(pa.int64())}), "x": pa.int64()}))
    assert name_mapping([old, new]) == name_mapping([new, old])
    s, x = json.loads(name_mapping([old, new]))
    assert [each["names"] for each in s["fields"]] == [["a"], ["b"]]
    assert s["fields"][1]["fields"] == [{"field-id": path_id(("s", "b", "element")), "names": ["element"]}]
    assert x == {"field-id": path_id(("x",)), "names": ["x"]}


@pytest.mark.parametrize("inside", [False, True])
def test_geometry_is_refused_although_it_is_stored_as_bytes(inside: bool) -> None:
    shape = as_geometry(pa.field("shape", pa.binary()), UNKNOWN_CRS)
    check_types([pa.field("shape", pa.binary())])
    with pytest.raises(Unsupported, match=r"column '(place\.)?shape' has type GEOMETRY") as refusal:
        check_types([pa.field("place", pa.struct([shape])) if inside else shape])
    assert refusal.value.key == "table.not_exportable"


LIST, MAP = pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32())


def check(stored: dict[str, pa.DataType], table: dict[str, pa.DataType], *, paths: Sequence[str] = ()) -> None:
    """Check a file with these columns against the table. `paths` are those of its leaves, if the file has other ones."""
    columns = pa.schema(stored)
    file = io.BytesIO()
    pq.write_table(columns.empty_table(), file)
    found = pq.ParquetFile(file).metadata.schema
    own = tuple(found.column(place).path for place in range(len(found)))
    check_shape(FileShape(0, columns, tuple(paths) or own, ()), pa.schema(table), [], "f")


@pytest.mark.parametrize(
    ("stored", "table"),
    [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.float64()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(10, 2), pa.decimal128(9, 2)),
        (pa.decimal128(9, 1), pa.decimal128(10, 2)),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
        (pa.list_(pa.int64()), LIST),
        (pa.map_(pa.string(), pa.int64()), MAP),
        (pa.map_(pa.int32(), pa.int32()), MAP),
        (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int32()})),
        (LIST, pa.int32()),
    ],
)
def test_type_that_iceberg_does_not_promote_is_refused(stored: pa.DataType, table: pa.DataType) -> None:
    with pytest.raises(Unsupported, match="in the table, but"):
        check({"x": stored}, {"x": table})


@pytest.mark.parametrize(
    ("stored", "table"),
    [
        (pa.int8(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(10, 2)),
        (pa.large_string(), pa.string()),
        (LIST, pa.list_(pa.int64())),
        (MAP, pa.map_(pa.string(), pa.int64())),
        (pa.list_(pa.struct({"a b": MAP})), pa.list_(pa.struct({"a b": MAP, "c": LIST}))),
    ],
)
def test_type_that_iceberg_promotes_is_exported(stored: pa.DataType, table: pa.DataType) -> None:
    check({"x.y (z)": stored}, {"x.y (z)": table, "more": pa.int32()})


def test_columns_that_the_table_lacks_are_refused() -> None:
    with pytest.raises(Unsupported, match="a column that the table lacks, 'y'"):
        check({"x": LIST, "y": LIST}, {"x": LIST})
    with pytest.raises(Unsupported, match=r"a field that the table lacks, x\.b"):
        check({"x": pa.struct({"a": LIST, "b": LIST})}, {"x": pa.struct({"a": LIST})})


@pytest.mark.parametrize(
    ("of", "paths", "is_known"),
    [
        (LIST, ["x.list.element"], True),
        (LIST, ["x.list.item"], True),
        (LIST, ["x.bag.array_element"], False),
        (LIST, ["x.array"], False),
        (LIST, ["xxlist.element"], False),
        (MAP, ["x.key_value.key", "x.key_value.value"], True),
        (MAP, ["x.map.key", "x.map.value"], False),
        (MAP, ["x.key_value.key", "x.key_value.v"], False),
        (pa.list_(LIST), ["x.list.element.list.element"], True),
        (pa.list_(LIST), ["x.list.element.array"], False),
    ],
)
def test_lists_and_maps_in_old_layouts_are_refused(of: pa.DataType, paths: list[str], is_known: bool) -> None:
    found: AbstractContextManager[Any] = (
        nullcontext() if is_known else pytest.raises(Unsupported, match="a list or a map in an old layout")
    )
    with found:
        check({"x": of}, {"x": of}, paths=paths)


@pytest.mark.parametrize("odd", ["?", "#", "\\", "\u2028"])
def test_paths_that_clients_interpret_differently_are_refused(odd: str) -> None:
    with pytest.raises(Unsupported, match="which clients interpret differently"):
        path_of(f"/folder/a{odd}b.parquet")


def test_path_is_exported_as_it_is() -> None:
    assert path_of("/folder/k=a b%2F ü/0.parquet") == "file:///folder/k=a b%2F ü/0.parquet"


def test_files_with_unknown_deletes_are_refused() -> None:
    check_deletes(pa.table({"path": ["a"], "deleted_rows": [0]}))
    for rows in (1, None):
        with pytest.raises(Unsupported, match=r"'b' \(deletion vectors\)"):
            check_deletes(pa.table({"path": ["a", "b"], "deleted_rows": [0, rows]}))


def test_fields_of_structs_lists_and_maps_are_optional() -> None:
    inner = pa.field("a", pa.int64(), nullable=False)
    nested = pa.struct([inner, pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False)))])
    schema = iceberg_schema(with_ids(pa.schema({"s": nested, "m": pa.map_(pa.string(), pa.struct([inner]))})))
    assert not any(schema.find_field(name).required for name in ("s.a", "s.l", "s.l.element", "m.value.a"))


@pytest.mark.parametrize(
    "of", [pa.struct([]), pa.decimal128(5, -2), pa.decimal256(40, 2), pa.list_(pa.struct({"a": pa.uint8()}))]
)
def test_types_that_not_all_clients_read_are_refused(of: pa.DataType) -> None:
    with pytest.raises(Unsupported, match="which not all Iceberg clients read alike"):
        iceberg_schema(with_ids(pa.schema({"x": of})))


def test_replaced_file_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with open_source("parquet", str(tmp_path)) as source:
        for values in ([1, 2], [3, 4, 5]):
            pq.write_table(pa.table({"x": values}), tmp_path / "t" / "0.parquet")
            (entry,) = exported(source.load((), "t"))
            size = (tmp_path / "t" / "0.parquet").stat().st_size
            assert (entry.record_count, entry.file_size_in_bytes) == (len(values), size)
