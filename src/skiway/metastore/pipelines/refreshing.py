"""One run of a pipeline: what has to be refreshed and why, and the commits.

    inputs and position  ->  decision  ->  the query, on the engine  ->  one commit with rows and position

A table is refreshed by one commit, which has the position as well, and only if the position is still the one that the decision
was made for. So a killed run has changed nothing that counts, the next one continues with the first table that is not done, and
of two runs at once the second commit of each table fails.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow as pa

from skiway.errors import AlreadyExists, Cancelled, InvalidArgument, PreconditionFailed, SkiwayError
from skiway.formats import TableName, data_files
from skiway.metastore.ingest.rows import stored_columns
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.pipelines.inputs import Input, LakeTables, with_views
from skiway.metastore.pipelines.lineage import (
    PIPELINE,
    InputState,
    Position,
    StoredPosition,
    column_lineage,
    read_position,
    stored_lineage,
)
from skiway.metastore.pipelines.models.expectations import (
    CARRIED,
    Split,
    SplitRows,
    require_columns,
    require_met,
    verdicts_on,
)
from skiway.metastore.pipelines.models.publishing import Publication, described, quarantine
from skiway.metastore.pipelines.models.reporting import (
    assertions_on,
    dataset_of,
    notes_on,
    record_verdicts,
    with_earlier,
)
from skiway.metastore.pipelines.models.statements import (
    Changed,
    Decision,
    FunctionEngine,
    QueryEngine,
    Statement,
    moment,
)
from skiway.metastore.pipelines.projects import (
    SEED,
    DerivedTable,
    Project,
    in_order,
    key_of,
    position_of,
    read_tables,
    selected,
)
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.pipelines.spark_sql import Query
from skiway.metastore.quality.verdicts import Verdicts, age_of, stored_verdicts
from skiway.metastore.reconcile.outcomes import TRANSIENT, Control, Outcome
from skiway.metastore.usage import Usage, add_usage
from skiway.telemetry.lineage import Dataset, LineageRun

log = logging.getLogger("skiway.pipelines")


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A run of a pipeline. `tables` has the rights of its owner; with `again`, all tables are refreshed in full."""

    project: Project
    pipeline_id: str
    tables: LakeTables
    again: bool = False
    select: Sequence[str] = ()

    def ordered(self) -> list[DerivedTable]:
        """The selected tables, each after those that it reads."""
        chosen = selected(self.project, self.select, self._changed)
        return [table for table in in_order(self.project) if key_of(table.name) in chosen]

    def _changed(self) -> set[str]:
        """The keys of the tables that do not exist, or were made from another definition."""
        found = set[str]()
        for key, declared in self.project.tables.items():
            output = self.tables.output(declared.name)
            stored = None if output is None else read_position(output.metadata).value
            try:
                digest = with_views(declared, self.project, self.tables).digest
            except SkiwayError:
                digest = ""
            if stored is None or stored.definition != digest:
                found.add(key)
        return found

    def decisions(self) -> dict[str, Decision | str]:
        """What a run would do now, by table in the order of the run; the reason for a table that would fail."""
        found: dict[str, Decision | str] = {}
        changing: set[str] = set()
        failing: set[str] = set()
        for table in self.ordered():
            key, above = key_of(table.name), {key_of(each): str(each) for each in read_tables(self.project, table)}
            try:
                self._require_inputs(above, failing)
                with ExitStack() as opened:
                    decision = self.decide(table, opened, pending=changing & above.keys())
                    stale = self._stale(decision)
                    if stale:
                        decision = replace(decision, reason="; ".join((decision.reason, *stale)))
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
        with self.tables.reconciler.lineage.run(self.project.name, "PIPELINE", later=True) as whole:
            return self._run(engine, control, functions, whole)

    def _run(
        self, engine: QueryEngine, control: Control, functions: FunctionEngine | None, whole: LineageRun
    ) -> Outcome:
        ordered = self.ordered()
        outcome = Outcome()
        outcome.stages.total = len(ordered)
        failed: set[str] = set()
        notes: list[str] = []
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
                    notes += self._stale(decision)
                    if decision.action != "keep":
                        job = f"{self.project.name}.{name}"
                        with self.tables.reconciler.lineage.run(job, "MODEL", parent=whole) as made:
                            verdicts = self._refresh(decision, engine, functions, control, made)
                        outcome.changed += 1
                        notes += notes_on(name, table.rules, verdicts)
                self._describe(decision)
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
        whole.is_quiet = not outcome.changed and not outcome.failures
        return outcome

    def _stale(self, decision: Decision) -> list[str]:
        """Warnings that sources are not fresh. Raise `PreconditionFailed` if one is too old for a refresh."""
        found = []
        for written, read in decision.inputs.items():
            name = decision.table.reads.get(written)
            limits = None if name is None else self.project.sources.get(key_of(name))
            if limits is None or read.snapshot is None:
                continue
            age = self.tables.realm.clock() - read.snapshot.created_at
            text = f"the newest snapshot of {name} is {age_of(age)} old"
            if limits.error_after is not None and age > limits.error_after:
                raise PreconditionFailed(
                    f"{text}, and the limit is {age_of(limits.error_after)}: load it, or change its freshness",
                    key="pipeline.source.stale",
                    table=str(name),
                )
            if limits.warn_after is not None and age > limits.warn_after:
                found.append(f"{text}; it should be at most {age_of(limits.warn_after)} old")
        return found

    def _describe(self, decision: Decision) -> None:
        """Give the columns of a table the descriptions that the files have."""
        output = self.tables.output(decision.table.name) if decision.table.columns else None
        if output is not None:
            described(self.tables, decision.table, output)

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
        if table.seed is not None:
            seeds = {SEED: Input.of_rows(table.seed)}
            stored = StoredPosition() if output is None else read_position(output.metadata)
            if output is None:
                self.tables.namespace(table.name.namespace, of=table.name)
            return self._choice(Decision(table, "replace", "", seeds, Position(table.digest, {}), stored, output))
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
        decision = Decision(table, "replace", "", inputs, position, stored, output)
        return self._choice(decision)

    def _choice(self, decision: Decision) -> Decision:
        table, position, stored, inputs = decision.table, decision.position, decision.stored, decision.inputs
        assert position is not None

        def replaced(reason: str) -> Decision:
            return replace(decision, reason=reason)

        if decision.output is None:
            return replaced("the table does not exist yet")
        before = stored.value
        if self.again:
            return replaced("a full refresh was asked for")
        if before is None:
            return replaced("it is not known what its rows were made from")
        if before.definition != position.definition:
            return replaced("its definition has changed")
        if stored.is_changed:
            return replaced("others have changed its rows")
        if table.query.changes_by_itself:
            return replaced("its query depends on the time or on chance")
        changed = sorted(name for name, state in position.inputs.items() if before.inputs.get(name) != state)
        if not changed:
            return replace(decision, action="keep", reason="nothing has changed")
        why = f"{', '.join(changed)} changed"
        if table.refresh == "full":
            return replaced(f"{why}, and its file says so")
        if table.incremental is not None:
            return self._merge(decision, before.inputs, changed, why)
        if not_row_wise := table.query.why_not_row_wise:
            return replaced(f"{why}, and {not_row_wise}")
        if len(inputs) > 1:
            return replaced(f"{why}, and its expectations read other tables")
        if rule := next((rule for rule in table.rules if (rule.kind, rule.on_failure) == ("unique", "drop")), None):
            return replaced(f"{why}, and {rule.name} compares all rows")
        ((written, read),) = inputs.items()
        since = read.changed_since(before.inputs[changed[0]])
        if since is None:
            return replaced(f"{why}, and what has changed is not known")
        added, removed = since
        if not removed.is_empty:
            return replaced(
                f"{why}, and not only by new rows: with @incremental: key(…), only its changes are refreshed"
            )
        return replace(decision, action="append", reason=f"{changed[0]} has new rows", inputs={written: added})

    @staticmethod
    def _merge(decision: Decision, before: Mapping[str, InputState], changed: Sequence[str], why: str) -> Decision:
        """The refresh of a table that is incremental, after one of its inputs has changed."""
        table = decision.table
        try:
            increment = table.increment()
        except InvalidArgument as error:  # a view is a part of the query by now
            return replace(decision, reason=f"{why}, and {error.message}")
        assert increment is not None
        driving = table.reads[increment.driving]
        others = [name for name in changed if name != key_of(driving)]
        if others:
            return replace(
                decision,
                reason=f"{', '.join(others)} changed, and only changes of {driving} can be applied by {increment.kind}",
            )
        rule = next((rule for rule in table.expect if (rule.kind, rule.on_failure) == ("unique", "drop")), None)
        if rule is not None:
            return replace(decision, reason=f"{why}, and {rule.name} compares all rows")
        since = decision.inputs[increment.driving].changed_since(before[key_of(driving)])
        if since is None:
            return replace(
                decision,
                reason=f"{why}, and what has changed is not known: a snapshot has expired, or its columns changed",
            )
        added, removed = since
        what = "has new rows" if removed.is_empty else "has changed rows"
        return replace(decision, action="merge", reason=f"{driving} {what}", changed=Changed(increment, added, removed))

    def _refresh(
        self,
        decision: Decision,
        engine: QueryEngine,
        functions: FunctionEngine | None,
        control: Control,
        run: LineageRun,
    ) -> Verdicts:
        """Compute the rows of a table, judge and publish them; return the verdicts."""
        assert decision.position is not None
        table = decision.table
        run.inputs = [
            replace(dataset_of(each), name=self.tables.shown(each)) for each in decision.inputs.values() if each.path
        ]
        run.output = Dataset(f"{self.project.catalog}.{table.name}")
        removed: tuple[str, ...] = ()
        if isinstance(table.query, PythonFunction):
            assert functions is not None, "a worker that allows Python functions has what runs them"
            with _located(table), functions.result(table.query, decision.inputs, control) as made:
                names = stored_columns(made.columns()).names
                place = Publication.planned(self.tables, self.pipeline_id, decision, made.columns())
                control.check()
                written = made.write(place.main.target)
            found = SplitRows(written.files, rows=written.rows)
        else:
            statement, removed = self._statement(decision, engine)
            with (
                _located(table),
                _with_known_columns(decision, engine),
                engine.result(statement, statement.inputs) as result,
            ):
                columns = stored_columns(result.columns())
                own = [each for each in columns if not each.name.startswith(("$broken", CARRIED))]
                names = [each.name for each in own]
                place = Publication.planned(self.tables, self.pipeline_id, decision, pa.schema(own))
                control.check()
                if len(own) == len(columns):
                    written = result.write(place.main.target)
                    found = SplitRows(written.files, rows=written.rows)
                else:
                    rules = tuple((rule.name, rule.on_failure == "drop") for rule in table.rules)
                    aside = None if place.aside is None else place.aside.target
                    found = SplitRows.all(result.written_by(Split(rules, place.main.target, aside)), len(rules))
        verdicts = verdicts_on(table.rules, found)
        ids = {name: read.state.table for name, read in decision.inputs.items() if read.rows is None}
        lineage = _lineage(decision, names)
        paths = {name: self.tables.shown(read) for name, read in decision.inputs.items() if read.path}
        run.sql = table.query.text if isinstance(table.query, Query) else ""
        run.columns = {
            column: [(paths[name], each) for name, columns in sources.items() for each in columns]
            for column, sources in lineage.items()
        }
        run.assertions = assertions_on(table.rules, verdicts)
        now = with_earlier(decision.output, verdicts, adds=decision.action == "append")
        called = f"{self.project.name}.{table.name.name}"
        properties = {
            **decision.position.summary,
            **stored_lineage(lineage, ids),
            **stored_verdicts(now),
        }
        try:
            require_met(table.rules, verdicts, table.name)
            control.check()
        except SkiwayError:
            place.discard(found)
            if decision.output is not None:
                record_verdicts(self.tables.realm, called, table.rules, decision.output, verdicts, snapshot_id=None)
            raise
        output = place.commit(found, properties, removed)
        run.output = replace(
            run.output,
            columns=output.handle.schema.arrow,
            version=str(output.metadata.current_snapshot_id),
            rows=sum(file.record_count for file in found.good),
            bytes=sum(file.file_size_in_bytes for file in found.good),
            files=len(found.good),
        )
        self._note_use(output.id, ids.values())
        snapshot_id = output.metadata.current_snapshot_id
        record_verdicts(self.tables.realm, called, table.rules, output, now, snapshot_id=snapshot_id)
        return verdicts

    def _statement(self, decision: Decision, engine: QueryEngine) -> tuple[Statement, tuple[str, ...]]:
        """The query for the new rows of a table, and the data files that it replaces. It needs some facts about the changes."""
        statement = Statement(decision)
        output, table = decision.output, decision.table
        if output is None or decision.action not in ("append", "merge"):
            return statement, ()
        kept = self._rows_of(output)
        if decision.changed is None:
            return (replace(statement, kept=kept) if table.rules else statement), ()
        aside = quarantine(self.tables, table, output.id, required=False)
        statement = replace(statement, kept=kept, aside=None if aside is None else self._rows_of(aside))
        numbered = replace(statement, kept=replace(kept, is_numbered=True))
        with _located(table):
            if decision.changed.increment.kind == "range":
                with engine.result(statement.first_change, statement.inputs) as result:
                    statement = replace(statement, bound=moment(result.values()["t"][0].as_py()))
                    numbered = replace(numbered, bound=statement.bound)
            if kept.is_empty or kept.files is None:
                return statement, ()
            with engine.result(numbered.files_that_lose_rows, numbered.inputs) as result:
                numbers = set(result.values()["file"].to_pylist())
        chosen = kept.files.filter([each in numbers for each in kept.files["ordinal"].to_pylist()])
        if not chosen.num_rows:
            return statement, ()
        return replace(statement, rewritten=replace(kept, files=chosen)), tuple(chosen["path"].to_pylist())

    def _rows_of(self, table: ManagedTable) -> Input:
        """The rows that a table has now, as an input."""
        handle = table.handle
        current = handle.current()
        files = None if current is None else data_files(handle.files(current))
        return Input(handle, current, files, InputState(table.id, 0 if current is None else current.id, ""))

    def _note_use(self, table_id: str, sources: Iterable[str]) -> None:
        """Record that the table was written from its inputs. Nothing depends on it."""
        realm = self.tables.realm
        used = Usage(writes=1, callers=Counter([realm.caller or "server"]), sources=Counter(set(sources)))
        try:
            add_usage(realm, table_id, realm.clock().date(), used)
        except SkiwayError as error:
            log.warning("the use of table %s was not recorded: %s", table_id, error)

    def _failure(self, table: str, error: Exception) -> str:
        if isinstance(error, SkiwayError):
            log.warning("table %s of pipeline %s failed: %s", table, self.project.name, error.message)
            return error.message
        log.error("table %s of pipeline %s failed", table, self.project.name, exc_info=error)
        return "internal error; see the log of the worker"


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
    if isinstance(query, PythonFunction) or decision.table.seed is not None:
        return {}
    return column_lineage(query, {name: read.columns.names for name, read in decision.inputs.items()}, columns)


@contextmanager
def _with_known_columns(decision: Decision, engine: QueryEngine) -> Iterator[None]:
    """Run the query of a table with rules in the block. If it is rejected because of a rule, the error names the rule."""
    try:
        yield
    except InvalidArgument:
        query = decision.table.query
        if decision.table.rules and isinstance(query, Query):
            with engine.result(query.reading, decision.inputs) as plain:
                require_columns(decision.table.rules, plain.columns().names)
        raise
