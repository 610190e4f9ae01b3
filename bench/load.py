"""The calls that are measured. They use pyarrow's Flight client, which is the C++ code that DuckDB's extension uses."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.flight as fl

from skiway.airport import Catalog, CatalogBuilder
from skiway.airport.server.discovery import list_schemas
from skiway.airport.wire.protocol import CatalogRequest, EndpointsRequest, ScanParameters, decode, encode, packed
from skiway.model.flight_pb2 import FlightDescriptor, FlightEndpoint

WIDE = pa.schema({f"column_{i}": pa.int64() for i in range(10)})


def many_tables(count: int) -> Catalog:
    """A catalog of `count` tables of ten columns, in ten schemas."""
    builder = CatalogBuilder("many")
    for number in range(10):
        schema = builder.schema(f"schema_{number}")
        for index in range(count // 10):
            schema.table(schema=WIDE, name=f"table_{index}")(lambda scan: ())
    return builder.build()


def listing_of(count: int) -> bytes:
    """The response of our server to `list_schemas`, for the bare server to return."""
    return list_schemas(many_tables(count), "many")


def headers(action: str) -> fl.FlightCallOptions:
    """The headers that DuckDB's client sends with an action."""
    sent = {
        "airport-user-agent": "airport/20250723",
        "airport-action-name": action,
        "airport-client-session-id": "00000000-0000-0000-0000-000000000000",
        "airport-trace-id": "00000000-0000-0000-0000-000000000000",
        "authority": "grpc://127.0.0.1:50051",
    }
    return fl.FlightCallOptions(headers=[(key.encode(), value.encode()) for key, value in sent.items()])


ENDPOINTS, LISTING = headers("endpoints"), headers("list_schemas")


class Client:
    """One connection to a server of either kind."""

    def __init__(self, port: int, *, bare: bool) -> None:
        self._client = fl.connect(f"grpc://127.0.0.1:{port}")
        self._bare = bare

    def _action(self, name: str, body: bytes, options: fl.FlightCallOptions) -> bytes:
        (result,) = self._client.do_action(fl.Action(name, body), options)
        data: bytes = result.body.to_pybytes()
        return data

    def ticket(self, table: str, columns: int) -> bytes:
        """A ticket from the action `endpoints`, as DuckDB gets it. The bare server is called too, but its response is fixed."""
        path = FlightDescriptor(type=FlightDescriptor.PATH, path=["demo", "s", table]).SerializeToString()
        body = encode(EndpointsRequest(packed(path), ScanParameters(column_ids=list(range(columns)))))
        answer = self._action("endpoints", body, ENDPOINTS)
        if self._bare:
            return table.encode()
        ticket: bytes = FlightEndpoint.FromString(decode(answer, list[bytes], "endpoints")[0]).ticket.ticket
        return ticket

    def scan(self, table: str, columns: int) -> int:
        """Read a whole scan, and return its size in bytes."""
        reader = self._client.do_get(fl.Ticket(self.ticket(table, columns)))
        return sum(chunk.data.nbytes for chunk in reader)

    def list_schemas(self) -> int:
        return len(self._action("list_schemas", encode(CatalogRequest("many")), LISTING))

    def exchange(self, path: list[str], operation: str, batches: list[pa.RecordBatch], *, returning: bool) -> int:
        """Send `batches` in one exchange and return the number of rows. If batches are returned, wait for each before the next."""
        sent = [("airport-user-agent", "airport/20250723"), ("airport-operation", operation)]
        sent.append(("return-chunks", "1" if returning else "0"))
        options = fl.FlightCallOptions(headers=[(key.encode(), value.encode()) for key, value in sent])
        writer, reader = self._client.do_exchange(fl.FlightDescriptor.for_path(*path), options)
        with writer:
            writer.begin(batches[0].schema)
            _ = reader.schema
            for batch in batches:
                writer.write_batch(batch)
                if returning:
                    reader.read_chunk()
            writer.done_writing()
            if not returning:
                reader.read_chunk()
        return sum(batch.num_rows for batch in batches)


def rate(clients: list[Client], work: Callable[[Client], float], times: int) -> float:
    """Work per second of all clients together, each repeating it `times` times."""

    def all_of_it(client: Client) -> float:
        return sum(work(client) for _ in range(times))

    with ThreadPoolExecutor(len(clients)) as pool:
        started = time.perf_counter()
        done = sum(pool.map(all_of_it, clients))
        return done / (time.perf_counter() - started)
