"""What the tables of the schema `skiway` are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.lake.context import Context
from skiway.metastore import Realm, keys
from skiway.metastore.current import current_id
from skiway.model import v1

__all__ = ["MOMENT", "NAMED", "Asked", "Shown", "made", "moment_of", "name_of"]

MOMENT: Final = pa.timestamp("us", tz="UTC")
NAMED: Final = [pa.field("schema_name", pa.string()), pa.field("table_name", pa.string())]


@dataclass(frozen=True, slots=True)
class Shown:
    """A table that the caller may see, and the schema it is in."""

    schema_name: str
    table: v1.Table


@dataclass(frozen=True, slots=True)
class Asked:
    """What a scan of a system table is about."""

    realm: Realm
    context: Context
    catalog: str
    shown: Sequence[Shown]

    def current_id(self, table: v1.Table) -> int | None:
        """The id of the table's current snapshot."""
        key = keys.current_snapshot(self.realm.account_id, table.resource_id.id)
        pointer = self.realm.stores.pointers.get(key)
        return None if pointer is None else current_id(pointer)


def made(schema: pa.Schema, rows: Iterator[tuple[Any, ...]]) -> pa.Table:
    """A table of columns, from rows of small facts."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def moment_of(at: Timestamp) -> datetime | None:
    return at.ToDatetime(UTC) if at.seconds or at.nanos else None


def name_of(kind: Any, number: int, prefix: str) -> str:
    name: str = kind.Name(number)
    return name.removeprefix(prefix).lower()
