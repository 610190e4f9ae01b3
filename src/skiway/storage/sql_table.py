"""The pointers as a SQL table: its columns, and the statements over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
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
    or_,
    select,
    tuple_,
)
from sqlalchemy.sql.dml import ReturningDelete

from skiway.storage.clock import from_micros, to_micros
from skiway.storage.keys import KeyParts, key_range
from skiway.storage.pointers import Pointer, Put

__all__ = ["Asked", "PointerTable", "identities", "identity", "to_pointer", "to_row"]

Asked: TypeAlias = tuple[Select[*tuple[Any, ...]], dict[str, Any]]
"""A statement, always the same for the same question, and its parameters."""


class PointerTable:
    """Statements over `skiway_pointers`, built once; `insert` is the dialect's INSERT, which knows ON CONFLICT."""

    def __init__(self, insert: Callable[[Table], Any], *, schema: str | None = None) -> None:
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
            # The key is head + tail; see skiway.storage.keys. As bytes, they sort alike under every locale.
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
        Index("skiway_pointers_expiry", columns.expires_at_us, sqlite_where=expiring, postgresql_where=expiring)

        self._identity = tuple_(columns.head, columns.tail_digest)
        self._order = tuple_(columns.head, columns.tail)
        self._all = select(columns.head, columns.tail, columns.blob_uri, columns.version, columns.expires_at_us)
        self._is_this = and_(
            columns.head == bindparam("this_head"), columns.tail_digest == bindparam("this_tail_digest")
        )
        self.one = self._all.where(self._is_this)
        # Two lists rather than one of pairs, which SQLite would compare with every row; it may find some more.
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
        self.format = select(self.formats.c.version).where(self.formats.c.id == 1)

    def page(self, prefix: str, *, after: str, limit: int, now: datetime) -> Asked:
        """The first live pointers under `prefix` that follow `after`, in order."""
        parameters = _within(prefix, after, now) | {"most": limit}
        return (self._page if "high_head" in parameters else self._page_to_end), parameters

    def count(self, prefix: str, *, now: datetime) -> Asked:
        """How many live pointers are under `prefix`."""
        parameters = _within(prefix, "", now)
        return (self._count if "high_head" in parameters else self._count_to_end), parameters

    def purge(self, limit: int, *, now: datetime) -> ReturningDelete[int]:
        """Delete up to `limit` expired pointers, but for those that another transaction works on; a row for each."""
        columns = self.pointers.c
        expired = columns.expires_at_us <= to_micros(now)
        candidates = select(columns.head, columns.tail_digest).where(expired).limit(limit)
        # A named query runs once; a plain subquery may run once per row, each time with a limit of its own.
        chosen = candidates.with_for_update(skip_locked=True).cte("chosen")
        # Said twice, because a row may be set anew between being chosen and being deleted.
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
    """The parameters that say which pointer `one` and `remove` mean."""
    parts = KeyParts.of(key.encode())
    return {"this_head": parts.head, "this_tail_digest": parts.tail_digest}


def identities(keys: Iterable[str]) -> dict[str, list[bytes]]:
    """The parameters that say which pointers `several` means."""
    parts = [KeyParts.of(key.encode()) for key in keys]
    return {"heads": [each.head for each in parts], "tail_digests": list({each.tail_digest for each in parts})}


def to_row(put: Put) -> dict[str, Any]:
    """The row that `put` leaves."""
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
    """The pointer in a row of `one`, `several` or `page`."""
    head, tail, blob_uri, version, expires_at_us = row
    expires_at = None if expires_at_us is None else from_micros(expires_at_us)
    return Pointer(KeyParts(head, tail).key, blob_uri, version, expires_at)
