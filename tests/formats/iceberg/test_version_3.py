"""What version 3 of Iceberg adds: variants, defaults at any depth, nanoseconds, unknown columns, geographies."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import ListType, NestedField, StructType

from formats.data_formats import append_avro, append_orc, append_parquet_file
from formats.iceberg.test_deletes import now, read
from formats.managed import LooseTable
from formats.pushed_filters import pushed_filter
from skiway.errors import PreconditionFailed
from skiway.formats import TableHandle, open_source
from skiway.formats.extension_types import coordinate_system
from skiway.formats.iceberg.changes.commits import plain


def with_schema(table: LooseTable, *fields: NestedField) -> None:
    """Make these the columns of the table."""
    schema = type(table.metadata.schema())(*fields, schema_id=1)
    table.change(plain([], [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)]))


def with_variants(folder: Path, sql: str) -> TableHandle:
    """A table with the columns `id` and `v`, a variant; DuckDB writes its file."""
    table = LooseTable(folder, pa.schema({"id": pa.int64(), "v": pa.string()}), format_version="3")
    place = folder / "account" / "table" / "data" / "v.parquet"
    place.parent.mkdir(parents=True, exist_ok=True)
    with duckdb.connect() as duck:
        duck.execute(f"COPY ({sql}) TO '{place}' (FORMAT parquet, FIELD_IDS {{id: 1, v: 2}})")
        (count,) = duck.execute(f"SELECT count(*) FROM '{place}'").fetchall()[0]
    # Bounds of variants have another encoding than those of strings.
    append_parquet_file(table, place, count, lower_bounds={2: b"zzz"}, upper_bounds={2: b"zzz"})
    metadata = Path(table.location.removeprefix("file://"))
    document = json.loads(metadata.read_text())
    document["schemas"][0]["fields"][1]["type"] = "variant"
    metadata.write_text(json.dumps(document))
    return open_source("iceberg", str(metadata)).load((), "table")


def rows_of(table: TableHandle, **options: Any) -> dict[int, str | None]:
    current = table.current()
    assert current is not None
    found = table.read(current, **options).read_all()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


VARIANTS = """
    SELECT * FROM (VALUES (1::BIGINT, {'a': 1}::VARIANT), (2, 'text'::VARIANT), (3, [1, 2]::VARIANT)) t(id, v)
"""


def test_variants_are_read_as_json(tmp_path: Path) -> None:
    table = with_variants(tmp_path, VARIANTS)
    assert table.schema.arrow.field("v").type == pa.string()
    assert rows_of(table) == {1: '{"a":1}', 2: '"text"', 3: "[1,2]"}


def test_files_with_variants_are_not_plain_files(tmp_path: Path) -> None:
    table = with_variants(tmp_path, VARIANTS)
    current = table.current()
    assert current is not None
    assert table.plain_files(current, table.plan(current)) is None


def test_filter_on_a_variant_ignores_its_bounds(tmp_path: Path) -> None:
    table = with_variants(tmp_path, VARIANTS)
    condition = pushed_filter("v = '[1,2]'", table.schema.arrow)
    assert rows_of(table, filter=condition) == {3: "[1,2]"}


def test_damaged_variant_is_an_error(tmp_path: Path) -> None:
    damaged = "SELECT 1::BIGINT AS id, {'metadata': '\\x01\\x00'::BLOB, 'value': '\\xFF'::BLOB} AS v"
    table = with_variants(tmp_path, damaged)
    with pytest.raises(PreconditionFailed, match=r"v\.parquet' is corrupt"):
        rows_of(table)


ST = pa.schema({"id": pa.int64(), "st": pa.struct({"k": pa.int32()}), "ls": pa.list_(pa.struct({"k": pa.int32()}))})


@pytest.mark.parametrize("write", ["parquet", "avro", "orc"])
def test_fields_of_structs_have_their_default_in_older_files(tmp_path: Path, write: str) -> None:
    table = LooseTable(tmp_path, ST, format_version="3")
    old = pa.Table.from_pylist(
        [{"id": 1, "st": {"k": 1}, "ls": [{"k": 1}, None]}, {"id": 2, "st": None, "ls": None}], schema=ST
    )
    writers: dict[str, Any] = {"parquet": LooseTable.append, "avro": append_avro, "orc": append_orc}
    writers[write](table, old)
    one: Any
    st: Any
    ls: Any
    one, st, ls = table.metadata.schema().fields
    more = NestedField(10, "more", "string", required=True, initial_default="old", write_default="new")
    day = NestedField(11, "day", "date", required=False, initial_default="2026-01-02")
    number = NestedField(12, "n", "long", required=False, initial_default=7)
    inner = StructType(*ls.field_type.element_type.fields, more)
    with_schema(
        table,
        one,
        NestedField(st.field_id, "st", StructType(*st.field_type.fields, day), required=False),
        NestedField(
            ls.field_id, "ls", ListType(ls.field_type.element_id, inner, element_required=False), required=False
        ),
        number,
    )
    found = read(table, schema=table.handle.schema.arrow).to_pylist()
    assert found == [
        {"id": 1, "st": {"k": 1, "day": date(2026, 1, 2)}, "ls": [{"k": 1, "more": "old"}, None], "n": 7},
        {"id": 2, "st": None, "ls": None, "n": 7},
    ]


def test_unknown_columns_are_null(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, pa.schema({"id": pa.int64()}), format_version="3")
    table.append(pa.table({"id": [1, 2]}))
    with_schema(table, *table.metadata.schema().fields, NestedField(2, "nothing", "unknown", required=False))
    found = read(table, schema=table.handle.schema.arrow)
    assert found.schema.field("nothing").type == pa.null()
    assert found.to_pylist() == [{"id": 1, "nothing": None}, {"id": 2, "nothing": None}]


@pytest.mark.parametrize("tz", [None, "UTC"])
def test_nanoseconds_are_read_and_filtered(tmp_path: Path, tz: str | None) -> None:
    schema = pa.schema({"id": pa.int64(), "t": pa.timestamp("ns", tz=tz)})
    table = LooseTable(tmp_path, schema, format_version="3")
    base = 1_767_323_045_000_000_000
    for number in range(3):
        table.append(pa.table({"id": [number], "t": pa.array([base + number], schema.field("t").type)}, schema=schema))
    assert table.metadata.schema().find_field("t").field_type.minimum_format_version() == 3
    found = read(table)
    assert sorted(found["t"].cast(pa.int64()).to_pylist()) == [base, base + 1, base + 2]
    assert table.handle.plan(now(table))["stats"].to_pylist()[0]["2"]["exact"]


@pytest.mark.parametrize(
    ("of", "stored", "crs"),
    [
        ("geometry", "geometry", "OGC:CRS84"),
        ("geometry(EPSG:3857)", "geometry(EPSG:3857)", "EPSG:3857"),
        ("geometry('EPSG:3857')", "geometry(EPSG:3857)", "EPSG:3857"),
        ("geography", "geography", None),
        ("geography(OGC:CRS84, spherical)", "geography", None),
        ("geography(EPSG:4326,vincenty)", "geography(EPSG:4326, vincenty)", None),
    ],
)
def test_geometries_and_geographies_are_well_known_bytes(tmp_path: Path, of: str, stored: str, crs: str | None) -> None:
    """With parameters as Iceberg's Java library writes them, and as PyIceberg does."""
    table = LooseTable(tmp_path, pa.schema({"id": pa.int64(), "g": pa.binary()}), format_version="3")
    point = bytes.fromhex("0101000000000000000000f03f0000000000000040")
    table.append(pa.table({"id": [1, 2], "g": pa.array([point, None], pa.binary())}))
    metadata = Path(table.location.removeprefix("file://"))
    document = json.loads(metadata.read_text())
    document["schemas"][0]["fields"][1]["type"] = of
    metadata.write_text(json.dumps(document))
    with open_source("iceberg", str(metadata)) as source:
        found = source.load((), "table")
        assert found.read(now(table)).read_all()["g"].to_pylist() == [point, None]
        assert json.loads(found.schema.json)["fields"][1]["type"] == stored
        assert coordinate_system(found.schema.arrow.field("g")) == crs
