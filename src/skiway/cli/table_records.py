"""Tables as the command line shows them: format, location, columns and their types."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from skiway.client.metastore import Table

__all__ = ["ColumnRecord", "TableRecord", "columns_of", "format_of", "type_name"]


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """A column, as it is written."""

    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table, as it is written. `rows` and what follows it are of its current snapshot; None where they are unknown."""

    name: str
    id: str
    format: str
    origin: str
    description: str | None
    location: str | None
    rows: int | None
    data_files: int | None
    size_bytes: int | None
    snapshot_id: int | None
    columns: tuple[ColumnRecord, ...]
    properties: dict[str, str]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, table: Table, names: dict[str, str]) -> TableRecord:
        """What there is to tell of it, with the names of connectors by their ids."""
        stats, upstream = table.stats, table.upstream
        managed = table.message.metadata_location
        return cls(
            str(table),
            str(table.id),
            "iceberg" if managed else format_of(table),
            "managed" if managed else names.get(upstream.connector_id.id, "-") if upstream else "-",
            table.description,
            managed or (upstream.uri if upstream else None),
            stats.row_count,
            stats.data_file_count,
            stats.total_size_bytes,
            stats.snapshot_id,
            columns_of(table.schema_json),
            dict(table.properties),
            table.created_at,
            table.updated_at,
        )


def format_of(table: Table) -> str:
    """Of which format a mirrored table is."""
    from skiway.model import v1

    if table.upstream is None or not table.upstream.format:
        return "-"
    return v1.TableFormat.Name(table.upstream.format).removeprefix("TF_").lower()


def columns_of(schema_json: str) -> tuple[ColumnRecord, ...]:
    """The columns that a schema in JSON tells of."""
    fields = json.loads(schema_json or "{}").get("fields", [])
    return tuple(ColumnRecord(each["name"], type_name(each["type"]), bool(each.get("required"))) for each in fields)


def type_name(told: Any) -> str:
    """A type on one line, such as `list<struct<a: int>>`."""
    if isinstance(told, str):
        return told
    match told.get("type"):
        case "list":
            return f"list<{type_name(told['element'])}>"
        case "map":
            return f"map<{type_name(told['key'])}, {type_name(told['value'])}>"
        case "struct":
            members = ", ".join(f"{each['name']}: {type_name(each['type'])}" for each in told["fields"])
            return f"struct<{members}>"
    return str(told.get("type"))
