"""Pointers in SQLite: behavior specific to SQLite."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import event

from skiway.errors import Conflict, Contention, Internal, Unavailable
from skiway.storage import ABSENT, Check, Delete, Pointer, Put, utc_now
from skiway.storage.pointers.sql import SqlPointerStore, identities
from skiway.storage.pointers.sqlite import MAX_KEPT_ROWS, SqlitePointerStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pointers ?%.db"


@pytest.fixture
def store(path):
    with SqlitePointerStore(path) as store:
        yield store


def test_file_is_created_at_the_given_path(store, path):
    assert path.is_file()


def test_commits_use_a_write_ahead_log_and_are_synced(store):
    store.compare_and_set("/a", "blob", expect=ABSENT)
    with store._autocommit.connect() as connection:
        for run in (lambda text: connection.exec_driver_sql(text).scalar(), lambda text: written(store, text)[0]):
            assert run("PRAGMA journal_mode") == "wal"
            assert run("PRAGMA synchronous") == 2


def written(store, statement):
    """The first row of a statement on the connection that writes."""
    return store._writing._connection.execute(statement).fetchone()


def test_writes_lock_immediately(store):
    store.compare_and_set("/a", "blob", expect=ABSENT)
    statements = []
    store._writing._connection.set_trace_callback(lambda text: statements.append(text.split()[:2]))
    store.compare_and_set("/a", "blob", expect=1)
    names = [each[0] for each in statements]
    assert statements[0] == ["BEGIN", "IMMEDIATE"]
    assert names.index("INSERT") < names.index("COMMIT")


def test_rare_writes_lock_immediately(store):
    statements = []
    event.listen(store._engine, "before_cursor_execute", lambda *call: statements.append(call[2].split()[:2]))
    store.purge_expired()
    assert statements[0] == ["BEGIN", "IMMEDIATE"]
    assert statements[-1] == ["COMMIT"]


BATCHES = [
    [Put("/a", "1", expect=ABSENT), Put("/b", "1", expect=ABSENT, expires_at=utc_now() + timedelta(days=1))],
    [Put("/a", "2", expect=1), Delete("/b", expect=1), Put("/" + "x" * 2000, "1", expect=ABSENT)],
    [Put("/a", "3", expect=2), Put("/b", "2", expect=7)],  # rejected
    [Check("/a", expect=2), Check("/c", expect=ABSENT), Put("/é", "1", expect=ABSENT)],
    [Check("/a", expect=1), Put("/c", "1", expect=ABSENT)],  # rejected
    [Delete("/" + "x" * 2000, expect=1)],
]


def test_driver_writes_the_same_as_sqlalchemy(tmp_path):
    with SqlitePointerStore(tmp_path / "driver.db") as ours, SqlitePointerStore(tmp_path / "plain.db") as plain:
        for batch in BATCHES:
            found = []
            for apply in (ours._apply, lambda batch: SqlPointerStore._apply(plain, batch)):
                try:
                    found.append(apply(batch))
                except Conflict as error:
                    found.append((type(error), error.message))
            assert found[0] == found[1]
            everything = list(ours.snapshot())
            assert everything == list(plain.snapshot())
        assert [each.key for each in everything] == ["/a", "/é"]


def test_readers_do_not_wait_for_a_writer(store, path):
    store.compare_and_set("/a", "blob", expect=ABSENT)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        assert store.get("/a").version == 1
        assert store.count() == 1
    finally:
        writer.close()


def test_lock_timeout_is_contention(path):
    with SqlitePointerStore(path, busy_timeout_s=0.05) as store:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        try:
            for write in (lambda: store.compare_and_set("/a", "blob", expect=ABSENT), store.purge_expired):
                with pytest.raises(Contention, match="another process held the lock for too long"):
                    write()
        finally:
            blocker.close()
        store.compare_and_set("/a", "blob", expect=ABSENT)


def test_full_disk_is_unavailable_and_leaves_the_store_usable(store):
    store.compare_and_set("/a", "blob", expect=ABSENT)
    (pages,) = written(store, "PRAGMA page_count")
    written(store, f"PRAGMA max_page_count = {pages + 20}")
    with pytest.raises(Unavailable, match="full"):
        store.apply([Put(f"/{number}", "x" * 60_000, expect=ABSENT) for number in range(50)])
    assert store.count() == 1
    store.compare_and_set("/b", "blob", expect=ABSENT)
    assert store.count() == 2


def test_file_that_is_not_a_database_is_rejected_and_kept(path):
    path.write_bytes(b"my diary, volume one" * 100)
    with pytest.raises(Internal, match="not a database"):
        SqlitePointerStore(path)
    assert path.read_bytes().startswith(b"my diary")


def test_path_below_a_file_is_rejected(path):
    path.write_bytes(b"")
    with pytest.raises(Unavailable, match="cannot be created"):
        SqlitePointerStore(path / "pointers.db")


def plan_of(store, statement, parameters=None):
    expanded = statement.compile(store._engine).construct_expanded_state(parameters)
    explain = f"EXPLAIN QUERY PLAN {expanded.statement}"
    with store._autocommit.connect() as connection:
        return [row[3] for row in connection.exec_driver_sql(explain, tuple(expanded.positional_parameters))]


def test_page_query_uses_the_index(store):
    assert plan_of(store, *store._table.page("/", after="/02500", limit=100, now=utc_now())) == [
        "SEARCH skiway_pointers USING PRIMARY KEY (head>? AND head<?)",
        "USE TEMP B-TREE FOR RIGHT PART OF ORDER BY",
    ]


def test_batch_query_uses_the_index(store):
    keys = identities(["/a", "/b", "/" + "x" * 2000])
    assert plan_of(store, store._table.several, keys) == [
        "SEARCH skiway_pointers USING PRIMARY KEY (head=? AND tail_digest=?)"
    ]


def test_expiry_index_has_only_pointers_that_expire(store):
    with store._autocommit.connect() as connection:
        found = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'skiway_pointers_expiry'")
        assert "WHERE expires_at_us IS NOT NULL" in found.scalar_one()


def test_purge_query_uses_the_expiry_index(store):
    assert any("INDEX skiway_pointers_expiry" in step for step in plan_of(store, store._table.purge(10, now=utc_now())))


# --- results that are kept --------------------------------------------------------------------------------------------


@pytest.fixture
def queries(store, monkeypatch):
    """The queries that were really run."""
    run, made = store._reading.rows, []

    def rows(statement, parameters):
        made.append(statement)
        return run(statement, parameters)

    monkeypatch.setattr(store._reading, "rows", rows)
    return made


def test_unchanged_database_is_read_once(store, queries):
    store.compare_and_set("/a/1", "blob", expect=ABSENT)
    for _ in range(3):
        assert store.get("/a/1").version == 1
        assert store.get("/a/2") is None
        assert [each.key for each in store.scan("/a/")] == ["/a/1"]
    assert len(queries) == 3


def test_commits_of_others_are_seen_by_the_next_read(store, path, queries):
    with SqlitePointerStore(path) as other:
        for version in range(3):
            assert (found := store.get("/a")) is None or found.version == version
            assert len(list(store.scan("/"))) == min(version, 1)
            other.compare_and_set("/a", f"blob {version}", expect=version)
        assert store.get("/a").blob_uri == "blob 2"
        other.compare_and_delete("/a", expect=3)
        assert store.get("/a") is None
        assert list(store.scan("/")) == []


def test_own_commits_are_seen_by_the_next_read(store):
    assert store.get("/a") is None
    store.compare_and_set("/a", "blob", expect=ABSENT)
    assert store.get("/a").version == 1


def test_own_commits_discard_only_what_they_change(store, path, queries):
    store.apply([Put(key, "1", expect=ABSENT) for key in ("/a/1", "/a/2", "/b/1")])

    def read():
        queries.clear()
        found = [store.get(key).blob_uri for key in ("/a/1", "/a/2", "/b/1")]
        return found, [[each.blob_uri for each in store.scan(prefix)] for prefix in ("/a/", "/b/", "/c/")], len(queries)

    assert read() == (["1", "1", "1"], [["1", "1"], ["1"], []], 6)
    store.apply([Put("/a/1", "2", expect=1), Check("/a/2", expect=1)])
    assert read() == (["2", "1", "1"], [["2", "1"], ["1"], []], 1)
    store.apply([Delete("/a/1", expect=2), Put("/b/1", "2", expect=1, expires_at=utc_now() + timedelta(days=1))])
    queries.clear()
    kept = [store.get(key) for key in ("/a/1", "/a/2", "/b/1")]
    assert queries == []
    with SqlitePointerStore(path) as other:
        assert kept == [other.get(key) for key in ("/a/1", "/a/2", "/b/1")]
    assert [len(list(store.scan(prefix))) for prefix in ("/a/", "/b/", "/c/")] == [1, 1, 0]
    assert len(queries) == 2


def test_rare_writes_discard_everything(store, queries):
    store.compare_and_set("/a", "blob", expect=ABSENT)
    assert store.get("/a").version == 1
    queries.clear()
    store.load([Pointer("/a", "other", 7)])
    assert store.get("/a").blob_uri == "other"
    assert len(queries) == 1


def test_rejected_batches_discard_nothing(store, queries):
    store.compare_and_set("/a", "1", expect=ABSENT)
    assert store.get("/a").blob_uri == "1"
    queries.clear()
    with pytest.raises(Conflict):
        store.compare_and_set("/a", "2", expect=5)
    assert store.get("/a").blob_uri == "1"
    assert queries == []


@pytest.mark.parametrize("moment", ["before the transaction", "after the commit"])
def test_commit_of_another_process_beside_an_own_one_discards_everything(store, path, monkeypatch, moment):
    with SqlitePointerStore(path) as other:
        store.apply([Put("/a", "1", expect=ABSENT), Put("/b", "1", expect=ABSENT)])
        assert store.get("/b").blob_uri == "1"
        carry = store._unchanged.carry

        def carry_late(*args, **kwargs):
            other.compare_and_set("/b", "2", expect=1)
            carry(*args, **kwargs)

        if moment == "after the commit":
            monkeypatch.setattr(store._unchanged, "carry", carry_late)
        else:
            other.compare_and_set("/b", "2", expect=1)
        store.compare_and_set("/a", "2", expect=1)
        assert store.get("/b").blob_uri == "2"


def test_read_that_overlaps_an_own_commit_is_not_kept(store, monkeypatch):
    """It read the state before the commit, and ends after it."""
    run = store._reading.rows

    def rows_before_a_commit(statement, parameters):
        found = run(statement, parameters)
        monkeypatch.undo()
        store.compare_and_set("/a", "blob", expect=ABSENT)
        return found

    monkeypatch.setattr(store._reading, "rows", rows_before_a_commit)
    assert store.get("/a") is None
    assert store.get("/a").version == 1


def test_read_of_the_state_before_a_commit_that_ends_while_results_are_carried_over_is_not_kept(store):
    reads = store._unchanged
    before = reads.current()

    def end_of_the_read():
        before["/a"] = "old"
        return True

    store.compare_and_set("/a", "new", expect=ABSENT)
    reads.carry(before, {"/a": None}, is_alone=end_of_the_read)
    assert store.get("/a").blob_uri == "new"


def test_many_results_are_not_carried_over(store, queries, monkeypatch):
    monkeypatch.setattr("skiway.storage.pointers.sqlite.MAX_CARRIED", 2)
    for key in ("/a", "/b", "/c", "/a"):
        store.get(key)
    assert len(queries) == 3
    store.compare_and_set("/d", "blob", expect=ABSENT)
    store.get("/a")
    assert len(queries) == 4


def test_read_that_overlaps_a_commit_is_not_kept(store, path, monkeypatch):
    """The commit happens after the count was read, and after the query."""
    with SqlitePointerStore(path) as other:
        run = store._reading.rows

        def rows_before_a_commit(statement, parameters):
            found = run(statement, parameters)
            monkeypatch.undo()
            other.compare_and_set("/a", "blob", expect=ABSENT)
            return found

        monkeypatch.setattr(store._reading, "rows", rows_before_a_commit)
        assert store.get("/a") is None
        assert store.get("/a").version == 1


def test_kept_results_expire(path):
    now = utc_now()
    with SqlitePointerStore(path, clock=lambda: now) as store:
        store.compare_and_set("/a", "blob", expect=ABSENT, expires_at=now + timedelta(seconds=5))
        assert store.get("/a") is not None
        assert len(list(store.scan("/"))) == 1
        now += timedelta(seconds=5)
        assert store.get("/a") is None
        assert list(store.scan("/")) == []


def test_long_listings_and_too_many_results_are_not_kept(store, queries, monkeypatch):
    store.apply(Put(f"/a/{number:02d}", "blob", expect=ABSENT) for number in range(MAX_KEPT_ROWS + 1))
    for _ in range(2):
        assert len(list(store.scan("/a/"))) == MAX_KEPT_ROWS + 1
    assert len(queries) == 2
    monkeypatch.setattr("skiway.storage.pointers.sqlite.MAX_KEPT", 1)
    for key in ("/a/00", "/a/01", "/a/00", "/a/01"):
        assert store.get(key) is not None
    assert len(queries) == 5, "the first one was kept"


# -- writes that are committed together --------------------------------------------------------------------------------


def applied_at_once(store, *batches):
    """Apply batches from as many threads while the store is busy; the error of each, or None."""

    def apply(batch):
        try:
            store.apply(batch)
        except (Conflict, Unavailable, Internal) as error:
            return error

    with ThreadPoolExecutor(len(batches)) as pool:
        with store._writing.lock:
            running = []
            for batch in batches:
                running.append(pool.submit(apply, batch))
                while len(store._writing._waiting) < len(running):  # in this order
                    time.sleep(0.001)
        return [each.result() for each in running]


def test_waiting_writes_are_committed_together(store):
    store.compare_and_set("/first", "blob", expect=ABSENT)
    statements = []
    store._writing._connection.set_trace_callback(lambda text: statements.append(text.split()[0]))
    assert applied_at_once(store, *([Put(f"/{n}", "blob", expect=ABSENT)] for n in range(20))) == [None] * 20
    assert statements.count("COMMIT") == 1
    assert [pointer.version for pointer in store.scan()] == [1] * 21


def test_write_that_fails_among_others_changes_nothing_and_fails_alone(store):
    store.compare_and_set("/taken", "blob", expect=ABSENT)
    errors = applied_at_once(
        store,
        [Put("/a", "x", expect=ABSENT)],
        [Put("/b", "x", expect=ABSENT), Put("/taken", "x", expect=ABSENT)],
        [Put("/a", "y", expect=ABSENT)],  # the first one in the transaction has it already
        [Put("/a", "z", expect=1), Delete("/taken", expect=1)],
    )
    assert [isinstance(each, Conflict) for each in errors] == [False, True, True, False]
    assert {pointer.key: (pointer.blob_uri, pointer.version) for pointer in store.scan()} == {"/a": ("z", 2)}
    assert (store.get("/b"), store.get("/taken"), store.get("/a").version) == (None, None, 2)


def test_write_that_fails_half_way_is_undone(store):
    def fail(connection):
        connection.execute("DELETE FROM skiway_pointers")
        raise sqlite3.IntegrityError

    store.compare_and_set("/a", "blob", expect=ABSENT)
    with ThreadPoolExecutor(2) as pool:
        with store._writing.lock:
            failing = pool.submit(store._writing.run, fail, {})
            other = pool.submit(store.apply, [Put("/b", "blob", expect=ABSENT)])
            while len(store._writing._waiting) < 2:
                time.sleep(0.001)
        other.result()
        assert isinstance(failing.exception(), sqlite3.IntegrityError)
    assert {pointer.key for pointer in store.scan()} == {"/a", "/b"}


def test_commit_that_fails_is_the_error_of_all_of_its_writes(path):
    class FullDisk(sqlite3.Connection):
        def execute(self, statement, *arguments):
            if statement == "COMMIT":
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(statement, *arguments)

    with SqlitePointerStore(path) as store, SqlitePointerStore(path) as other:
        store.compare_and_set("/a", "blob", expect=ABSENT)
        store._writing._connection = sqlite3.connect(
            path, isolation_level=None, factory=FullDisk, check_same_thread=False
        )
        errors = applied_at_once(store, *([Put(f"/{n}", "blob", expect=ABSENT)] for n in range(3)))
        assert [type(each) for each in errors] == [Unavailable] * 3
        assert [pointer.key for pointer in other.scan()] == ["/a"]
        store.compare_and_set("/b", "blob", expect=ABSENT)  # with a new connection
        assert other.get("/b") is not None
