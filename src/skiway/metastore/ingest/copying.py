"""One load of one table: what has changed in the source since the last load, and the commit with the new rows and the new position."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

import pyarrow as pa

from skiway.errors import AlreadyExists, SkiwayError, Unsupported
from skiway.formats import Namespace, Source, TableHandle, TableName
from skiway.formats.iceberg.changes.commits import Producer, append, checked, delete_all
from skiway.formats.iceberg.changes.evolution import evolve, partition_spec, sort_order
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.keys import KeyJoins
from skiway.metastore.ingest.merging import Aside, ReplacedKeys, merge
from skiway.metastore.ingest.positions import (
    MORE,
    NO_ROWS,
    PART,
    POSITION_FILE,
    Position,
    StoredPosition,
    check_position,
    read_position,
    summary_of,
)
from skiway.metastore.ingest.rows import (
    Target,
    Written,
    column_changes,
    key_fields_of,
    stored_columns,
)
from skiway.metastore.ingest.staging import Staging
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.managed.commits import TableChange, change, change_all
from skiway.metastore.managed.states import ManagedTable, is_certainly_undone, load, undoing
from skiway.metastore.managed.tables import create
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables
from skiway.model import v1
from skiway.security.source_access import SourceAccess
from skiway.telemetry.lineage import Assertion

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

STEP_BYTES: Final = 1 << 30
CONNECTOR: Final = "skiway.ingest.connector"
SOURCE: Final = "skiway.ingest.source"


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The source of a copy, by connector and name, and the namespace and name that its table gets here."""

    connector_id: str
    source: str
    namespace_id: v1.ResourceId
    name: str


def find_target(realm: Realm, warehouse: Warehouse, place: CopyPlace) -> ManagedTable | None:
    """The table that a copy writes to, whatever its name is now; None if it does not exist yet.

    Raise `AlreadyExists` if a table that is not this copy has its name.
    """
    for table in tables.scan(realm, place.namespace_id.id):
        if (table.properties.get(CONNECTOR), table.properties.get(SOURCE)) == (place.connector_id, place.source):
            return load(realm, warehouse, table.resource_id)
    if tables.find(realm, place.namespace_id.id, place.name) is not None:
        raise AlreadyExists(
            f"table {place.name} exists and is not the copy of {place.source}: rename it, or copy to another name or namespace",
            key="ingest.target.exists",
            name=place.name,
        )
    return None


def create_target(
    realm: Realm, warehouse: Warehouse, place: CopyPlace, columns: pa.Schema, rules: CopyRules
) -> ManagedTable:
    """Create the table of a copy, without rows."""
    version = format_version(columns)
    schema = iceberg_schema(columns, format_version=version)
    return create(
        realm,
        warehouse,
        namespace_id=place.namespace_id,
        name=place.name,
        schema=schema,
        spec=partition_spec(schema, rules.partition_by) if rules.partition_by else None,
        order=sort_order(schema, rules.sort_by) if rules.sort_by else None,
        properties={CONNECTOR: place.connector_id, SOURCE: place.source, "format-version": str(version)},
    )


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows in new data files, with the position after them, and the keys of the rows that they replace."""

    written: Written
    replaces: ReplacedKeys | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """New rows that may be published, those in quarantine, and what the snapshot says about them."""

    written: Written
    aside: Aside | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class Expectations(Protocol):
    """What the rows of a load must be like. One object judges one load."""

    @property
    def are_about_all(self) -> bool:
        """Whether all rows of a load are judged and published together."""

    def judge(self, table: ManagedTable, own: Target, new: NewRows, *, replaces: bool) -> Judged:
        """Judge rows that were written for a table, and that may replace all others. Raise if they may not be published."""

    def published(self, table: ManagedTable) -> None:
        """Store what was found about the rows that a table has now."""

    def notes(self, name: str) -> Iterable[str]:
        """What a run says about rows of the table `name` that break rules, and are published or in quarantine."""

    def assertions(self) -> Sequence[Assertion]:
        """What was found, as events of lineage say it."""


class Changes(Protocol):
    """What has to be loaded. If it `replaces`, all rows of the source replace those of the table."""

    @property
    def replaces(self) -> bool: ...

    @property
    def position(self) -> Position:
        """The position after these changes, as far as it is known before the rows are read."""

    @property
    def amounts(self) -> Amounts:
        """The files to read, with their rows and bytes as far as these are known; one file for a table of a database."""

    def columns(self) -> pa.Schema:
        """The columns of the rows."""

    def steps(self, step_bytes: int, *, growing: bool) -> Sequence[Changes]:
        """These changes in parts that can be loaded one after the other, each with the position after it.

        They are about as large as `step_bytes`; if they are `growing`, at least a quarter of all before.
        """

    def write(self, target: Target, keys: pa.Schema) -> NewRows:
        """Write the rows into new data files of the target. Of several rows with the same keys, the last one counts."""


class CopiedTable(Protocol):
    """A table of a source, as a copy reads it."""

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """What has changed since the position; without one, everything. None if nothing has."""


class DatabaseSource(Source):
    """The tables of a database or of an Airport server. They are copied and not mirrored, so `load` has no meaning for them."""

    kind: ClassVar[str] = "a database"
    """What it is, for errors."""

    @abstractmethod
    def names(self) -> list[TableName]:
        """Its tables that the user may read."""

    def namespaces(self) -> list[Namespace]:
        return sorted({name.namespace for name in self.names()})

    def tables(self, namespace: Namespace) -> list[str]:
        return sorted(name.name for name in self.names() if name.namespace == namespace)

    def load(self, namespace: Namespace, table: str) -> TableHandle:  # noqa: ARG002
        raise Unsupported(f"tables of {self.kind} cannot be mirrored: copy them", key="source.kind")

    @abstractmethod
    def copied(self, name: TableName) -> CopiedTable:
        """A table, as a copy reads it."""

    def rules_of(self, name: TableName, rules: CopyRules) -> CopyRules:  # noqa: ARG002
        """The rules for a table, with what the source adds to them."""
        return rules


class CopyEngine(Protocol):
    """What copies need besides the metastore: many processes, and access to databases."""

    @property
    def distribute(self) -> KeyJoins: ...

    @property
    def step_bytes(self) -> int:
        """About how many bytes of files are loaded before a commit."""

    def expectations(self, realm: Realm, warehouse: Warehouse, name: str, text: str) -> Expectations:
        """The expectations in a text, for a load by the copy that is called `name`."""

    def database(
        self,
        uri: str,
        *,
        options: Mapping[str, str],
        credentials: Mapping[str, str],
        access: SourceAccess,
        follower: str = "",
    ) -> DatabaseSource:
        """Open the database or the Airport server at `uri`, if `access` permits it. A `follower` is a connector that copies its changes."""


OnProgress = Callable[[Amounts, Amounts], None]


@dataclass(frozen=True, slots=True)
class Copy:
    """How rows of a source get into a managed table. `check` is called before every write, and may raise to stop.

    New rows are committed in steps of about `step_bytes`, each with its position, so that the next load continues after the last one.
    If all rows are replaced, or `expectations` say so, they are published together. Expectations judge rows before.
    """

    realm: Realm
    warehouse: Warehouse
    place: CopyPlace
    rules: CopyRules
    distribute: KeyJoins
    check: Callable[[], None] = lambda: None
    expectations: Expectations | None = None
    step_bytes: int = STEP_BYTES

    def plan(self, table: CopiedTable, *, again: bool = False) -> str:
        """What a load would do now, in words. Nothing changes."""
        target = find_target(self.realm, self.warehouse, self.place) if self.place.namespace_id.id else None
        changes = table.changes(self.rules, None if again else self._position(target, again=again).loaded)
        if changes is None:
            return "nothing new"
        amounts, steps = changes.amounts, self._steps(changes, again=again)
        known = [f"{amounts.files:,} files", f"{amounts.rows:,} rows", f"{amounts.bytes:,} bytes"]
        sizes = ", ".join(text for text, count in zip(known, amounts, strict=True) if count)
        action = "replace all rows by" if again or changes.replaces else self.rules.mode
        together = ", published together" if len(steps) > 1 and self._is_whole(changes, again=again) else ""
        created = "create the table, and " if target is None else ""
        return f"{created}{action} {sizes} in {len(steps)} steps{together}"

    def load(
        self, table: CopiedTable, *, again: bool = False, on_progress: OnProgress = lambda _done, _total: None
    ) -> bool:
        """Load what has changed since the last time, or everything `again`; return whether anything has."""
        is_changed, goes_on = self._load(table, again, on_progress)
        while goes_on:
            more, goes_on = self._load(table, False, on_progress)
            is_changed |= more
        return is_changed

    def _load(self, table: CopiedTable, again: bool, on_progress: OnProgress) -> tuple[bool, bool]:
        """Load what the table says next; return whether anything has changed, and whether there may be more."""
        target = find_target(self.realm, self.warehouse, self.place)
        stored = self._position(target, again=again)
        changes = table.changes(self.rules, None if again else stored.loaded)
        if changes is None:
            return again and target is not None and self._emptied(target, stored), False
        on_progress(Amounts(), changes.amounts)
        columns = changes.columns()
        columns = stored_columns(columns) if len(columns) else columns
        if not len(columns) and target is None:
            return False, False  # files without columns have no rows
        self.check()
        target = target or create_target(self.realm, self.warehouse, self.place, columns, self.rules)
        names = self._keys
        if len(columns):  # else only the position has changed
            target = self._with_columns(target, columns)
            key_fields_of(columns, names)  # the source has them, too
        own = Target(self.warehouse.files(target.metadata.location), target.metadata)
        keys = key_fields_of(own.columns, names)
        steps = self._steps(changes, again=again)

        def on_step(done: Amounts) -> None:
            on_progress(done, changes.amounts)

        if self._is_whole(changes, again=again):
            after = self._load_together(
                target, own, steps, keys, stored, replaces=again or changes.replaces, on_step=on_step
            )
        else:
            after = self._load_in_steps(target, own, steps, keys, stored, on_step)
        is_rest = stored.loaded is not None and stored.loaded.get("kind") == PART and not again
        return True, is_rest or bool(after.get(MORE))

    @property
    def _keys(self) -> tuple[str, ...]:
        return self.rules.keys if self.rules.mode == CopyMode.UPSERT else ()

    def _is_whole(self, changes: Changes, *, again: bool) -> bool:
        """Whether all rows are published together."""
        return again or changes.replaces or (self.expectations is not None and self.expectations.are_about_all)

    def _steps(self, changes: Changes, *, again: bool) -> Sequence[Changes]:
        """The steps of a load.

        What is published together is one step if rows are compared by keys, or if they are not in files, which stay as they are between
        two attempts.
        """
        if self._is_whole(changes, again=again) and (self._keys or not changes.amounts.files):
            return [changes]
        return changes.steps(self.step_bytes, growing=bool(self._keys))

    def _load_in_steps(
        self,
        target: ManagedTable,
        own: Target,
        steps: Sequence[Changes],
        keys: pa.Schema,
        stored: StoredPosition,
        on_step: Callable[[Amounts], None],
    ) -> Position:
        done, after = Amounts(), steps[-1].position
        for step in steps:
            self.check()
            new = step.write(own, keys)
            with undoing(partial(own.files.remove, new.written.paths)):
                self.check()
                target = made = self._judged_and_committed(target, own, new, stored, replaces=False)
            stored, after = read_position(made.files, made.metadata), new.written.position
            done = Amounts(*map(sum, zip(done, step.amounts, strict=True)))
            on_step(done)
        return after

    def _load_together(
        self,
        target: ManagedTable,
        own: Target,
        steps: Sequence[Changes],
        keys: pa.Schema,
        stored: StoredPosition,
        *,
        replaces: bool,
        on_step: Callable[[Amounts], None],
    ) -> Position:
        """Publish all steps at once. What earlier attempts have written is used."""
        staging = Staging.of(own, stored, steps[-1].position, [step.amounts.files for step in steps])
        found: list[NewRows] = []
        done = Amounts()
        for number, step in enumerate(steps):
            self.check()
            before = staging.find(number) if len(steps) > 1 else None
            found.append(NewRows(before) if before is not None else step.write(own, keys))
            if before is None and len(steps) > 1:
                staging.keep(number, found[-1].written)
            done = Amounts(*map(sum, zip(done, step.amounts, strict=True)))
            on_step(done)
        new = NewRows(
            Written.all((each.written for each in found), found[-1].written.position or steps[-1].position),
            found[-1].replaces,
        )

        def undo() -> None:
            own.files.remove(new.written.paths)
            staging.forget(len(steps))

        with undoing(undo, when=len(steps) == 1):
            self.check()  # a load in steps that is stopped here continues
        with undoing(undo):
            self._judged_and_committed(target, own, new, stored, replaces=replaces)
        if len(steps) > 1:
            staging.forget(len(steps))
        return new.written.position

    def _emptied(self, target: ManagedTable, stored: StoredPosition) -> bool:
        """Delete all rows, because a full load has found none; return whether there was anything to delete."""
        current = target.handle.current()
        if current is None or (stored.value == NO_ROWS and stored.snapshot_id == current.id):
            return False
        self.check()
        none = Written(position=NO_ROWS)
        own = Target(self.warehouse.files(target.metadata.location), target.metadata)
        self._judged_and_committed(target, own, NewRows(none), stored, replaces=True)
        return True

    def _position(self, target: ManagedTable | None, *, again: bool) -> StoredPosition:
        if target is None:
            return StoredPosition()
        return read_position(target.files, target.metadata, may_be_lost=again)

    def _with_columns(self, target: ManagedTable, columns: pa.Schema) -> ManagedTable:
        """The table with the columns of the source that it follows."""
        changes = column_changes(target.handle.schema.arrow, columns, follows=self.rules.follows)
        return change(self.realm, self.warehouse, target.table.resource_id, evolve(changes)) if changes else target

    def _judged_and_committed(
        self, target: ManagedTable, own: Target, new: NewRows, stored: StoredPosition, *, replaces: bool
    ) -> ManagedTable:
        """Publish new rows, unless they break a rule that forbids it."""
        rules = self.expectations
        if rules is None:
            return self._commit(target, new.replaces, Judged(new.written), stored, replaces=replaces)
        judged = rules.judge(target, own, new, replaces=replaces)

        def undo() -> None:
            own.files.remove([path for path in judged.written.paths if path not in new.written.paths])
            if judged.aside is not None:
                judged.aside.target.files.remove([file.file_path for file in judged.aside.added])

        with undoing(undo):
            made = self._commit(target, new.replaces, judged, stored, replaces=replaces)
        if judged.written is not new.written:
            own.files.remove(new.written.paths)  # those without rows in quarantine are in their place
        rules.published(made)
        return made

    def _commit(
        self,
        target: ManagedTable,
        replaced: ReplacedKeys | None,
        judged: Judged,
        stored: StoredPosition,
        *,
        replaces: bool,
    ) -> ManagedTable:
        written, aside = judged.written, judged.aside
        summary = summary_of(written.position, target.files, target.metadata)
        properties = {**judged.properties, **summary}
        try:
            if replaces:
                return self._publish(
                    target, delete_all(written.files, properties=properties), stored, aside, delete_all
                )
            if replaced is None:
                return self._publish(target, append(written.files, properties=properties), stored, aside, append)
            return merge(
                self.realm,
                self.warehouse,
                target.table.resource_id,
                written.files,
                replaced,
                self.distribute,
                aside=aside,
                guard=lambda metadata: check_position(metadata, stored),
                properties=properties,
                check=self.check,
            )
        except SkiwayError as error:
            if is_certainly_undone(error) and (place := summary.get(POSITION_FILE)):
                target.files.remove([place])
            raise

    def _publish(
        self,
        target: ManagedTable,
        producer: Producer,
        stored: StoredPosition,
        aside: Aside | None = None,
        apart: Callable[[Sequence[DataFile]], Producer] = append,
    ) -> ManagedTable:
        """Commit a change of the table, together with the rows in quarantine."""
        guarded = checked(producer, lambda metadata: check_position(metadata, stored))
        changes = [TableChange(target.table.resource_id, guarded)]
        if aside is not None and (aside.added or (apart is delete_all and aside.has_rows)):
            changes.append(TableChange(aside.table_id, apart(aside.added)))
        return next(each for each in change_all(self.realm, self.warehouse, changes) if each.id == target.id)
