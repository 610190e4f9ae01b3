"""Table references in the real client: they are read and not written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from live.clients import Client
from live.servers import LiveServer, example, serving

ORDERS = "db.files.orders"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LiveServer]:
    with serving(lambda place: example("table_refs", "archive", place), folder / "table-refs") as running:
        yield running


def test_rows_and_counts_are_those_of_the_files(client: Client, server: LiveServer) -> None:
    with client.session(server.attach()) as session:
        assert session.rows(f"SELECT id, total FROM {ORDERS} ORDER BY id") == [
            ["1", "10.0"],
            ["2", "25.5"],
            ["3", "7.25"],
        ]
        assert session.rows(f"SELECT count(*) FROM {ORDERS}") == [["3"]]
        assert session.rows(f"SELECT max(total) FROM {ORDERS} WHERE customer = 7") == [["10.0"]]


def test_insert_has_a_clear_error(client: Client, server: LiveServer) -> None:
    with client.session(server.attach()) as session:
        outcome = session.run(f"INSERT INTO {ORDERS} VALUES (4, 7, 1.0)")
        assert outcome.status == "error"
        assert "orders" in outcome.message
        assert "table reference" in outcome.message
        assert session.rows(f"SELECT count(*) FROM {ORDERS}") == [["3"]]


@pytest.mark.parametrize("statement", [f"UPDATE {ORDERS} SET total = 0", f"DELETE FROM {ORDERS}"])
def test_update_and_delete_are_an_internal_error_of_the_client(
    client: Client, server: LiveServer, statement: str
) -> None:
    """DuckDB plans them only for tables with row ids; if references had some, it could not count their rows."""
    with client.session(server.attach()) as session:
        outcome = session.run(statement)
        assert outcome.status == "fatal", "the client has changed: see docs/airport.md and docs/what-can-go-wrong.md"
        assert "BindRowIdColumns" in outcome.message
    with client.session(server.attach()) as session:
        assert session.rows(f"SELECT count(*) FROM {ORDERS}") == [["3"]]
