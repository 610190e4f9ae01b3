"""A server whose warehouse is in S3 (moto): Airport clients and PyIceberg write and read the same tables."""

from __future__ import annotations

import time
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


def test_settings_let_clients_work_without_keys(endpoint: str, tmp_path: Path) -> None:
    vending = {
        "warehouse.vending.credentials": "sts",
        "warehouse.vending.sts.role_arn": "arn:aws:iam::123456789012:role/lake",
        "warehouse.vending.sts.duration_seconds": "900",
        "warehouse.vending.remote_signing": "true",
    }
    arguments = [argument for key, value in vending.items() for argument in ("--set", f"{key}={value}")]
    with started(tmp_path / "home", *s3_warehouse(endpoint), *arguments) as server:
        lake = RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake")
        lake.create_namespace("shop")
        table = lake.create_table("shop.things", pa.schema({"id": pa.int64()}))
        table.append(pa.table({"id": [1, 2]}))
        assert table.scan().to_arrow().num_rows == 2
        assert table.io.properties["s3.access-key-id"].startswith("ASIA")
        valid_s = int(table.io.properties["s3.session-token-expires-at-ms"]) / 1000 - time.time()
        assert 800 < valid_s <= 901
        with_signer = {"header.X-Iceberg-Access-Delegation": "remote-signing"}
        signing = RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake", **with_signer)
        config = signing.load_table("shop.things").config
        assert config["s3.remote-signing-enabled"] == "true"
        assert not {name for name in config if "key" in name or "token" in name}
        assert server.stop() == 0
        assert "planted-secret" not in server.output()
