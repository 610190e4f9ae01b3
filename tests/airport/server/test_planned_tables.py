"""Scans in several parts, tables bound to the schema that a client knows, and catalogs that can be listed."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from skiway.airport import (
    Bindable,
    Catalog,
    CatalogBuilder,
    Catalogs,
    ColumnStatistics,
    HasStatistics,
    Planned,
    ScanOptions,
    Server,
    Table,
    TimePoint,
    TimeTravel,
)
from skiway.client import AirportClient, col
from skiway.errors import PreconditionFailed


class Numbers(Table, Planned):
    """Numbers in parts of ten; `plan` sets how many parts."""

    name = "numbers"
    schema = pa.schema({"n": pa.int64()})

    def __init__(self) -> None:
        self.parts = 3
        self.requests: list[ScanOptions] = []

    def plan(self, options: ScanOptions) -> Sequence[bytes]:
        self.requests.append(options)
        return [str(part).encode() for part in range(self.parts)]

    def scan(self, options: ScanOptions) -> pa.Table:
        assert options.part is not None
        start = int(options.part) * 10
        return pa.table({"n": range(start, start + 10)})


def served(table: Table) -> Server:
    builder = CatalogBuilder("demo")
    builder.schema("s").table(table)
    return Server(builder.build(), port=0)


def test_rows_of_all_parts_of_a_plan_are_returned() -> None:
    table = Numbers()
    with served(table) as server, AirportClient(server.location, "demo") as db:
        assert sorted(db.scan("s.numbers").read_all()["n"].to_pylist()) == list(range(30))
        assert len(db.endpoints("s.numbers", columns=["n"], where=col("n") > 7)) == 3
    assert table.requests[-1].columns == ["n"]
    assert table.requests[-1].filter
    assert table.requests[-1].part is None


def test_a_plan_without_parts_has_no_rows() -> None:
    table = Numbers()
    table.parts = 0
    with served(table) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.numbers").read_all().num_rows == 0


class Changing(Table, Bindable):
    """A table with the columns of its current version, or of the version that a client knows."""

    name = "changing"

    def __init__(self, version: int = 1) -> None:
        self.version = version

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({f"c{number}": pa.int64() for number in range(self.version)})

    def scan(self, options: ScanOptions) -> pa.Table:
        return pa.table({name: [1] for name in self.schema.names})

    def binding(self) -> str:
        return str(self.version)

    def bound(self, binding: str) -> Changing:
        if int(binding) < 2:
            raise PreconditionFailed("the table changed: DETACH and ATTACH again")
        return Changing(int(binding))


def test_client_gets_the_schema_that_it_knows() -> None:
    table = Changing(version=2)
    with served(table) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.changing").read_all().column_names == ["c0", "c1"]
        table.version = 3
        assert db.scan("s.changing").read_all().column_names == ["c0", "c1"]
        by_hand = db.take_flight(["demo", "s", "changing"]).read_all()
        assert by_hand.column_names == ["c0", "c1", "c2"]


def test_stale_binding_is_reported() -> None:
    with (
        served(Changing(version=1)) as server,
        AirportClient(server.location, "demo") as db,
        pytest.raises(PreconditionFailed, match="DETACH and ATTACH again"),
    ):
        db.scan("s.changing").read_all()


class Named:
    """Catalogs by name, all of them listed."""

    def find(self, name: str) -> Catalog | None:
        return CatalogBuilder(name).build() if name in self.names() else None

    def names(self) -> Sequence[str]:
        return ["one", "two"]


def test_resolved_catalogs_can_be_listed() -> None:
    assert isinstance(Named(), Catalogs)
    with Server(Named(), port=0) as server, AirportClient(server.location, "two") as db:
        assert db.schemas() == []
        assert db.databases()["name"].to_pylist() == ["one", "two"]


class Known(Table, HasStatistics, TimeTravel):
    """A table that had another column in the past, with statistics for the current one."""

    name = "known"

    def __init__(self, column: str = "now") -> None:
        self._column = column

    @property
    def schema(self) -> pa.Schema:
        return pa.schema({self._column: pa.int64()})

    def scan(self, options: ScanOptions) -> pa.Table:
        return pa.table({self.schema.names[0]: [1, 2]})

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        return ColumnStatistics(min=1, max=2, has_null=False, has_not_null=True)

    def at(self, point: TimePoint) -> Known:
        return Known("before")


def test_past_table_announces_no_statistics() -> None:
    """Clients request statistics without a time point, so they would get the current ones."""
    with served(Known()) as server, AirportClient(server.location, "demo") as db:
        assert db.statistics("s.known", "now").max == 2
        assert db.scan("s.known", at_version=1).read_all().column_names == ["before"]


def test_large_batch_with_different_nullability_than_announced_arrives() -> None:
    builder = CatalogBuilder("demo")
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])

    @builder.schema("s").table(schema=schema, name="numbers")
    def numbers(scan: ScanOptions) -> pa.Table:
        return pa.table({"n": range(100_000)})

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.numbers").read_all().num_rows == 100_000
