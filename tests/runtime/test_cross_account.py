"""One account cannot read the tables of another through a connector that points at the server's own files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

from metastore.upstreams import iceberg
from runtime.servers import Server, s3_warehouse, started
from skiway.client import AirportClient, Metastore
from skiway.errors import SkiwayError
from skiway.model import v1
from storage.homes import running_aws

ROWS = pa.table({"id": [1, 2], "salary": ["planted-1", "planted-2"]})
EVERY_FOLDER = {"iceberg.source": "filesystem"}
BY_CLI = v1.ConnectorAuthSpec(credentials=v1.ConnectorCredentials(cli=v1.CliCredentials(provider="aws")))


def victim_writes(server: Server) -> str:
    """Create a table with rows in the account `default`; returns the URI of its metadata file."""
    with AirportClient(server.addresses["airport"], "lake") as db, Metastore(server.address) as lake:
        db.create_schema("hr")
        db.create_table("hr.people", ROWS.schema)
        db.insert("hr.people", ROWS)
        (table,) = lake.tables("lake.hr")
        location: str = table.message.metadata_location
    return location


@dataclass
class Mallory:
    """A caller in another account, who may manage connectors there."""

    lake: Metastore
    numbers: Iterator[int]

    def finds(self, uri: str, *, properties: Mapping[str, str] | None = None, **how: Any) -> list[str]:
        """The tables that a new connector mirrors, or the key of the error that refuses it."""
        name = f"loot{next(self.numbers)}"
        try:
            self.lake.catalogs.create(name, connector_ref=name)
            made = {"kind": "parquet", "source": v1.ConnectorSource(), "properties": properties, **how}
            self.lake.connectors.create(name, uri=uri, catalog=name, namespace="loot", **made)
            return self.syncs(name)
        except SkiwayError as error:
            return ["leaked" if "planted" in str(error) else error.key]

    def syncs(self, name: str) -> list[str]:
        """The tables that a connector mirrors, or the key of the error that refuses it."""
        try:
            answer = self.lake.connectors.capture(name)
            assert "planted" not in str(answer)
            if "is not open to sources" in str(answer):
                return ["location.refused"]
            return [table.name for table in self.lake.tables(f"{name}.loot")]
        except SkiwayError as error:
            return ["leaked" if "planted" in str(error) else error.key]


@contextmanager
def mallory(server: Server) -> Iterator[Mallory]:
    with Metastore(server.address) as lake:
        account = lake.accounts.create("mallory").id
    with Metastore(server.address, account=account) as lake:
        yield Mallory(lake, count())


def test_warehouse_on_disk_is_closed_to_connectors(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    own = iceberg(data)  # a catalog that the attacker writes
    own.create_table("sales.orders", schema=ROWS.schema)
    with started(home) as server, mallory(server) as caller:
        metadata = victim_writes(server).removeprefix("file://")
        table = metadata.rpartition("/metadata/")[0]
        (data / "link").symlink_to(table)
        (data / "harmless").mkdir()
        (data / "moving").symlink_to(data / "harmless")
        with own.engine.begin() as database:
            database.exec_driver_sql("UPDATE iceberg_tables SET metadata_location = ?", (metadata,))
        sales = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]))
        catalog = {"kind": "iceberg", "source": sales}
        for uri, how in {
            table: {},
            f"/{table}": {},
            f"{table}/data": {},
            f"file://localhost{table}//data": {},
            str(data / "link"): {},
            str(home / "warehouse"): {"kind": "iceberg", "properties": EVERY_FOLDER},
            str(home): {},
            f"{metadata}": {"kind": "iceberg", "properties": EVERY_FOLDER},
            f"sqlite:///{data}/catalog.db": {**catalog, "properties": {"allowed-locations": str(home / "warehouse")}},
            f"sqlite:///{data}//catalog.db": catalog,
            f"sqlite:///{home}/skiway.db": catalog,
        }.items():
            assert caller.finds(uri, **how) == ["location.refused"], uri
        assert caller.finds(str(data / "moving")) != ["location.refused"]
        name = f"loot{next(caller.numbers) - 1}"
        (data / "moving").unlink()
        (data / "moving").symlink_to(f"{table}/data")
        assert caller.syncs(name) == ["location.refused"]
        assert server.stop() == 0
        assert "planted" not in server.output()


def test_warehouse_in_s3_is_closed_to_connectors(tmp_path: Path) -> None:
    with (
        running_aws() as endpoint,
        started(tmp_path / "home", *s3_warehouse(endpoint)) as server,
        mallory(server) as caller,
    ):
        metadata = victim_writes(server)
        table = metadata.rpartition("/metadata/")[0]
        there = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
        for uri in (table, f"{table}/data", table.replace("s3:", "s3a:"), metadata, "s3://skiway-test/tables"):
            for kind in ("parquet", "iceberg"):
                how = {"kind": kind, "properties": {**EVERY_FOLDER, **there}}
                assert caller.finds(uri, **how) == ["location.refused"], (kind, uri)
        assert caller.finds(table.replace("/tables/", "/./tables/"), properties=there) == ["location.refused"]
        assert caller.finds("s3://skiway-test/elsewhere", auth=BY_CLI, properties=there) == ["credentials.ambient"]
        # The bucket without the warehouse is open, as far as the credentials of the connector reach.
        s3 = S3FileSystem(access_key="k", secret_key="s", endpoint_override=endpoint, region="us-east-1")
        pq.write_table(ROWS, "skiway-test/public/people.parquet", filesystem=s3)
        assert caller.finds("s3://skiway-test/", properties=there) == ["public"]
