"""The recorded conversations of DuckDB's Airport extension, in forms that can be compared.

`skiway.testing` has the recordings; `README.md` next to them describes the files. The requests are the reference; the
responses are those of one particular server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.airport.wire.frames import BatchReader, parse_frame, varint
from skiway.airport.wire.protocol import (
    CatalogRoot,
    InOutParameters,
    ObjectMetadata,
    TableFunctionRequest,
    binary,
    decode,
    encode,
    packed,
    unseal,
)
from skiway.model import flight_pb2 as flight
from skiway.testing import Call, Conversation, recordings

Rename = Callable[[flight.FlightDescriptor], flight.FlightDescriptor]


def conversations(session: str = "") -> list[Conversation]:
    """All recorded conversations, or those of one session."""
    return [each for each in recordings().conversations if session in ("", each.session)]


def result_of(call: Call) -> bytes:
    """The body of an action's single result."""
    return flight.Result.FromString(call.answers[0]).body


def without_unused_transaction(calls: Sequence[Call]) -> list[Call]:
    """The calls of a statement as our client makes them.

    Before it calls a table function, DuckDB creates a transaction whose id it never sends. Our client does not.
    """
    calls_function = any(call.action == "table_function_flight_info" for call in calls)
    return [call for call in calls if not (calls_function and call.action == "create_transaction")]


def table_of(call: Call) -> pa.Table:
    """The rows of a DoGet."""
    reader = BatchReader(iter(call.answers))
    return pa.Table.from_batches(list(reader), reader.schema)


# -- names: recorded descriptors, our descriptors, and a form to compare both ------------------------------------------


def plain(parts: Sequence[str]) -> flight.FlightDescriptor:
    return flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=parts)


def theirs(descriptor: flight.FlightDescriptor) -> flight.FlightDescriptor:
    """The canonical name for a descriptor of the recorded server, `catalog/schema/kind/name`."""
    return plain("/".join(descriptor.path).split("/"))


def ours(descriptor: flight.FlightDescriptor) -> flight.FlightDescriptor:
    match "/".join(descriptor.path).split("/"):
        case [catalog, schema, name]:
            return plain([catalog, schema, "table", name])
        case [catalog, schema, name, kind, _]:
            return plain([catalog, schema, kind, name])
        case other:
            return plain(other)


def renamed_frame(data: bytes, rename: Rename) -> bytes:
    """A FlightData message with its descriptor renamed and no other byte changed."""
    descriptor = parse_frame(data).descriptor
    if not descriptor:
        return data
    head, name = (
        b"\x0a" + varint(len(part)) + part
        for part in (descriptor, rename(flight.FlightDescriptor.FromString(descriptor)).SerializeToString())
    )
    assert data.startswith(head), "the descriptor comes first"
    return name + data[len(head) :]


# -- the meaning of a request, except ids ------------------------------------------------------------------------------

_IDS = ("airport-client-session-id", "airport-trace-id", "airport-transaction-id")


def meaning(calls: Sequence[Call], rename: Rename) -> list[tuple[object, ...]]:
    """Calls as comparable values: method, headers, bytes of the request.

    Ids are replaced by the order of their first appearance, so that it still matters which calls share one. Descriptors are
    passed through `rename`. Tickets and positions in SQL texts are left out, all else is compared byte by byte.
    """
    numbers: dict[str, str] = {}

    def header(key: str, value: str, path: str) -> tuple[str, str]:
        if key in _IDS:
            return key, numbers.setdefault(value, f"id {len(numbers)}")
        return key, {"authority": "the location", "airport-flight-path": path}.get(key, value)

    found: list[tuple[object, ...]] = []
    for call in calls:
        path = "/".join(rename(_path(call.header("airport-flight-path"))).path)
        headers = sorted(header(key, value, path) for key, value in call.headers)
        found.append((call.name, headers, _request(call, rename)))
    return found


def _path(text: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=text.split("/") if text else [])


def _request(call: Call, rename: Rename) -> object:
    if call.method == "DoGet":
        return "a ticket"
    if call.method == "GetFlightInfo":
        return rename(flight.FlightDescriptor.FromString(call.requests[0])).SerializeToString()
    if call.method == "DoExchange":
        return exchanged(call, rename)
    if call.method != "DoAction":
        return call.requests[0] if call.requests else b""
    action = flight.Action.FromString(call.requests[0])
    return action.type, *_arguments(action), renamed_body(action, rename)


def exchanged(call: Call, rename: Rename) -> tuple[object, ...]:
    """The client's messages in an exchange, with columns by DuckDB's types.

    Where rows are named by their ids, these are the server's own, and so are the sizes of batches, which follow the
    chunks of its scan: there the rows are compared together, by their other values.
    """
    opening: list[object] = []
    reader = BatchReader(iter(call.requests))
    for data in call.requests[: 3 if len(call.requests) > 2 else 2]:
        frame = parse_frame(data)
        if frame.descriptor:
            named = rename(flight.FlightDescriptor.FromString(frame.descriptor)).SerializeToString()
            opening.append(("with schema" if frame.header else "alone", named))
        elif not frame.header:
            request = decode(frame.app_metadata, InOutParameters, "the parameters")
            opening.append((request.json_filters, request.column_ids, row(binary(request.parameters)), request.at_unit))
    columns = [(field.name, duckdb_type(field)) for field in reader.schema]
    batches: list[object] = [batch.to_pydict() for batch in reader]
    if "rowid" in reader.schema.names:
        rest = [name for name in reader.schema.names if name != "rowid"]
        batches = sorted(str(values) for batch in batches for values in _rows(batch, rest))  # type: ignore[arg-type, assignment]
    return (*opening, columns, batches)


def _rows(batch: dict[str, list[object]], names: Sequence[str]) -> list[tuple[object, ...]]:
    return list(zip(*(batch[name] for name in names), strict=True)) if names else [()] * len(batch["rowid"])


def _arguments(action: flight.Action) -> Iterator[object]:
    """Arguments of a table function as values, since Arrow writers may encode the same row differently."""
    if action.type == "table_function_flight_info":
        request = decode(action.body, TableFunctionRequest, action.type)
        yield row(binary(request.parameters))


def row(stream: bytes) -> tuple[object, ...]:
    """A one-row Arrow stream as a comparable value."""
    if not stream:
        return ()
    table = pa.ipc.open_stream(stream).read_all()
    return tuple((field.name, str(field.type)) for field in table.schema), str(table.to_pylist())


def renamed_body(action: flight.Action, rename: Rename, *, keep_arguments: bool = False) -> bytes:
    """The body with its descriptor renamed, packed again in the same order; a body without one is unchanged."""
    if action.type not in ("endpoints", "flight_info", "table_function_flight_info", "column_statistics"):
        return action.body
    members = msgspec.msgpack.decode(action.body, type=dict[str, msgspec.Raw])
    key = "flight_descriptor" if action.type == "column_statistics" else "descriptor"
    descriptor = flight.FlightDescriptor.FromString(binary(members[key]))
    members[key] = packed(rename(descriptor).SerializeToString())
    if keep_arguments:
        return encode(members)
    if action.type == "table_function_flight_info":
        members["parameters"] = msgspec.Raw(b"\xa0")
    if action.type == "endpoints":
        parameters = msgspec.msgpack.decode(members["parameters"], type=dict[str, msgspec.Raw])
        parameters["json_filters"] = packed(_nowhere(binary(parameters["json_filters"])))
        parameters["table_function_parameters"] = packed(
            str(row(binary(parameters["table_function_parameters"]))).encode()
        )
        members["parameters"] = msgspec.Raw(encode(parameters))
    return encode(members)


def _nowhere(json_filters: bytes) -> bytes:
    return re.sub(rb'"query_location":\d+', b'"query_location":0', json_filters)


# -- the meaning of a response -----------------------------------------------------------------------------------------


def listing(body: bytes) -> dict[tuple[str, str, str], tuple[object, ...]]:
    """The objects in a response of `list_schemas`, by schema, kind and name."""
    root = unseal(body, CatalogRoot, "list_schemas")
    bundle = dict(decode(root.contents.serialized or b"\x90", list[tuple[str, bytes]], "bundle"))
    found = {}
    for schema in root.schemas:
        data = schema.contents.serialized or bundle[schema.contents.sha256]
        for part in unseal(data, list[bytes], schema.name):
            info = flight.FlightInfo.FromString(part)
            facts = decode(info.app_metadata, ObjectMetadata, "app_metadata")
            parameters = _parameters(facts.input_schema) if facts.input_schema else ()
            columns = _fields(info.schema) if facts.type != "table_function" else ()
            found[schema.name, facts.type, facts.name] = (
                facts.catalog,
                facts.schema,
                columns,
                parameters,
                facts.extra_data,
            )
    return found  # type: ignore[return-value]


def _fields(schema: bytes) -> tuple[tuple[str, str, tuple[bytes, ...]], ...]:
    read = pa.ipc.read_schema(pa.py_buffer(schema))
    return tuple((field.name, str(field.type), tuple(sorted(field.metadata or {}))) for field in read)


def _parameters(schema: bytes) -> tuple[tuple[str, ...], ...]:
    """The properties of parameters that the client uses: not the type of ANY, and not the name of a table."""
    found: list[tuple[str, ...]] = []
    for field in pa.ipc.read_schema(pa.py_buffer(schema)):
        marks = {key.decode() for key in field.metadata or {}}
        if "is_table_type" in marks:
            found.append(("a table",))
        else:
            found.append((field.name, "anything" if "is_any_type" in marks else str(field.type), *sorted(marks)))
    return tuple(found)
