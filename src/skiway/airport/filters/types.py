"""DuckDB's logical types in filters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from skiway.airport.wire.duckdb_sql import identifier, text_literal

__all__ = ["BOOLEAN", "INTEGER_RANGES", "LogicalType", "plain"]


def _signed(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _unsigned(bits: int) -> tuple[int, int]:
    return 0, (1 << bits) - 1


INTEGER_RANGES: Final = {
    "TINYINT": _signed(8),
    "SMALLINT": _signed(16),
    "INTEGER": _signed(32),
    "BIGINT": _signed(64),
    "HUGEINT": _signed(128),
    "UTINYINT": _unsigned(8),
    "USMALLINT": _unsigned(16),
    "UINTEGER": _unsigned(32),
    "UBIGINT": _unsigned(64),
    "UHUGEINT": _unsigned(128),
}

# Types without parameters. Other names are never written to SQL.
_PLAIN: Final = INTEGER_RANGES.keys() | {
    "BIGNUM",
    "BIT",
    "BLOB",
    "BOOLEAN",
    "DATE",
    "DOUBLE",
    "FLOAT",
    "INTERVAL",
    "TIME",
    "TIME WITH TIME ZONE",
    "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_MS",
    "TIMESTAMP_NS",
    "TIMESTAMP_S",
    "TIME_NS",
    "UUID",
    "VARCHAR",
}


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A type: its `id`, which is the name in SQL, and its parameters.

    `fields` has the fields of a STRUCT or UNION, the `key` and `value` of a MAP, or the unnamed element of a LIST or ARRAY.
    `alias` is the name of a type that is based on this one, such as JSON on VARCHAR.
    """

    id: str
    alias: str = ""
    width: int = 0
    scale: int = 0
    fields: tuple[tuple[str, LogicalType], ...] = ()
    size: int = 0
    members: tuple[str, ...] = ()
    collation: str = ""

    @property
    def element(self) -> LogicalType:
        """The element type of a LIST or ARRAY."""
        return self.fields[0][1]

    @property
    def is_integer(self) -> bool:
        return self.id in INTEGER_RANGES

    @property
    def is_float(self) -> bool:
        return self.id in ("FLOAT", "DOUBLE")

    @property
    def is_zoned(self) -> bool:
        """Whether values, or parts of them, depend on the session's time zone."""
        return self.id.endswith("WITH TIME ZONE") or any(part.is_zoned for _, part in self.fields)

    @property
    def sql(self) -> str | None:
        """The type in SQL, or None if it cannot be written in SQL."""
        return _sql(self)


@lru_cache(maxsize=64)  # bounded, because the names come from clients
def plain(type_id: str) -> LogicalType:
    """The type without parameters called `type_id`. The values are shared."""
    return LogicalType(type_id)


BOOLEAN: Final = plain("BOOLEAN")


def _sql(of: LogicalType) -> str | None:
    if of.alias:
        return None
    if of.id in _PLAIN:
        return of.id
    if of.id == "DECIMAL":
        return f"DECIMAL({of.width:d},{of.scale:d})"
    if of.id == "ENUM" and of.members:
        return f"ENUM({', '.join(text_literal(member) for member in of.members)})"
    return _nested_sql(of)


def _nested_sql(of: LogicalType) -> str | None:
    parts = [part.sql for _, part in of.fields]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    match of.id:
        case "LIST":
            return f"{known[0]}[]"
        case "ARRAY":
            return f"{known[0]}[{of.size:d}]"
        case "MAP":
            return f"MAP({known[0]}, {known[1]})"
        case "STRUCT" if all(name for name, _ in of.fields):
            named = zip(of.fields, known, strict=True)
            return f"STRUCT({', '.join(f'{identifier(name)} {part}' for (name, _), part in named)})"
        case _:
            return None
