"""Pointers in a SQL database: what SQLite and PostgreSQL share.

A write locks the keys it names, reads them, compares in Python, and writes in the same transaction. The dialects differ
in how they lock and in what their errors mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Select, Table, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import CreateSchema

from skiway.errors import SkiwayError, Unavailable
from skiway.storage.calls import OnCall
from skiway.storage.clock import Clock, utc_now
from skiway.storage.format_version import FORMAT_VERSION, check_format
from skiway.storage.pointers import Delete, Operation, Pointer, PointerStore, Put, require
from skiway.storage.sql_table import PointerTable, identities, identity, to_pointer, to_row

__all__ = ["SqlPointerStore"]

T = TypeVar("T")
Work = Callable[[Connection], T]


class SqlPointerStore(PointerStore):
    """Pointers in the table `skiway_pointers`, made when missing; the format's number is in `skiway_format`."""

    def __init__(
        self,
        engine: Engine,
        *,
        insert: Callable[[Table], Any],
        schema: str | None = None,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
    ) -> None:
        super().__init__(clock=clock, on_call=on_call)
        self._name = engine.url.render_as_string(hide_password=True)
        self._engine = engine
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._table = PointerTable(insert, schema=schema)
        try:
            self._write(self._prepare, keys=())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _get(self, key: str) -> Pointer | None:
        rows = self._rows(self._table.one, identity(key))
        return to_pointer(rows[0]) if rows else None

    def _apply(self, batch: Sequence[Operation]) -> None:
        def write(connection: Connection) -> None:
            found, now = self._current(connection, batch), self._clock()
            for operation in batch:
                require(operation, found.get(operation.key), now)
            if rows := [to_row(operation) for operation in batch if isinstance(operation, Put)]:
                connection.execute(self._table.upsert, rows)
            if gone := [identity(operation.key) for operation in batch if isinstance(operation, Delete)]:
                connection.execute(self._table.remove, gone)

        self._write(write, keys=[operation.key for operation in batch])

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        rows = self._rows(*self._table.page(prefix, after=after, limit=limit, now=now))
        return [to_pointer(row) for row in rows]

    def _count(self, prefix: str, *, now: datetime) -> int:
        return int(self._rows(*self._table.count(prefix, now=now))[0][0])

    def _purge(self, limit: int, *, now: datetime) -> int:
        statement = self._table.purge(limit, now=now)
        return self._write(lambda connection: len(connection.execute(statement).all()), keys=())

    def _current(self, connection: Connection, batch: Sequence[Operation]) -> dict[str, Pointer]:
        if len(batch) == 1:
            rows = connection.execute(self._table.one, identity(batch[0].key))
        else:
            rows = connection.execute(self._table.several, identities(operation.key for operation in batch))
        return {pointer.key: pointer for pointer in map(to_pointer, rows)}

    def _prepare(self, connection: Connection) -> None:
        table = self._table
        schema = table.metadata.schema
        # Asked before made: whoever may only read and write rows can still open a store that is there.
        if schema is not None and schema not in inspect(connection).get_schema_names():
            connection.execute(CreateSchema(schema, if_not_exists=True))
        table.formats.create(connection, checkfirst=True)
        connection.execute(table.first_format, {"id": 1, "version": str(FORMAT_VERSION)})
        check_format(connection.execute(table.format).scalar_one(), self._name)
        table.pointers.create(connection, checkfirst=True)

    def _rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """What a question that is asked all the time is answered, as of now."""

        def read() -> Sequence[Sequence[Any]]:
            with self._autocommit.connect() as connection:
                return connection.execute(statement, parameters).all()

        return self._translated(read)

    def _write(self, work: Work[T], *, keys: Sequence[str]) -> T:
        return self._translated(lambda: self._transact(work, keys=keys))

    def _translated(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, its errors in our own words."""
        try:
            return attempt()
        except DBAPIError as error:
            raise self._error(error) from error
        except PoolTimeoutError as error:
            raise Unavailable(
                f"all connections to {self._name} are in use: try again later", key="store.busy"
            ) from error

    @abstractmethod
    def _transact(self, work: Work[T], *, keys: Sequence[str]) -> T:
        """Do `work` in a transaction that no other write to `keys` overlaps."""

    @abstractmethod
    def _error(self, error: DBAPIError) -> SkiwayError:
        """What the driver's `error` means to a caller."""
