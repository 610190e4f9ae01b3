"""One load of one table: from the position of the last load to the commit that has the new rows and the new position.

    position  ->  changes of the source  ->  columns  ->  data files, written by many processes  ->  one commit

Exactly once: the commit publishes rows and position together, and only if the position is still the one that the load began
with. Whatever dies before the commit has changed nothing that counts, and the next load begins at the same position. Two
loads at once are harmless: the second commit fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from skiway.errors import Conflict, SkiwayError
from skiway.formats import data_files
from skiway.formats.iceberg.commits import Producer, append, checked, delete_all, overwrite
from skiway.formats.iceberg.delete_files import DeleteFileWriter
from skiway.formats.iceberg.schema_changes import evolve
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.ingest.changes import CopiedTable
from skiway.metastore.ingest.columns import column_changes, key_fields_of, stored_columns
from skiway.metastore.ingest.positions import (
    NO_ROWS,
    POSITION_FILE,
    StoredPosition,
    check_position,
    read_position,
    summary_of,
)
from skiway.metastore.ingest.rows import Distribute, Matches, Target, Written, find_rows
from skiway.metastore.ingest.settings import CopyMode, CopyRules
from skiway.metastore.ingest.targets import CopyPlace, create_target, find_target
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.states import ManagedTable, handle_of, is_certainly_undone, load
from skiway.metastore.records.realm import Realm

__all__ = ["Copy"]

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
        """The table with the columns of the source, as far as it follows it."""
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

        If others have changed the table meanwhile, the older rows are searched again.
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
        if current is None or not sum(each.num_rows for each in keys):
            return []
        files = data_files(own.files(current))
        some = [files.slice(first, _FILES_PER_TASK) for first in range(0, files.num_rows, _FILES_PER_TASK)]
        found = self.distribute(lambda part: find_rows(own, current, part, keys), some)
        return [each for part in found for each in part]


def _is_whole(found: Matches) -> bool:
    """Whether no row of the file is left."""
    return len(np.union1d(found.positions, found.before)) == found.row_count
