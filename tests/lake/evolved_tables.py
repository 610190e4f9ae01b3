"""Tables whose columns came to be in every way, with statistics in every place that keeps them, and filters on every column.

A table has two files. The first one was written before the columns were added, renamed, widened, or dropped and added again. A
`Stage` says what else happened, and so where the statistics of the columns are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any, Final, Protocol

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from formats.managed import LooseTable
from lake.lakes import Lake
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.formats import TableHandle, open_source
from skiway.formats.iceberg.changes.commits import plain
from skiway.metastore import connectors, managed, namespaces, tables
from skiway.metastore.reconcile.mirroring import Mirror
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.spark_jobs.profile.snapshots import profile_snapshot

__all__ = [
    "TABLES",
    "Evolved",
    "Stage",
    "add_catalogs",
    "compared_values",
    "evolved_table",
    "filters",
    "iceberg_table",
    "leaf_sql",
]


# --- columns ------------------------------------------------------------------------------------------------------------

BEFORE = pa.schema(
    {
        "id": pa.int64(),
        "kept": pa.int32(),
        "old": pa.int32(),
        "wide_int": pa.int32(),
        "wide_float": pa.float32(),
        "wide_decimal": pa.decimal128(9, 2),
        "again": pa.int32(),
        "again_default": pa.int32(),
        "swapped_a": pa.int32(),
        "swapped_b": pa.int32(),
        "box": pa.struct({"kept": pa.int32(), "old": pa.int32(), "again": pa.int32()}),
    }
)
NESTED = pa.schema(
    {
        "items": pa.list_(pa.struct({"kept": pa.int32()})),
        "pairs": pa.map_(pa.string(), pa.struct({"kept": pa.int32()})),
    }
)
DEFAULTS: Mapping[str, tuple[IcebergType, Any]] = {
    "default_int": (IntegerType(), 42),
    "default_wide": (IntegerType(), 42),  # becomes a long
    "default_renamed": (IntegerType(), 42),  # becomes `default_new`
    "default_long": (LongType(), -(2**40)),
    "default_text": (StringType(), "it's"),
    "default_double": (DoubleType(), 2.5),
    "default_date": (DateType(), "2026-01-02"),
    "default_time": (TimestampType(), "2026-01-02T03:04:05.000006"),
    "default_instant": (TimestamptzType(), "2026-01-02T03:04:05+00:00"),
    "default_decimal": (DecimalType(9, 2), "12.34"),
    "default_flag": (BooleanType(), True),
    "default_uuid": (UUIDType(), "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
}


def _first_rows(nested: bool) -> pa.Table:
    """The rows of the first file. The columns that go away have values that nothing else has."""
    columns: dict[str, Any] = {
        "id": [1, 2, 3, 4],
        "kept": [10, None, 20, 30],
        "old": [11, 21, None, 31],
        "wide_int": [12, None, 22, 32],
        "wide_float": [1.5, None, 2.5, 3.5],
        "wide_decimal": [Decimal("1.25"), Decimal("2.25"), None, Decimal("3.25")],
        "again": [901, 902, 903, 904],
        "again_default": [901, 902, 903, 904],
        "swapped_a": [1, 2, 3, None],
        "swapped_b": [100, None, 200, 300],
        "box": [
            {"kept": 5, "old": 50, "again": 901},
            None,
            {"kept": None, "old": 60, "again": 902},
            {"kept": 7, "old": None, "again": 903},
        ],
    }
    if nested:
        columns["items"] = [[{"kept": 1}, None], [], None, [{"kept": 2}]]
        columns["pairs"] = [[("a", {"kept": 1})], [], None, [("b", None)]]
    schema = pa.schema([*BEFORE, *NESTED]) if nested else BEFORE
    return pa.table(columns, schema=schema)


_OF_TYPE: Mapping[str, Sequence[Any]] = {
    "int": [40, None, 42, 77],
    "long": [40, None, 2**40, 77],
    "float": [0.5, None, 2.5, 9.5],
    "double": [0.5, None, 2.5, 9.5],
    "string": ["a", None, "it's", "z"],
    "date": [date(2025, 5, 5), None, date(2026, 1, 2), date(2027, 7, 7)],
    "timestamp": [datetime(2025, 5, 5), None, datetime(2026, 1, 2, 3, 4, 5, 6), datetime(2027, 7, 7)],
    "timestamptz": [datetime(2025, 5, 5), None, datetime(2026, 1, 2, 3, 4, 5), datetime(2027, 7, 7)],
    "decimal": [Decimal("0.50"), None, Decimal("12.34"), Decimal("99.75")],
    "boolean": [False, None, True, False],
    "uuid": [bytes(16), None, bytes.fromhex("f79c3e09677c4bbda4793f349cb785e7"), b"\xff" * 16],
}


def _values(field: pa.Field) -> pa.Array:
    """Four values of a type: below the default, NULL, the default, above it."""
    of = field.type
    if pa.types.is_struct(of):
        parts = [_values(child) for child in of]
        return pa.StructArray.from_arrays(parts, fields=list(of), mask=pa.array([False, False, True, False]))
    if pa.types.is_map(of):
        return pa.array([[("a", {"kept": 3, "added": 8})], None, [], [("c", None)]], of)
    if pa.types.is_list(of):
        return pa.array([[{"kept": 3, "added": 8}], None, [], [None]], of)
    kinds: list[tuple[str, Callable[[pa.DataType], bool]]] = [
        ("boolean", pa.types.is_boolean),
        ("uuid", lambda one: one == pa.uuid()),
        ("long", pa.types.is_int64),
        ("int", pa.types.is_integer),
        ("double", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("date", pa.types.is_date),
        ("timestamp", pa.types.is_timestamp),
        ("string", pa.types.is_string),
    ]
    kind = next(name for name, matches in kinds if matches(of))
    if kind == "uuid":
        return pa.ExtensionArray.from_storage(of, pa.array(_OF_TYPE[kind], pa.binary(16)))
    return pa.array(_OF_TYPE[kind], of)


def _second_rows(schema: pa.Schema) -> pa.Table:
    fields = [field for field in schema if field.name != "rowid"]
    columns = [
        pa.array([5, 6, 7, 8], field.type)
        if field.name == "id"
        else pa.array([7, 8, 9, 9], field.type)
        if field.name == "default_required"
        else _values(field)
        for field in fields
    ]
    return pa.table(columns, schema=pa.schema(fields))


# --- schemas ------------------------------------------------------------------------------------------------------------


def _changed(schema: Schema) -> Schema:
    """The schema after all changes but the last."""
    numbers = count(schema.highest_field_id + 1)

    def renamed(name: str, new: str) -> NestedField:
        field = schema.find_field(name)
        return NestedField(field.field_id, new, field.field_type, required=False)

    def typed(name: str, of: IcebergType) -> NestedField:
        return NestedField(schema.find_field(name).field_id, name, of, required=False)

    def added(name: str, of: IcebergType, default: Any = None, *, required: bool = False) -> NestedField:
        own = {"initial_default": default, "write_default": default} if default is not None else {}
        return NestedField(next(numbers), name, of, required=required, **own)

    box = schema.find_field("box")
    inside = [
        schema.find_field("box.kept"),
        NestedField(schema.find_field("box.old").field_id, "new", IntegerType(), required=False),
        added("again", IntegerType(), 42),
        added("added", IntegerType()),
        added("default", IntegerType(), 42),
    ]
    fields = [
        schema.find_field("id"),
        schema.find_field("kept"),
        renamed("old", "new"),
        typed("wide_int", LongType()),
        typed("wide_float", DoubleType()),
        typed("wide_decimal", DecimalType(12, 2)),
        added("again", IntegerType()),
        added("again_default", IntegerType(), 42),
        renamed("swapped_a", "swapped_b"),
        renamed("swapped_b", "swapped_a"),
        NestedField(box.field_id, "box", StructType(*inside), required=False),
        added("added", IntegerType()),
        added("default_required", IntegerType(), 7, required=True),
        *(added(name, of, default) for name, (of, default) in DEFAULTS.items()),
    ]
    if "items" in {each.name for each in schema.fields}:
        listed, mapped = schema.find_field("items"), schema.find_field("pairs")
        assert isinstance(listed.field_type, ListType)
        assert isinstance(mapped.field_type, MapType)
        element = StructType(schema.find_field("items.element.kept"), added("added", IntegerType(), 5))
        value = StructType(schema.find_field("pairs.value.kept"), added("added", IntegerType(), 5))
        of_list = ListType(listed.field_type.element_id, element, element_required=False)
        of_map = MapType(
            mapped.field_type.key_id, StringType(), mapped.field_type.value_id, value, value_required=False
        )
        fields += [
            NestedField(listed.field_id, "items", of_list, required=False),
            NestedField(mapped.field_id, "pairs", of_map, required=False),
        ]
    return Schema(*fields)


def _changed_again(schema: Schema) -> Schema:
    """The schema after the last change: columns with a default are renamed and widened, and `kept` is dropped."""
    fields = []
    for field in schema.fields:
        if field.name == "kept":
            continue
        kind = LongType() if field.name == "default_wide" else field.field_type
        name = "default_new" if field.name == "default_renamed" else field.name
        fields.append(field.model_copy(update={"name": name, "field_type": kind}))
    return Schema(*fields)


def _schema_updates(schema: Schema) -> list[TableUpdate]:
    return [
        UpgradeFormatVersionUpdate(format_version=3),
        AddSchemaUpdate(schema=schema),
        SetCurrentSchemaUpdate(schema_id=-1),
    ]


# --- stages -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """What happens to a table after its first file: `steps` out of profile, change, append and change again.

    Without `metrics`, manifests and logs have no statistics, so those of the Parquet footers are used. The other writers are PyIceberg
    and delta-rs, which cannot write columns with a default.
    """

    name: str
    steps: tuple[str, ...]
    metrics: bool = True
    writer: str = "skiway"


STAGES = (
    Stage("manifests", ("change", "append")),
    Stage("footers", ("change", "append"), metrics=False),
    Stage("changed", ("change",)),
    Stage("profiled_then_changed", ("profile", "change")),
    Stage("profiled_then_appended", ("profile", "change", "append")),
    Stage("profiled_around", ("profile", "change", "append", "profile")),
    Stage("profiled_around_footers", ("profile", "change", "append", "profile"), metrics=False),
    Stage("profiled_after", ("change", "append", "profile")),
    Stage("changed_again", ("profile", "change", "append", "profile", "again")),
    Stage("changed_again_after", ("change", "append", "profile", "again")),
)
PYICEBERG = Stage("pyiceberg", ("profile", "change", "append", "profile"), writer="pyiceberg")
DELTA_RS = Stage("delta_rs", ("profile", "change", "append", "profile"), writer="delta-rs")
TABLES = (
    *((catalog, stage) for catalog in ("managed", "iceberg", "delta") for stage in STAGES),
    ("managed", PYICEBERG),
    ("iceberg", PYICEBERG),
    ("delta", DELTA_RS),
)
"""All tables: their catalogs and stages."""


class _Owner(Protocol):
    """Whoever has the table: the metastore, or a source."""

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        """Write a file."""

    def change(self, make: Callable[[Schema], Schema]) -> None:
        """Change the schema."""

    def sync(self) -> None:
        """Let the metastore see the changes."""

    def handle(self) -> TableHandle:
        """The table as it is now."""

    id: v1.ResourceId


@dataclass
class _Managed:
    lake: Lake
    name: str
    schema: pa.Schema
    metrics: bool

    def __post_init__(self) -> None:
        (namespace,) = namespaces.scan(self.lake.realm, _catalog(self.lake, "managed").resource_id.id)
        properties = {} if self.metrics else {"write.metadata.metrics.default": "none"}
        made = managed.create(
            self.lake.realm,
            self.lake.warehouse,
            namespace_id=namespace.resource_id,
            name=self.name,
            schema=self.schema,
            properties=properties,
        )
        self.id = made.table.resource_id

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        with self.lake.client() as client:
            client.insert(f"s.{self.name}", rows(self.handle().schema.arrow))

    def change(self, make: Callable[[Schema], Schema]) -> None:
        schema = make(managed.load(self.lake.realm, self.lake.warehouse, self.id).metadata.schema())
        managed.commit(self.lake.realm, self.lake.warehouse, self.id, [], _schema_updates(schema))

    def sync(self) -> None:
        pass

    def handle(self) -> TableHandle:
        table = tables.get(self.lake.realm, v1.GetTableRequest(table_id=self.id)).table
        return managed.open_current(self.lake.realm, self.lake.warehouse, table)


class _Mirrored:
    """A table of a folder, which a catalog mirrors."""

    kind: str
    place: tuple[tuple[str, ...], str]

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake, self.name = lake, name
        self.root = lake.folder / f"{self.kind} sources"
        (self.namespace,) = namespaces.scan(lake.realm, _catalog(lake, self.kind).resource_id.id)
        known = connectors.list_(lake.realm, v1.ListConnectorsRequest()).connectors
        (self.connector,) = (each for each in known if each.display_name.endswith(f"for {self.kind}"))
        self.id = v1.ResourceId()

    def sync(self) -> None:
        mirror = Mirror(self.lake.realm, self.connector.resource_id, self.handle())
        known = tables.find(self.lake.realm, self.namespace.resource_id.id, self.name)
        self.id, _ = mirror.ensured(self.namespace.resource_id, self.name, known)
        mirror.record(self.id, v1.ConnectorPolicy(), again=False)

    def handle(self) -> TableHandle:
        with open_source(self.kind, str(self.root)) as source:
            return source.load(*self.place)


class _MirroredIceberg(_Mirrored):
    kind = "iceberg"

    def __init__(self, lake: Lake, name: str, schema: pa.Schema, metrics: bool) -> None:
        super().__init__(lake, name)
        self.place = (name, "account"), "table"
        self.table = LooseTable(self.root / name, schema)
        if not metrics:
            none = SetPropertiesUpdate(updates={"write.metadata.metrics.default": "none"})
            self.table.change(plain([], [none]))

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        self.table.append(rows(self.table.handle.schema.arrow))
        self.sync()

    def change(self, make: Callable[[Schema], Schema]) -> None:
        self.table.change(plain([], _schema_updates(make(self.table.metadata.schema()))))
        self.sync()


def _catalog(lake: Lake, name: str) -> v1.Catalog:
    return next(each for each in catalogs.scan(lake.realm) if each.display_name == name)


@dataclass(frozen=True)
class Evolved:
    """A table of a lake after the steps of a stage."""

    lake: Lake
    catalog: str
    stage: Stage
    owner: _Owner

    @property
    def name(self) -> str:
        return f"s.{self.stage.name}"

    @property
    def id(self) -> v1.ResourceId:
        return self.owner.id

    @property
    def handle(self) -> TableHandle:
        return self.owner.handle()

    def profile(self) -> None:
        """Profile the current snapshot in this process."""
        handle = self.handle
        snapshot = handle.current()
        assert snapshot is not None

        def no_spark() -> Any:
            raise AssertionError("these files are small")

        report = profile_snapshot(self.lake.realm, self.id, snapshot, handle=handle, spark=no_spark)
        assert not report.failed

    def rows(self) -> pa.Table:
        """All rows, read without a filter, in the current columns."""
        handle = self.handle
        snapshot = handle.current()
        assert snapshot is not None
        return handle.read(snapshot, schema=handle.schema.arrow).read_all()


def iceberg_table(lake: Lake, catalog: str, stage: Stage, *, nested: bool = False) -> Evolved:
    """A table of a lake whose `catalog` is `managed`, or mirrors Iceberg tables."""
    schema = pa.schema([*BEFORE, *NESTED]) if nested else BEFORE
    owner: _Owner = (
        _Managed(lake, stage.name, schema, stage.metrics)
        if catalog == "managed"
        else _MirroredIceberg(lake, stage.name, schema, stage.metrics)
    )
    made = Evolved(lake, catalog, stage, owner)
    owner.append(lambda _: _first_rows(nested))
    steps: Mapping[str, Callable[[], None]] = {
        "profile": made.profile,
        "change": lambda: owner.change(_changed),
        "append": lambda: owner.append(_second_rows),
        "again": lambda: owner.change(_changed_again),
    }
    for step in stage.steps:
        steps[step]()
    return made


OFFERED: Final = {"statistics.offer": "always"}


def add_catalogs(lake: Lake) -> None:
    """Add the catalogs of mirrored tables, and the namespace `s` of each catalog, whose tables offer statistics."""
    lake.namespace(_catalog(lake, "managed"), ("s",), properties=OFFERED)
    for kind in ("iceberg", "delta"):
        root = lake.folder / f"{kind} sources"
        root.mkdir()
        catalog = lake.catalog(kind, connector_ref="files")
        lake.connector(catalog, kind, str(root), {})
        lake.namespace(catalog, ("s",), properties=OFFERED)


# --- Delta --------------------------------------------------------------------------------------------------------------

_Mapped = tuple[
    str, str, Any
]  # the name of a column, its name in files, and its type in the log; of structs, its fields

_DELTA_BEFORE: Sequence[_Mapped] = (
    ("id", "id", "long"),
    ("kept", "kept", "integer"),
    ("old", "old", "integer"),
    ("wide_int", "wide_int", "integer"),
    ("wide_float", "wide_float", "float"),
    ("wide_decimal", "wide_decimal", "decimal(9,2)"),
    ("again", "again", "integer"),
    ("swapped_a", "swapped_a", "integer"),
    ("swapped_b", "swapped_b", "integer"),
    ("box", "box", (("kept", "kept", "integer"), ("old", "old", "integer"), ("again", "again", "integer"))),
)
_DELTA_CHANGED: Sequence[_Mapped] = (
    ("id", "id", "long"),
    ("kept", "kept", "integer"),
    ("new", "old", "integer"),
    ("wide_int", "wide_int", "long"),
    ("wide_float", "wide_float", "double"),
    ("wide_decimal", "wide_decimal", "decimal(12,2)"),
    ("again", "again-2", "integer"),
    ("swapped_b", "swapped_a", "integer"),
    ("swapped_a", "swapped_b", "integer"),
    (
        "box",
        "box",
        (
            ("kept", "kept", "integer"),
            ("new", "old", "integer"),
            ("again", "again-2", "integer"),
            ("added", "added", "integer"),
        ),
    ),
    ("added", "added", "integer"),
)
_DELTA_CHANGED_AGAIN = [("newest" if name == "new" else name, stored, of) for name, stored, of in _DELTA_CHANGED[2:]]
_DELTA_CHANGED_AGAIN.insert(0, _DELTA_CHANGED[0])


class _MirroredDelta(_Mirrored):
    """A Delta table with column mapping, whose log is written here."""

    kind = "delta"

    def __init__(self, lake: Lake, name: str, metrics: bool) -> None:
        super().__init__(lake, name)
        self.place = (), name
        self.metrics, self.folder, self.version = metrics, self.root / name, count()
        self.ids: dict[tuple[str, ...], int] = {}
        (self.folder / "_delta_log").mkdir(parents=True)
        features = ["columnMapping", "typeWidening"]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        self.columns: Sequence[_Mapped] = _DELTA_BEFORE
        self._commit({"protocol": protocol}, self._metadata())

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        logical = pa.schema([_delta_field(column, stored=False) for column in self.columns])
        made = rows(logical)
        names = {name: stored for name, stored, _ in self.columns}
        schema = pa.schema([_delta_field(column, stored=True) for column in self.columns])
        arrays = [made[name].combine_chunks().cast(schema.field(names[name]).type) for name, _, _ in self.columns]
        stored = pa.table(arrays, schema=schema)
        path = f"part-{next(self.version)}.parquet"
        pq.write_table(stored, self.folder / path)
        add = {
            "path": path,
            "partitionValues": {},
            "size": (self.folder / path).stat().st_size,
            "modificationTime": 0,
            "dataChange": True,
        }
        figures = _delta_stats(stored) if self.metrics else {}
        add["stats"] = json.dumps({"numRecords": made.num_rows, **figures}, default=float)
        self._commit({"add": add})
        self.sync()

    def change(self, columns: Any) -> None:
        self.columns = columns
        self._commit(self._metadata())
        self.sync()

    def _metadata(self) -> dict[str, Any]:
        schema = {"type": "struct", "fields": [self._field(column, ()) for column in self.columns]}
        configuration = {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": str(len(self.ids)),
            "delta.enableTypeWidening": "true",
        }
        return {
            "metaData": {
                "id": "7c9c2f5e-0000-4000-8000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": configuration,
                "createdTime": 0,
            }
        }

    def _field(self, column: _Mapped, above: tuple[str, ...]) -> dict[str, Any]:
        name, stored, of = column
        path = (*above, stored)
        number = self.ids.setdefault(path, len(self.ids) + 1)
        inner = of if isinstance(of, str) else {"type": "struct", "fields": [self._field(each, path) for each in of]}
        facts = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
        return {"name": name, "type": inner, "nullable": True, "metadata": facts}

    def _commit(self, *actions: dict[str, Any]) -> None:
        log = self.folder / "_delta_log"
        version = len(list(log.iterdir()))
        info = {"commitInfo": {"timestamp": 1_700_000_000_000 + version}}
        text = "\n".join(json.dumps(action) for action in (info, *actions))
        (log / f"{version:020}.json").write_text(text)


def _delta_field(column: _Mapped, *, stored: bool) -> pa.Field:
    name, there, of = column
    if not isinstance(of, str):
        return pa.field(there if stored else name, pa.struct([_delta_field(each, stored=stored) for each in of]))
    types = {"long": pa.int64(), "integer": pa.int32(), "float": pa.float32(), "double": pa.float64()}
    kind = types.get(of) or pa.decimal128(*map(int, of[len("decimal(") : -1].split(",")))
    return pa.field(there if stored else name, kind)


def _delta_stats(rows: pa.Table) -> dict[str, Any]:
    def figures(name: str, values: pa.Array) -> Any:
        if pa.types.is_struct(values.type):
            return {f.name: figures(name, part) for f, part in zip(values.type, values.flatten(), strict=True)}
        return (
            values.null_count
            if name == "nullCount"
            else pc.min_max(values)["min" if name == "minValues" else "max"].as_py()
        )

    return {
        name: {column: figures(name, rows[column].combine_chunks()) for column in rows.column_names}
        for name in ("minValues", "maxValues", "nullCount")
    }


def delta_table(lake: Lake, stage: Stage) -> Evolved:
    """A mirrored Delta table."""
    owner = _MirroredDelta(lake, stage.name, stage.metrics)
    made = Evolved(lake, "delta", stage, owner)
    names = [name for name, _, _ in _DELTA_BEFORE]
    owner.append(lambda _: _first_rows(nested=False).select(names))
    steps: Mapping[str, Callable[[], None]] = {
        "profile": made.profile,
        "change": lambda: owner.change(_DELTA_CHANGED),
        "append": lambda: owner.append(_second_rows),
        "again": lambda: owner.change(_DELTA_CHANGED_AGAIN),
    }
    for step in stage.steps:
        steps[step]()
    return made


# --- other writers ------------------------------------------------------------------------------------------------------


@dataclass
class _ManagedByPyIceberg(_Managed):
    """A managed table that PyIceberg creates, changes and writes over REST."""

    def __post_init__(self) -> None:
        with self.lake.rest() as catalog:
            catalog.create_table(f"s.{self.name}", self.schema)
        (namespace,) = namespaces.scan(self.lake.realm, _catalog(self.lake, "managed").resource_id.id)
        table = tables.find(self.lake.realm, namespace.resource_id.id, self.name)
        assert table is not None
        self.id = table.resource_id

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        with self.lake.rest() as catalog:
            catalog.load_table(f"s.{self.name}").append(rows(self.handle().schema.arrow))

    def change(self, make: Any) -> None:
        with self.lake.rest() as catalog:
            make(catalog.load_table(f"s.{self.name}"))


class _MirroredByPyIceberg(_Mirrored):
    """A table that PyIceberg writes with a catalog of its own."""

    kind = "iceberg"

    def __init__(self, lake: Lake, name: str, schema: pa.Schema) -> None:
        super().__init__(lake, name)
        self.place = (name,), "table"
        catalog = InMemoryCatalog(name, warehouse=f"file://{self.root}")
        catalog.create_namespace("s")
        self.table = catalog.create_table(f"s.{name}", schema, location=f"file://{self.root}/{name}/table")

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        made = rows(self.handle().schema.arrow)
        self.table.append(made)
        self.sync()

    def change(self, make: Any) -> None:
        make(self.table)
        self.sync()


def _change_by_pyiceberg(table: Table) -> None:
    """Rename, widen, drop and add columns, as in the other tables but without defaults."""
    with table.update_schema() as change:
        change.rename_column("old", "new").rename_column("box.old", "new")
        change.update_column("wide_int", LongType()).update_column("wide_float", DoubleType())
        change.update_column("wide_decimal", DecimalType(12, 2))
        for name in ("again", "again_default", "box.again"):
            change.delete_column(name)
        change.rename_column("swapped_a", "swapped_c")
    with table.update_schema() as change:
        for path in (("again",), ("again_default",), ("box", "again"), ("box", "added"), ("added",)):
            change.add_column(path, IntegerType())
        change.rename_column("swapped_b", "swapped_a")
    with table.update_schema() as change:
        change.rename_column("swapped_c", "swapped_b")


class _DeltaByDeltaRs(_Mirrored):
    """A Delta table that delta-rs writes: it can only add columns."""

    kind = "delta"

    def __init__(self, lake: Lake, name: str) -> None:
        super().__init__(lake, name)
        self.place = (), name
        self.schema = BEFORE

    def append(self, rows: Callable[[pa.Schema], pa.Table]) -> None:
        folder = str(self.root / self.name)
        deltalake.write_deltalake(folder, rows(self.schema), mode="append", schema_mode="merge")
        self.sync()

    def change(self, make: Callable[[pa.Schema], pa.Schema]) -> None:
        self.schema = make(self.schema)
        deltalake.DeltaTable(str(self.root / self.name)).alter.add_columns(
            deltalake.Schema.from_arrow(pa.schema([field for field in self.schema if field not in BEFORE])).fields
        )
        self.sync()


def _with_added(schema: pa.Schema) -> pa.Schema:
    return schema.append(pa.field("added", pa.int32())).append(pa.field("added_text", pa.string()))


def evolved_table(lake: Lake, catalog: str, stage: Stage) -> Evolved:
    """The table of a catalog and a stage."""
    if stage.writer == "skiway":
        return delta_table(lake, stage) if catalog == "delta" else iceberg_table(lake, catalog, stage)
    owner: Any
    if stage.writer == "delta-rs":
        owner, change = _DeltaByDeltaRs(lake, stage.name), _with_added
    else:
        owner, change = (
            (
                _ManagedByPyIceberg(lake, stage.name, BEFORE, metrics=True)
                if catalog == "managed"
                else _MirroredByPyIceberg(lake, stage.name, BEFORE)
            ),
            _change_by_pyiceberg,
        )
    made = Evolved(lake, catalog, stage, owner)
    owner.append(lambda _: _first_rows(nested=False))
    steps: Mapping[str, Callable[[], None]] = {
        "profile": made.profile,
        "change": lambda: owner.change(change),
        "append": lambda: owner.append(_second_rows),
    }
    for step in stage.steps:
        steps[step]()
    return made


# --- filters ------------------------------------------------------------------------------------------------------------


def leaf_sql(path: Sequence[str]) -> str:
    """A column, or a field in structs, in SQL."""
    return ".".join(f'"{name}"' for name in path)


def filters(path: Sequence[str], of: pa.DataType) -> Iterator[str]:
    """Conditions on a column: with values below, at and above what the files have, and with NULL."""
    column, kind = leaf_sql(path), duckdb_type(pa.field("x", of))
    values = [f"{_spelled(value)}::{kind}" for value in compared_values(of)]
    for value in values:
        for operator in ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"):
            yield f"{column} {operator} {value}"
    low, *_, high = values
    middle = values[len(values) // 2]
    yield f"{column} IN ({middle}, {high})"
    yield f"{column} NOT IN ({middle}, {high})"
    yield f"{column} IN ({low}, NULL)"
    yield f"{column} BETWEEN {low} AND {middle}"
    yield f"{column} BETWEEN {middle} AND {high}"
    yield f"{column} NOT BETWEEN {low} AND {middle}"
    yield f"{column} = {low} OR {column} = {middle}"
    yield f"{column} = {middle} OR {column} IS NULL"
    yield f"NOT ({column} = {middle})"
    yield f"coalesce({column}, {middle}) = {middle}"
    yield f"{column} IS NULL"
    yield f"{column} IS NOT NULL"
    yield f"{column} IS DISTINCT FROM NULL"
    if pa.types.is_string(of):
        yield f"{column} LIKE 'it%'"
        yield f"{column} NOT LIKE 'it%'"


def compared_values(of: pa.DataType) -> list[Any]:
    """Values that conditions compare a column with: below, at and above what the files have."""
    if pa.types.is_boolean(of):
        return [False, True]
    if pa.types.is_integer(of):
        return [-5, 42, 3 * 2**31 if of == pa.int64() else 901]
    if pa.types.is_floating(of):
        return [-1.0, 2.5, 100.0]
    if pa.types.is_decimal(of):
        return [Decimal("-1.00"), Decimal("12.34"), Decimal("1000.00")]
    if pa.types.is_date(of):
        return [date(1999, 1, 1), date(2026, 1, 2), date(2030, 1, 1)]
    if pa.types.is_timestamp(of):
        exact = datetime(2026, 1, 2, 3, 4, 5, 0 if of.tz else 6)
        return [datetime(1999, 1, 1), exact, datetime(2030, 1, 1)]
    if of == pa.uuid():
        return [
            "00000000-0000-0000-0000-000000000000",
            "f79c3e09-677c-4bbd-a479-3f349cb785e7",
            "f" * 8 + "-ffff-ffff-ffff-" + "f" * 12,
        ]
    return ["", "it's", "zz"]


def _spelled(value: Any) -> str:
    text = str(value)
    return text if isinstance(value, bool) else "'" + text.replace("'", "''") + "'"
