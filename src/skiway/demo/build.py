"""The making of the demo lake, through the doors of its server as any user would do it.

Every step finds what is there already, so a demo whose making was interrupted is mended by making it again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from skiway.client import AirportClient, Metastore
from skiway.demo import records
from skiway.demo.home import DemoHome
from skiway.demo.sources import SOURCES, Written, written
from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.model import v1

__all__ = ["CATALOG", "CREWS", "STEPS", "Step", "Watcher", "make", "warm_spark"]

CATALOG: Final = "lake"
CREWS: Final = ("planning", "crews")
PATIENCE_S: Final = 600.0

TABLES: Final = [
    (source.name, schema, table) for source in SOURCES for schema, tables in source.tables.items() for table in tables
]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the making, and of how many parts it is."""

    name: str
    about: str
    parts: int


STEPS: Final = (
    Step("sources", "what the resorts' systems hold", len(SOURCES)),
    Step("metadata", "tables, schemas, snapshots, files", len(SOURCES)),
    Step("statistics", "every data file, once, on Spark", len(TABLES)),
    Step("managed", "an Iceberg table, over Airport", 1),
)


class Watcher(Protocol):
    """Is told how far the making is."""

    def begins(self, step: Step, part: str) -> None:
        """A part of a step begins."""

    def ends(self, step: Step, part: str, found: str) -> None:
        """It is done, and that is what came of it."""


def make(home: DemoHome, *, rpc: str, airport: str, watcher: Watcher) -> None:
    """Make what is missing of the demo, on the server at these addresses."""
    sources, metadata, statistics, managed = STEPS
    with Metastore(rpc, timeout_s=PATIENCE_S) as lake:
        made = list(_written(home, sources, watcher))
        for source in made:
            with _part(metadata, source.source.name, watcher) as found:
                connector = _connected(lake, source)
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


def warm_spark() -> None:
    """Start Spark on a thread of its own: it takes seconds, in which there is other work.

    What fails is told when Spark is needed, and started again.
    """

    def start() -> None:
        from skiway.pipeline.session import SparkPlace

        with suppress(Exception):
            SparkPlace().session()

    threading.Thread(target=start, name="spark", daemon=True).start()


@contextmanager
def _part(step: Step, part: str, watcher: Watcher) -> Iterator[list[str]]:
    """A part of a step; what is put into the list is told of it."""
    watcher.begins(step, part)
    found: list[str] = []
    yield found
    watcher.ends(step, part, ", ".join(found))


def _written(home: DemoHome, step: Step, watcher: Watcher) -> Iterator[Written]:
    remaining = written(home.sources)
    for source in SOURCES:
        with _part(step, source.name, watcher) as found:
            made = next(remaining)
            found.append(f"{sum(map(len, source.tables.values()))} {source.kind} tables")
        yield made


def _connected(lake: Metastore, made: Written) -> str:
    """The name of the source's connector, which is made unless it is there."""
    source = made.source
    schema, *more = source.tables
    only = None if more else v1.ConnectorSource(namespace=v1.NamespacePath(segments=[schema]))
    with suppress(AlreadyExists):
        lake.connectors.create(
            source.name,
            kind=source.kind,
            uri=made.uri,
            catalog=CATALOG,
            source=only,
            properties=made.properties,
            description=source.about,
        )
    return source.name


def _checked(answer: v1.SyncCaptureResponse, what: str) -> v1.SyncCaptureResponse:
    if answer.errors:
        told = "; ".join(f"{each.table}: {each.message}" for each in answer.table_errors)
        raise PreconditionFailed(f"{what} could not be synchronised: {told or 'no reason was given'}", key="demo.sync")
    return answer


def _managed(airport: str) -> int:
    """How many rows the managed table has; made, and filled, unless that was done."""
    schema, _ = CREWS
    rows = records.crews()
    with AirportClient(airport, CATALOG) as db:
        db.create_schema(schema, comment="made here, for you to write to", if_not_exists=True)
        db.create_table(CREWS, rows.schema, on_conflict="ignore")
        if not db.count(CREWS):
            db.insert(CREWS, rows)
        return db.count(CREWS)
