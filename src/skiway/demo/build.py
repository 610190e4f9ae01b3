"""Build the demo lake through the public APIs of its server, as any user would.

The systems of the company store their tables in different formats:

    lift-operations   Iceberg in a SQL catalog: rides by month, lifts
    ticket-desk       Delta: tickets, prices
    mountain-data     Parquet: weather in folders by resort and month, trails as GeoParquet

Each system is a folder. A file next to it marks it as complete; an incomplete folder is written again. The pipeline `reports`
derives tables from the tickets, if Spark is installed. Every step skips what already exists, so that running it again completes
a demo whose build was interrupted.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from skiway.client import AirportClient, Metastore, col
from skiway.demo import dataset
from skiway.demo.dataset import PRICES, PRICES_RAISED, Winter
from skiway.demo.home import DemoHome
from skiway.errors import AlreadyExists, PreconditionFailed, SkiwayError
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

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


PIPELINE: Final = "reports"

PIPELINE_FILES: Final = {
    "pipeline.yml": """\
name: reports
catalog: lake
namespace: reports
description: How well the resorts sell
""",
    "daily_sales.sql": """\
-- @description: Tickets and money by resort and day
SELECT resort, sold_on AS day, count(*) AS tickets, sum(amount) AS sold
FROM sales.tickets
WHERE NOT refunded
GROUP BY resort, sold_on
""",
    "best_days.sql": """\
-- @description: The three best days of each resort
SELECT resort, day, sold
FROM (SELECT *, row_number() OVER (PARTITION BY resort ORDER BY sold DESC, day) AS place FROM daily_sales)
WHERE place <= 3
""",
}
DERIVED: Final = ("best_days", "daily_sales")


def write_pipeline(folder: Path) -> None:
    """Write the files of the pipeline, unless there are some already."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in PIPELINE_FILES.items():
        if not (folder / name).exists():
            (folder / name).write_text(text)


def derive(lake: Metastore, *, timeout_s: float) -> str:
    """Create the pipeline unless it exists, run it, and say what came out. A failure is not one of the demo: the rest works."""
    with suppress(AlreadyExists):
        lake.pipelines.create(PIPELINE_FILES)
    try:
        job = lake.jobs.wait(lake.pipelines.start(PIPELINE), timeout_s=timeout_s, every_s=0.2)
    except SkiwayError as error:
        return f"not derived: {error.message}"
    if job.state != "succeeded":
        return f"not derived: {job.message.message}"
    return f"{len(DERIVED)} tables"


CATALOG: Final = "lake"
CREWS: Final = ("planning", "crews")
MOST_GROOMERS: Final = 6
BRANCH: Final = f"{CATALOG}@next_winter"
"""A branch of the lake where the crews are planned, for users to compare and merge."""
TIMEOUT_S: Final = 600.0

TABLES: Final = [
    (source.name, schema, table) for source in SOURCES for schema, tables in source.tables.items() for table in tables
]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the build, with its number of parts."""

    name: str
    about: str
    parts: int


STEPS: Final = (
    Step("sources", "the systems of the resorts", len(SOURCES)),
    Step("metadata", "tables, schemas, snapshots, files", len(SOURCES)),
    Step("statistics", "every data file, profiled once", len(TABLES)),
    Step("managed", "an Iceberg table, written over Airport", 1),
    Step("derived", "tables of a pipeline, computed by Spark", 1),
)


class Watcher(Protocol):
    """Receives the progress of the build."""

    def begins(self, step: Step, part: str) -> None:
        """A part of a step starts."""

    def ends(self, step: Step, part: str, found: str) -> None:
        """A part of a step is finished; `found` summarizes the result."""


def make(home: DemoHome, *, rpc: str, airport: str, watcher: Watcher) -> None:
    """Build what is missing of the demo, on the server at these addresses."""
    sources, metadata, statistics, managed, derived = STEPS
    with Metastore(rpc, timeout_s=TIMEOUT_S) as lake:
        written_sources = list(_write_sources(home, sources, watcher))
        for source in written_sources:
            with _part(metadata, source.source.name, watcher) as found:
                connector = _connect(lake, source)
                answer = _checked(lake.connectors.capture(connector), source.source.name)
                found.append(f"{answer.tables_scanned} tables")
        for connector, schema, table in TABLES:
            with _part(statistics, f"{schema}.{table}", watcher) as found:
                answer = lake.connectors.capture(connector, statistics=True, namespaces=[(schema,)], table=table)
                _checked(answer, f"{schema}.{table}")
                rows = lake.tables.get(f"{CATALOG}.{schema}.{table}").stats.row_count
                found.append(f"{rows:,} rows")
    with _part(managed, ".".join(CREWS), watcher) as found:
        found.append(f"{_managed(airport):,} rows")
        with Metastore(rpc, timeout_s=TIMEOUT_S) as lake:
            _branched(lake, airport)
        found.append(f"and branch {BRANCH}")
    with _part(derived, PIPELINE, watcher) as found, Metastore(rpc, timeout_s=TIMEOUT_S) as lake:
        if _has_spark():
            found.append(_derived(lake))
            write_pipeline(home.pipeline)
        else:
            found.append("needs Spark: make demo SPARK=1")


def is_missing_pipeline(home: DemoHome) -> bool:
    """Whether the pipeline was left out for lack of Spark, and can be added now."""
    return _has_spark() and not home.pipeline.exists()


def _has_spark() -> bool:
    return find_spec("pyspark") is not None


def warm_spark() -> None:
    """Start Spark in the background, since that takes seconds.

    Errors are ignored here: Spark is started again when it is needed, and reports them then.
    """
    if not _has_spark():
        return

    def start() -> None:
        from skiway.spark_jobs.session import session

        with suppress(Exception):
            session("skiway")

    threading.Thread(target=start, name="spark", daemon=True).start()


@contextmanager
def _part(step: Step, part: str, watcher: Watcher) -> Iterator[list[str]]:
    """Report a part of a step. Texts appended to the list become its summary."""
    watcher.begins(step, part)
    found: list[str] = []
    yield found
    watcher.ends(step, part, ", ".join(found))


def _write_sources(home: DemoHome, step: Step, watcher: Watcher) -> Iterator[Written]:
    remaining = written(home.sources)
    for source in SOURCES:
        with _part(step, source.name, watcher) as found:
            result = next(remaining)
            found.append(f"{sum(map(len, source.tables.values()))} {source.kind} tables")
        yield result


def _connect(lake: Metastore, written_source: Written) -> str:
    """Create the connector of the source unless it exists, and return its name."""
    source = written_source.source
    schema, *more = source.tables
    only = None if more else v1.ConnectorSource(namespace=v1.NamespacePath(segments=[schema]))
    with suppress(AlreadyExists):
        lake.connectors.create(
            source.name,
            kind=source.kind,
            uri=written_source.uri,
            catalog=CATALOG,
            source=only,
            properties=written_source.properties,
            description=source.about,
        )
    return source.name


def _checked(answer: v1.SyncCaptureResponse, what: str) -> v1.SyncCaptureResponse:
    if answer.errors:
        reasons = "; ".join(f"{each.table}: {each.message}" for each in answer.table_errors)
        raise PreconditionFailed(f"{what} could not be synchronized: {reasons or 'unknown reason'}", key="demo.sync")
    return answer


def _derived(lake: Metastore) -> str:
    """Run the pipeline of the demo, and return what came out."""
    with suppress(AlreadyExists):
        lake.namespaces.create(f"{CATALOG}.{PIPELINE}", description="tables of the pipeline reports")
    return derive(lake, timeout_s=TIMEOUT_S)


def _branched(lake: Metastore, airport: str) -> None:
    """Create the branch unless it exists, and change something on it."""
    with suppress(AlreadyExists):
        lake.branches.create(BRANCH, description="the crews of next winter, until they are decided")
    if lake.branches.get(BRANCH).state == "open" and not lake.branches.diff(BRANCH):
        with AirportClient(airport, BRANCH) as db:
            db.update(CREWS, {"note": "one groomer is on holiday"}, where=col("groomers") > MOST_GROOMERS)


def _managed(airport: str) -> int:
    """Create and fill the managed table unless it exists, and return its number of rows."""
    schema, _ = CREWS
    rows = dataset.crews()
    with AirportClient(airport, CATALOG) as db:
        db.create_schema(schema, comment="managed tables, for you to write to", if_not_exists=True)
        db.create_table(CREWS, rows.schema, on_conflict="ignore")
        if not db.count(CREWS):
            db.insert(CREWS, rows)
        return db.count(CREWS)
