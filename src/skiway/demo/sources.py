"""The company's systems, each of which keeps its tables in a way of its own.

    lift-operations   Iceberg in a SQL catalog: rides by month, lifts
    ticket-desk       Delta: tickets, prices
    mountain-data     Parquet: weather in folders by resort and month, trails as GeoParquet

Each is a folder, and written whole: a file beside it says that it is. What was begun and not finished is begun anew.
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

from skiway.demo import records
from skiway.demo.winter import PRICES, PRICES_RAISED, Winter

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
    """A system to connect: how it is called and kept, and its tables here, by schema."""

    name: str
    kind: str
    about: str
    tables: Mapping[str, tuple[str, ...]]
    write: Callable[[Path, Winter], None]


@dataclass(frozen=True)
class Written:
    """A source that is there. `uri` and `properties` are what its connector is told."""

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
    """The sources below `folder`, one after the other; those that are missing are written."""
    winter = Winter.made()
    for source in SOURCES:
        here, done = folder / source.name, folder / f"{source.name}.done"
        if not done.exists():
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir(parents=True)
            source.write(here, winter)
            done.touch()
        yield Written(source, here)


def lift_operations(folder: Path, winter: Winter) -> None:
    """A snapshot for each month; from February on the gates measure waiting times."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.transforms import MonthTransform
    from pyiceberg.types import IntegerType

    (folder / "warehouse").mkdir()
    rides = records.rides(winter)
    months = _by_month(rides, "scanned_at")
    with SqlCatalog(ICEBERG_CATALOG, uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder / "warehouse")) as to:
        to.create_namespace("lifts")
        table = to.create_table("lifts.rides", records.RIDES.remove(5))
        with table.update_spec() as spec:
            spec.add_field("scanned_at", MonthTransform(), "month")
        for number, rows in enumerate(months):
            if number == 2:
                with table.update_schema() as change:
                    change.add_column("wait_s", IntegerType(), doc="seconds in the queue before the gate")
            table.append(rows if number >= 2 else rows.drop(["wait_s"]))
            if number == 0:
                _tag(table, OPENING)
        to.create_table("lifts.lifts", records.lifts().schema).append(records.lifts())


def _tag(table: IcebergTable, name: str) -> None:
    now = table.current_snapshot()
    assert now is not None
    table.manage_snapshots().create_tag(now.snapshot_id, name).commit()


def ticket_desk(folder: Path, winter: Winter) -> None:
    """Tickets month by month, then the refunds of the stormiest day; prices before and after they were raised."""
    from deltalake import DeltaTable, write_deltalake

    tickets = folder / "sales" / "tickets"
    for rows in _by_month(records.tickets(winter), "sold_on"):
        write_deltalake(str(tickets), rows, mode="append")
    resort, day = winter.worst_day
    DeltaTable(str(tickets)).update(
        predicate=f"resort = '{resort}' AND sold_on = date '{day}'", updates={"refunded": "true"}
    )
    for prices in (PRICES, PRICES_RAISED):
        write_deltalake(str(folder / "sales" / "prices"), records.price_list(prices), mode="overwrite")


def mountain_data(folder: Path, winter: Winter) -> None:
    """Weather by resort and month, and the map of trails with its geometries."""
    import pyarrow.parquet as pq

    to = folder / "weather" / "readings"
    pq.write_to_dataset(
        records.weather(winter),
        str(to),
        partition_cols=["resort", "month"],
        basename_template="readings-{i}.parquet",
        existing_data_behavior="overwrite_or_ignore",
    )
    (folder / "maps" / "trails").mkdir(parents=True)
    trails = records.trails().replace_schema_metadata({"geo": json.dumps(_GEO)})
    pq.write_table(trails, folder / "maps" / "trails" / "trails.parquet")


def _by_month(rows: pa.Table, column: str) -> list[pa.Table]:
    months = pc.strftime(rows[column].cast(pa.timestamp("us")), "%Y-%m")
    return [rows.filter(pc.equal(months, month)) for month in sorted(pc.unique(months).to_pylist())]


SOURCES: Final = (
    SourceKind("lift-operations", "iceberg", "gates of the lifts", {"lifts": ("lifts", "rides")}, lift_operations),
    SourceKind("ticket-desk", "delta", "what was sold", {"sales": ("prices", "tickets")}, ticket_desk),
    SourceKind(
        "mountain-data",
        "parquet",
        "weather stations and maps",
        {"maps": ("trails",), "weather": ("readings",)},
        mountain_data,
    ),
)
