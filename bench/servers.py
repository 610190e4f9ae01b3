"""The Airport servers to measure, each in its own process: ours, and a bare pyarrow Flight server.

    python -m bench.servers bare|ours|ours-shared|million port [transport]

prints its port and serves until it is killed. All servers have the same batches. The bare one has no Airport logic, only
actions that return fixed bytes and a stream of batches.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

ROWS = 5_000_000
BATCH_ROWS = 65_536
TABLES = 1_000
SHARED_KEY = b"only for benchmarks, on loopback"


def big(rows: int = ROWS) -> pa.Table:
    """A table with two int64 columns, a float64 column and a string column."""
    ids = pa.array(range(rows), pa.int64())
    words = pa.array([f"name {i}" for i in range(1000)])
    keys = pa.compute.bit_wise_and(ids, 511)
    table = pa.table({"id": ids, "key": keys, "value": ids.cast(pa.float64()), "name": words.take(keys)})
    return pa.Table.from_batches(table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS))


def big_schema() -> pa.Schema:
    return pa.schema({"id": pa.int64(), "key": pa.int64(), "value": pa.float64(), "name": pa.string()})


SMALL = pa.table({"id": pa.array([1, 2]), "name": pa.array(["Ada", "Grace"])})


def bare() -> None:
    import pyarrow.flight as fl

    from bench.load import listing_of
    from skiway.airport.wire.protocol import TotalChanged, encode

    class Bare(fl.FlightServerBase):
        def __init__(self) -> None:
            super().__init__("grpc://127.0.0.1:0")
            self.tables = {b"big": big(), b"small": SMALL}
            self.answers = {"endpoints": b"x" * 160, "list_schemas": listing_of(TABLES)}

        def do_get(self, context: object, ticket: fl.Ticket) -> fl.RecordBatchStream:
            return fl.RecordBatchStream(self.tables[ticket.ticket])

        def do_exchange(
            self,
            context: object,
            descriptor: fl.FlightDescriptor,
            reader: fl.MetadataRecordBatchReader,
            writer: fl.MetadataRecordBatchWriter,
        ) -> None:
            echo = descriptor.path[-1] == b"echo"
            writer.begin(reader.schema)
            rows = 0
            for chunk in reader:
                rows += chunk.data.num_rows
                if echo:
                    writer.write_batch(chunk.data)
            if not echo:
                writer.write_metadata(encode(TotalChanged(rows)))

        def do_action(self, context: object, action: fl.Action) -> list[fl.Result]:
            return [fl.Result(self.answers[action.type])]

    server = Bare()
    print(server.port, flush=True)
    server.serve()


def ours(port: int = 0, *, share_port: bool = False, rows: int = ROWS, transport: Any = "grpcio") -> None:
    from bench.load import many_tables
    from skiway.airport import CatalogBuilder, DmlOptions, DmlResult, Insertable, ScanOptions, Server, Table

    class Sink(Table, Insertable):
        """Counts inserted rows and discards them."""

        name = "sink"
        schema = big_schema()

        def scan(self, options: ScanOptions) -> tuple[()]:
            return ()

        def insert(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
            return DmlResult(sum(batch.num_rows for batch in rows))

    catalog = CatalogBuilder("demo")
    schema = catalog.schema("s")
    table = big(rows)
    schema.table(schema=table.schema, name="big")(lambda scan: table)
    schema.table(schema=table.schema, name="ten")(lambda scan: table[:10])
    schema.table(schema=SMALL.schema, name="small")(lambda scan: SMALL)
    schema.table(Sink())

    @schema.scalar_function
    def echo(value: pa.Int64Array) -> pa.Int64Array:
        return value

    served = [catalog.build(), many_tables(TABLES)]
    server = Server(served, port=port, share_port=share_port, ticket_key=SHARED_KEY, transport=transport)
    with server:
        print(server.port, flush=True)
        server.wait()


@contextlib.contextmanager
def running(kind: str, port: int = 0, transport: str = "grpcio") -> Iterator[int]:
    """Run a server in its own process, and yield its port."""
    command = [sys.executable, "-m", "bench.servers", kind, str(port), transport]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    kind, chosen = sys.argv[1], int(sys.argv[2])
    if kind == "bare":
        bare()
    else:
        rows = 1_000_000 if kind == "million" else ROWS
        ours(chosen, share_port=kind == "ours-shared", rows=rows, transport=(*sys.argv[3:], "grpcio")[0])
