"""Eight concurrent writers on one table, through Airport and Iceberg REST: every accepted row exists exactly once.

Half of them use Airport to insert, update and delete their own rows; the others append through Iceberg REST with
PyIceberg. A writer that loses a race gets one of the documented errors, retries, and succeeds in time.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException

import scope
from runtime.servers import Server, starting, wait_until_ready
from skiway.client import AirportClient, col
from skiway.errors import Conflict
from storage.homes import running_postgres

pytestmark = pytest.mark.timeout(600)

WRITERS = 8
ROUNDS = 8 if scope.FAULTS else 1
ROWS = 10
IN_TIME_S = 30.0
"""Time limit of one statement, from its start until it is committed."""

LOST = re.compile("the table has changed|was changed by others")
SCHEMA = pa.schema({"id": pa.int64(), "writer": pa.int64(), "state": pa.string()})
TABLE = "mixed.rows"


@dataclass(frozen=True, slots=True)
class Lake:
    """Servers of one lake; writers are distributed over them."""

    servers: tuple[Server, ...]

    def airport(self, number: int) -> AirportClient:
        return AirportClient(self._addresses(number)["airport"], catalog="lake")

    def rest(self, number: int) -> RestCatalog:
        return RestCatalog("lake", uri=f"{self._addresses(number)['http']}/iceberg", warehouse="lake")

    def _addresses(self, number: int) -> dict[str, str]:
        return self.servers[number // 2 % len(self.servers)].addresses


@dataclass
class Account:
    """What one writer committed: the expected states of its rows, and its conflicts and waiting time."""

    states: dict[int, str] = field(default_factory=dict)
    conflicts: int = 0
    longest_s: float = 0.0

    def until_accepted(self, change: Callable[[], object]) -> None:
        """Make the change, with retries while other writers win; any other error is a failure."""
        began = time.monotonic()
        while not accepted(change):
            self.conflicts += 1
            assert time.monotonic() - began < IN_TIME_S, f"starved, after {self.conflicts} lost races"
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        assert self.longest_s < IN_TIME_S


def accepted(change: Callable[[], object]) -> bool:
    """True if the change was made, False if it failed with a documented error for lost races."""
    try:
        change()
    except (Conflict, CommitFailedException) as lost:
        if LOST.search(str(lost)) is None:
            raise
        return False
    return True


def rows(writer: int, round_: int) -> pa.Table:
    first = writer * 10_000 + round_ * ROWS
    return pa.table(
        {"id": range(first, first + ROWS), "writer": [writer] * ROWS, "state": ["new"] * ROWS}, schema=SCHEMA
    )


def shared_rows() -> pa.Table:
    """A row of each writer, all in one file: changing one row rewrites those of the others."""
    numbers = range(WRITERS)
    ids = [-1 - writer for writer in numbers]
    return pa.table({"id": ids, "writer": numbers, "state": ["shared"] * WRITERS}, schema=SCHEMA)


def changes_by_airport(lake: Lake, writer: int, barrier: threading.Barrier) -> Account:
    """Each round updates a row in the shared file, inserts rows, updates some of them and deletes others."""
    account, shared = Account(), -1 - writer
    with lake.airport(writer) as db:
        assert db.count(TABLE) == WRITERS  # connect before the race starts
        barrier.wait(200)
        for round_ in range(ROUNDS):
            state = {"state": f"round {round_}"}
            account.until_accepted(lambda: db.update(TABLE, state, where=col("id") == shared))  # noqa: B023
            account.states[shared] = f"round {round_}"
            added = rows(writer, round_)
            account.until_accepted(lambda: db.insert(TABLE, added))  # noqa: B023
            first = added["id"][0].as_py()
            mine = (col("writer") == writer) & (col("id") >= first)
            account.until_accepted(lambda: db.update(TABLE, {"state": "kept"}, where=mine & (col("id") < first + 5)))  # noqa: B023
            account.until_accepted(lambda: db.delete(TABLE, where=mine & (col("id") >= first + 8)))  # noqa: B023
            account.states |= {first + place: "kept" if place < 5 else "new" for place in range(8)}
    return account


def appends_by_rest(lake: Lake, writer: int, barrier: threading.Barrier) -> Account:
    account = Account()
    with lake.rest(writer) as catalog:
        table = catalog.load_table(TABLE)
        barrier.wait(200)

        def append(added: pa.Table) -> None:
            table.refresh()
            table.append(added)

        for round_ in range(ROUNDS):
            added = rows(writer, round_)
            account.until_accepted(lambda: append(added))  # noqa: B023
            account.states |= dict.fromkeys(added["id"].to_pylist(), "new")
    return account


def all_write(lake: Lake) -> list[Account]:
    """The account of each writer; even-numbered ones use Airport."""
    barrier = threading.Barrier(WRITERS)

    def write(writer: int) -> Account:
        return (appends_by_rest if writer % 2 else changes_by_airport)(lake, writer, barrier)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(write, range(WRITERS)))


def check(lake: Lake) -> None:
    with lake.airport(0) as db:
        db.create_schema("mixed")
        db.create_table(TABLE, SCHEMA)
        db.insert(TABLE, shared_rows())
    accounts = all_write(lake)
    untouched = {(-1 - writer, "shared") for writer in range(1, WRITERS, 2)}
    expected = untouched | {(number, state) for account in accounts for number, state in account.states.items()}
    for number in range(len(lake.servers)):
        with lake.airport(2 * number) as db, lake.rest(2 * number) as catalog:
            for read in (db.scan(TABLE).read_all(), catalog.load_table(TABLE).scan().to_arrow()):
                found = Counter(zip(read["id"].to_pylist(), read["state"].to_pylist(), strict=True))
                assert set(found) == expected
                assert set(found.values()) == {1}, "no row exists twice"
    print(*(f"{each.conflicts} lost races, longest {each.longest_s:.1f} s" for each in accounts), sep="\n")


@contextmanager
def lake_of(folder: Path, *homes: str, settings: Sequence[str] = ()) -> Iterator[Lake]:
    """Start a server for each home, all with the same settings."""
    arguments = [part for each in settings for part in ("--set", each)]
    with ExitStack() as parts:
        servers = tuple(parts.enter_context(starting(folder / home, *arguments)) for home in homes)
        for server in servers:
            wait_until_ready(server)
        yield Lake(servers)


@pytest.mark.full
def test_concurrent_writers_of_both_doors_lose_no_rows_and_do_not_starve(tmp_path: Path) -> None:
    with lake_of(tmp_path, "one") as lake:
        check(lake)


@pytest.mark.needs("postgres")
@pytest.mark.full
def test_concurrent_writers_on_two_servers_lose_no_rows(tmp_path: Path) -> None:
    with running_postgres() as url:
        shared = [
            f"kv.url={url}",
            f"blob.url={(tmp_path / 'blobs').as_uri()}",
            f"warehouse.uri={tmp_path / 'warehouse'}",
        ]
        with lake_of(tmp_path, "one", "two", settings=shared) as lake:
            check(lake)
