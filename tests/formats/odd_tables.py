"""Folders full of tables with unusual features, and the rows of those that can be read.

No engine for Python writes these features, so the files of Delta's log and of Iceberg's metadata are written by hand, as the formats
define them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from formats.data_formats import append_avro, append_orc, append_parquet_file
from formats.managed import LooseTable

DELTA_NAMES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}

INNER: Final = pa.struct({"k": pa.string(), "m": pa.map_(pa.string(), pa.list_(pa.struct({"x": pa.int32()})))})
NESTED: Final = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "li": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "ll": pa.array([[["a"], None], [[]], None], pa.list_(pa.list_(pa.string()))),
        "mp": pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64())),
        "mm": pa.array(
            [[(1, [("x", 1.5)])], [(2, None)], None], pa.map_(pa.int32(), pa.map_(pa.string(), pa.float64()))
        ),
        "ls": pa.array(
            [
                [{"k": "one", "m": [("a", [{"x": 1}, None])]}, None],
                [{"k": None, "m": None}],
                None,
            ],
            pa.list_(INNER),
        ),
        "ms": pa.array(
            [[("k", {"k": "z", "m": []})], None, []], pa.map_(pa.string(), INNER)
        ),
        "st": pa.array(
            [{"a": {"li": [1]}, "b": [("k", [2])]}, {"a": None, "b": None}, None],
            pa.struct({"a": pa.struct({"li": pa.list_(pa.int64())}), "b": pa.map_(pa.string(), pa.list_(pa.int8()))}),
        ),
    }
)  # fmt: skip
"""Lists, maps and structs in each other."""

SCALARS: Final = pa.table(
    {
        "bo": pa.array([True, None]),
        "by": pa.array([-128, None], pa.int8()),
        "sh": pa.array([32767, None], pa.int16()),
        "i": pa.array([-1, None], pa.int32()),
        "l": pa.array([2**62, None], pa.int64()),
        "f": pa.array([1.5, None], pa.float32()),
        "d": pa.array([-0.25, None], pa.float64()),
        "s": pa.array(["ß", None]),
        "b": pa.array([b"\x00\xff", None]),
        "dt": pa.array([datetime(1500, 1, 1).date(), None], pa.date32()),
        "tz": pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "nt": pa.array([datetime(2026, 1, 2, 3), None], pa.timestamp("us")),
    }
)


class MappedColumns:
    """Numbers the columns of a Delta table, and gives them the names that they have in files."""

    def __init__(self, *, mapped: bool, nested_ids: bool) -> None:
        self._ids, self._mapped, self._nested_ids = count(1), mapped, nested_ids

    def column(self, field: pa.Field, **metadata: Any) -> tuple[dict[str, Any], pa.Field]:
        """A column or a field of a struct: its definition in the log, and the field in files."""
        if not self._mapped:
            of, stored = self._type(field.type, "", {})
            return {"name": field.name, "type": of, "nullable": True, "metadata": metadata}, pa.field(
                field.name, stored
            )
        number = next(self._ids)
        name, nested = f"col-{number}", dict[str, int]()
        of, stored = self._type(field.type, name, nested)
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
        if nested:
            mapping |= {"delta.columnMapping.nested.ids": nested}
        defined = {"name": field.name, "type": of, "nullable": True, "metadata": {**metadata, **mapping}}
        return defined, _numbered(pa.field(name, stored), number)

    def _type(self, of: pa.DataType, path: str, nested: dict[str, int]) -> tuple[Any, pa.DataType]:
        if pa.types.is_struct(of):
            columns = [self.column(child) for child in of]
            return {"type": "struct", "fields": [one for one, _ in columns]}, pa.struct([two for _, two in columns])
        if pa.types.is_map(of):
            key, stored_key = self._part(of.key_field, f"{path}.key", nested)
            value, stored_value = self._part(of.item_field, f"{path}.value", nested)
            made = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
            return made, pa.map_(stored_key, stored_value)
        if pa.types.is_list(of):
            element, stored = self._part(of.value_field, f"{path}.element", nested)
            return {"type": "array", "elementType": element, "containsNull": True}, pa.list_(stored)
        return f"decimal({of.precision},{of.scale})" if pa.types.is_decimal(of) else DELTA_NAMES[of], of

    def _part(self, field: pa.Field, path: str, nested: dict[str, int]) -> tuple[Any, pa.Field]:
        number = None
        if self._mapped and self._nested_ids:
            number = nested[path] = next(self._ids)
        of, stored = self._type(field.type, path, nested)
        plain = pa.field(path.rpartition(".")[2], stored, nullable=field.nullable)
        return of, plain if number is None else _numbered(plain, number)


def _numbered(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({"PARQUET:field_id": str(number)})


def write_delta(
    place: Path,
    rows: pa.Table,
    *,
    mode: str = "none",
    nested_ids: bool = False,
    features: tuple[str, ...] = (),
    also: tuple[Mapping[str, Any], ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a Delta table with one file. `also` are more columns in the log, which the file does not have."""
    columns = MappedColumns(mapped=mode != "none", nested_ids=nested_ids)
    made = [columns.column(field, **(metadata or {})) for field in rows.schema]
    stored = pa.schema([field for _, field in made])
    (place / "_delta_log").mkdir(parents=True)
    file = place / "part-0.parquet"
    pq.write_table(_renamed(rows, stored), file)
    needed = [*features, *(["columnMapping"] if mode != "none" else [])]
    needed += ["timestampNtz"] if pa.timestamp("us") in rows.schema.types else []
    configuration = (
        {} if mode == "none" else {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "99"}
    )
    schema = {"type": "struct", "fields": [*(defined for defined, _ in made), *also]}
    log = [
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": needed,
                "writerFeatures": needed,
            }
        },
        {
            "metaData": {
                "id": "b0d0e0f0-0000-4000-8000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": configuration,
                "createdTime": 1_790_000_000_000,
            }
        },
        {
            "add": {
                "path": file.name,
                "partitionValues": {},
                "size": file.stat().st_size,
                "modificationTime": 1_790_000_000_000,
                "dataChange": True,
                "stats": json.dumps({"numRecords": rows.num_rows}),
            }
        },
    ]
    (place / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, log)))


def _renamed(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """The rows with the names of fields in files, at any depth."""
    columns = [
        pa.array([_value(value, before.type, after.type) for value in rows[before.name].to_pylist()], after.type)
        for before, after in zip(rows.schema, stored, strict=True)
    ]
    return pa.table(columns, schema=stored)


def _value(value: Any, before: pa.DataType, after: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(before):
        pairs = zip(before, after, strict=True)
        return {two.name: _value(value[one.name], one.type, two.type) for one, two in pairs}
    if pa.types.is_map(before):
        return [
            (
                _value(key, before.key_type, after.key_type),
                _value(item, before.item_type, after.item_type),
            )
            for key, item in value
        ]
    if pa.types.is_list(before):
        return [_value(each, before.value_type, after.value_type) for each in value]
    return value


def delta_folder(folder: Path) -> dict[str, pa.Table | None]:
    """Write one table per feature, and return their rows, or None if the table cannot be read."""
    tables: dict[str, pa.Table | None] = {}
    for mode in ("none", "name", "id"):
        for nested_ids in (False, True) if mode != "none" else (False,):
            name = f"nested_{mode}{'_ids' if nested_ids else ''}"
            write_delta(folder / name, NESTED, mode=mode, nested_ids=nested_ids)
            tables[name] = NESTED
        write_delta(folder / f"scalars_{mode}", SCALARS, mode=mode)
        tables[f"scalars_{mode}"] = SCALARS
    one = pa.table({"id": pa.array([1], pa.int64()), "s": ["abc"]})
    write_delta(folder / "char", one, metadata={"__CHAR_VARCHAR_TYPE_STRING": "char(3)"})
    tables["char"] = one
    for name in ("void", "variant", "char(3)", "hypercube"):
        column = {"name": "more", "type": name, "nullable": True, "metadata": {}}
        features = ("variantType",) if name == "variant" else ()
        short = f"type_{name.partition('(')[0]}"
        write_delta(folder / short, one, also=(column,), features=features)
        tables[short] = one.append_column("more", pa.nulls(1)) if name == "void" else None
    intervals = pa.table({"d": pa.array([86_400_000_001, None], pa.int64()), "y": pa.array([25, None], pa.int32())})
    write_delta(folder / "intervals", intervals)
    log = folder / "intervals" / "_delta_log" / f"{0:020d}.json"
    with_types = log.read_text().replace('\\"long\\"', '\\"interval day to second\\"')
    log.write_text(with_types.replace('\\"integer\\"', '\\"interval year to month\\"'))
    tables["intervals"] = intervals  # as numbers of microseconds and months, as delta-rs and DuckDB read them
    write_delta(folder / "unknown_feature", one, features=("timeTravelByMagic",))
    write_delta(folder / "catalog_managed", one, features=("catalogManaged",))
    write_delta(folder / "damaged", one)
    (folder / "damaged" / "_delta_log" / f"{0:020d}.json").write_text("{nonsense")
    write_delta(folder / "without_ids", one, mode="id")
    log = folder / "without_ids" / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace("delta.columnMapping.id", "unknown"))
    return tables | dict.fromkeys(["unknown_feature", "catalog_managed", "damaged", "without_ids"])


NANOS: Final = pa.table(
    {
        "t": pa.array([-(2**63) + 1, 2**63 - 1, 0, None], pa.int64()).cast(pa.timestamp("ns")),
        "z": pa.array([-(2**63) + 1, 2**63 - 1, 1, None], pa.int64()).cast(pa.timestamp("ns", "UTC")),
    }
)
"""The first and the last timestamp in nanoseconds: the years 1677 and 2262."""

VARIANTS: Final = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ['{"a":1}', '"text"', "[1,2]"]})
VARIANT_SQL: Final = (
    "SELECT * FROM (VALUES (1::BIGINT, {'a': 1}::VARIANT), (2, 'text'::VARIANT), (3, [1, 2]::VARIANT)) t(id, v)"
)
WKB: Final = bytes.fromhex("0101000000000000000000f03f0000000000000040")


NESTED_ICEBERG: Final = NESTED.drop_columns(["st"])
IDS: Final = pa.array([1], pa.int64())
TEXT: Final = pa.table({"id": IDS, "v": pa.array(["x"])})
SHAPES: Final = pa.table({"id": IDS, "v": pa.array([WKB])})
SIMPLE: Final = pa.table(
    {
        "bo": [True, None],
        "i": pa.array([1, None], pa.int32()),
        "l": pa.array([2**62, None], pa.int64()),
        "f": pa.array([1.5, None], pa.float32()),
        "d": pa.array([0.1, None], pa.float64()),
        "de": pa.array([Decimal("-1.5"), None], pa.decimal128(38, 10)),
        "dt": pa.array([-200_000, None], pa.int32()).cast(pa.date32()),
        "tm": pa.array([1, None], pa.int64()).cast(pa.time64("us")),
        "ts": pa.array([1, None], pa.int64()).cast(pa.timestamp("us")),
        "tz": pa.array([1, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "s": ["ß", None],
        "u": pa.array([bytes(16), None], pa.uuid()),
        "fx": pa.array([b"abc", None], pa.binary(3)),
        "b": [b"\x00", None],
    }
)
PLAIN: Final = {"simple": SIMPLE, "nested": NESTED_ICEBERG, "nanoseconds": NANOS}
OTHER_TYPES: Final[dict[str, tuple[pa.Table, Any]]] = {
    "geometry": (SHAPES, "geometry"),
    "geometry_quoted": (SHAPES, "geometry('srid:4326')"),
    "geometry_plain": (SHAPES, "geometry(srid:4326)"),
    "geography": (SHAPES, "geography"),
    "geography_plain": (SHAPES, "geography(srid:4326, vincenty)"),
    "hypercube": (TEXT, "hypercube"),
    "list_of_hypercubes": (
        TEXT,
        {"type": "list", "element-id": 7, "element": "hypercube", "element-required": False},
    ),
}
"""Tables whose second column gets a type that PyIceberg does not write."""


def iceberg_folder(folder: Path, *names: str) -> dict[str, pa.Table | None]:
    """Like `delta_folder`, or only the tables with these names. A table is in a namespace that is named after its feature."""
    every: dict[str, Callable[[Path], Any]] = {name: partial(_write_plain, rows) for name, rows in PLAIN.items()}
    every |= {name: partial(_write_retyped, *given) for name, given in OTHER_TYPES.items()}
    every |= {"avro": partial(_write_as, append_avro), "orc": partial(_write_as, append_orc)}
    every |= {"unknown": _write_unknown, "variant": _write_variants}
    return {name: every[name](folder / name) for name in names or every}


def _write_plain(rows: pa.Table, place: Path) -> pa.Table:
    LooseTable(place, rows.schema, format_version="3").append(rows)
    return rows


def _write_as(append: Callable[[LooseTable, pa.Table], object], place: Path) -> pa.Table:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "s": ["a", None]})
    append(LooseTable(place, rows.schema), rows)
    return rows


def _write_retyped(rows: pa.Table, of: Any, place: Path) -> pa.Table | None:
    table = LooseTable(place, rows.schema, format_version="3")
    table.append(rows)
    _retype(table, of)
    return None if "hypercube" in str(of) else rows


def _write_unknown(place: Path) -> pa.Table:
    """A column of type unknown is not in files."""
    table = LooseTable(place, TEXT.schema, format_version="3")
    file = _data_folder(place) / "x.parquet"
    pq.write_table(pa.table([IDS], schema=pa.schema([_numbered(pa.field("id", pa.int64()), 1)])), file)
    append_parquet_file(table, file, 1)
    _retype(table, "unknown")
    return pa.table({"id": IDS, "v": pa.nulls(1)})


def _write_variants(place: Path) -> pa.Table:
    """DuckDB writes the file; the bounds of variants have another encoding than those of strings."""
    table, file = LooseTable(place, VARIANTS.schema, format_version="3"), _data_folder(place) / "v.parquet"
    with duckdb.connect() as duck:
        duck.execute(f"COPY ({VARIANT_SQL}) TO '{file}' (FORMAT parquet, FIELD_IDS {{id: 1, v: 2}})")
    append_parquet_file(table, file, 3, lower_bounds={2: b"zzz"}, upper_bounds={2: b"zzz"})
    _retype(table, "variant")
    return VARIANTS


def _data_folder(place: Path) -> Path:
    folder = place / "account" / "table" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _retype(table: LooseTable, of: Any) -> None:
    metadata = Path(table.location.removeprefix("file://"))
    document = json.loads(metadata.read_text())
    document["schemas"][0]["fields"][1]["type"] = of
    metadata.write_text(json.dumps(document))


def parquet_folder(folder: Path, *names: str) -> dict[str, pa.Table | None]:
    """Like `delta_folder`, or only the tables with these names."""
    every: dict[str, pa.Table | None] = {"nested": NESTED, "nanoseconds": NANOS, "duration": None, "damaged": None}
    tables = {name: every[name] for name in names or every}
    for name, rows in tables.items():
        (folder / name).mkdir(parents=True)
        content = rows or pa.table({"d": pa.array([1], pa.duration("us"))})
        pq.write_table(content, folder / name / "part.parquet")
    if "damaged" in tables:
        (folder / "damaged" / "part.parquet").write_bytes(b"no parquet at all, but long enough to look for its end")
    return tables
