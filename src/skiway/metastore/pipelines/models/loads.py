"""Expectations of copies: the rows of a load are judged in the data files that it has written, before they are published.

new data files  ->  the rules, as those of models  ->  verdicts  ->  good rows | rows in quarantine  ->  the commit of the copy

Rows are only written again if some of them go to the quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from skiway.errors import AlreadyExists, InvalidArgument, SkiwayError
from skiway.formats import TableName, data_files
from skiway.formats.iceberg.changes.evolution import evolve
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import conformed
from skiway.metastore.ingest.copying import Judged, NewRows
from skiway.metastore.ingest.keys import comparable, joined_columns
from skiway.metastore.ingest.merging import Aside, ReplacedKeys
from skiway.metastore.ingest.rows import FilePart, Target, Written, column_changes, grouped, stored_columns
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.states import ManagedTable, load
from skiway.metastore.managed.tables import create
from skiway.metastore.pipelines.inputs import Input, RowParts
from skiway.metastore.pipelines.models.declarations import Expectation, listed_expectations
from skiway.metastore.pipelines.models.expectations import (
    QUARANTINE,
    QUARANTINE_OF,
    REASON,
    Split,
    SplitRows,
    flag,
    judged_rows,
    quoted,
    require_columns,
    require_met,
)
from skiway.metastore.pipelines.models.reporting import assertions_on, notes_on, record_verdicts, with_earlier
from skiway.metastore.pipelines.models.statements import EngineResult, QueryEngine
from skiway.metastore.quality.verdicts import Verdicts, stored_verdicts
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables
from skiway.telemetry.lineage import Assertion

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

NEW, KEPT, REPLACED = (TableName(("load",), name) for name in ("rows", "kept", "replaced"))


@dataclass(slots=True)
class LoadExpectations:
    """Judges the rows of one load by the copy that is called `name`."""

    engine: QueryEngine
    realm: Realm
    warehouse: Warehouse
    name: str
    rules: Sequence[Expectation]
    found: Verdicts = field(default_factory=dict)
    """The verdicts on the rows of the load so far."""
    _shown: Verdicts = field(default_factory=dict)

    @classmethod
    def of(cls, engine: QueryEngine, realm: Realm, warehouse: Warehouse, name: str, text: str) -> LoadExpectations:
        """The expectations in a text of YAML."""
        rules = listed_expectations(f"the expectations of {name}", text) if text.strip() else ()
        return cls(engine, realm, warehouse, name, rules)

    @property
    def are_about_all(self) -> bool:
        """Whether all rows of a load are judged and published together."""
        return any(rule.on_failure == "fail" or rule.kind == "unique" for rule in self.rules)

    def judge(self, table: ManagedTable, own: Target, new: NewRows, *, replaces: bool) -> Judged:
        """Judge rows that were written for a table, and that may replace all others. Raise if they may not be published."""
        columns, written = own.columns, new.written
        require_columns(self.rules, columns.names)
        is_apart = any(rule.on_failure == "drop" for rule in self.rules)
        aside = self._quarantine(table, columns, is_needed=is_apart)
        judgement = _Judgement(self.rules, table, own, new, replaces=replaces)
        verdicts = self._verdicts(judgement)
        adds = not replaces and new.replaces is None
        self.found = {name: _sum(each, self.found.get(name)) for name, each in verdicts.items()}
        self._shown = with_earlier(table, verdicts, adds=True) if adds else self.found
        try:
            require_met(self.rules, verdicts, TableName((), table.table.display_name))
        except SkiwayError:
            record_verdicts(self.realm, self.name, self.rules, table, verdicts, snapshot_id=None)
            raise
        properties = stored_verdicts(self._shown)
        if aside is None:
            return Judged(written, None, properties)
        if not any(verdicts[rule.name][0] for rule in self.rules if rule.on_failure == "drop"):
            return Judged(written, aside, properties)
        drops = tuple((rule.name, rule.on_failure == "drop") for rule in self.rules)
        with self._result(judgement) as result:
            found = SplitRows.all(result.written_by(Split(drops, own, aside.target)), len(drops))
        good = Written(found.good, written.rows, written.position)
        return Judged(good, replace(aside, added=found.bad), properties)

    def published(self, table: ManagedTable) -> None:
        """Store what was found about the rows that a table has now."""
        snapshot_id = table.metadata.current_snapshot_id
        record_verdicts(self.realm, self.name, self.rules, table, self._shown, snapshot_id=snapshot_id)

    def notes(self, name: str) -> Iterable[str]:
        """What a run says about rows of the table `name` that break rules, and are published or in quarantine."""
        return notes_on(name, self.rules, self.found)

    def assertions(self) -> list[Assertion]:
        """What was found, as events of lineage say it."""
        return assertions_on(self.rules, self.found)

    def _verdicts(self, judgement: _Judgement) -> Verdicts:
        if not self.rules or not judgement.new.written.files:
            return {rule.name: (0, 0) for rule in self.rules}
        with self._result(replace(judgement, counts=True)) as result:
            (row,) = result.values().to_pylist()
        return {rule.name: (row[f"n{number}"], row["total"]) for number, rule in enumerate(self.rules)}

    @contextmanager
    def _result(self, judgement: _Judgement) -> Iterator[EngineResult]:
        try:
            with self.engine.result(judgement, judgement.inputs()) as result:
                yield result
        except InvalidArgument as error:
            raise InvalidArgument(f"the expectations of {self.name}: {error.message}", key=error.key) from error

    def _quarantine(self, table: ManagedTable, columns: pa.Schema, *, is_needed: bool) -> Aside | None:
        """The quarantine of the table with its columns; None if there is none and none `is_needed`."""
        name = f"{table.table.display_name}{QUARANTINE}"
        found = tables.find(self.realm, table.table.namespace_id.id, name)
        if found is not None and found.properties.get(QUARANTINE_OF) != table.id:
            if not is_needed:
                return None
            raise AlreadyExists(
                f"table {name} exists, and is not the quarantine of {table.table.display_name}: rename or drop it",
                key="ingest.target.exists",
                name=name,
            )
        if found is None and not is_needed:
            return None
        wanted = stored_columns(columns.append(pa.field(REASON, pa.string())))
        if found is None:
            version = format_version(wanted)
            made = create(
                self.realm,
                self.warehouse,
                namespace_id=table.table.namespace_id,
                name=name,
                schema=iceberg_schema(wanted, format_version=version),
                properties={
                    QUARANTINE_OF: table.id,
                    "comment": f"Rows that were dropped from {table.table.display_name}, with the reason",
                    "format-version": str(version),
                },
            )
        else:
            made = load(self.realm, self.warehouse, found.resource_id)
            changes = column_changes(made.handle.schema.arrow, wanted, follows=True)
            if changes:
                made = change(self.realm, self.warehouse, found.resource_id, evolve(changes))
        files = self.warehouse.files(made.metadata.location)
        return Aside(made.table.resource_id, Target(files, made.metadata))


@dataclass(frozen=True, slots=True)
class _Judgement:
    """The query that judges new rows; if it `counts`, only how many break each rule."""

    rules: Sequence[Expectation]
    table: ManagedTable
    own: Target
    new: NewRows
    replaces: bool
    counts: bool = False

    def __call__(self, views: Mapping[TableName, str]) -> str:
        """The text of the query."""
        kept, clauses = "", [f"`$n` AS (SELECT {self._listed(self._columns)} FROM {quoted(views[NEW])})"]
        if KEPT in views:
            kept, where = "`$s`", ""
            if self.new.replaces is not None:
                same = " AND ".join(f"k.`k{n}` <=> e.`$k{n}`" for n in range(len(self.new.replaces.columns)))
                where = f" AS e WHERE NOT EXISTS (SELECT 1 FROM {quoted(views[REPLACED])} AS k WHERE {same})"
            clauses.append(f"`$s` AS (SELECT {self._listed(self._unique)} FROM {quoted(views[KEPT])}{where})")
        judged = judged_rows(self.rules, "`$n`", {}, kept)
        if self.counts:
            dropped = [f"`{flag(n)}`" for n, rule in enumerate(self.rules) if rule.on_failure == "drop"]
            stays = f"NOT ({' OR '.join(dropped) or 'FALSE'})"
            figures = ", ".join(
                f"count(CASE WHEN `{flag(n)}`{'' if rule.on_failure == 'drop' else f' AND {stays}'} THEN 1 END) AS n{n}"
                for n, rule in enumerate(self.rules)
            )
            judged = f"SELECT count(*) AS total, {figures} FROM ({judged})"
        return f"WITH {', '.join(clauses)} {judged}"

    def inputs(self) -> dict[TableName, Input]:
        """What the engine has to know."""
        chosen = _plain(self.own.columns, self._columns)
        new = [_NewFile(self.own, file, chosen) for file in self.new.written.files]
        found = {NEW: Input.of_rows(RowParts(chosen, new))}
        current = self.table.handle.current()
        if self.replaces or current is None or not self._unique:
            return found
        files, columns = data_files(self.table.handle.files(current)), self.table.handle.schema.arrow
        keys = self.new.replaces
        parts = [FilePart(self.table.handle, current, some, columns) for some in grouped(files)]
        kept = [_KeptRows(part, _plain(columns, self._unique), keys) for part in parts]
        if kept:
            found[KEPT] = Input.of_rows(RowParts(kept[0].schema, kept))
            if keys is not None:
                found[REPLACED] = Input.of_rows(RowParts(joined_columns(keys.columns), keys.rows))
        return found

    @property
    def _columns(self) -> list[str]:
        """The columns that are read: all if rows are written again."""
        names = self.own.columns.names
        wanted = {name.casefold() for rule in self.rules for name in rule.columns}
        return [name for name in names if name.casefold() in wanted] or names if self.counts else names

    @property
    def _unique(self) -> list[str]:
        """The columns in which rows must differ from those that the table keeps."""
        wanted = {name.casefold() for rule in self.rules if rule.kind == "unique" for name in rule.columns}
        return [name for name in self.own.columns.names if name.casefold() in wanted]

    @staticmethod
    def _listed(names: Iterable[str]) -> str:
        return ", ".join(map(quoted, names))


@dataclass(frozen=True, slots=True)
class _NewFile:
    """Reads a data file that is not committed yet, in a task."""

    target: Target
    file: DataFile
    columns: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        from pyarrow.parquet import ParquetFile

        with self.target.files.open(self.file.file_path) as opened:
            for batch in ParquetFile(opened).iter_batches(columns=self.columns.names, use_threads=False):
                yield from conformed(batch, self.columns).to_batches()


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """Reads rows of a table in a task, with the keys by which they are replaced."""

    part: FilePart
    columns: pa.Schema
    keys: ReplacedKeys | None

    @property
    def schema(self) -> pa.Schema:
        """The columns, and the keys as `$k0`, `$k1`, ..."""
        return pa.schema([*self.columns, *(pa.field(f"${each.name}", each.type) for each in self._compared)])

    @property
    def _compared(self) -> list[pa.Field]:
        return [] if self.keys is None else list(joined_columns(self.keys.columns))[: len(self.keys.columns)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows."""
        part, names = self.part, self.columns.names
        keys = [] if self.keys is None else self.keys.columns.names
        read = part.handle.read(
            part.snapshot, files=part.files, schema=part.columns, columns=list(dict.fromkeys([*names, *keys]))
        )
        for batch in read:
            own = conformed(batch.select(names), self.columns).combine_chunks()
            found = [comparable(batch.column(name), of.type) for name, of in zip(keys, self._compared, strict=True)]
            rows = pa.Table.from_arrays([*own.columns, *found], schema=self.schema)
            yield from rows.to_batches()


def _plain(columns: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([pa.field(each.name, each.type) for each in map(columns.field, names)])


def _sum(one: tuple[int, int], other: tuple[int, int] | None) -> tuple[int, int]:
    return one if other is None else (one[0] + other[0], one[1] + other[1])
