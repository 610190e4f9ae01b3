"""Commits to managed tables.

A commit writes the new metadata as a file, and then replaces the table's record, which names that file, by
compare-and-set, in one batch with the records of its snapshots. If it loses the race, the change is made again for the
new state of the table, if it still applies. A process that dies on the way leaves the old state or the new one, and at
most some unreferenced files.

Two measures keep concurrent commits from wasting work. Neither affects correctness, which the compare-and-set ensures:

- Commits of one server to one table run one after another, under a lock of the warehouse.
- An Iceberg REST client that lost a race has to load the table and write its manifests again before it can retry, while a
  statement that runs here retries at once. So for a short time after such a loss, statements on all servers wait;
  otherwise remote clients might lose forever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NoReturn

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from skiway.errors import (
    Busy,
    Conflict,
    Contention,
    Internal,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    SkiwayError,
    TimedOut,
    Unavailable,
)
from skiway.formats import TableName
from skiway.formats.iceberg.commits import Change, Producer, append, plain
from skiway.formats.iceberg.metadata import read_metadata, updated, version_of, write_metadata
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed import snapshot_records
from skiway.metastore.managed.locations import check_updates, folder_of, folder_of_table
from skiway.metastore.records import keys
from skiway.metastore.records import updates as changes
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import apply_batch
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.ownership import writable_id, writer
from skiway.model import v1
from skiway.storage import ABSENT, Operation

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = [
    "CLIENT_RETRY_S",
    "LOCK_TIMEOUT_S",
    "MAX_WAIT_S",
    "ManagedTable",
    "append_with_retry",
    "change",
    "commit",
    "expecting_retry",
    "handle_of",
    "is_certainly_undone",
    "load",
    "managed_record",
    "open_current",
    "update_record",
    "wait_for_clients",
]

ATTEMPTS: Final = 40
LOCK_TIMEOUT_S: Final = 10.0
"""After this time a commit proceeds without the lock: whoever holds it may be waiting for a store that hangs."""
CLIENT_RETRY_S: Final = 2.0
"""How long statements wait for a client that lost a race: its own pause, loading the table, writing manifests."""
MAX_WAIT_S: Final = 5.0
"""How long a statement waits at most, however many clients are expected."""
_POLL_S: Final = 0.02
_RESERVED: Final = 10  # operations of a batch that belong to the table's own record

Sleep = Callable[[float], None]


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
        """A handle to read the table's snapshots, files and rows."""
        return handle_of(self.table, self.metadata, self.files)


def handle_of(table: v1.Table, metadata: TableMetadata, files: TableFiles) -> IcebergTable:
    """A handle to read the table in the state that `metadata` describes."""
    name = TableName((), table.display_name)
    return IcebergTable(name, metadata, metadata_location=table.metadata_location, files=files)


def open_current(realm: Realm, warehouse: Warehouse, table: v1.Table) -> IcebergTable:
    """A handle to read the table in the state that its record names."""
    files = warehouse.files(folder_of_table(realm, warehouse, table))
    return handle_of(table, read_metadata(files, table.metadata_location), files)


def managed_record(realm: Realm, table_id: v1.ResourceId, *, damaged: bool = False) -> Stored[v1.Table]:
    """The record of a table; if `damaged`, also a damaged one. Raise `PreconditionFailed` if the table is not managed."""
    found = hierarchy.table(realm, table_id, damaged=damaged)
    if not (found.value.metadata_location or found.value.damage):
        raise PreconditionFailed(
            f"table {found.value.display_name} is not a managed table: change it in its source",
            key="table.not_managed",
            id=found.value.resource_id.id,
        )
    return found


def load(realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId) -> ManagedTable:
    """The table in its current state. Raise `PreconditionFailed` if it is not managed."""
    found = managed_record(realm, table_id)
    files = warehouse.files(folder_of_table(realm, warehouse, found.value))
    return ManagedTable(found, read_metadata(files, found.value.metadata_location), files)


def commit(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
) -> ManagedTable:
    """Apply the updates of a REST client. Raise `Conflict` (`commit.failed`) if a requirement does not hold.

    The client then has to make the updates again. Statements that run here wait for it for a short time.
    """
    with expecting_retry(realm, table_id.id):
        return _change(realm, warehouse, table_id, plain(requirements, updates), sleep=time.sleep)


def append_with_retry(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, files: Sequence[DataFile]
) -> ManagedTable:
    """Add data files to the table, whatever others commit meanwhile."""
    return change(realm, warehouse, table_id, append(files))


def change(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, producer: Producer, *, sleep: Sleep = time.sleep
) -> ManagedTable:
    """Commit the change that `producer` makes. After a lost race it is called again for the new state, up to a limit."""
    wait_for_clients(realm, table_id.id)
    return _change(realm, warehouse, table_id, producer, sleep=sleep)


def _change(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, producer: Producer, *, sleep: Sleep
) -> ManagedTable:
    writable_id(realm, table_id, v1.RK_TABLE, field="table_id")

    def attempt() -> ManagedTable:
        with warehouse.lock(folder_of(realm, warehouse, table_id.id), timeout_s=LOCK_TIMEOUT_S):
            base = load(realm, warehouse, table_id)
            return _committed(realm, base, producer(base.metadata, base.files, realm.clock))

    return Retrying(
        retry=retry_if_exception_type(_LostRace),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.005, max=0.5),
        sleep=sleep,
        retry_error_callback=_give_up,
    )(attempt)


class _LostRace(Exception):
    """Another commit was faster."""

    def __init__(self, base: ManagedTable) -> None:
        super().__init__()
        self.base = base


def _give_up(state: RetryCallState) -> NoReturn:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _LostRace)
    raise Conflict(
        f"table {error.base.table.display_name} was changed by others during all {ATTEMPTS} attempts to commit: try again",
        key="commit.failed",
        id=error.base.id,
        reason="too many concurrent commits",
    ) from error


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
        written.insert(0, location)  # deleted first: it must not exist without the files that it references
        return _swapped(realm, base, metadata, location)
    except SkiwayError as error:
        if is_certainly_undone(error):
            base.files.remove(written)
        if (isinstance(error, Contention) and not isinstance(error, Busy)) or error.key == "version.mismatch":
            raise _LostRace(base) from error
        raise


def is_certainly_undone(error: SkiwayError) -> bool:
    """Whether certainly nothing was committed. If the store did not respond, the commit may have succeeded."""
    return not isinstance(error, Unavailable | TimedOut | Internal)


def _check_identity(base: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    for update in updates:
        if update.action == "assign-uuid" and update.uuid != base.table_uuid:
            raise InvalidArgument(
                f"the table's uuid cannot change from {base.table_uuid} to {update.uuid}", key="update.invalid"
            )


def _swapped(realm: Realm, base: ManagedTable, metadata: TableMetadata, location: str) -> ManagedTable:
    """Replace the table's record, and with it the records of its snapshots."""
    desired = changes.copied(base.table)
    update_record(desired, metadata, location)
    desired.updated_at.CopyFrom(realm.now())
    removed = list(snapshot_records.removed(realm, base.id, base.metadata, metadata))
    fitting: list[list[Operation]] = []

    def also(stored: Stored[v1.Table]) -> list[Operation]:
        handle = handle_of(stored.value, metadata, base.files)
        batch = [
            *snapshot_records.added(realm, stored.value, handle, base.metadata),
            *snapshot_records.current(realm, base.id, metadata),
        ]
        room = realm.stores.pointers.max_batch - _RESERVED - len(batch)
        sizes = [sum(map(len, removed[: end + 1])) for end in range(len(removed))]
        fitting[:] = removed[: len(list(takewhile(lambda size: size <= room, sizes)))]
        return [*batch, *(each for one in fitting for each in one)]

    stored = writer(realm, TABLE).update(base.stored, desired, also=also)
    _delete_records(realm, base.id, removed[len(fitting) :])
    return ManagedTable(stored, metadata, base.files)


def _delete_records(realm: Realm, table_id: str, removed: list[list[Operation]]) -> None:
    """Delete the records of removed snapshots that did not fit into the batch. Garbage collection deletes the rest.

    The commit is done: no error here may undo it.
    """
    for batch in removed:
        with suppress(Contention):
            apply_batch(realm, batch, what=f"a snapshot of table {table_id}")


def update_record(table: v1.Table, metadata: TableMetadata, location: str) -> None:
    """Update the table's record from its metadata."""
    from skiway.formats.iceberg.types import schema_json

    comment = metadata.properties.get("comment")
    if comment != table.properties.get("comment"):
        table.description = comment or ""
    table.metadata_location = location
    table.schema_json = schema_json(metadata.schema())
    table.properties.clear()
    table.properties.update(metadata.properties)


# --- clients that retry -----------------------------------------------------------------------------------------------


@contextmanager
def expecting_retry(realm: Realm, table_id: str) -> Iterator[None]:
    """A block in which a remote client commits. If it loses a race, statements wait for its retry for a short time."""
    try:
        yield
    except Conflict:
        _expect_retry(realm, table_id)
        raise


def _expect_retry(realm: Realm, table_id: str) -> None:
    pointers, key = realm.stores.pointers, keys.expected_client(realm.account_id, table_id)
    found, until = pointers.get(key), realm.clock() + timedelta(seconds=CLIENT_RETRY_S)
    with suppress(Conflict, NotFound):  # another client lost at the same moment and set the marker
        pointers.compare_and_set(key, "expected", expect=found.version if found else ABSENT, expires_at=until)


def wait_for_clients(
    realm: Realm,
    table_id: str,
    *,
    sleep: Sleep = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait while remote clients that lost a race are expected to retry."""
    until, key = monotonic() + MAX_WAIT_S, keys.expected_client(realm.account_id, table_id)
    while monotonic() < until and realm.stores.pointers.get(key) is not None:
        sleep(_POLL_S)
