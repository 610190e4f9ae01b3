"""MessagePack bodies: requests and responses of the recordings, with changed members, decoded by server and client."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from fuzz.mutation import changed_bytes, changed_value, repacked, unpacked
from fuzz.target import Case, Target, fault_of
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import BatchReader
from skiway.errors import Internal, SkiwayError
from skiway.model import flight_pb2 as flight
from skiway.testing import recordings

KINDS = {
    name: kind
    for name, kind in vars(protocol).items()
    if isinstance(kind, type) and issubclass(kind, protocol.Message) and kind is not protocol.Message
}
_BINARY = ("descriptor", "flight_descriptor", "parameters", "arrow_schema", "column_schema")


class BodyTarget(Target):
    """The decoders of MessagePack bodies, envelopes and streams of batches."""

    name = "bodies"

    def open(self) -> None:
        calls = [call for each in recordings().conversations for call in each.calls if call.requests]
        requests = [flight.Action.FromString(call.requests[0]).body for call in calls if call.method == "DoAction"]
        answered = [call for call in calls if call.method == "DoAction" and call.answers and not call.cut]
        answers = [flight.Result.FromString(call.answers[0]).body for call in answered]
        self.envelopes = [body for call, body in zip(answered, answers, strict=True) if call.action == "list_schemas"]
        self.bodies = sorted({body for body in (*requests, *answers) if 0 < len(body) < 20_000})
        self.streams = [
            list(call.answers) for call in calls if call.method == "DoGet" and call.answers and not call.cut
        ]

    def case(self, chance: Random) -> Case:
        match chance.randrange(4):
            case 0:
                return {"envelope": self._envelope(chance.choice(self.envelopes), chance)}
            case 1:
                frames = list(chance.choice(self.streams))
                place = chance.randrange(len(frames))
                frames[place] = changed_bytes(frames[place], chance)
                return {"stream": frames}
        return {"kind": chance.choice(sorted(KINDS)), "body": self._changed(chance.choice(self.bodies), chance)}

    def _changed(self, body: bytes, chance: Random) -> bytes:
        if chance.random() < 0.3:
            return changed_bytes(body, chance)
        try:
            return repacked(changed_value(unpacked(body), chance))
        except SkiwayError:
            return changed_bytes(body, chance)

    def _envelope(self, body: bytes, chance: Random) -> bytes:
        """An envelope with another length, other contents, or changed bytes."""
        match chance.randrange(3):
            case 0:
                return changed_bytes(body, chance)
            case 1:
                length, compressed = msgspec.msgpack.decode(body, type=tuple[int, bytes])
                return protocol.encode([chance.choice((0, -1, length + 1, 2**31, 2**40, 2**63)), compressed])
        value = msgspec.to_builtins(protocol.unseal(body, protocol.CatalogRoot, "list_schemas"), builtin_types=(bytes,))
        return protocol.seal(changed_value(value, chance))

    def run(self, case: Case) -> str:
        try:
            return self._decoded(case)
        except Internal as error:
            raise fault_of(error) or error from error
        except SkiwayError as error:
            return type(error).__name__
        except Exception as error:
            raise fault_of(error) or error from error

    def _decoded(self, case: Case) -> str:
        if "envelope" in case:
            root = protocol.unseal(case["envelope"], protocol.CatalogRoot, "list_schemas")
            for schema in root.schemas:
                if schema.contents.serialized:
                    protocol.unseal(schema.contents.serialized, list[bytes], schema.name)
        elif "stream" in case:
            for _ in BatchReader(iter(case["stream"])):
                pass
        else:
            value: Any = protocol.decode(case["body"], KINDS[case["kind"]], case["kind"])
            for name in _BINARY:
                if isinstance(part := getattr(value, name, None), msgspec.Raw):
                    protocol.binary(part)
        return "OK"
