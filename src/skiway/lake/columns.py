"""The columns of a table, as they are stored and as they are announced to clients.

Clients match columns by name, case-insensitively, and have a hidden column `rowid`. Tables match columns by field id.
So announced names may differ: of two names that are equal to clients, the second gets a number as a suffix.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.conform import converter
from skiway.formats.geometry import EXTENSION, as_geometry
from skiway.formats.schemas import field_id

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["ROWID", "Columns", "columns_of", "table_changed"]

ROWID: Final = "rowid"
_ROWID_FIELD: Final = pa.field(ROWID, pa.int64(), metadata={"is_rowid": "1"})


@dataclass(frozen=True)
class Columns:
    """The columns of a table in one of its schemas. `stored` has field ids; its names are those that clients know."""

    id: str
    stored: pa.Schema

    @cached_property
    def announced(self) -> pa.Schema:
        """The columns as they are announced to clients: comments instead of ids, geometries marked, the row id last."""
        return pa.schema([*map(_announced, self.stored), _ROWID_FIELD])

    def readable(self, now: pa.Schema, *, table: str) -> pa.Schema:
        """The columns that the table, whose columns are `now`, still has. The others are NULL for this client.

        Raise if the client would misinterpret a column, and if no column is left.
        """
        present = {field_id(field): field for field in now}
        kept = []
        for field in self.stored:
            found = present.get(field_id(field))
            if found is not None:
                _check_same(field, found, table)
                kept.append(field)
            elif not field.nullable:
                raise table_changed(table, f"column {field.name!r} was dropped")
        if not kept:
            raise table_changed(table, "it was replaced and has other columns")
        return pa.schema(kept)


def _check_same(known: pa.Field, now: pa.Field, table: str) -> None:
    try:
        converter(now, known, file=table)
    except Unsupported:
        raise table_changed(table, f"column {known.name!r} is {now.type} now") from None
    if now.nullable and not known.nullable:
        raise table_changed(table, f"column {known.name!r} may be NULL now")


def table_changed(table: str, how: str) -> PreconditionFailed:
    """The error for a client that knows an outdated schema of a table."""
    return PreconditionFailed(
        f"table {table!r}: the table changed ({how}): DETACH and ATTACH again", key="table.changed", table=table
    )


@lru_cache(maxsize=10_000)
def columns_of(schema_json: str) -> Columns:
    """The columns of a schema in Iceberg's JSON format. Raise `ValueError` if it is invalid."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.schema import Schema

    from skiway.formats.iceberg.types import arrow_schema

    parsed = json.loads(schema_json)
    try:
        schema = Schema.model_validate(parsed)
    except (ValidationError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from error
    if not schema.fields:
        raise ValueError("it has no columns")
    arrow = _with_geometries(arrow_schema(schema).arrow, schema)
    return Columns(_schema_id(parsed), _with_distinct_names(arrow))


def _with_geometries(arrow: pa.Schema, schema: Schema) -> pa.Schema:
    """`arrow` with its geometry columns marked as such; their values are WKB."""
    from pyiceberg.types import GeometryType

    return pa.schema(
        [
            as_geometry(field, of.field_type.crs) if isinstance(of.field_type, GeometryType) else field
            for field, of in zip(arrow, schema.fields, strict=True)
        ]
    )


def _schema_id(parsed: dict[str, object]) -> str:
    """The id of the schema in the table's format with a digest, or only the digest if it has no id."""
    number = parsed.get("schema-id")
    content = json.dumps({**parsed, "schema-id": None}, sort_keys=True)
    digest = blake2b(content.encode(), digest_size=6).hexdigest()
    return digest if number is None else f"{number}-{digest}"


def _with_distinct_names(schema: pa.Schema) -> pa.Schema:
    taken = {ROWID}
    fields = []
    for field in schema:
        name, number = field.name, 1
        while name.casefold() in taken:
            name, number = f"{field.name}_{number}", number + 1
        taken.add(name.casefold())
        fields.append(field if name == field.name else field.with_name(name))
    return pa.schema(fields)


def _announced(field: pa.Field) -> pa.Field:
    metadata = field.metadata or {}
    announced = {key: metadata[key] for key in EXTENSION if key in metadata}
    if b"doc" in metadata:
        announced[b"comment"] = metadata[b"doc"]
    return pa.field(field.name, _without_ids(field.type), field.nullable, metadata=announced or None)


def _without_ids(of: pa.DataType) -> pa.DataType:
    """The type without the metadata of its parts, which would only make listings longer."""
    if pa.types.is_struct(of):
        return pa.struct([pa.field(child.name, _without_ids(child.type), child.nullable) for child in of])
    if pa.types.is_map(of):
        return pa.map_(_without_ids(of.key_type), _plain(of.item_field))
    if pa.types.is_list(of):
        return pa.list_(_plain(of.value_field))
    return of


def _plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _without_ids(field.type), field.nullable)
