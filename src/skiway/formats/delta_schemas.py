"""Delta's schemas: by name, or, with column mapping, by ids and by the names that columns have in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.schemas import Path, TableSchema, field_id, identified, leaves, path_id
from skiway.formats.source import PartitionField, PartitionSpec

__all__ = ["DeltaSchema"]

_ID: Final = b"delta.columnMapping.id"
_NAME: Final = b"delta.columnMapping.physicalName"


@dataclass(frozen=True)
class DeltaSchema:
    """A table's schema, and how its columns are found in files."""

    table: TableSchema
    spec: PartitionSpec
    physical: Mapping[int, Path]  # where a leaf is in files and in the log, by its id
    mode: str
    ids: Mapping[Path, int]  # of all fields, by where they are in files

    @classmethod
    def of(cls, arrow: pa.Schema, partitioned_by: Sequence[str], mode: str, *, first_id: int) -> DeltaSchema:
        """`arrow` is the schema as delta-rs gives it, with column mapping in the metadata of its fields."""
        fields = list(_walk(list(arrow), (), ()))
        if mode == "none":
            numbers = {logical: path_id(logical) for logical, _, _ in fields}
        else:
            numbers = {logical: int((field.metadata or {})[_ID]) for logical, _, field in fields if _has_id(field)}
        table = TableSchema.of(identified(arrow, numbers.get))
        places = {logical: physical for logical, physical, _ in fields}
        columns = [table.arrow.field(name) for name in partitioned_by]
        spec = [
            PartitionField(first_id + place, column.name, field_id(column) or 0) for place, column in enumerate(columns)
        ]
        return cls(
            table,
            PartitionSpec(0, tuple(spec)),
            {leaf.id: places[leaf.path] for leaf in leaves(table.arrow)},
            mode,
            {places[logical]: number for logical, number in numbers.items()},
        )

    def identified(self, schema: pa.Schema, file: str) -> pa.Schema:
        """A file's schema with the ids of the table's columns; those it is partitioned by are not taken from files."""
        if self.mode == "id":
            if all(field_id(field) is None for field in schema):
                raise Unsupported(
                    f"file {file!r} has no field ids, but its table maps columns by id; rewrite the file",
                    key="table.feature",
                    feature="files without field ids",
                    file=file,
                )
            return schema
        return identified(schema, self.ids.get)


def _has_id(field: pa.Field) -> bool:
    return _ID in (field.metadata or {})


def _walk(fields: Sequence[pa.Field], logical: Path, physical: Path) -> Iterator[tuple[Path, Path, pa.Field]]:
    """Every field with its path as users see it and as files have it."""
    for field in fields:
        own = (field.metadata or {}).get(_NAME, field.name.encode()).decode()
        yield from _inside(field, (*logical, field.name), (*physical, own))


def _inside(field: pa.Field, logical: Path, physical: Path) -> Iterator[tuple[Path, Path, pa.Field]]:
    yield logical, physical, field
    of = field.type
    if pa.types.is_struct(of):
        yield from _walk(list(of), logical, physical)
    elif pa.types.is_map(of):
        yield from _inside(of.key_field, (*logical, "key"), (*physical, "key"))
        yield from _inside(of.item_field, (*logical, "value"), (*physical, "value"))
    elif pa.types.is_list(of) or pa.types.is_large_list(of):
        yield from _inside(of.value_field, (*logical, "element"), (*physical, "element"))
