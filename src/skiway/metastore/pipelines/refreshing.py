"""One run of a pipeline: what has to be refreshed and why, and the commits.

    inputs and position  ->  decision  ->  the query, on the engine  ->  one commit with rows and position

A table is refreshed by one commit, which has the position as well, and only if the position is still the one that the decision
was made for. So a killed run has changed nothing that counts, the next one continues with the first table that is not done, and
of two runs at once the second commit of each table fails.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, Protocol

import pyarrow as pa

from skiway.errors import AlreadyExists, Cancelled, Conflict, InvalidArgument, PreconditionFailed, SkiwayError
from skiway.formats import TableName
from skiway.formats.iceberg.changes.commits import Replacement, append, checked, delete_all
from skiway.formats.iceberg.changes.evolution import partition_spec
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.metastore.ingest.rows import Target, Written, stored_columns
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.states import ManagedTable, is_certainly_undone
from skiway.metastore.managed.tables import create, create_filled
from skiway.metastore.pipelines.inputs import Input, LakeTables, with_views
from skiway.metastore.pipelines.lineage import (
    PIPELINE,
    Position,
    StoredPosition,
    column_lineage,
    read_position,
    stored_lineage,
)
from skiway.metastore.pipelines.narrowing import narrowed
from skiway.metastore.pipelines.projects import DerivedTable, Project, in_order, key_of, position_of, read_tables
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.reconcile.outcomes import TRANSIENT, Control, Outcome
from skiway.metastore.usage import Usage, add_usage

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


PARTITIONING: Final = "skiway.pipeline.partition-by"

log = logging.getLogger("skiway.pipelines")


class QueryResult(Protocol):
    """The rows of a query, which are not computed yet."""

    def columns(self) -> pa.Schema:
        """The columns of the rows."""

    def write(self, target: Target) -> Written:
        """Compute the rows, and write them into new data files of the target."""


class QueryEngine(Protocol):
    """Runs queries over tables of the lake."""

    def result(
        self, query: Callable[[Mapping[TableName, str]], str], inputs: Mapping[TableName, Input]
    ) -> AbstractContextManager[QueryResult]:
        """The result of a query. `query` returns its text, given the names under which the engine knows the inputs."""


class FunctionEngine(Protocol):
    """Runs Python functions over tables of the lake, for one job."""

    def result(
        self, function: PythonFunction, inputs: Mapping[TableName, Input], control: Control
    ) -> AbstractContextManager[QueryResult]:
        """The result of a function. It ends early if `control` says so."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a table in a run, and why. `inputs` are by the names in the query, with the files that are read.

    `table` has the queries of views in the places of their names.
    """

    table: DerivedTable
    action: Literal["keep", "append", "replace"]
    reason: str
    inputs: Mapping[TableName, Input] = field(default_factory=dict)
    position: Position | None = None
    stored: StoredPosition = field(default_factory=StoredPosition)
    output: ManagedTable | None = None


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A run of a pipeline. `tables` has the rights of its owner; with `again`, all tables are refreshed in full."""

    project: Project
    pipeline_id: str
    tables: LakeTables
    again: bool = False

    def decisions(self) -> dict[str, Decision | str]:
        """What a run would do now, by table in the order of the run; the reason for a table that would fail."""
        found: dict[str, Decision | str] = {}
        changing: set[str] = set()
        failing: set[str] = set()
        for table in in_order(self.project):
            key, above = key_of(table.name), {key_of(each): str(each) for each in read_tables(self.project, table)}
            try:
                self._require_inputs(above, failing)
                with ExitStack() as opened:
                    decision = self.decide(table, opened, pending=changing & above.keys())
                found[str(table.name)] = decision
                changing |= {key} if decision.action != "keep" else set()
            except SkiwayError as error:
                found[str(table.name)] = error.message
                failing.add(key)
        return found

    def source_digest(self) -> str:
        """A digest of all definitions, and of the states of the tables that the pipeline reads and does not make."""
        found: dict[str, object] = {}
        for key, declared in self.project.tables.items():
            try:
                table = with_views(declared, self.project, self.tables)
            except SkiwayError as error:
                table = declared
                found[f"views {key}"] = error.message
            found[f"definition {key}"] = table.digest
            for name in table.reads.values():
                if key_of(name) not in self.project.tables:
                    try:
                        found[key_of(name)] = self.tables.state(name, reader=table.name)
                    except SkiwayError as error:
                        found[key_of(name)] = error.message
        return sha256(repr(sorted(found.items())).encode()).hexdigest()

    def run(self, engine: QueryEngine, control: Control, functions: FunctionEngine | None = None) -> Outcome:
        """Refresh all tables that need it, in order. One that fails stops only those that read it.

        `functions` runs the Python functions, if the operator allows them.
        """
        ordered = in_order(self.project)
        outcome = Outcome()
        outcome.stages.total = len(ordered)
        failed: set[str] = set()
        notes = []
        for table in ordered:
            control.check()
            name = str(table.name)
            outcome.scanned += 1
            outcome.stages.begun(name)
            control.report(outcome.progress)
            above = {key_of(each): str(each) for each in read_tables(self.project, table)}
            try:
                self._require_inputs(above, failed)
                with ExitStack() as opened:
                    decision = self.decide(table, opened)
                    if decision.action != "keep":
                        self._refresh(decision, engine, functions, control)
                        outcome.changed += 1
                notes.append(f"{name}: {decision.action}, {decision.reason}")
            except Cancelled:
                raise
            except Exception as error:  # noqa: BLE001 - one table must not stop the others
                failed.add(key_of(table.name))
                outcome.failures[name] = self._failure(name, error)
                outcome.transient |= isinstance(error, TRANSIENT)
            outcome.stages.ended(name)
            control.report(outcome.progress)
        outcome.note = "; ".join(notes)
        return outcome

    @staticmethod
    def _require_inputs(above: Mapping[str, str], failed: set[str]) -> None:
        names = [name for key, name in above.items() if key in failed]
        if names:
            raise PreconditionFailed(f"skipped, because {', '.join(names)} failed", key="pipeline.skipped")

    def decide(self, declared: DerivedTable, opened: ExitStack, *, pending: AbstractSet[str] = frozenset()) -> Decision:
        """What has to be done to a table. `pending` are the keys of inputs that are refreshed before, in a dry run.

        The inputs can be read until `opened` is closed.
        """
        if isinstance(declared.query, PythonFunction):
            self.tables.require_python(declared.name)
        table = with_views(declared, self.project, self.tables)
        output = self.tables.output(table.name)
        if output is not None and output.metadata.properties.get(PIPELINE) != self.pipeline_id:
            raise AlreadyExists(
                f"table {table.name} exists, and pipeline {self.project.name} did not make it: rename it, or the file {table.file}",
                key="pipeline.output.exists",
                table=str(table.name),
            )
        waits = {written: full for written, full in table.reads.items() if key_of(full) in pending}
        inputs = {
            written: self.tables.input(full, reader=table.name, opened=opened)
            for written, full in table.reads.items()
            if written not in waits
        }
        if output is None:
            self.tables.namespace(table.name.namespace, of=table.name)  # raises if it is missing, also in a dry run
        stored = StoredPosition() if output is None else read_position(output.metadata)
        if waits:
            why = f"{', '.join(map(str, waits.values()))} is refreshed before"
            return Decision(table, "replace", why, stored=stored, output=output)
        states = {key_of(full): inputs[written].state for written, full in table.reads.items()}
        position = Position(table.digest, states)
        action, reason, read = self._choice(table, inputs, position, stored, output)
        return Decision(table, action, reason, read, position, stored, output)

    def _choice(
        self,
        table: DerivedTable,
        inputs: dict[TableName, Input],
        position: Position,
        stored: StoredPosition,
        output: ManagedTable | None,
    ) -> tuple[Literal["keep", "append", "replace"], str, dict[TableName, Input]]:
        if output is None:
            return "replace", "the table does not exist yet", inputs
        before = stored.value
        if self.again:
            return "replace", "a full refresh was asked for", inputs
        if before is None:
            return "replace", "it is not known what its rows were made from", inputs
        if before.definition != position.definition:
            return "replace", "its definition has changed", inputs
        if stored.is_changed:
            return "replace", "others have changed its rows", inputs
        if table.query.changes_by_itself:
            return "replace", "its query depends on the time or on chance", inputs
        changed = sorted(name for name, state in position.inputs.items() if before.inputs.get(name) != state)
        if not changed:
            return "keep", "nothing has changed", inputs
        why = f"{', '.join(changed)} changed"
        if table.refresh == "full":
            return "replace", f"{why}, and its file says so", inputs
        if not_row_wise := table.query.why_not_row_wise:
            return "replace", f"{why}, and {not_row_wise}", inputs
        ((written, read),) = inputs.items()
        appended = read.appended_since(before.inputs[changed[0]])
        if appended is None:
            return "replace", f"{why}, and not only by new rows", inputs
        return "append", f"{', '.join(changed)} has new rows", {written: appended}

    def _refresh(
        self, decision: Decision, engine: QueryEngine, functions: FunctionEngine | None, control: Control
    ) -> None:
        assert decision.position is not None
        with _located(decision.table), _result(decision, engine, functions, control) as result:
            columns = stored_columns(result.columns())
            lineage = _lineage(decision, columns.names)
            output, target, replacement = self._target(decision, columns)
            control.check()
            written = result.write(target)
        ids = {name: read.state.table for name, read in decision.inputs.items()}
        summary = {**decision.position.summary, **stored_lineage(lineage, ids)}
        try:
            control.check()
            if decision.output is None:
                create_filled(self.tables.realm, self.tables.warehouse, output, written.files, properties=summary)
                self._note_use(output.id, ids.values())
                return
            if decision.action == "append":
                producer = append(written.files, properties=summary)
            elif replacement is not None:
                producer = replacement.commit(written.files, properties=summary)
            else:
                producer = delete_all(written.files, properties=summary)
            guarded = checked(producer, lambda metadata: _check_position(metadata, decision.stored))
            change(self.tables.realm, self.tables.warehouse, output.table.resource_id, guarded)
            self._note_use(output.id, ids.values())
        except SkiwayError as error:
            if is_certainly_undone(error):
                target.files.remove(written.paths)
            raise

    def _note_use(self, table_id: str, sources: Iterable[str]) -> None:
        """Record that the table was written from its inputs. Nothing depends on it."""
        realm = self.tables.realm
        used = Usage(writes=1, callers=Counter([realm.caller or "server"]), sources=Counter(set(sources)))
        try:
            add_usage(realm, table_id, realm.clock().date(), used)
        except SkiwayError as error:
            log.warning("the use of table %s was not recorded: %s", table_id, error)

    def _target(self, decision: Decision, columns: pa.Schema) -> tuple[ManagedTable, Target, Replacement | None]:
        """The table that the rows are written to, and how it is replaced if it gets other columns or partitions."""
        table, output = decision.table, decision.output
        version = format_version(columns)
        schema = iceberg_schema(columns, format_version=version)
        spec = partition_spec(schema, table.partition_by) if table.partition_by else None
        own = {PIPELINE: self.pipeline_id, PARTITIONING: table.partition_by}
        if table.description:
            own["comment"] = table.description
        warehouse = self.tables.warehouse
        if output is None:
            made = create(
                self.tables.realm,
                warehouse,
                namespace_id=self.tables.namespace(table.name.namespace, of=table.name).resource_id,
                name=table.name.name,
                schema=schema,
                spec=spec,
                properties={**own, "format-version": str(version)},
                stage=True,
            )
            return made, Target(warehouse.files(made.metadata.location), made.metadata), None
        files = warehouse.files(output.metadata.location)
        is_same = _shape(output.handle.schema.arrow) == _shape(columns)
        if decision.action == "append" or (
            is_same and output.metadata.properties.get(PARTITIONING, "") == table.partition_by
        ):
            return output, Target(files, output.metadata), None
        kept = {**output.metadata.properties, **own}
        replacement = Replacement.of(output.metadata, schema, spec=spec, properties=kept)
        return output, Target(files, replacement.metadata), replacement

    def _failure(self, table: str, error: Exception) -> str:
        if isinstance(error, SkiwayError):
            log.warning("table %s of pipeline %s failed: %s", table, self.project.name, error.message)
            return error.message
        log.error("table %s of pipeline %s failed", table, self.project.name, exc_info=error)
        return "internal error; see the log of the worker"


def _result(
    decision: Decision, engine: QueryEngine, functions: FunctionEngine | None, control: Control
) -> AbstractContextManager[QueryResult]:
    query = decision.table.query
    if not isinstance(query, PythonFunction):
        return engine.result(query.reading, narrowed(query, decision.inputs))
    assert functions is not None, "a worker that allows Python functions has what runs them"
    return functions.result(query, decision.inputs, control)


@contextmanager
def _located(table: DerivedTable) -> Iterator[None]:
    """Run a query in the block. If the engine rejects it, the error names the file, and the position if it is known."""
    try:
        yield
    except InvalidArgument as error:
        if error.key != "pipeline.query.rejected":
            raise
        fragment = error.params.get("fragment", "")
        position = position_of(fragment, table.source)
        place = ", ".join(filter(None, (table.file, position)))
        part = f" (at {fragment})" if fragment else ""
        raise InvalidArgument(f"{place}: {error.message}{part}", key=error.key, file=table.file) from error


def _lineage(decision: Decision, columns: Sequence[str]) -> dict[str, dict[TableName, list[str]]]:
    """The lineage of the columns. What the code of a function does to columns is not known."""
    query = decision.table.query
    if isinstance(query, PythonFunction):
        return {}
    return column_lineage(query, {name: read.columns.names for name, read in decision.inputs.items()}, columns)


def _shape(columns: pa.Schema) -> list[tuple[str, str]]:
    return [(column.name, str(column.type)) for column in columns]


def _check_position(metadata: TableMetadata, stored: StoredPosition) -> None:
    """Raise `Conflict` unless the position of the table is still the stored one."""
    if read_position(metadata).snapshot_id != stored.snapshot_id:
        raise Conflict(
            "another run of the pipeline was faster, so nothing was committed: its rows are there already",
            key="pipeline.overtaken",
        )
