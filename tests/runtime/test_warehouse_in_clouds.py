"""A server with its warehouse in an emulator of Google Cloud Storage or Azure: create, write, read, delete and sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from formats.google_key_file import written_key_file
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from runtime.servers import Server, skiway, started
from skiway.client import AirportClient, col
from skiway.config import load
from skiway.errors import PreconditionFailed
from skiway.formats import location
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.clock import utc_now
from skiway.metastore import managed
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.runtime.lake import warehouse_of
from skiway.storage import Stores, open_stores
from storage.cloud_emulators import AZURE_ACCOUNT, AZURE_KEY, azurite, fake_gcs
from vending.token_exchange import token_exchange

pytestmark = pytest.mark.full

NUMBERS = pa.table({"id": range(1000), "name": [f"n{number}" for number in range(1000)]})


@dataclass(frozen=True)
class Cloud:
    """The settings of a server with a warehouse in an emulator."""

    settings: dict[str, str]

    @property
    def arguments(self) -> list[str]:
        return [argument for key, value in self.settings.items() for argument in ("--set", f"{key}={value}")]

    def warehouse(self, name: str) -> Warehouse:
        """A warehouse of its own."""
        return warehouse_of(load(flags={**self.settings, "warehouse.uri": f"{self.settings['warehouse.uri']}-{name}"}))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("gcs", marks=pytest.mark.needs("fake-gcs-server")),
        pytest.param("azure", marks=pytest.mark.needs("azurite")),
    ],
)
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param == "gcs":
        with fake_gcs() as endpoint:
            yield Cloud({"warehouse.uri": "gs://lake/tables", "storage.gcs.endpoint": endpoint})
        return
    with azurite() as endpoint:
        yield Cloud(
            {
                "warehouse.uri": f"abfss://lake@{AZURE_ACCOUNT}.dfs.core.windows.net/tables",
                "storage.azure.endpoint": endpoint,
                "storage.azure.account_name": AZURE_ACCOUNT,
                "storage.azure.account_key": AZURE_KEY,
            }
        )


@pytest.fixture
def server(cloud: Cloud, tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path / "home", *cloud.arguments) as running:
        yield running


def test_tables_are_created_written_read_and_dropped(server: Server, cloud: Cloud, tmp_path: Path) -> None:
    with AirportClient(server.addresses["airport"], "lake") as db:
        db.create_schema("shop")
        db.create_table("shop.things", NUMBERS.schema)
        assert db.insert("shop.things", NUMBERS).count == 1000
        assert db.update("shop.things", {"name": "changed"}, where=col("id") == 1).count == 1
        assert db.delete("shop.things", where=col("id") > 2).count == 997
        rows = db.scan("shop.things").read_all().sort_by("id").to_pylist()
        assert [(row["id"], row["name"]) for row in rows] == [(0, "n0"), (1, "changed"), (2, "n2")]
    # PyIceberg reads files in Azure only with adlfs, and needs some token for GCS.
    token = {"gcs.oauth2.token": "any", "gcs.oauth2.token-expires-at": "4000000000000"}
    lake = RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake", **token)
    if cloud.settings["warehouse.uri"].startswith("gs:"):
        table = lake.load_table("shop.things")
        table.append(NUMBERS.slice(7, 1))
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 7]
    place = location(lake.load_table("shop.things").location())
    assert str(place).startswith(f"{cloud.settings['warehouse.uri']}/")
    lake.purge_table("shop.things")
    with pytest.raises(Exception, match="things"):
        lake.load_table("shop.things")
    assert warehouse_of(load(flags=cloud.settings)).files(str(place)).walk(place) == [], "purged files are deleted"
    assert skiway("gc", "--home", tmp_path / "home", *cloud.arguments).returncode == 0
    assert server.stop() == 0
    assert AZURE_KEY not in server.output()


@pytest.mark.needs("fake-gcs-server")
def test_pyiceberg_uses_vended_tokens(tmp_path: Path) -> None:
    with fake_gcs() as endpoint, token_exchange() as exchange:
        cloud = Cloud(
            {
                "warehouse.uri": "gs://lake/tables",
                "storage.gcs.endpoint": endpoint,
                "storage.gcs.service_account_file": str(written_key_file(tmp_path, exchange.own_tokens)),
                "warehouse.vending.gcs.enabled": "true",
                "warehouse.vending.gcs.token_endpoint": exchange.endpoint,
            }
        )
        with started(tmp_path / "home", *cloud.arguments) as server:
            lake = RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake")
            lake.create_namespace("shop")
            table = lake.create_table("shop.things", NUMBERS.schema)
            assert table.io.properties["gcs.oauth2.token"] == "limited-1"
            table.append(NUMBERS)
            assert lake.load_table("shop.things").scan().to_arrow().num_rows == 1000
            assert server.stop() == 0
            assert "own-token" not in server.output()
            assert "limited-" not in server.output()


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as found:
        yield found


def test_sweep_deletes_unreferenced_files_only(cloud: Cloud, stores: Stores) -> None:
    tables = ManagedTableFactory(ResourceFactory(stores, utc_now), cloud.warehouse("sweep"))
    table = tables.append(tables.create(), 1, 2)
    (lost,) = tables.write(table, 3)
    folder = location(table.metadata.location)
    before = {each.location for each in table.files.walk(folder)}
    later = datetime.now(UTC) + timedelta(days=8)
    swept = sweep_warehouse(stores, tables.warehouse, clock=lambda: later, dry_run=False)
    assert str(location(lost.file_path)) in map(str, swept.removed)
    left = {each.location for each in table.files.walk(folder)}
    assert left == before - {location(each) for each in swept.removed}
    assert tables.load(table).metadata.current_snapshot() is not None
    managed.drop(tables.home, tables.warehouse, table.table.resource_id)
    sweep_warehouse(stores, tables.warehouse, clock=lambda: later + timedelta(days=8), dry_run=False)
    assert table.files.walk(folder) == []


def test_large_files_are_written_in_parts_and_read_in_ranges(cloud: Cloud) -> None:
    warehouse = cloud.warehouse("large")
    files, uri = warehouse.files(warehouse.folder("t")), warehouse.folder("t", "large = ü.bin")
    content = bytes(range(256)) * 100_000
    files.write(uri, content)
    assert files.read(uri, offset=20_000_001, size=7) == content[20_000_001:20_000_008]
    assert files.read(uri) == content
    with files.open(uri) as file:
        assert file.size() == len(content)
        file.seek(-3, 2)
        assert (file.tell(), file.read(), file.read()) == (len(content) - 3, content[-3:], b"")
    found = files.find(uri)
    assert found is not None
    assert files.walk(location(warehouse.folder("t"))) == [found], "with the same etag"
    files.check_unchanged(uri, found.etag)
    files.remove([uri, uri])
    assert files.find(uri) is None
    with pytest.raises(PreconditionFailed, match="is missing"):
        files.read(uri)
