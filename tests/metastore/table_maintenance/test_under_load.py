"""Maintenance while others write and read: no row is lost or comes back, and files stay as long as somebody reads them.

The clock of the metastore runs fast, so that snapshots expire, transactions end and files become old within seconds.
`make load-maintenance` runs these tests; `SKIWAY_LOAD_SECONDS` says for how long.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.table_maintenance.maintained_tables import SCHEMA, MaintainedTable
from skiway.errors import Conflict, PreconditionFailed
from skiway.formats import FILE_ORDINAL, ROW_POSITION, data_files
from skiway.formats.iceberg.changes.commits import append, overwrite
from skiway.formats.iceberg.changes.maintenance import CompactionRules
from skiway.formats.iceberg.warehouse import uri_of
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore import Realm, managed, queries
from skiway.metastore.gc.warehouse import files_of_state
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.table_maintenance.cleaning import expire_snapshots, remove_orphans
from skiway.metastore.table_maintenance.optimizing import optimize
from skiway.model import v1
from skiway.security.source_access import location
from skiway.storage import open_stores

LEASES = QueryRules(max_ttl_s=1e9)
WRITERS, READERS = 8, 4
SECONDS = float(os.environ.get("SKIWAY_LOAD_SECONDS", "90"))
HAPPENS = {
    "inserts": 50,
    "deletes": 5,
    "lost statements": 3,
    "reads": 10,
    "reads of the leased snapshot": 10,
    "files rewritten": 20,
    "files expired": 10,
    "orphans removed": 1,
    "optimizations": 3,
    "expiries and cleanups": 3,
}
"""How often things have to happen at least: a busy machine gets more time for them."""


class FastClock:
    """Runs `speed` times as fast as time, from now on."""

    def __init__(self, speed: float) -> None:
        self._speed, self._start, self._began = speed, datetime.now(UTC), time.monotonic()
        self.extra = timedelta()

    def __call__(self) -> datetime:
        return self._start + timedelta(seconds=(time.monotonic() - self._began) * self._speed) + self.extra


@dataclass
class Load:
    """A table under load: what its writers have acknowledged, and what has gone wrong."""

    realm: Realm
    home: ManagedTableFactory
    table_id: v1.ResourceId
    clock: FastClock
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    inserted: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    maybe_deleted: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def disk_realm(self) -> Realm:
        """A realm for which files that were written 30 s ago are an hour old: the disk has times of its own."""
        ahead = timedelta(hours=1, seconds=-30) + self.clock.extra
        return replace(self.realm, clock=lambda: datetime.now(UTC) + ahead)

    def count(self, what: str, number: int = 1) -> None:
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def load(self) -> ManagedTable:
        return managed.load(self.realm, self.home.warehouse, self.table_id)

    def change(self, producer: Any) -> ManagedTable:
        return managed.change(self.realm, self.home.warehouse, self.table_id, producer)

    # --- writers -----------------------------------------------------------------------------------------------------

    def write(self, number: int) -> None:
        chance, ids = random.Random(number), iter(range((number + 1) * 10**9, (number + 2) * 10**9))
        own: list[int] = []
        while not self.stop.is_set():
            try:
                choice = chance.random()
                if own and choice < 0.15:
                    self._delete({own.pop(chance.randrange(len(own))) for _ in range(min(3, len(own)))})
                elif choice < 0.2:
                    self._lose([next(ids)])
                else:
                    own += self._insert([next(ids) for _ in range(20)])
            except (Conflict, PreconditionFailed):  # others were faster; nothing was committed
                self.count("conflicts")
            self.stop.wait(0.1)  # all share an interpreter: the others need time, too

    def _insert(self, ids: list[int]) -> list[int]:
        table = self.load()
        with DataFileWriter(table.files, table.metadata) as writer:
            writer.write(pa.record_batch({"id": ids, "part": ["a"] * len(ids), "v": [f"v{each}" for each in ids]}))
            self.change(append(writer.close()))
        with self.lock:
            self.inserted |= set(ids)
        self.count("inserts")
        return ids

    def _lose(self, ids: list[int]) -> None:
        """Write a file and do not commit it, like a process that is killed."""
        table = self.load()
        writer = DataFileWriter(table.files, table.metadata)
        writer.write(pa.record_batch({"id": ids, "part": ["a"] * len(ids), "v": ["lost"] * len(ids)}))
        writer.close()
        self.count("lost statements")

    def _delete(self, ids: set[int]) -> None:
        """Delete rows by position, as a DELETE statement with merge-on-read does."""
        with self.lock:
            self.maybe_deleted |= ids
        table = self.load()
        current = table.handle.current()
        assert current is not None
        files = data_files(table.handle.files(current))
        rows = table.handle.read(current, files=files, positions=True).read_all()
        found = rows.filter(pa.compute.is_in(rows["id"], value_set=pa.array(sorted(ids))))
        with DeleteFileWriter(table.files, table.metadata) as writer:
            for ordinal in found[FILE_ORDINAL].unique().to_pylist():
                of = found.filter(pa.compute.equal(found[FILE_ORDINAL], ordinal))[ROW_POSITION].to_numpy()
                file = files.filter(pa.compute.equal(files["ordinal"], ordinal))
                before = table.handle.deleted_positions(current, file)
                writer.add(file["path"][0].as_py(), np.sort(of), before=before)
            made = writer.close()
            self.change(overwrite([], [], deletes=made, based_on=current.id, operation="delete"))
        with self.lock:
            self.deleted |= ids
        self.count("deletes")

    # --- readers -----------------------------------------------------------------------------------------------------

    def begin(self) -> tuple[str, int]:
        """Lease the current snapshot; return the query and the snapshot."""
        request = v1.BeginQueryRequest(
            default_catalog_id=self.load().table.catalog_id,
            inputs=[v1.QueryInput(table_id=self.table_id)],
            ttl_seconds=10**7,
        )
        query = queries.begin(self.realm, request, rules=LEASES).query
        return query.query_id, query.snapshots.pins[0].snapshot_id

    def end(self, query_id: str) -> None:
        queries.end(self.realm, v1.EndQueryRequest(query_id=query_id), rules=LEASES)

    def read(self, snapshot_id: int, *, slowly: bool = False) -> list[int]:
        handle = self.load().handle
        snapshot = next(each for each in handle.snapshots() if each.id == snapshot_id)
        found: list[int] = []
        for file in range((files := data_files(handle.files(snapshot))).num_rows):
            for batch in handle.read(snapshot, files=files.slice(file, 1)):
                found += batch.column("id").to_pylist()
            if slowly:
                self.stop.wait(0.01)
        return found

    def read_on(self, _number: int) -> None:
        while not self.stop.is_set():
            with self.lock:
                must, gone = set(self.inserted), set(self.deleted)
                must -= self.maybe_deleted
            query_id, snapshot_id = self.begin()
            found = self.read(snapshot_id, slowly=True)
            self.end(query_id)
            if len(found) != len(set(found)):
                self.problems.append("a row was read twice")
            if lost := must - set(found) - self.maybe_deleted:
                self.problems.append(f"{len(lost)} acknowledged rows were not read, such as {min(lost)}")
            if back := gone & set(found):
                self.problems.append(f"{len(back)} deleted rows came back, such as {min(back)}")
            self.count("reads")

    # --- maintenance -------------------------------------------------------------------------------------------------

    def optimize(self, _number: int) -> None:
        while not self.stop.is_set():
            done = optimize(self.realm, self.home.warehouse, self.table_id, rules_of=rules)
            self.count("files rewritten", done.files_before)
            self.count("groups given up", len(done.given_up))
            self.count("optimizations")

    def tidy(self, _number: int) -> None:
        while not self.stop.is_set():
            self.expire_and_clean()
            self.count("expiries and cleanups")

    def expire_and_clean(self, *, alone: bool = False) -> None:
        """Expire snapshots and remove orphans. What a dry run has just listed is gone afterwards, and nothing else if nobody
        else works on the table.
        """
        for what, act in (("files expired", self._expire), ("orphans removed", self._clean)):
            planned, before = act(dry_run=True), self.on_disk()
            removed = act(dry_run=False)
            self.count(what, len(removed))
            after = self.on_disk()
            if kept := planned - removed:
                self.problems.append(f"{what}: {len(kept)} files of the dry run stayed, such as {min(kept)}")
            if present := removed & after:
                self.problems.append(f"{what}: {len(present)} files were reported but not deleted: {min(present)}")
            if alone:
                # An expiry adds a state of the table.
                assert (planned, before - after) == (removed, removed), what

    def _expire(self, *, dry_run: bool) -> set[str]:
        report = expire_snapshots(self.realm, self.home.warehouse, self.table_id, max_age_ms=0, dry_run=dry_run)
        self.count("snapshots expired", 0 if dry_run else len(report.expired))
        return {each.location for each in report.files}

    def _clean(self, *, dry_run: bool) -> set[str]:
        age = timedelta(hours=1)
        report = remove_orphans(self.disk_realm, self.home.warehouse, self.table_id, older_than=age, dry_run=dry_run)
        return {each.location for each in report.files}

    def on_disk(self) -> set[str]:
        """All files in the folder of the table."""
        table = self.load()
        return {uri_of(each.location) for each in table.files.walk(location(table.metadata.location))}

    def has_happened(self) -> bool:
        """Whether enough has happened."""
        return all(self.counts.get(what, 0) >= times for what, times in HAPPENS.items())

    def run(self, seconds: float, *work: tuple[Callable[[int], None], int]) -> None:
        def guarded(act: Callable[[int], None], number: int) -> None:
            try:
                act(number)
            except Exception as error:  # noqa: BLE001 - reported by the test
                self.problems.append(f"{act.__name__}: {error!r}")
                self.stop.set()

        threads = [
            threading.Thread(target=guarded, args=(act, number), daemon=True)
            for act, times in work
            for number in range(times)
        ]
        for thread in threads:
            thread.start()
        started = time.monotonic()
        while not self.stop.wait(0.2) and time.monotonic() - started < 20 * seconds:
            if time.monotonic() - started > seconds and self.has_happened():
                break
        self.stop.set()
        for thread in threads:
            thread.join(120)


def rules(metadata: Any) -> CompactionRules:
    return CompactionRules.of(metadata, max_deleted=0.05)


@contextmanager
def loaded(folder: Path, *, speed: float, version: str) -> Iterator[Load]:
    clock = FastClock(speed)
    with open_stores(f"sqlite:///{folder}/pointers.db") as stores:
        factory = ResourceFactory(stores)
        home = ManagedTableFactory.at(factory, folder)
        table = MaintainedTable.create(home, SCHEMA, properties={"format-version": version})
        yield Load(replace(factory.home, clock=clock), home, table.id, clock)


@pytest.mark.full
@pytest.mark.timeout(int(22 * SECONDS) + 400)
@pytest.mark.parametrize("version", ["2", "3"])
def test_rows_and_leased_files_survive_maintenance(tmp_path: Path, version: str) -> None:
    with loaded(tmp_path, speed=600.0, version=version) as load, ExitStack() as ending:
        load._insert(list(range(10)))
        load._insert(list(range(10, 20)))
        old_query, old = load.begin()
        handle = load.load().handle
        leased = set(handle.files(handle.current())["path"].to_pylist())
        ending.callback(load.stop.set)

        def read_old(_number: int) -> None:
            while not load.stop.is_set():
                if sorted(load.read(old)) != list(range(20)):
                    load.problems.append("the leased snapshot changed")
                load.count("reads of the leased snapshot")
                load.stop.wait(0.05)

        load.run(
            SECONDS,
            (load.write, WRITERS),
            (load.read_on, READERS - 1),
            (read_old, 1),
            (load.optimize, 1),
            (load.tidy, 1),
        )
        assert load.problems == []
        figures = dict(load.counts)
        assert load.has_happened(), figures
        assert leased <= load.on_disk(), "leased files were deleted"
        assert sorted(load.read(old)) == list(range(20))
        # Everything is old, and nothing but the lease holds the old snapshot.
        load.clock.extra = timedelta(days=30)
        optimize(load.realm, load.home.warehouse, load.table_id, rules_of=rules)
        load.clock.extra = timedelta(days=60)
        load.expire_and_clean(alone=True)
        assert leased <= load.on_disk(), "leased files were deleted"
        assert sorted(load.read(old)) == list(range(20))
        # After the lease has ended, only what the table references is left.
        load.end(old_query)
        load.clock.extra = timedelta(days=90)
        load.expire_and_clean(alone=True)
        assert load.problems == []
        table, left = load.load(), load.on_disk()
        used = {uri_of(each) for each in files_of_state(table.files, location(table.metadata_location))}
        assert not leased & left
        assert left <= used, sorted(left - used)[:5]
        found = load.read(table.metadata.current_snapshot_id)
        assert len(found) == len(set(found))
        assert load.inserted - load.maybe_deleted <= set(found) <= load.inserted - load.deleted
        print(f"\n{SECONDS:.0f} s, version {version}: {figures}, {len(found)} rows")


@pytest.mark.full
def test_scan_of_a_thousand_small_files_is_faster_afterwards(factory: ResourceFactory, tmp_path: Path) -> None:
    home = ManagedTableFactory.at(factory, tmp_path)
    table = MaintainedTable.create(home)
    made = table.now
    with DataFileWriter(made.files, made.metadata, buffer_bytes=1, target_bytes=1) as writer:
        for number in range(1000):
            ids = np.arange(number * 1000, (number + 1) * 1000)
            writer.write(pa.record_batch({"id": ids, "part": ["a"] * 1000, "v": [f"v{each}" for each in ids.tolist()]}))
        managed.change(home.home, home.warehouse, table.id, append(writer.close()))
    assert len(table.paths()) == 1000
    before = scan_s(table)
    started = time.monotonic()
    optimize(home.home, home.warehouse, table.id)
    took = time.monotonic() - started
    after = scan_s(table)
    print(f"\nscan of 1,000 files {before:.3f} s, of {len(table.paths())} {after:.3f} s; optimize {took:.1f} s")
    assert (len(table.paths()), after < before / 2) == (1, True)


def scan_s(table: MaintainedTable) -> float:
    """The shortest of three full scans."""
    times = []
    for _ in range(3):
        handle = table.now.handle
        started = time.monotonic()
        rows = handle.read(handle.current()).read_all()
        times.append(time.monotonic() - started)
        assert rows.num_rows == 1_000_000
    return min(times)
