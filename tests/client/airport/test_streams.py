"""Scans that several threads read: the rows of one thread, at the same time, with bounded buffers, until the reader ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator

import pyarrow as pa
import pytest

from runtime.servers import eventually
from skiway.airport import Catalog, CatalogBuilder, Planned, ScanOptions, Server, Table
from skiway.client import AirportClient, col
from skiway.client.airport.together import together
from skiway.client.connection import Stream
from skiway.errors import InvalidArgument

PARTS = 7
SCHEMA = pa.schema({"part": pa.int64(), "number": pa.int64(), "name": pa.string()})


class Parted(Table, Planned):
    """A table in parts; `hook` is called with the number of a part when its scan begins, and after each batch."""

    name = "t"
    comment = ""
    schema = SCHEMA

    def __init__(self, hook: Callable[[int], None] = lambda _: None, batches: int = 3) -> None:
        self._hook, self._batches = hook, batches

    def plan(self, options: ScanOptions) -> list[bytes]:
        return [str(part).encode() for part in range(PARTS)]

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        part = int(options.part or b"0")
        for batch in range(self._batches):
            self._hook(part)
            numbers = range(batch * 50, batch * 50 + 50)
            yield pa.record_batch([[part] * 50, numbers, [f"n{each % 5}" for each in numbers]], schema=SCHEMA)


def catalog(table: Parted) -> Catalog:
    built = CatalogBuilder("demo")
    built.schema("s").table(table)
    return built.build()


@pytest.mark.parametrize("streams", [2, 4, 20])
def test_rows_are_those_of_one_stream(streams: int) -> None:
    with Server(catalog(Parted()), port=0) as server, AirportClient(server.location, "demo") as client:
        for columns, where in ((None, None), (["name"], col("part") > 2), ([], col("number") == 7)):
            one = client.scan("s.t", columns=columns, where=where).read_all()
            some = client.scan("s.t", columns=columns, where=where, streams=streams).read_all()
            assert some.schema == one.schema
            assert some.num_rows == one.num_rows > 0
            assert sorted(map(repr, some.to_pylist())) == sorted(map(repr, one.to_pylist()))
        assert client.scan("s.t", limit=60, streams=streams).read_all().num_rows == 60


def test_streams_are_read_at_the_same_time() -> None:
    together_at = threading.Barrier(3)
    begun: set[int] = set()

    def hook(part: int) -> None:
        if part in range(3) and part not in begun:
            begun.add(part)
            together_at.wait(60)

    with Server(catalog(Parted(hook)), port=0) as server, AirportClient(server.location, "demo") as client:
        assert client.scan("s.t", streams=3).read_all().num_rows == PARTS * 150


def test_reader_that_ends_early_cancels_all_streams() -> None:
    ended = threading.Event()
    scanning: set[int] = set()

    def hook(part: int) -> None:
        scanning.add(part)
        ended.wait(0.01)

    with Server(catalog(Parted(hook, batches=10**9)), port=0) as server:
        with AirportClient(server.location, "demo") as client:
            with client.scan("s.t", streams=3) as rows:
                assert rows.read_next_batch().num_rows
                eventually(lambda: len(scanning) == 3)
            assert not any(each.name.startswith("skiway-scan") for each in threading.enumerate())
            scanning.clear()
        ended.set()


def test_first_error_ends_the_scan() -> None:
    def hook(part: int) -> None:
        if part == 1:
            raise InvalidArgument("part 1 is damaged")

    with (
        Server(catalog(Parted(hook, batches=10**9)), port=0) as server,
        AirportClient(server.location, "demo") as client,
        pytest.raises(InvalidArgument, match="part 1 is damaged"),
    ):
        for _ in client.scan("s.t", streams=4):
            pass
    assert not any(each.name.startswith("skiway-scan") for each in threading.enumerate())


def test_threads_wait_for_the_reader() -> None:
    produced: list[int] = []
    batch = pa.record_batch({"x": range(1000)})

    def part(_: Callable[[Stream], None]) -> Generator[pa.RecordBatch]:
        for number in range(100):
            produced.append(number)
            yield batch

    rows = together([part, part, part], 3, buffered_bytes=4 * batch.nbytes)
    next(rows)
    eventually(lambda: len(produced) == 8)  # one is read, four are buffered, and each thread has another one
    threading.Event().wait(0.1)
    assert len(produced) == 8
    assert sum(1 for _ in rows) == 299
