"""Rows in the form a table keeps them: its columns, in its order and types, with its rule about NULL."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from skiway.errors import ConstraintViolation, InvalidArgument

__all__ = ["conformed"]


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """`batch` as rows of `schema`, matched by name. What it lacks becomes NULL."""
    unknown = [name for name in batch.schema.names if schema.get_field_index(name) < 0]
    if unknown:
        raise InvalidArgument(
            f"the rows have a column {unknown[0]!r}, which the table has not; it has {', '.join(schema.names)}",
            key="column.unknown",
            column=unknown[0],
        )
    if len(set(batch.schema.names)) < batch.num_columns:
        raise InvalidArgument(
            f"the rows have two columns of one name, of {', '.join(batch.schema.names)}; name each once",
            key="column.duplicate",
        )
    columns = [_column(batch, field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = batch.schema.get_field_index(field.name)
    column = pa.nulls(batch.num_rows, field.type) if place < 0 else _cast(batch.column(place), field)
    if not field.nullable and column.null_count:
        raise ConstraintViolation(
            f"column {field.name!r} must not be NULL, but {column.null_count} of {batch.num_rows} rows have no value "
            "there; give one, or make the column optional",
            key="column.not_null",
            column=field.name,
        )
    return column


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    """A cast that loses nothing: neither digits, nor fields of structs, which Arrow matches by name and leaves out."""
    if column.type == field.type:
        return column
    try:
        lost = next(_lost(column.type, field.type), None)
        if lost is not None:
            raise ValueError(f"there is no field {lost!r} in it")
        return column.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(
            f"values of column {field.name!r} come as {column.type} and do not fit its type {field.type}: {reason}",
            key="column.value",
            column=field.name,
        ) from error


def _lost(given: pa.DataType, of: pa.DataType) -> Iterator[str]:
    """The fields of structs, at any depth, that `of` does not have."""
    if pa.types.is_struct(given) and pa.types.is_struct(of):
        known = {child.name: child.type for child in of}
        for child in given:
            if child.name not in known:
                yield child.name
            else:
                yield from _lost(child.type, known[child.name])
    elif pa.types.is_map(given) and pa.types.is_map(of):
        yield from _lost(given.key_type, of.key_type)
        yield from _lost(given.item_type, of.item_type)
    elif pa.types.is_nested(given) and pa.types.is_list(of):
        yield from _lost(given.field(0).type, of.value_type)
