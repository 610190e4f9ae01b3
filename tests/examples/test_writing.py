"""The examples that write do what they show: real servers, written over a real socket."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import shapely

from examples.scripts import load
from skiway.airport import Catalog, Server
from skiway.airport.geometry import geometries, geometry_array
from skiway.client import AirportClient, col
from skiway.client import Table as ClientTable
from skiway.client.airport.filters import Selection
from skiway.errors import (
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    SchemaNotEmpty,
)


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[AirportClient]:
    """A client of the example named in the test's parameter."""
    name: str = request.param
    catalog: Catalog = load(name).catalog()
    with Server(catalog, port=0) as server, AirportClient(server.location, catalog.name, timeout_s=60) as client:
        yield client


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("db", [name], indirect=True, ids=[name])


def rows(written: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = written.rows.to_pylist()
    return found


# -- writable_table -----------------------------------------------------------------------------------------------------


def notes(db: AirportClient) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for row in db.scan("home.notes", columns=["rowid", "text", "priority"]).read_all().to_pylist()
    ]


@example("writable_table")
def test_rows_are_written_and_returned(db: AirportClient) -> None:
    added = db.insert("home.notes", pa.table({"text": ["ferns"], "priority": [2]}), returning=True)
    assert (added.count, rows(added)) == (1, [{"text": "ferns", "priority": 2}])
    urgent = db.update(
        "home.notes", {"priority": lambda priority: pc.add(priority, 5)}, where=col("text") == "ferns", returning=True
    )
    assert (urgent.count, rows(urgent)) == (1, [{"text": "ferns", "priority": 7}])
    deleted = db.delete("home.notes", where=col("priority") == 1, returning=True)
    assert (deleted.count, rows(deleted)) == (1, [{"text": "buy tea", "priority": 1}])
    assert notes(db) == [(1, "feed the cat", 3), (2, "ferns", 7)]


@example("writable_table")
def test_update_returns_its_own_columns_in_order(db: AirportClient) -> None:
    new = pa.table({"priority": [9, 8], "rowid": [1, 0]})
    changed = db.update("home.notes", new, returning=True)
    assert changed.rows is not None
    assert changed.rows.to_pydict() == {"priority": [9, 8], "rowid": [1, 0]}
    assert notes(db) == [(0, "buy tea", 8), (1, "feed the cat", 9)]


@example("writable_table")
def test_delete_returns_rows_in_the_order_of_their_ids(db: AirportClient) -> None:
    assert [row["text"] for row in rows(db.delete("home.notes", [1, 0], returning=True))] == ["feed the cat", "buy tea"]
    assert notes(db) == []


@example("writable_table")
@pytest.mark.parametrize("change", ["update", "delete"])
def test_missing_rows_change_nothing(db: AirportClient, change: str) -> None:
    before = notes(db)
    rows: Any = pa.table({"priority": [9, 9], "rowid": [0, 77]}) if change == "update" else [0, 77]
    with pytest.raises(NotFound, match="1 of 2 rows no longer exist in 'notes'"):
        getattr(db, change)("home.notes", rows)
    assert notes(db) == before


@example("writable_table")
def test_row_ids_are_not_reused(db: AirportClient) -> None:
    db.insert("home.notes", pa.table({"text": ["a"], "priority": [1]}))
    db.truncate("home.notes")
    db.insert("home.notes", pa.table({"text": ["b"], "priority": [1]}))
    assert notes(db) == [(3, "b", 1)]


# -- ddl ----------------------------------------------------------------------------------------------------------------


@example("ddl")
def test_tables_are_created_with_constraints(db: AirportClient) -> None:
    db.create_schema("shop")
    columns = pa.schema({"id": pa.int64(), "item": pa.string(), "price": pa.decimal128(9, 2)})
    db.create_table(
        "shop.orders", columns, primary_key=["id"], not_null=["item"], checks=["price > 0"], unique=[("item", "price")]
    )
    db.add_column("shop.orders", pa.field("status", pa.string()))
    db.set_default("shop.orders", "status", "'new'")
    assert db.table("shop.orders").schema.field("status").metadata == {b"default": b"'new'"}
    tea = pa.table({"id": [1], "item": ["tea"], "price": [decimal.Decimal("2.50")], "status": ["new"]})
    assert db.insert("shop.orders", tea).count == 1
    for broken, rule in [
        (tea, "primary key"),
        (tea.set_column(0, "id", [[2]]), "unique"),
        (tea.set_column(0, "id", [[2]]).set_column(2, "price", [[decimal.Decimal("-1.00")]]), "CHECK"),
        (tea.set_column(0, "id", [[2]]).set_column(1, "item", [pa.nulls(1, pa.string())]), "NOT NULL"),
    ]:
        with pytest.raises(ConstraintViolation, match=rule):
            db.insert("shop.orders", broken)
    db.rename_column("shop.orders", "item", "article")
    db.change_column_type("shop.orders", "status", pa.string(), expression="upper(status)")
    stored = db.scan("shop.orders").read_all().to_pylist()
    assert stored == [{"id": 1, "article": "tea", "price": decimal.Decimal("2.50"), "status": "NEW"}]
    with pytest.raises(SchemaNotEmpty, match="orders"):
        db.drop_schema("shop")
    db.drop_table("shop.orders")
    db.drop_schema("shop")
    assert [schema.name for schema in db.schemas()] == ["public"]


@example("ddl")
def test_python_client_sets_defaults_and_comments_that_sql_over_airport_cannot(db: AirportClient) -> None:
    palettes = db.table("public.palettes")
    assert palettes.comment == "created in Python, with a default and a comment"
    assert palettes.schema.field("id").metadata == {b"comment": b"chosen by the painter"}
    assert palettes.schema.field("name").metadata == {b"default": b"'unnamed'"}


# -- transactions -------------------------------------------------------------------------------------------------------


def booking(account: str, amount: int) -> pa.Table:
    return pa.table({"account": [account], "amount": [amount]})


def balance(db: AirportClient, account: str) -> int:
    amounts = db.scan("ledger.bookings", columns=["amount"], where=col("account") == account).read_all()["amount"]
    return int(pc.sum(amounts).as_py())


@example("transactions")
def test_two_statements_in_one_transaction_commit_together(db: AirportClient) -> None:
    with AirportClient(db.location, "bank") as other:
        with db.transaction(explicit=True) as transfer:
            db.insert("ledger.bookings", booking("Ada", -10))
            db.insert("ledger.bookings", booking("Grace", 10))
            assert (balance(db, "Ada"), balance(db, "Grace")) == (90, 110), "the transaction sees its own writes"
            assert (balance(other, "Ada"), balance(other, "Grace")) == (100, 100), "others do not"
            assert other.transaction_status(transfer.id) == "active"
        assert other.transaction_status(transfer.id) == "committed"
        assert (balance(other, "Ada"), balance(other, "Grace")) == (90, 110)


@example("transactions")
def test_error_rolls_back_both_statements(db: AirportClient) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction(explicit=True) as transfer:  # noqa: PT012
        db.insert("ledger.bookings", booking("Ada", -10))
        raise ZeroDivisionError
    assert db.transaction_status(transfer.id) == "aborted"
    assert balance(db, "Ada") == 100
    assert db.transaction_status("nonsense") is None


@example("transactions")
def test_statements_from_duckdb_autocommit(db: AirportClient) -> None:
    with pytest.raises(ZeroDivisionError), db.transaction() as begun:  # noqa: PT012  (as DuckDB: one id, no end)
        db.insert("ledger.bookings", booking("Ada", -10))
        assert db.transaction_status(begun.id) == "committed"
        db.insert("ledger.bookings", booking("Ada", -5))
        raise ZeroDivisionError
    assert balance(db, "Ada") == 85


def test_abandoned_transactions_expire() -> None:
    script = load("transactions")
    ledger = script.Ledger()
    first = ledger.begin()
    ledger.add(booking("Ada", 1).cast(script.SCHEMA), first)
    for _ in range(script.MAX_TRANSACTIONS):
        ledger.begin()
    assert ledger.status(first) is None
    with pytest.raises(NotFound, match="forgotten"):
        ledger.commit(first)
    assert ledger._own == {}


def test_transaction_ends_only_once() -> None:
    ledger = load("transactions").Ledger()
    begun = ledger.begin()
    ledger.commit(begun)
    ledger.commit(begun)
    with pytest.raises(PreconditionFailed, match="already committed"):
        ledger.rollback(begun)


# -- functions ----------------------------------------------------------------------------------------------------------


@example("functions")
def test_overloads_any_and_no_arguments(db: AirportClient) -> None:
    assert db.call_scalar("demo.twice", pa.array([21, None])).to_pylist() == [42, None]
    assert db.call_scalar("demo.twice", pa.array(["ha", None])).to_pylist() == ["haha", None]
    assert db.call_scalar("demo.type_of", pa.array([dt.date(2025, 1, 31)])).to_pylist() == ["date32[day]"]
    assert db.call_scalar("demo.motto", rows=3).to_pylist() == ["land on ice"] * 3


@example("functions")
def test_dice_are_rolled_for_each_row(db: AirportClient) -> None:
    throws = db.call_scalar("demo.dice", rows=5000).to_pylist()
    assert set(throws) == {1, 2, 3, 4, 5, 6}


@example("functions")
def test_table_functions_take_named_parameters_and_filters(db: AirportClient) -> None:
    assert db.call("demo.series", 3).read_all().to_pydict() == {"n": [0, 1, 2]}
    stepped = db.call("demo.series", 5, named={"step": 10}, where=col("n") > 20).read_all()
    assert stepped.to_pydict() == {"n": [30, 40]}
    series = ClientTable("demo", "series", pa.schema({"n": pa.int64()}))
    text = Selection(series, None, col("n") == 20).json_filters()  # the client does not apply filter text again
    assert db.call("demo.series", 5, named={"step": 10}, where=text).read_all().to_pydict() == {"n": [20]}


@example("functions")
def test_columns_depend_on_parameters(db: AirportClient) -> None:
    assert db.call("demo.grid", 2).read_all().to_pydict() == {"x0": [0, 0], "x1": [0, 1]}
    assert db.call("demo.grid", 4).read_all().num_columns == 4


@example("functions")
@pytest.mark.parametrize("size", [0, 1, 2048, 5000])
def test_totals_cover_all_batches_and_end_with_one_row(db: AirportClient, size: int) -> None:
    fares = pa.table({"fare": pa.array([1.0] * size, pa.float64())})
    result = db.call("demo.running_total", "fare", rows=fares).read_all()
    assert result["total"].to_pylist() == [float(i + 1) for i in range(size)] + [float(size)]
    assert result["fare"].to_pylist() == [1.0] * size + [None]


@example("functions")
def test_missing_column_is_reported_when_the_query_is_planned(db: AirportClient) -> None:
    with pytest.raises(InvalidArgument, match="the rows have columns city, fare"):
        db.call("demo.running_total", "price", rows=load("functions").RIDES)


# -- geometry -----------------------------------------------------------------------------------------------------------


@example("geometry")
def test_places_are_geometries_and_can_be_measured(db: AirportClient) -> None:
    cities = db.scan("earth.cities").read_all()
    oslo, lima = geometries(cities["place"])
    assert (oslo.x, lima.y) == (10.75, -12.05)
    apart = db.call_scalar("earth.degrees_apart", geometry_array([oslo, None]), geometry_array([lima, lima]))
    assert apart.to_pylist() == [shapely.distance(oslo, lima), None]


@example("geometry")
def test_points_are_accepted_and_other_geometries_rejected(db: AirportClient) -> None:
    rome = pa.table({"name": ["Rome"], "place": geometry_array(["POINT (12.5 41.9)"])})
    added = db.insert("earth.cities", rome, returning=True)
    assert added.rows is not None
    assert geometries(added.rows["place"])[0] == shapely.Point(12.5, 41.9)
    line = pa.table({"name": ["Nile"], "place": geometry_array(["LINESTRING (0 0, 1 1)"])})
    with pytest.raises(InvalidArgument, match="'place' only accepts Point geometries"):
        db.insert("earth.cities", line)
    assert db.scan("earth.cities", columns=["name"]).read_all()["name"].to_pylist() == ["Oslo", "Lima", "Rome"]
