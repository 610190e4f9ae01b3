"""CREATE [OR REPLACE] TABLE … AS: a table that comes into being, or replaces another, with its first rows.

Until they are there it is nothing but its binding, which says how it is to be made: any server can go on from there, and
a client that vanishes has changed nothing.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec
import pyarrow as pa

from skiway.airport import Bindable, ScanOptions, Statement, Table, Writable, Write
from skiway.airport.writing import Operation
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.types import arrow_schema, iceberg_schema
from skiway.lake.columns import Columns, columns_of
from skiway.lake.inserting import InsertRows, Target

__all__ = ["Awaited", "AwaitedTable"]

_MARK: Final = "rows-follow:"
_MOST_BYTES: Final = 4 << 20  # a binding is written by a client


class Awaited(msgspec.Struct, frozen=True, array_like=True):
    """How the table is to be made."""

    columns: bytes  # as a serialised Arrow schema
    replace: bool
    comment: str = ""

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.columns))

    @property
    def properties(self) -> dict[str, str]:
        """Those that the table is to have."""
        return {"comment": self.comment} if self.comment else {}

    def binding(self) -> str:
        """The same as a text that clients keep and give back."""
        return _MARK + urlsafe_b64encode(zlib.compress(msgspec.msgpack.encode(self))).decode()

    @classmethod
    def of(cls, binding: str) -> Awaited | None:
        """What a binding says; None for one of a table that is there."""
        if not binding.startswith(_MARK):
            return None
        try:
            packed = urlsafe_b64decode(binding.removeprefix(_MARK))
            awaited = msgspec.msgpack.decode(zlib.decompressobj().decompress(packed, _MOST_BYTES), type=cls)
            _ = awaited.schema
        except (ValueError, zlib.error, msgspec.MsgspecError, pa.ArrowException, OSError) as error:
            raise InvalidArgument("this is no table of this server: CREATE it anew", key="table.binding") from error
        return awaited


class AwaitedTable(Table, Bindable, Writable):
    """A table to be; it takes one INSERT. `target` prepares where the rows go, when they begin to come."""

    operations: frozenset[Operation] = frozenset({"insert"})

    def __init__(self, name: str, awaited: Awaited, target: Callable[[], Target]) -> None:
        self.name, self.comment = name, awaited.comment
        self._awaited, self._target = awaited, target

    @cached_property
    def _columns(self) -> Columns:
        return columns_of(arrow_schema(iceberg_schema(self._awaited.schema)).json)

    @property
    def schema(self) -> pa.Schema:
        """Its columns, without row ids: there are no rows."""
        return pa.schema(list(self._columns.announced)[:-1])

    def binding(self) -> str:
        """How it is to be made."""
        return self._awaited.binding()

    def bound(self, binding: str) -> AwaitedTable:  # noqa: ARG002
        """Itself: it was found by its binding."""
        return self

    def scan(self, options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """Refused."""
        raise PreconditionFailed(f"table {self.name!r} waits for its first rows: INSERT them", key="table.awaited")

    def write(self, write: Write) -> Statement:
        """Begin to take the rows; the table is made when they are all there."""
        target = self._target()
        return InsertRows(target, write, known=columns_of(arrow_schema(target.metadata.schema()).json))
