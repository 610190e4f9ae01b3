"""Queries of callers: a client for each caller, the first rows of a result, and values as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from skiway import __version__
from skiway.client import AirportClient, Metastore
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from duckdb.sqltypes import DuckDBPyType

MAX_CLIENTS: Final = 200
TIMEOUT_S: Final = 60.0


class OpenClients:
    """Opens clients of the server at a location, and keeps them for the next call of the same caller.

    `engine` tells the server what calls, for the audit log, the events and the history of queries.
    """

    def __init__(self, location: str, engine: str = "") -> None:
        self._location, self._engine = location, engine
        self._metastores = _Opened[str, Metastore](
            lambda token: _named(Metastore(location, token=token or None, timeout_s=TIMEOUT_S), engine)
        )
        self._catalogs = _Opened[tuple[str, str], AirportClient](
            lambda named: AirportClient(location, named[1], token=named[0] or None, timeout_s=TIMEOUT_S, engine=engine)
        )
        self._versions: WeakKeyDictionary[AirportClient, int] = WeakKeyDictionary()

    def metastore(self, token: str) -> Metastore:
        """The metastore, as the caller with the token may see it. Without authentication, the token is empty."""
        return self._metastores.of(token)

    def for_query(self, token: str, catalog: str, query_id: str) -> AirportClient:
        """A new client of a catalog, whose calls have this id in the history. `close` it; `cancel` ends its query."""
        engine = self._engine.removesuffix("-pages")
        ids = lambda: query_id  # noqa: E731
        return AirportClient(
            self._location, catalog, token=token or None, timeout_s=None, brief=True, ids=ids, engine=engine
        )

    def airport(self, token: str, catalog: str) -> AirportClient:
        """A catalog as it is now: clients keep what they know about tables."""
        client = self._catalogs.of((token, catalog))
        now = client.version().version
        if self._versions.get(client) != now:
            client.reload()
            self._versions[client] = now
        return client


def _named(lake: Metastore, engine: str) -> Metastore:
    return lake.with_engine(engine, __version__) if engine else lake


class _Closes(Protocol):
    def close(self) -> None: ...


K = TypeVar("K")
C = TypeVar("C", bound=_Closes)


class _Opened(Generic[K, C]):
    """Clients that are kept open for the next call. The ones that were not used for longest are closed."""

    def __init__(self, connect: Callable[[K], C]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._known: _Closing[K, C] = _Closing(MAX_CLIENTS)

    def of(self, key: K) -> C:
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._connect(key)
            return found


class _Closing(LRUCache[K, C]):
    def popitem(self) -> tuple[K, C]:
        key, client = super().popitem()
        client.close()
        return key, client


MAX_INT64: Final = 2**63 - 1
TEXTS: Final = (
    "bignum",
    "bit",
    "geometry",
    "hugeint",
    "interval",
    "time with time zone",
    "time_ns",
    "timestamp_ns",
    "uhugeint",
)
"""DuckDB's types whose values neither Python nor JSON has, in every installation."""
MOMENTS: Final = dict.fromkeys(
    ("date", "timestamp", "timestamp_s", "timestamp_ms", "timestamp with time zone"), "VARCHAR"
)


def first_rows(lake: AirportClient, sql: str, limit: int) -> pa.Table:
    """The first rows of a query. The server stops as soon as they are here."""
    with lake.call(("skiway", "query"), sql) as rows:
        batches, count = [], 0
        for batch in rows:
            batches.append(batch[: limit - count])
            count += batches[-1].num_rows
            if count >= limit:
                break
        return with_whole_numbers(pa.Table.from_batches(batches, rows.schema))


def with_whole_numbers(rows: pa.Table) -> pa.Table:
    """The rows with columns of DuckDB's 128-bit integers, such as sums of BIGINT, as numbers: Arrow has them as bytes."""
    for place, field in enumerate(rows.schema):
        name = field.type.type_name if isinstance(field.type, pa.OpaqueType) else ""
        if name in ("hugeint", "uhugeint"):
            stored = rows.column(place).cast(field.type.storage_type).to_pylist()
            values = [
                None if each is None else int.from_bytes(each, "little", signed=name == "hugeint") for each in stored
            ]
            is_small = all(each is None or abs(each) <= MAX_INT64 for each in values)
            column = pa.array(values, pa.int64() if is_small else pa.decimal256(39))
            rows = rows.set_column(place, pa.field(field.name, column.type), column)
    return rows


def with_texts(rows: pa.Table, types: Collection[str], *, floats: bool = False) -> pa.Table:
    """The rows in types that every program knows: values of these types of DuckDB, at any depth, are text as DuckDB writes it.

    So are moments that Python does not have, such as those before the year 1. With `floats`, FLOAT becomes the DOUBLE with the
    same digits: otherwise 0.1 would be 0.10000000149011612.
    """
    import duckdb

    from skiway.sandbox.syntax import cast_columns

    known = [place for place, field in enumerate(rows.schema) if not pa.types.is_decimal256(field.type)]
    if not known:
        return rows
    columns = [rows.column(place) for place in known]
    with duckdb.connect(config={"threads": 1}) as database:
        relation = database.from_arrow(pa.table(columns, schema=_numbered(rows, known)))
        replaced = [
            {**dict.fromkeys(types, "VARCHAR"), **(MOMENTS if _is_beyond_python(column) else {})} for column in columns
        ]
        kinds = relation.types
        for of_float in ("VARCHAR", "DOUBLE") if floats else ("FLOAT",):
            names = [{"float": of_float, **each} for each in replaced]
            relation = cast_columns(relation, list(map(_type_with, kinds, names)))
        found = relation.to_arrow_table()
    for number, place in enumerate(known):
        rows = rows.set_column(place, found.field(number).with_name(rows.field(place).name), found.column(number))
    return rows


def _type_with(kind: DuckDBPyType, names: Mapping[str, str]) -> str:
    from skiway.sandbox.syntax import type_with

    try:
        return type_with(kind, names)
    except ValueError:  # SQL has no name for a struct without names
        return "VARCHAR"


def _numbered(rows: pa.Table, places: Sequence[int]) -> pa.Schema:
    """The columns at these places, with names that differ."""
    return pa.schema([rows.field(place).with_name(f"c{number}") for number, place in enumerate(places)])


def _is_beyond_python(column: pa.ChunkedArray) -> bool:
    """Whether a column has dates or timestamps that Python does not have."""
    of = column.type
    try:
        if pa.types.is_date(of) or pa.types.is_timestamp(of):
            pc.min_max(column).as_py()
        elif pa.types.is_nested(of):
            column.to_pylist()
    except (OverflowError, ValueError):
        return True
    return False


def json_values(value: Any) -> Any:
    """A value with nothing in it that JSON does not have: times, bytes and other objects are text."""
    return _as_text(msgspec.to_builtins(value, builtin_types=[Decimal], enc_hook=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int | str):  # of a subclass
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, Sequence):
        return list(value)
    return str(value)


def _as_text(value: Any) -> Any:
    """A value in which infinite numbers and decimals are text, the latter without exponents, as in DuckDB."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (list, tuple)):
        return [_as_text(each) for each in value]
    if isinstance(value, dict):
        return {_as_text(key): _as_text(each) for key, each in value.items()}
    return value


def shown_rows(rows: pa.Table) -> dict[str, Any]:
    """The columns and rows of a small table. Names may occur twice, so that rows are lists.

    Values that neither Python nor JSON has, such as intervals and dates BC, are text as DuckDB writes it.
    """
    values = [column.to_pylist() for column in with_texts(rows, TEXTS, floats=True).columns]
    return {
        "columns": [{"name": field.name, "type": shown_type(field)} for field in rows.schema],
        "rows": [list(row) for row in zip(*values, strict=True)],
    }


def shown_type(field: pa.Field) -> str:
    """The type of a column in DuckDB's words, or in Arrow's if DuckDB has none."""
    from skiway.airport.wire.duckdb_sql import duckdb_type  # which loads pyarrow

    if pa.types.is_decimal256(field.type):
        return "HUGEINT"  # which `with_whole_numbers` has converted
    try:
        return duckdb_type(field)
    except InvalidArgument:
        return str(field.type)
