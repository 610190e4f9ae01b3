"""A Hive Metastore in this process with the calls that sources make. It stores names in lower case, as Hive does."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hive_metastore.ThriftHiveMetastore import Processor
from hive_metastore.ttypes import (
    GetTableResult,
    GetTablesResult,
    MetaException,
    NoSuchObjectException,
    Table,
    UnknownDBException,
)
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TTransport import TFileObjectTransport

CURRENT = ("get_table_req", "get_table_objects_by_name_req")
OLD = ("get_table", "get_table_objects_by_name")


@dataclass
class HiveService:
    """The tables by database and name. `without` are calls that this version of Hive does not have.

    With a `failure`, each call about tables returns this error. `calls` are the names of the calls, and `users` those of `set_ugi`.
    """

    address: str = ""
    databases: dict[str, dict[str, Table]] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    failure: str = ""
    calls: list[str] = field(default_factory=list)
    users: list[tuple[str, list[str]]] = field(default_factory=list)

    def add(self, full_name: str, parameters: dict[str, str] | None, kind: str = "EXTERNAL_TABLE") -> None:
        database, name = full_name.split(".")
        tables = self.databases.setdefault(database, {})
        tables[name] = Table(dbName=database, tableName=name, parameters=parameters, tableType=kind)

    def add_iceberg(self, full_name: str, metadata: str) -> None:
        self.add(full_name, {"table_type": "ICEBERG", "metadata_location": metadata})

    # --- the calls of Hive --------------------------------------------------------------------------------------------

    def set_ugi(self, user_name: str, group_names: list[str]) -> list[str]:
        self.users.append((user_name, group_names))
        return group_names

    def get_all_databases(self) -> list[str]:
        return list(self.databases)

    def get_all_tables(self, db_name: str) -> list[str]:
        if self.failure:
            raise MetaException(self.failure)
        return list(self.databases.get(db_name.lower(), ()))

    def get_table_req(self, req: Any) -> GetTableResult:
        return GetTableResult(self.get_table(req.dbName, req.tblName))

    def get_table(self, dbname: str, tbl_name: str) -> Table:
        try:
            return self.databases[dbname.lower()][tbl_name.lower()]
        except KeyError:
            raise NoSuchObjectException(f"{dbname}.{tbl_name} table not found") from None

    def get_table_objects_by_name_req(self, req: Any) -> GetTablesResult:
        return GetTablesResult(self.get_table_objects_by_name(req.dbName, req.tblNames))

    def get_table_objects_by_name(self, dbname: str, tbl_names: list[str]) -> list[Table]:
        if dbname.lower() not in self.databases:
            raise UnknownDBException(dbname)
        return [self.get_table(dbname, each) for each in tbl_names]


@contextmanager
def running_hive() -> Iterator[HiveService]:
    service = HiveService()

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            processor = Processor(service)
            for name in service.without:
                del processor._processMap[name]
            processor.on_message_begin(lambda name, *_: service.calls.append(name))
            with self.request.makefile("rwb") as file:
                protocol = TBinaryProtocol(TFileObjectTransport(file))
                try:
                    while True:
                        processor.process(protocol, protocol)
                except EOFError:
                    return

    with accepting(Connection) as service.address:
        yield service


@contextmanager
def accepting(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """The address of a server that handles each connection in a thread."""

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"thrift://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
