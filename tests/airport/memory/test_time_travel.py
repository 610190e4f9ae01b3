"""Version n is the state after the n-th change, for as long as it is kept."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from airport.memory.tables import NOON, PEOPLE, StillClock, catalog_of, content, delete, insert, people, update
from skiway.airport.ddl import CreateTable
from skiway.airport.memory import MemoryCatalog, MemoryTable
from skiway.airport.scan import ScanOptions, TimePoint
from skiway.errors import InvalidArgument, NotFound


def names_at(table: MemoryTable, unit: str, value: object) -> list[str] | None:
    point = TimePoint.parse(unit, str(value))
    assert point
    past = table.at(point)
    return None if past is None else past.scan(ScanOptions(columns=["name"])).read_all()["name"].to_pylist()


def lived() -> tuple[MemoryTable, StillClock]:
    """Schema at 12:00 (version 1), table at 12:01 (2), then an insert, an update and a delete a minute each."""
    clock = StillClock()
    catalog = MemoryCatalog(clock=clock)
    catalog.create_schema("public")
    clock.pass_by(minutes=1)
    table = people(catalog)
    clock.pass_by(minutes=1)
    insert(table, {"id": [1, 2], "name": ["Ada", "Grace"]})
    clock.pass_by(minutes=1)
    update(table, {"name": ["ADA"], "rowid": [0]})
    clock.pass_by(minutes=1)
    delete(table, [1])
    return table, clock


@pytest.mark.parametrize("unit", ["VERSION", "snapshot"])
def test_each_change_is_a_version(unit: str) -> None:
    table, _ = lived()
    assert catalog_of(table).version().version == 5
    expected = [None, None, [], ["Ada", "Grace"], ["ADA", "Grace"], ["ADA"]]
    assert [names_at(table, unit, number) for number in range(6)] == expected


def test_a_time_is_that_of_the_last_change_before_it() -> None:
    table, _ = lived()
    assert names_at(table, "TIMESTAMP", "2025-01-31 11:59:59") is None
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:00:30") is None
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:01:00") == []
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:02:59") == ["Ada", "Grace"]
    assert names_at(table, "TIMESTAMP", "2025-01-31 14:03:00+02:00") == ["ADA", "Grace"]
    assert names_at(table, "TIMESTAMP", "2035-01-01") == ["ADA"]


@pytest.mark.parametrize("version", [-1, 6, 2**70])
def test_a_version_that_never_was_is_refused_with_those_there_are(version: int) -> None:
    table, _ = lived()
    with pytest.raises(NotFound, match=f"version {version} does not exist: versions 0 to 5 are available"):
        names_at(table, "VERSION", version)


def test_a_point_that_is_none_is_refused() -> None:
    table, _ = lived()
    with pytest.raises(InvalidArgument):
        names_at(table, "VERSION", "one")
    with pytest.raises(InvalidArgument):
        names_at(table, "TIMESTAMP", "yesterday")


def test_a_past_table_has_the_schema_of_its_time() -> None:
    table, _ = lived()
    table.rename_column("name", "label")
    table.add_column(pa.field("age", pa.int32()))
    past = table.at(TimePoint("version", "4"))
    assert past
    assert past.schema.names == ["id", "name", "rowid"]
    assert past.column_statistics("name", "VARCHAR").distinct_count == 2
    assert past.row_count() == 2


def test_the_past_of_a_table_dropped_and_made_anew_is_under_its_name() -> None:
    table, _ = lived()
    schema = catalog_of(table).schema("public")
    assert schema
    schema.drop_table("people")
    anew = schema.create_table(CreateTable("people", PEOPLE))
    assert names_at(anew, "VERSION", 3) == ["Ada", "Grace"]
    assert names_at(anew, "VERSION", 6) is None
    assert names_at(anew, "VERSION", 7) == []


def test_the_oldest_versions_are_dropped() -> None:
    clock = StillClock()
    catalog = MemoryCatalog(schemas=["public"], clock=clock, history=3)
    table = people(catalog)
    for number in range(5):
        clock.pass_by(minutes=1)
        insert(table, {"id": [number], "name": [str(number)]})
    assert names_at(table, "VERSION", 5) == ["0", "1", "2"]
    with pytest.raises(NotFound, match="versions 5 to 7 are available"):
        names_at(table, "VERSION", 4)
    with pytest.raises(NotFound, match="no longer available: the history starts at 2025-01-31T12:03:00"):
        names_at(table, "TIMESTAMP", "2025-01-31 12:02:00")


def test_a_catalog_may_keep_only_the_present() -> None:
    table = people(MemoryCatalog(schemas=["public"], history=1))
    insert(table, {"id": [1], "name": ["Ada"]})
    assert names_at(table, "VERSION", 3) == ["Ada"]
    with pytest.raises(NotFound):
        names_at(table, "VERSION", 2)
    with pytest.raises(InvalidArgument, match="history must be at least 1"):
        MemoryCatalog(history=0)


def test_a_clock_set_back_does_not_put_versions_out_of_order() -> None:
    table, clock = lived()
    clock.pass_by(hours=-1)
    insert(table, {"id": [9], "name": ["late"]})
    assert table._database.store.current.committed_at == NOON + dt.timedelta(minutes=4)
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:04:00") == ["ADA", "late"]
    assert names_at(table, "TIMESTAMP", "2025-01-31 12:03:59") == ["ADA", "Grace"]
    assert content(table) == [(1, "ADA"), (9, "late")]
