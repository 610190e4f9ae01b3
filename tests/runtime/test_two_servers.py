"""Two servers on one PostgreSQL, eight writers at each, all at the same things at the same time.

Whatever they try, one of them wins each time, the others are told that they lost, and what is there in the end is what
was accepted: nothing more, nothing less.
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
"""How long a writer may need to get one change in, however many others want the same."""

LOST = frozenset(
    {
        "table.already.exists",
        "relation.name.already.claimed",
        "version.mismatch",
        "store.contended",
        "namespace.closing",
        "namespace.not_empty",
        "table",  # it is gone
        "namespace",
    }
)
"""What the losers of a race are told."""

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """Two servers of one store, and writers that take turns in belonging to the one and the other."""

    addresses: tuple[str, str]
    stores: tuple[str, str]

    def client(self, number: int) -> Metastore:
        return Metastore(self.addresses[number % 2], timeout_s=60)

    def together(self, work: Callable[[Metastore, int], T]) -> list[T]:
        """What each writer returns, the first at the first server; all of them begin at the same moment."""
        everybody = range(2 * WRITERS)
        ready = Barrier(len(everybody))

        def write(number: int) -> T:
            with self.client(number) as lake:
                lake.catalogs.get("lake")  # connected before it counts
                ready.wait(60)
                return work(lake, number)

        with ThreadPoolExecutor(len(everybody)) as pool:
            return list(pool.map(write, everybody))


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
def place(pair: Pair, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own; whole before and after."""
    name = f"lake.{request.function.__name__}"
    with pair.client(0) as lake:
        lake.namespaces.create(name)
    yield name
    with open_stores(*pair.stores) as stores:
        assert [each for each in damage(stores) if not each.startswith("/platform/")] == []


def accepted(change: Callable[[], T], *refusals: type[SkiwayError]) -> T | None:
    """What the change made, or None if others were faster; any other error is one too many."""
    try:
        return change()
    except (AlreadyExists, Contention, *refusals) as lost:  # type: ignore[misc]
        if lost.key not in LOST:
            raise
        return None


def soon(change: Callable[[], T]) -> T:
    """What the change made, within the time that any writer may need."""
    began = time.monotonic()
    made = change()
    assert time.monotonic() - began < LONGEST_S
    return made


def names(lake: Metastore, place: str) -> dict[str, str | None]:
    """The tables that are there, by name, with their descriptions."""
    return {table.name: table.description for table in lake.tables(place)}


def test_of_all_who_create_the_same_table_one_wins(pair, place):
    wanted = [f"t{number}" for number in range(6)]

    def create(lake: Metastore, writer: int) -> list[str]:
        """Those that this writer made; everybody comes by all names, in an order of their own."""
        order = [*wanted[writer % len(wanted) :], *wanted[: writer % len(wanted)]]
        made = [
            accepted(partial(lake.tables.create, f"{place}.{name}", schema=SCHEMA, description=f"of {writer}"))
            for name in order
        ]
        return [table.name for table in made if table]

    won = [(name, f"of {writer}") for writer, made in enumerate(pair.together(create)) for name in made]
    assert sorted(name for name, _ in won) == wanted
    for number in (0, 1):
        with pair.client(number) as lake:
            assert names(lake, place) == dict(won)


def test_of_all_who_rename_to_the_same_name_one_wins(pair, place):
    with pair.client(0) as lake:
        for writer in range(2 * WRITERS):
            lake.tables.create(f"{place}.w{writer}", schema=SCHEMA, description=f"of {writer}")

    def rename(lake: Metastore, writer: int) -> bool:
        mine = lake.tables.get(f"{place}.w{writer}")
        return accepted(lambda: lake.tables.update(mine, name="Target")) is not None

    outcome = pair.together(rename)
    assert outcome.count(True) == 1
    winner = outcome.index(True)
    expected = {f"w{writer}": f"of {writer}" for writer in range(2 * WRITERS) if writer != winner}
    with pair.client(1) as lake:
        assert names(lake, place) == expected | {"Target": f"of {winner}"}


def test_no_update_is_lost(pair, place):
    rounds = 3
    with pair.client(0) as lake:
        table = lake.tables.create(f"{place}.counter", schema=SCHEMA, properties={"count": "0"})

    def add_one(lake: Metastore) -> int:
        """The version that this writer made."""
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
        return [soon(lambda: add_one(lake)) for _ in range(rounds)]

    versions = sorted(itertools.chain.from_iterable(pair.together(count)))
    total = 2 * WRITERS * rounds
    assert versions == [*range(2, total + 2)], "each version was made by one writer"
    for number in (0, 1):
        with pair.client(number) as lake:
            found = lake.tables.get(table)
            assert (found.message.properties["count"], found.meta.version) == (str(total), total + 1)


def test_what_is_deleted_and_created_again_is_one_thing_at_a_time(pair, place):
    def live(lake: Metastore, _: int) -> tuple[list[str], list[str]]:
        """The ids of the tables that this writer made, and of those that it deleted."""
        made, deleted = [], []
        for _ in range(4):
            new = accepted(lambda: lake.tables.create(f"{place}.phoenix", schema=SCHEMA))
            if new:
                made.append(str(new.id))
            there = lake.tables.find(f"{place}.phoenix")
            if there and accepted(lambda: lake.tables.delete(there, if_version=1), NotFound, PreconditionFailed):  # noqa: B023
                deleted.append(str(there.id))
        return made, deleted

    lives = pair.together(live)
    made = [each for born, _ in lives for each in born]
    deleted = [each for _, died in lives for each in died]
    assert len(made) > 2
    assert len(set(made)) == len(made)
    assert len(set(deleted)) == len(deleted), "nothing was deleted twice"
    assert set(deleted) <= set(made)
    with pair.client(0) as here, pair.client(1) as there:
        alive = [str(table.id) for table in here.tables(place)]
        assert alive == [str(table.id) for table in there.tables(place)]
    assert set(alive) == set(made) - set(deleted)
    assert len(alive) <= 1


def test_a_namespace_is_deleted_empty_or_keeps_what_came_in(pair, place):
    def struggle(lake: Metastore, writer: int) -> str:
        if writer < 2:
            return "deleted" if accepted(lambda: lake.namespaces.delete(place), Conflict, NotFound) else ""
        table = accepted(lambda: lake.tables.create(f"{place}.w{writer}", schema=SCHEMA), NotFound)
        return table.name if table else ""

    for _ in range(3):
        outcome = pair.together(struggle)
        created = sorted(each for each in outcome if each not in ("", "deleted"))
        with pair.client(0) as lake:
            if "deleted" in outcome:
                assert created == []
                lake.namespaces.create(place)
            else:
                assert sorted(names(lake, place)) == created != []
                for name in created:
                    lake.tables.delete(f"{place}.{name}")


def test_the_same_key_on_both_servers_makes_one_table(pair, place):
    def create(lake: Metastore, _: int) -> str:
        made = soon(lambda: lake.tables.create(f"{place}.once", schema=SCHEMA, idempotency_key=f"make {place}"))
        return str(made.id)

    made = set(pair.together(create))
    with pair.client(0) as lake:
        assert {str(table.id) for table in lake.tables(place)} == made
    assert len(made) == 1


def test_a_change_on_one_server_is_seen_by_the_next_read_on_the_other(pair, place):
    with pair.client(0) as one, pair.client(1) as two:
        for number in range(20):
            here, there = (one, two) if number % 2 else (two, one)
            made = here.tables.create(f"{place}.t", schema=SCHEMA)
            assert there.tables.get(f"{place}.t") == made
            changed = there.tables.update(made, name="u", description=f"round {number}", if_version=1)
            assert here.tables.get(made) == changed
            assert (here.tables.find(f"{place}.t"), [*here.tables(place)]) == (None, [changed])
            here.snapshots.create(made, number, created_at=utc_now())
            assert there.snapshots.get(made).message.snapshot_id == number
            there.tables.delete(changed)
            assert (here.tables.find(made), names(here, place)) == (None, {})
