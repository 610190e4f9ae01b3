"""Definitions of tables and schemas that Iceberg does not have are rejected, each with its reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.airport import CreateTable, Request, ScanOptions
from skiway.airport.request import ServedCall, entered
from skiway.errors import InvalidArgument, SkiwayError, Unsupported
from skiway.foundation.resources import namespace_path, schema_name
from skiway.lake.catalog import LakeCatalog, UnreadableTable, _first_line, _iceberg_columns
from skiway.lake.context import FailedCreations, FirstInsert
from skiway.lake.views import BrokenView
from skiway.metastore.records.damage import damaged_error
from skiway.model import v1

SCHEMA = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string(), nullable=False), pa.field("c", pa.int64())])


def test_columns_are_required_as_the_statement_says() -> None:
    found = _iceberg_columns(CreateTable("t", SCHEMA, not_null=("a",)))
    assert [each.nullable for each in found] == [False, False, True]
    assert found.names == SCHEMA.names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primary_key": ("a",)}, "table 't' cannot have PRIMARY KEY"),
        ({"unique": (("a",),)}, "table 't' cannot have UNIQUE"),
        ({"checks": ("a > 1",)}, "table 't' cannot have CHECK"),
    ],
)
def test_constraints_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        _iceberg_columns(CreateTable("t", SCHEMA, **options))


def test_defaults_and_reserved_names_are_rejected() -> None:
    default = pa.schema([pa.field("a", pa.int64(), metadata={"default": "1"})])
    with pytest.raises(Unsupported, match="column 'a' cannot have a default"):
        _iceberg_columns(CreateTable("t", default))
    with pytest.raises(InvalidArgument, match="a column cannot be named 'RowId'"):
        _iceberg_columns(CreateTable("t", pa.schema({"x": pa.int64(), "RowId": pa.int64()})))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("a",), "a"),
        (("a", "b"), "a.b"),
        (("a.b", "c\\d"), "a\\.b.c\\\\d"),
        (("main",), "main_"),
        (("MAIN_",), "MAIN__"),
        (("main", "x"), "main.x"),
        (("mainly",), "mainly"),
    ],
)
def test_names_of_schemas_are_paths(path: tuple[str, ...], name: str) -> None:
    assert schema_name(path) == name
    assert namespace_path(name) == path


@pytest.mark.parametrize("name", ["", ".", "a.", ".a", "a..b", "a\\", "a\\x"])
def test_invalid_names_of_schemas_are_rejected(name: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a schema name"):
        namespace_path(name)


def test_damaged_tables_and_broken_views_tell_why() -> None:
    table = UnreadableTable(v1.Table(display_name="t", damage="lost"), damaged_error("table", "t", "lost"))
    assert (table.name, table.comment, table.schema.names) == ("t", "damaged: lost", ["damage"])
    with pytest.raises(SkiwayError, match="lost"):
        table.scan(ScanOptions())
    view = BrokenView("v", InvalidArgument("no such table"))
    assert (view.name, view.comment) == ("v", "cannot be read: no such table")
    for read in (lambda: view.sql, lambda: view.scan(ScanOptions())):
        with pytest.raises(InvalidArgument, match="no such table"):
            read()
    assert _first_line(ValueError("\n one\ntwo")) == "one"


@pytest.mark.parametrize(
    ("operation", "fresh"), [("list_schemas", True), ("list_flights", True), ("scan", False), ("", False)]
)
def test_version_is_fresh_for_clients_that_attach(operation: str, fresh: bool) -> None:
    asked = list[bool]()

    def of(_realm: Any, *, fresh: bool) -> int:
        asked.append(fresh)
        return 7

    context = SimpleNamespace(versions=SimpleNamespace(of=of), callers=SimpleNamespace(realm=lambda: None))
    catalog = LakeCatalog(cast(Any, context), v1.Catalog(display_name="c"))
    request = Request()
    call = ServedCall(method="", correlation_id="", request=request)
    call.operation = operation
    with entered(Request(call=call)):
        assert catalog.version().version == 7
    assert asked == [fresh]


def test_failed_creations_are_known_by_session_and_name() -> None:
    failed = FailedCreations(2)
    failed.add("", "n", "nobody")
    failed.add("s1", "n", "One")
    failed.add("s2", "n", "two")
    with entered(Request(session_id="s1")):
        for name in ("one", "ONE"):
            with pytest.raises(SkiwayError, match=f"table '{name}' cannot be created yet"):
                failed.check("n", name)
        failed.check("n", "two")
        failed.check("other", "one")
        assert failed.dropped("n", "oNe")
        assert not failed.dropped("n", "one")
        failed.check("n", "one")
    failed.add("s1", "n", "three")
    failed.add("s1", "n", "four")
    with entered(Request(session_id="s2")):
        failed.check("n", "two")
        failed.attached()
    with entered(Request(session_id="s1")):
        with pytest.raises(SkiwayError):
            failed.check("n", "four")
        failed.attached()
        failed.check("n", "three")
        failed.check("n", "four")
    with entered(Request()):
        failed.check("n", "nobody")


class Rows:
    """A statement that fails when it is told to."""

    def __init__(self, *fails: str) -> None:
        self.fails, self.calls = fails, list[str]()

    def _called(self, name: str) -> int:
        self.calls.append(name)
        if name in self.fails:
            raise InvalidArgument(name)
        return 3

    def apply(self, _rows: Any) -> Any:
        return self._called("apply")

    def commit(self) -> int:
        return self._called("commit")

    def abort(self) -> None:
        self._called("abort")


def test_creation_is_undone_once_unless_the_insert_succeeds() -> None:
    undone = list[int]()
    statement = FirstInsert(lambda: cast(Any, Rows()), lambda: undone.append(1))
    statement.apply(cast(Any, None))
    assert statement.commit() == 3
    assert undone == []
    failing = FirstInsert(lambda: cast(Any, Rows("commit", "abort")), lambda: undone.append(2))
    with pytest.raises(InvalidArgument, match="commit"):
        failing.commit()
    with pytest.raises(InvalidArgument, match="abort"):
        failing.abort()
    assert undone == [2]
    aborted = FirstInsert(lambda: cast(Any, Rows()), lambda: undone.append(3))
    aborted.abort()
    aborted.abort()
    assert undone == [2, 3]


def test_creation_is_undone_if_the_insert_cannot_start(caplog: pytest.LogCaptureFixture) -> None:
    def start() -> Any:
        raise InvalidArgument("cannot start")

    def undo() -> None:
        raise SkiwayError("cannot undo")

    with pytest.raises(InvalidArgument, match="cannot start"):
        FirstInsert(start, undo)
    assert "could not be dropped" in caplog.text
