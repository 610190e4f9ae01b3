"""`count(*)` on the server is answered by the metadata, if it is exact."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.client.airport.writing import Transaction
from skiway.errors import NotFound, PermissionDenied
from skiway.lake.policies import PolicyChecks
from skiway.metastore import catalogs, namespaces, policies, tables
from skiway.model import v1
from skiway.sandbox.queries import Queries
from skiway.sql import QueryEngine

ROWS = pa.table({"id": list(range(100))})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        yield client


def count(db: AirportClient | Transaction, table: str = "s.t") -> int:
    (row,) = db.call("skiway.query", f"SELECT count(*) AS n FROM {table}").read_all().to_pylist()
    return int(row["n"])


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a query was started")

    monkeypatch.setattr(Queries, "start", refuse)


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("properties", [{}, {"write.delete.mode": "merge-on-read", "format-version": "3"}])
def test_rows_are_counted_without_a_process(lake: Lake, db: AirportClient, properties: dict[str, str]) -> None:
    lake.managed_table(ROWS.schema, **properties)
    db.reload()
    assert count(db) == 0
    db.insert("s.t", ROWS)
    assert count(db) == 100
    db.delete("s.t", where=col("id") < 30)
    assert count(db) == 70
    (name,) = db.call("skiway.query", "SELECT count(*) FROM s.t").read_all().schema.names
    assert name == "count_star()"
    (plan,) = [row for row in db.scan("skiway.plans").read_all().to_pylist() if row["snapshot_id"]][:1]
    assert plan["files_read"] == 0


@pytest.mark.usefixtures("no_process")
def test_transactions_count_the_rows_of_their_snapshot(lake: Lake, db: AirportClient) -> None:
    lake.managed_table(ROWS.schema)
    db.reload()
    db.insert("s.t", ROWS)
    with lake.client() as reader, reader.transaction() as transaction:
        assert count(transaction) == 100
        db.insert("s.t", ROWS)
        assert count(db) == 200
        assert count(transaction) == 100


@pytest.mark.usefixtures("no_process")
def test_rights_are_checked(lake: Lake, db: AirportClient) -> None:
    lake.managed_table(ROWS.schema)
    with lake.client(token="nothing") as stranger, pytest.raises((NotFound, PermissionDenied)):
        count(stranger)


def test_position_deletes_are_read(lake: Lake, db: AirportClient) -> None:
    lake.managed_table(ROWS.schema, **{"write.delete.mode": "merge-on-read"})
    db.reload()
    db.insert("s.t", ROWS)
    db.delete("s.t", where=col("id") < 30)
    assert count(db) == 70


def test_hidden_rows_are_not_counted(lake: Lake, db: AirportClient, queries: QueryEngine) -> None:
    lake.managed_table(ROWS.schema)
    db.reload()
    db.insert("s.t", ROWS)
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    namespace = namespaces.lookup(lake.realm, catalog.value.resource_id, ["s"])
    assert namespace is not None
    table = tables.find(lake.realm, namespace.resource_id.id, "t")
    assert table is not None
    spec = v1.PolicySpec(
        display_name="p",
        subjects=["user:reader"],
        objects=[table.resource_id],
        row_filter=v1.PolicyFilter(predicate="id < 7"),
    )
    policies.calls(PolicyChecks(queries)).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    with lake.client(token="reader") as reader:
        assert count(reader) == 7
    assert count(db) == 100
