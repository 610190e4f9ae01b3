"""The state of a PostgreSQL store: equal states have equal content, whoever writes, and calls may reuse the state of a moment ago."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import make_url

from skiway.errors import Unavailable
from skiway.storage import ABSENT, PointerStore
from skiway.storage.pointers.postgres import PostgresPointerStore
from storage.homes import Home, PostgresServer, pointer_home, running_postgres_server


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running_postgres_server() as server:
        yield server


@pytest.fixture
def home(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Home:
    return pointer_home("postgresql", tmp_path_factory.mktemp("unused"), lambda _: postgres.url)


def connected(home: Home) -> psycopg.Connection:
    return psycopg.connect(make_url(home.url).difference_update_query(["schema"]).render_as_string(False))


def schema_of(home: Home) -> str:
    return str(make_url(home.url).query["schema"])


def test_open_transaction_changes_the_state_when_it_commits(home: Home) -> None:
    with home.pointers() as store, connected(home) as other:
        store.compare_and_set("/a", "one", expect=ABSENT)
        other.execute(f"UPDATE {schema_of(home)}.skiway_pointers SET blob_uri = 'two', version = 2")  # type: ignore[arg-type]
        during = store.state()
        assert store.get("/a").blob_uri == "one"  # type: ignore[union-attr]
        other.commit()
        assert store.state() != during
        assert store.get("/a").blob_uri == "two"  # type: ignore[union-attr]


def test_call_reuses_a_state_since_its_beginning_but_none_from_before_a_change_of_its_own(home: Home) -> None:
    url = make_url(home.url).difference_update_query(["schema"])
    store = PostgresPointerStore(url, schema=schema_of(home), reuse_state_s=1000)
    with store, home.pointers() as other:
        began = time.monotonic()
        first = store.state(since=began)
        other.compare_and_set("/a", "one", expect=ABSENT)
        assert store.state(since=began) == first, "as it was after the beginning of the call"
        later = store.state(since=time.monotonic())
        assert later != first, "a call that begins after the change sees it"
        store.compare_and_set("/b", "one", expect=ABSENT)
        assert store.state(since=began) not in (first, later), "a call sees its own changes"
        with pytest.raises(Exception, match="already exists"):
            store.compare_and_set("/b", "two", expect=ABSENT)


def test_long_call_sees_changes_soon(home: Home) -> None:
    with home.pointers() as store, home.pointers() as other:
        began = time.monotonic()
        first = store.state(since=began)
        other.compare_and_set("/a", "one", expect=ABSENT)
        deadline = time.monotonic() + 20
        while store.state(since=began) == first:
            assert time.monotonic() < deadline


def test_results_that_are_kept_by_state_are_never_stale(home: Home) -> None:
    """Two stores write and read at random; the value under a state is that of a read, whatever happens in between."""
    written = 0
    lock = threading.Lock()
    failures: list[tuple[int, int]] = []
    with home.pointers() as one, home.pointers() as two:
        one.compare_and_set("/n", "0", expect=ABSENT)

        def run(store: PointerStore, seed: int) -> None:
            nonlocal written
            chance, kept = random.Random(seed), dict[object, int]()
            for _ in range(150):
                if chance.random() < 0.3:
                    with lock:  # one writer at a time, so that the number of the last change that is done is known
                        found = store.get("/n")
                        assert found is not None
                        store.compare_and_set("/n", str(int(found.blob_uri) + 1), expect=found.version)
                        written = int(found.blob_uri) + 1
                else:
                    done = written  # before the call begins
                    state = store.state(since=time.monotonic())
                    if state not in kept:
                        found = store.get("/n")
                        assert found is not None
                        kept[state] = int(found.blob_uri)
                    if kept[state] < done:
                        failures.append((kept[state], done))

        threads = [threading.Thread(target=run, args=(store, seed)) for seed, store in enumerate((one, two, one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert written > 100


def test_state_survives_the_end_of_its_connection_and_differs_afterwards(home: Home) -> None:
    with home.pointers() as store, connected(home) as other:
        before = store.state()
        other.autocommit = True
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        after = store.state()
        assert before != after
        assert store.state() == after


def test_state_is_unavailable_while_the_server_is_down(postgres: PostgresServer, home: Home) -> None:
    with home.pointers() as store:
        before = store.state()
        postgres.stop()
        try:
            with pytest.raises(Unavailable, match="check that the database is running"):
                store.state()
        finally:
            postgres.start()
        assert store.state() != before
