"""The commit of a refresh: rows, the rows in quarantine, position and verdicts become visible together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.errors import AlreadyExists, Conflict, SkiwayError
from skiway.formats import TableName
from skiway.formats.iceberg.changes.commits import Producer, Replacement, append, checked, delete_all, overwrite
from skiway.formats.iceberg.changes.evolution import ColumnDoc, evolve, partition_spec
from skiway.formats.iceberg.metadata import summary_properties
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.metastore.ingest.rows import Target, stored_columns
from skiway.metastore.managed.commits import TableChange, change, change_all
from skiway.metastore.managed.states import ManagedTable, NewTable, is_certainly_undone
from skiway.metastore.managed.tables import create, filled_table
from skiway.metastore.pipelines.inputs import LakeTables
from skiway.metastore.pipelines.lineage import PIPELINE, StoredPosition, read_position
from skiway.metastore.pipelines.models.expectations import QUARANTINE_OF, REASON, SplitRows
from skiway.metastore.pipelines.models.statements import Decision
from skiway.metastore.pipelines.projects import DerivedTable, quarantine_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

PARTITIONING: Final = "skiway.pipeline.partition-by"


@dataclass(frozen=True, slots=True)
class Place:
    """A table that rows are written to: an existing one, a new one, or one that gets other columns or partitions."""

    table: ManagedTable
    target: Target
    is_new: bool
    replacement: Replacement | None = None

    def producer(
        self, files: tuple[DataFile, ...], properties: Mapping[str, str], *, adds: bool, removed: tuple[str, ...] = ()
    ) -> Producer:
        """The change of an existing table. If it only `adds` rows, those of the files in `removed` go, else all others."""
        if self.replacement is not None:
            return self.replacement.commit(files, properties=properties)
        if not adds:
            return delete_all(files, properties=properties)
        if not removed:
            return append(files, properties=properties)
        current = self.table.metadata.current_snapshot()
        based_on = None if current is None else current.snapshot_id
        return overwrite(removed, files, based_on=based_on, alone=True, properties=properties)


@dataclass(frozen=True, slots=True)
class Publication:
    """Where the rows of a refresh go."""

    tables: LakeTables
    pipeline_id: str
    decision: Decision
    main: Place
    aside: Place | None

    @classmethod
    def planned(cls, tables: LakeTables, pipeline_id: str, decision: Decision, columns: pa.Schema) -> Publication:
        """Find or stage the tables for rows with these columns."""
        table, stored = decision.table, stored_columns(columns)
        own = {PIPELINE: pipeline_id, PARTITIONING: table.partition_by}
        if table.description:
            own["comment"] = table.description
        keeps = decision.action in ("append", "merge")
        main = _place(tables, table, table.name, decision.output, stored, table.partition_by, own, keeps=keeps)
        aside = None
        drops = any(rule.on_failure == "drop" for rule in table.rules)
        known = quarantine(tables, table, main.table.id, required=drops)
        if drops or known is not None:
            name = quarantine_of(table.name)
            mine = {
                QUARANTINE_OF: main.table.id,
                "comment": f"Rows that were dropped from {table.name}, with the reason",
            }
            both = stored_columns(stored.append(pa.field(REASON, pa.string())))
            aside = _place(tables, table, name, known, both, "", mine, keeps=keeps)
        return cls(tables, pipeline_id, decision, main, aside)

    def commit(self, found: SplitRows, properties: Mapping[str, str], removed: tuple[str, ...] = ()) -> ManagedTable:
        """Publish the rows with one compare-and-set, unless another run was faster. If it fails, the new files are deleted."""
        tables, decision = self.tables, self.decision
        changes, new = list[TableChange](), list[NewTable]()
        places = [(self.main, found.good, dict(properties))]
        if self.aside is not None and (found.bad or not self.aside.is_new):
            places.append((self.aside, found.bad, {}))
        try:
            for place, files, summary in places:
                if place.is_new:
                    new.append(filled_table(tables.realm, tables.warehouse, place.table, files, properties=summary))
                    continue
                is_main = place is self.main
                adds = decision.action == "append" or (decision.action == "merge" and is_main)
                if not is_main and not files and (adds or _is_empty(place.table)):
                    continue
                producer = place.producer(files, summary, adds=adds, removed=removed if is_main else ())
                if is_main:
                    producer = checked(producer, lambda metadata: _check_position(metadata, decision.stored))
                changes.append(TableChange(place.table.table.resource_id, producer))
            made = change_all(tables.realm, tables.warehouse, changes, new=new)
        except SkiwayError as error:
            if is_certainly_undone(error):
                self.discard(found)
            raise
        return next(each for each in made if each.id == self.main.table.id)

    def discard(self, found: SplitRows) -> None:
        """Delete the files of rows that are not published."""
        for place, files in ((self.main, found.good), (self.aside, found.bad)):
            if place is not None:
                place.target.files.remove([file.file_path for file in files])


def quarantine(tables: LakeTables, table: DerivedTable, table_id: str, *, required: bool) -> ManagedTable | None:
    """The quarantine of a table; None if it does not exist yet. Raise if it is `required` and something else has its name."""
    name = quarantine_of(table.name)
    found = tables.output(name)
    if found is not None and found.metadata.properties.get(QUARANTINE_OF) != table_id:
        if not required:
            return None
        raise AlreadyExists(
            f"table {name} exists, and is not the quarantine of {table.name}: rename or drop it",
            key="pipeline.output.exists",
            table=str(name),
        )
    return found


def _is_empty(table: ManagedTable) -> bool:
    current = table.metadata.current_snapshot()
    return current is None or summary_properties(current).get("total-records") == "0"


def described(tables: LakeTables, table: DerivedTable, output: ManagedTable) -> None:
    """Give the columns of a table their descriptions."""
    now = {each.name.casefold(): each.doc or "" for each in output.metadata.schema().fields}
    changes = [
        ColumnDoc(
            next(each.name for each in output.metadata.schema().fields if each.name.casefold() == name.casefold()), text
        )
        for name, text in table.columns.items()
        if text and now.get(name.casefold(), text) != text
    ]
    if changes:
        change(tables.realm, tables.warehouse, output.table.resource_id, evolve(changes))


def _place(
    tables: LakeTables,
    table: DerivedTable,
    name: TableName,
    known: ManagedTable | None,
    columns: pa.Schema,
    partition_by: str,
    own: Mapping[str, str],
    *,
    keeps: bool,
) -> Place:
    version = format_version(columns)
    schema = iceberg_schema(columns, format_version=version)
    spec = partition_spec(schema, partition_by) if partition_by else None
    warehouse = tables.warehouse
    if known is None:
        made = create(
            tables.realm,
            warehouse,
            namespace_id=tables.namespace(name.namespace, of=table.name).resource_id,
            name=name.name,
            schema=schema,
            spec=spec,
            properties={**own, "format-version": str(version)},
            stage=True,
        )
        return Place(made, Target(made.files, made.metadata), is_new=True)
    files = known.files
    is_same = _shape(known.handle.schema.arrow) == _shape(columns)
    if keeps or (is_same and known.metadata.properties.get(PARTITIONING, "") == partition_by):
        return Place(known, Target(files, known.metadata), is_new=False)
    kept = {**known.metadata.properties, **own}
    replacement = Replacement.of(known.metadata, schema, spec=spec, properties=kept)
    return Place(known, Target(files, replacement.metadata), False, replacement)


def _shape(columns: pa.Schema) -> list[tuple[str, str]]:
    return [(column.name, str(column.type)) for column in columns]


def _check_position(metadata: TableMetadata, stored: StoredPosition) -> None:
    """Raise `Conflict` unless the position of the table is still the stored one."""
    if read_position(metadata).snapshot_id != stored.snapshot_id:
        raise Conflict(
            "another run of the pipeline was faster, so nothing was committed: its rows are there already",
            key="pipeline.overtaken",
        )
