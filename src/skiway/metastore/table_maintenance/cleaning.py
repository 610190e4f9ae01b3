"""Delete what a managed table no longer needs: expired snapshots with their files, and orphan files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats import Found, Location, location
from skiway.formats.iceberg.changes.maintenance import Expiry, ExpiryRules, expirable, expire
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse, uri_of
from skiway.foundation.clock import from_micros
from skiway.metastore.gc.warehouse import (
    THREE_DAYS_S,
    TRANSACTION_LIFETIME,
    add_files_of_snapshot,
    leased_tables,
    pinned_files,
    sweep_table,
)
from skiway.metastore.ingest.positions import position_file, position_history
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.states import ManagedTable, load, managed_record
from skiway.metastore.records import keys
from skiway.metastore.records.branches import is_creating
from skiway.metastore.records.realm import Realm, timestamp
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class Planned:
    """What a task has done or would do: the files that it deletes or rewrites, the refs that expire, and the snapshots that
    expire or stay.
    """

    files: Sequence[v1.PlannedFile] = ()
    refs: Sequence[str] = ()
    snapshots: Sequence[v1.PlannedSnapshot] = ()

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def expired(self) -> list[int]:
        """The ids of the snapshots that expire."""
        return [snapshot.snapshot_id for snapshot in self.snapshots if snapshot.expires]

    @property
    def kept(self) -> dict[int, str]:
        """Why the other snapshots stay, by their ids."""
        return {snapshot.snapshot_id: snapshot.reason for snapshot in self.snapshots if not snapshot.expires}


def expire_snapshots(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    *,
    max_age_ms: int | None = None,
    min_count: int | None = None,
    dry_run: bool = True,
    check: Callable[[], None] = lambda: None,
) -> Planned:
    """Remove the snapshots that the rules do not keep, and their files; in a dry run, only report them.

    The rules are those of the table's properties, unless given. `check` is called before each deletion, and may raise to stop.
    The realm must be that of the server: leases of all callers count.
    """
    seen: list[tuple[TableMetadata, Expiry]] = []

    def choose(metadata: TableMetadata) -> Expiry:
        rules = ExpiryRules.of(metadata.properties, max_age_ms=max_age_ms, min_count=min_count)
        now_ms = int(realm.clock().timestamp() * 1000)
        in_use = snapshots_in_use(realm, table_id.id) | _with_position(metadata)
        chosen = expirable(metadata, rules, now_ms=now_ms, in_use=in_use)
        seen[:] = [(metadata, chosen)]
        return chosen

    if dry_run:
        table = load(realm, warehouse, table_id)
        choose(table.metadata)
    else:
        table = change(realm, warehouse, table_id, expire(choose))
    before, chosen = seen[0]
    files = list(_unreferenced(realm, table, before, chosen)) if chosen.snapshots else []
    if not dry_run:
        for file in files:
            check()
            table.files.remove([file.location])
    times = {snapshot.snapshot_id: from_micros(snapshot.timestamp_ms * 1000) for snapshot in before.snapshots}
    gone = (
        v1.PlannedSnapshot(snapshot_id=number, created_at=timestamp(times[number]), expires=True, reason="expires")
        for number in chosen.snapshots
    )
    kept = (v1.PlannedSnapshot(snapshot_id=number, reason=reason) for number, reason in chosen.kept.items())
    return Planned(files, chosen.refs, [*gone, *kept])


def snapshots_in_use(realm: Realm, table_id: str) -> dict[int, str]:
    """The snapshots of a table that a reader may use now, and why."""
    found: dict[int, str] = {}
    since_us = int((realm.clock() - TRANSACTION_LIFETIME).timestamp() * 1_000_000)
    for pointer in realm.stores.pointers.scan(keys.replaced_snapshot(realm.account_id, table_id)):
        replaced_us, _, number = pointer.blob_uri.partition(":")
        if number and int(replaced_us) >= since_us:
            found[int(number)] = "current within the last hour, so a transaction may read it"
    for table in leased_tables(realm, table_id):
        found[table.snapshot_id] = "leased by a query or transaction"
    return found


def _with_position(metadata: TableMetadata) -> dict[int, str]:
    """The snapshots back to the one that says how far a copy has been loaded: without it, the copy could not continue."""
    with suppress(PreconditionFailed):  # it has expired already
        return {each.snapshot_id: "leads to the position of a copy" for each in position_history(metadata)}
    return {}


def _unreferenced(realm: Realm, table: ManagedTable, before: TableMetadata, chosen: Expiry) -> Iterator[v1.PlannedFile]:
    """The files that only expired snapshots use: data files first, so that the rest stays listed if the deletion is interrupted."""
    files, gone = table.files, frozenset(chosen.snapshots)
    used: set[Location] = set()
    for metadata in (before, table.metadata):  # the table may have got new snapshots since
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in gone:
                add_files_of_snapshot(used, files, snapshot)
        for statistics in (*metadata.statistics, *metadata.partition_statistics):
            if statistics.snapshot_id not in gone:
                used.add(location(statistics.statistics_path))
    expired: set[Location] = set()
    for snapshot in before.snapshots:
        if snapshot.snapshot_id in gone:
            add_files_of_snapshot(expired, files, snapshot, known=used)
            if position := position_file(snapshot):  # no other snapshot has it
                expired.add(location(position))
    for statistics in (*before.statistics, *before.partition_statistics):
        if statistics.snapshot_id in gone:
            expired.add(location(statistics.statistics_path))
    if is_creating(
        realm.stores, realm.account_id
    ):  # a branch may get what is in use: garbage collection deletes the rest
        return
    unused = expired - used
    # Pins are checked after use, never before: a reader that pins files checks afterwards that they were still in use.
    unused -= pinned_files(realm, files, table.id) if unused else set()
    listed = _listed(files)
    for place in sorted(unused, key=lambda each: (each.name.endswith(".avro"), str(each))):
        if place in listed:
            size = listed[place].size
            yield v1.PlannedFile(location=uri_of(place), size_bytes=size, reason="only expired snapshots use it")


def _listed(files: TableFiles) -> dict[Location, Found]:
    """All files in the folders of a table. Files elsewhere belong to others."""
    return {each.location: each for root in files.reach.roots for each in files.walk(root)}


def remove_orphans(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    *,
    older_than: timedelta | None = None,
    dry_run: bool = True,
) -> Planned:
    """Delete the orphan files that are older than an age; in a dry run, only report them.

    The age must be longer than any statement on the table takes. The realm must be that of the server.
    """
    age = timedelta(seconds=THREE_DAYS_S) if older_than is None else older_than
    if age < TRANSACTION_LIFETIME:
        raise InvalidArgument(
            f"orphan files must be older than an hour, not {age}, because statements write files before they commit them: "
            "choose an age that is longer than any statement takes",
            key="maintenance.age",
            field="older_than",
        )
    table = managed_record(realm, table_id).value
    done = sweep_table(realm, warehouse, table.resource_id.id, min_age_s=age.total_seconds(), dry_run=dry_run)
    if done.damaged:
        raise PreconditionFailed(
            f"the files of table {table.display_name} that are in use cannot be determined, so none was deleted: run "
            "skiway check --files to see what is damaged",
            key="table.damaged",
            id=table.resource_id.id,
        )
    reason = "no state of the table references it"
    return Planned(
        [
            v1.PlannedFile(location=path, size_bytes=size, reason=reason)
            for path, size in zip(done.removed, done.sizes, strict=True)
        ]
    )
