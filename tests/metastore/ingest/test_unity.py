"""Copies of tables in Unity Catalog, in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from formats.unity_service import TOKEN, running_unity
from metastore.ingest.copies import FolderCopy
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import SECRETS, connector
from skiway.config.source_access import AddressRule
from skiway.errors import PermissionDenied
from skiway.metastore import connectors
from skiway.metastore.connectors.specs import CopyMode
from skiway.model import v1
from skiway.security.source_access import SourceAccess


def test_changes_of_a_delta_table_are_copied(tmp_path: Path, lake: ManagedTableFactory) -> None:
    orders = tmp_path / "unity" / "orders"
    write_deltalake(orders, pa.table({"id": [1, 2]}))
    with running_unity() as unity:
        unity.add("main.sales.orders", f"file://{orders}")
        options = {"uri": unity.address, "namespace": "main.sales", "allowed-locations": str(tmp_path), "token": TOKEN}
        copy = FolderCopy(lake, tmp_path, "unity", options=options).in_mode(CopyMode.UPSERT, "id")
        assert (copy.load(), copy.load()) == (True, False)
        DeltaTable(orders).delete("id = 1")
        write_deltalake(orders, pa.table({"id": [3]}), mode="append")
        assert (copy.load(), copy.load()) == (True, False)
        assert copy.rows() == [(2,), (3,)]


def test_connector_is_checked_when_it_is_created(factory: ResourceFactory) -> None:
    catalog = factory.catalog()
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["main", "sales"]))
    append = v1.CopySettings(mode=v1.COM_APPEND)
    assert connector(factory, "https://unity.example.com", v1.CK_UNITY, source=source, copy=append).uri
    spec = v1.ConnectorSpec(
        display_name="closed",
        kind=v1.CK_UNITY,
        uri="http://10.1.2.3:8080",
        source=source,
        destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
    )
    closed = SourceAccess(addresses=(AddressRule.parsed("public"),), for_callers=True)
    with pytest.raises(PermissionDenied) as refused:
        connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=SECRETS, access=closed)
    assert refused.value.key == "address.refused"
