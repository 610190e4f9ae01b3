"""Airport writing: inserts in batches and row by row, scalar functions, and memory during a long insert."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from bench.airport_reading import compare
from bench.load import Client
from bench.report import Figure
from bench.servers import big, running

ROWS = 1_000_000
LONG_ROWS = 50_000_000


def insert(batches: list[pa.RecordBatch], client: Client) -> float:
    return client.exchange(["demo", "s", "sink"], "insert", batches, returning=False)


def one_row(batch: pa.RecordBatch, client: Client) -> float:
    client.exchange(["demo", "s", "sink"], "insert", [batch], returning=False)
    return 1


def call(batches: list[pa.RecordBatch], client: Client) -> float:
    path = ["demo", "s", "echo", "scalar_function", "int64"]
    return client.exchange(path, "scalar_function", batches, returning=True)


class Bare(Client):
    """A client of the bare server, which tells the two kinds of exchange apart by the last part of the path."""

    def exchange(self, path: list[str], operation: str, batches: list[pa.RecordBatch], *, returning: bool) -> int:
        return super().exchange(["echo" if returning else "sink"], operation, batches, returning=returning)


def figures() -> Iterator[Figure]:
    """Yield the figures of this part."""
    table = big().slice(0, ROWS).combine_chunks()
    vectors = [pa.record_batch([pa.array(range(2048), pa.int64())], names=["value"])] * 400
    with running("bare") as bare, running("ours") as ours:
        for rows in (2_048, 65_536):
            work = partial(insert, table.to_batches(max_chunksize=rows))
            peer, own, ratio = compare(bare, ours, 1, work, 1, peer_kind=Bare)
            yield Figure(f"insert in batches of {rows:,}", "row/s", own, peer, ratio, aim=0.7)
        work = partial(one_row, table.slice(0, 1).to_batches()[0])
        peer, own, ratio = compare(bare, ours, 1, work, 200, peer_kind=Bare)
        yield Figure("inserts of one row", "1/s", own, peer, ratio, aim=0.7)
        peer, own, ratio = compare(bare, ours, 1, partial(call, vectors), 1, peer_kind=Bare)
        yield Figure("scalar function, vectors of 2,048", "row/s", own, peer, ratio, aim=0.7)
    yield long_insert()


def long_insert() -> Figure:
    """Measure the server's peak memory while it receives fifty million rows."""
    code = f"from bench.airport_writing import insert_many; insert_many({LONG_ROWS})"
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    grown = float(printed)
    return Figure(f"server memory, insert of {LONG_ROWS:,} rows", "MB", grown, 500, aim_below=500, peer_is="the limit")


def insert_many(rows: int) -> None:
    """Serve in this process, insert from a child process, and print the peak memory of this process in MB."""
    from skiway.airport import CatalogBuilder, DmlOptions, DmlResult, Insertable, ScanOptions, Server, Table

    class Sink(Table, Insertable):
        name = "sink"
        schema = pa.schema({"id": pa.int64(), "name": pa.string()})

        def scan(self, options: ScanOptions) -> tuple[()]:
            return ()

        def insert(self, given: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
            return DmlResult(sum(batch.num_rows for batch in given))

    catalog = CatalogBuilder("demo")
    catalog.schema("s").table(Sink())
    with Server(catalog.build(), port=0) as server:
        code = f"from bench.airport_writing import send_many; send_many({server.port}, {rows})"
        subprocess.run([sys.executable, "-c", code], check=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def send_many(port: int, rows: int) -> None:
    """Insert `rows` rows in one statement, by sending one batch repeatedly."""
    size = 50_000
    batch = pa.record_batch(
        {"id": pa.array(range(size), pa.int64()), "name": pa.array([f"row {i}" for i in range(size)])}
    )
    client = Client(port, bare=False)
    sent = client.exchange(["demo", "s", "sink"], "insert", [batch] * (rows // size), returning=False)
    assert sent == rows
