"""Version n is the state after the n-th change, as long as it is retained."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from airport.memory.tables import NOON, PEOPLE, StillClock, catalog_of, content, delete, insert, people, update
from skiway.airport.catalog import CreateTable
from skiway.airport.memory import MemoryCatalog, MemoryTable
from skiway.airport.tables import ScanOptions, TimePoint
from skiway.errors import InvalidArgument, NotFound


def names_at(table: MemoryTable, unit: str, value: object) -> list[str] | None:
    point = TimePoint.parse(unit, str(value))
    assert point
    past = table.at(point)
    return None if past is None else past.scan(ScanOptions(columns=["name"])).read_all()["name"].to_pylist()


def history() -> tuple[MemoryTable, StillClock]:
    """Schema at 12:00 (version 1), table at 12:01 (2), then an insert, an update and a delete a minute each."""
    clock = StillClock()
    catalog = MemoryCatalog(clock=clock)
    catalog.create_schema("public")
    clock.advance(minutes=1)
    table = people(catalog)
    clock.advance(minutes=1)
    insert(table, {"id": [1, 2], "name": ["Ada", "Grace"]})
    clock.advance(minutes=1)
    update(table, {"name": ["ADA"], "rowid": [0]})
    clock.advance(minutes=1)
    delete(table, [1])
    return table, clock


@pytest.mark.parametrize("unit", ["VERSION", "snapshot"])
def test_each_change_is_a_version(unit: str) -> None:
    table, _ = history()
    assert catalog_of(table).version().version == 5
    expected = [None, None, [], ["Ada", "Grace"], ["ADA", "Grace"], ["ADA"]]
    assert [names_at(table, unit, number) for number in range(6)] == expected


def test_timestamp_selects_the_last_change_before_it() -> None:
    table, _ = history()
    assert names_at(table, "TIMESTAMP", "2025-01-31 11:59:59") is None
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:00:30") is None
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:01:00") == []
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:02:59") == ["Ada", "Grace"]
    assert names_at(table, "TIMESTAMP", "2025-01-31 14:03:00+02:00") == ["ADA", "Grace"]
    assert names_at(table, "TIMESTAMP", "2035-01-01") == ["ADA"]


@pytest.mark.parametrize("version", [-1, 6, 2**70])
def test_unknown_version_is_rejected_with_the_available_ones(version: int) -> None:
    table, _ = history()
    with pytest.raises(NotFound, match=f"version {version} does not exist: versions 0 to 5 are available"):
        names_at(table, "VERSION", version)


def test_invalid_time_point_is_rejected() -> None:
    table, _ = history()
    with pytest.raises(InvalidArgument):
        names_at(table, "VERSION", "one")
    with pytest.raises(InvalidArgument):
        names_at(table, "TIMESTAMP", "yesterday")


def test_past_table_has_the_schema_of_its_time() -> None:
    table, _ = history()
    table.rename_column("name", "label")
    table.add_column(pa.field("age", pa.int32()))
    past = table.at(TimePoint("version", "4"))
    assert past
    assert past.schema.names == ["id", "name", "rowid"]
    assert past.column_statistics("name", "VARCHAR").distinct_count == 2
    assert past.row_count() == 2


def test_history_of_a_dropped_and_recreated_table_is_found_by_name() -> None:
    table, _ = history()
    schema = catalog_of(table).schema("public")
    assert schema
    schema.drop_table("people")
    recreated = schema.create_table(CreateTable("people", PEOPLE))
    assert names_at(recreated, "VERSION", 3) == ["Ada", "Grace"]
    assert names_at(recreated, "VERSION", 6) is None
    assert names_at(recreated, "VERSION", 7) == []


def test_the_oldest_versions_are_dropped() -> None:
    clock = StillClock()
    catalog = MemoryCatalog(schemas=["public"], clock=clock, history=3)
    table = people(catalog)
    for number in range(5):
        clock.advance(minutes=1)
        insert(table, {"id": [number], "name": [str(number)]})
    assert names_at(table, "VERSION", 5) == ["0", "1", "2"]
    with pytest.raises(NotFound, match="versions 5 to 7 are available"):
        names_at(table, "VERSION", 4)
    with pytest.raises(NotFound, match="no longer available: the history starts at 2025-01-31T12:03:00"):
        names_at(table, "TIMESTAMP", "2025-01-31 12:02:00")


def test_catalog_can_retain_only_the_current_version() -> None:
    table = people(MemoryCatalog(schemas=["public"], history=1))
    insert(table, {"id": [1], "name": ["Ada"]})
    assert names_at(table, "VERSION", 3) == ["Ada"]
    with pytest.raises(NotFound):
        names_at(table, "VERSION", 2)
    with pytest.raises(InvalidArgument, match="history must be at least 1"):
        MemoryCatalog(history=0)


def test_clock_set_back_does_not_reorder_versions() -> None:
    table, clock = history()
    clock.advance(hours=-1)
    insert(table, {"id": [9], "name": ["late"]})
    assert table._database.store.current.committed_at == NOON + dt.timedelta(minutes=4)
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:04:00") == ["ADA", "late"]
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:03:59") == ["ADA", "Grace"]
    assert content(table) == [(1, "ADA"), (9, "late")]
