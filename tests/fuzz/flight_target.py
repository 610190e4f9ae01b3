"""Flight calls: requests of DuckDB and of our client, with changed actions, descriptors, tickets, filters, batches and headers."""

from __future__ import annotations

import contextlib
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, ClassVar

import grpc
import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError

from client.recorder import Recorder
from fuzz.arrow_values import any_batch, any_schema
from fuzz.mutation import any_text, changed_bytes, changed_message, changed_text, changed_value, repacked, unpacked
from fuzz.target import Case, Target, captured_errors, logged_fault
from skiway.airport import AirportService
from skiway.airport.server.actions import ACTIONS
from skiway.airport.server.exchange import EXCHANGES
from skiway.airport.server.tickets import VERSION, ObjectPath, Ticket, TicketOffice
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import FrameWriter, metadata_frame, parse_frame
from skiway.airport.wire.protocol import TransactionInfo, arrow_stream, decode
from skiway.client import AirportClient
from skiway.errors import SkiwayError
from skiway.model import flight_pb2 as flight
from skiway.testing import Call, recordings

KEY = b"k" * 32
TIMEOUT_S = 8
INTERNAL = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS"})
TRANSACTION = "$transaction"
"""Stands for the id of an open transaction, which is different in every run."""
_IDS = {
    protocol.SESSION_ID: "fuzz-session",
    protocol.TRACE_ID: "fuzz-trace",
    protocol.CORRELATION_ID: "fuzz-correlation",
}
_NOT_SENT = frozenset({protocol.LOCATION, "content-type", "te", "user-agent"})
_EXTRA_HEADERS = (
    *(protocol.CATALOG, protocol.FLIGHT_PATH, protocol.OPERATION, protocol.RETURN_CHUNKS, protocol.TRANSACTION_ID),
    *(protocol.JSON_FILTERS, protocol.SKIP_RESULTS, protocol.AUTO_COMMIT, protocol.ROWS_FOLLOW, protocol.LIST_CATALOG),
    *(protocol.LIST_SCHEMA, protocol.TRACE_ID, protocol.AUTHORIZATION, protocol.JSON_TRANSACTION_ID),
)


class FlightTarget(Target):
    """A Flight service on loopback."""

    schema_name: ClassVar[str] = "s"
    authors: ClassVar[tuple[str, ...]] = ("recorded_catalog.py", "flight_catalogs.py")
    """Modules of the tests with catalogs: an exception that they raise is not a fault of the server."""

    @abstractmethod
    def service(self) -> AirportService:
        """The service to call, which signs tickets with `KEY`."""

    @abstractmethod
    def prepare(self, location: str) -> None:
        """Make the calls that are changed later, and create what they are about."""

    def open(self) -> None:
        self.errors = self.stack.enter_context(captured_errors())
        self.recorder = Recorder()
        service = self.service()
        threads = ThreadPoolExecutor(4)
        server = grpc.server(threads, interceptors=[self.recorder])
        service.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.stack.callback(service.close)
        self.stack.callback(lambda: server.stop(0).wait())
        self.location = f"grpc://127.0.0.1:{port}"
        self.prepare(self.location)
        self.seeds = [_without_ids(call) for call in self.recorder.calls]
        self.seeds += [
            _without_ids(call) for each in recordings().conversations for call in each.calls if call.requests
        ]
        self.seeds = [seed for seed in self.seeds if sum(map(len, seed.requests)) < 60_000]
        self.exchanges = [seed for seed in self.seeds if seed.method in ("DoExchange", "DoPut")]
        self.actions = {seed.action: seed for seed in self.seeds if seed.action in ACTIONS}
        self.recorder.calls.clear()
        self.office = TicketOffice(KEY, ttl_s=1e9)
        self.channel = self.stack.enter_context(
            grpc.insecure_channel(self.location.removeprefix("grpc://"), [("grpc.max_receive_message_length", -1)])
        )
        self.paths = self._listed()
        self.names = sorted({part for path in self.paths for part in path} | {"id", "name", "v"})
        self._transaction: str | None = None

    def _listed(self) -> list[list[str]]:
        """The paths of all objects."""
        call: Any = self.channel.unary_stream(f"/{protocol.SERVICE}/ListFlights")
        return sorted(list(flight.FlightInfo.FromString(data).flight_descriptor.path) for data in call(b"", timeout=20))

    # -- new cases ----------------------------------------------------------------------------------------------------

    def case(self, chance: Random) -> Case:
        match chance.randrange(20):
            case 0 | 1:
                made = self._ticket(chance)
            case 2 | 3 | 4 | 5 | 6:
                made = self._exchange(chance.choice(self.exchanges), chance)
            case 7:
                made = self._call(chance.choice(self.seeds), chance)
            case 8 | 9 | 10:
                made = self._call(self.actions[chance.choice(sorted(self.actions))], chance)
            case _:
                made = self._call(chance.choice([seed for seed in self.seeds if seed not in self.exchanges]), chance)
        made["headers"] = self._headers(made["headers"], chance)
        return made

    def _call(self, seed: Call, chance: Random) -> Case:
        data = seed.requests[0]
        if chance.random() < 0.05:
            data = changed_bytes(data, chance)
        elif seed.method == "DoAction":
            action = flight.Action.FromString(data)
            action.body = self._body(action.body, chance)
            if chance.random() < 0.03:
                action.type = chance.choice([*ACTIONS, "", "no_such_action"])
            data = action.SerializeToString()
        elif seed.method in ("GetFlightInfo", "GetSchema"):
            data = self._descriptor(data, chance)
        else:
            data = changed_bytes(data, chance)
        method = chance.choice(("GetFlightInfo", "GetSchema")) if seed.method == "GetFlightInfo" else seed.method
        return {"method": method, "headers": [list(each) for each in seed.headers], "messages": [data]}

    def _body(self, body: bytes, chance: Random) -> bytes:
        """The body of an action with changed members; binary members and filters are changed by their content."""
        if chance.random() < 0.1:
            return changed_bytes(body, chance)
        try:
            value = json.loads(body) if body[:1] == b"{" else unpacked(body)
        except (ValueError, SkiwayError):
            return changed_bytes(body, chance)
        if isinstance(value, dict) and chance.random() < 0.6:
            self._aim(value, chance)
        changed = changed_value(value, chance, self.names, leaf=lambda part: self._leaf(part, chance))
        return json.dumps(changed).encode() if body[:1] == b"{" else repacked(changed)

    def _aim(self, value: dict[str, Any], chance: Random) -> None:
        """Let the body name an object that exists."""
        path = chance.choice(self.paths)
        for name in value:
            if name in ("descriptor", "flight_descriptor"):
                value[name] = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=path).SerializeToString()
            elif name in ("catalog", "catalog_name"):
                value[name] = path[0]
            elif name in ("schema", "schema_name"):
                value[name] = path[1]
            elif name in ("name", "table_name") and chance.random() < 0.8:
                value[name] = path[2]

    def _leaf(self, part: Any, chance: Random) -> Any:
        if isinstance(part, str) and part[:1] == "{":  # a filter
            with contextlib.suppress(ValueError):
                return json.dumps(changed_value(json.loads(part), chance, self.names))
        if isinstance(part, str) and not part.isprintable():
            part = part.encode()
        if not isinstance(part, bytes):
            return None
        match chance.randrange(5):
            case 0:
                return self._descriptor(part, chance)
            case 1:
                return any_schema(chance, self.names).serialize().to_pybytes()
            case 2:
                schema = any_schema(chance, self.names)
                return (
                    arrow_stream(schema, [any_batch(schema, chance)] * chance.randrange(3))
                    if _nullable(schema)
                    else b""
                )
        return changed_bytes(part, chance)

    def _descriptor(self, data: bytes, chance: Random) -> bytes:
        path = list(chance.choice(self.paths))
        match chance.randrange(5):
            case 0:
                path[chance.randrange(len(path))] = any_text(chance, self.names)
            case 1:
                path = path[: chance.randrange(len(path) + 1)]
            case 2:
                command = json.dumps(path).encode()
                return flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command).SerializeToString()
            case 3:
                with contextlib.suppress(DecodeError):
                    changed = changed_message(flight.FlightDescriptor.FromString(data), chance, self.names)
                    return bytes(changed.SerializeToString())
        try:
            return flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=path).SerializeToString()
        except UnicodeEncodeError:
            return changed_bytes(data, chance)

    def _exchange(self, seed: Call, chance: Random) -> Case:
        frames = list(seed.requests)
        sent = dict(seed.headers)
        match chance.randrange(6):
            case 0:
                place = chance.randrange(len(frames))
                frames[place] = changed_bytes(frames[place], chance)
            case 1:
                frames.insert(chance.randrange(len(frames)), chance.choice(frames))
            case 2:
                del frames[chance.randrange(len(frames))]
            case _:
                frames = self._batches(frames, chance)
        if chance.random() < 0.3:
            sent[protocol.OPERATION] = chance.choice([*EXCHANGES, "", "merge"])
        if chance.random() < 0.3:
            sent[protocol.RETURN_CHUNKS] = chance.choice(("0", "1", "x"))
        method = seed.method if chance.random() < 0.97 else chance.choice(("DoPut", "DoExchange"))
        return {"method": method, "headers": [list(each) for each in sent.items()], "messages": frames}

    def _batches(self, frames: list[bytes], chance: Random) -> list[bytes]:
        """The opening of an exchange, with other rows: those of the seed, or of another schema, or with changed bytes."""
        first = parse_frame(frames[0])
        descriptor = self._descriptor(first.descriptor, chance) if chance.random() < 0.4 else first.descriptor
        metadata = first.app_metadata
        opening: list[bytes] = []
        if not first.header:
            opening = [metadata_frame(self._body(metadata, chance) if metadata else b"", descriptor)]
            descriptor = b""
        schema = self._schema(frames, chance)
        writer = FrameWriter(schema)
        opening.append(writer.begin(descriptor=descriptor, app_metadata=metadata if first.header else b""))
        for _ in range(chance.choice((0, 1, 1, 2))):
            with contextlib.suppress(pa.ArrowException, NotImplementedError):
                opening += writer.batch(
                    any_batch(schema, chance), compression=chance.choice((None, None, "lz4", "zstd"))
                )
        if chance.random() < 0.3:
            opening[-1] = changed_bytes(opening[-1], chance)
        return opening

    def _schema(self, frames: Sequence[bytes], chance: Random) -> pa.Schema:
        """The schema of the seed, perhaps with other names or types, or another one."""
        if chance.random() < 0.3:
            return any_schema(chance, self.names)
        for data in frames:
            with contextlib.suppress(pa.ArrowException, SkiwayError, NotImplementedError):
                if parse_frame(data).header:
                    fields = list(pa.ipc.read_schema(pa.py_buffer(parse_frame(data).message())))
                    if fields and chance.random() < 0.4:
                        place = chance.randrange(len(fields))
                        other = any_schema(chance, self.names)
                        fields[place : place + chance.randrange(2)] = list(other)[:2]
                    return pa.schema(fields)
        return any_schema(chance, self.names)

    def _ticket(self, chance: Random) -> Case:
        """A ticket of the server, with changed contents, and signed or not."""
        path = (*chance.choice(self.paths), "table", "")[:5]
        filters = chance.choice(recordings().filters).json_filters
        ticket = Ticket(
            ObjectPath(*path),  # type: ignore[arg-type]
            columns=chance.choice((None, [], ["id"], ["rowid", "id"])),
            json_filters=filters if chance.random() < 0.5 else "",
            at_unit=chance.choice(("", "", "VERSION", "TIMESTAMP")),
            at_value=chance.choice(("", "1", "2024-01-01")),
        )
        value = msgspec.to_builtins(ticket, builtin_types=(bytes,))
        changed = changed_value(value, chance, self.names, leaf=lambda part: self._leaf(part, chance))
        sent = [
            [protocol.CATALOG, path[0]],
            [protocol.TRACE_ID, "fuzz-trace"],
            [protocol.USER_AGENT, "airport/20250723"],
        ]
        return {
            "method": "DoGet",
            "headers": sent,
            "ticket": repacked(changed, bytes_as_text=False),
            "signed": chance.random() < 0.9,
        }

    def _headers(self, sent: list[list[str]], chance: Random) -> list[list[str]]:
        found = dict(sent)
        catalogs = sorted({path[0] for path in self.paths})
        if protocol.CATALOG in found and chance.random() < 0.8:
            found[protocol.CATALOG] = chance.choice(catalogs)
        if chance.random() < 0.1:
            name = chance.choice(_EXTRA_HEADERS)
            found[name] = changed_text(found.get(name, ""), chance, [*self.names, TRANSACTION, "1", "0"])
        if chance.random() < 0.05 and found:
            del found[chance.choice(list(found))]
        return [[name, value] for name, value in found.items() if protocol.can_carry(value)]

    # -- running cases ------------------------------------------------------------------------------------------------

    def run(self, case: Case) -> str:
        self.errors.take()
        messages = (
            [flight.Ticket(ticket=self._issued(case)).SerializeToString()] if "ticket" in case else case["messages"]
        )
        call: Any = self.channel.stream_stream(f"/{protocol.SERVICE}/{case['method']}")
        answers = call(iter(messages), metadata=self._metadata(case), timeout=TIMEOUT_S)
        try:
            for _ in answers:
                pass
        except grpc.RpcError as error:
            return self._failed(error, case)
        self.recorder.calls.clear()
        return "OK"

    def _failed(self, error: Any, case: Case) -> str:
        status, text = error.code().name, error.details() or ""
        self.recorder.calls.clear()
        if status == "DEADLINE_EXCEEDED":
            raise TimeoutError(f"{case['method']} did not end within {TIMEOUT_S} seconds")
        if status in INTERNAL:
            if fault := logged_fault(self.errors, status, text, authors=self.authors):
                raise fault
            return "error of an author"
        return str(status)

    def _issued(self, case: Case) -> bytes:
        """The ticket as the server signs it, though it would not issue some of these."""
        payload: bytes = VERSION + b"\x92" + msgspec.msgpack.encode(2**32 - 1) + case["ticket"]
        return payload + (self.office._mac(payload) if case["signed"] else b"?" * 16)

    def _metadata(self, case: Case) -> list[tuple[str, str]]:
        def value(text: str) -> str:
            return self._open_transaction(case) if text == TRANSACTION else text

        sent = [(name, value(text)) for name, text in case["headers"]]
        return [(name, text) for name, text in sent if re.fullmatch(r"[a-z0-9_.-]+", name) and protocol.can_carry(text)]

    def _open_transaction(self, case: Case) -> str:
        if self._transaction is None:
            body = repacked({"catalog_name": self.paths[0][0]})
            message = flight.Action(type="create_transaction", body=body).SerializeToString()
            call: Any = self.channel.unary_stream(f"/{protocol.SERVICE}/DoAction")
            (answer,) = call(message, timeout=TIMEOUT_S)
            info = decode(flight.Result.FromString(answer).body, TransactionInfo, "create_transaction")
            self._transaction = info.identifier or ""
        return self._transaction


def _without_ids(call: Call) -> Call:
    """The call with fixed ids, so that cases depend on the seed only."""

    def value(name: str, text: str) -> str:
        return TRANSACTION if name == protocol.TRANSACTION_ID else _IDS.get(name, text)

    sent = tuple((name, value(name, text)) for name, text in call.headers if name not in _NOT_SENT)
    return Call(call.method, sent, call.requests)


def _nullable(schema: pa.Schema) -> bool:
    return all(field.nullable for field in schema)


@contextlib.contextmanager
def attached(location: str, catalog: str) -> Iterator[AirportClient]:
    with AirportClient(location, catalog) as db:
        yield db
