"""One load of one table: what has changed in the source since the last load, and the commit with the new rows and the new position."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import AlreadyExists, Conflict, PreconditionFailed, SkiwayError
from skiway.formats import Format, Snapshot, Source, TableHandle, TableName, data_files
from skiway.formats.iceberg.changes.commits import Producer, append, checked, delete_all, overwrite
from skiway.formats.iceberg.changes.evolution import evolve, partition_spec, sort_order
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.positions import (
    NO_ROWS,
    POSITION_FILE,
    Position,
    StoredPosition,
    check_position,
    read_position,
    summary_of,
)
from skiway.metastore.ingest.rows import (
    Distribute,
    FilePart,
    Matches,
    Target,
    Written,
    column_changes,
    find_rows,
    key_fields_of,
    last_rows,
    read_keys,
    stored_columns,
    write_part,
)
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.states import ManagedTable, handle_of, is_certainly_undone, load
from skiway.metastore.managed.tables import create
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables
from skiway.model import v1
from skiway.security.source_access import SourceAccess

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


_PART_BYTES: Final = 128 << 20
_LISTED: Final = (Format.PARQUET, Format.CSV, Format.JSON)


class Changes(Protocol):
    """What has to be loaded. If it `replaces`, all rows of the source replace those of the table."""

    @property
    def replaces(self) -> bool: ...

    @property
    def file_count(self) -> int:
        """The number of files to read; 1 for a table of a database."""

    def columns(self) -> pa.Schema:
        """The columns of the rows."""

    def write(self, target: Target, keys: pa.Schema) -> Written:
        """Write the rows into new data files of the target. Of several rows with the same keys, the last one counts."""


class CopiedTable(Protocol):
    """A table of a source, as a copy reads it."""

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """What has changed since the position; without one, everything. None if nothing has."""


class DatabaseSource(Source):
    """The tables of a database or of an Airport server. They are copied and not mirrored, so `load` has no meaning for them."""

    @abstractmethod
    def copied(self, name: TableName) -> CopiedTable:
        """A table, as a copy reads it."""


class CopyEngine(Protocol):
    """What copies need besides the metastore: many processes, and access to databases."""

    @property
    def distribute(self) -> Distribute: ...

    def database(
        self, uri: str, *, options: Mapping[str, str], credentials: Mapping[str, str], access: SourceAccess
    ) -> DatabaseSource:
        """Open the database or the Airport server at `uri`, if `access` permits it."""


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table whose rows are in files."""

    handle: TableHandle
    distribute: Distribute

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """The files that are new, and those whose rows have been changed or deleted."""
        now = self.handle.current()
        if now is None:
            return None
        if rules.mode == CopyMode.REPLACE or position is None:
            return self._everything(now, rules, position)
        if self.handle.format in _LISTED:
            return self._listed(now, rules, position)
        return self._between(now, rules, position)

    def _everything(self, now: Snapshot, rules: CopyRules, position: Position | None) -> FileChanges | None:
        after = self._position(now, rules)
        files = data_files(self.handle.files(now))
        replaces = rules.mode == CopyMode.REPLACE
        return None if after == position else FileChanges(self, now, files, after, replaces=replaces)

    def _position(self, now: Snapshot, rules: CopyRules) -> dict[str, Any]:
        if self.handle.format not in _LISTED:
            return {"kind": "snapshot", "id": now.id, "digest": now.digest}
        if rules.mode == CopyMode.REPLACE:
            return {"kind": "listing", "digest": now.digest}
        return {"kind": "files", "files": self._etags(self.handle.files(now))}

    def _etags(self, files: pa.Table) -> dict[str, str]:
        """The files by their paths below the table, with what tells one content from another."""
        paths = (path.removeprefix(self.handle.location).lstrip("/") for path in files["path"].to_pylist())
        return dict(zip(paths, files["etag"].to_pylist(), strict=True))

    def _listed(self, now: Snapshot, rules: CopyRules, position: Position) -> FileChanges | None:
        loaded: dict[str, str] = _required(position, "files", self.handle)["files"]
        files = self.handle.files(now)
        etags = self._etags(files)
        changed = [path for path, etag in etags.items() if loaded.get(path, etag) != etag]
        if changed and rules.mode == CopyMode.APPEND:
            raise PreconditionFailed(
                f"{len(changed)} files have changed after they were loaded, such as {changed[0]!r}, so their rows cannot be "
                "appended: put new rows into new files, or use the mode upsert or replace",
                key="ingest.file.changed",
                file=changed[0],
            )
        new = files.filter(pa.array([loaded.get(path) != etag for path, etag in etags.items()], pa.bool_()))
        if not new.num_rows:
            return None
        # Files that are gone stay in the position: they may come back, for instance after a folder was not mounted.
        return FileChanges(self, now, new, {**position, "files": {**loaded, **etags}})

    def _between(self, now: Snapshot, rules: CopyRules, position: Position) -> FileChanges | None:
        stored = _required(position, "snapshot", self.handle)
        then = next((snapshot for snapshot in self.handle.snapshots() if snapshot.id == stored["id"]), None)
        if then is None or then.digest != stored["digest"]:
            raise PreconditionFailed(
                f"snapshot {stored['id']} of {self.handle.name}, up to which rows were loaded, no longer exists, so the changes "
                "since then are unknown: load the table again in full, with skiway connectors sync --full",
                key="ingest.source.expired",
                snapshot=str(stored["id"]),
            )
        if then.id == now.id:
            return None
        old, new = self.handle.files(then), self.handle.files(now)
        removed, added = _without(old, _states(new)), _without(new, _states(old))
        if removed.num_rows and rules.mode == CopyMode.APPEND:
            raise PreconditionFailed(
                f"rows of {self.handle.name} were changed, deleted or rewritten since snapshot {then.id}, which the mode append "
                "cannot copy: use the mode upsert or replace",
                key="ingest.source.changed",
                snapshot=str(then.id),
            )
        return FileChanges(self, now, added, self._position(now, rules), removed=removed, before=then)


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Files to load, as rows of the file table of a snapshot, and files `before` whose rows may be gone."""

    table: FileTable
    snapshot: Snapshot
    added: pa.Table
    position: Position
    replaces: bool = False
    removed: pa.Table | None = None
    before: Snapshot | None = None

    @property
    def file_count(self) -> int:
        """The number of files to read."""
        return int(self.added.num_rows)

    def columns(self) -> pa.Schema:
        """The columns of the files."""
        return self.table.handle.columns_of(self.added)

    def write(self, target: Target, keys: pa.Schema) -> Written:
        """Write the rows, without those whose keys occur again later: in a later file by name, or in the same file."""
        parts = self._parts(self.snapshot, self.added, self.columns())
        found: list[pa.Table] = []
        if len(keys):
            found = self.table.distribute(lambda part: read_keys(part, keys), parts)
            parts = last_rows(parts, found, keys)
        written = self.table.distribute(lambda part: write_part(target, part), parts)
        if len(keys) and self.removed is not None and self.before is not None:
            schema = self.table.handle.schema_at(self.before).arrow
            gone = self._parts(self.before, self.removed, schema)
            found += self.table.distribute(lambda part: read_keys(part, keys), gone)
        return Written.all(written, self.position, [each.select(keys.names) for each in found])

    def _parts(self, snapshot: Snapshot, files: pa.Table, schema: pa.Schema) -> list[FilePart]:
        """The files in groups, in the order in which later rows win: by the number of the commit, then by name."""
        numbers = pc.fill_null(files["sequence_number"], 0)
        order = pc.sort_indices(
            pa.table({"number": numbers, "path": files["path"]}),
            sort_keys=[("number", "ascending"), ("path", "ascending")],
        )
        handle = self.table.handle
        return [FilePart(handle, snapshot, some, schema) for some in _grouped(files.take(order))]


def _grouped(files: pa.Table) -> Iterable[pa.Table]:
    first, size = 0, 0
    for place, each in enumerate(files["size_bytes"].to_pylist()):
        if size and size + each > _PART_BYTES:
            yield files.slice(first, place - first)
            first, size = place, 0
        size += each
    if files.num_rows > first:
        yield files.slice(first)


def _states(files: pa.Table) -> list[tuple[Any, ...]]:
    """What tells a data file from others, and from itself with other deletes."""
    paths = files["path"].to_pylist()
    names = dict(zip(files["ordinal"].to_pylist(), paths, strict=True))
    data = data_files(files)
    columns = (data[name].to_pylist() for name in ("path", "deleted_rows", "deletes"))
    return [
        (path, rows, *(names[each] for each in deletes or ())) for path, rows, deletes in zip(*columns, strict=True)
    ]


def _without(files: pa.Table, states: Sequence[tuple[Any, ...]]) -> pa.Table:
    known = set(states)
    return data_files(files).filter(pa.array([state not in known for state in _states(files)], pa.bool_()))


def _required(position: Position, kind: str, handle: TableHandle) -> Position:
    """The position, if it is of this kind. Another mode or another kind of source has other positions."""
    if position.get("kind") != kind:
        raise PreconditionFailed(
            f"the last load of {handle.name} was in another mode, or from another kind of source, so the changes since then "
            "are unknown: load the table again in full, with skiway connectors sync --full",
            key="ingest.position.other",
        )
    return position


UPSERT_ATTEMPTS: Final = 5
_FILES_PER_TASK: Final = 16

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Copy:
    """How rows of a source get into a managed table. `check` is called before every write, and may raise to stop."""

    realm: Realm
    warehouse: Warehouse
    place: CopyPlace
    rules: CopyRules
    distribute: Distribute
    check: Callable[[], None] = lambda: None

    def load(
        self, table: CopiedTable, *, again: bool = False, on_progress: OnProgress = lambda _done, _total: None
    ) -> bool:
        """Load what has changed since the last time, or everything `again`; return whether anything has."""
        target = find_target(self.realm, self.warehouse, self.place)
        stored = self._position(target, again=again)
        changes = table.changes(self.rules, None if again else stored.loaded)
        if changes is None:
            return again and target is not None and self._emptied(target, stored)
        on_progress(0, changes.file_count)
        columns = stored_columns(changes.columns())
        if not len(columns) and target is None:
            return False  # files without columns have no rows
        self.check()
        target = target or create_target(self.realm, self.warehouse, self.place, columns, self.rules)
        target = self._with_columns(target, columns)
        own = Target(self.warehouse.files(target.metadata.location), target.metadata)
        names = self.rules.keys if self.rules.mode == CopyMode.UPSERT else ()
        key_fields_of(columns, names)  # the source has them, too
        keys = key_fields_of(own.columns, names)
        written = changes.write(own, keys)
        try:
            self.check()
            self._commit(target, written, stored, replaces=again or changes.replaces)
        except SkiwayError as error:
            if is_certainly_undone(error):
                own.files.remove(written.paths)
            raise
        on_progress(changes.file_count, changes.file_count)
        return True

    def _emptied(self, target: ManagedTable, stored: StoredPosition) -> bool:
        """Delete all rows, because a full load has found none; return whether there was anything to delete."""
        current = target.handle.current()
        if current is None or (stored.value == NO_ROWS and stored.snapshot_id == current.id):
            return False
        self.check()
        summary = summary_of(NO_ROWS, target.files, target.metadata)
        self._publish(target, delete_all([], properties=summary), stored)
        return True

    def _position(self, target: ManagedTable | None, *, again: bool) -> StoredPosition:
        if target is None:
            return StoredPosition()
        return read_position(target.files, target.metadata, may_be_lost=again)

    def _with_columns(self, target: ManagedTable, columns: pa.Schema) -> ManagedTable:
        """The table with the columns of the source that it follows."""
        changes = column_changes(target.handle.schema.arrow, columns, follows=self.rules.follows)
        return change(self.realm, self.warehouse, target.table.resource_id, evolve(changes)) if changes else target

    def _commit(self, target: ManagedTable, written: Written, stored: StoredPosition, *, replaces: bool) -> None:
        summary = summary_of(written.position, target.files, target.metadata)
        try:
            if replaces:
                self._publish(target, delete_all(written.files, properties=summary), stored)
            elif not written.keys:
                self._publish(target, append(written.files, properties=summary), stored)
            else:
                self._upsert(target, written, stored, summary)
        except SkiwayError as error:
            if is_certainly_undone(error) and (place := summary.get(POSITION_FILE)):
                target.files.remove([place])
            raise

    def _publish(self, target: ManagedTable, producer: Producer, stored: StoredPosition) -> None:
        change(
            self.realm,
            self.warehouse,
            target.table.resource_id,
            checked(producer, lambda metadata: check_position(metadata, stored)),
        )

    def _upsert(self, target: ManagedTable, written: Written, stored: StoredPosition, summary: dict[str, str]) -> None:
        """Commit new rows together with the deletion of older ones that have their keys.

        If the table has changed in the meantime, the older rows are searched again.
        """
        for attempt in range(UPSERT_ATTEMPTS):
            self.check()
            now = load(self.realm, self.warehouse, target.table.resource_id)
            current = now.handle.current()
            found = self._matches(now, written.keys)
            with DeleteFileWriter(now.files, now.metadata) as deletes:
                whole = [each.path for each in found if _is_whole(each)]
                for each in found:
                    if not _is_whole(each):
                        deletes.add(each.path, each.positions, before=each.before)
                made = deletes.close()
            producer = overwrite(
                whole,
                written.files,
                deletes=made,
                based_on=None if current is None else current.id,
                alone=True,
                operation="overwrite" if whole or made else "append",
                properties=summary,
            )
            try:
                self._publish(now, producer, stored)
            except Conflict as error:
                deletes.abort()
                if error.key != "commit.failed" or attempt + 1 == UPSERT_ATTEMPTS:
                    raise
            except SkiwayError as error:
                if is_certainly_undone(error):
                    deletes.abort()
                raise
            else:
                return

    def _matches(self, table: ManagedTable, keys: Sequence[pa.Table]) -> list[Matches]:
        """The rows of the table that have one of the keys."""
        own = handle_of(table.table, table.metadata, self.warehouse.files(table.metadata.location))
        current = own.current()
        if current is None or not sum(key.num_rows for key in keys):
            return []
        files = data_files(own.files(current))
        some = [files.slice(first, _FILES_PER_TASK) for first in range(0, files.num_rows, _FILES_PER_TASK)]
        found = self.distribute(lambda part: find_rows(own, current, part, keys), some)
        return [each for part in found for each in part]


def _is_whole(found: Matches) -> bool:
    """Whether no row of the file is left."""
    return len(np.union1d(found.positions, found.before)) == found.row_count
