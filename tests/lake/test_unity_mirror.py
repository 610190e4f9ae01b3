"""Tables in Unity Catalog are mirrored, and read over the lake."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from formats.unity_service import TOKEN, running_unity
from lake.lakes import opened_lake
from skiway.metastore import connectors
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.reconcile.upstream import validate
from skiway.model import v1


def test_mirrored_tables_follow_appends(tmp_path: Path) -> None:
    orders = tmp_path / "unity" / "orders"
    write_deltalake(orders, pa.table({"id": [1, 2]}))
    with running_unity() as unity, opened_lake(tmp_path / "lake") as lake:
        unity.add("main.sales.orders", f"file://{orders}")
        catalog = lake.catalog("c", connector_ref="unity")
        given = v1.ConnectorCredentials(bearer=v1.BearerToken(token=TOKEN))
        spec = v1.ConnectorSpec(
            display_name="unity",
            kind=v1.CK_UNITY,
            uri=unity.address,
            properties={"allowed-locations": str(tmp_path / "unity")},
            auth=v1.ConnectorAuthSpec(credentials=given),
            source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["main", "sales"])),
            destination=v1.ConnectorDestination(
                catalog_id=catalog.resource_id, namespace=v1.NamespacePath(segments=["sales"])
            ),
        )
        found = validate(lake.realm, v1.ValidateConnectorRequest(spec=spec), secrets=lake.secrets)
        assert (found.ok, found.summary) == (True, "the upstream answers; main.sales has 1 tables")
        made = connectors.create(lake.realm, v1.CreateConnectorRequest(spec=spec), secrets=lake.secrets).connector
        assert TOKEN not in str(made)

        def sync() -> None:
            outcome = Reconciler(lake.secrets).run(lake.realm, made.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
            assert outcome.failures == {}

        sync()
        with lake.client("c") as db:
            assert sorted(db.scan("sales.orders").read_all()["id"].to_pylist()) == [1, 2]
            write_deltalake(orders, pa.table({"id": [3]}), mode="append")
            sync()
            assert sorted(db.scan("sales.orders").read_all()["id"].to_pylist()) == [1, 2, 3]
