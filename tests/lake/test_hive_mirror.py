"""Tables in the metastore of Apache Hive are mirrored, and read over the lake."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from formats.apache_hive import ApacheHive, running_apache_hive
from lake.lakes import Lake, opened_lake
from skiway.config.source_access import AddressRule
from skiway.errors import NotFound, PermissionDenied, Unsupported
from skiway.formats import open_source
from skiway.metastore import connectors
from skiway.metastore.reconcile.outcomes import Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.reconcile.upstream import validate
from skiway.model import v1
from skiway.security.source_access import SourceAccess

pytestmark = [pytest.mark.needs("java", "spark"), pytest.mark.timeout(300)]

IDS = pa.schema({"Id": pa.int64()})


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheHive]:
    with running_apache_hive(tmp_path_factory.mktemp("hive")) as running:
        yield running


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with opened_lake(tmp_path) as opened:
        yield opened


def spec(lake: Lake, hive: ApacheHive, database: str, **source: Any) -> v1.ConnectorSpec:
    catalog = lake.catalog(database, connector_ref=database)
    return v1.ConnectorSpec(
        display_name=f"hive {database}",
        kind=v1.CK_HIVE,
        uri=hive.uri,
        properties={"warehouse": f"file://{hive.warehouse}"},
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=[database]), **source),
        destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
    )


def created(lake: Lake, given: v1.ConnectorSpec) -> v1.Connector:
    return connectors.create(lake.realm, v1.CreateConnectorRequest(spec=given), secrets=lake.secrets).connector


def synced(lake: Lake, connector: v1.Connector) -> Outcome:
    return Reconciler(lake.secrets).run(lake.realm, connector.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)


def ids(rows: Any) -> list[int]:
    return sorted(rows.read_all()["Id"].to_pylist())


def test_mirrored_tables_follow_changes(lake: Lake, hive: ApacheHive) -> None:
    writer = hive.writer()
    for database in ("sales", "archive"):
        writer.create_namespace(database)
    orders = writer.create_table("sales.Orders", IDS)  # Hive stores names in lower case
    orders.append(pa.table({"Id": [1, 2]}))
    bills = writer.create_table("sales.bills", IDS)
    bills.append(pa.table({"Id": [7]}))
    writer.create_table("archive.orders", IDS).append(pa.table({"Id": [0]}))
    hive.add("sales", "text_files")
    hive.add("sales", "a_view", kind="VIRTUAL_VIEW")

    given = spec(lake, hive, "sales")
    found = validate(lake.realm, v1.ValidateConnectorRequest(spec=given), secrets=lake.secrets)
    assert (found.ok, found.summary) == (True, "the upstream answers; sales has 2 tables")
    sales, archive = created(lake, given), created(lake, spec(lake, hive, "archive"))
    assert synced(lake, sales).failures == {}
    assert synced(lake, archive).failures == {}
    with lake.client("sales") as db, lake.client("archive") as old:
        assert ids(old.scan("archive.orders")) == [0]
        assert ids(db.scan("sales.orders")) == [1, 2]
        first = orders.metadata.current_snapshot_id
        orders.append(pa.table({"Id": [3]}))
        orders.delete("Id = 1")
        assert ids(db.scan("sales.orders")) == [1, 2]
        assert synced(lake, sales).failures == {}
        assert ids(db.scan("sales.orders")) == [2, 3]
        assert ids(db.scan("sales.orders", at_version=first)) == [1, 2]

        writer.drop_table("sales.bills")
        writer.create_table("sales.later", IDS).append(pa.table({"Id": [9]}))
        assert synced(lake, sales).failures == {}
        assert ids(db.scan("sales.orders")) == [2, 3]
        db.reload()
        assert ids(db.scan("sales.later")) == [9]
        with pytest.raises(NotFound, match=r"has no 'sales\.bills'"):
            db.scan("sales.bills").read_all()


def test_other_tables_are_clear_errors_and_do_not_fail_a_sync(lake: Lake, hive: ApacheHive) -> None:
    writer = hive.writer()
    writer.create_namespace("mixed")
    writer.create_table("mixed.good", IDS).append(pa.table({"Id": [1]}))
    hive.add("mixed", "text_files")
    hive.add("mixed", "a_view", kind="VIRTUAL_VIEW")
    hive.add("mixed", "outside", table_type="ICEBERG", metadata_location="file:///etc/passwd")
    with open_source("hive", hive.uri, options={"warehouse": f"file://{hive.warehouse}"}) as source:
        assert source.tables(("mixed",)) == ["good", "outside"]
        for name in ("text_files", "a_view"):
            with pytest.raises(Unsupported, match="is not an Iceberg table"):
                source.load(("mixed",), name)
        with pytest.raises(NotFound):
            source.load(("mixed",), "nothing")
        with pytest.raises(NotFound):
            source.tables(("nowhere",))

    outcome = synced(lake, created(lake, spec(lake, hive, "mixed")))
    assert list(outcome.failures) == ["mixed.outside"]
    assert "is outside of the folders that this source may read" in outcome.failures["mixed.outside"]
    with lake.client("mixed") as db:
        assert ids(db.scan("mixed.good")) == [1]


def test_address_that_the_operator_does_not_permit_is_refused(lake: Lake, hive: ApacheHive) -> None:
    public = SourceAccess(addresses=(AddressRule.parsed("public"),), for_callers=True)
    given = spec(lake, hive, "default")
    with pytest.raises(PermissionDenied) as refused:
        connectors.create(lake.realm, v1.CreateConnectorRequest(spec=given), secrets=lake.secrets, access=public)
    assert refused.value.key == "address.refused"
    guarded = Reconciler(lake.secrets, opener=partial(open_source, access=public))
    with pytest.raises(PermissionDenied) as refused:
        guarded.run(lake.realm, created(lake, given).resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
    assert refused.value.key == "address.refused"
