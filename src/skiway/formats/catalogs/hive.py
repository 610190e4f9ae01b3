"""Iceberg tables in a Hive Metastore, listed with PyIceberg. Their metadata is read as that of other sources.

The metastore is not trusted: its address is checked, and its answers have a deadline and limits.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import GetTableRequest, GetTablesRequest, NoSuchObjectException, UnknownDBException
from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TApplicationException, TException
from thrift.transport.TTransport import TTransportBase, TTransportException

from skiway.errors import InvalidArgument, LimitExceeded, NotFound, PreconditionFailed, Unavailable, Unsupported
from skiway.formats.files import Files, first_lines
from skiway.formats.iceberg.sources import CatalogSource, is_iceberg, metadata_file_of, read_table
from skiway.formats.opening import SourceRequest
from skiway.formats.source import Source
from skiway.security.source_access import location
from skiway.security.source_access.connections import ANSWER_S, metastore_addresses

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.typedef import Identifier

T = TypeVar("T")

_BATCH: Final = 100
"""The tables that a listing asks for at once. The answer contains the columns of each."""
_BLOCK_BYTES: Final = 64 * 1024
_MAX_ANSWER: Final = 16 << 20
_MAX_VALUES: Final = 250_000
"""The structs and elements of lists in one answer. Without this limit, each byte of an answer could become an object."""


def open_hive(request: SourceRequest) -> Source:
    """Open the metastore at `request.uri`; its databases are the namespaces."""
    addresses = metastore_addresses(request.uri)
    if request.properties.get("hive.kerberos-authentication", "").lower() == "true":
        raise Unsupported(
            "a Hive Metastore that requires Kerberos cannot be a source; remove the property 'hive.kerberos-authentication', or "
            "connect to a REST catalog in front of the metastore",
            key="source.option",
            feature="kerberos",
        )
    user = _user(request.properties.get("ugi", ""))
    files = request.files()

    def connect() -> socket.socket:
        """A connection to the first server that accepts one."""
        failure: Exception = OSError("no address")
        for address in addresses:
            try:
                return address.connect(request.access)
            except (OSError, Unavailable) as error:
                failure = error
        raise failure

    return CatalogSource(request, lambda: _catalog(request, files, _Metastore(connect, user)), _as_pyiceberg)


def _user(given: str) -> tuple[str, list[str]] | None:
    """Parse the property `ugi`: the user name and the groups to send to the metastore."""
    name, _, groups = given.partition(":")
    if given and not name.strip():
        raise InvalidArgument(
            "the property 'ugi' has no user; write it as 'user' or 'user:group,group'", key="source.option"
        )
    return (name.strip(), [each.strip() for each in groups.split(",") if each.strip()]) if given else None


def _catalog(request: SourceRequest, files: Files, metastore: _Metastore) -> Catalog:
    class Guarded(HiveCatalog):
        @staticmethod
        def _create_hive_client(properties: dict[str, str]) -> Any:  # noqa: ARG004
            return metastore

        def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
            database = self.identifier_to_database(namespace, NoSuchNamespaceError)
            with self._client as client:
                names = client.get_all_tables(database)
                if not names and database.lower() not in client.get_all_databases():
                    raise NoSuchNamespaceError(database)
                found: list[Identifier] = []
                for start in range(0, len(names), _BATCH):
                    asked = names[start : start + _BATCH]
                    iceberg = {
                        each.tableName for each in _tables(client, database, asked) if is_iceberg(each.parameters or {})
                    }
                    found += [(database, name) for name in asked if name in iceberg]
                return found

        def _get_hive_table(self, open_client: Client, database_name: str, table_name: str) -> HiveTable:
            found = _answered(
                lambda: open_client.get_table_req(GetTableRequest(dbName=database_name, tblName=table_name)).table,
                lambda: open_client.get_table(database_name, table_name),
            )
            if found.tableName != table_name:  # a connector with this name would find no table in the list
                raise NotFound(
                    f"source {request.address!r} has no table {table_name!r}, but {found.tableName!r}: Hive stores names in lower case",
                    key="table.not_found",
                )
            return found

        def _convert_hive_into_iceberg(self, table: HiveTable) -> Table:
            """Read the metadata of a table through `files`, which checks its location."""
            name = (table.dbName, table.tableName)
            metadata = metadata_file_of(
                name, table.parameters or {}, service="the Hive Metastore", kind=table.tableType
            )
            try:
                location(metadata)
            except InvalidArgument as error:
                raise Unsupported(
                    f"the metadata of table {'.'.join(name)!r} cannot be read: {error.message}",
                    key="table.feature",
                    table=".".join(name),
                    feature="location",
                ) from error
            return read_table(files, self, name, metadata)

    return Guarded(request.name)


def _tables(client: Client, database: str, names: list[str]) -> list[HiveTable]:
    return _answered(
        lambda: client.get_table_objects_by_name_req(GetTablesRequest(dbName=database, tblNames=names)).tables,
        lambda: client.get_table_objects_by_name(database, names),
    )


def _answered(current: Callable[[], T], old: Callable[[], T]) -> T:
    """The answer to the `current` form of a call. Hive 2.1 and older have only the `old` one, and Hive 4 does not have that."""
    try:
        return current()
    except TApplicationException as error:
        if error.type != TApplicationException.UNKNOWN_METHOD:
            raise
    return old()


class _Metastore(threading.local):
    """A client of the metastore in a `with` block, which has a connection of its own. Threads can share it."""

    def __init__(self, connect: Callable[[], socket.socket], user: tuple[str, list[str]] | None) -> None:
        self._connect, self._user = connect, user
        self._open = ExitStack()

    def __enter__(self) -> Client:
        with ExitStack() as stack:
            connection = stack.enter_context(closing(_Connection(self._connect())))
            client = Client(_LimitedProtocol(connection, string_length_limit=_MAX_ANSWER))
            if self._user:
                client.set_ugi(*self._user)
            self._open = stack.pop_all()
        return client

    def __exit__(self, *_: object) -> None:
        self._open.close()


class _Connection(TTransportBase):  # type: ignore[misc]
    """A connection on which each answer has a deadline and limits."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._request, self._received = bytearray(), bytearray()
        self._deadline, self._bytes_left, self._values_left = 0.0, 0, 0

    def write(self, buf: bytes) -> None:
        self._request += buf

    def flush(self) -> None:
        """Send the request, and expect its answer."""
        request, self._request = bytes(self._request), bytearray()
        self._deadline = time.monotonic() + ANSWER_S
        self._bytes_left, self._values_left = _MAX_ANSWER, _MAX_VALUES
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(request)

    def readAll(self, sz: int) -> bytes:  # noqa: N802 - the name is Thrift's
        self._bytes_left -= sz
        if self._bytes_left < 0:
            raise _too_large(f"{_MAX_ANSWER >> 20} MiB")
        while len(self._received) < sz:
            self._received += self._block()
        found = bytes(self._received[:sz])
        del self._received[:sz]
        return found

    def count(self, values: int) -> None:
        """Count what will become objects, before any of them is created."""
        self._values_left -= values
        if self._values_left < 0:
            raise _too_large(f"{_MAX_VALUES:,} values")

    def _block(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no complete answer within {ANSWER_S:g} s")
        self._socket.settimeout(left)
        block = self._socket.recv(_BLOCK_BYTES)
        if not block:
            raise ConnectionError("the metastore closed the connection")
        return block

    def close(self) -> None:
        self._socket.close()


class _LimitedProtocol(TBinaryProtocol):  # type: ignore[misc]
    """Thrift's binary protocol, which counts structs and elements."""

    trans: _Connection

    def readStructBegin(self) -> None:  # noqa: N802 - the name is Thrift's
        self.trans.count(1)

    def _check_container_length(self, length: int) -> None:
        super()._check_container_length(length)
        self.trans.count(length)


def _too_large(limit: str) -> LimitExceeded:
    return LimitExceeded(
        f"an answer of the Hive Metastore has more than {limit}, and was not read", key="metadata.decoded_size"
    )


@contextmanager
def _as_pyiceberg(source: str) -> Iterator[None]:
    """Run a block in which errors of Thrift and of the metastore become those that other catalogs raise."""
    try:
        yield
    except (NoSuchObjectException, UnknownDBException) as error:  # about a table or a database
        raise NoSuchNamespaceError(first_lines(error)) from error
    except (TProtocolException, TTransportException, UnicodeDecodeError) as error:
        raise PreconditionFailed(
            f"source {source!r} does not answer like a Hive Metastore; the address is that of its Thrift service, without "
            "Kerberos, TLS and HTTP",
            key="source.rejected",
            detail=first_lines(error),
        ) from error
    except TException as error:
        raise PreconditionFailed(
            f"source {source!r} rejected the request ({type(error).__name__}); check the properties of the connector and the log "
            "of the metastore",
            key="source.rejected",
            detail=first_lines(error),
        ) from error
