"""The messages of Flight SQL, which travel in a `google.protobuf.Any` with the type URLs of Arrow's package."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from skiway.errors import InvalidArgument, Unsupported
from skiway.model import flight_sql_pb2 as sql

__all__ = ["decode", "encode", "is_flight_sql", "name_of"]

TYPE_URL: Final = "type.googleapis.com/arrow.flight.protocol.sql."
_HEAD: Final = TYPE_URL.encode()

_KNOWN: Final[dict[str, type[Any]]] = {
    name: kind
    for name, kind in vars(sql).items()
    if isinstance(kind, type) and issubclass(kind, Message) and name.startswith(("Command", "Ticket", "Action"))
}

_CHANGES: Final = {
    "CommandStatementUpdate",
    "CommandPreparedStatementUpdate",
    "CommandStatementIngest",
    "ActionBeginTransactionRequest",
    "ActionBeginSavepointRequest",
    "ActionEndTransactionRequest",
    "ActionEndSavepointRequest",
}


def is_flight_sql(data: bytes) -> bool:
    """Whether bytes are, or begin like, a message of Flight SQL. The type URL comes first, after its tag and its length."""
    return data[:1] == b"\x0a" and data[2:].startswith(_HEAD)


def decode(data: bytes) -> Message:
    """The message in an `Any`; `Unsupported` if this server does not implement it."""
    try:
        packed = AnyMessage.FromString(data)
        name = packed.type_url.removeprefix(TYPE_URL)
        if name in _KNOWN:
            found: Message = _KNOWN[name].FromString(packed.value)
            return found
    except DecodeError as error:
        raise InvalidArgument(
            "malformed Flight SQL message: not the protobuf message that its type URL names", key="flightsql.malformed"
        ) from error
    if name in _CHANGES:
        raise Unsupported(
            f"{_shown(name)} is not supported: Flight SQL is read-only here; change tables from DuckDB or over Iceberg REST",
            key="flightsql.read_only",
        )
    raise Unsupported(f"Flight SQL's {_shown(name)} is not supported", key="flightsql.unsupported")


def _shown(name: str) -> str:
    """The name of a message, which the client chose."""
    return name[:60] if name.isidentifier() else "message"


def encode(message: Message) -> bytes:
    """The message in an `Any`."""
    packed: bytes = AnyMessage(
        type_url=TYPE_URL + message.DESCRIPTOR.name, value=message.SerializeToString()
    ).SerializeToString()
    return packed


def name_of(message: Message) -> str:
    """What a message asks for, such as `GetTables`."""
    name: str = message.DESCRIPTOR.name
    return name.removeprefix("Command").removeprefix("Action").removesuffix("Request")
