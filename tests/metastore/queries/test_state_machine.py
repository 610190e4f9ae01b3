"""Random sequences of query operations while tables are written, dropped and collected, compared with a simple model."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metastore.integrity import damage
from metastore.jobs.test_state_machine import scaled
from metastore.resource_factory import ResourceFactory, behavior
from skiway.errors import AlreadyExists, NotFound
from skiway.metastore import gc, queries, statistics
from skiway.metastore.resources import snapshots, tables
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

TABLES = ("t0", "t1")
IDS = st.sampled_from(["q0", "q1", "q2"])
GRACE = timedelta(seconds=queries.RULES.grace_s)


@dataclass
class Table:
    """The current state of a table: its current snapshot, and the row count in the statistics of each snapshot."""

    stored: v1.Table
    current: int
    rows: dict[int, int] = field(default_factory=dict)


@dataclass
class Query:
    """The expected state of a query, and what it should read: the snapshot and its row count by table id."""

    state: int
    expires_at: datetime
    forgotten_at: datetime
    reads: dict[str, tuple[int, int]]


class Queries(RuleBasedStateMachine):
    url = "memory://"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.factory = ResourceFactory(self.open(), self.clock)
        self.numbers = itertools.count()
        self.tables: dict[str, Table] = {}
        self.queries: dict[str, Query] = {}

    def open(self):
        return open_stores(self.url.format(folder=Path(self.folder.name)), clock=self.clock)

    def teardown(self):
        self.factory.stores.close()
        self.folder.cleanup()

    @initialize()
    def create_tables(self):
        for name in TABLES:
            self._create_table(name)

    @rule(name=st.sampled_from(TABLES))
    def write(self, name):
        table = self.tables[name]
        table.current = next(self.numbers)
        self.factory.snapshot(table.stored, table.current, at=table.current)
        self._profile(table, rows=table.current)

    @rule(name=st.sampled_from(TABLES))
    def profile_again(self, name):
        self._profile(self.tables[name], rows=1_000 + next(self.numbers))

    @rule(name=st.sampled_from(TABLES))
    def delete_an_old_snapshot(self, name):
        table = self.tables[name]
        old = [each for each in table.rows if each != table.current]
        if old:
            request = v1.DeleteSnapshotRequest(table_id=table.stored.resource_id, snapshot_id=old[0])
            snapshots.delete(self.factory.home, request)
            del table.rows[old[0]]

    @rule(name=st.sampled_from(TABLES))
    def drop_and_recreate(self, name):
        tables.delete(self.factory.home, v1.DeleteTableRequest(table_id=self.tables[name].stored.resource_id))
        self._create_table(name)

    @rule(query_id=IDS, ttl_s=st.sampled_from([5, 60]), names=st.sets(st.sampled_from(TABLES)), old=st.booleans())
    def begin(self, query_id, ttl_s, names, old):
        inputs, reads = [], {}
        for table in (self.tables[name] for name in sorted(names)):
            wanted = min(table.rows) if old else table.current
            ref = v1.SnapshotRef(snapshot_id=wanted) if old else None
            inputs.append(v1.QueryInput(table_id=table.stored.resource_id, snapshot=ref))
            reads[table.stored.resource_id.id] = (wanted, table.rows[wanted])
        request = v1.BeginQueryRequest(
            query_id=query_id,
            ttl_seconds=ttl_s,
            default_catalog_id=self.factory.first_catalog().resource_id,
            inputs=inputs,
        )
        try:
            queries.begin(self.factory.home, request)
        except AlreadyExists:
            assert self._refreshed(query_id)
            return
        assert not self._refreshed(query_id)
        expires_at = self.clock.later(ttl_s)
        self.queries[query_id] = Query(v1.LS_ACTIVE, expires_at, expires_at + GRACE, reads)

    @rule(query_id=IDS, ttl_s=st.sampled_from([1, 30]))
    def renew(self, query_id, ttl_s):
        query = self._refreshed(query_id)
        request = v1.RenewQueryRequest(query_id=query_id, ttl_seconds=ttl_s)
        try:
            answer = queries.renew(self.factory.home, request)
        except NotFound:
            assert query is None or query.state != v1.LS_ACTIVE
            return
        assert query.state == v1.LS_ACTIVE
        query.expires_at = max(query.expires_at, self.clock.later(ttl_s))
        query.forgotten_at = query.expires_at + GRACE
        assert answer.expires_at.ToDatetime(UTC) == query.expires_at

    @rule(query_id=IDS, commit=st.booleans())
    def end(self, query_id, commit):
        query = self._refreshed(query_id)
        try:
            queries.end(self.factory.home, v1.EndQueryRequest(query_id=query_id, commit=commit))
        except NotFound:
            assert query is None
            return
        assert query is not None
        if query.state == v1.LS_ACTIVE:
            query.state = v1.LS_ENDED_COMMIT if commit else v1.LS_ENDED_ABORT
            query.expires_at = query.forgotten_at = max(query.expires_at, self.clock() + GRACE)

    @rule(seconds=st.sampled_from([1.0, 5.0, 14.999, 15.0, 61.0]))
    def pass_time(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def collect(self):
        gc.sweep_expired(self.factory.stores)
        swept = gc.sweep_pointers(self.factory.stores)
        assert (swept.removed, swept.damaged) == ((), ())
        gc.sweep_blobs(self.factory.stores, clock=lambda: datetime.now(UTC) + timedelta(hours=1), size=10_000)
        # The remaining blobs are in use: a pointer refers to them, and a pin is a pointer too.
        named = {pointer.blob_uri for pointer in self.factory.stores.pointers.scan()}
        assert {head.uri for head in self.factory.stores.blobs.scan()} <= named

    @invariant()
    def queries_match_the_model(self):
        for query_id in ("q0", "q1", "q2"):
            query = self._refreshed(query_id)
            try:
                found = queries.get(self.factory.home, v1.GetQueryRequest(query_id=query_id)).query
            except NotFound:
                assert query is None
                continue
            assert (found.state, found.expires_at.ToDatetime(UTC)) == (query.state, query.expires_at)

    @invariant()
    def active_queries_read_stable_data(self):
        for query_id in tuple(self.queries):
            query = self._refreshed(query_id)
            if query is None or query.state != v1.LS_ACTIVE:
                continue
            for table_id, (snapshot_id, rows) in query.reads.items():
                read = queries.pinned(self.factory.home, query_id, v1.ResourceId(id=table_id))
                assert read.table().resource_id.id == table_id
                assert read.snapshot().snapshot_id == snapshot_id
                assert read.files()["row_count"].to_pylist() == [rows]

    @invariant()
    def store_is_consistent(self):
        assert damage(self.factory.stores) == []

    def _refreshed(self, query_id: str) -> Query | None:
        """The model of the query, updated to the current time."""
        query = self.queries.get(query_id)
        if query is None or query.forgotten_at <= self.clock():
            self.queries.pop(query_id, None)
            return None
        if query.state == v1.LS_ACTIVE and query.expires_at <= self.clock():
            query.state = v1.LS_EXPIRED
        return query

    def _create_table(self, name: str) -> None:
        self.tables[name] = Table(self.factory.table(name), current=0)
        self.write(name)

    def _profile(self, table: Table, *, rows: int) -> None:
        file = v1.FileColumnStats(file_path="f", row_count=rows)
        target = {"table_id": table.stored.resource_id, "snapshot_id": table.current}
        statistics.put_files(self.factory.home, [v1.PutFileColumnStatsRequest(**target, files=[file])])
        table.rows[table.current] = rows


class QueriesOnFile(Queries):
    """The same on files, with a server that may restart at any time."""

    url = "sqlite:///{folder}/pointers.db"

    @rule()
    def restart(self):
        self.factory.stores.close()
        self.factory.stores = self.open()


TestQueries = behavior(47, 49, 75)(Queries.TestCase)
TestQueries.settings = scaled(15)
TestQueriesOnFile = pytest.mark.full(behavior(47, 49, 75)(QueriesOnFile.TestCase))
TestQueriesOnFile.settings = scaled(4)
