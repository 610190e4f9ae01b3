"""Protected catalogs: only merges change them, by those who may merge, and only if the required rules pass on the branch."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import ceil, isnan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.duration_pb2 import Duration

from metastore import upstreams
from metastore.branches.world import World
from metastore.resource_factory import ResourceFactory, mask
from skiway.errors import InvalidArgument, PermissionDenied, PreconditionFailed, SkiwayError
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import Realm, branches, catalogs, events, managed, quality, statistics
from skiway.metastore.managed.states import open_current
from skiway.metastore.quality import rows as quality_rows
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.metastore.resources import policies
from skiway.metastore.table_maintenance.tasks import run_task
from skiway.model import v1


@pytest.fixture
def world(factory: ResourceFactory, tmp_path: Path) -> World:
    world = World(factory, tmp_path)
    world.create("a.t")
    world.insert("a.t", 1, 2)
    world.insert("a.t", 3)
    return world


def protect(world: World, **spec: Any) -> v1.Catalog:
    given = {"protected": True, **spec}
    request = v1.UpdateCatalogRequest(
        catalog_id=world.factory.first_catalog().resource_id, spec=v1.CatalogSpec(**given), update_mask=mask(*given)
    )
    return catalogs.update(world.factory.home, request).catalog


def caller(world: World, name: str, *roles: str) -> Realm:
    home = world.factory.home
    subject = Subject(name, frozenset(roles))
    return replace(home, caller=name, policies=CallerPolicies(lambda: home.stores, home.account_id, subject))


def rule(world: World, name: str, table: str = "a.t", **check: Any) -> v1.QualityRule:
    severity = check.pop("severity", v1.RSV_ERROR)
    spec = v1.QualityRuleSpec(
        display_name=name, table_id=world.table(table).resource_id, check=v1.RuleCheck(**check), severity=severity
    )
    made: v1.QualityRule = quality.CALLS.create(world.factory.home, v1.CreateRuleRequest(spec=spec)).rule
    return made


CHANGES: dict[str, Callable[[World, str], object]] = {
    "insert": lambda w, b: w.insert("a.t", 4, branch=b),
    "delete": lambda w, b: w.replace("a.t", 4, branch=b),
    "create": lambda w, b: w.create("a.new", b),
    "drop": lambda w, b: w.drop("a.t", b),
    "rename": lambda w, b: w.rename("a.t", "a.other", b),
    "create namespace": lambda w, b: w.namespace("b", b),
    "drop namespace": lambda w, b: w.drop_namespace("empty", b),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_main_of_a_protected_catalog_is_changed_by_a_merge_only(
    world: World, change: Callable[[World, str], Any]
) -> None:
    world.namespace("empty")
    protect(world)
    before, pointers = world.contents(), keys_of(world)
    with pytest.raises(PermissionDenied, match=r"catalog lake is protected.*skiway branches create lake@dev") as raised:
        change(world, "")
    assert raised.value.key == "catalog.protected"
    assert (world.contents(), keys_of(world)) == (before, pointers)
    world.branch("dev")
    change(world, "dev")
    wanted = world.contents("dev")
    world.merge("dev")
    assert world.contents() == wanted
    protect(world, protected=False)
    if change is not CHANGES["drop namespace"]:
        world.create("a.free")


def keys_of(world: World) -> dict[str, str]:
    """All objects of the account, by key."""
    return {each.key: each.blob_uri for each in world.factory.stores.pointers.scan("/accounts/a1/")}


def test_maintenance_changes_no_contents_and_goes_on(world: World) -> None:
    protect(world)
    before = world.load("a.t")
    world.factory.clock.now += timedelta(hours=3)
    for task in (
        v1.MaintenanceTask(optimize=v1.OptimizeTask()),
        v1.MaintenanceTask(expire=v1.ExpireTask(older_than=Duration(seconds=1), keep_last=1)),
    ):
        table_id = before.table.resource_id
        run_task(world.factory.home, world.warehouse, table_id, task, Control(), job=None)  # type: ignore[arg-type]
    assert len(world.load("a.t").metadata.snapshots) == 1
    assert world.rows("a.t") == [1, 2, 3]


def test_mirrored_tables_of_a_protected_catalog_follow_their_sources(world: World, tmp_path: Path) -> None:
    factory = world.factory
    source = upstreams.connector(factory, str(upstreams.parquet(tmp_path / "source", "rows", x=[1])))
    protect(world)
    for values in ([1], [1, 2, 3]):
        upstreams.parquet(tmp_path / "source", "rows", x=values)
        assert upstreams.run(factory, source).failures == {}
        (table,) = (each for name, each in upstreams.mirrored(factory).items() if name.endswith("rows"))
        current = upstreams.snapshots_of(factory, table)[0].snapshot_id
        files = statistics.file_statistics(factory.home, table.resource_id.id, current)
        assert files["row_count"].to_pylist() == [len(values)]


def test_only_mergers_merge(world: World) -> None:
    protect(world, mergers=["user:ann", "role:publisher"])
    world.branch("dev")
    world.insert("a.t", 9, branch="dev")
    for dry_run in (True, False):
        with pytest.raises(PermissionDenied, match="ask one of user:ann, role:publisher"):
            world.merge("dev", of=caller(world, "bob", "reader"), dry_run=dry_run)
    world.merge("dev", of=caller(world, "bob", "publisher"))
    assert world.rows("a.t") == [1, 2, 3, 9]
    protect(world, protected=False)
    world.branch("other")
    world.merge("other", of=caller(world, "bob"))


def test_merges_wait_for_the_required_rules(world: World) -> None:
    rule(world, "few", row_count=v1.RowCountCheck(max=4))
    rule(world, "small", range=v1.RangeCheck(column="x", max="10"))
    rule(world, "ids", unique=v1.UniqueCheck(columns=["x"]))
    protect(world, required_rules=["few", "small", "ids"])
    world.branch("dev")
    world.insert("a.t", 3, 11, branch="dev")
    planned = world.merge("dev", dry_run=True).checks
    assert [(each.rule, each.table, each.status) for each in planned] == [
        ("few", "a.t", "failed"),
        ("small", "a.t", "failed"),
        ("ids", "a.t", "failed"),
    ]
    with pytest.raises(
        PreconditionFailed, match=r"few \(a.t, 5 rows.*x is between 1 and 11.*1 values of x occur more"
    ) as raised:
        world.merge("dev")
    assert raised.value.key == "branch.rules"
    assert world.rows("a.t") == [1, 2, 3]
    world.replace("a.t", 1, 2, 3, 4, branch="dev")  # the branch is open again
    done = world.merge("dev")
    assert {each.status for each in done.checks} == {"passed"}
    found = branches.get(world.factory.home, v1.GetBranchRequest(name="lake@dev")).branch
    assert [(each.rule, each.observed) for each in found.checks] == [
        ("few", "4 rows"),
        ("small", "x is between 1 and 4"),
        ("ids", "0 values of x occur more than once, and 0 rows have NULL in it"),
    ]
    listed = events.list_(world.factory.home, v1.ListEventsRequest()).events
    assert [each.detail for each in listed if (each.kind, each.action) == ("branch", "merged")] == ["3 rules passed"]


def test_all_rules_are_those_of_severity_error_whose_tables_the_branch_has(world: World) -> None:
    world.create("a.gone")
    rule(world, "warns", row_count=v1.RowCountCheck(max=0), severity=v1.RSV_WARNING)
    rule(world, "passes", row_count=v1.RowCountCheck(min=1))
    rule(world, "on-gone", "a.gone", row_count=v1.RowCountCheck(min=1))
    protect(world, required_rules=["*"])
    world.branch("dev")
    world.drop("a.gone", "dev")
    assert [each.rule for each in world.merge("dev").checks] == ["passes"]
    protect(world, required_rules=["on-gone", "nothing"])
    world.branch("more")
    with pytest.raises(PreconditionFailed, match=r"on-gone \(its table is not on the branch\); nothing \(there is no"):
        world.merge("more")


def test_a_merge_requires_more_rules_and_tells_nothing_about_hidden_ones(world: World) -> None:
    rule(world, "few", row_count=v1.RowCountCheck(max=3))
    world.branch("dev")
    world.insert("a.t", 4, branch="dev")
    for names in (["few"], ["*"]):
        with pytest.raises(PreconditionFailed, match=r"few \(a.t, 4 rows"):
            world.merge("dev", required_rules=names)
    hidden = v1.PolicySpec(
        display_name="rows",
        subjects=["user:bob"],
        objects=[world.table("a.t").resource_id],
        row_filter=v1.PolicyFilter(predicate="x > 1"),
    )
    policies.calls(lambda *_: []).create(world.factory.home, v1.CreatePolicyRequest(spec=hidden))
    bob = caller(world, "bob")
    for name in ("few", "none"):
        with pytest.raises(PreconditionFailed, match=rf"{name} \(there is no such rule\)"):
            world.merge("dev", of=bob, required_rules=[name])
    protect(world, required_rules=["few"])
    with pytest.raises(PreconditionFailed, match="1 that you may not see") as raised:
        world.merge("dev", of=bob)
    assert "few" not in raised.value.message
    assert world.merge("dev", dry_run=True).checks
    protect(world, required_rules=[])
    assert world.merge("dev", required_rules=["", ""]).branch.state == v1.BS_MERGED


def test_a_rule_that_needs_too_many_rows_in_memory_stops_the_merge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(world, "ids", unique=v1.UniqueCheck(columns=["x"]))
    rule(world, "small", range=v1.RangeCheck(column="x", max="10"))
    protect(world, required_rules=["ids", "small"])
    world.branch("dev")
    world.insert("a.t", 4, branch="dev")
    monkeypatch.setattr(quality_rows, "MOST_ROWS", 3)
    with pytest.raises(PreconditionFailed, match="compares the values of all rows"):
        world.merge("dev")
    assert [each.status for each in world.merge("dev", dry_run=True).checks] == ["unknown", "passed"]


def test_catalogs_with_connectors_and_unknown_mergers_are_refused(world: World) -> None:
    with pytest.raises(InvalidArgument, match="changed in their source"):
        world.factory.catalog("mirror", connector_ref="c", protected=True)
    with pytest.raises(InvalidArgument, match="user:<subject>, role:<name> or group:<name>"):
        protect(world, mergers=["ann"])
    assert not world.factory.first_catalog().protected
    assert protect(world, mergers=["", "user:ann", "user:ann"]).mergers == ["user:ann"]


# --- exact facts ------------------------------------------------------------------------------------------------------

NAN = float("nan")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None, True]),
    "int": (pa.int32(), [5, -7, None, 5]),
    "double": (pa.float64(), [1.5, NAN, None, -2.25]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-3.25"), None, Decimal("1.50")]),
    "day": (pa.date32(), [date(2026, 1, 31), date(1969, 1, 1), None, date(2026, 1, 31)]),
    "time": (pa.time64("us"), [time(1, 2, 3), time(23, 59), None, time(1, 2, 3)]),
    "naive": (pa.timestamp("us"), [datetime(2026, 1, 1, 8), datetime(2025, 1, 1), None, datetime(2026, 1, 1, 8)]),
    "aware": (
        pa.timestamp("us", "UTC"),
        [
            datetime(2026, 1, 1, 8, tzinfo=UTC),
            datetime(2025, 1, 1, tzinfo=UTC),
            None,
            datetime(2026, 1, 1, 8, tzinfo=UTC),
        ],
    ),
    "text": (pa.string(), ["b", "a", None, "b"]),
    "bytes": (pa.binary(), [b"\x01", b"\x00", None, b"\x01"]),
    "uuid": (pa.uuid(), [uuid.UUID(int=9).bytes, uuid.UUID(int=2).bytes, None, uuid.UUID(int=9).bytes]),
}


def test_rows_of_all_types_are_measured_exactly(world: World) -> None:
    columns = pa.schema({name: of for name, (of, _) in VALUES.items()})
    place = world.namespace("a").resource_id
    made = managed.create(
        world.factory.home, world.warehouse, namespace_id=place, name="types", schema=iceberg_schema(columns)
    )
    batch = pa.record_batch([pa.array(values, of) for of, values in VALUES.values()], schema=columns)
    with DataFileWriter(made.files, made.metadata) as writer:
        writer.write(batch)
        files = writer.close()
    table = managed.change(world.factory.home, world.warehouse, made.table.resource_id, append(files)).table
    handle = open_current(world.factory.home, world.warehouse, table)
    current = handle.current()
    assert current is not None
    checks = [
        v1.RuleCheck(**check)
        for name in VALUES
        for check in (
            {"null_share": v1.NullShareCheck(column=name)},
            {"range": v1.RangeCheck(column=name)},
            {"distinct_count": v1.DistinctCountCheck(column=name)},
            {"quantile": v1.QuantileCheck(column=name, quantile=0.5)},
            {"allowed_values": v1.AllowedValuesCheck(column=name, values=["1"] * 9)},
            {"unique": v1.UniqueCheck(columns=[name])},
        )
    ]
    facts = quality_rows.measured(handle, current, table, checks)
    assert facts.rows is not None
    assert facts.rows.high == 4
    for name, (_, values) in VALUES.items():
        known = [
            each.replace(tzinfo=None) if isinstance(each, datetime) else each for each in values if each is not None
        ]
        ordered = sorted(each for each in known if not (isinstance(each, float) and isnan(each)))
        found = facts.columns[name]
        assert found.null_share is not None
        assert found.null_share.low == 0.25
        assert found.least is not None
        assert found.most is not None
        assert (found.least.low, found.most.high) == (ordered[0], ordered[-1]), name
        assert found.distinct is not None
        assert found.distinct.low == len(set(known)), name
        assert found.quantile(0.5).low == ordered[max(ceil(0.5 * len(ordered)), 1) - 1], name
        assert found.is_complete
        assert found.values is not None
        assert len(found.values) == len(set(known))
        assert facts.keys[(name,)].nulls == 1
        assert facts.keys[(name,)].repeated == len(known) - len(set(known)), name


def test_a_catalog_is_protected_for_the_server_too(world: World) -> None:
    protect(world)
    with pytest.raises(SkiwayError, match="protected"):
        managed.drop(world.factory.home.as_server(), world.warehouse, world.table("a.t").resource_id)
