"""Tables of other Airport servers, as copies read them: all rows of a table, in one scan, by the worker itself.

The server is not trusted. The client connects to the address that was checked and to no other, whatever the server sends, and validates
the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.client import AirportClient, TlsOptions
from skiway.errors import InvalidArgument, PreconditionFailed, Unauthorized
from skiway.formats import Namespace, TableName
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Changes, CopiedTable, DatabaseSource, NewRows
from skiway.metastore.ingest.positions import Position
from skiway.metastore.ingest.rows import Target, Written, write_rows
from skiway.metastore.jobs.attempts import ONE_FILE, Amounts
from skiway.security.source_access.connections import airport_address
from skiway.spark_jobs.interruption import check_interrupted

if TYPE_CHECKING:
    from skiway.client.airport.calls import Schema
    from skiway.client.airport.results import Rows
    from skiway.client.airport.scans import BoundScan
    from skiway.security.source_access import SourceAccess

_LISTING_S: Final = 60.0
_SCAN_S: Final = 6 * 3600.0
_MAX_MESSAGE: Final = 64 << 20


def open_airport(
    uri: str, *, options: Mapping[str, str], credentials: Mapping[str, str], access: SourceAccess
) -> DatabaseSource:
    """Open the catalog at `uri`, if `access` permits it. Of the credentials, the property `token` is used."""
    if options:
        raise InvalidArgument(f"an Airport server has no property {min(options)!r}: remove it", key="source.option")
    named = airport_address(uri)
    at = named.checked(access)

    def client(timeout_s: float) -> AirportClient:
        return AirportClient(
            at.url,
            at.catalog,
            token=credentials.get("token"),
            tls=TlsOptions(server_name=named.host) if at.scheme == "grpc+tls" else None,
            timeout_s=timeout_s,
            max_message_bytes=_MAX_MESSAGE,
            trusted=False,
        )

    return AirportSource(client(_LISTING_S), client(_SCAN_S))


class AirportSource(DatabaseSource):
    """The catalog of a server. Its schemas are namespaces."""

    kind = "an Airport server"

    def __init__(self, listing: AirportClient, scans: AirportClient) -> None:
        self._listing, self.scans = listing, scans

    def namespaces(self) -> list[Namespace]:
        return sorted((each.name,) for each in self._schemas())

    def names(self) -> list[TableName]:
        return [TableName((schema.name,), table.name) for schema in self._schemas() for table in schema.tables]

    def copied(self, name: TableName) -> CopiedTable:
        return AirportTable(self, name)

    def close(self) -> None:
        self._listing.close()
        self.scans.close()

    def _schemas(self) -> list[Schema]:
        try:
            return self._listing.schemas()
        except Unauthorized as error:
            raise Unauthorized(
                "the Airport server refused the token of the connector: correct the credentials",
                key="source.credentials",
            ) from error


@dataclass(frozen=True, slots=True)
class AirportTable:
    """A table of a server."""

    source: AirportSource
    name: TableName

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:  # noqa: ARG002
        """All rows, because a server does not say which ones have changed."""
        if rules.mode != CopyMode.REPLACE:
            raise PreconditionFailed(
                f"{self.name} can only be copied in the mode replace: an Airport server does not say which rows have changed",
                key="ingest.mode",
            )
        (schema,) = self.name.namespace
        return AirportChanges(self.source.scans.bind((schema, self.name.name)))


@dataclass(frozen=True, slots=True)
class AirportChanges:
    """The rows of a scan."""

    scan: BoundScan
    replaces: bool = True
    amounts: Amounts = ONE_FILE
    position: Position = field(default_factory=dict)

    def columns(self) -> pa.Schema:
        """The columns of the table."""
        return self.scan.schema

    def steps(self, step_bytes: int, *, growing: bool) -> list[AirportChanges]:  # noqa: ARG002
        """One step: a scan has no position."""
        return [self]

    def write(self, target: Target, keys: pa.Schema) -> NewRows:  # noqa: ARG002 - replaced rows need no keys
        """Read and write the rows. A cancelled job stops at the next batch."""

        def batches(rows: Rows) -> Iterable[pa.RecordBatch]:
            for batch in rows:
                check_interrupted()
                yield batch

        with self.scan.read() as rows:
            written = write_rows(target, batches(rows))
        return NewRows(Written(written.files, written.rows, {"kind": "all"}))
