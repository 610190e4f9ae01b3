"""The state of an `AirportClient`: its connection, the cached listing of the catalog and the open transaction."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from skiway.airport.wire.protocol import MAX_UNPACKED, Binary, binary, decode, unseal
from skiway.client.airport.calls import (
    Calls,
    ContentsMessage,
    Function,
    FunctionKind,
    ObjectMessage,
    RootMessage,
    Schema,
    SchemaMessage,
    Table,
    TableName,
    Trace,
    TransactionContext,
    find_by_name,
    name_splits,
    read_schema,
)
from skiway.client.connection import Connection, parse_message
from skiway.client.errors import blame_server
from skiway.errors import Cancelled, Internal, InvalidArgument, NotFound, SkiwayError, Unsupported
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

WEB_TIMEOUT_S: Final = 60  # for downloads from web servers; calls to Airport servers have no deadline by default


class Listing:
    """A cached listing of a catalog, updated with the changes that this client makes. Thread-safe.

    The contents of a schema are loaded at its first use.
    """

    def __init__(self, calls: Calls, root: RootMessage) -> None:
        self._calls = calls
        self._bundle = _Contents(calls.connection, root.contents)
        self._entries = {entry.name: entry for entry in root.schemas}
        self._lock = threading.Lock()
        self._opened: dict[str, Schema] = {}
        self.is_fixed = root.version_info.is_fixed

    def schemas(self) -> list[Schema]:
        """Return all schemas."""
        return [self._open(entry) for entry in self._entries.values()]

    def names(self) -> list[str]:
        """Return the names of all schemas."""
        return list(self._entries)

    def table(self, name: TableName) -> Table:
        """Return the table called `name`; raise `NotFound` if there is none."""
        for schema, own_name in self._addresses(name):
            if (table := find_by_name(own_name, schema.tables)) is not None:
                return table
        raise NotFound(
            f"table {_dotted(name)} not found; {self._known()} (reload() refreshes the list)",
            key="table",
            table=_dotted(name),
        )

    def functions(self, name: TableName, kind: FunctionKind) -> list[Function]:
        """Return all overloads of a function; raise `NotFound` if there are none."""
        overloads = [
            function
            for schema, own_name in self._addresses(name)
            for function in schema.functions
            if function.kind == kind and function.name.lower() == own_name.lower()
        ]
        if not overloads:
            dotted = _dotted(name)
            raise NotFound(
                f"{kind.replace('_', ' ')} {dotted} not found; {self._known()}", key="function", function=dotted
            )
        return overloads

    def split(self, name: TableName) -> tuple[str, str]:
        """Split the name of a table, which need not exist, into its schema, which must, and its own name."""
        for schema, own_name in self._addresses(name):
            return schema.name, own_name
        raise NotFound(f"schema of {_dotted(name)} not found; {self._known()}", key="schema", schema=_dotted(name))

    # -- changes made by this client --------------------------------------------------------------------------------

    def add_schema(self, name: str, contents: ContentsMessage, *, comment: str, tags: dict[str, str]) -> None:
        """Add a schema that was created."""
        with self._lock:
            self._entries[name] = SchemaMessage(name, contents, comment, tags)
            self._opened.pop(name, None)

    def remove_schema(self, name: str) -> None:
        """Remove a schema that was dropped, if it is in the listing."""
        with self._lock:
            if (entry := find_by_name(name, self._entries.values())) is not None:
                del self._entries[entry.name]
                self._opened.pop(entry.name, None)

    def put_table(self, info: FlightInfo, schema_name: str) -> Table:
        """Add or replace a table that was created or altered, as `info` describes it."""
        table = self.parse_table(info, schema_name)
        self._replace(schema_name, table.name, table)
        return table

    def parse_table(self, info: FlightInfo, schema_name: str) -> Table:
        """Return the table that `info` describes."""
        table = _object(info, self._calls.catalog, schema_name)
        if not isinstance(table, Table):
            raise InvalidArgument("it does not describe a table")
        return table

    def remove_table(self, table: Table, *, unless: str | None = None) -> None:
        """Remove a table that was dropped or renamed; not if its new name `unless` differs only in case."""
        if unless is None or unless.lower() != table.name.lower():
            self._replace(table.schema_name, table.name)

    def _replace(self, schema_name: str, name: str, *tables: Table) -> None:
        entry = self._entries.get(schema_name)
        if entry is None:
            return  # another thread has dropped it
        schema = self._open(entry)
        with self._lock:
            others = (table for table in schema.tables if table.name.lower() != name.lower())
            self._opened[schema_name] = replace(schema, tables=(*others, *tables))

    # -- internal ---------------------------------------------------------------------------------------------------

    def _addresses(self, name: TableName) -> Iterator[tuple[Schema, str]]:
        """Yield each way to split a dotted name into an existing schema and the rest; names may contain dots."""
        for schema_name, own_name in name_splits(name):
            if (entry := find_by_name(schema_name, self._entries.values())) is not None:
                yield self._open(entry), own_name

    def _known(self) -> str:
        names = list(map(repr, self._entries))
        first = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return f"schemas of catalog {self._calls.catalog!r}: {first or 'none'}"

    def _open(self, entry: SchemaMessage) -> Schema:
        with self._lock:
            if entry.name not in self._opened:
                self._opened[entry.name] = self._load(entry)
            return self._opened[entry.name]

    def _load(self, entry: SchemaMessage) -> Schema:
        location = self._calls.connection.location.text
        data = self._bundle.of(entry)
        if data is None:
            infos: Iterable[FlightInfo] = self._calls.list_schema(entry.name)
        else:
            with blame_server(location, f"list_schemas (schema {entry.name!r})"):
                parts = [binary(part) for part in unseal(data, list[Binary], "the contents of a schema")]
            infos = [parse_message(FlightInfo, part, location) for part in parts]
        with blame_server(location, f"list_schemas (schema {entry.name!r})"):
            objects = [item for info in infos if (item := _object(info, self._calls.catalog, entry.name)) is not None]
        return Schema(
            entry.name,
            entry.description,
            dict(entry.tags),
            tuple(item for item in objects if isinstance(item, Table)),
            tuple(item for item in objects if isinstance(item, Function)),
        )


class _Contents:
    """Fetches and verifies the contents of schemas: inline, from the bundle of all schemas, or from a URL."""

    def __init__(self, connection: Connection, bundle: ContentsMessage) -> None:
        self._connection = connection
        self._location = connection.location.text
        self._timeout_s = connection.timeout_s or WEB_TIMEOUT_S
        self._bundle = bundle

    @cached_property
    def _bundled(self) -> dict[str, bytes]:
        if not self._bundle.sha256 or not (binary(self._bundle.serialized) or self._bundle.url):
            return {}
        data = self._verified(self._bundle, "the bundle of all schemas")
        with blame_server(self._location, "list_schemas"):
            entries = decode(data, list[tuple[str, Binary]], "the bundle of all schemas")
            return {sha256: binary(part) for sha256, part in entries}

    def of(self, entry: SchemaMessage) -> bytes | None:
        """Return the contents of a schema; None if the server lists them with ListFlights."""
        contents, what = entry.contents, f"the contents of schema {entry.name!r}"
        if binary(contents.serialized) or contents.url is not None:
            return self._verified(contents, what)
        if not contents.sha256:
            return None
        if contents.sha256 not in self._bundled:
            raise Internal(f"{self._location} identifies {what} by hash, but its bundle does not contain them")
        return self._checked(self._bundled[contents.sha256], contents.sha256, what)

    def _verified(self, contents: ContentsMessage, what: str) -> bytes:
        data = binary(contents.serialized)
        if data and (contents.url is None or _hash(data) == contents.sha256):
            return self._checked(data, contents.sha256, what)
        if not contents.sha256:
            raise Internal(f"{self._location} refers to {what} at {contents.url!r} without a hash to verify them")
        self._connection.refuse_elsewhere("a web address")
        return self._checked(_download(contents.url or "", what, self._timeout_s), contents.sha256, what)

    def _checked(self, data: bytes, sha256: str, what: str) -> bytes:
        if sha256 and _hash(data) != sha256:
            raise Internal(
                f"{self._location} announced {what} with hash {sha256}, but sent data with hash {_hash(data)}"
            )
        return data


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _download(url: str, what: str, timeout_s: float) -> bytes:
    if urlsplit(url).scheme not in ("http", "https"):
        raise Internal(f"the server refers to {what} at {url!r}, which is not an http or https URL")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310  (the scheme was checked)
            data: bytes = response.read(MAX_UNPACKED + 1)
    except OSError as error:
        raise Internal(f"cannot download {what} from {url!r}: {error}") from error
    if len(data) > MAX_UNPACKED:
        raise Internal(f"{what} at {url!r} are larger than the limit of {MAX_UNPACKED} bytes")
    return data


def _object(info: FlightInfo, catalog: str, schema_name: str) -> Table | Function | None:
    if not info.app_metadata:
        return None  # this flight is not an object of a catalog
    facts = decode(info.app_metadata, ObjectMessage, "app_metadata")
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
                f"{facts.name!r} is a {facts.type!r}, expected a table, scalar_function or table_function"
            )


def _dotted(name: TableName) -> str:
    return name if isinstance(name, str) else ".".join(name)


@dataclass(frozen=True, slots=True)
class Flight:
    """A flight that a server lists, identified by `path` or `command`. A total of -1 means unknown."""

    path: tuple[str, ...]
    command: bytes
    schema: pa.Schema
    total_records: int = -1
    total_bytes: int = -1
    ordered: bool = False
    app_metadata: bytes = field(default=b"", repr=False)


def read_flight(info: FlightInfo) -> Flight:
    """Return the flight that a message describes."""
    return Flight(
        tuple(info.flight_descriptor.path),
        info.flight_descriptor.cmd,
        read_schema(info.schema, f"flight {describe_descriptor(info.flight_descriptor)}"),
        info.total_records,
        info.total_bytes,
        info.ordered,
        info.app_metadata,
    )


def flight_descriptor(address: Sequence[str] | str | bytes) -> FlightDescriptor:
    """Return the descriptor: a path for a list of names, a command for a string or bytes."""
    if isinstance(address, str):
        address = address.encode()
    if isinstance(address, bytes):
        return FlightDescriptor(type=FlightDescriptor.CMD, cmd=address)
    return FlightDescriptor(type=FlightDescriptor.PATH, path=list(address))


def describe_descriptor(descriptor: FlightDescriptor) -> str:
    """Return the path or command of a descriptor, for messages."""
    return repr("/".join(descriptor.path)) if descriptor.path else repr(descriptor.cmd)


T = TypeVar("T", bound="OpenTransaction")
RELEASES: Final = 3
"""How often a client sends the end of a transaction that has nothing to commit, if `cancel()` interrupts it."""


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """The version number of a catalog. It grows with each change; the version of a `fixed` catalog never changes."""

    version: int
    fixed: bool


class OpenTransaction:
    """A transaction of one thread. The client creates it on the server when the first statement needs its id.

    With `release`, the server also learns of its end if there is nothing to commit, and releases its snapshots.
    """

    def __init__(self, calls: Calls, *, explicit: bool, release: bool = False) -> None:
        self._calls = calls
        self.explicit = explicit
        self._release = release
        self._must_end = explicit
        self._identifier: str | None = None

    @property
    def id(self) -> str:
        """The id that the server assigned; "" if the server has no transactions."""
        if self._identifier is None:
            self._identifier = self._calls.create_transaction()
            if self.explicit and not self._identifier:
                raise Unsupported(
                    f"catalog {self._calls.catalog!r} has no transactions: without explicit=True, "
                    "each statement commits on its own"
                )
        return self._identifier

    @property
    def context(self) -> TransactionContext:
        """The transaction as calls carry it."""
        return TransactionContext(self.id, explicit=self.explicit)

    def end(self, action: str) -> None:
        """Commit or roll back, if there is anything to commit or release and any statement has used the transaction."""
        if self._must_end and self._identifier:
            self._calls.end_transaction(action, self._identifier)
        elif self._release and self._identifier:
            self._send_end(action, self._identifier)

    def _send_end(self, action: str, identifier: str) -> None:
        """Tell the server that the transaction has ended. Failures do not matter: nothing is lost, and it expires."""
        for _ in range(RELEASES):
            try:
                self._calls.end_transaction(action, identifier)
            except Cancelled:
                continue  # `cancel()` was meant for the statement, which has ended
            except SkiwayError:
                pass
            return


class Session:
    """What all statements of a client share. Thread-safe; each thread has its own transaction."""

    def __init__(self, calls: Calls, ids: Callable[[], str], *, brief: bool = False) -> None:
        self.calls = calls
        self._ids, self._is_brief = ids, brief
        self._lock = threading.Lock()
        self._cached: Listing | None = None
        self._thread = threading.local()

    @property
    def location(self) -> str:
        """The server's address, as the user wrote it."""
        return self.calls.connection.location.text

    # -- the catalog ----------------------------------------------------------------------------------------------

    @property
    def cached_listing(self) -> Listing | None:
        """The listing, if it is loaded."""
        return self._cached

    def listing(self) -> Listing:
        """Return the listing of the catalog; load it at the first use."""
        transaction = self.explicit_context()
        with self._lock:
            if self._cached is None:
                self._cached = Listing(self.calls, self.calls.list_schemas(transaction))
            return self._cached

    def reload(self) -> None:
        """Drop the cached listing."""
        with self._lock:
            self._cached = None

    def poll_version(self) -> None:
        """Request the catalog's version, as DuckDB does for each table it binds, unless the version is fixed."""
        if self._cached is None or not self._cached.is_fixed:
            self.calls.catalog_version()

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, opened: T) -> Iterator[T]:
        """Run the statements of this thread in one transaction for the duration of the block."""
        if self.open_transaction() is not None:
            raise InvalidArgument("a transaction is already open in this thread; transactions cannot be nested")
        self._thread.transaction = opened
        try:
            yield opened
        except BaseException:
            self._thread.transaction = None
            with contextlib.suppress(Exception):  # the error that ends the block matters more than a failed rollback
                opened.end("rollback_transaction")
            if opened.explicit:
                self.reload()  # objects created inside the block no longer exist
            raise
        self._thread.transaction = None
        try:
            opened.end("commit_transaction")
        except BaseException:
            with contextlib.suppress(Exception):  # the server may not answer, and discards the rows later
                opened.end("rollback_transaction")
            raise

    def open_transaction(self) -> OpenTransaction | None:
        """The transaction that is open in this thread."""
        opened: OpenTransaction | None = getattr(self._thread, "transaction", None)
        return opened

    def begin(self) -> TransactionContext:
        """Return the context of the next statement: the open transaction, or a new one for this statement only."""
        opened = self.open_transaction()
        return TransactionContext(self.calls.create_transaction()) if opened is None else opened.context

    def is_brief(self) -> bool:
        """Whether scans of this thread leave out what only DuckDB calls."""
        return self._is_brief and self.open_transaction() is None

    def explicit_context(self) -> TransactionContext | None:
        """The explicit transaction. Unlike other transactions, it also applies to calls about the catalog."""
        opened = self.open_transaction()
        return opened.context if opened is not None and opened.explicit else None

    # -- tracing --------------------------------------------------------------------------------------------------

    def trace(self, descriptor: FlightDescriptor, transaction: TransactionContext | None = None) -> Trace:
        """Return a new trace for the calls of one scan or exchange."""
        return Trace(self._ids(), descriptor, transaction or TransactionContext())

    def flight_trace(self, descriptor: FlightDescriptor, extra_headers: tuple[tuple[str, str], ...]) -> Trace:
        """Return a new trace for a flight outside of the catalog."""
        return Trace(self._ids(), descriptor, in_catalog=False, extra=extra_headers)
