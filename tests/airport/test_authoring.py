"""Catalogs as authors write them: attributes set in `__init__`, what the checks accept, logs, and transactions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from skiway.airport import (
    Catalog,
    CatalogBuilder,
    DmlOptions,
    DmlResult,
    DynamicTable,
    FunctionCall,
    FunctionCallRequest,
    Insertable,
    ScanOptions,
    Schema,
    Server,
    Statement,
    Table,
    TableRef,
    Transactional,
    TransactionManager,
    TransactionStatus,
    Writable,
    Write,
    checks,
    current_request,
)
from skiway.client import AirportClient
from skiway.errors import Internal, InvalidArgument, NotFound, SkiwayError, Unsupported

ROWS = pa.schema({"id": pa.int64()})


class Numbers(Table):
    def __init__(self, name: str = "numbers", upto: int = 3) -> None:
        self.name, self.schema = name, ROWS
        self.upto = upto

    def scan(self, options: ScanOptions) -> Any:
        return {"id": range(self.upto)}


class Files(TableRef):
    def __init__(self, file: Path) -> None:
        self.name, self.schema = "files", ROWS
        self.file = file

    def function_calls(self, request: FunctionCallRequest) -> Sequence[FunctionCall]:
        return [FunctionCall("read_csv", str(self.file), columns={"id": "BIGINT"})]


class Folder(Schema):
    def __init__(self, *tables: Any, name: str = "s") -> None:
        self.name = name
        self._tables = tables

    def tables(self) -> Any:
        return self._tables


class FolderOfNothing(Folder):
    def __init__(self) -> None:
        super().__init__(name="nothing")

    def tables(self) -> Any:
        return None


class Living(Catalog):
    def __init__(self, *schemas: Any) -> None:
        self.name = "demo"
        self._schemas = schemas

    def schemas(self) -> Any:
        return self._schemas


class Ledger(TransactionManager):
    """Numbers its transactions, and remembers how they ended."""

    def __init__(self) -> None:
        self.states: dict[str, TransactionStatus] = {}

    def begin(self) -> str:
        self.states[key := f"t{len(self.states) + 1}"] = TransactionStatus.ACTIVE
        return key

    def commit(self, transaction_id: str) -> None:
        self.states[transaction_id] = TransactionStatus.COMMITTED

    def rollback(self, transaction_id: str) -> None:
        self.states[transaction_id] = TransactionStatus.ABORTED

    def status(self, transaction_id: str) -> TransactionStatus | None:
        return self.states.get(transaction_id)


class Trading(Living, Transactional):
    def __init__(self, transactions: Any) -> None:
        super().__init__()
        self._transactions = transactions

    @property
    def transactions(self) -> TransactionManager:
        return self._transactions  # type: ignore[no-any-return]


class Promising(Living):
    def __init__(self) -> None:
        super().__init__()
        self.transactions = Ledger()


def scan(catalog: Any, table: str = "s.numbers", **options: Any) -> list[Any]:
    with Server(catalog, port=0, **options) as server, AirportClient(server.location, "demo") as db:
        return list(db.scan(table).read_all().to_pylist())


# -- attributes -------------------------------------------------------------------------------------------------------


def test_name_and_schema_may_be_set_in_the_constructor(tmp_path: Path) -> None:
    (tmp_path / "files.csv").write_text("id\n7\n")
    demo = CatalogBuilder("demo")
    folder = demo.schema("s")
    folder.table(Numbers())
    folder.table(Numbers("few", 1))
    folder.table_ref(Files(tmp_path / "files.csv"))
    catalog = demo.build()
    assert scan(catalog) == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert scan(catalog, "s.few") == [{"id": 0}]
    assert scan(catalog, "s.files") == [{"id": 7}]


def test_name_and_schema_may_be_properties() -> None:
    class Computed(Numbers):
        @property
        def schema(self) -> pa.Schema:
            return ROWS

        @schema.setter
        def schema(self, _: pa.Schema) -> None: ...

    assert scan(Living(Folder(Computed()))) == scan(Living(Folder(Numbers())))


# -- what the checks accept -------------------------------------------------------------------------------------------


def test_method_that_only_has_the_name_of_a_capability_is_accepted() -> None:
    class Other(Numbers):
        def at(self) -> None: ...

        def plan(self, one: int, two: int) -> None: ...

        insert = None

    assert len(scan(Living(Folder(Other())))) == 3


def test_writable_table_may_have_methods_of_the_simpler_interfaces() -> None:
    class Both(Numbers, Writable):
        operations = frozenset({"insert"})

        def write(self, write: Write) -> Statement:
            raise NotImplementedError

        def insert(self, rows: object, options: object) -> None: ...

        def update(self, ids: object, rows: object, options: object) -> None: ...

    assert len(scan(Living(Folder(Both())))) == 3


def test_names_that_differ_in_other_letters_than_ascii_are_accepted() -> None:
    assert len(scan(Living(Folder(Numbers("é"), Numbers("É"))), "s.É")) == 3


def test_partial_and_builtin_functions_are_accepted() -> None:
    def upto(limit: int, scan: ScanOptions) -> Any:
        return {"id": range(limit)}

    demo = CatalogBuilder("demo")
    demo.schema("s").table(schema=ROWS)(partial(upto, 2))
    assert len(scan(demo.build(), "s.upto")) == 2


def test_catalog_that_needs_a_caller_can_be_served() -> None:
    class Private(Living):
        def schemas(self) -> Any:
            if not current_request().catalog:
                raise InvalidArgument("who are you?")
            return [Folder(Numbers())]

    assert len(scan(Private())) == 3


def test_table_whose_schema_needs_a_caller_can_be_added() -> None:
    class Private(Numbers):
        @property
        def schema(self) -> pa.Schema:
            if not current_request().catalog:
                raise RuntimeError("who are you?")
            return ROWS

        @schema.setter
        def schema(self, _: pa.Schema) -> None: ...

    demo = CatalogBuilder("demo")
    demo.schema("s").table(Private())
    assert len(scan(demo.build())) == 3


def test_schema_that_cannot_be_checked_does_not_hide_mistakes_in_others() -> None:
    class Down(Folder):
        def tables(self) -> Any:
            raise ConnectionError("the database is down")

    with pytest.raises(InvalidArgument, match="returned None: return a list of Table"):
        Server(Living(Down(name="down"), Folder(Numbers()), FolderOfNothing()), port=0)


@pytest.mark.parametrize("name", ["main", "MAIN"])
def test_mistake_in_an_added_catalog_is_found(name: str) -> None:
    with Server(port=0) as server, pytest.raises(InvalidArgument, match=f"named '{name}'"):
        server.add_catalog(Living(Folder(name=name)))


@pytest.mark.parametrize(
    ("catalogs", "message"),
    [
        ("demo", "the server got a str, not a catalog"),
        (None, "the server got None, not a catalog"),
        ([CatalogBuilder("demo")], "the server got the CatalogBuilder of 'demo'"),
        ({"demo": Living()}, "the server got a dict, not a catalog"),
        (Living(Folder(Numbers("a"), Numbers("A"))), "the tables of schema 's' have 'a' and 'A'"),
        (Living(Folder(Numbers("a"), Numbers("a"))), "the tables of schema 's' have two called 'a'"),
        (Trading(Ledger), "transactions of catalog 'demo' is the class Ledger: return an object"),
        (Promising(), "catalog 'demo' has transactions but does not inherit from Transactional"),
        (Living(Folder(), Folder(name="S")), "the schemas of catalog 'demo' have 's' and 'S'"),
        (
            Living(Folder(Numbers)),
            r"tables\(\) of schema 's' returned the class Numbers in its list: return an instance",
        ),
    ],
)
def test_mistake_is_found_when_the_server_is_constructed(catalogs: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Server(catalogs, port=0)


def test_listing_that_breaks_later_is_an_error_that_names_it() -> None:
    folder = Folder(Numbers())
    with Server(Living(folder), port=0) as server, AirportClient(server.location, "demo") as db:
        folder._tables = None  # type: ignore[assignment]
        with pytest.raises(Internal, match=r"tables\(\) of schema 's' returned None: return a list of Table"):
            db.schemas()


# -- results of writing methods ---------------------------------------------------------------------------------------


class Loose(Numbers, Insertable):
    result: Any = None

    def insert(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        rows.read_all()
        return self.result  # type: ignore[no-any-return]


class Never(Statement):
    def apply(self, rows: pa.RecordBatch) -> None: ...

    def commit(self) -> int:
        return None  # type: ignore[return-value]

    def abort(self) -> None: ...


class Statements(Numbers, Writable):
    operations = frozenset({"insert"})
    statement: Any = None

    def write(self, write: Write) -> Statement:
        return self.statement  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("table", "result", "message"),
    [
        (Loose, None, "insert() of table 'numbers' returned None: return DmlResult(affected_rows=…)"),
        (Loose, 1, "insert() of table 'numbers' returned an int: return DmlResult(affected_rows=…)"),
        (
            Loose,
            DmlResult(None),
            "insert() of table 'numbers' returned a DmlResult with None as affected_rows: pass the number of rows",
        ),
        (Statements, None, "write() of table 'numbers' returned None: return a Statement"),
        (Statements, Never(), "commit() of table 'numbers' returned None: return the number of affected rows"),
    ],
)
@pytest.mark.parametrize("returning", [False, True])
def test_result_of_a_writing_method_is_checked(table: Any, result: Any, message: str, returning: bool) -> None:
    written = table()
    written.result = written.statement = result
    server = Server(Living(Folder(written)), port=0)
    with server, AirportClient(server.location, "demo") as db, pytest.raises(SkiwayError) as caught:
        db.insert("s.numbers", pa.table({"id": [1]}), returning=returning and not isinstance(result, Never))
    assert caught.value.message == message


# -- logs -------------------------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture, catalog: Catalog, table: str) -> str:
    with caplog.at_level(logging.ERROR, "skiway.airport"), pytest.raises(SkiwayError):
        scan(catalog, table)
    return caplog.records[-1].getMessage()


def line_of(function: Any, offset: int = 0) -> str:
    code = function.__code__
    return f"{__file__}:{code.co_firstlineno + offset} ({code.co_name if offset else code.co_qualname})"


def test_log_names_the_table_and_the_line_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    def broken(scan: ScanOptions) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise KeyError("out of ink")

    demo = CatalogBuilder("demo")
    demo.schema("s").table(schema=ROWS)(broken)
    message = logged(caplog, demo.build(), "s.broken")
    assert message.startswith(f"scan of demo.s.broken failed in {line_of(broken, 2)}, correlation id ")


def test_log_names_the_definition_if_the_result_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    def nothing(scan: ScanOptions) -> None: ...

    class Nothing(Numbers):
        def scan(self, options: ScanOptions) -> None: ...

    demo = CatalogBuilder("demo")
    demo.schema("s").table(schema=ROWS)(nothing)
    demo.schema("t").table(Nothing())
    catalog = demo.build()
    assert f"scan of demo.s.nothing failed in {line_of(nothing)}" in logged(caplog, catalog, "s.nothing")
    assert f"scan of demo.t.numbers failed in {line_of(Nothing.scan)}" in logged(caplog, catalog, "t.numbers")


def test_log_names_the_method_that_returned_a_wrong_result(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Living(Folder(Loose())), port=0)
    with server, AirportClient(server.location, "demo") as db, pytest.raises(Internal):
        db.insert("s.numbers", pa.table({"id": [1]}))
    assert f"insert of demo.s.numbers failed in {line_of(Loose.insert)}" in caplog.records[-1].getMessage()


def test_log_names_the_function_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    demo = CatalogBuilder("demo")
    folder = demo.schema("s")

    @folder.scalar_function
    def broken(value: pa.Int64Array) -> pa.Int64Array:
        return value.missing

    server = Server(demo.build(), port=0)
    with server, AirportClient(server.location, "demo") as db, pytest.raises(SkiwayError):
        db.call_scalar("s.broken", pa.array([1]))
    assert f"scalar_function of demo.s.broken failed in {line_of(broken, 2)}" in caplog.records[-1].getMessage()


# -- transactions -----------------------------------------------------------------------------------------------------


class Notes(Numbers, Insertable):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def insert(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        self.seen.append(current_request().transaction_id)
        if rows.read_all()["id"][0].as_py() < 0:
            raise NotFound("negative")
        return DmlResult(1)


@pytest.mark.parametrize("owner", ["builder", "server"])
def test_builder_and_server_can_have_transactions(owner: str) -> None:
    ledger, notes = Ledger(), Notes()
    demo = CatalogBuilder("demo", transactions=ledger if owner == "builder" else None)
    demo.schema("s").table(notes)
    server = Server(demo.build(), port=0, transactions=ledger if owner == "server" else None)
    with server, AirportClient(server.location, "demo") as db:
        with db.transaction():
            db.insert("s.numbers", pa.table({"id": [1]}))
        with pytest.raises(NotFound), db.transaction():
            db.insert("s.numbers", pa.table({"id": [-1]}))
        assert db.transaction_status("t1") == "committed"
    assert notes.seen == ["t1", "t2"]
    assert ledger.states == {"t1": TransactionStatus.COMMITTED, "t2": TransactionStatus.ABORTED}


def test_transactions_of_the_catalog_come_before_those_of_the_server() -> None:
    own, shared = Ledger(), Ledger()
    with_own = CatalogBuilder("own", transactions=own)
    with_own.schema("s").table(Notes())
    without = CatalogBuilder("without")
    without.schema("s").table(Notes())
    with Server([with_own.build(), without.build()], port=0, transactions=shared) as server:
        for name in ("own", "without"):
            with AirportClient(server.location, name) as db, db.transaction():
                db.insert("s.numbers", pa.table({"id": [1]}))
    assert (list(own.states.values()), list(shared.states.values())) == ([TransactionStatus.COMMITTED],) * 2


def test_without_transactions_there_are_none() -> None:
    demo = CatalogBuilder("demo")
    demo.schema("s").table(Notes())
    server = Server(demo.build(), port=0)
    with server, AirportClient(server.location, "demo") as db, pytest.raises(Unsupported, match="has no transactions"):
        db.transaction_status("t1")


def test_methods_may_have_more_parameters_than_the_server_passes() -> None:
    class Logged(Numbers, Insertable):
        def scan(self, *arguments: Any) -> Any:
            return super().scan(*arguments)

        def insert(self, rows: pa.RecordBatchReader, options: DmlOptions, *, is_logged: bool = True) -> DmlResult:
            return DmlResult(rows.read_all().num_rows)

    demo = CatalogBuilder("demo")
    demo.schema("s").table(Logged())
    with Server(demo.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.numbers").read_all().num_rows == 3
        assert db.insert("s.numbers", pa.table({"id": [1]})).count == 1


def test_parameters_that_are_passed_by_name_may_be_required() -> None:
    def add_column(self: object, field: pa.Field, *, if_not_exists: bool) -> None: ...
    def positional(self: object, field: pa.Field, is_logged: bool) -> None: ...

    assert checks._is_alike(add_column, DynamicTable.add_column)
    assert not checks._is_alike(positional, DynamicTable.add_column)
