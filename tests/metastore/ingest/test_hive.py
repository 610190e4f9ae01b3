"""Copies of Iceberg tables in a Hive Metastore, in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from formats.hive_service import running_hive
from metastore.ingest.copies import FolderCopy
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import SECRETS, connector, iceberg
from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, PermissionDenied, SkiwayError
from skiway.metastore import connectors
from skiway.metastore.connectors.specs import CopyMode
from skiway.model import v1
from skiway.security.source_access import SourceAccess

SALES = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]))


def test_rows_are_copied_once(tmp_path: Path, lake: ManagedTableFactory) -> None:
    orders = iceberg(tmp_path).create_table("sales.orders", pa.schema({"id": pa.int64()}))
    with running_hive() as hive:
        options = {"uri": hive.address, "namespace": "sales", "warehouse": str(tmp_path / "warehouse")}
        copy = FolderCopy(lake, tmp_path, "hive", options=options).in_mode(CopyMode.APPEND)
        for ids in ([1, 2], [3]):
            orders.append(pa.table({"id": ids}))
            hive.add_iceberg("sales.orders", orders.metadata_location)
            assert (copy.load(), copy.load()) == (True, False)
        assert copy.rows() == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("uri", "properties", "error", "key"),
    [
        ("thrift://10.1.2.3:9083", {}, PermissionDenied, "address.refused"),
        ("thrift://hive.example.com,thrift://localhost", {}, PermissionDenied, "address.refused"),
        ("thrift://hive.example.com", {"s3.endpoint": "http://10.1.2.3:9000"}, PermissionDenied, "address.refused"),
        ("thrift://hive.example.com", {"warehouse": "/etc/hive"}, PermissionDenied, "location.refused"),
        ("thrift://hive.example.com", {"allowed-locations": "/root/.ssh"}, PermissionDenied, "location.refused"),
        ("http://hive.example.com:9083", {}, InvalidArgument, "location.refused"),
        ("thrift://hive.example.com,thrift://alice:planted@hive", {}, InvalidArgument, "location.refused"),
    ],
)
def test_connector_is_checked_when_it_is_created(
    factory: ResourceFactory, uri: str, properties: dict[str, str], error: type[SkiwayError], key: str
) -> None:
    public = SourceAccess(addresses=(AddressRule.parsed("public"),), for_callers=True)
    spec = v1.ConnectorSpec(
        display_name="closed",
        kind=v1.CK_HIVE,
        uri=uri,
        properties=properties,
        source=SALES,
        destination=v1.ConnectorDestination(catalog_id=factory.catalog().resource_id),
    )
    with pytest.raises(error) as refused:
        connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=SECRETS, access=public)
    assert refused.value.key == key
    assert "planted" not in str(refused.value)


def test_connector_can_copy(factory: ResourceFactory) -> None:
    factory.catalog()
    append = v1.CopySettings(mode=v1.COM_APPEND)
    assert connector(factory, "thrift://a:9083,thrift://b", v1.CK_HIVE, source=SALES, copy=append).uri
