"""Copies of changes from a real PostgreSQL, in tests without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import StaticTable

from metastore.ingest.copies import here
from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import DuckQueries
from skiway.formats import TableName
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Copy, CopyPlace, find_target
from skiway.metastore.managed import ManagedTable
from skiway.metastore.pipelines.models.loads import LoadExpectations
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs.ingest.postgres_log import STEP_CHANGES, LogSource, open_log
from spark_jobs.ingest_sources import PASSWORD, USER, Postgres, running_postgres_on_tcp


@contextmanager
def running_postgres_with_a_log() -> Iterator[Postgres]:
    with running_postgres_on_tcp() as postgres:
        postgres.run("ALTER SYSTEM SET wal_level = 'logical'", f"ALTER USER {USER} REPLICATION")
        postgres.run(f"GRANT CREATE ON DATABASE postgres TO {USER}")
        postgres.restart()
        yield postgres


@dataclass
class LogCopy:
    """The copy of the changes of one table."""

    lake: ManagedTableFactory
    postgres: Postgres
    schema: str
    name: str = "t"
    rules: CopyRules = field(default_factory=lambda: CopyRules(CopyMode.UPSERT))
    step_changes: int = STEP_CHANGES
    check: Callable[[], None] = lambda: None
    options: dict[str, str] = field(default_factory=dict)
    password: str = PASSWORD

    def run(self, *statements: str) -> None:
        self.postgres.run(*(each.replace("$t", f"{self.schema}.{self.name}") for each in statements))

    def opened(self) -> LogSource:
        found = open_log(
            here,
            self.postgres.uri,
            f"c-{self.schema}",
            options=self.options,
            credentials={"password": self.password},
            access=SourceAccess(),
            step_changes=self.step_changes,
        )
        assert isinstance(found, LogSource)
        return found

    @property
    def place(self) -> CopyPlace:
        return CopyPlace("c1", self.name, self.lake.factory.first_namespace().resource_id, self.name)

    def load(self, **how: Any) -> bool:
        name, home, warehouse = TableName((self.schema,), self.name), self.lake.home, self.lake.warehouse
        with closing(self.opened()) as source:
            rules = source.rules_of(name, self.rules)
            judged = LoadExpectations.of(DuckQueries(), home, warehouse, "pg.t", rules.expect)
            copy = Copy(home, warehouse, self.place, rules, here, self.check, judged)
            return copy.load(source.copied(name), **how)

    def table(self) -> ManagedTable:
        found = find_target(self.lake.home, self.lake.warehouse, self.place)
        assert found is not None
        return found

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """The rows of the copy, sorted, as PyIceberg reads them."""
        found = StaticTable.from_metadata(self.table().metadata_location).scan().to_arrow()
        found = found.select(list(columns)) if columns else found
        return sorted((tuple(each.values()) for each in found.to_pylist()), key=repr)

    def source_rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.postgres.rows(f"SELECT * FROM {self.schema}.{self.name}"), key=repr)

    def slot(self) -> tuple[Any, ...]:
        """The slot of the table: how much of the log it keeps."""
        ((found),) = self.postgres.rows(
            "SELECT slot_name, pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
        )
        return found
