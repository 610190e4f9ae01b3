"""Column statistics: typed, correct, and never a response that crashes the client."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest

from airport.raw import Raw, descriptor
from airport.server.test_discovery import listing, objects, schema_of
from skiway.airport import CatalogBuilder, ColumnStatistics, HasStatistics, ScanOptions, Server, Table
from skiway.airport.wire.duckdb_sql import castable_type, duckdb_type
from skiway.airport.wire.protocol import StatisticsRequest, encode, packed
from skiway.errors import InvalidArgument, NotFound, Unsupported

HUGEINT = pa.opaque(pa.binary(16), "hugeint", "DuckDB")


def serving(schema: pa.Schema, statistics: Any) -> Server:
    builder = CatalogBuilder("demo")
    ask = statistics if callable(statistics) else lambda column, duckdb_type: statistics
    builder.schema("s").table(schema=schema, name="t", statistics=ask)(lambda scan: ())
    return Server(builder.build(), port=0)


def ask(raw: Raw, column: str = "c", kind: str = "") -> pa.RecordBatch:
    (body,) = raw.action(
        "column_statistics", encode(StatisticsRequest(packed(descriptor("demo", "s", "t")), column, kind))
    )
    with pa.ipc.open_stream(body) as reader:
        (batch,) = list(reader)
    return batch


TYPED: dict[str, tuple[pa.DataType, Any, Any]] = {
    "BOOLEAN": (pa.bool_(), False, True),
    "TINYINT": (pa.int8(), -1, 1),
    "BIGINT": (pa.int64(), -(2**63), 2**63 - 1),
    "UBIGINT": (pa.uint64(), 0, 2**64 - 1),
    "FLOAT": (pa.float32(), -0.5, 0.5),
    "DOUBLE": (pa.float64(), -0.5, float("inf")),
    "DECIMAL(12,6)": (pa.decimal128(12, 6), decimal.Decimal("-1.250000"), decimal.Decimal("1.250000")),
    "VARCHAR": (pa.string(), "a", "ü"),
    "BLOB": (pa.binary(), b"", b"\xff"),
    "DATE": (pa.date32(), dt.date(1970, 1, 1), dt.date(2020, 1, 1)),
    "TIME": (pa.time64("us"), dt.time(0), dt.time(23)),
    "TIMESTAMP": (pa.timestamp("us"), dt.datetime(1970, 1, 1), dt.datetime(2020, 1, 1)),
    "TIMESTAMP_MS": (pa.timestamp("ms"), dt.datetime(1970, 1, 1), dt.datetime(2020, 1, 1)),
    "UUID": (pa.uuid(), uuid.UUID(int=1), uuid.UUID(int=2)),
    "JSON": (pa.json_(), "[]", "{}"),
    "HUGEINT": (HUGEINT, b"\x00" * 16, b"\x01" * 16),
}


@pytest.mark.parametrize("name", TYPED)
def test_bounds_have_the_column_type(name: str) -> None:
    data_type, low, high = TYPED[name]
    statistics = ColumnStatistics(min=low, max=high, has_null=True, has_not_null=True, distinct_count=2)
    with serving(pa.schema({"c": data_type}), statistics) as server, Raw(server.location) as raw:
        batch = ask(raw, kind=name)
        announced = schema_of(objects(listing(raw))["t"])
    assert duckdb_type(pa.field("c", data_type)) == name
    assert batch.schema.field("min").type == data_type
    storage = [
        batch.column(c).storage if isinstance(data_type, pa.BaseExtensionType) else batch.column(c)
        for c in ("min", "max")
    ]
    expected = [v.bytes if isinstance(v, uuid.UUID) else v for v in (low, high)]
    assert [array[0].as_py() for array in storage] == expected
    assert batch.column("distinct_count").to_pylist() == [2]
    assert announced.metadata == {b"can_produce_statistics": b"1"}


def test_bounds_of_nested_extension_types_are_nulls_of_that_type() -> None:
    schema = pa.schema({"c": pa.struct([("a", pa.uuid())]), "l": pa.list_(pa.uuid())})
    with serving(schema, ColumnStatistics()) as server, Raw(server.location) as raw:
        assert schema_of(objects(listing(raw))["t"]).metadata == {b"can_produce_statistics": b"1"}
        for column in ("c", "l"):
            batch = ask(raw, column)
            assert batch.schema.field("min").type == schema.field(column).type
            assert batch.column("min").null_count == 1


@pytest.mark.parametrize(
    ("data_type", "raw_value"),
    [
        (pa.date32(), 2**31 - 1),
        (pa.timestamp("us"), 2**63 - 1),
        (pa.time64("ns"), 123_456_789),
        (pa.timestamp("s"), 10**11),
    ],
)
def test_scalars_can_hold_bounds_that_python_cannot(data_type: pa.DataType, raw_value: int) -> None:
    storage = pa.int32() if data_type == pa.date32() else pa.int64()
    bound = pa.array([raw_value], storage).view(data_type)[0]
    with (
        serving(pa.schema({"c": data_type}), ColumnStatistics(min=bound, max=bound)) as server,
        Raw(server.location) as raw,
    ):
        assert ask(raw).column("max").view(storage).to_pylist() == [raw_value]


def test_scalars_are_accepted_as_bounds() -> None:
    statistics = ColumnStatistics(min=pa.scalar(1, pa.int8()), max=pa.scalar(2, pa.int64()))
    with serving(pa.schema({"c": pa.int64()}), statistics) as server, Raw(server.location) as raw:
        assert ask(raw).to_pydict()["max"] == [2]


def test_unknown_statistics_have_safe_values() -> None:
    with serving(pa.schema({"c": pa.int64()}), ColumnStatistics()) as server, Raw(server.location) as raw:
        assert ask(raw).to_pylist() == [
            {"min": None, "max": None, "has_not_null": True, "has_null": True, "distinct_count": 0}
        ]


def test_strings_report_length_and_unicode_where_known() -> None:
    statistics = ColumnStatistics(min="a", max="b", max_string_length=5, contains_unicode=False)
    with serving(pa.schema({"c": pa.string()}), statistics) as server, Raw(server.location) as raw:
        batch = ask(raw)
    assert batch.to_pydict()["max_string_length"] == [5]
    assert batch.to_pydict()["contains_unicode"] == [False]
    assert batch.schema.field("max_string_length").type == pa.uint64()
    with (
        serving(pa.schema({"c": pa.string()}), ColumnStatistics(min="a", max="b")) as server,
        Raw(server.location) as raw,
    ):
        assert "contains_unicode" not in ask(raw).schema.names


UNANNOUNCED = {
    "interval": (pa.month_day_nano_interval(), ColumnStatistics()),
    "bit": (pa.opaque(pa.binary(), "bit", "DuckDB"), ColumnStatistics()),
    "union": (pa.sparse_union([pa.field("n", pa.int32())]), ColumnStatistics()),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ColumnStatistics(min="a", max="b")),
    "text without bounds": (pa.string(), ColumnStatistics()),
    "text with one bound": (pa.string(), ColumnStatistics(min="a")),
    "bytes without bounds": (pa.binary(), ColumnStatistics()),
    "json without bounds": (pa.json_(), ColumnStatistics()),
}


@pytest.mark.parametrize("name", UNANNOUNCED)
def test_table_with_one_invalid_statistic_announces_none(name: str) -> None:
    data_type, statistics = UNANNOUNCED[name]
    schema = pa.schema({"fine": pa.int64(), "c": data_type})
    with (
        serving(schema, lambda column, kind: statistics if column == "c" else ColumnStatistics()) as server,
        Raw(server.location) as raw,
    ):
        assert schema_of(objects(listing(raw))["t"]).metadata is None


def test_geometry_statistics_are_not_announced() -> None:
    field = pa.field(
        "c", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": "{}"}
    )
    with serving(pa.schema([field]), ColumnStatistics(min=b"", max=b"")) as server, Raw(server.location) as raw:
        assert schema_of(objects(listing(raw))["t"]).metadata is None


def test_table_without_statistics_of_some_column_announces_none() -> None:
    def statistics(column: str, kind: str) -> ColumnStatistics:
        raise NotFound("no such column here")

    with serving(pa.schema({"c": pa.int64()}), statistics) as server, Raw(server.location) as raw:
        assert schema_of(objects(listing(raw))["t"]).metadata is None


def test_nested_columns_are_announced_with_null_bounds() -> None:
    schema = pa.schema({"c": pa.list_(pa.int64()), "m": pa.map_(pa.string(), pa.int32())})
    with serving(schema, ColumnStatistics()) as server, Raw(server.location) as raw:
        assert schema_of(objects(listing(raw))["t"]).metadata == {b"can_produce_statistics": b"1"}
        assert ask(raw).to_pydict()["min"] == [None]


def test_string_column_with_only_nulls_is_valid() -> None:
    statistics = ColumnStatistics(has_null=True, has_not_null=False)
    with serving(pa.schema({"c": pa.string()}), statistics) as server, Raw(server.location) as raw:
        assert schema_of(objects(listing(raw))["t"]).metadata == {b"can_produce_statistics": b"1"}
        assert ask(raw).to_pydict()["has_not_null"] == [False]


def test_bound_missing_after_attach_is_replaced_by_one_that_holds_for_every_string() -> None:
    answers = iter([ColumnStatistics(min="a", max="b")])
    statistics = lambda column, kind: next(answers, ColumnStatistics())  # noqa: E731
    with serving(pa.schema({"c": pa.string()}), statistics) as server, Raw(server.location) as raw:
        assert schema_of(objects(listing(raw))["t"]).metadata == {b"can_produce_statistics": b"1"}
        batch = ask(raw)
    assert batch.to_pydict()["min"] == [""]
    assert batch.to_pydict()["max"][0].encode() >= "\U0010ffff".encode()


def test_missing_bound_of_fixed_size_bytes_has_their_size() -> None:
    schema = pa.schema({"digest": pa.binary(3), "id": pa.uuid()})
    with serving(schema, ColumnStatistics(has_null=True)) as server, Raw(server.location) as raw:
        digest, number = ask(raw, "digest").to_pydict(), ask(raw, "id").to_pydict()
    assert (digest["min"], digest["max"]) == ([b"\0\0\0"], [b"\xff\xff\xff"])
    assert (number["min"], number["max"]) == ([None], [None])


def test_type_names_are_quoted_as_in_duckdb() -> None:
    import duckdb

    reserved = duckdb.sql("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'").fetchall()
    for (word,) in [*reserved, ("plain",), ("Upper",), ("two words",)]:
        field = pa.field("c", pa.struct([(word, pa.int32())]))
        type_name = duckdb.sql("SELECT typeof(x) FROM (SELECT NULL::" + duckdb_type(field) + " AS x)").fetchone()
        assert type_name == (duckdb_type(field),)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda of: of,
        pa.list_,
        lambda of: pa.list_(of, 3),
        lambda of: pa.map_(pa.string(), of),
        lambda of: pa.struct([("left", of)]),
        lambda of: pa.sparse_union([pa.field("at", of), pa.field("b", pa.string())]),
    ],
    ids=["struct", "list", "array", "map", "struct in a struct", "union"],
)
def test_castable_types_can_have_any_names(wrap: Any) -> None:
    import duckdb

    words = [word for (word,) in duckdb.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()]
    named = [pa.field(word, pa.int32()) for word in sorted({*words, "Upper", "two words", 'quo"te', "ä"})]
    made = castable_type(pa.field("c", wrap(pa.struct(named))))
    (found,) = duckdb.sql(f"SELECT CAST(NULL AS {made})").types
    names = str(found)
    assert all(f'"{each.name}"' in names or each.name in names or each.name == 'quo"te' for each in named)


def test_castable_types_are_those_of_columns() -> None:
    import duckdb

    for of in (
        pa.int8(),
        pa.string(),
        pa.uuid(),
        pa.bool8(),
        pa.decimal128(9, 2),
        pa.timestamp("us", "UTC"),
        pa.binary(4),
    ):
        field = pa.field("c", of)
        assert castable_type(field) == duckdb_type(field)
    encoded = pa.field("c", pa.dictionary(pa.int8(), pa.struct([("at", pa.date32())])))
    assert castable_type(encoded) == 'STRUCT("at" DATE)'
    assert str(duckdb.sql(f"SELECT CAST(NULL AS {castable_type(encoded)})").types[0]) == 'STRUCT("at" DATE)'


def test_table_receives_the_type_name() -> None:
    seen: list[tuple[str, str]] = []

    def statistics(column: str, kind: str) -> ColumnStatistics:
        seen.append((column, kind))
        return ColumnStatistics()

    with serving(pa.schema({"c": pa.decimal128(12, 6)}), statistics) as server, Raw(server.location) as raw:
        ask(raw, kind="DECIMAL(12,6)")
    assert seen[-1] == ("c", "DECIMAL(12,6)")


def test_bound_of_another_type_is_an_error_in_the_table() -> None:
    from skiway.airport.server.discovery import statistics_batch

    with pytest.raises(InvalidArgument, match="'c'"):
        statistics_batch(pa.field("c", pa.int64()), ColumnStatistics(min="a", max="b"))


def numbers(schema: pa.Schema) -> pa.Table:
    return pa.table({"c": [1, 2], "d": [3, 4]}, schema)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        {"min": 1},
        ColumnStatistics(min="a", max="b"),
        ColumnStatistics(min=2, max=1),
        ColumnStatistics(distinct_count=-1),
        ColumnStatistics(distinct_count=1.5),  # type: ignore[arg-type]
        ColumnStatistics(has_null="no"),  # type: ignore[arg-type]
        RuntimeError("the profiler is down"),
        NotFound("no such profile"),
    ],
    ids=repr,
)
def test_invalid_statistics_cost_only_the_table_its_statistics(broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    schema = pa.schema({"c": pa.int64(), "d": pa.int64()})
    is_broken = True

    def statistics(column: str, duckdb_type: str) -> Any:
        if isinstance(broken, Exception) and column == "d" and is_broken:
            raise broken
        return broken if column == "d" and is_broken else ColumnStatistics(min=1, max=2)

    builder = CatalogBuilder("demo")
    tables = builder.schema("s")
    tables.table(schema=schema, name="bad", statistics=statistics)(lambda scan: numbers(schema))
    good = ColumnStatistics(min=1, max=4, has_null=False)
    tables.table(schema=schema, name="good", statistics=lambda column, kind: good)(lambda scan: numbers(schema))
    catalog = builder.build()
    with Server(catalog, port=0) as server, Raw(server.location) as raw:
        found = objects(listing(raw))
        assert b"can_produce_statistics" in (schema_of(found["good"]).metadata or {})
        assert b"can_produce_statistics" not in (schema_of(found["bad"]).metadata or {})
        assert "table s.bad has no statistics, because those of column 'd' failed" in caplog.text
        assert raw.scan("demo", "s", "bad").to_pylist() == numbers(schema).to_pylist()
        # a client that was told about statistics while they were valid
        (body,) = raw.action(
            "column_statistics", encode(StatisticsRequest(packed(descriptor("demo", "s", "bad")), "d", "BIGINT"))
        )
        unknown = pa.ipc.open_stream(body).read_all().to_pylist()
        assert unknown == [{"min": None, "max": None, "has_not_null": True, "has_null": True, "distinct_count": 0}]


def test_tables_that_do_not_offer_statistics_still_answer() -> None:
    """Whoever asks, such as a client that attached before, gets what the table knows. Listing it computes nothing."""

    class Quiet(Table, HasStatistics):
        name, schema, offers_statistics = "quiet", pa.schema({"c": pa.int64()}), False
        asked = 0

        def scan(self, options: ScanOptions) -> tuple[()]:
            return ()

        def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
            self.asked += 1
            return ColumnStatistics(min=1, max=2)

    quiet, builder = Quiet(), CatalogBuilder("demo")
    builder.schema("s").table(quiet)
    with Server(builder.build(), port=0) as server, Raw(server.location) as raw:
        found = objects(listing(raw))
        assert b"can_produce_statistics" not in (schema_of(found["quiet"]).metadata or {})
        assert quiet.asked == 0
        request = StatisticsRequest(packed(descriptor("demo", "s", "quiet")), "c", "BIGINT")
        (body,) = raw.action("column_statistics", encode(request))
        assert pa.ipc.open_stream(body).read_all()["max"].to_pylist() == [2]


def test_tables_that_have_no_statistics_are_listed_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def none(column: str, duckdb_type: str) -> ColumnStatistics:
        raise Unsupported("not yet")

    schema = pa.schema({"c": pa.int64()})
    builder = CatalogBuilder("demo")
    builder.schema("s").table(schema=schema, name="t", statistics=none)(lambda scan: numbers(schema))
    with Server(builder.build(), port=0) as server, Raw(server.location) as raw:
        found = objects(listing(raw))
    assert b"can_produce_statistics" not in (schema_of(found["t"]).metadata or {})
    assert not caplog.text
