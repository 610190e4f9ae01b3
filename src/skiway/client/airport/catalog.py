"""Answers of a server as its clients may find them.

The server's own messages (`airport.wire.payloads`) say `bytes` where bytes belong. A client must be laxer: DuckDB's
takes MessagePack `str` and `bin` alike, so servers in some languages send either. Such members are `Binary` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, Protocol, TypeVar

import msgspec
import pyarrow as pa

from skiway.airport.wire.payloads import Binary, VersionInfo
from skiway.errors import InvalidArgument, NotFound
from skiway.model.flight_pb2 import FlightDescriptor

__all__ = [
    "ROWID",
    "ContentsAnswer",
    "Function",
    "FunctionKind",
    "ObjectAnswer",
    "RootAnswer",
    "Schema",
    "SchemaAnswer",
    "Table",
    "TableName",
    "first",
    "read_schema",
]

NIL: Final = Binary(b"\xc0")


class ContentsAnswer(msgspec.Struct, frozen=True):
    """Where the objects of a schema are."""

    sha256: str = ""
    url: str | None = None
    serialized: Binary = NIL


class SchemaAnswer(msgspec.Struct, frozen=True):
    """One schema in `list_schemas`."""

    name: str
    contents: ContentsAnswer
    description: str = ""
    tags: dict[str, str] = {}


class RootAnswer(msgspec.Struct, frozen=True):
    """Answer of `list_schemas`, inside an envelope."""

    schemas: list[SchemaAnswer]
    version_info: VersionInfo
    contents: ContentsAnswer = ContentsAnswer()


class ObjectAnswer(msgspec.Struct, frozen=True):
    """`app_metadata` of a FlightInfo, as far as it is of use here."""

    type: str
    catalog: str
    schema: str
    name: str
    comment: str | None = None
    input_schema: Binary = NIL
    description: str | None = None


# --------------------
# What a catalog holds: schemas, tables, functions.


FunctionKind = Literal["scalar_function", "table_function"]
TableName = str | tuple[str, str]  # of a function, too
ROWID: Final = "rowid"


@dataclass(frozen=True)
class Table:
    """A table. `schema` has all its columns; the row id among them, if there is one, is no column to DuckDB."""

    schema_name: str
    name: str
    schema: pa.Schema
    comment: str = ""
    descriptor: FlightDescriptor = field(default_factory=FlightDescriptor, repr=False, compare=False)

    @property
    def has_statistics(self) -> bool:
        """Whether DuckDB would ask for statistics of its columns."""
        return bool((self.schema.metadata or {}).get(b"can_produce_statistics"))

    @cached_property
    def rowid(self) -> int | None:
        """Position of the row id in `schema`."""
        marked = (i for i, column in enumerate(self.schema) if (column.metadata or {}).get(b"is_rowid"))
        return next(marked, None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The visible columns."""
        return tuple(name for position, name in enumerate(self.schema.names) if position != self.rowid)

    def position(self, column: str) -> int:
        """Where a column is in `schema`; `rowid` is the row id, whatever its field is called. Case does not matter."""
        if column.lower() == ROWID and self.rowid is not None:
            return self.rowid
        found = first_named(column, enumerate(self.schema.names))
        if found is None:
            known = ", ".join(map(repr, self.columns))
            raise NotFound(f"column {column!r} not found in {self}; it has {known}", key="column", column=column)
        return found

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


@dataclass(frozen=True)
class Function:
    """A function; several of one name are overloads. `parameters` carry their marks as field metadata."""

    schema_name: str
    name: str
    kind: FunctionKind
    parameters: pa.Schema
    returns: pa.Schema
    description: str = ""
    descriptor: FlightDescriptor = field(default_factory=FlightDescriptor, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


@dataclass(frozen=True)
class Schema:
    """A named group of tables and functions."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    functions: tuple[Function, ...] = ()


def read_schema(data: bytes, what: str) -> pa.Schema:
    """The Arrow schema in `data`."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"{what} comes without an Arrow schema") from error


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def first(name: str, items: Iterable[N]) -> N | None:
    """The first of that name, letter by letter if there is one, else without looking at case, as DuckDB does."""
    return first_named(name, ((item, item.name) for item in items))


Item = TypeVar("Item")


def first_named(name: str, items: Iterable[tuple[Item, str]]) -> Item | None:
    """The same for items that carry their name beside them."""
    alike = None
    for item, item_name in items:
        if item_name == name:
            return item
        if alike is None and item_name.lower() == name.lower():
            alike = item
    return alike
