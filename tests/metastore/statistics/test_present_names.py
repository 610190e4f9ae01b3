"""Statistics of the current snapshot have the present names of the columns: renames and drops need no new snapshot."""

from __future__ import annotations

import json

import pytest

from metastore.resource_factory import ResourceFactory
from skiway.metastore import statistics
from skiway.metastore.quality.facts import known_facts
from skiway.metastore.resources import tables
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
