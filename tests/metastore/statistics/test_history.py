"""The history of statistics: the newest profiles of a table, in the order of its snapshots, in bounded space."""

from __future__ import annotations

import json

import pytest

from metastore.resource_factory import ResourceFactory
from skiway.metastore import statistics
from skiway.metastore.resources import snapshots, tables
from skiway.metastore.statistics import summaries
from skiway.model import v1


@pytest.fixture
def table(factory: ResourceFactory) -> v1.Table:
    return factory.table("people")


def column(number: int = 1, name: str = "age", **properties: str) -> v1.ColumnStats:
    stats = v1.ColumnStats(column_id=number, column_name=name, logical_type="INT", value_count=9, properties=properties)
    stats.histogram.CopyFrom(v1.Histogram(bounds=["1", "2"], counts=[9]))
    stats.ndv.exact = 3
    stats.ndv.sketches.add(type="theta", data=b"sketch")
    return stats


def profile(
    factory: ResourceFactory, table: v1.Table, snapshot_id: int, *columns: v1.ColumnStats, rows: int = 9
) -> None:
    stats = v1.TableStats(table_id=table.resource_id, snapshot_id=snapshot_id, row_count=rows)
    statistics.add_to_history(factory.home, stats, columns or [column()])


def listed(factory: ResourceFactory, table: v1.Table, **request: object) -> list[v1.ProfiledSnapshot]:
    asked = v1.ListStatisticsHistoryRequest(table_id=table.resource_id, **request)  # type: ignore[arg-type]
    return list(statistics.list_history(factory.home, asked).snapshots)


def test_history_has_the_newest_snapshots_first_and_nothing_large(factory: ResourceFactory, table: v1.Table) -> None:
    top = json.dumps([[str(number), 100 - number] for number in range(16)])
    for number in (1, 2):
        factory.snapshot(table, number)
        found = column(quantiles='{"0.5": "4"}', top_values=top, avg_width_bytes="4.00", **{"quality.ndv": "exact"})
        profile(factory, table, number, found, rows=number)
        factory.clock.advance(60)
    newest, oldest = listed(factory, table)
    assert [(each.snapshot_id, each.row_count) for each in (newest, oldest)] == [(2, 2), (1, 1)]
    assert newest.profiled_at.ToSeconds() - oldest.profiled_at.ToSeconds() == 60
    [shown] = newest.columns
    assert (shown.column_name, shown.value_count, shown.ndv.exact) == ("age", 9, 3)
    assert not shown.HasField("histogram")
    assert not shown.ndv.sketches
    assert shown.properties.keys() == {"quantiles", "top_values", "quality.ndv"}
    assert json.loads(shown.properties["top_values"]) == json.loads(top)[:8]


def test_snapshots_are_in_the_order_of_their_creation(factory: ResourceFactory, table: v1.Table) -> None:
    """Also if an old snapshot is profiled later, or again; the same profile is added once."""
    for number in (1, 2, 3):
        factory.snapshot(table, number, upstream_created_at=factory.clock())
        factory.clock.advance(60)
    for number in (3, 1, 2):
        profile(factory, table, number)
    profile(factory, table, 1, rows=77)
    before = listed(factory, table)
    assert [(each.snapshot_id, each.row_count) for each in before] == [(3, 9), (2, 9), (1, 77)]
    factory.clock.advance(60)
    profile(factory, table, 3)
    assert listed(factory, table) == before


def test_entry_outlives_its_snapshot_and_is_deleted_with_the_table(factory: ResourceFactory, table: v1.Table) -> None:
    for number in (1, 2):
        factory.snapshot(table, number)
        profile(factory, table, number)
    snapshots.delete(factory.home, v1.DeleteSnapshotRequest(table_id=table.resource_id, snapshot_id=1))
    assert [each.snapshot_id for each in listed(factory, table)] == [2, 1]
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    assert not [each.key for each in factory.stores.pointers.scan("/") if each.key.endswith("/history")]


def test_history_is_bounded(factory: ResourceFactory, table: v1.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "MAX_SNAPSHOTS", 3)
    for number in range(1, 6):
        factory.snapshot(table, number)
        profile(factory, table, number)
    assert [each.snapshot_id for each in listed(factory, table)] == [5, 4, 3]
    monkeypatch.setattr(summaries, "MAX_BYTES", 500)
    factory.snapshot(table, 6)
    profile(factory, table, 6, column(quantiles="x" * 3000))
    assert [each.snapshot_id for each in listed(factory, table)] == [6]


def test_columns_can_be_chosen_and_pages_follow_each_other(factory: ResourceFactory, table: v1.Table) -> None:
    for number in (1, 2, 3):
        factory.snapshot(table, number)
        profile(factory, table, number, column(), column(2, "name"), column(3, "tags.element"))
    chosen = listed(factory, table, columns=["tags.element", "age"])
    assert [[each.column_name for each in one.columns] for one in chosen] == [["age", "tags.element"]] * 3
    asked = v1.ListStatisticsHistoryRequest(table_id=table.resource_id, page=v1.PageRequest(page_size=2))
    first = statistics.list_history(factory.home, asked)
    asked.page.page_token = first.page.next_page_token
    second = statistics.list_history(factory.home, asked)
    assert [each.snapshot_id for each in (*first.snapshots, *second.snapshots)] == [3, 2, 1]
    assert not second.page.next_page_token


def test_table_without_profiles_has_no_history(factory: ResourceFactory, table: v1.Table) -> None:
    assert listed(factory, table) == []
