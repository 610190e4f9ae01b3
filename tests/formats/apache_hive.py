"""The metastore of Apache Hive, which is among Spark's jars, with an embedded Derby and tables in a folder."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import DataOperationType, FieldSchema, LockRequest, SerDeInfo, StorageDescriptor, Table
from pyiceberg.catalog.hive import HiveCatalog

from ports import free_port
from runtime.servers import eventually

__all__ = ["ApacheHive", "running_apache_hive"]

STARTS_WITHIN_S = 120.0


class Writer(HiveCatalog):
    """A catalog of PyIceberg that Hive 2.3 accepts: its locks must say that they belong to no transaction."""

    def _create_lock_request(self, database_name: str, table_name: str) -> LockRequest:
        request = super()._create_lock_request(database_name, table_name)
        for each in request.component:
            each.isTransactional, each.operationType = False, DataOperationType.NO_TXN
        return request


@dataclass(frozen=True)
class ApacheHive:
    """A metastore without authentication, and the folder of its tables."""

    port: int
    warehouse: Path

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def writer(self) -> HiveCatalog:
        """The catalog as another program writes it."""
        return Writer("writer", uri=self.uri, warehouse=f"file://{self.warehouse}")

    def add(self, database: str, name: str, *, kind: str = "EXTERNAL_TABLE", **parameters: str) -> None:
        """Add a table of another format, or a view, with one column."""
        descriptor = StorageDescriptor(
            cols=[FieldSchema("id", "bigint", "")],
            location=None if kind == "VIRTUAL_VIEW" else f"file://{self.warehouse}/{name}",
            inputFormat="org.apache.hadoop.mapred.TextInputFormat",
            outputFormat="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
            serdeInfo=SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
        )
        text = "SELECT 1 AS id" if kind == "VIRTUAL_VIEW" else None
        given = {"EXTERNAL": "TRUE", **parameters} if kind == "EXTERNAL_TABLE" else parameters
        client: Client
        with self.writer()._client as client:
            client.create_table(
                Table(
                    dbName=database,
                    tableName=name,
                    sd=descriptor,
                    partitionKeys=[],
                    parameters=given,
                    tableType=kind,
                    viewOriginalText=text,
                    viewExpandedText=text,
                )
            )


@contextmanager
def running_apache_hive(folder: Path) -> Iterator[ApacheHive]:
    from skiway.spark_jobs.java import ensure_java

    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    server = ApacheHive(free_port(), folder / "warehouse")
    server.warehouse.mkdir(parents=True)
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/derby;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "HikariCP",  # the default is not among Spark's jars
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file://{server.warehouse}",
        "hive.metastore.thrift.bind.host": "127.0.0.1",
        "hive.async.log.enabled": "false",  # as this is not
        "hive.in.tez.test": "true",  # otherwise the tables for locks must be created by hand
    }
    command = [
        *(str(ensure_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"-Dderby.stream.error.file={folder}/derby.log", f"-Dhive.log.dir={folder}"),
        *("-cp", f"{Path(found.origin).parent}/jars/*"),
        *("org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(server.port)),
        *(part for name, value in settings.items() for part in ("--hiveconf", f"{name}={value}")),
    ]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process,
    ):

        def listens() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", server.port)) == 0

        try:
            eventually(listens, within_s=STARTS_WITHIN_S)
            yield server
        finally:
            process.kill()  # nothing in it is needed any more
