"""A catalog as its server lists it, and where the contents of its schemas are."""

from __future__ import annotations

import hashlib
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa

from skiway.airport.wire.payloads import MAX_UNPACKED, Binary, binary, decode, unseal
from skiway.client.airport.calls import Calls
from skiway.client.airport.catalog import (
    ContentsAnswer,
    Function,
    FunctionKind,
    ObjectAnswer,
    RootAnswer,
    Schema,
    SchemaAnswer,
    Table,
    TableName,
    first,
    read_schema,
)
from skiway.client.airport.connection import Connection, parsed
from skiway.client.airport.errors import nonsense
from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = ["Flight", "Listing", "flight_descriptor", "read_flight", "shown"]

WEB_TIMEOUT_S: Final = 60  # of silence; a web server is no Airport server, which may think as long as it likes


class Listing:
    """A catalog as it was when first used, and as this client changed it since.

    Contents of a schema are opened when something in it is asked for.
    """

    def __init__(self, calls: Calls, root: RootAnswer) -> None:
        self._calls = calls
        self._bundle = _Contents(calls.connection, root.contents)
        self._entries = {entry.name: entry for entry in root.schemas}
        self._lock = threading.Lock()
        self._opened: dict[str, Schema] = {}
        self.is_fixed = root.version_info.is_fixed

    def schemas(self) -> list[Schema]:
        """All schemas."""
        return [self._open(entry) for entry in self._entries.values()]

    def table(self, name: TableName) -> Table:
        """One table, by `schema.table`."""
        for schema, own_name in self._addresses(name):
            if (table := first(own_name, schema.tables)) is not None:
                return table
        raise NotFound(
            f"table {_shown(name)} not found; {self._known()} (reload() shows what was made since)",
            key="table",
            table=_shown(name),
        )

    def functions(self, name: TableName, kind: FunctionKind) -> list[Function]:
        """All overloads of a function, by `schema.function`."""
        found = [
            function
            for schema, own_name in self._addresses(name)
            for function in schema.functions
            if function.kind == kind and function.name.lower() == own_name.lower()
        ]
        if not found:
            shown = _shown(name)
            raise NotFound(
                f"{kind.replace('_', ' ')} {shown} not found; {self._known()}", key="function", function=shown
            )
        return found

    def split(self, name: TableName) -> tuple[str, str]:
        """Schema and own name of a table that need not be there; the schema has to."""
        for schema, own_name in self._addresses(name):
            return schema.name, own_name
        raise NotFound(f"the schema of {_shown(name)} not found; {self._known()}", key="schema", schema=_shown(name))

    # -- changes that this client made itself -----------------------------------------------------------------------

    def add_schema(self, name: str, contents: ContentsAnswer, *, comment: str, tags: dict[str, str]) -> None:
        """A schema that was created."""
        with self._lock:
            self._entries[name] = SchemaAnswer(name, contents, comment, tags)
            self._opened.pop(name, None)

    def remove_schema(self, name: str) -> None:
        """A schema that was dropped, if it is known here."""
        with self._lock:
            if (entry := first(name, self._entries.values())) is not None:
                del self._entries[entry.name]
                self._opened.pop(entry.name, None)

    def put_table(self, info: FlightInfo, schema_name: str) -> Table:
        """A table that was created or altered, as the server describes it now."""
        table = self.described(info, schema_name)
        self._exchange(schema_name, table.name, table)
        return table

    def described(self, info: FlightInfo, schema_name: str) -> Table:
        """The table that the server tells of."""
        table = _object(info, self._calls.catalog, schema_name)
        if not isinstance(table, Table):
            raise InvalidArgument("it describes no table")
        return table

    def remove_table(self, table: Table, *, unless: str | None = None) -> None:
        """A table that was dropped, or renamed to something else than its own name in other letters."""
        if unless is None or unless.lower() != table.name.lower():
            self._exchange(table.schema_name, table.name)

    def _exchange(self, schema_name: str, name: str, *put: Table) -> None:
        entry = self._entries.get(schema_name)
        if entry is None:
            return  # it was dropped meanwhile, by another thread
        schema = self._open(entry)
        with self._lock:
            others = (table for table in schema.tables if table.name.lower() != name.lower())
            self._opened[schema_name] = replace(schema, tables=(*others, *put))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _addresses(self, name: TableName) -> Iterator[tuple[Schema, str]]:
        """Each way to read a dotted name as a schema that exists and the rest; names may hold dots themselves."""
        for schema_name, own_name in _splits(name):
            if (entry := first(schema_name, self._entries.values())) is not None:
                yield self._open(entry), own_name

    def _known(self) -> str:
        names = list(map(repr, self._entries))
        some = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return f"schemas of catalog {self._calls.catalog!r}: {some or 'none'}"

    def _open(self, entry: SchemaAnswer) -> Schema:
        with self._lock:
            if entry.name not in self._opened:
                self._opened[entry.name] = self._load(entry)
            return self._opened[entry.name]

    def _load(self, entry: SchemaAnswer) -> Schema:
        location = self._calls.connection.location.text
        data = self._bundle.of(entry)
        if data is None:
            infos: Iterable[FlightInfo] = self._calls.list_schema(entry.name)
        else:
            with nonsense(location, f"list_schemas (schema {entry.name!r})"):
                parts = [binary(part) for part in unseal(data, list[Binary], "the contents of a schema")]
            infos = [parsed(FlightInfo, part, location) for part in parts]
        with nonsense(location, f"list_schemas (schema {entry.name!r})"):
            found = [item for info in infos if (item := _object(info, self._calls.catalog, entry.name)) is not None]
        return Schema(
            entry.name,
            entry.description,
            dict(entry.tags),
            tuple(item for item in found if isinstance(item, Table)),
            tuple(item for item in found if isinstance(item, Function)),
        )


class _Contents:
    """Where the contents of schemas are: inline, in the listing's bundle, at a URL, or to be asked for (None)."""

    def __init__(self, connection: Connection, bundle: ContentsAnswer) -> None:
        self._location = connection.location.text
        self._timeout_s = connection.timeout_s or WEB_TIMEOUT_S
        self._bundle = bundle

    @cached_property
    def _bundled(self) -> dict[str, bytes]:
        if not self._bundle.sha256 or not (binary(self._bundle.serialized) or self._bundle.url):
            return {}
        data = self._verified(self._bundle, "the bundle of all schemas")
        with nonsense(self._location, "list_schemas"):
            entries = decode(data, list[tuple[str, Binary]], "the bundle of all schemas")
            return {sha256: binary(part) for sha256, part in entries}

    def of(self, entry: SchemaAnswer) -> bytes | None:
        contents, what = entry.contents, f"the contents of schema {entry.name!r}"
        if binary(contents.serialized) or contents.url is not None:
            return self._verified(contents, what)
        if not contents.sha256:
            return None
        if contents.sha256 not in self._bundled:
            raise Internal(f"{self._location} lists {what} by a hash only, and its bundle does not hold them")
        return self._checked(self._bundled[contents.sha256], contents.sha256, what)

    def _verified(self, contents: ContentsAnswer, what: str) -> bytes:
        data = binary(contents.serialized)
        if data and (contents.url is None or _hash(data) == contents.sha256):
            return self._checked(data, contents.sha256, what)
        if not contents.sha256:
            raise Internal(f"{self._location} keeps {what} at {contents.url!r} without a hash to check them with")
        return self._checked(_download(contents.url or "", what, self._timeout_s), contents.sha256, what)

    def _checked(self, data: bytes, sha256: str, what: str) -> bytes:
        if sha256 and _hash(data) != sha256:
            raise Internal(
                f"{self._location} announces {what} with hash {sha256}, but sent bytes of hash {_hash(data)}"
            )
        return data


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(url: str, what: str, timeout_s: float) -> bytes:
    if urlsplit(url).scheme not in ("http", "https"):
        raise Internal(f"the server keeps {what} at {url!r}, which is no web address")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310  (the scheme was checked)
            data: bytes = response.read(MAX_UNPACKED + 1)
    except OSError as error:
        raise Internal(f"the server keeps {what} at {url!r}, which cannot be read: {error}") from error
    if len(data) > MAX_UNPACKED:
        raise Internal(f"{what} at {url!r} are larger than {MAX_UNPACKED} bytes, which is all that is accepted")
    return data


def _object(info: FlightInfo, catalog: str, schema_name: str) -> Table | Function | None:
    if not info.app_metadata:
        return None  # a flight that is no object of a catalog
    facts = decode(info.app_metadata, ObjectAnswer, "app_metadata")
    if (facts.catalog, facts.schema) != (catalog, schema_name):
        raise InvalidArgument(f"{facts.name!r} claims to be in {facts.catalog!r}.{facts.schema!r}")
    columns = read_schema(info.schema, f"{facts.type} {facts.name!r}")
    match facts.type:
        case "table":
            return Table(schema_name, facts.name, columns, facts.comment or "", info.flight_descriptor)
        case "scalar_function" | "table_function":
            return Function(
                schema_name,
                facts.name,
                facts.type,
                read_schema(binary(facts.input_schema), f"the parameters of {facts.name!r}"),
                columns,
                facts.description or "",
                info.flight_descriptor,
            )
        case _:
            raise InvalidArgument(
                f"{facts.name!r} is a {facts.type!r}: table, scalar_function or table_function is expected"
            )


def _splits(name: TableName) -> Sequence[tuple[str, str]]:
    if not isinstance(name, str):
        return [name]
    parts = name.split(".")
    if len(parts) < 2:
        raise InvalidArgument(f"{name!r} names no schema: write 'schema.table', or a tuple of both")
    return [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]


def _shown(name: TableName) -> str:
    return name if isinstance(name, str) else ".".join(name)


# --------------------
# Flights: what a server lists outside of any catalog.


@dataclass(frozen=True, slots=True)
class Flight:
    """Something that a server lists: by `path` or by `command`, with what is known of its rows (-1: nothing)."""

    path: tuple[str, ...]
    command: bytes
    schema: pa.Schema
    total_records: int = -1
    total_bytes: int = -1
    ordered: bool = False
    app_metadata: bytes = field(default=b"", repr=False)


def read_flight(info: FlightInfo) -> Flight:
    """The flight that a message describes."""
    return Flight(
        tuple(info.flight_descriptor.path),
        info.flight_descriptor.cmd,
        read_schema(info.schema, f"flight {shown(info.flight_descriptor)}"),
        info.total_records,
        info.total_bytes,
        info.ordered,
        info.app_metadata,
    )


def flight_descriptor(given: Sequence[str] | str | bytes) -> FlightDescriptor:
    """A path for a list of names, a command for a text or bytes."""
    if isinstance(given, str):
        given = given.encode()
    if isinstance(given, bytes):
        return FlightDescriptor(type=FlightDescriptor.CMD, cmd=given)
    return FlightDescriptor(type=FlightDescriptor.PATH, path=list(given))


def shown(descriptor: FlightDescriptor) -> str:
    """For messages."""
    return repr("/".join(descriptor.path)) if descriptor.path else repr(descriptor.cmd)
