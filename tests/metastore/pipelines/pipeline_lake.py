"""A lake with a pipeline, in tests without Spark: DuckDB runs the queries in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from pyiceberg.table import StaticTable

from metastore.managed_table_factory import ManagedTableFactory
from skiway.errors import InvalidArgument
from skiway.formats import FILE_ORDINAL, TableName
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import Realm, managed
from skiway.metastore.ingest.rows import Target, Written, write_rows
from skiway.metastore.managed import ManagedTable
from skiway.metastore.pipelines.inputs import Input, LakeTables, RowParts
from skiway.metastore.pipelines.models.incremental import FILE
from skiway.metastore.pipelines.models.statements import Decision, QueryEngine
from skiway.metastore.pipelines.projects import read_project
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.pipelines.refreshing import PipelineRun
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.security import MemorySecrets

ORDERS = pa.schema({"id": pa.int64(), "region": pa.string(), "price": pa.int64()})


@dataclass
class DuckQueries:
    """Runs queries on DuckDB, and records them."""

    queries: list[str] = field(default_factory=list)
    rows_read: int = 0

    @contextmanager
    def result(
        self, query: Callable[[Mapping[TableName, str]], str], inputs: Mapping[TableName, Input]
    ) -> Iterator[DuckResult]:
        with duckdb.connect() as database:
            views = {name: f"v{number}" for number, name in enumerate(inputs)}
            for name, read in inputs.items():
                rows = _rows(read)
                self.rows_read += rows.num_rows
                database.register(views[name], rows)
            text = query(views)
            self.queries.append(text)
            (translated,) = sqlglot.transpile(text, read="spark", write="duckdb")
            try:
                yield DuckResult(database.execute(translated).to_arrow_table())
            except duckdb.Error as error:
                raise InvalidArgument(f"the engine rejects the query: {error}", key="query") from None


@dataclass
class DuckResult:
    rows: pa.Table

    def columns(self) -> pa.Schema:
        return self.rows.schema

    def write(self, target: Target) -> Written:
        return write_rows(target, self.rows.to_batches())

    def written_by(self, write: Callable[[Iterable[pa.RecordBatch]], Any]) -> list[Any]:
        half = self.rows.num_rows // 2
        return [write(part.to_batches()) for part in (self.rows.slice(0, half), self.rows.slice(half))]

    def values(self) -> pa.Table:
        return self.rows


@dataclass
class LocalFunctions:
    """Runs functions of tests, by the names of their tables, in the place of the code in the files. They get and return Arrow tables."""

    functions: dict[str, Callable[[dict[str, pa.Table]], pa.Table]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    @contextmanager
    def result(
        self, function: PythonFunction, inputs: Mapping[TableName, Input], control: Control
    ) -> Iterator[DuckResult]:
        self.calls.append(function.table)
        yield DuckResult(self.functions[function.table]({str(name): _rows(read) for name, read in inputs.items()}))


def _rows(read: Input) -> pa.Table:
    if isinstance(read.rows, RowParts):
        return pa.Table.from_batches([batch for part in read.rows.parts for batch in part.batches()], read.rows.schema)
    if read.rows is not None:
        return read.rows
    if read.snapshot is None:
        return read.columns.empty_table()
    chosen = list(read.columns.names if read.selected is None else read.selected)
    more = {"columns": chosen, "filter": read.where}
    if not read.is_numbered:
        return read.handle.read(read.snapshot, files=read.files, schema=read.columns, **more).read_all()
    rows = read.handle.read(read.snapshot, files=read.files, schema=read.columns, positions=True, **more).read_all()
    return rows.select([*chosen, FILE_ORDINAL]).rename_columns([*chosen, FILE])


@dataclass
class PipelineLake:
    """A lake whose first namespace has the tables of a pipeline. `queries` are the files, without the suffix `.sql`."""

    lake: ManagedTableFactory
    queries: dict[str, str] = field(default_factory=dict)
    engine: Any = field(default_factory=DuckQueries)
    realm: Realm | None = None
    functions: LocalFunctions | None = None

    def pipeline(self, *, again: bool = False) -> PipelineRun:
        space, catalog = self.lake.factory.first_namespace(), self.lake.factory.first_catalog().display_name
        path = ".".join((*space.parents, space.display_name))
        head = f"name: sales\ncatalog: {catalog}\nnamespace: {path}\n"
        suffixes = (".py", ".yml", ".csv")
        files = {name if name.endswith(suffixes) else f"{name}.sql": text for name, text in self.queries.items()}
        project = read_project({"pipeline.yml": head, **files})
        reconciler = Reconciler(MemorySecrets(), warehouse=self.lake.warehouse)
        allows_python = self.functions is not None
        tables = LakeTables(self.realm or self.lake.home, catalog, reconciler, self.lake.home, allows_python)
        return PipelineRun(project, "p1", tables, again)

    def run(
        self,
        *,
        again: bool = False,
        select: Sequence[str] = (),
        engine: QueryEngine | None = None,
        control: Control | None = None,
    ) -> Outcome:
        return replace(self.pipeline(again=again), select=select).run(
            engine or self.engine, control or Control(), self.functions
        )

    def actions(self) -> dict[str, str]:
        """What a run would do, by the names of the tables."""
        found = self.pipeline().decisions()
        return {
            name.rpartition(".")[2]: each.action if isinstance(each, Decision) else each for name, each in found.items()
        }

    def reasons(self) -> dict[str, str]:
        """Why a run would do that."""
        found = self.pipeline().decisions()
        return {
            name.rpartition(".")[2]: each.reason if isinstance(each, Decision) else each for name, each in found.items()
        }

    def create(self, name: str = "orders", schema: pa.Schema = ORDERS) -> ManagedTable:
        return self.lake.create(name, schema)

    def append(self, table: ManagedTable, *rows: tuple[Any, ...]) -> None:
        now = self.lake.load(table)
        columns = now.handle.schema.arrow
        arrays = [pa.array(column, each.type) for column, each in zip(zip(*rows, strict=True), columns, strict=True)]
        with DataFileWriter(now.files, now.metadata) as writer:
            writer.write(pa.record_batch(arrays, names=columns.names))
            files = writer.close()
        managed.change(self.lake.home, self.lake.warehouse, now.table.resource_id, append(files))

    def table(self, name: str) -> ManagedTable:
        found = self.pipeline().tables.output(TableName(self.pipeline().project.namespace, name))
        assert found is not None
        return found

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a table, sorted, as PyIceberg reads them."""
        found = StaticTable.from_metadata(self.table(name).metadata_location).scan().to_arrow().to_pylist()
        return sorted((tuple(each.values()) for each in found), key=repr)
