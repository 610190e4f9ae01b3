"""Statistics of the current snapshot have the present names of the columns: renames and drops need no new snapshot."""

from __future__ import annotations

import json

import pytest

from metastore.resource_factory import ResourceFactory
from skiway.metastore import queries, statistics
from skiway.metastore.planning import scans
from skiway.metastore.planning.planner import Planner
from skiway.metastore.quality.facts import known_facts
from skiway.metastore.quality.verdicts import judged
from skiway.metastore.resources import snapshots, tables
from skiway.model import v1

NOW = v1.SnapshotRef(special=v1.SS_CURRENT)
ITEMS = {
    "type": "list",
    "element-id": 6,
    "element": {"type": "struct", "fields": [{"id": 7, "name": "x", "type": "int"}]},
}
BEFORE = {1: ("a", "int"), 2: ("b", "int"), 3: ("c", "int"), 4: ("gone", "int"), 5: ("items", ITEMS)}
AFTER = {1: ("b", "int"), 2: ("a", "int"), 3: ("d", "int"), 5: ("things", ITEMS), 8: ("c", "int")}
STORED = {1: "a", 2: "b", 3: "c", 4: "gone", 7: "items.element.x"}
SHOWN = {1: "b", 2: "a", 3: "d", 7: "things.element.x"}


def schema(columns: dict[int, tuple[str, object]]) -> str:
    fields = [{"id": number, "name": name, "type": of, "required": False} for number, (name, of) in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def columns(*numbers: int) -> list[v1.ColumnStats]:
    return [
        v1.ColumnStats(
            column_id=number,
            column_name=STORED[number],
            logical_type="INT",
            value_count=9,
            null_count=0,
            min=f"{number}",
            max=f"{number}0",
        )
        for number in numbers
    ]


@pytest.fixture
def table(factory: ResourceFactory) -> v1.Table:
    """A table with two profiled snapshots whose columns were renamed, swapped, dropped and added after the second one."""
    table = factory.table("t", schema_json=schema(BEFORE))
    realm, table_id = factory.home, table.resource_id
    for number in (1, 2):
        factory.snapshot(table, number, schema_json=schema(BEFORE))
        request = v1.PutColumnStatsRequest(table_id=table_id, snapshot_id=number, columns=columns(*STORED))
        statistics.put_columns(realm, [request])
        file = v1.FileColumnStats(file_path="f", file_content=v1.FC_DATA, row_count=9, columns=columns(1, 2, 3, 4))
        statistics.put_files(realm, [v1.PutFileColumnStatsRequest(table_id=table_id, snapshot_id=number, files=[file])])
        stats = v1.TableStats(table_id=table_id, snapshot_id=number, row_count=9)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=number, stats=stats))
        statistics.add_to_history(realm, stats, columns(*STORED))
    request = v1.UpdateTableRequest(table_id=table_id, spec=v1.TableSpec(schema_json=schema(AFTER)))
    request.update_mask.paths.append("schema_json")
    return tables.update(realm, request).table


def named(found: object) -> dict[int, str]:
    return {each.column_id: each.column_name for each in found}  # type: ignore[attr-defined]


def test_columns_have_their_present_names(factory: ResourceFactory, table: v1.Table) -> None:
    def listed(ref: v1.SnapshotRef) -> list[v1.ColumnStats]:
        request = v1.ListColumnStatsRequest(table_id=table.resource_id, snapshot=ref)
        return list(statistics.list_columns(factory.home, request).columns)

    assert named(listed(NOW)) == SHOWN
    assert {each.column_id: each.min for each in listed(NOW)} == {number: f"{number}" for number in SHOWN}
    assert named(listed(v1.SnapshotRef(snapshot_id=2))) == SHOWN
    assert named(listed(v1.SnapshotRef(snapshot_id=1))) == STORED, "an earlier snapshot has the names of its time"


def test_files_and_partitions_have_the_present_names(factory: ResourceFactory, table: v1.Table) -> None:
    of = {"table_id": table.resource_id, "snapshot": NOW}
    (file,) = statistics.list_files(factory.home, v1.ListFileColumnStatsRequest(**of)).files
    (partition,) = statistics.list_partitions(factory.home, v1.ListPartitionStatsRequest(**of)).partitions
    assert named(file.columns) == named(partition.columns) == {1: "b", 2: "a", 3: "d"}


def test_history_has_the_present_names(factory: ResourceFactory, table: v1.Table) -> None:
    request = v1.ListStatisticsHistoryRequest(table_id=table.resource_id)
    found = statistics.list_history(factory.home, request).snapshots
    assert [named(each.columns) for each in found] == [SHOWN, SHOWN]
    request.columns.append("d")
    assert [named(each.columns) for each in statistics.list_history(factory.home, request).snapshots] == [{3: "d"}] * 2


def test_rules_use_the_statistics_of_the_column_that_has_the_name_now(
    factory: ResourceFactory, table: v1.Table
) -> None:
    facts, _ = known_facts(factory.home, table)
    assert facts.columns.keys() == {"a", "b", "d"}
    assert {name: each.least and each.least.low for name, each in facts.columns.items()} == {"a": 2, "b": 1, "d": 3}


def bundle(
    factory: ResourceFactory, table: v1.Table, column: str, value: str, **ref: int
) -> v1.FetchScanBundleResponse:
    """The scan bundle of a snapshot, for the rows where a column has a value."""
    source = v1.QueryInput(table_id=table.resource_id, snapshot=v1.SnapshotRef(**ref) if ref else NOW)
    begin = v1.BeginQueryRequest(default_catalog_id=table.catalog_id, inputs=[source])
    query_id = queries.begin(factory.home, begin).query.query_id
    predicate = v1.Predicate(column=column, op=v1.PO_EQ, values=[value])
    request = v1.FetchScanBundleRequest(query_id=query_id, table_id=table.resource_id, predicates=[predicate])
    found = v1.FetchScanBundleResponse()
    for message in scans.fetch(factory.home, request, planner=Planner()):
        found.MergeFrom(message)
    return found


def test_scan_bundles_use_the_present_names(factory: ResourceFactory, table: v1.Table) -> None:
    """`b` was `a`: its values are between 1 and 10."""
    found = bundle(factory, table, "b", "1")
    assert [each.file_path for each in found.data_files] == ["f"]
    assert named(found.data_files[0].columns) == {1: "b", 2: "a", 3: "d"}
    assert json.loads(found.table_info.schema_json) == json.loads(schema(AFTER))
    assert not bundle(factory, table, "a", "1").data_files
    for name in ("c", "gone"):  # a new column, and a dropped one
        found = bundle(factory, table, name, "100")
        assert len(found.data_files) == 1
        assert found.report.predicates[0].unused_because


def test_scan_bundles_of_earlier_snapshots_use_the_names_of_their_time(
    factory: ResourceFactory, table: v1.Table
) -> None:
    assert not bundle(factory, table, "b", "1", snapshot_id=1).data_files
    found = bundle(factory, table, "a", "1", snapshot_id=1)
    assert named(found.data_files[0].columns) == {1: "a", 2: "b", 3: "c", 4: "gone"}
    assert json.loads(found.table_info.schema_json) == json.loads(schema(BEFORE))


def test_queries_keep_the_names_of_their_beginning(factory: ResourceFactory, table: v1.Table) -> None:
    """Plans are cached, but not across changes of the schema."""
    planner, of = Planner(), v1.QueryInput(table_id=table.resource_id)

    def begun() -> str:
        request = v1.BeginQueryRequest(default_catalog_id=table.catalog_id, inputs=[of])
        return queries.begin(factory.home, request).query.query_id

    def files(query_id: str) -> int:
        predicate = v1.Predicate(column="b", op=v1.PO_EQ, values=["1"])
        request = v1.FetchScanBundleRequest(query_id=query_id, table_id=table.resource_id, predicates=[predicate])
        return sum(len(each.data_files) for each in scans.fetch(factory.home, request, planner=planner))

    first = begun()
    assert files(first) == 1
    change = v1.UpdateTableRequest(table_id=table.resource_id, spec=v1.TableSpec(schema_json=schema(BEFORE)))
    change.update_mask.paths.append("schema_json")
    tables.update(factory.home, change)
    factory.snapshot(table, 3, schema_json=schema(BEFORE))
    assert files(first) == 1
    again = v1.SetCurrentSnapshotRequest(table_id=table.resource_id, snapshot_id=2)
    snapshots.set_current(factory.home, again)
    assert files(begun()) == 0


# --- columns with a default ---------------------------------------------------------------------------------------------


@pytest.fixture
def defaulted(factory: ResourceFactory) -> v1.Table:
    """A table with a profile of version 0, which counted NULLs instead of defaults: of `x`, and of `in` in `box`."""
    inner = {"id": 3, "name": "in", "type": "int", "required": False, "initial-default": 7}
    fields = [
        {"id": 1, "name": "x", "type": "int", "required": False, "initial-default": 42},
        {"id": 2, "name": "box", "type": {"type": "struct", "fields": [inner]}, "required": False},
        {"id": 4, "name": "y", "type": "int", "required": False},
    ]
    of = json.dumps({"type": "struct", "fields": fields})
    table = factory.table("t", schema_json=of)
    factory.snapshot(table, 1, schema_json=of)
    store_profile(factory, table, "")
    return table


def store_profile(factory: ResourceFactory, table: v1.Table, version: str) -> None:
    facts = {"rows.profiled": "9", "rows.total": "9", statistics.PROFILE_VERSION: version}
    exact = {f"quality.{name}": "exact" for name in ("value_count", "null_count", "min", "max")}
    found = [
        v1.ColumnStats(
            column_id=number,
            column_name=name,
            logical_type="INT",
            value_count=9,
            null_count=5,
            min="50",
            max="60",
            properties={**facts, **exact},
        )
        for number, name in ((1, "x"), (3, "box.in"), (4, "y"))
    ]
    request = v1.PutColumnStatsRequest(table_id=table.resource_id, snapshot_id=1, columns=found)
    statistics.put_columns(factory.home, [request])
    stats = v1.TableStats(table_id=table.resource_id, snapshot_id=1, row_count=9)
    statistics.add_to_history(factory.home, stats, found)


@pytest.mark.parametrize(("version", "expected"), [("", {"y"}), ("1", {"x", "box.in", "y"})])
def test_profiles_that_ignored_defaults_are_not_used(
    factory: ResourceFactory, defaulted: v1.Table, version: str, expected: set[str]
) -> None:
    store_profile(factory, defaulted, version)
    request = v1.ListColumnStatsRequest(table_id=defaulted.resource_id, snapshot=NOW)
    assert {each.column_name for each in statistics.list_columns(factory.home, request).columns} == expected
    (past,) = statistics.statistics_history(factory.home, defaulted.resource_id.id)
    assert {each.column_name for each in past.columns} == expected
    facts, _ = known_facts(factory.home, defaulted)
    assert facts.columns.keys() == expected & {"x", "y"}


def test_rules_do_not_rely_on_profiles_that_ignored_defaults(factory: ResourceFactory, defaulted: v1.Table) -> None:
    facts, _ = known_facts(factory.home, defaulted)
    for check in (
        v1.RuleCheck(range=v1.RangeCheck(column="x", min="50")),
        v1.RuleCheck(null_share=v1.NullShareCheck(column="x", max=0.1)),
    ):
        assert judged(check, facts).status == v1.RST_UNKNOWN
    assert judged(v1.RuleCheck(range=v1.RangeCheck(column="y", min="50")), facts).status == v1.RST_PASSED
