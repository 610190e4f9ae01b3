"""Copies of Iceberg tables in AWS Glue (moto), in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from formats.glue_service import KEYS, running_glue
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


def test_rows_are_copied_once(tmp_path: Path, lake: ManagedTableFactory) -> None:
    with running_glue() as glue:
        writer = glue.writer()
        writer.create_namespace("sales")
        orders = writer.create_table("sales.orders", pa.schema({"id": pa.int64()}))
        orders.append(pa.table({"id": [1, 2]}))
        options = {"uri": glue.endpoint, "namespace": "sales", **glue.options, **KEYS}
        copy = FolderCopy(lake, tmp_path, "glue", options=options).in_mode(CopyMode.APPEND)
        assert (copy.load(), copy.load()) == (True, False)
        orders.append(pa.table({"id": [3]}))
        assert (copy.load(), copy.load()) == (True, False)
        assert copy.rows() == [(1,), (2,), (3,)]


def test_connector_is_checked_when_it_is_created(factory: ResourceFactory) -> None:
    catalog = factory.catalog()
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]))
    append = v1.CopySettings(mode=v1.COM_APPEND)
    assert connector(factory, "https://glue.eu-west-1.amazonaws.com", v1.CK_GLUE, source=source, copy=append).uri
    for uri, endpoint in (("http://10.1.2.3", ""), ("https://glue.example.com", "http://10.1.2.3:9000")):
        spec = v1.ConnectorSpec(
            display_name="closed",
            kind=v1.CK_GLUE,
            uri=uri,
            properties={"s3.endpoint": endpoint} if endpoint else {},
            source=source,
            destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
        )
        closed = SourceAccess(addresses=(AddressRule.parsed("public"),), for_callers=True)
        with pytest.raises(PermissionDenied) as refused:
            connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=SECRETS, access=closed)
        assert refused.value.key == "address.refused"
