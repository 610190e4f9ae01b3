"""Pointers in PostgreSQL: behavior specific to PostgreSQL."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import OperationalError

from skiway.errors import Contention, Internal, Unavailable
from skiway.storage import ABSENT, Put, open_pointers, utc_now
from skiway.storage.pointers.postgres import ATTEMPTS, PostgresPointerStore
from skiway.storage.pointers.sql import identities
from storage.homes import pointer_home


@pytest.fixture
def home(tmp_path, server):
    return pointer_home("postgresql", tmp_path, server)


@pytest.fixture
def store(home):
    with home.pointers() as store:
        yield store


def victim(home):
    """A store with identifiable connections."""
    return open_pointers(f"{home.url}&application_name=victim")


def terminate_victims(home):
    terminate = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim'")
    with home.pointers() as other, other._autocommit.connect() as connection:
        assert connection.execute(terminate).all() == [(True,)]


class Failing:
    """Raises the same driver error a number of times, then works."""

    def __init__(self, sqlstate, *, times):
        self.sqlstate, self.times, self.calls = sqlstate, times, 0

    def __call__(self):
        self.calls += 1
        if self.calls > self.times:
            return "done"
        cause = Exception("the driver says so")
        cause.sqlstate = self.sqlstate  # type: ignore[attr-defined]
        raise OperationalError("SELECT 1", {}, cause)


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
def test_serialization_failures_are_retried(store, sqlstate):
    attempt = Failing(sqlstate, times=3)
    assert store._translated(attempt) == "done"
    assert attempt.calls == 4


def test_repeated_serialization_failures_are_contention(store):
    attempt = Failing("40001", times=100)
    with pytest.raises(Contention, match="too many concurrent writes to the same keys"):
        store._translated(attempt)
    assert attempt.calls == ATTEMPTS


@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [
        ("55P03", Contention),
        ("53300", Unavailable),
        ("57P03", Unavailable),
        ("28P01", Unavailable),
        ("42601", Internal),
    ],
)
def test_other_errors_are_not_retried(store, sqlstate, error):
    attempt = Failing(sqlstate, times=1)
    with pytest.raises(error, match="the driver says so"):
        store._translated(attempt)
    assert attempt.calls == 1


def test_full_disk_of_the_database_is_explained(store):
    with pytest.raises(Unavailable, check=lambda error: error.key == "disk.full") as caught:
        store._translated(Failing("53100", times=1))
    assert caught.value.message.startswith("the database cannot write: the disk is full; free some space")


def test_pauses_between_retries_grow_with_jitter(home):
    class State:
        attempt_number = 1

    url = make_url(home.url)
    with PostgresPointerStore(
        url.difference_update_query(["schema"]), schema="pauses", randomness=lambda: 0.0
    ) as store:
        pauses = []
        for State.attempt_number in range(1, ATTEMPTS):
            pauses.append(store._pause(State))
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (0.005, 0.1)
        store._randomness = lambda: 1.0
        assert store._pause(State) == 0.2


def test_broken_connection_is_replaced(home):
    with victim(home) as store:
        store.compare_and_set("/a", "one", expect=ABSENT)
        terminate_victims(home)
        assert store.get("/a").blob_uri == "one"
        terminate_victims(home)
        assert store.compare_and_set("/a", "two", expect=1).version == 2


def test_outcome_is_unknown_if_the_connection_breaks_during_commit(home):
    with victim(home) as store:
        event.listen(store._engine, "commit", lambda _: terminate_victims(home), once=True)
        with pytest.raises(Unavailable, match="may or may not have happened; read before you retry") as caught:
            store.compare_and_set("/a", "one", expect=ABSENT)
        assert caught.value.key == "store.outcome_unknown"
        assert store.get("/a") is None  # the connection broke before the server received the commit


def test_lock_timeout_is_contention(home, monkeypatch):
    with home.pointers() as other:
        assert other.get("/a") is None  # connects, so that this connection may be idle for long
        monkeypatch.setattr("skiway.storage.pointers.postgres.LOCK_TIMEOUT_S", 0.1)
        with home.pointers() as store:
            locked, done = Event(), Event()

            def hold(connection):
                locked.set()
                done.wait()

            holder = Thread(target=lambda: other._write(hold, keys=["/a"]))
            holder.start()
            locked.wait()
            try:
                with pytest.raises(Contention, match="lock timeout"):
                    store.compare_and_set("/a", "blob", expect=ABSENT)
                store.compare_and_set("/b", "blob", expect=ABSENT)  # other keys are not locked
                assert store.get("/a") is None
            finally:
                done.set()
                holder.join()
            store.compare_and_set("/a", "blob", expect=ABSENT)


def test_stores_in_different_schemas_are_isolated(tmp_path, server):
    homes = [pointer_home("postgresql", tmp_path, server) for _ in range(2)]
    with homes[0].pointers() as one, homes[1].pointers() as two:
        one.compare_and_set("/a", "one", expect=ABSENT)
        assert two.get("/a") is None


def test_existing_store_opens_without_permission_to_create_tables(home, server):
    home.pointers().close()
    schema = make_url(home.url).query["schema"]
    with home.pointers() as admin, admin._engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {schema} LOGIN")
        connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {schema}")
        connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}")
    with open_pointers(home.url.replace("postgres@", f"{schema}@")) as store:
        assert store.compare_and_set("/a", "blob", expect=ABSENT).version == 1


def plan_of(store, statement, parameters=None):
    expanded = statement.compile(store._engine).construct_expanded_state(parameters)
    with store._autocommit.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN {expanded.statement}", expanded.parameters)
        return "\n".join(row[0] for row in plan)


@pytest.fixture
def filled(store):
    for start in range(0, 5000, 1000):
        store.apply([Put(f"/{number:05d}", "blob", expect=ABSENT) for number in range(start, start + 1000)])
    return store


def test_page_query_uses_the_index_without_statistics(filled):
    plan = plan_of(filled, *filled._table.page("/", after="/02500", limit=100, now=utc_now()))
    assert "Incremental Sort" in plan
    assert "Index Scan using skiway_pointers_pkey" in plan


def test_expiry_index_has_only_pointers_that_expire(store):
    with store._autocommit.connect() as connection:
        found = connection.exec_driver_sql("SELECT indexdef FROM pg_indexes WHERE indexname = 'skiway_pointers_expiry'")
        definitions = [definition for (definition,) in found]
    assert definitions
    assert all("WHERE (expires_at_us IS NOT NULL)" in each for each in definitions)


def test_batch_query_uses_the_index(filled):
    keys = identities(["/a", "/b", "/" + "x" * 2000])
    plan = plan_of(filled, filled._table.several, keys)
    assert "skiway_pointers_pkey" in plan
    assert "Seq Scan" not in plan
