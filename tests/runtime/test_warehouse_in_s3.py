"""A server whose warehouse is in S3 (moto): Airport clients and PyIceberg write and read the same tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from runtime.servers import Server, s3_warehouse, started
from skiway.client import AirportClient, col
from storage.homes import running_aws


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_aws() as address:
        yield address


@pytest.fixture
def server(endpoint: str, tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path / "home", *s3_warehouse(endpoint)) as running:
        yield running


def test_both_doors_write_and_read_the_same_tables(server: Server, endpoint: str) -> None:
    numbers = pa.table({"id": range(1000), "name": [f"n{number}" for number in range(1000)]})
    with AirportClient(server.addresses["airport"], "lake") as db:
        db.create_schema("shop")
        db.create_table("shop.things", numbers.schema)
        assert db.insert("shop.things", numbers).count == 1000
        assert db.update("shop.things", {"name": "changed"}, where=col("id") == 1).count == 1
        assert db.delete("shop.things", where=col("id") > 2).count == 997

        access = {"s3.endpoint": endpoint, "s3.region": "us-east-1", "s3.access-key-id": "key"}
        uri = f"{server.addresses['http']}/iceberg"
        peer = RestCatalog("lake", uri=uri, warehouse="lake", **access, **{"s3.secret-access-key": "any"})
        table = peer.load_table("shop.things")
        assert table.location().startswith("s3://skiway-test/tables/")
        assert "planted-secret" not in str(table.config | table.metadata.properties)
        table.append(pa.table({"id": [7], "name": ["by PyIceberg"]}))

        rows = db.scan("shop.things").read_all().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == [(0, "n0"), (1, "changed"), (2, "n2"), (7, "by PyIceberg")]
    assert server.stop() == 0
    assert "planted-secret" not in server.output()
