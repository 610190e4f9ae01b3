"""Commits to managed tables.

A commit writes the new metadata as a file, and then replaces the table's record, which names that file, by
compare-and-set, in one batch with the records of its snapshots. Who loses the race makes the change again for the new
state, as far as it fits it. A process that dies on the way leaves the old state or the new one, and at most files that
nothing refers to.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from skiway.errors import (
    Conflict,
    Contention,
    Internal,
    InvalidArgument,
    PreconditionFailed,
    SkiwayError,
    TimedOut,
    Unavailable,
)
from skiway.formats.iceberg.commits import Change, Producer, append, plain
from skiway.formats.iceberg.metadata import read_metadata, updated, version_of, write_metadata
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.source import TableName
from skiway.metastore.managed import records, turns
from skiway.metastore.managed.locations import check_updates, folder_of
from skiway.metastore.records import updates as changes
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.parents import applied
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.ownership import writable_id, writer
from skiway.model import v1
from skiway.storage import Operation

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = [
    "ManagedTable",
    "append_with_retry",
    "change",
    "commit",
    "handle_of",
    "load",
    "managed_record",
    "record",
    "surely_undone",
]

ATTEMPTS: Final = 40
_ROOM: Final = 10  # of a batch, for what belongs to the table's own record

Pause = Callable[[int], None]


@dataclass(frozen=True)
class ManagedTable:
    """A managed table in one state: its record, its metadata, and its files, which can be read and written."""

    stored: Stored[v1.Table]
    metadata: TableMetadata
    files: TableFiles

    @property
    def table(self) -> v1.Table:
        return self.stored.value

    @property
    def id(self) -> str:
        return self.table.resource_id.id

    @property
    def metadata_location(self) -> str:
        return self.table.metadata_location

    @cached_property
    def handle(self) -> IcebergTable:
        """The table as all tables are read: snapshots, files, rows."""
        return handle_of(self.table, self.metadata, self.files)


def handle_of(table: v1.Table, metadata: TableMetadata, files: TableFiles) -> IcebergTable:
    """The table in the state that `metadata` says, as all tables are read."""
    name = TableName((), table.display_name)
    return IcebergTable(name, metadata, metadata_location=table.metadata_location, files=files)


def managed_record(realm: Realm, table_id: v1.ResourceId) -> Stored[v1.Table]:
    """The record of the table; PreconditionFailed for one that is not managed."""
    found = hierarchy.table(realm, table_id)
    if not found.value.metadata_location:
        raise PreconditionFailed(
            f"table {found.value.display_name} is not managed here: change it where it comes from",
            key="table.not_managed",
            id=found.value.resource_id.id,
        )
    return found


def load(realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId) -> ManagedTable:
    """The table as it is now; PreconditionFailed for one that is not managed."""
    found = managed_record(realm, table_id)
    files = warehouse.files(folder_of(realm, warehouse, found.value.resource_id.id))
    return ManagedTable(found, read_metadata(files, found.value.metadata_location), files)


def commit(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
) -> ManagedTable:
    """The table after the updates, or Conflict (`commit.failed`) if a requirement does not hold.

    Whoever made the updates has to make them anew then, elsewhere; statements that run here wait for that a while.
    """
    with turns.from_afar(realm, table_id.id):
        return _change(realm, warehouse, table_id, plain(requirements, updates), pause=_pause)


def append_with_retry(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, files: Sequence[DataFile]
) -> ManagedTable:
    """The table with these data files added, whatever others do meanwhile."""
    return change(realm, warehouse, table_id, append(files))


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(0.5, 0.005 * 2**attempt)))  # noqa: S311 - only so that two do not meet again


def change(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, producer: Producer, *, pause: Pause = _pause
) -> ManagedTable:
    """The table after the change. Who loses a race makes it again for the new state, up to a bound."""
    turns.stand_aside(realm, table_id.id)
    return _change(realm, warehouse, table_id, producer, pause=pause)


def _change(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, producer: Producer, *, pause: Pause
) -> ManagedTable:
    writable_id(realm, table_id, v1.RK_TABLE, field="table_id")
    for attempt in range(ATTEMPTS):
        with turns.turn(realm, table_id.id):
            base = load(realm, warehouse, table_id)
            made = producer(base.metadata, base.files, realm.clock)
            try:
                return _committed(realm, base, made)
            except _Lost:
                pass
        pause(attempt)
    raise Conflict(
        f"table {base.table.display_name} was changed by others {ATTEMPTS} times while this commit tried: try again",
        key="commit.failed",
        id=base.id,
        reason="too many commits at once",
    )


class _Lost(Exception):
    """Another commit was faster."""


def _committed(realm: Realm, base: ManagedTable, made: Change) -> ManagedTable:
    written = list(made.written)
    try:
        check_updates(made.updates, base.metadata.location)
        _check_identity(base.metadata, made.updates)
        metadata = updated(base.metadata, made.requirements, made.updates, location=base.metadata_location)
        if not made.updates:
            return base
        version = version_of(base.metadata_location) + 1
        location = write_metadata(base.files, metadata, version=version)
        written.insert(0, location)  # to be removed first: it must not be there without what it refers to
        return _swapped(realm, base, metadata, location)
    except SkiwayError as error:
        if surely_undone(error):
            base.files.remove(written)
        if isinstance(error, Contention) or error.key == "version.mismatch":
            raise _Lost from error
        raise


def surely_undone(error: SkiwayError) -> bool:
    """Whether nothing was committed for sure. A store that did not answer may have done it: then the files are in use."""
    return not isinstance(error, Unavailable | TimedOut | Internal)


def _check_identity(base: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    for update in updates:
        if update.action == "assign-uuid" and update.uuid != base.table_uuid:
            raise InvalidArgument(
                f"the table cannot become {update.uuid}: it is {base.table_uuid} for ever", key="update.invalid"
            )


def _swapped(realm: Realm, base: ManagedTable, metadata: TableMetadata, location: str) -> ManagedTable:
    """Replace the table's record, and with it all that the metastore keeps of its snapshots."""
    desired = changes.copied(base.table)
    record(desired, metadata, location)
    desired.updated_at.CopyFrom(realm.now())
    gone = list(records.removed(realm, base.id, base.metadata, metadata))
    fitting: list[list[Operation]] = []

    def also(stored: Stored[v1.Table]) -> list[Operation]:
        handle = handle_of(stored.value, metadata, base.files)
        batch = [
            *records.added(realm, stored.value, handle, base.metadata),
            *records.current(realm, base.id, metadata),
        ]
        room = realm.stores.pointers.max_batch - _ROOM - len(batch)
        sizes = [sum(map(len, gone[: end + 1])) for end in range(len(gone))]
        fitting[:] = gone[: len(list(takewhile(lambda size: size <= room, sizes)))]
        return [*batch, *(each for one in fitting for each in one)]

    stored = writer(realm, TABLE).update(base.stored, desired, also=also)
    _forget(realm, base.id, gone[len(fitting) :])
    return ManagedTable(stored, metadata, base.files)


def _forget(realm: Realm, table_id: str, gone: list[list[Operation]]) -> None:
    """Delete the records of removed snapshots that found no room in the batch. What is left, gc sweeps.

    The commit is done: nothing that happens here may undo it.
    """
    for batch in gone:
        with suppress(Contention):
            applied(realm, batch, what=f"a snapshot of table {table_id}")


def record(table: v1.Table, metadata: TableMetadata, location: str) -> None:
    """Bring the table's record up to date with its metadata."""
    from skiway.formats.iceberg.types import arrow_schema

    comment = metadata.properties.get("comment")
    if comment != table.properties.get("comment"):
        table.description = comment or ""
    table.metadata_location = location
    table.schema_json = arrow_schema(metadata.schema()).json
    table.properties.clear()
    table.properties.update(metadata.properties)
