"""The catalog of the recorded conversations, rebuilt: the same schemas, tables and functions."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import (
    ANY,
    AirportService,
    BearerAuth,
    Bindable,
    Catalog,
    ColumnStatistics,
    FunctionCall,
    FunctionCallRequest,
    HasStatistics,
    InOutCall,
    Parameter,
    ScalarFunction,
    ScanOptions,
    Schema,
    Table,
    TableFunction,
    TableInOutFunction,
    TableRef,
    TimePoint,
    TimeTravel,
    Volatility,
)
from skiway.errors import Unsupported

ROWID = pa.field("rowid", pa.int64(), metadata={"is_rowid": "1"})

EMPLOYEES = pa.table(
    {
        "name": ["Emily", "Amy"],
        "age": pa.array([30, 32], pa.int32()),
        "start_date": pa.array([dt.datetime(2023, 10, 1), dt.datetime(2024, 10, 2)], pa.timestamp("ms")),
        "json_data": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[1,2,3]"])),
        "id": pa.array(
            [uuid.UUID("b975e418-7a6d-4afd-b1a4-1f7174ce1805"), uuid.UUID("7ef19ab7-c7af-4f01-88c3-86fae862fd60")],
            pa.uuid(),
        ),
        "birthdate": [dt.date(2023, 10, 1), dt.date(2024, 10, 2)],
        "is_active": [True, False],
        "nickname": ["Ann", None],
        "salary": [1234.123, 5678.123],
        "balance": pa.array([decimal.Decimal("12345.678790"), decimal.Decimal("67890.123456")], pa.decimal128(12, 6)),
    }
)
TAXI = pa.schema(
    [
        ("VendorID", pa.int32()),
        ("tpep_pickup_datetime", pa.timestamp("us")),
        ("tpep_dropoff_datetime", pa.timestamp("us")),
        ("passenger_count", pa.int64()),
        ("trip_distance", pa.float64()),
        ("RatecodeID", pa.int64()),
        ("store_and_fwd_flag", pa.string()),
        ("PULocationID", pa.int32()),
        ("DOLocationID", pa.int32()),
        ("payment_type", pa.int64()),
        *((name, pa.float64()) for name in ("fare_amount", "extra", "mta_tax", "tip_amount", "tolls_amount")),
        *((name, pa.float64()) for name in ("improvement_surcharge", "total_amount", "congestion_surcharge")),
        *((name, pa.float64()) for name in ("Airport_fee", "cbd_congestion_fee")),
    ]
)
WRITTEN = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64()), ROWID])
KEYED = pa.schema([("id", pa.int64()), ("n", pa.string()), ("q", pa.int32()), ROWID])


class Rows(Table, Bindable):
    """An in-memory table whose rows a test may replace. Its address and its columns are those of the recordings."""

    def __init__(self, name: str, rows: pa.Table) -> None:
        self.name, self.rows = name, rows

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def scan(self, options: ScanOptions) -> pa.Table:
        return self.rows

    def binding(self) -> str:
        return ""

    def bound(self, binding: str) -> Table:
        raise AssertionError("nobody has a binding")


class Measured(Rows, HasStatistics):
    """A table with column statistics."""

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        values = self.rows.column(column)
        plain = pa.chunked_array([getattr(chunk, "storage", chunk) for chunk in values.chunks])
        bounds = pc.min_max(plain)
        return ColumnStatistics(
            min=_value(bounds["min"], duckdb_type),
            max=_value(bounds["max"], duckdb_type),
            has_null=plain.null_count > 0,
            has_not_null=plain.null_count < len(plain),
            distinct_count=len(plain),
        )


def _value(bound: pa.Scalar, duckdb_type: str) -> Any:
    return uuid.UUID(bytes=bound.as_py()) if duckdb_type == "UUID" else bound.as_py()


class Versions(Rows, TimeTravel):
    """A table with three versions, the last of which has one more column."""

    def __init__(self, name: str, versions: Sequence[pa.Table]) -> None:
        super().__init__(name, versions[-1])
        self._versions = versions

    def at(self, point: TimePoint) -> Table | None:
        if point.unit != "version":
            raise Unsupported("Timestamp not supported for table versioning")
        version = point.version()
        return Rows(self.name, self._versions[version - 1]) if 1 <= version <= len(self._versions) else None


class Taxi(TableRef):
    """A table that the client reads itself."""

    name = "nyc_yellow_taxi"
    schema = TAXI

    def function_calls(self, request: FunctionCallRequest) -> Sequence[FunctionCall]:
        return [FunctionCall("read_parquet", ["https://example.com/taxi.parquet"], union_by_name=True)]


class Scalar(ScalarFunction):
    """A scalar function that wraps a plain one."""

    def __init__(
        self,
        name: str,
        parameters: tuple[Parameter, ...],
        returns: pa.DataType,
        values: Any = None,
        volatility: Volatility = Volatility.CONSISTENT,
    ) -> None:
        self.name, self.parameters, self.returns, self.volatility = name, parameters, returns, volatility
        self._values = values

    def execute(self, arguments: pa.RecordBatch) -> pa.Array:
        if self._values is None:
            raise Unsupported(f"{self.name} is not called in these conversations")
        return self._values(arguments)


WIDE = pa.schema([(f"result_{i}", pa.int32()) for i in range(20)])


class Function(TableFunction):
    """A table function that wraps two plain functions."""

    def __init__(self, name: str, parameters: tuple[Parameter, ...], columns: Any, rows: Any) -> None:
        self.name, self.parameters, self.columns, self.rows = name, parameters, columns, rows

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        return self.columns(arguments)

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> pa.Table:
        return self.rows(arguments)


class InOut(TableInOutFunction):
    """A function over rows that wraps plain ones for its schema, for each batch and for the end."""

    def __init__(
        self, name: str, parameters: tuple[Parameter, ...], columns: Any, rows: Any = None, last: Any = None
    ) -> None:
        self.name, self.parameters, self.columns = name, parameters, columns
        self._rows = rows or (lambda _arguments, batch: [batch])
        self._last = last or (lambda _schema: [])

    def schema_for(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> pa.Schema:
        return self.columns(rows)

    def open(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> InOutCall:
        return _Running(self._rows, self._last, arguments, self.columns(rows))


@dataclass
class _Running(InOutCall):
    each: Any
    last: Any
    arguments: Mapping[str, pa.Scalar]
    schema: pa.Schema

    def process(self, rows: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return self.each(self.arguments, rows)

    def finish(self) -> Iterable[pa.RecordBatch]:
        return self.last(self.schema)


def _prefixed(arguments: Mapping[str, pa.Scalar], rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows.add_column(0, "input", pa.repeat(arguments["input"], rows.num_rows))]


def _last_row(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.record_batch([["last"], ["row"]], schema=schema)] if schema.types == [pa.string()] * 2 else []


def _huge(*values: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"multiplier": range(5000), "value": pa.repeat(pa.scalar(v), 5000)}) for v in values]


def _collatz(n: int) -> list[int]:
    steps = [n]
    while steps[-1] > 1:
        steps.append(steps[-1] // 2 if steps[-1] % 2 == 0 else 3 * steps[-1] + 1)
    return steps


def _row(arguments: Mapping[str, pa.Scalar]) -> pa.Table:
    return pa.table({name: pa.array([value.as_py()], value.type) for name, value in arguments.items()})


def _results(arguments: Mapping[str, pa.Scalar]) -> pa.Table:
    times = arguments["count"].as_py() if "count" in arguments else 1
    return pa.table({"result": [arguments["input"].as_py()] * times})


def _wide(arguments: Mapping[str, pa.Scalar]) -> pa.Table:
    return _wide_rows(arguments["count"].as_py())


def _wide_rows(rows: int) -> pa.Table:
    return pa.table({field.name: pa.array([i] * rows, pa.int32()) for i, field in enumerate(WIDE)})


TEXT, COUNT, ANYTHING = Parameter("input", pa.string()), Parameter("count", pa.int32()), Parameter("input", ANY)
RESULT = pa.schema([("result", pa.string())])


@dataclass
class Group(Schema):
    """A schema with fixed contents."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    held_tables: Sequence[Table] = ()
    held_refs: Sequence[TableRef] = ()
    scalars: Sequence[ScalarFunction] = ()
    functions: Sequence[TableFunction | TableInOutFunction] = ()

    def tables(self) -> Sequence[Table]:
        return self.held_tables

    def table_refs(self) -> Sequence[TableRef]:
        return self.held_refs

    def scalar_functions(self) -> Sequence[ScalarFunction]:
        return self.scalars

    def table_functions(self) -> Sequence[TableFunction | TableInOutFunction]:
        return self.functions


def utils() -> Group:
    def a(kind: Any) -> tuple[Parameter, ...]:
        return (Parameter("a", kind),)

    integer, text = pa.int64(), pa.string()
    return Group(
        "utils",
        scalars=[
            Scalar("test_uppercase", a(text), text, lambda given: pc.utf8_upper(given.column(0))),
            Scalar("test_any_type", a(ANY), text, lambda given: given.column(0).cast(text)),
            Scalar(
                "test_time",
                (),
                pa.timestamp("us"),
                lambda given: pa.repeat(pa.scalar(dt.datetime(2026, 11, 15), pa.timestamp("us")), given.num_rows),
                Volatility.CONSISTENT_WITHIN_QUERY,
            ),
            Scalar("test_no_op", a(ANY), integer),
            Scalar("test_no_op_string", a(text), text, lambda given: given.column(0)),
            Scalar("test_add", (*a(integer), Parameter("b", integer)), integer, lambda given: pc.add(*given.columns)),
            Scalar("collatz", (Parameter("n", integer),), integer),
            Scalar(
                "collatz_sequence",
                (Parameter("n", integer),),
                pa.list_(integer),
                lambda given: pa.array([_collatz(n) for n in given.column(0).to_pylist()]),
            ),
        ],
        functions=[
            Function("test_echo", (TEXT,), lambda _: RESULT, _results),
            Function("test_wide", (COUNT,), lambda _: WIDE, _wide),
            Function("test_long", (TEXT,), lambda _: RESULT.append(pa.field("result2", text)), _results),
            Function("test_repeat", (TEXT, COUNT), lambda _: RESULT, _results),
            Function("test_dynamic_schema", (ANYTHING,), lambda given: _row(given).schema, _row),
            Function(
                "test_dynamic_schema_named_parameters",
                (
                    Parameter("name", text),
                    Parameter("location", text, named=True),
                    ANYTHING,
                    Parameter("city", text),
                ),
                lambda given: _row(given).schema,
                _row,
            ),
            InOut("test_table_in_out", (TEXT,), lambda rows: pa.schema([("input", text), *rows]), _prefixed, _last_row),
            InOut("test_table_in_out_long", (), lambda rows: rows, lambda _, rows: [rows] * 10),
            InOut(
                "test_table_in_out_huge",
                (),
                lambda _: pa.schema([("multiplier", integer), ("value", integer)]),
                lambda _, rows: _huge(*range(10)),
                lambda _: _huge(-1, -2, -3),
            ),
            InOut(
                "test_table_in_out_wide",
                (TEXT,),
                lambda _: WIDE,
                lambda _, rows: _wide_rows(rows.num_rows).to_batches(),
            ),
            InOut("test_table_in_out_echo", (), lambda rows: rows),
        ],
    )


class RecordedCatalog(Catalog):
    """The catalog `demo`, with the objects that the recorded statements had created when they read it."""

    name = "demo"

    def __init__(self) -> None:
        first = pa.table({"a": pa.array([1], pa.int32()), "rowid": [0]}, _with_rowid(("a", pa.int32()), ROWID))
        second = pa.table({"a": pa.array([1, 2], pa.int32()), "rowid": [0, 1]}, first.schema)
        self.written = Rows("t", WRITTEN.empty_table())
        self.keyed = Rows("k", KEYED.empty_table())
        self._schemas = [
            Group(
                "static_data",
                "Some example static data",
                held_tables=[
                    Rows("big_chunk", pa.table({"id": pa.array(range(100_000), pa.int64())})),
                    Measured("employees", EMPLOYEES),
                ],
            ),
            Group("remote_data", held_refs=[Taxi()]),
            utils(),
            Group("w", held_tables=[self.written, self.keyed]),
            Group(
                "tt", held_tables=[Versions("v", [first, second, second.append_column("b", pa.nulls(2, pa.string()))])]
            ),
        ]

    def schemas(self) -> Sequence[Schema]:
        return self._schemas


def _with_rowid(*fields: Any) -> pa.Schema:
    return pa.schema(list(fields))


def service(world: Catalog | Iterable[Catalog]) -> AirportService:
    """A server that accepts any bearer token as an identity and rejects calls without one, as the recorded server did."""

    def done(_body: bytes) -> None:
        """Return no result."""

    return AirportService(world, auth=BearerAuth(lambda token: token), actions={"reset": done, "create_database": done})
