"""Invalid statements are rejected with the documented error and change nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pytest

from airport.raw import Raw, code_of, descriptor
from lake.lakes import Lake
from skiway.airport.wire.frames import FrameWriter
from skiway.client import AirportClient, col
from skiway.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SchemaNotEmpty,
    SkiwayError,
    Unsupported,
)
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import managed
from skiway.metastore.resources import namespaces
from skiway.model import v1

ONE = pa.schema({"id": pa.int64()})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """A client of a lake with one table `s.t` of three rows."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema([("id", pa.int64()), ("name", pa.string())]))
        db.insert("s.t", pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
        yield db


def state(lake: Lake) -> tuple[Any, ...]:
    """All pointers, and all files with their content."""
    pointers = [(each.key, each.version, each.blob_uri) for each in lake.stores.pointers.scan("/accounts/")]
    files = sorted((lake.folder / "warehouse").rglob("*"))
    return pointers, [(str(f), hashlib.sha256(f.read_bytes()).hexdigest()) for f in files if f.is_file()]


REJECTED: dict[str, tuple[Callable[[AirportClient], Any], type[SkiwayError], str]] = {
    "a schema with ..": (lambda db: db.create_schema(".."), InvalidArgument, "is not a schema name"),
    "a schema with a path": (lambda db: db.create_schema("a/../b"), InvalidArgument, "is not a schema name"),
    "a schema main": (lambda db: db.create_schema("main"), InvalidArgument, "choose another name"),
    "a schema of the system": (lambda db: db.create_schema("Skiway"), SkiwayError, "(?i)skiway"),
    "a schema in it": (lambda db: db.create_schema("skiway.mine"), SkiwayError, "(?i)skiway"),
    "a schema twice": (lambda db: db.create_schema("S"), AlreadyExists, "already exists"),
    "a schema that is full": (lambda db: db.drop_schema("s"), SchemaNotEmpty, "not empty"),
    "a schema that is not": (lambda db: db.drop_schema("nowhere"), NotFound, "nowhere"),
    "a column with a default": (
        lambda db: db.add_column("s.t", pa.field("n", pa.int64(), metadata={"default": "1"})),
        Unsupported,
        "a default of column 'n' is not supported",
    ),
    "a table twice": (
        lambda db: db.create_table("s.T", ONE),
        AlreadyExists,
        "already has a table or view with this name",
    ),
    "a schema of one dot": (lambda db: db.create_schema("\\."), InvalidArgument, "choose another name"),
    "a schema of dots": (lambda db: db.create_schema("s.\\.\\."), InvalidArgument, "choose another name"),
    "a table of one dot": (lambda db: db.create_table(("s", "."), ONE), InvalidArgument, "choose another name"),
    "a table of dots": (lambda db: db.create_table(("s", ".."), ONE), InvalidArgument, "choose another name"),
    "a table renamed to dots": (lambda db: db.rename_table("s.t", ".."), InvalidArgument, "choose another name"),
    "a blank name": (lambda db: db.create_table(("s", "  "), ONE), InvalidArgument, "name"),
    "no columns": (lambda db: db.create_table("s.n", pa.schema([])), InvalidArgument, "column"),
    "a type Iceberg lacks": (
        lambda db: db.create_table("s.n", pa.schema({"i": pa.month_day_nano_interval()})),
        Unsupported,
        "'i' has type month_day_nano_interval",
    ),
    "a primary key": (lambda db: db.create_table("s.n", ONE, primary_key=["id"]), Unsupported, "PRIMARY KEY"),
    "a check": (lambda db: db.create_table("s.n", ONE, checks=["id > 0"]), Unsupported, "CHECK"),
    "a unique column": (lambda db: db.create_table("s.n", ONE, unique=[["id"]]), Unsupported, "UNIQUE"),
    "a column rowid": (lambda db: db.create_table("s.n", pa.schema({"RowId": pa.int64()})), InvalidArgument, "row id"),
    "twin columns": (
        lambda db: db.create_table("s.n", pa.schema([("a", pa.int64()), ("A", pa.int64())])),
        InvalidArgument,
        "case-insensitive",
    ),
    "a table there": (lambda db: db.rename_table("s.t", "t"), SkiwayError, ""),
    "narrowing": (lambda db: db.change_column_type("s.t", "id", pa.int32()), InvalidArgument, "'id' cannot be changed"),
    "a conversion": (
        lambda db: db.change_column_type("s.t", "id", pa.int64(), expression="id + 1"),
        Unsupported,
        "can only be widened",
    ),
    "NOT NULL later": (lambda db: db.set_not_null("s.t", "name"), Unsupported, "NOT NULL"),
    "a default": (lambda db: db.set_default("s.t", "id", "1"), Unsupported, "defaults"),
    "a rule": (lambda db: db.add_constraint("s.t", "CHECK (id > 0)"), Unsupported, "CHECK"),
    "a column that is": (lambda db: db.add_column("s.t", pa.field("NAME", pa.string())), AlreadyExists, "already"),
    "a column that is not": (lambda db: db.remove_column("s.t", "nowhere"), NotFound, "no column 'nowhere'"),
    "made-up row ids": (lambda db: db.delete("s.t", [0, 1, 2]), Conflict, "does not belong to the snapshot"),
    "negative row ids": (lambda db: db.delete("s.t", [-1]), Conflict, "does not belong to the snapshot"),
    "the system's tables": (
        lambda db: db.insert("skiway.jobs", pa.table({"job_id": ["x"]})),
        PreconditionFailed,
        "jobs",
    ),
    "a table of the system": (lambda db: db.create_table("skiway.mine", ONE), Unsupported, "skiway"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_invalid_statement_is_rejected_and_changes_nothing(lake: Lake, db: AirportClient, case: str) -> None:
    statement, error, message = REJECTED[case]
    before = state(lake)
    if case == "a table there":
        statement(db)  # renaming to its own name has no effect
    else:
        with pytest.raises(error, match=message):
            statement(db)
    assert state(lake) == before
    assert db.count("s.t") == 3


@pytest.mark.parametrize("name", ["...", "%2e%2e", "../../etc/passwd", "a/b", "%2e%2e%2fx", "~", "na me", "u%00"])
def test_names_that_look_like_paths_are_plain_names(lake: Lake, name: str) -> None:
    """Folders are named by ids, so a name cannot point anywhere else."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table(("s", name), ONE)
        db.insert(("s", name), pa.table({"id": [1]}))
        assert db.scan(("s", name)).read_all().num_rows == 1
        outside = [file for file in lake.folder.rglob("*") if file.is_file() and "warehouse/a1/" not in str(file)]
        assert outside == []
        db.drop_table(("s", name))


def test_row_ids_of_another_snapshot_are_rejected(lake: Lake, db: AirportClient) -> None:
    ids = db.scan("s.t", columns=["id", "rowid"]).read_all()["rowid"].to_pylist()
    assert db.delete("s.t", ids[:1]).count == 1
    before = state(lake)
    with pytest.raises(Conflict, match="run the statement again"):
        db.delete("s.t", ids[1:])
    with pytest.raises(Conflict, match="run the statement again"):
        db.update("s.t", pa.table({"name": ["x", "y"]}), row_ids=ids[1:])
    assert state(lake) == before


def test_write_to_a_mirrored_table_names_its_source(mirrors: Lake) -> None:
    with mirrors.client("parquet") as db:
        for statement in (
            lambda: db.insert("root.mixed", pa.table({"id": [1]})),
            lambda: db.delete("root.mixed", where=col("id") == 1),
            lambda: db.update("root.mixed", {"a": "x"}),
            lambda: db.remove_column("root.mixed", "a"),
            lambda: db.drop_table("root.mixed"),
            lambda: db.rename_table("root.mixed", "other"),
        ):
            with pytest.raises(PreconditionFailed, match="read-only: connector 'parquet files for parquet' mirrors it"):
                statement()
        with pytest.raises(PreconditionFailed, match="read-only: connector"):
            db.create_table("root.mine", ONE)
        with pytest.raises(PreconditionFailed, match="read-only"):
            db.create_schema("mine")


def test_location_outside_the_warehouse_is_rejected(lake: Lake) -> None:
    catalog = lake.catalog("second")
    made = lake.namespace(catalog, ["s"])
    with pytest.raises(InvalidArgument, match="the server chooses it"):
        managed.create(
            lake.realm, lake.warehouse, namespace_id=made.resource_id, name="t", schema=ONE, location="file:///etc"
        )
    with pytest.raises(PermissionDenied, match="outside of the warehouse"):
        Warehouse.at(str(lake.folder / "warehouse")).files("file:///etc/passwd")
    request = v1.ListNamespacesRequest(catalog_id=catalog.resource_id)
    assert len(namespaces.list_(lake.realm, request).namespaces) == 1


def test_if_exists_and_if_not_exists_suppress_errors(db: AirportClient) -> None:
    db.create_table("s.T", ONE, on_conflict="ignore")
    assert db.scan("s.t").read_all().column_names == ["id", "name"]
    db.drop_table("s.nowhere", if_exists=True)
    db.drop_schema("nowhere", if_exists=True)
    db.create_table("s.t", ONE, on_conflict="replace")
    assert db.scan("s.t").read_all().column_names == ["id"]
    assert db.count("s.t") == 0


def test_table_with_lost_metadata_is_reported_and_can_be_dropped(lake: Lake, db: AirportClient) -> None:
    for place in (lake.folder / "warehouse").rglob("*.metadata.json"):
        place.write_bytes(place.read_bytes()[:100])
    db.create_table("s.other", ONE)
    with lake.served() as location, AirportClient(location, "managed") as fresh:
        with pytest.raises(PreconditionFailed, match="is corrupt"):
            fresh.scan("s.t").read_all()
        with pytest.raises(PreconditionFailed, match="is corrupt"):
            fresh.insert("s.t", pa.table({"id": [1], "name": ["a"]}))
        assert fresh.count("s.other") == 0
        fresh.drop_table("s.t")
        fresh.create_table("s.t", ONE)
        assert fresh.count("s.t") == 0


def test_schemas_of_a_mirrored_catalog_are_those_of_its_source(lake: Lake) -> None:
    lake.namespace(lake.catalog("mirrored", connector_ref="files"), ["empty"])
    with lake.client("mirrored") as db:
        for change in (lambda: db.create_schema("new"), lambda: db.drop_schema("empty")):
            with pytest.raises(PreconditionFailed, match="change the tables there, or use a managed catalog"):
                change()
        db.reload()
        assert [each.name for each in db.schemas()] == ["empty", "skiway"]


def test_tokens_of_the_platform_are_refused_with_the_reason(lake: Lake, db: AirportClient) -> None:
    with lake.client(token="platform") as platform:
        for act in (
            platform.schemas,
            lambda: platform.scan("s.t").read_all(),
            lambda: platform.insert("s.t", pa.table({"id": [1], "name": ["x"]})),
            lambda: platform.create_schema("x"),
            lambda: platform.drop_table("s.t"),
            lambda: platform.call("skiway.query", "SELECT 1").read_all(),
        ):
            with pytest.raises(PermissionDenied, match="platform belongs to no account") as caught:
                act()
            assert caught.value.key == "account.required"
    assert len(db.scan("s.t").read_all()) == 3


def with_bad_name(data: bytes) -> bytes:
    """A serialized schema, in which the name that contains \u00ff is not UTF-8 any more."""
    assert "\u00ff".encode() in data
    return data.replace("\u00ff".encode(), b"\xff\xfe")


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"\u00ff": pa.int64()}),
        pa.schema({"id": pa.struct({"\u00ff": pa.int64()})}),
        pa.schema({"id": pa.list_(pa.field("\u00ff", pa.int64()))}),
    ],
    ids=["column", "member", "element"],
)
def test_names_that_are_not_utf8_are_refused(lake: Lake, db: AirportClient, schema: pa.Schema) -> None:
    with Raw(lake.location) as raw:
        begun = with_bad_name(FrameWriter(schema).begin(descriptor=descriptor("managed", "s", "t")))
        code, message = code_of(raw.exchange([begun], ("airport-operation", "insert")))
        assert (code, "utf-8" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True), message
        body = {"catalog_name": "managed", "schema_name": "s", "table_name": "new", "on_conflict": "error"}
        columns = with_bad_name(schema.serialize().to_pybytes())
        made = msgspec.msgpack.encode({**body, "arrow_schema": columns, "not_null_constraints": []})
        code, message = code_of(lambda: raw.action("create_table", made))
        assert (code, "UTF-8" in message) == (grpc.StatusCode.INVALID_ARGUMENT, True), message
    assert len(db.scan("s.t").read_all()) == 3


def test_returned_rows_need_all_columns(lake: Lake, db: AirportClient) -> None:
    with Raw(lake.location) as raw:
        begun = FrameWriter(ONE).begin(descriptor=descriptor("managed", "s", "t"))
        sent = ("airport-operation", "insert"), ("return-chunks", "1")
        code, message = code_of(raw.exchange([begun], *sent))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "INSERT … RETURNING into table 't' lacks column 'name'" in message
    assert len(db.scan("s.t").read_all()) == 3


@pytest.mark.parametrize("path", [[], [""], ["s", ""]])
def test_field_needs_a_path(db: AirportClient, path: list[str]) -> None:
    db.create_table("s.nested", pa.schema({"s": pa.struct({"x": pa.int64()})}))
    for act in (
        lambda: db.rename_field("s.nested", path, "y"),
        lambda: db.remove_field("s.nested", path),
        lambda: db.remove_field("s.nested", path, if_exists=True),
        lambda: db.add_field("s.nested", path, pa.field("y", pa.int64())),
    ):
        with pytest.raises(InvalidArgument, match="the path of the field is"):
            act()
