"""The schema that each client knows, so that no client receives columns that it does not expect.

A client learns the columns of a table when it attaches, and those of a function when it plans a query. It reads batches by
position and does not check them: other columns than it expects are wrong values, or crash it. Whatever a client sends
therefore says which schema it knows:

- The address of a table ends with its binding: a fingerprint of its schema, or the table's own (`Bindable`).
- A ticket has the fingerprint of the schema that its columns were chosen from.
- The address of a function has no room for it, nor has one that a user wrote, because the client compares them. The
  server remembers what it announced under such an address, by the id of the scan that the client sends with every call.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

import pyarrow as pa

from skiway.airport.scan import IS_ROWID, ROWID, find_rowid_column
from skiway.airport.wire.duckdb_sql import with_plain_values, without_dictionaries
from skiway.errors import PreconditionFailed

__all__ = ["Announcements", "as_listed", "as_plain", "fingerprint", "function_changed", "table_changed"]

_TYPE_METADATA: Final = b"ARROW:extension:"  # prefix of the metadata that belongs to the type of a field

# DuckDB plans UPDATE and DELETE only for tables with row ids; without, it fails with an internal error and must be
# restarted. Tables that have none announce one that is always NULL, in the smallest type, and the server rejects the
# statement.
_NO_ROW_IDS: Final = pa.field(ROWID, pa.bool_(), metadata={IS_ROWID: b"1"})


V = TypeVar("V")


class _PerSchema(Generic[V]):
    """Computes a value from a schema once for each schema object. Most tables return the same object every time."""

    def __init__(self, compute: Callable[[pa.Schema], V]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[weakref.ref[pa.Schema], V]] = {}

    def __call__(self, schema: pa.Schema) -> V:
        key = id(schema)
        known = self._known.get(key)
        if known is not None and known[0]() is schema:
            return known[1]
        value = self._compute(schema)
        self._known[key] = weakref.ref(schema, lambda _: self._forget(key)), value
        return value

    def _forget(self, key: int) -> None:
        self._known.pop(key, None)


def as_listed(schema: pa.Schema) -> pa.Schema:
    """The schema under which a listing announces a table: with a row id, and without dictionaries inside of columns."""
    return _listed(schema) or schema


def as_plain(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionaries, which DuckDB's client resolves only in columns of the tables of a listing."""
    return _without(schema) or schema


def fingerprint(schema: pa.Schema) -> str:
    """A short text that is equal for schemas that look the same to clients: names, types, order and NOT NULL.

    Comments, defaults and constraints may change without it.
    """
    return _digests(schema)


def _with_row_id(schema: pa.Schema) -> pa.Schema | None:
    """The schema as it is listed; None if it stays the same, which must not keep itself alive."""
    listed = pa.schema([field.with_type(with_plain_values(field.type)) for field in schema], metadata=schema.metadata)
    if find_rowid_column(schema) is None and all(name.lower() != ROWID for name in schema.names):
        listed = listed.append(_NO_ROW_IDS)
    return None if listed.equals(schema, check_metadata=True) else listed


def _without_dictionaries(schema: pa.Schema) -> pa.Schema | None:
    plain = pa.schema([field.with_type(without_dictionaries(field.type)) for field in schema], metadata=schema.metadata)
    return None if plain.equals(schema) else plain


def _digest(schema: pa.Schema) -> str:
    kept = pa.schema([field.with_metadata(_type_metadata(field)) for field in schema])
    rowid = find_rowid_column(schema)
    data = kept.serialize().to_pybytes() + repr(rowid).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _type_metadata(field: pa.Field) -> dict[bytes, bytes] | None:
    kept = {key: value for key, value in (field.metadata or {}).items() if key.startswith(_TYPE_METADATA)}
    return dict(sorted(kept.items())) or None


_listed: Final = _PerSchema(_with_row_id)
_without: Final = _PerSchema(_without_dictionaries)
_digests: Final = _PerSchema(_digest)


def table_changed(path: object, how: str) -> PreconditionFailed:
    """The error for a client that knows another schema of a table."""
    return PreconditionFailed(
        f"table {str(path)!r}: the table changed ({how}): DETACH and ATTACH again", key="table.changed", table=str(path)
    )


def function_changed(path: object) -> PreconditionFailed:
    """The error for a client that planned a query with another schema of a function."""
    return PreconditionFailed(
        f"function {path}: its columns changed since the query was planned: run the query again", key="function.changed"
    )


class Announcements:
    """The fingerprints that were announced for addresses without a binding; the oldest are forgotten first.

    It does not use `skiway.cache`, whose library a plain install does not have.
    """

    def __init__(self, size: int = 50_000) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._known: OrderedDict[Hashable, str] = OrderedDict()

    def remember(self, key: Hashable, schema: pa.Schema) -> None:
        """Remember that `schema` was announced under `key`."""
        found = fingerprint(schema)
        with self._lock:
            self._known[key] = found
            self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)

    def contradict(self, key: Hashable, schema: pa.Schema) -> bool:
        """Whether another schema than `schema` was announced under `key`; False if it is not known."""
        with self._lock:
            known = self._known.get(key)
        return known is not None and known != fingerprint(schema)
