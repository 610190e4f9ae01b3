"""Two servers on one PostgreSQL database, each with eight writers that all change the same resources at once.

In every race one writer wins and the others get an error, and the final state consists of exactly the accepted
changes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import Barrier
from typing import TypeVar

import pytest

import scope
from metastore.integrity import damage
from runtime.servers import starting, wait_until_ready
from skiway.client import Metastore
from skiway.errors import AlreadyExists, Conflict, Contention, NotFound, PreconditionFailed, SkiwayError
from skiway.storage import open_stores, utc_now
from storage.homes import running_postgres

pytestmark = [pytest.mark.needs("postgres"), pytest.mark.timeout(300)]

WRITERS = 8
SCHEMA = {"type": "struct", "fields": []}
LONGEST_S = 10.0
"""Time limit of one change, regardless of the number of competing writers."""

LOST = frozenset(
    {
        "table.already.exists",
        "relation.name.already.claimed",
        "version.mismatch",
        "store.contended",
        "namespace.closing",
        "namespace.not_empty",
        "table",  # it was deleted
        "namespace",
        "namespace.by.path.missing",
    }
)
"""The error keys that losers of a race may get."""

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """Two servers of one store; writers alternate between them."""

    addresses: tuple[str, str]
    stores: tuple[str, str]

    def client(self, number: int) -> Metastore:
        return Metastore(self.addresses[number % 2], timeout_s=60)

    def run_writers(self, work: Callable[[Metastore, int], T]) -> list[T]:
        """Run all writers at once, the first on the first server, and return their results."""
        numbers = range(2 * WRITERS)
        ready = Barrier(len(numbers))

        def write(number: int) -> T:
            with self.client(number) as lake:
                lake.catalogs.get("lake")  # connect before the race starts
                ready.wait(200)
                return work(lake, number)

        with ThreadPoolExecutor(len(numbers)) as pool:
            return list(pool.map(write, numbers))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("two")
    with ExitStack() as parts:
        url = parts.enter_context(running_postgres())
        blobs = (folder / "blobs").as_uri()
        shared = ("--set", f"kv.url={url}", "--set", f"blob.url={blobs}")
        servers = [parts.enter_context(starting(folder / name, *shared)) for name in ("one", "two")]
        for server in servers:
            wait_until_ready(server)
        yield Pair((servers[0].address, servers[1].address), (url, blobs))


@pytest.fixture
def namespace(pair: Pair, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace only for this test; afterwards, the store must be undamaged."""
    name = f"lake.{request.function.__name__}"
    with pair.client(0) as lake:
        lake.namespaces.create(name)
    yield name
    with open_stores(*pair.stores) as stores:
        assert [each for each in damage(stores) if not each.startswith("/platform/")] == []


def accepted(change: Callable[[], T], *refusals: type[SkiwayError]) -> T | None:
    """The result of the change, or None if another writer won; any other error is a failure."""
    try:
        return change()
    except (AlreadyExists, Contention, *refusals) as lost:  # type: ignore[misc]
        if lost.key not in LOST:
            raise
        return None


def within_limit(change: Callable[[], T]) -> T:
    """The result of the change, which must finish within the time limit."""
    began = time.monotonic()
    made = change()
    assert time.monotonic() - began < LONGEST_S
    return made


def names(lake: Metastore, namespace: str) -> dict[str, str | None]:
    """The descriptions of the existing tables, by name."""
    return {table.name: table.description for table in lake.tables(namespace)}


@pytest.mark.full
def test_only_one_writer_creates_a_table(pair, namespace):
    expected_names = [f"t{number}" for number in range(6)]

    def create(lake: Metastore, writer: int) -> list[str]:
        """The tables that this writer created; each writer tries all names, in its own order."""
        order = [*expected_names[writer % len(expected_names) :], *expected_names[: writer % len(expected_names)]]
        made = [
            accepted(partial(lake.tables.create, f"{namespace}.{name}", schema=SCHEMA, description=f"of {writer}"))
            for name in order
        ]
        return [table.name for table in made if table]

    won = [(name, f"of {writer}") for writer, made in enumerate(pair.run_writers(create)) for name in made]
    assert sorted(name for name, _ in won) == expected_names
    for number in (0, 1):
        with pair.client(number) as lake:
            assert names(lake, namespace) == dict(won)


def test_only_one_writer_renames_to_the_same_name(pair, namespace):
    with pair.client(0) as lake:
        for writer in range(2 * WRITERS):
            lake.tables.create(f"{namespace}.w{writer}", schema=SCHEMA, description=f"of {writer}")

    def rename(lake: Metastore, writer: int) -> bool:
        mine = lake.tables.get(f"{namespace}.w{writer}")
        return accepted(lambda: lake.tables.update(mine, name="Target")) is not None

    outcome = pair.run_writers(rename)
    assert outcome.count(True) == 1
    winner = outcome.index(True)
    expected = {f"w{writer}": f"of {writer}" for writer in range(2 * WRITERS) if writer != winner}
    with pair.client(1) as lake:
        assert names(lake, namespace) == expected | {"Target": f"of {winner}"}


@pytest.mark.full
def test_no_update_is_lost(pair, namespace):
    rounds = 3
    with pair.client(0) as lake:
        table = lake.tables.create(f"{namespace}.counter", schema=SCHEMA, properties={"count": "0"})

    def add_one(lake: Metastore) -> int:
        """The version that this writer created."""
        while True:
            now = lake.tables.get(table)
            count = {"count": str(int(now.message.properties["count"]) + 1)}
            made = accepted(
                lambda: lake.tables.update(table, properties=count, if_version=now.meta.version),  # noqa: B023
                PreconditionFailed,
            )
            if made:
                return made.meta.version

    def count(lake: Metastore, _: int) -> list[int]:
        return [within_limit(lambda: add_one(lake)) for _ in range(rounds)]

    versions = sorted(itertools.chain.from_iterable(pair.run_writers(count)))
    total = 2 * WRITERS * rounds
    assert versions == [*range(2, total + 2)], "each version was created by one writer"
    for number in (0, 1):
        with pair.client(number) as lake:
            found = lake.tables.get(table)
            assert (found.message.properties["count"], found.meta.version) == (str(total), total + 1)


@pytest.mark.full
def test_deleted_and_recreated_table_exists_at_most_once(pair, namespace):
    def create_and_delete(lake: Metastore, _: int) -> tuple[list[str], list[str]]:
        """The ids of the tables that this writer created, and of those that it deleted."""
        made, deleted = [], []
        for _ in range(4):
            new = accepted(lambda: lake.tables.create(f"{namespace}.phoenix", schema=SCHEMA))
            if new:
                made.append(str(new.id))
            there = lake.tables.find(f"{namespace}.phoenix")
            if there and accepted(lambda: lake.tables.delete(there, if_version=1), NotFound, PreconditionFailed):  # noqa: B023
                deleted.append(str(there.id))
        return made, deleted

    results = pair.run_writers(create_and_delete)
    made = [each for created_ids, _ in results for each in created_ids]
    deleted = [each for _, deleted_ids in results for each in deleted_ids]
    assert len(made) > 2
    assert len(set(made)) == len(made)
    assert len(set(deleted)) == len(deleted), "nothing was deleted twice"
    assert set(deleted) <= set(made)
    with pair.client(0) as here, pair.client(1) as there:
        alive = [str(table.id) for table in here.tables(namespace)]
        assert alive == [str(table.id) for table in there.tables(namespace)]
    assert set(alive) == set(made) - set(deleted)
    assert len(alive) <= 1


def test_namespace_is_deleted_only_if_empty(pair, namespace):
    def delete_or_create(lake: Metastore, writer: int) -> str:
        if writer < 2:
            return "deleted" if accepted(lambda: lake.namespaces.delete(namespace), Conflict, NotFound) else ""
        table = accepted(lambda: lake.tables.create(f"{namespace}.w{writer}", schema=SCHEMA), NotFound)
        return table.name if table else ""

    for _ in range(3):
        outcome = pair.run_writers(delete_or_create)
        created = sorted(each for each in outcome if each not in ("", "deleted"))
        with pair.client(0) as lake:
            if "deleted" in outcome:
                assert created == []
                lake.namespaces.create(namespace)
            else:
                assert sorted(names(lake, namespace)) == created != []
                for name in created:
                    lake.tables.delete(f"{namespace}.{name}")


def test_same_idempotency_key_on_both_servers_creates_one_table(pair, namespace):
    def create(lake: Metastore, _: int) -> str:
        made = within_limit(
            lambda: lake.tables.create(f"{namespace}.once", schema=SCHEMA, idempotency_key=f"make {namespace}")
        )
        return str(made.id)

    made = set(pair.run_writers(create))
    with pair.client(0) as lake:
        assert {str(table.id) for table in lake.tables(namespace)} == made
    assert len(made) == 1


def test_change_on_one_server_is_visible_on_the_other(pair, namespace):
    with pair.client(0) as one, pair.client(1) as two:
        for number in range(20 if scope.ALL else 4):
            here, there = (one, two) if number % 2 else (two, one)
            made = here.tables.create(f"{namespace}.t", schema=SCHEMA)
            assert there.tables.get(f"{namespace}.t") == made
            changed = there.tables.update(made, name="u", description=f"round {number}", if_version=1)
            assert here.tables.get(made) == changed
            assert (here.tables.find(f"{namespace}.t"), [*here.tables(namespace)]) == (None, [changed])
            here.snapshots.create(made, number, created_at=utc_now())
            assert there.snapshots.get(made).message.snapshot_id == number
            there.tables.delete(changed)
            assert (here.tables.find(made), names(here, namespace)) == (None, {})
