"""Write data files in Avro and ORC into a table, as engines do that use these formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import orc
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from formats.managed import LooseTable
from skiway.airport.conversion import is_list
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.schemas import field_id


def append_avro(
    table: LooseTable, rows: pa.Table, *, codec: str = "deflate", with_ids: bool = True, **options: Any
) -> Path:
    """Append an Avro file, and return its path."""
    schema = _optional(AvroSchemaConversion().iceberg_to_avro(table.metadata.schema(), schema_name="table"))
    place = _place(table, "avro")
    with place.open("wb") as out:
        records = [_avro(row, schema) for row in _numbers(rows).to_pylist()]
        fastavro.writer(out, schema if with_ids else _without_ids(schema), records, codec=codec, **options)
    _commit(table, place, FileFormat.AVRO, rows.num_rows)
    return place


def append_orc(table: LooseTable, rows: pa.Table, *, codec: str = "zlib", **options: Any) -> Path:
    """Append an ORC file, and return its path."""
    schema = pa.schema([_orc_field(field) for field in table.handle.schema.arrow])
    place = _place(table, "orc")
    orc.write_table(_times_as_numbers(rows).cast(schema), place, compression=codec, **options)
    _commit(table, place, FileFormat.ORC, rows.num_rows)
    return place


def append_parquet_file(table: LooseTable, place: Path, rows: int, **more: Any) -> None:
    """Append a Parquet file that another program has written."""
    _commit(table, place, FileFormat.PARQUET, rows, **more)


def _place(table: LooseTable, suffix: str) -> Path:
    folder = Path(table.metadata.location.removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{len(table.metadata.snapshots)}.{suffix}"


def _commit(table: LooseTable, place: Path, of: FileFormat, rows: int, **more: Any) -> None:
    file = DataFile.from_args(
        _table_format_version=3,
        file_path=f"file://{place}",
        file_format=of,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=place.stat().st_size,
        **more,
    )
    file.spec_id = 0
    table.change(append([file]))


def _numbers(rows: pa.Table) -> pa.Table:
    """Dates and times as the numbers that are stored, which do not depend on the time zone of the machine."""
    return pa.table([_as_numbers(column) for column in rows.columns], names=rows.column_names)


def _as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    of = column.type
    if pa.types.is_date(of):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(of) or pa.types.is_time(of) else column


def _avro(value: Any, schema: Any) -> Any:
    """A Python value in the form that fastavro expects: maps are dicts."""
    if isinstance(schema, list):
        return None if value is None else _avro(value, next(each for each in schema if each != "null"))
    if not isinstance(schema, Mapping) or value is None:
        return value
    if schema["type"] == "record":
        return {field["name"]: _avro(value[field["name"]], field["type"]) for field in schema["fields"]}
    if schema["type"] == "map":
        return {key: _avro(item, schema["values"]) for key, item in value}
    if schema["type"] == "array":
        pairs = schema.get("logicalType") == "map"
        return [_avro({"key": each[0], "value": each[1]} if pairs else each, schema["items"]) for each in value]
    return value


def _optional(schema: Any) -> Any:
    """The schema with optional elements and values, and maps from strings, as Iceberg's Java library writes it."""
    if isinstance(schema, list):
        return [_optional(each) for each in schema]
    if isinstance(schema, dict):
        made = {key: _optional(value) for key, value in schema.items()}
        if made.get("logicalType") == "map":
            key, value = made["items"]["fields"]
            value["type"] = ["null", value["type"]]
            if key["type"] == "string":
                ids = {"key-id": key["field-id"], "value-id": value["field-id"]}
                return {"type": "map", "values": value["type"], **ids}
        elif "items" in made:
            made["items"] = ["null", made["items"]]
        return made
    return schema


def _without_ids(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_ids(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _without_ids(value) for key, value in schema.items() if not key.endswith("-id")}
    return schema


def _orc_field(field: pa.Field) -> pa.Field:
    of = field.type
    attributes = {"iceberg.id": str(field_id(field)), "iceberg.required": "false"}
    if pa.types.is_struct(of):
        of = pa.struct([_orc_field(each) for each in of])
    elif pa.types.is_map(of):
        of = pa.map_(_orc_field(of.key_field), _orc_field(of.item_field))
    elif is_list(of):
        of = pa.list_(_orc_field(of.value_field))
    elif pa.types.is_time(of):
        of, attributes = pa.int64(), attributes | {"iceberg.long-type": "TIME"}
    elif pa.types.is_timestamp(of):
        of = pa.timestamp("ns", tz=of.tz)
    return pa.field(field.name, of, nullable=field.nullable, metadata=attributes)


def _times_as_numbers(rows: pa.Table) -> pa.Table:
    columns = [column.cast(pa.int64()) if pa.types.is_time(column.type) else column for column in rows.columns]
    return pa.table(columns, names=rows.column_names)
