"""Folders of tables that other engines write, one for each type and feature, and the rows that were written."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from formats.odd_tables import INNER, NESTED

DEEP: Final = pa.array([{"a": {"b": {"c": 1, "l": [{"m": [("k", {"k": "x", "m": []})]}]}}}, None],
    pa.struct({"a": pa.struct({"b": pa.struct({
        "c": pa.int64(), "l": pa.list_(pa.struct({"m": pa.map_(pa.string(), INNER)}))})})}),
)  # fmt: skip
"""Structs nested three deep, with a list and a map at their end."""

_UNITS: Final = ("s", "ms", "us", "ns")
ARROW_VALUES: Final[dict[str, pa.Array]] = {
    "bool": pa.array([True, None]),
    **{f"u{bits}": pa.array([7, None], pa.type_for_alias(f"uint{bits}")) for bits in (8, 16, 32, 64)},
    **{f"i{bits}": pa.array([-7, None], pa.type_for_alias(f"int{bits}")) for bits in (8, 16, 32, 64)},
    "f32": pa.array([1.5, None], pa.float32()),
    "f64": pa.array([float("nan"), None], pa.float64()),
    "decimal": pa.array([Decimal("1.5"), None], pa.decimal128(38, 10)),
    "string": pa.array(["ß", None]),
    "large_string": pa.array(["ß", None], pa.large_string()),
    "string_view": pa.array(["ß", None], pa.string_view()),
    "binary": pa.array([b"\x00\xff", None]),
    "large_binary": pa.array([b"\x00", None], pa.large_binary()),
    "binary_view": pa.array([b"\x00", None], pa.binary_view()),
    "fixed": pa.array([b"abc", None], pa.binary(3)),
    "date": pa.array([date(1500, 1, 1), None], pa.date32()),
    "date64": pa.array([date(2026, 1, 1), None], pa.date64()),
    **{f"time_{unit}": pa.array([10**6, None], pa.timestamp(unit)) for unit in _UNITS},
    **{f"time_utc_{unit}": pa.array([10**6, None], pa.timestamp(unit, "UTC")) for unit in _UNITS},
    "time_berlin": pa.array([10**6, None], pa.timestamp("us", "Europe/Berlin")),
    "void": pa.nulls(2),
    "dictionary": pa.array(["a", None]).dictionary_encode(),
    "large_list": pa.array([[1, None], None], pa.large_list(pa.int64())),
    "list_view": pa.array([[1, None], None], pa.list_view(pa.int64())),
    "fixed_list": pa.array([[1, None], None], pa.list_(pa.int64(), 2)),
    "deep": DEEP,
}
_DELTA_PARTITIONS: Final = ("bool", "i8", "i32", "f64", "decimal", "string", "date", "time_us", "time_utc_us")


def _rows(values: pa.Array) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values})


def delta_rs_folder(folder: Path) -> dict[str, pa.Table]:
    """Every type that delta-rs writes, partitions, column mapping, a feature for deletion vectors, and deleted rows."""
    from deltalake import DeltaTable, write_deltalake

    tables: dict[str, pa.Table] = {name: _rows(values) for name, values in ARROW_VALUES.items()} | {"nested": NESTED}
    for name, rows in tables.items():
        write_deltalake(folder / name, rows)
    for name in _DELTA_PARTITIONS:
        tables[f"by_{name}"] = _rows(ARROW_VALUES[name])
        write_deltalake(folder / f"by_{name}", tables[f"by_{name}"], partition_by=["v"])
    versions = {"delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}
    for mode in ("name", "id"):
        for name, rows in {"nested": NESTED, "deep": _rows(DEEP)}.items():
            tables[f"{name}_{mode}"] = rows
            configuration = {"delta.columnMapping.mode": mode, **versions}
            write_deltalake(folder / f"{name}_{mode}", rows, configuration=configuration)
    deleted = _rows(ARROW_VALUES["i64"])
    write_deltalake(folder / "vectors", deleted, configuration={"delta.enableDeletionVectors": "true"})
    DeltaTable(folder / "vectors").delete("id = 0")
    return tables | {"vectors": deleted.slice(1)}


_ICEBERG: Final = (
    "bool", "i32", "i64", "f32", "f64", "decimal", "string", "large_string", "binary", "large_binary", "fixed", "date",
    "time_us", "time_utc_us", "dictionary", "large_list", "deep", "i8", "i16", "u8", "u16", "u32", "u64",
)  # fmt: skip
_TRANSFORMS: Final = {
    "identity": "string", "bucket[4]": "i64", "truncate[1]": "string", "year": "date", "month": "date", "day": "time_us",
    "hour": "time_utc_us", "void": "i64",
}  # fmt: skip


def pyiceberg_folder(folder: Path) -> dict[str, pa.Table]:
    """Every type that PyIceberg writes, partitions by all transforms, and deleted rows.

    A table is in the namespace `db`.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import parse_transform

    database = folder.with_name(f"{folder.name}.db")
    catalog = SqlCatalog("writer", uri=f"sqlite:///{database}", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    tables: dict[str, pa.Table] = {}

    def write(name: str, rows: pa.Table, version: str = "2", transform: str = "") -> Any:
        table = catalog.create_table(f"db.{name}", rows.schema, properties={"format-version": version})
        if transform:
            with table.update_spec() as update:
                update.add_field("v", parse_transform(transform), "part")
        table.append(rows)
        tables[name] = rows
        return table

    for name in _ICEBERG:
        write(name, _rows(ARROW_VALUES[name]))
    write("uuid", _rows(pa.array([bytes(16), None], pa.uuid())))
    write("time_of_day", _rows(pa.array([1, None], pa.time64("us"))))
    for version in ("1", "2"):
        written = write(f"nested_v{version}", NESTED.drop_columns(["st"]), version=version)
        # PyIceberg writes NULLs in nested values in its own way, so the file says what the rows are.
        (task,) = written.scan().plan_files()
        tables[f"nested_v{version}"] = pq.read_table(task.file.file_path.removeprefix("file://"))
    for transform, name in _TRANSFORMS.items():
        write(f"by_{transform.partition('[')[0]}", _rows(ARROW_VALUES[name]), transform=transform)
    write("deleted", _rows(ARROW_VALUES["i64"])).delete("id = 0")
    tables["deleted"] = tables["deleted"].slice(1)
    catalog.engine.dispose()
    return tables
