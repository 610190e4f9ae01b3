"""The examples that read do what they show: real servers, read over a real socket."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from airport.certificates import Authority
from examples.scripts import load
from skiway.airport import Server, Tls
from skiway.client import AirportClient, ColumnStatistics, TlsOptions, col
from skiway.errors import NotFound, PermissionDenied, Unauthorized, Unavailable

# -- basic ------------------------------------------------------------------------------------------------------------


def test_basic_has_a_table_and_two_functions() -> None:
    with Server(load("basic").catalog(), port=0) as server, AirportClient(server.location, "demo") as db:
        (sales,) = db.schemas()
        assert (sales.name, sales.comment) == ("sales", "orders and people")
        assert [function.name for function in sales.functions] == ["shout", "numbers"]
        assert db.table("sales.people").comment == "people"
        assert db.scan("sales.people", columns=["name"]).read_all().to_pydict() == {"name": ["Ada", "Grace"]}
        assert db.call("sales.numbers", 3).read_all().to_pydict() == {"n": [0, 1, 2]}


# -- filters ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def taxi(tmp_path: Path) -> Iterator[tuple[AirportClient, duckdb.DuckDBPyConnection]]:
    example = load("filters")
    example.create_file(tmp_path / "taxi.duckdb")
    with (
        duckdb.connect(tmp_path / "taxi.duckdb", read_only=True) as database,
        Server(example.catalog(database), port=0) as server,
        AirportClient(server.location, "taxi") as db,
    ):
        yield db, database


def test_file_is_queried_with_the_filter_and_the_columns_of_the_query(taxi, caplog: pytest.LogCaptureFixture) -> None:
    db, database = taxi
    caplog.set_level(logging.INFO, "examples.filters")
    dear = (col("fare") > 99.9) & (col("city") == "Rome")
    rows = db.scan("trips.rides", columns=["id"], where=dear).read_all()
    (query,) = [record.getMessage() for record in caplog.records if record.name == "examples.filters"]
    select = re.escape('query: SELECT "fare", "city", "id" FROM rides')
    assert re.fullmatch(rf"""{select} WHERE "fare" > \S*99\.9\S* AND "city" = 'Rome'""", query), query
    directly = database.execute("SELECT id FROM rides WHERE fare > 99.9 AND city = 'Rome'").to_arrow_table()
    assert rows.num_rows > 0
    assert sorted(rows["id"].to_pylist()) == sorted(directly["id"].to_pylist())


def test_filtered_rows_are_not_sent(taxi) -> None:
    db, _ = taxi
    text = db.bind("trips.rides", where=col("id") < 10).selection.json_filters()
    sent = db.scan("trips.rides", where=text).read_all()  # the client does not apply filter text again
    assert sorted(sent["id"].to_pylist()) == list(range(10))


def test_scan_without_a_filter_returns_all_rows(taxi, caplog: pytest.LogCaptureFixture) -> None:
    db, _ = taxi
    caplog.set_level(logging.INFO, "examples.filters")
    assert db.count("trips.rides") == 100_000
    assert "WHERE" not in caplog.text
    assert db.scan("trips.rides").read_all().schema.names == ["id", "city", "fare"]


# -- auth -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[Server]:
    example = load("auth")
    with Server(example.catalogs(), port=0, auth=example.Staff(example.TOKENS.get)) as server:
        yield server


@pytest.mark.parametrize(("token", "orders"), [("token-of-ada", [1, 3]), ("token-of-grace", [2])])
def test_each_caller_sees_its_own_orders(guarded: Server, token: str, orders: list[int]) -> None:
    with AirportClient(guarded.location, "shop", token=token) as db:
        assert db.scan("sales.orders", columns=["id"]).read_all().to_pydict() == {"id": orders}


def test_only_grace_can_read_the_books(guarded: Server) -> None:
    with AirportClient(guarded.location, "books", token="token-of-grace") as db:
        assert db.count("sales.all_orders") == 3
    with (
        AirportClient(guarded.location, "books", token="token-of-ada") as db,
        pytest.raises(PermissionDenied, match="ask Grace"),
    ):
        db.schemas()


def test_invalid_token_is_rejected(guarded: Server) -> None:
    with (
        AirportClient(guarded.location, "shop", token="token-of-eve") as db,
        pytest.raises(Unauthorized, match="not valid"),
    ):
        db.schemas()


def test_token_given_only_to_attach_fails_at_the_scan_with_a_hint(guarded: Server) -> None:
    with AirportClient(guarded.location, "shop", token="token-of-ada", token_on_scans=False) as db:
        assert [schema.name for schema in db.schemas()] == ["sales"]
        with pytest.raises(Unauthorized, match=f"CREATE SECRET .*SCOPE '{guarded.location}'"):
            db.scan("sales.orders").read_all()


# -- multi_catalog ----------------------------------------------------------------------------------------------------


def test_each_name_has_its_own_catalog() -> None:
    with Server(load("multi_catalog").catalogs(), port=0) as server:
        found = {name: _towns(server.location, name) for name in ("north", "south", "")}
        with AirportClient(server.location, "north") as db:
            assert db.databases().to_pydict() == {"name": ["", "north", "south"]}
        with AirportClient(server.location, "west") as db, pytest.raises(NotFound, match="'west'"):
            db.schemas()
    assert found == {"north": ["Oslo", "Turku"], "south": ["Lima"], "": ["Oslo", "Turku", "Lima"]}


def _towns(location: str, catalog: str) -> list[str]:
    with AirportClient(location, catalog) as db:
        towns: list[str] = db.scan("towns.people").read_all()["town"].to_pylist()
        return towns


# -- table_refs -------------------------------------------------------------------------------------------------------


def test_files_are_named_by_the_server_and_read_by_the_client(tmp_path: Path) -> None:
    example = load("table_refs")
    example.write_files(tmp_path)
    with Server(example.catalog(tmp_path), port=0) as server, AirportClient(server.location, "archive") as db:
        (orders,), (customers,) = db.endpoints("files.orders"), db.endpoints("files.customers")
        assert orders.call is not None
        assert customers.call is not None
        files = [str(tmp_path / f"orders-{season}.parquet") for season in ("spring", "summer")]
        assert (orders.call.name, orders.call.arguments) == ("read_parquet", (files,))
        assert (customers.call.name, customers.call.named) == ("read_csv", {"header": True})
        assert sorted(db.scan("files.orders").read_all()["id"].to_pylist()) == [1, 2, 3]
        people = db.scan("files.customers").read_all()
        assert people.to_pydict() == {"id": [7, 8], "name": ["Ada", "Grace"]}
        assert people.schema == example.CUSTOMERS


# -- time_travel ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "prices", "columns"),
    [
        ({}, [2.5, 4.5], ["item", "price", "vegan"]),
        ({"at_version": 1}, [2.0, 4.0], ["item", "price"]),
        ({"at_version": 2}, [2.5, 4.5], ["item", "price"]),
        ({"at_version": 3}, [2.5, 4.5], ["item", "price", "vegan"]),
        ({"at_timestamp": "2025-01-31 23:59:59"}, [2.0, 4.0], ["item", "price"]),
        ({"at_timestamp": "2025-02-01 00:00:00"}, [2.5, 4.5], ["item", "price"]),
        ({"at_timestamp": "2026-01-01"}, [2.5, 4.5], ["item", "price", "vegan"]),
    ],
)
def test_rows_and_columns_are_those_of_the_requested_time(
    at: dict[str, object], prices: list[float], columns: list[str]
) -> None:
    with Server(load("time_travel").catalog(), port=0) as server, AirportClient(server.location, "shop") as db:
        table = db.scan("menu.prices", **at).read_all()
    assert table["price"].to_pylist() == prices
    assert table.schema.names == columns


@pytest.mark.parametrize("at", [{"at_version": 0}, {"at_version": 4}, {"at_timestamp": "2024-12-31"}])
def test_time_before_the_table_existed(at: dict[str, object]) -> None:
    with (
        Server(load("time_travel").catalog(), port=0) as server,
        AirportClient(server.location, "shop") as db,
        pytest.raises(NotFound, match="did not exist"),
    ):
        db.scan("menu.prices", **at)


# -- column_statistics ------------------------------------------------------------------------------------------------


def test_statistics_match_the_rows() -> None:
    example = load("column_statistics")
    with Server(example.catalog(), port=0) as server, AirportClient(server.location, "weather") as db:
        assert db.table("north.readings").has_statistics
        assert db.statistics("north.readings", "celsius") == ColumnStatistics(
            min=-11.25, max=1.0, has_null=True, has_not_null=True, distinct_count=3
        )
        assert db.statistics("north.readings", "station") == ColumnStatistics(
            min="Oslo", max="Turku", has_null=False, has_not_null=True, distinct_count=3
        )
        assert db.scan("north.readings").read_all() == example.READINGS


# -- tls --------------------------------------------------------------------------------------------------------------


def test_tls_client_that_trusts_the_certificate_can_read(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = Tls(pair.certificate, pair.key)
    with Server(load("tls").catalog(), host="localhost", port=0, tls=tls) as server:
        assert server.location.startswith("grpc+tls://localhost:")
        trusting = TlsOptions(root_certificates=authority.certificate)
        with AirportClient(server.location, "vault", tls=trusting) as db:
            assert db.scan("safe.notes").read_all() == pa.table({"note": ["nobody on the way can read this"]})
        with (
            AirportClient(server.location, "vault", timeout_s=200) as db,
            pytest.raises(Unavailable, match=server.location.replace("+", r"\+")),
        ):
            db.schemas()
