"""Writing with the JSON contract: INSERT and UPDATE over DoPut, DELETE as an action, each described by a JSON command.

This is a simpler protocol for programs that are not Airport clients. Columns must have exactly the table's types, row ids
are a list, and the rows of RETURNING arrive in one message.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from skiway.airport.wire import headers
from skiway.airport.wire.frames import FrameWriter
from skiway.airport.wire.payloads import decode
from skiway.client.airport.calls import Calls, TransactionContext
from skiway.client.airport.catalog import TableName, name_splits
from skiway.client.airport.exchange import Written, in_vectors, to_batches
from skiway.client.connection import parse_message
from skiway.client.errors import blame_server
from skiway.errors import Internal, InvalidArgument, NullRowId
from skiway.model.flight_pb2 import FlightDescriptor, PutResult

__all__ = ["JsonWriter"]


class _Outcome(msgspec.Struct, frozen=True):
    status: str
    affected_rows: int
    returning_data: str | None = None


class JsonWriter:
    """Statements of the JSON contract. Inside a `transaction()` they carry its id."""

    def __init__(self, calls: Calls, transaction: Callable[[], TransactionContext]) -> None:
        self._calls = calls
        self._transaction = transaction

    def insert(self, table: TableName, rows: Any, *, returning: bool = False) -> Written:
        """Insert rows, which must have all columns of the table in its types."""
        return self._put(_command(table, returning=returning, operation="insert"), rows)

    def update(self, table: TableName, row_ids: Sequence[int], rows: Any, *, returning: bool = False) -> Written:
        """Replace the rows with these ids by `rows`, one for each id, which must have all columns of the table."""
        return self._put(_command(table, returning=returning, operation="update", row_ids=_id_list(row_ids)), rows)

    def delete(self, table: TableName, row_ids: Sequence[int], *, returning: bool = False) -> Written:
        """Delete the rows with these ids."""
        body = self._text(_command(table, returning=returning, row_ids=_id_list(row_ids)))
        response = self._calls.plain_action("delete", body, self._headers())
        try:
            return self._written(msgspec.json.decode(response, type=_Outcome))
        except msgspec.DecodeError as error:
            raise Internal(f"{self._location} sent a malformed response to delete") from error

    @property
    def _location(self) -> str:
        return self._calls.connection.location.text

    def _headers(self) -> list[tuple[str, str]]:
        transaction = self._transaction()
        found = [(headers.JSON_TRANSACTION_ID, transaction.id)] if transaction.id else []
        return [*found, (headers.AUTO_COMMIT, "0")] if transaction.explicit else found

    def _text(self, command: dict[str, Any]) -> bytes:
        named = {**command, "catalog_name": self._calls.catalog} if self._calls.catalog else command
        return json.dumps(named).encode()

    def _put(self, command: dict[str, Any], rows: Any) -> Written:
        schema, batches = to_batches(rows)
        if schema is None:
            raise InvalidArgument("rows contain no batch: give at least an empty one, which defines the columns")
        descriptor = FlightDescriptor(type=FlightDescriptor.CMD, cmd=self._text(command)).SerializeToString()
        writer = FrameWriter(schema)
        with contextlib.closing(self._calls.put(self._headers())) as stream:
            stream.send(writer.begin(descriptor=descriptor))
            for batch in in_vectors(batches):
                for frame in writer.batch(batch):
                    stream.send(frame)
            stream.half_close()
            responses = list(stream)
        if not responses:
            raise Internal(f"{self._location} sent no result for DoPut", key="answer.missing")
        with blame_server(self._location, "DoPut"):
            return self._written(
                decode(parse_message(PutResult, responses[0], self._location).app_metadata, _Outcome, "DoPut")
            )

    def _written(self, outcome: _Outcome) -> Written:
        if outcome.returning_data is None:
            return Written(outcome.affected_rows)
        try:
            with pa.ipc.open_stream(base64.b64decode(outcome.returning_data)) as reader:
                return Written(outcome.affected_rows, reader.read_all())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Internal(f"{self._location} returned rows that are not a base64-encoded Arrow stream") from error


def _command(table: TableName, *, returning: bool, **more: Any) -> dict[str, Any]:
    schema, name = name_splits(table)[0]
    return {"schema_name": schema, "table_name": name, "returning": returning, **more}


def _id_list(row_ids: Iterable[Any]) -> list[int]:
    """Return the ids as a list of integers."""
    ids = row_ids.to_pylist() if isinstance(row_ids, pa.Array | pa.ChunkedArray) else list(row_ids)
    if None in ids:
        raise NullRowId
    if any(not isinstance(row_id, int) or isinstance(row_id, bool) for row_id in ids):
        raise InvalidArgument("row ids must be integers")
    return ids
