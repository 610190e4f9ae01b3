"""Pointers in a SQL database: the table and statements that SQLite and PostgreSQL share.

A write locks its keys, reads them, compares versions in Python, and writes in the same transaction. The dialects differ
in how they lock and in what their errors mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    func,
    inspect,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.schema import CreateSchema
from sqlalchemy.sql.dml import ReturningDelete

from skiway.errors import SkiwayError, Unavailable
from skiway.foundation.clock import Clock, from_micros, to_micros, utc_now
from skiway.storage.calls import FORMAT_VERSION, OnCall, StoreFormat, check_version, require_format
from skiway.storage.pointers.store import Delete, KeyParts, Operation, Pointer, PointerStore, Put, key_range, require

T = TypeVar("T")
ROWS_PER_READ: Final = 1000
VERSION, INCOMPLETE = 1, 2  # ids in skiway_format; the second row exists during a migration
Work = Callable[[Connection], T]

Query: TypeAlias = tuple[Select[*tuple[Any, ...]], dict[str, Any]]
"""A statement, reused for all calls of the same kind, and its parameters."""


class PointerTable:
    """The statements on `skiway_pointers`, built once, for `dialect`. `insert` is its INSERT, with ON CONFLICT."""

    def __init__(self, insert: Callable[[Table], Any], *, dialect: str, schema: str | None = None) -> None:
        self.metadata = MetaData(schema=schema)
        self.formats = Table(
            "skiway_format",
            self.metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("version", String(20), nullable=False),
        )
        self.pointers = Table(
            "skiway_pointers",
            self.metadata,
            # The key is head + tail; see skiway.storage.pointers.store. Bytes sort alike under every locale.
            Column("head", LargeBinary, primary_key=True),
            Column("tail_digest", LargeBinary, primary_key=True),
            Column("tail", LargeBinary, nullable=False),
            Column("blob_uri", Text, nullable=False),
            Column("version", BigInteger, nullable=False),
            Column("expires_at_us", BigInteger),
            sqlite_with_rowid=False,
        )
        columns = self.pointers.c
        expiring = columns.expires_at_us.is_not(None)
        # Only for this dialect, because SQLAlchemy imports every dialect that has an option.
        options: dict[str, Any] = {f"{dialect}_where": expiring}
        Index("skiway_pointers_expiry", columns.expires_at_us, **options)

        self._identity = tuple_(columns.head, columns.tail_digest)
        self._order = tuple_(columns.head, columns.tail)
        self._all = select(columns.head, columns.tail, columns.blob_uri, columns.version, columns.expires_at_us)
        self._is_this = and_(
            columns.head == bindparam("this_head"), columns.tail_digest == bindparam("this_tail_digest")
        )
        self.everything = self._all
        self.one = self._all.where(self._is_this)
        # Two lists instead of one of pairs, which SQLite would compare with every row; this may return extra rows.
        self.several = self._all.where(
            columns.head.in_(bindparam("heads", expanding=True)),
            columns.tail_digest.in_(bindparam("tail_digests", expanding=True)),
        )
        self.remove = delete(self.pointers).where(self._is_this)
        upsert = insert(self.pointers)
        self.upsert = upsert.on_conflict_do_update(
            index_elements=[columns.head, columns.tail_digest],
            set_={name: upsert.excluded[name] for name in ("blob_uri", "version", "expires_at_us")},
        )
        live = or_(columns.expires_at_us.is_(None), columns.expires_at_us > bindparam("now_us"))
        from_low = and_(live, self._order >= tuple_(*_bound("low")))
        within = and_(from_low, self._order < tuple_(*_bound("high")))
        page = self._all.order_by(columns.head, columns.tail).limit(bindparam("most"))
        self._page, self._page_to_end = page.where(within), page.where(from_low)
        count = select(func.count()).select_from(self.pointers)
        self._count, self._count_to_end = count.where(within), count.where(from_low)
        self.first_format = insert(self.formats).on_conflict_do_nothing()
        self.format = select(self.formats.c.id, self.formats.c.version)
        self.set_version = update(self.formats).where(self.formats.c.id == VERSION)
        self.forget_incomplete = delete(self.formats).where(self.formats.c.id == INCOMPLETE)

    def page(self, prefix: str, *, after: str, limit: int, now: datetime) -> Query:
        """Select the first live pointers with this prefix whose keys are greater than `after`, in order."""
        parameters = _within(prefix, after, now) | {"most": limit}
        return (self._page if "high_head" in parameters else self._page_to_end), parameters

    def count(self, prefix: str, *, now: datetime) -> Query:
        """Count the live pointers with this prefix."""
        parameters = _within(prefix, "", now)
        return (self._count if "high_head" in parameters else self._count_to_end), parameters

    def purge(self, limit: int, *, now: datetime) -> ReturningDelete[int]:
        """Delete up to `limit` expired pointers, except locked ones; returns a row for each."""
        columns = self.pointers.c
        expired = columns.expires_at_us <= to_micros(now)
        candidates = select(columns.head, columns.tail_digest).where(expired).limit(limit)
        # A CTE runs once; a subquery might run once per row, each time with its own limit.
        chosen = candidates.with_for_update(skip_locked=True).cte("chosen")
        # The condition is repeated, because a row may change between being selected and being deleted.
        purge = delete(self.pointers).where(self._identity.in_(select(chosen.c.head, chosen.c.tail_digest)), expired)
        return purge.returning(columns.version)


def _within(prefix: str, after: str, now: datetime) -> dict[str, Any]:
    low, high = (None if bound is None else KeyParts.of(bound) for bound in key_range(prefix, after))
    assert low is not None
    found: dict[str, Any] = {"now_us": to_micros(now), "low_head": low.head, "low_tail": low.tail}
    return found if high is None else found | {"high_head": high.head, "high_tail": high.tail}


def _bound(name: str) -> tuple[BindParameter[bytes], BindParameter[bytes]]:
    return bindparam(f"{name}_head", type_=LargeBinary), bindparam(f"{name}_tail", type_=LargeBinary)


def identity(key: str) -> dict[str, bytes]:
    """The parameters of `one` and `remove` for a key."""
    parts = KeyParts.of(key.encode())
    return {"this_head": parts.head, "this_tail_digest": parts.tail_digest}


def identities(keys: Iterable[str]) -> dict[str, list[bytes]]:
    """The parameters of `several` for some keys."""
    parts = [KeyParts.of(key.encode()) for key in keys]
    return {"heads": [part.head for part in parts], "tail_digests": list({part.tail_digest for part in parts})}


def to_row(put: Put) -> dict[str, Any]:
    """The row that `put` writes."""
    parts = KeyParts.of(put.key.encode())
    return {
        "head": parts.head,
        "tail_digest": parts.tail_digest,
        "tail": parts.tail,
        "blob_uri": put.blob_uri,
        "version": put.expect + 1,
        "expires_at_us": None if put.expires_at is None else to_micros(put.expires_at),
    }


def to_pointer(row: Sequence[Any]) -> Pointer:
    """Convert a row of `one`, `several` or `page`."""
    head, tail, blob_uri, version, expires_at_us = row
    expires_at = None if expires_at_us is None else from_micros(expires_at_us)
    return Pointer(KeyParts(head, tail).key, blob_uri, version, expires_at)


def _to_format(rows: Sequence[Sequence[Any]]) -> StoreFormat:
    recorded = {row[0]: row[1] for row in rows}
    return StoreFormat(int(recorded[VERSION]), complete=INCOMPLETE not in recorded)


class SqlPointerStore(PointerStore):
    """Stores pointers in the table `skiway_pointers`, created if missing, and the format version in `skiway_format`."""

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
        self._table = PointerTable(insert, dialect=engine.dialect.name, schema=schema)
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
            if deletes := [identity(operation.key) for operation in batch if isinstance(operation, Delete)]:
                connection.execute(self._table.remove, deletes)

        self._write(write, keys=[operation.key for operation in batch])

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        rows = self._rows(*self._table.page(prefix, after=after, limit=limit, now=now))
        return [to_pointer(row) for row in rows]

    def _count(self, prefix: str, *, now: datetime) -> int:
        return int(self._rows(*self._table.count(prefix, now=now))[0][0])

    def _purge(self, limit: int, *, now: datetime) -> int:
        statement = self._table.purge(limit, now=now)
        return self._write(lambda connection: len(connection.execute(statement).all()), keys=())

    def _snapshot(self) -> Iterator[Pointer]:
        """One statement sees the state of one moment, however long its rows are read."""
        try:
            with self._engine.connect() as connection:
                rows = connection.execution_options(yield_per=ROWS_PER_READ).execute(self._table.everything)
                yield from map(to_pointer, rows)
        except DBAPIError as error:
            raise self._error(error) from error

    def _load(self, puts: Iterable[Put]) -> None:
        def write(connection: Connection) -> None:
            rows = map(to_row, puts)
            while batch := list(islice(rows, ROWS_PER_READ)):
                connection.execute(self._table.upsert, batch)

        self._write(write, keys=())

    def _format(self) -> StoreFormat:
        return _to_format(self._rows(self._table.format, {}))

    def _change_format(self, expected: StoreFormat, new: StoreFormat) -> None:
        def write(connection: Connection) -> None:
            table, version = self._table, {"version": str(new.version)}
            require_format(expected, _to_format(connection.execute(table.format).all()))
            connection.execute(table.set_version.values(version))
            connection.execute(table.forget_incomplete)
            if not new.complete:
                connection.execute(table.first_format, {"id": INCOMPLETE, **version})

        self._write(write, keys=())

    def _current(self, connection: Connection, batch: Sequence[Operation]) -> dict[str, Pointer]:
        if len(batch) == 1:
            rows = connection.execute(self._table.one, identity(batch[0].key)).all()
        else:  # statements have a maximum number of parameters
            parts = (batch[first : first + ROWS_PER_READ] for first in range(0, len(batch), ROWS_PER_READ))
            named = (identities(operation.key for operation in part) for part in parts)
            rows = [row for each in named for row in connection.execute(self._table.several, each)]
        return {pointer.key: pointer for pointer in map(to_pointer, rows)}

    def _prepare(self, connection: Connection) -> None:
        table = self._table
        schema = table.metadata.schema
        # Checked first, so that a user without the right to create schemas can open an existing store.
        if schema is not None and schema not in inspect(connection).get_schema_names():
            connection.execute(CreateSchema(schema, if_not_exists=True))
        table.formats.create(connection, checkfirst=True)
        connection.execute(table.first_format, {"id": VERSION, "version": str(FORMAT_VERSION)})
        recorded = {row.id: row.version for row in connection.execute(table.format)}
        check_version(recorded[VERSION], self._name, newest=FORMAT_VERSION)
        table.pointers.create(connection, checkfirst=True)

    def _rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Run a frequent query outside of a transaction; it sees all commits so far."""

        def read() -> Sequence[Sequence[Any]]:
            with self._autocommit.connect() as connection:
                return connection.execute(statement, parameters).all()

        return self._translated(read)

    def _write(self, work: Work[T], *, keys: Sequence[str]) -> T:
        return self._translated(lambda: self._transact(work, keys=keys))

    def _translated(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`; errors of the driver become ours."""
        try:
            return attempt()
        except DBAPIError as error:
            raise self._error(error) from error
        except PoolTimeoutError as error:
            raise Unavailable(
                "all connections to the database are in use; try again later", key="store.busy", detail=self._name
            ) from error

    @abstractmethod
    def _transact(self, work: Work[T], *, keys: Sequence[str]) -> T:
        """Run `work` in a transaction that is serialized with all other writes to `keys`."""

    @abstractmethod
    def _error(self, error: DBAPIError) -> SkiwayError:
        """Convert an error of the driver."""
