"""Build the demo lake through the public APIs of its server, as any user would.

Every step skips what already exists, so that running it again completes a demo whose build was interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from skiway.client import AirportClient, Metastore
from skiway.demo import dataset, reports
from skiway.demo.home import DemoHome
from skiway.demo.sources import SOURCES, Written, written
from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.model import v1

__all__ = ["CATALOG", "CREWS", "STEPS", "Step", "Watcher", "make", "warm_spark"]

CATALOG: Final = "lake"
CREWS: Final = ("planning", "crews")
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
    with _part(derived, reports.NAME, watcher) as found, Metastore(rpc, timeout_s=TIMEOUT_S) as lake:
        reports.write_files(home.pipeline)
        found.append(_derived(lake))


def warm_spark() -> None:
    """Start Spark in the background, since that takes seconds.

    Errors are ignored here: Spark is started again when it is needed, and reports them then.
    """

    def start() -> None:
        from skiway.pipeline.session import session

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
        lake.namespaces.create(f"{CATALOG}.{reports.NAME}", description="tables of the pipeline reports")
    return reports.derive(lake, timeout_s=TIMEOUT_S)


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
