"""Tables in AWS Glue (moto) are mirrored, and read over the lake with the credentials of the connector."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from formats.glue_service import KEYS, running_glue
from lake.lakes import opened_lake
from skiway.metastore import connectors
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.reconcile.upstream import validate
from skiway.model import v1


def test_mirrored_tables_follow_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    keys = v1.AwsCredentials(access_key_id=KEYS["s3.access-key-id"], secret_access_key=KEYS["s3.secret-access-key"])
    with running_glue() as glue, opened_lake(tmp_path) as lake:
        writer = glue.writer()
        writer.create_namespace("sales")
        orders = writer.create_table("sales.orders", pa.schema({"id": pa.int64()}))
        orders.append(pa.table({"id": [1, 2]}))

        catalog = lake.catalog("c", connector_ref="glue")
        spec = v1.ConnectorSpec(
            display_name="glue",
            kind=v1.CK_GLUE,
            uri=glue.endpoint,
            properties=glue.options,
            auth=v1.ConnectorAuthSpec(credentials=v1.ConnectorCredentials(aws=keys)),
            source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
            destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
        )
        found = validate(lake.realm, v1.ValidateConnectorRequest(spec=spec), secrets=lake.secrets)
        assert (found.ok, found.summary) == (True, "the upstream answers; sales has 1 tables")
        made = connectors.create(lake.realm, v1.CreateConnectorRequest(spec=spec), secrets=lake.secrets).connector
        assert "planted-secret" not in str(made)

        def sync() -> None:
            outcome = Reconciler(lake.secrets).run(lake.realm, made.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
            assert outcome.failures == {}

        sync()
        with lake.client("c") as db:
            assert sorted(db.scan("sales.orders").read_all()["id"].to_pylist()) == [1, 2]
            orders.append(pa.table({"id": [3]}))
            assert sorted(db.scan("sales.orders").read_all()["id"].to_pylist()) == [1, 2]
            sync()
            assert sorted(db.scan("sales.orders").read_all()["id"].to_pylist()) == [1, 2, 3]
