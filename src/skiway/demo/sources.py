"""The systems of the company, which store their tables in different formats.

    lift-operations   Iceberg in a SQL catalog: rides by month, lifts
    ticket-desk       Delta: tickets, prices
    mountain-data     Parquet: weather in folders by resort and month, trails as GeoParquet

Each system is a folder. A file next to it marks it as complete; an incomplete folder is written again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.demo import dataset
from skiway.demo.dataset import PRICES, PRICES_RAISED, Winter

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

__all__ = ["SOURCES", "SourceKind", "Written", "written"]

ICEBERG_CATALOG: Final = "operations"
OPENING: Final = "opening-month"
_GEO: Final = {
    "version": "1.1.0",
    "primary_column": "route",
    "columns": {"route": {"encoding": "WKB", "geometry_types": ["LineString"]}},
}


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A system: its name, connector kind, description, tables by schema, and the function that writes it."""

    name: str
    kind: str
    about: str
    tables: Mapping[str, tuple[str, ...]]
    write: Callable[[Path, Winter], None]


@dataclass(frozen=True)
class Written:
    """A source that has been written. `uri` and `properties` are for its connector."""

    source: SourceKind
    folder: Path

    @cached_property
    def uri(self) -> str:
        return f"sqlite:///{self.folder}/catalog.db" if self.source.kind == "iceberg" else str(self.folder)

    @cached_property
    def properties(self) -> dict[str, str]:
        if self.source.kind != "iceberg":
            return {}
        return {"catalog-name": ICEBERG_CATALOG, "warehouse": str(self.folder / "warehouse")}


def written(folder: Path) -> Iterator[Written]:
    """The sources in `folder`, one after the other; missing ones are written."""
    winter = Winter.generate()
    for source in SOURCES:
        here, done = folder / source.name, folder / f"{source.name}.done"
        if not done.exists():
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir(parents=True)
            source.write(here, winter)
            done.touch()
        yield Written(source, here)


def lift_operations(folder: Path, winter: Winter) -> None:
    """Write a snapshot per month; from February on, with waiting times."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import MonthTransform
    from pyiceberg.types import IntegerType

    (folder / "warehouse").mkdir()
    rides = dataset.rides(winter)
    months = _by_month(rides, "scanned_at")
    with SqlCatalog(ICEBERG_CATALOG, uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder / "warehouse")) as to:
        to.create_namespace("lifts")
        table = to.create_table("lifts.rides", dataset.RIDES.remove(5))
        with table.update_spec() as spec:
            spec.add_field("scanned_at", MonthTransform(), "month")
        for number, rows in enumerate(months):
            if number == 2:
                with table.update_schema() as change:
                    change.add_column("wait_s", IntegerType(), doc="seconds in the queue before the gate")
            table.append(rows if number >= 2 else rows.drop(["wait_s"]))
            if number == 0:
                _tag(table, OPENING)
        to.create_table("lifts.lifts", dataset.lifts().schema).append(dataset.lifts())


def _tag(table: IcebergTable, name: str) -> None:
    current = table.current_snapshot()
    assert current is not None
    table.manage_snapshots().create_tag(current.snapshot_id, name).commit()


def ticket_desk(folder: Path, winter: Winter) -> None:
    """Write the tickets by month, then the refunds of the stormiest day; and prices before and after an increase."""
    from deltalake import DeltaTable, write_deltalake

    tickets = folder / "sales" / "tickets"
    for rows in _by_month(dataset.tickets(winter), "sold_on"):
        write_deltalake(str(tickets), rows, mode="append")
    resort, day = winter.worst_day
    DeltaTable(str(tickets)).update(
        predicate=f"resort = '{resort}' AND sold_on = date '{day}'", updates={"refunded": "true"}
    )
    for prices in (PRICES, PRICES_RAISED):
        write_deltalake(str(folder / "sales" / "prices"), dataset.price_list(prices), mode="overwrite")


def mountain_data(folder: Path, winter: Winter) -> None:
    """Write the weather by resort and month, and the trails with their geometries."""
    import pyarrow.parquet as pq

    to = folder / "weather" / "readings"
    pq.write_to_dataset(
        dataset.weather(winter),
        str(to),
        partition_cols=["resort", "month"],
        basename_template="readings-{i}.parquet",
        existing_data_behavior="overwrite_or_ignore",
    )
    (folder / "maps" / "trails").mkdir(parents=True)
    trails = dataset.trails().replace_schema_metadata({"geo": json.dumps(_GEO)})
    pq.write_table(trails, folder / "maps" / "trails" / "trails.parquet")


def _by_month(rows: pa.Table, column: str) -> list[pa.Table]:
    months = pc.strftime(rows[column].cast(pa.timestamp("us")), "%Y-%m")
    return [rows.filter(pc.equal(months, month)) for month in sorted(pc.unique(months).to_pylist())]


SOURCES: Final = (
    SourceKind("lift-operations", "iceberg", "lift gates", {"lifts": ("lifts", "rides")}, lift_operations),
    SourceKind("ticket-desk", "delta", "ticket sales", {"sales": ("prices", "tickets")}, ticket_desk),
    SourceKind(
        "mountain-data",
        "parquet",
        "weather stations and maps",
        {"maps": ("trails",), "weather": ("readings",)},
        mountain_data,
    ),
)
