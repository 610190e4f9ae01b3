"""The objects of a catalog (schemas, tables and functions), and the messages in which servers describe them.

DuckDB accepts MessagePack `str` and `bin` alike, so servers in some languages send either. The messages here are therefore
more lenient than the server's own in `airport.wire.payloads`: their binary members are `Binary`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, Protocol, TypeVar

import msgspec
import pyarrow as pa

from skiway.airport.wire.payloads import Binary, VersionInfo
from skiway.client.names import split_name
from skiway.errors import InvalidArgument, NotFound
from skiway.model.flight_pb2 import FlightDescriptor

__all__ = [
    "ROWID",
    "ContentsMessage",
    "Function",
    "FunctionKind",
    "ObjectMessage",
    "RootMessage",
    "Schema",
    "SchemaMessage",
    "Table",
    "TableName",
    "find_by_name",
    "name_splits",
    "read_schema",
]

NIL: Final = Binary(b"\xc0")


class ContentsMessage(msgspec.Struct, frozen=True):
    """The contents of a schema: inline, at a URL, or by hash in the bundle of all schemas."""

    sha256: str = ""
    url: str | None = None
    serialized: Binary = NIL


class SchemaMessage(msgspec.Struct, frozen=True):
    """One schema in the response to `list_schemas`."""

    name: str
    contents: ContentsMessage
    description: str = ""
    tags: dict[str, str] = {}


class RootMessage(msgspec.Struct, frozen=True):
    """The response to `list_schemas`, inside its envelope."""

    schemas: list[SchemaMessage]
    version_info: VersionInfo
    contents: ContentsMessage = ContentsMessage()


class ObjectMessage(msgspec.Struct, frozen=True):
    """The `app_metadata` of a FlightInfo, with the members that the client uses."""

    type: str
    catalog: str
    schema: str
    name: str
    comment: str | None = None
    input_schema: Binary = NIL
    description: str | None = None


FunctionKind = Literal["scalar_function", "table_function"]
TableName = str | tuple[str, str]
"""The name of a table or function: `"schema.table"`, with a part in double quotes if needed, or a tuple of both."""
ROWID: Final = "rowid"


def name_splits(name: TableName) -> list[tuple[str, str]]:
    """Return how a name can be split into schema and table: a dot outside of double quotes can belong to either.

    >>> name_splits('csv."two words"')
    [('csv', 'two words')]
    >>> name_splits("a.b.c")
    [('a.b', 'c'), ('a', 'b.c')]
    """
    if not isinstance(name, str):
        return [name]
    parts = split_name(name)
    if parts is None:
        raise InvalidArgument(
            f'{name!r} is not a valid name: put a part with quotes in double quotes, as in csv."two words", and write "" '
            "for a quote inside it; or give a tuple of schema and table",
            key="name.malformed",
        )
    if len(parts) < 2:
        raise InvalidArgument(f"{name!r} names no schema: write 'schema.table', or a tuple of both")
    return [(".".join(parts[:i]), ".".join(parts[i:])) for i in range(len(parts) - 1, 0, -1)]


@dataclass(frozen=True)
class Table:
    """A table. `schema` has all columns including the row id, if there is one; `columns` has the visible ones."""

    schema_name: str
    name: str
    schema: pa.Schema
    comment: str = ""
    descriptor: FlightDescriptor = field(default_factory=FlightDescriptor, repr=False, compare=False)

    @property
    def has_statistics(self) -> bool:
        """Whether DuckDB would request statistics of the columns."""
        return bool((self.schema.metadata or {}).get(b"can_produce_statistics"))

    @cached_property
    def rowid(self) -> int | None:
        """The position of the row id in `schema`."""
        marked = (i for i, column in enumerate(self.schema) if (column.metadata or {}).get(b"is_rowid"))
        return next(marked, None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the visible columns."""
        return tuple(name for position, name in enumerate(self.schema.names) if position != self.rowid)

    def position(self, column: str) -> int:
        """Return the position of a column in `schema`. Names are case-insensitive; `rowid` is always the row id."""
        if column.lower() == ROWID and self.rowid is not None:
            return self.rowid
        found = find_named(column, enumerate(self.schema.names))
        if found is None:
            known = ", ".join(map(repr, self.columns))
            raise NotFound(f"column {column!r} not found in {self}; it has {known}", key="column", column=column)
        return found

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


@dataclass(frozen=True)
class Function:
    """A function. Functions with the same name are overloads. Field metadata tells named and table parameters apart."""

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
    """A schema: a named group of tables and functions."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    functions: tuple[Function, ...] = ()


def read_schema(data: bytes, what: str) -> pa.Schema:
    """Parse a serialized Arrow schema; `what` names it in the error message."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"no valid Arrow schema for {what}") from error


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def find_by_name(name: str, items: Iterable[N]) -> N | None:
    """Return the item called `name`: an exact match if there is one, else the first that differs only in case, as DuckDB."""
    return find_named(name, ((item, item.name) for item in items))


Item = TypeVar("Item")


def find_named(name: str, items: Iterable[tuple[Item, str]]) -> Item | None:
    """Like `find_by_name`, for pairs of an item and its name."""
    similar = None
    for item, item_name in items:
        if item_name == name:
            return item
        if similar is None and item_name.lower() == name.lower():
            similar = item
    return similar
