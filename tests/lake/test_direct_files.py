"""In queries on the server, DuckDB reads files itself. It must return what scans return, for the tables of all writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, StringType

from lake.lakes import Lake, opened_lake
from scope import sample
from skiway.client import AirportClient, col
from skiway.errors import NotFound
from skiway.formats import WholeFile
from skiway.formats.schemas import with_id
from skiway.lake.reading.scans import MAX_FILES, file_groups
from skiway.lake.reading.table import LakeTable
from skiway.sql import QueryEngine

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "kind": ["a", "b", "it's", None],
        "day": pa.array([date(2024, 1, 1), date(2024, 1, 2), None, date(1, 1, 1)]),
        "price": pa.array([Decimal("1.50"), None, Decimal("-3.25"), Decimal("9999999.99")], pa.decimal128(9, 2)),
        "number": [1.5, float("nan"), None, -0.0],
        "at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC")),
        "flag": [True, False, None, True],
        "data": [b"x", b"\x00\xff", None, b""],
    }
)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What tables returned as their files."""
    found = list[Any]()
    original = LakeTable.direct_files

    def direct_files(self: LakeTable, options: Any) -> Any:
        found.append(original(self, options))
        return found[-1]

    monkeypatch.setattr(LakeTable, "direct_files", direct_files)
    return found


def both(db: AirportClient, sql: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rows of a query, which are the same with files and with scans."""
    by_files = [str(row) for row in db.call("skiway.query", sql).read_all().to_pylist()]
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "direct_files", lambda self, options: None)
        assert [str(row) for row in db.call("skiway.query", sql).read_all().to_pylist()] == by_files
    return by_files


# -- written by other programs -------------------------------------------------------------------------------------------


def _delta(place: Path, rows: pa.Table = ROWS, **options: Any) -> None:
    for part in (rows.slice(0, 2), rows.slice(2)):
        deltalake.write_deltalake(str(place), part, mode="append", **options)


def _partitioned_delta(place: Path) -> None:
    _delta(place, partition_by=["kind", "day", "flag", "id"])


def _delta_by_decimal(place: Path) -> None:
    _delta(place, ROWS.slice(0, 2), partition_by=["price"])


def _evolved_delta(place: Path) -> None:
    _delta(place, ROWS.select(["id", "kind"]))
    deltalake.write_deltalake(str(place), ROWS, mode="append", schema_mode="merge")


def _parquet(place: Path, **files: pa.Table) -> None:
    for name, rows in files.items():
        pq.write_table(rows, place / f"{name}.parquet", row_group_size=2)


def _folder(place: Path) -> None:
    _parquet(place, a=ROWS, b=ROWS.slice(1))


def _layouts(place: Path) -> None:
    kinds = ROWS["kind"].combine_chunks()
    layouts = [kinds.dictionary_encode(), kinds.cast(pa.large_string()), kinds.cast(pa.string_view())]
    _parquet(place, **{f"f{number}": pa.table({"kind": each}) for number, each in enumerate(layouts)})


def _hive(place: Path) -> None:
    for name in ("year=2024/kind=a", "year=2025/kind=it's", "year=2025/kind=__HIVE_DEFAULT_PARTITION__"):
        (place / name).mkdir(parents=True)
        _parquet(place / name, x=ROWS.drop_columns(["kind"]))


def _other_columns(place: Path) -> None:
    _parquet(place, a=ROWS.select(["kind", "id"]), b=ROWS.select(["id", "number"]), c=ROWS)


def _widened(place: Path) -> None:
    small = pa.table({"n": pa.array([1, None], pa.int16()), "x": pa.array([0.1, None], pa.float32())})
    _parquet(place, a=small, b=pa.table({"n": [1 << 40], "x": [0.1]}))


def _nanoseconds(place: Path) -> None:
    _parquet(place, a=pa.table({"at": pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "UTC"))}))


def _int96(place: Path) -> None:
    pq.write_table(ROWS.select(["id", "at"]), place / "a.parquet", use_deprecated_int96_timestamps=True)


NESTED = pa.table(
    {
        "id": pa.array([1, 2, 3, 4]),
        "tags": pa.array([[1, None], [], None, [3]], pa.list_(pa.int32())),
        "point": pa.array(
            [{"x": float("nan"), "y": {"z": "a"}}, {"x": None, "y": None}, None, {"x": 1.5, "y": {"z": None}}],
            pa.struct({"x": pa.float64(), "y": pa.struct({"z": pa.string()})}),
        ),
        "steps": pa.array(
            [[{"at": date(2024, 1, 1), "n": [1, 2]}, None], [], None, [{"at": None, "n": None}]],
            pa.list_(pa.struct({"at": pa.date32(), "n": pa.list_(pa.int64())})),
        ),
        "prices": pa.array(
            [[("a", Decimal("1.50")), ("b", None)], [], None, [("it's", Decimal("2.00"))]],
            pa.map_(pa.string(), pa.decimal128(9, 2)),
        ),
    }
)


def _nested(place: Path) -> None:
    _parquet(place, a=NESTED, b=NESTED.slice(1))


def _nested_delta(place: Path) -> None:
    deltalake.write_deltalake(str(place), NESTED)  # not in slices, on which it fails


def _old_lists(place: Path) -> None:
    pq.write_table(NESTED.select(["id", "tags"]), place / "a.parquet", use_compliant_nested_type=False)


def _other_fields(place: Path) -> None:
    one, other = ({"p": pa.array([{name: 1}], pa.struct({name: pa.int64()}))} for name in ("x", "y"))
    _parquet(place, a=pa.table(one), b=pa.table(other))


def _milliseconds(place: Path) -> None:
    exact = pa.array([datetime(2024, 1, 1)], pa.timestamp("us"))
    _parquet(place, a=pa.table({"at": exact.cast(pa.timestamp("ms"))}), b=pa.table({"at": exact}))


def _by_timestamp(place: Path) -> None:
    _delta(place, partition_by=["at"])


DIRECT = [
    *(_delta, _partitioned_delta, _delta_by_decimal, _evolved_delta),
    *(_folder, _layouts, _hive, _other_columns, _widened),
    *(_nested, _nested_delta, _old_lists),
]
SCANNED = [_by_timestamp, _nanoseconds, _int96, _milliseconds, _other_fields]


def _name(write: Callable[[Path], None]) -> str:
    return write.__name__.strip("_")  # names that begin with an underscore are hidden


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory, queries: QueryEngine) -> Iterator[Lake]:
    """A lake with catalogs `delta` and `parquet`, with a table for each of the functions above."""
    root = tmp_path_factory.mktemp("others")
    for write in (*DIRECT, *SCANNED):
        place = root / ("delta" if "delta" in _name(write) or write is _by_timestamp else "parquet") / _name(write)
        place.mkdir(parents=True)
        write(place)
    with opened_lake(root, queries=queries) as lake:
        for kind in ("delta", "parquet"):
            lake.mirror(kind, str(root / kind))
        yield lake


@pytest.mark.parametrize("write", sample([*DIRECT, *SCANNED], every=2))
def test_files_and_scans_give_the_same_rows(
    others: Lake, watched: list[Any], monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    with others.client(catalog="parquet" if (others.folder / "parquet" / _name(write)).exists() else "delta") as db:
        table = f'root."{_name(write)}"'
        assert both(db, f"SELECT * FROM {table} ORDER BY ALL", monkeypatch)
        names = [f'"{each}"' for each in db.scan(table).schema.names]
        assert both(
            db, f"SELECT {', '.join(f'max({each}), count({each})' for each in names)} FROM {table}", monkeypatch
        )
        for name in names[:2]:
            smallest = f"(SELECT min({name}) FROM {table})"
            both(db, f"SELECT count(*) AS n FROM {table} WHERE {name} >= {smallest}", monkeypatch)
    assert {each is not None for each in watched} == {write in DIRECT}


# -- managed tables ------------------------------------------------------------------------------------------------------


def test_old_files_of_a_managed_table_have_old_columns(
    lake: Lake, watched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", ROWS.schema)
        db.insert("s.t", ROWS)
    with lake.rest() as catalog, catalog.load_table("s.t").update_schema() as change:
        change.rename_column("kind", "name")
        change.delete_column("flag")
        change.add_column("more", StringType())
        change.update_column("id", LongType())
    with lake.client() as db:
        db.insert("s.t", db.scan("s.t").read_all().slice(0, 2))
        rows = both(db, "SELECT * FROM s.t ORDER BY ALL", monkeypatch)
        assert len(rows) == 6
        assert both(db, "SELECT count(*) AS n FROM s.t WHERE name = 'a' AND more IS NULL", monkeypatch) == ["{'n': 2}"]
    assert [len(groups) for groups in watched] == [2, 2], "files with the same columns form a group"


def test_fields_of_nested_columns_are_found_by_id(
    lake: Lake, watched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with the fields of the table are read directly; once fields are renamed, dropped or added, old files are scanned."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", NESTED.schema)
        db.insert("s.t", NESTED)
        first = both(db, "SELECT * FROM s.t ORDER BY id", monkeypatch)
        filtered = "SELECT id FROM s.t WHERE point.x > 1 OR prices['a'] = 1.5 OR tags[1] = 3 ORDER BY id"
        assert both(db, filtered, monkeypatch) == ["{'id': 1}", "{'id': 4}"]
        assert both(db, "SELECT count(*) AS n FROM s.t WHERE point.x > 1e308", monkeypatch) == ["{'n': 1}"]
    assert all(watched)
    watched.clear()
    with lake.rest() as catalog:
        with catalog.load_table("s.t").update_schema() as change:
            change.rename_column("point.x", "w")
            change.add_column(("point", "y", "q"), StringType())
            change.delete_column("point.y.z")
        with catalog.load_table("s.t").update_schema() as change:
            change.add_column(("point", "y", "z"), StringType())  # another field of the same name and type
    with lake.client() as db:
        shown = both(db, "SELECT id, point FROM s.t ORDER BY id", monkeypatch)
        assert "'w': 1.5" in shown[3]
        assert "{'q': None, 'z': None}" in shown[0]
        assert watched == [None]
        watched.clear()
        db.truncate("s.t")
        fresh = db.scan("s.t").schema
        db.insert("s.t", pa.table([pa.array([9]), *(pa.nulls(1, each.type) for each in list(fresh)[1:])], schema=fresh))
        assert len(both(db, "SELECT * FROM s.t", monkeypatch)) == 1
        assert all(watched)
    assert len(first) == 4


@pytest.mark.parametrize("schema", ["", "s"])
def test_files_cannot_be_read_under_their_paths(lake: Lake, watched: list[Any], schema: str) -> None:
    rows = pa.table({"a": [1, 2]})
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", rows.schema)
        db.insert("s.t", rows)
        (path,) = lake.folder.glob("warehouse/**/*.parquet")
        named = {"schema": schema} if schema else {}
        sql = 'WITH "a/b" AS (SELECT * FROM s.t) SELECT count(*) AS n FROM "a/b" JOIN {} AS b USING (a)'
        assert db.call("skiway.query", sql.format("s.t"), named=named).read_all().to_pylist() == [{"n": 2}]
        with pytest.raises(NotFound, match=r"\.parquet does not exist"):
            db.call("skiway.query", sql.format(f"'{path}'"), named=named).read_all()
    assert watched[0], "the file is one that the query may open"


def test_tables_with_deleted_rows_are_scanned(lake: Lake, watched: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with lake.client() as db:
        db.create_schema("s")
    lake.managed_table(ROWS.schema, **{"write.delete.mode": "merge-on-read"})
    with lake.client() as db:
        db.insert("s.t", ROWS)
        db.delete("s.t", where=col("id") == 2)
        assert both(db, "SELECT id FROM s.t ORDER BY id", monkeypatch) == ["{'id': 1}", "{'id': 3}", "{'id': 4}"]
    assert watched == [None]


# -- groups of files -----------------------------------------------------------------------------------------------------


def _field(number: int, name: str, of: pa.DataType, *, nullable: bool = True) -> pa.Field:
    return with_id(pa.field(name, of, nullable=nullable), number)


SCHEMA = pa.schema([_field(1, "a", pa.int64()), _field(2, "b", pa.string())])


def _file(*columns: pa.Field, **constants: pa.Scalar) -> WholeFile:
    values = {int(name.strip("_")): value for name, value in constants.items()}
    return WholeFile("f", dict(enumerate(columns, 1)), values, lambda: -1)


A, B = pa.field("a", pa.int64()), pa.field("b", pa.string())


def _struct(number: int, name: str, of: pa.DataType | None = None) -> pa.DataType:
    return pa.struct([_field(number, name, of or pa.int64())])


NESTED_SCHEMA = pa.schema([SCHEMA[0], _field(2, "b", _struct(4, "x"))])
NESTED_B = pa.field("b", _struct(4, "x"))


def test_nested_columns_with_the_same_fields_are_read_directly() -> None:
    found = file_groups(NESTED_SCHEMA, [_file(A, NESTED_B)])
    assert found is not None
    assert [each.type for each in found[0].columns] == ["BIGINT", 'STRUCT("x" BIGINT)']


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (_file(A, B), [("a", None), ("b", None)]),
        (_file(A.with_name("z"), B), [("z", None), ("b", None)]),
        (_file(A), [("a", None), (None, None)]),
        (_file(A, _2=pa.scalar("x")), [("a", None), (None, "x")]),
        (_file(A, B, _2=pa.scalar("x")), [("a", None), ("b", None)]),
        (_file(A, _2=pa.scalar(None, pa.string())), [("a", None), (None, None)]),
        (_file(A.with_type(pa.int16()), B), [("a", None), ("b", None)]),
        (_file(A, B.with_type(pa.dictionary(pa.int8(), pa.string()))), [("a", None), ("b", None)]),
    ],
)
def test_columns_come_from_the_file_or_are_constant(file: WholeFile, expected: list[Any]) -> None:
    found = file_groups(SCHEMA, [file])
    assert found is not None
    assert [(each.stored_as, each.value) for each in found[0].columns] == expected
    assert [(each.name, each.type) for each in found[0].columns] == [("a", "BIGINT"), ("b", "VARCHAR")]


def test_files_with_the_same_columns_can_have_different_constants() -> None:
    plain = _file(A)
    files = [plain, replace(plain, constants={2: pa.scalar("x")}), plain, replace(plain, constants={2: pa.scalar("y")})]
    for order in (files, files[::-1]):
        found = file_groups(SCHEMA, order)
        assert found is not None
        values = {group.columns[1].value: len(group.files) for group in found}
        assert values == {None: 2, "x": 1, "y": 1}


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        pytest.param(SCHEMA, [], id="no files"),
        pytest.param(SCHEMA, [_file(A, B)] * (MAX_FILES + 1), id="too many files"),
        pytest.param(SCHEMA, [_file(A, _2=pa.scalar(str(i))) for i in range(201)], id="too many groups"),
        pytest.param(SCHEMA, [_file(A, B), _file(A.with_type(pa.string()), B)], id="another type"),
        pytest.param(SCHEMA, [_file(A.with_type(pa.uint64()), B)], id="a type that may be too large"),
        pytest.param(SCHEMA, [_file(A, B, A.with_name("B"))], id="names that differ in case only"),
        pytest.param(SCHEMA, [_file()], id="no column to read"),
        pytest.param(NESTED_SCHEMA, [_file(A, NESTED_B.with_name("x").with_type(_struct(4, "y")))], id="another field"),
        pytest.param(NESTED_SCHEMA, [_file(A, NESTED_B.with_type(_struct(5, "x")))], id="a field with another id"),
        pytest.param(NESTED_SCHEMA, [_file(A, NESTED_B.with_type(_struct(4, "x", pa.int32())))], id="a wider field"),
        pytest.param(NESTED_SCHEMA, [_file(A.with_type(pa.int16()), NESTED_B)], id="a nested and a wider column"),
        pytest.param(
            pa.schema([SCHEMA[0], _field(2, "b", pa.struct([("x", pa.int64()), ("X", pa.int64())]))]),
            [_file(A, pa.field("b", pa.struct([("x", pa.int64()), ("X", pa.int64())])))],
            id="fields that differ in case only",
        ),
        pytest.param(pa.schema([*SCHEMA, _field(3, "c", pa.int32(), nullable=False)]), [_file(A, B)], id="NOT NULL"),
        pytest.param(
            pa.schema([*SCHEMA, _field(3, "c", pa.float64())]), [_file(A, B, _3=pa.scalar(0.1))], id="a constant number"
        ),
    ],
)
def test_tables_that_duckdb_would_read_differently_are_scanned(schema: pa.Schema, files: list[WholeFile]) -> None:
    assert file_groups(schema, files) is None
