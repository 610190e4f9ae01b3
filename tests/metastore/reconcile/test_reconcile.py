"""Reconciliation: upstream tables are mirrored once, and a failing table does not stop the others."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.resource_factory import ResourceFactory, behavior, mask
from metastore.upstreams import (
    CORE,
    SECRETS,
    STATS,
    connector,
    current_of,
    iceberg,
    iceberg_connector,
    mirrored,
    parquet,
    run,
    snapshots_of,
)
from skiway.errors import Cancelled, Conflict, InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.metastore import connectors, quality, statistics
from skiway.metastore.reconcile.mirroring import mirrored_tables
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler, capture
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.resources import namespaces, tables
from skiway.model import v1

pytestmark = pytest.mark.parametrize("stores", ["memory"], indirect=True)


@pytest.fixture(autouse=True)
def lake(factory: ResourceFactory) -> v1.Catalog:
    return factory.catalog()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "upstream"


class Profiler:
    """Records what it profiles, and writes statistics like a real profiler."""

    def __init__(self) -> None:
        self.profiled: list[tuple[str, int]] = []

    def __call__(self, realm, table_id, snapshot, *, handle, **_) -> None:
        self.profiled.append((handle.name.name, snapshot.id))
        rows = sum(handle.files(snapshot)["row_count"].to_pylist())
        stats = v1.TableStats(row_count=rows)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))


# --- metadata pass ----------------------------------------------------------------------------------------------------


def test_folder_of_parquet_files_becomes_tables_with_snapshots_and_files(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1, 2, 3], name=["Ada", "Grace", None])
    parquet(folder / "sales" / "orders" / "year=2025", "a", id=[1])
    parquet(folder / "sales" / "orders" / "year=2026", "b", id=[2, 3])
    created = connector(factory, str(folder))
    outcome = run(factory, created)
    assert (outcome.scanned, outcome.changed, outcome.failures) == (2, 2, {})
    found = mirrored(factory)
    assert set(found) == {"files.people", "sales.orders"}
    people = found["files.people"]
    assert people.upstream.connector_id == created.resource_id
    assert (list(people.upstream.namespace_path), people.upstream.table_display_name) == ([], "people")
    assert [each["name"] for each in json.loads(people.schema_json)["fields"]] == ["id", "name"]
    orders = found["sales.orders"]
    snapshot = current_of(factory, orders)
    files = statistics.file_statistics(factory.home, orders.resource_id.id, snapshot.snapshot_id)
    assert sorted(files["row_count"].to_pylist()) == [1, 2]
    assert [json.loads(each) for each in files["partition_data_json"].to_pylist()] == [
        {"year": "2025"},
        {"year": "2026"},
    ]


@behavior(71)
def test_second_run_writes_nothing(factory: ResourceFactory, folder, calls):
    parquet(folder, "people", id=[1, 2, 3])
    catalog = iceberg(folder / "ice")
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1]}))
    plain, ice = (
        connector(factory, str(folder / "people.parquet")),
        iceberg_connector(factory, folder / "ice", name="ice"),
    )
    for each in (plain, ice):
        assert run(factory, each).changed == 1
    # The first run may have resolved destinations, which the second finds.
    pointers = list(factory.stores.pointers.scan(""))
    calls.reset()
    for each in (plain, ice):
        again = run(factory, each)
        assert (again.scanned, again.changed, again.failures) == (1, 0, {})
    assert {name.partition(".")[2] for name in calls.counts} <= {"get", "scan", "page"}
    assert list(factory.stores.pointers.scan("")) == pointers


@pytest.mark.parametrize("count", [2, 6])
def test_second_run_lists_the_mirrored_tables_once(factory: ResourceFactory, folder, monkeypatch, count):
    """The reads of a sync are proportional to the number of tables."""
    for number in range(count):
        parquet(folder, f"table_{number}", id=[number])
    created = connector(factory, str(folder))
    run(factory, created)
    lists: list[str] = []
    monkeypatch.setattr(
        "skiway.metastore.reconcile.reconciler.mirrored_tables",
        lambda realm, namespace_id, connector_id: (
            lists.append(namespace_id) or mirrored_tables(realm, namespace_id, connector_id)
        ),
    )
    again = run(factory, created)
    assert (again.scanned, again.changed, len(lists)) == (count, 0, 1)


def test_table_that_is_dropped_during_a_run_is_mirrored_again(factory: ResourceFactory, folder):
    for name in ("a", "b"):
        parquet(folder, name, id=[1])
    created = connector(factory, str(folder))
    run(factory, created)
    dropped = mirrored(factory)["files.b"].resource_id

    class DroppingB(Control):
        """Drops `b` while `a` is synced: by then, the tables are listed."""

        def report(self, progress):
            if progress.tables_scanned == 2 and dropped.id in {
                each.resource_id.id for each in mirrored(factory).values()
            }:
                tables.delete(factory.home, v1.DeleteTableRequest(table_id=dropped))

    outcome = run(factory, created, control=DroppingB())
    assert (outcome.scanned, outcome.changed, outcome.failures) == (2, 1, {})
    assert mirrored(factory)["files.b"].resource_id != dropped


@behavior(71)
def test_new_snapshots_are_added_and_known_ones_are_unchanged(factory: ResourceFactory, folder):
    catalog = iceberg(folder)
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1, 2]}))
    created = iceberg_connector(factory, folder)
    run(factory, created)
    (table,) = mirrored(factory).values()
    (first,) = snapshots_of(factory, table)
    orders.append(pa.table({"id": [3]}))
    assert run(factory, created).changed == 1
    second, same = snapshots_of(factory, table)
    assert same == first
    assert second.parent_snapshot_id == first.snapshot_id
    assert current_of(factory, table) == second
    files = statistics.file_statistics(factory.home, table.resource_id.id, second.snapshot_id)
    assert sorted(files["row_count"].to_pylist()) == [1, 2]


def test_upstream_rollback_makes_the_older_snapshot_current(factory: ResourceFactory, folder):
    catalog = iceberg(folder)
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1]}))
    first = orders.current_snapshot().snapshot_id
    orders.append(pa.table({"id": [2]}))
    created = iceberg_connector(factory, folder)
    run(factory, created)
    (table,) = mirrored(factory).values()
    assert current_of(factory, table).snapshot_id == orders.current_snapshot().snapshot_id
    orders.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    assert run(factory, created).changed == 1
    assert current_of(factory, table).snapshot_id == first
    assert run(factory, created).changed == 0


def test_changed_schema_and_properties_are_mirrored(factory: ResourceFactory, folder):
    catalog = iceberg(folder)
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    created = iceberg_connector(factory, folder)
    run(factory, created)
    with orders.update_schema() as change:
        from pyiceberg.types import StringType

        change.add_column("name", StringType())
    with orders.transaction() as change:
        change.set_properties({"owner": "ada", "s3.secret-access-key": "x", "password": "hidden"})
    assert run(factory, created).changed == 1
    (table,) = mirrored(factory).values()
    assert [each["name"] for each in json.loads(table.schema_json)["fields"]] == ["id", "name"]
    assert table.properties["owner"] == "ada"
    assert "hidden" not in str(table)


@pytest.mark.parametrize("versions", [[2], [2, 3], [2, 3, 4]], ids=["fewer", "as many", "more"])
def test_delta_table_that_was_created_again_replaces_its_mirror(factory: ResourceFactory, folder, versions):
    from deltalake import write_deltalake

    def created_anew(rows: list[int]) -> None:
        shutil.rmtree(folder / "people", ignore_errors=True)
        for row in rows:
            write_deltalake(str(folder / "people"), pa.table({"id": [row] * row}), mode="append")

    created_anew([5, 6])
    created = connector(factory, str(folder), v1.CK_DELTA, properties={"delta.source": "filesystem"})
    run(factory, created)
    run(factory, created, STATS, Profiler())
    table = mirrored(factory)["files.people"]
    assert statistics.table_statistics(factory.home, table.resource_id.id, 0).row_count == 5
    created_anew(versions)
    assert run(factory, created).changed == 1
    assert sorted(each.snapshot_id for each in snapshots_of(factory, table)) == list(range(len(versions)))
    assert current_of(factory, table).snapshot_id == len(versions) - 1
    for number in range(len(versions)):
        files = statistics.file_statistics(factory.home, table.resource_id.id, number)
        assert sum(files["row_count"].to_pylist()) == sum(versions[: number + 1])
        assert statistics.table_statistics(factory.home, table.resource_id.id, number) is None
    assert run(factory, created).changed == 0


def test_delta_versions_including_0_are_snapshots(factory: ResourceFactory, folder):
    from deltalake import write_deltalake

    write_deltalake(str(folder / "people"), pa.table({"id": [1, 2]}))
    write_deltalake(str(folder / "people"), pa.table({"id": [3]}), mode="append")
    created = connector(factory, str(folder), v1.CK_DELTA, properties={"delta.source": "filesystem"})
    assert run(factory, created).failures == {}
    (table,) = mirrored(factory).values()
    assert [each.snapshot_id for each in snapshots_of(factory, table)] == [1, 0]
    assert current_of(factory, table).snapshot_id == 1
    assert table.upstream.format == v1.TF_DELTA
    assert run(factory, created).changed == 0


def test_partition_values_are_those_of_each_version(factory: ResourceFactory, folder):
    from deltalake import write_deltalake

    rows = pa.table({"id": [1], "a": ["p"], "b": ["q"]})
    for columns in (["a"], ["b", "a"], ["b"]):
        write_deltalake(str(folder / "t"), rows, partition_by=columns, mode="overwrite", schema_mode="overwrite")
    created = connector(factory, str(folder), v1.CK_DELTA, properties={"delta.source": "filesystem"})
    assert run(factory, created).failures == {}
    (table,) = mirrored(factory).values()
    files = [statistics.file_statistics(factory.home, table.resource_id.id, version) for version in range(3)]
    assert [json.loads(each["partition_data_json"][0].as_py()) for each in files] == [
        {"a": "p"},
        {"b": "q", "a": "p"},
        {"b": "q"},
    ]


def test_only_a_changed_folder_gets_a_new_snapshot(factory: ResourceFactory, folder):
    parquet(folder / "people", "a", id=[1])
    created = connector(factory, str(folder))
    run(factory, created)
    parquet(folder / "people", "b", id=[2])
    assert run(factory, created).changed == 1
    (table,) = mirrored(factory).values()
    assert [each.snapshot_id for each in snapshots_of(factory, table)] == [2, 1]
    assert run(factory, created).changed == 0


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (v1.ConnectorPolicy(scope=v1.SNS_CURRENT), [4]),
        (v1.ConnectorPolicy(scope=v1.SNS_LATEST_N, latest_n=2), [4, 3]),
        (v1.ConnectorPolicy(scope=v1.SNS_ALL), [4, 3, 2, 1, 0]),
        (v1.ConnectorPolicy(), [4, 3, 2, 1, 0]),
    ],
)
def test_policy_selects_the_snapshots_to_mirror(factory: ResourceFactory, folder, policy, expected):
    from deltalake import write_deltalake

    for number in range(5):
        write_deltalake(str(folder / "people"), pa.table({"id": [number]}), mode="append")
    created = connector(factory, str(folder), v1.CK_DELTA, properties={"delta.source": "filesystem"}, policy=policy)
    run(factory, created)
    (table,) = mirrored(factory).values()
    assert [each.snapshot_id for each in snapshots_of(factory, table)] == expected


def test_full_rescan_repairs_only_what_differs(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1, 2, 3])
    created = connector(factory, str(folder))
    run(factory, created)
    (table,) = mirrored(factory).values()
    before = statistics.file_statistics(factory.home, table.resource_id.id, 1)
    key = keys.statistics("a1", table.resource_id.id, 1, of="files")
    pointer = factory.stores.pointers.get(key)
    assert pointer is not None
    assert run(factory, created, full_rescan=True).changed == 0
    factory.stores.pointers.compare_and_delete(key, expect=pointer.version)
    assert run(factory, created).changed == 0
    assert run(factory, created, full_rescan=True).changed == 1
    assert statistics.file_statistics(factory.home, table.resource_id.id, 1) == before


# --- failures ---------------------------------------------------------------------------------------------------------


@behavior(71)
def test_failing_table_does_not_stop_the_others(factory: ResourceFactory, folder, caplog):
    parquet(folder, "a", id=[1])
    parquet(folder, "z", id=[1])
    (folder / "broken.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    outcome = run(factory, connector(factory, str(folder)))
    assert (outcome.scanned, outcome.changed) == (3, 2)
    assert list(outcome.failures) == ["broken"]
    assert "broken.parquet" in outcome.failures["broken"]
    assert outcome.message.startswith("1 of 3 tables failed: broken: ")
    assert [record.levelname for record in caplog.records if "table broken of connector" in record.message] == [
        "WARNING"
    ]
    assert set(mirrored(factory)) >= {"files.a", "files.z"}


def test_missing_upstream_fails_the_run(factory: ResourceFactory, folder):
    with pytest.raises(NotFound):
        run(factory, connector(factory, str(folder / "nowhere")))


def test_table_of_another_owner_is_not_overwritten(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1])
    theirs = factory.table("people", namespace=factory.namespace("files"))
    outcome = run(factory, connector(factory, str(folder)))
    assert "another table or view has this name" in outcome.failures["people"]
    assert tables.get(factory.home, v1.GetTableRequest(table_id=theirs.resource_id)).table == theirs


@behavior(74)
def test_paused_connector_is_rejected(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1])
    created = connector(factory, str(folder))
    request = v1.UpdateConnectorRequest(
        connector_id=created.resource_id, spec=v1.ConnectorSpec(state=v1.CS_PAUSED), update_mask=mask("state")
    )
    connectors.calls(SECRETS).update(factory.home, request)
    with pytest.raises(PreconditionFailed, match="paused"):
        run(factory, created)
    assert mirrored(factory) == {}


class StopAt(Control):
    """Stops the run at the n-th check."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cancelled("stop", key="job.cancelled")


def test_run_stopped_at_any_check_is_finished_by_the_next(factory: ResourceFactory, folder):
    parquet(folder, "a", id=[1])
    parquet(folder, "b", id=[2])
    created = connector(factory, str(folder))
    stopped = 0
    for looks in range(100):
        try:
            run(factory, created, control=StopAt(looks))
        except Cancelled:
            stopped += 1
            continue
        break
    assert stopped > 4
    assert set(mirrored(factory)) == {"files.a", "files.b"}
    assert all(len(snapshots_of(factory, table)) == 1 for table in mirrored(factory).values())


class StopOnceAt(StopAt):
    """Stops the run only once."""

    def check(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise Cancelled("stop", key="job.cancelled")


@pytest.mark.parametrize("looks", range(6))
def test_stopping_is_not_a_table_failure(factory: ResourceFactory, folder, looks):
    parquet(folder, "a", id=[1])
    created = connector(factory, str(folder))
    with pytest.raises(Cancelled):
        run(factory, created, control=StopOnceAt(looks))


# --- selected tables and destinations ---------------------------------------------------------------------------------


@pytest.fixture
def three(folder) -> Any:
    catalog = iceberg(folder)
    for name in ("orders", "people", "people_old"):
        catalog.create_table(f"sales.{name}", schema=pa.schema({"id": pa.int64()}))
    return folder


def source(**more: Any) -> v1.ConnectorSource:
    return v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]), **more)


def test_globs_select_tables(factory: ResourceFactory, three):
    chosen = source(include_tables=["people*", "sales.ord*"], exclude_tables=["*_old"])
    run(factory, iceberg_connector(factory, three, source=chosen))
    assert set(mirrored(factory)) == {"sales.orders", "sales.people"}


@behavior(72)
def test_single_table_can_be_renamed_and_its_ids_are_written_back(factory: ResourceFactory, three):
    to = v1.ConnectorDestination(
        catalog_id=factory.first_catalog().resource_id,
        namespace=v1.NamespacePath(segments=["raw", "crm"]),
        table_display_name="customers",
    )
    created = iceberg_connector(factory, three, source=source(table="people"), destination=to)
    run(factory, created)
    (name, table), *_ = mirrored(factory).items()
    assert (name, len(mirrored(factory))) == ("raw.crm.customers", 1)
    stored = (
        connectors.calls(None).get(factory.home, v1.GetConnectorRequest(connector_id=created.resource_id)).connector
    )
    assert stored.destination.table_id == table.resource_id
    assert stored.destination.namespace_id == table.namespace_id
    assert (stored.destination.table_display_name, list(stored.destination.namespace.segments)) == ("", [])


@behavior(72)
def test_single_table_renamed_in_the_metastore_stays_the_same_table(factory: ResourceFactory, three):
    created = iceberg_connector(factory, three, source=source(table="people"))
    run(factory, created)
    ((_, table),) = mirrored(factory).items()
    tables.update(
        factory.home,
        v1.UpdateTableRequest(
            table_id=table.resource_id, spec=v1.TableSpec(display_name="humans"), update_mask=mask("display_name")
        ),
    )
    namespaces.update(
        factory.home,
        v1.UpdateNamespaceRequest(
            namespace_id=table.namespace_id, spec=v1.NamespaceSpec(display_name="crm"), update_mask=mask("display_name")
        ),
    )
    assert run(factory, created).changed == 0
    ((name, same),) = mirrored(factory).items()
    assert (name, same.resource_id) == ("crm.humans", table.resource_id)


def test_table_renamed_in_the_metastore_is_not_created_again(factory: ResourceFactory, three):
    created = iceberg_connector(factory, three)
    run(factory, created)
    table = mirrored(factory)["sales.people"]
    tables.update(
        factory.home,
        v1.UpdateTableRequest(
            table_id=table.resource_id, spec=v1.TableSpec(display_name="humans"), update_mask=mask("display_name")
        ),
    )
    assert run(factory, created).changed == 0
    assert set(mirrored(factory)) == {"sales.humans", "sales.orders", "sales.people_old"}


@behavior(72)
def test_scope_selects_by_namespace_and_table(factory: ResourceFactory, three):
    created = iceberg_connector(factory, three)
    outcome = run(factory, created, scope=v1.JobScope(table="orders"))
    assert (outcome.scanned, set(mirrored(factory))) == (1, {"sales.orders"})
    here = v1.JobScope(namespaces=[v1.NamespacePath(segments=["sales"])])
    assert run(factory, created, scope=here).scanned == 3


@behavior(72)
@pytest.mark.parametrize(
    "scope", [v1.JobScope(table="nope"), v1.JobScope(namespaces=[v1.NamespacePath(segments=["elsewhere"])])]
)
def test_scope_that_matches_nothing_is_an_error(factory: ResourceFactory, three, scope):
    with pytest.raises(NotFound, match="no table of the connector is in the requested scope") as raised:
        run(factory, iceberg_connector(factory, three), scope=scope)
    assert raised.value.key == "scope.unmatched"


@behavior(72)
def test_filter_that_matches_nothing_is_an_error(factory: ResourceFactory, three):
    with pytest.raises(NotFound, match="selects"):
        run(factory, iceberg_connector(factory, three, source=source(include_tables=["nope*"])))


def test_one_name_for_many_tables_is_rejected(factory: ResourceFactory, three):
    to = v1.ConnectorDestination(catalog_id=factory.first_catalog().resource_id, table_display_name="all")
    with pytest.raises(InvalidArgument, match="selects 3"):
        run(factory, iceberg_connector(factory, three, destination=to))


# --- statistics pass --------------------------------------------------------------------------------------------------


@behavior(70)
def test_statistics_of_an_unmirrored_table_are_skipped(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1])
    created = connector(factory, str(folder))
    profiler = Profiler()
    pointers = list(factory.stores.pointers.scan(""))
    outcome = run(factory, created, STATS, profiler)
    assert (outcome.changed, outcome.failures, profiler.profiled) == (0, {}, [])
    assert list(factory.stores.pointers.scan("")) == pointers


@behavior(70)
def test_metadata_pass_profiles_nothing(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1])
    profiler = Profiler()
    run(factory, connector(factory, str(folder)), CORE, profiler)
    (table,) = mirrored(factory).values()
    assert profiler.profiled == []
    with pytest.raises(NotFound):
        statistics.get_table(
            factory.home, v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=v1.SnapshotRef(snapshot_id=1))
        )


@behavior(71)
def test_only_snapshots_without_statistics_are_profiled(factory: ResourceFactory, folder):
    catalog = iceberg(folder)
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1]}))
    created, profiler = iceberg_connector(factory, folder), Profiler()
    run(factory, created)
    assert run(factory, created, STATS, profiler).changed == 1
    assert run(factory, created, STATS, profiler).changed == 0
    orders.append(pa.table({"id": [2]}))
    run(factory, created)
    run(factory, created, STATS, profiler)
    assert profiler.profiled == [("orders", each.snapshot_id) for each in orders.snapshots()]
    run(factory, created, STATS, profiler, full_rescan=True)
    assert len(profiler.profiled) == 4


def test_profile_of_a_mirrored_table_is_followed_by_a_check_of_its_rules(factory: ResourceFactory, folder):
    catalog = iceberg(folder)
    orders = catalog.create_table("sales.orders", schema=pa.schema({"id": pa.int64()}))
    orders.append(pa.table({"id": [1]}))
    created = iceberg_connector(factory, folder)
    run(factory, created)
    (table,) = (
        each for each in factory.home.all(TABLE).entries(keys.table("a1")) if each.value.display_name == "orders"
    )
    check = v1.RuleCheck(schema=v1.SchemaCheck(columns=[v1.ExpectedColumn(name="id", type="string")]))
    spec = v1.QualityRuleSpec(display_name="columns", table_id=table.value.resource_id, check=check)
    quality.CALLS.create(factory.home, v1.CreateRuleRequest(spec=spec))
    run(factory, created, STATS, Profiler())
    assert (
        quality.CALLS.get(factory.home, v1.GetRuleRequest(display_name="columns")).rule.result.status == v1.RST_FAILED
    )


def test_failed_profile_is_reported_and_the_others_continue(factory: ResourceFactory, folder):
    parquet(folder, "a", id=[1])
    parquet(folder, "b", id=[1])
    created = connector(factory, str(folder))
    run(factory, created)

    def profile(realm, table_id, snapshot, *, handle, **_) -> None:
        if handle.name.name == "a":
            raise Conflict("somebody changed it")

    outcome = run(factory, created, STATS, profile)
    assert (outcome.failures, outcome.changed) == ({"a": "somebody changed it"}, 1)


def test_statistics_pass_needs_a_profiler(factory: ResourceFactory, folder):
    with pytest.raises(Unsupported):
        run(factory, connector(factory, str(folder)), STATS)


@behavior(70)
def test_capture_runs_one_pass_directly(factory: ResourceFactory, folder):
    parquet(folder, "people", id=[1])
    (folder / "broken.parquet").write_bytes(b"no")
    created, profiler = connector(factory, str(folder)), Profiler()
    reconciler = Reconciler(SECRETS, profiler)
    first = capture(factory.home, v1.SyncCaptureRequest(connector_id=created.resource_id), reconciler=reconciler)
    assert (first.tables_scanned, first.tables_changed, first.errors) == (2, 1, 1)
    assert [each.table for each in first.table_errors] == ["broken"]
    assert profiler.profiled == []
    request = v1.SyncCaptureRequest(
        connector_id=created.resource_id, include_statistics=True, destination_table_display_name="people"
    )
    second = capture(factory.home, request, reconciler=reconciler)
    assert (second.tables_scanned, second.tables_changed, second.errors) == (1, 1, 0)
    assert profiler.profiled == [("people", 1)]


def test_large_file_list_is_one_pointer(factory: ResourceFactory, folder):
    folder.mkdir()
    for number in range(30):
        pq.write_table(pa.table({"id": [number]}), parquet(folder / "t", "x", id=[0]) / f"{number}.parquet")
    run(factory, connector(factory, str(folder)))
    (table,) = mirrored(factory).values()
    prefix = keys.of_table("a1", table.resource_id.id)
    kinds = [pointer.key.removeprefix(prefix) for pointer in factory.stores.pointers.scan(prefix)]
    assert len([each for each in kinds if "/stats/" in each]) == 1
