"""CREATE, DROP and ALTER from Python: they change the server, and the client's own listing too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from skiway.airport import CatalogBuilder, Server
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.protocol import AlterRequest, encode, packed
from skiway.client import AirportClient
from skiway.errors import (
    AlreadyExists,
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    SchemaNotEmpty,
    SkiwayError,
    Unsupported,
)

COLUMNS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("s", pa.struct([("x", pa.int32()), ("y", pa.string())]))])


@pytest.fixture
def db() -> Iterator[AirportClient]:
    with (
        Server(MemoryCatalog("m", schemas=["s"]), port=0) as server,
        AirportClient(server.location, "m", timeout_s=200) as client,
    ):
        client.create_table("s.t", COLUMNS)
        client.insert("s.t", pa.table({"a": [1, 2], "b": ["x", None], "s": [{"x": 1, "y": "p"}, None]}, COLUMNS))
        yield client


@pytest.fixture
def other(db: AirportClient) -> Iterator[AirportClient]:
    """Another client, which loads the state of the server."""
    with AirportClient(db.location, "m", timeout_s=200) as client:
        yield client


def described(db: AirportClient, name: str = "s.t") -> list[tuple[str, str]]:
    table = db.table(name)
    return [(column, str(table.schema.field(column).type)) for column in table.columns]


def same(db: AirportClient, other: AirportClient) -> bool:
    """Check that the client's own listing equals what another client loads from the server."""
    other.reload()
    listed = [{(s.name, s.comment, t.name, str(t.schema)) for s in c.schemas() for t in s.tables} for c in (db, other)]
    names = [{s.name for s in c.schemas()} for c in (db, other)]
    return listed[0] == listed[1] and names[0] == names[1]


def test_schemas_are_created_and_dropped(db: AirportClient, other: AirportClient) -> None:
    db.create_schema("new", comment="a comment", tags={"k": "v"})
    (created,) = [schema for schema in db.schemas() if schema.name == "new"]
    assert (created.comment, created.tags, created.tables) == ("a comment", {"k": "v"}, ())
    assert same(db, other)
    db.create_schema("new", if_not_exists=True)
    with pytest.raises(AlreadyExists):
        db.create_schema("new")
    db.drop_schema("NEW")
    db.drop_schema("new", if_exists=True)
    with pytest.raises(NotFound):
        db.drop_schema("new")
    assert same(db, other)


def test_schema_with_tables_is_not_dropped(db: AirportClient, other: AirportClient) -> None:
    with pytest.raises(SchemaNotEmpty, match="still contains 1 tables"):
        db.drop_schema("s")
    assert db.count("s.t") == 2
    assert same(db, other)


def test_table_is_created_with_all_its_constraints(db: AirportClient, other: AirportClient) -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("Code", pa.string(), nullable=False),
            pa.field("low", pa.int32()),
            pa.field("high", pa.int32(), metadata={"default": "7", "comment": "the upper end"}),
        ]
    )
    created = db.create_table(
        "s.r", columns, not_null=["low"], primary_key=["id"], unique=["Code", ("low", "Code")], checks=["low < high"]
    )
    assert [field.nullable for field in created.schema][:4] == [False, False, False, True]
    assert created.schema.field("high").metadata[b"default"] == b"7"
    assert db.table("s.r") == created
    assert same(db, other)
    db.insert("s.r", pa.table({"id": [1], "Code": ["a"], "low": [1], "high": [2]}))
    for bad in (
        {"id": [1], "Code": ["b"], "low": [1], "high": [2]},
        {"id": [2], "Code": ["a"], "low": [1], "high": [2]},
        {"id": [2], "Code": ["b"], "low": [3], "high": [2]},
        {"id": [2], "Code": ["b"], "low": pa.array([None], pa.int32()), "high": [2]},
        {"id": [2], "low": [1], "high": [2]},
    ):
        with pytest.raises(ConstraintViolation):
            db.insert("s.r", pa.table(bad))
    assert db.count("s.r") == 1


def test_composite_primary_key_is_kept(db: AirportClient) -> None:
    db.create_table("s.r", pa.schema([("a", pa.int32()), ("b", pa.int32())]), primary_key=["a", "b"])
    db.insert("s.r", pa.table({"a": [1, 1], "b": [1, 2]}))
    with pytest.raises(ConstraintViolation, match="primary key"):
        db.insert("s.r", pa.table({"a": [1], "b": [2]}))


def test_existing_table_is_an_error_kept_or_replaced(db: AirportClient, other: AirportClient) -> None:
    narrow = pa.schema([("only", pa.int32())])
    with pytest.raises(AlreadyExists):
        db.create_table("s.t", narrow)
    assert db.create_table("s.t", narrow, on_conflict="ignore").columns == ("a", "b", "s")
    assert db.create_table("s.t", narrow, on_conflict="replace").columns == ("only",)
    assert db.count("s.t") == 0
    assert same(db, other)


def test_table_is_dropped_and_renamed(db: AirportClient, other: AirportClient) -> None:
    db.rename_table("s.t", "u")
    assert db.count("s.u") == 2
    with pytest.raises(NotFound):
        db.table("s.t")
    db.rename_table("s.u", "U")
    assert db.table("s.u").name == "U"
    assert same(db, other)
    db.create_table("s.v", COLUMNS)
    with pytest.raises(AlreadyExists):
        db.rename_table("s.v", "u")
    db.drop_table("s.v")
    db.drop_table("s.v", if_exists=True)
    with pytest.raises(NotFound):
        db.drop_table("s.v")
    assert same(db, other)


def test_columns_are_added_changed_and_removed(db: AirportClient, other: AirportClient) -> None:
    db.add_column("s.t", pa.field("c", pa.int32(), metadata={"default": "5"}))
    db.add_column("s.t", pa.field("c", pa.int32()), if_not_exists=True)
    assert db.scan("s.t", columns=["c"]).read_all()["c"].to_pylist() == [5, 5]
    db.rename_column("s.t", "c", "d")
    db.change_column_type("s.t", "d", pa.string(), expression="concat('v', d)")
    db.change_column_type("s.t", "a", pa.int32())
    assert db.scan("s.t", columns=["d", "a"]).read_all().to_pydict() == {"d": ["v5", "v5"], "a": [1, 2]}
    db.remove_column("s.t", "b")
    db.remove_column("s.t", "b", if_column_exists=True)
    assert described(db) == [("a", "int32"), ("s", "struct<x: int32, y: string>"), ("d", "string")]
    assert same(db, other)


def test_column_constraints_are_changed(db: AirportClient, other: AirportClient) -> None:
    db.set_not_null("s.t", "a")
    with pytest.raises(ConstraintViolation):
        db.set_not_null("s.t", "b")
    with pytest.raises(ConstraintViolation, match="NOT NULL"):
        db.insert("s.t", pa.table({"b": ["z"]}))
    db.drop_not_null("s.t", "a")
    assert db.insert("s.t", pa.table({"b": ["z"]})).count == 1
    db.set_default("s.t", "b", "'none'")
    assert db.table("s.t").schema.field("b").metadata[b"default"] == b"'none'"
    db.add_constraint("s.t", "UNIQUE (a)")
    db.add_constraint("s.t", "CHECK (a < 100)")
    for bad in ([1], [100]):
        with pytest.raises(ConstraintViolation):
            db.insert("s.t", pa.table({"a": bad}))
    assert same(db, other)


def test_column_of_a_constraint_is_only_removed_with_cascade(db: AirportClient) -> None:
    db.add_constraint("s.t", "CHECK (a < 100)")
    with pytest.raises(SkiwayError):
        db.remove_column("s.t", "a")
    db.remove_column("s.t", "a", cascade=True)
    assert db.table("s.t").columns == ("b", "s")


def test_struct_members_are_added_changed_and_removed(db: AirportClient, other: AirportClient) -> None:
    db.add_field("s.t", ["s"], pa.field("z", pa.float64()))
    db.add_field("s.t", ["s"], pa.field("z", pa.float64()), if_not_exists=True)
    db.rename_field("s.t", ["s", "x"], "xx")
    db.remove_field("s.t", ["s", "y"])
    db.remove_field("s.t", ["s", "y"], if_field_exists=True)
    assert described(db)[2] == ("s", "struct<xx: int32, z: double>")
    assert db.scan("s.t", columns=["s"]).read_all()["s"].to_pylist() == [{"xx": 1, "z": None}, None]
    assert same(db, other)


@pytest.mark.parametrize("path", [["s"], ["s", "deep"]], ids=len)
def test_a_new_struct_field_without_a_name_is_rejected(db: AirportClient, path: list[str]) -> None:
    """DuckDB sends the name of the column instead, as the only field of the schema."""
    nameless = pa.schema([pa.field("s", pa.int32())]).serialize().to_pybytes()
    deep = pa.field("deep", pa.struct([pa.field("x", pa.int32())]))
    db.add_field("s.t", ["s"], deep)
    before = described(db)
    with pytest.raises(Unsupported, match="does not send the name of a new struct field"):
        db.action("add_field", encode(AlterRequest("m", "s", "t", column_schema=packed(nameless), column_path=path)))
    db.reload()
    assert described(db) == before


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        (lambda db: db.create_table("nope.t", COLUMNS), NotFound, "schema of nope.t not found"),
        (lambda db: db.create_table("t", COLUMNS), InvalidArgument, "names no schema"),
        (lambda db: db.create_table("s.n", COLUMNS, primary_key=["q"]), InvalidArgument, "names column 'q'; the table has a, b, s"),
        (lambda db: db.create_table("s.n", COLUMNS, unique=[("a", "q")]), InvalidArgument, "names column 'q'"),
        (lambda db: db.create_table("s.n", COLUMNS, checks=["q > 1"]), InvalidArgument, "q"),
        (lambda db: db.create_table("s.n", COLUMNS, on_conflict="perhaps"), InvalidArgument, "error, ignore or replace"),
        (lambda db: db.rename_table("s.nope", "x"), NotFound, "table s.nope not found"),
        (lambda db: db.rename_column("s.t", "q", "r"), NotFound, "q"),
        (lambda db: db.rename_column("s.t", "a", "b"), AlreadyExists, "b"),
        (lambda db: db.add_column("s.t", pa.field("a", pa.int8())), AlreadyExists, "a"),
        (lambda db: db.remove_column("s.t", "q"), NotFound, "q"),
        (lambda db: db.change_column_type("s.t", "b", pa.int32()), InvalidArgument, "x"),
        (lambda db: db.set_default("s.t", "q", "1"), NotFound, "q"),
        (lambda db: db.set_default("s.t", "a", "SELECT"), InvalidArgument, "SELECT"),
        (lambda db: db.add_constraint("s.t", "CHECK (a > 1)"), ConstraintViolation, "CHECK constraint failed"),
        (lambda db: db.add_constraint("s.t", "nonsense"), InvalidArgument, "syntax error"),
        (lambda db: db.add_field("s.t", ["a"], pa.field("z", pa.int8())), InvalidArgument, "struct"),
        (lambda db: db.remove_field("s.t", ["s", "q"]), NotFound, "q"),
        (lambda db: db.rename_field("s.t", ["s", "x"], "y"), AlreadyExists, "y"),
    ],
)  # fmt: skip
def test_invalid_ddl_is_rejected_and_changes_nothing(
    db: AirportClient, other: AirportClient, statement: Any, error: type[SkiwayError], message: str
) -> None:
    before = described(db)
    version = db.version()
    with pytest.raises(error, match=message):
        statement(db)
    assert described(db) == before
    assert db.version() == version
    assert same(db, other)


def test_altering_a_missing_table_can_be_ignored(db: AirportClient) -> None:
    version = db.version()
    db.rename_table("s.gone", "x", if_exists=True)
    db.add_column("s.gone", pa.field("x", pa.int8()), if_exists=True)
    db.set_not_null("s.gone", "x", if_exists=True)
    assert db.version() == version


def test_ddl_on_a_fixed_catalog_is_a_clear_error() -> None:
    builder = CatalogBuilder("demo")
    builder.schema("s").table(schema=COLUMNS, name="t")(lambda scan: COLUMNS.empty_table())
    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        for statement in (
            lambda: db.create_schema("x"),
            lambda: db.drop_schema("s"),
            lambda: db.create_table("s.u", COLUMNS),
            lambda: db.drop_table("s.t"),
            lambda: db.rename_column("s.t", "a", "b"),
        ):
            with pytest.raises(Unsupported):
                statement()
