"""Read an Iceberg table: PyIceberg parses the metadata, files are planned from manifests, rows are read from Parquet.

Rows of version 3 have a lineage: the id of a row, and the commit that last changed it, stay with the row when it moves.

Files of new rows do not contain them: readers derive the id from the file's first row id and the row's position, and the
commit from the file's sequence number. When an existing row is written to another file, both values are written with it.
For a row that was changed, the commit is left NULL, so that readers take the one that adds the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters import Filter
from skiway.errors import Unsupported
from skiway.formats.files import Files
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.deletes import (
    PLACES,
    POSITIONS,
    EqualityDeletes,
    FieldPath,
    deletion_vector,
    field_paths,
    key_fields,
    merged_positions,
    position_ids,
    positions_by_file,
)
from skiway.formats.iceberg.file_table import file_table, partition_types
from skiway.formats.iceberg.types import arrow_schema, defaults, variant_columns
from skiway.formats.readers.reading import read_rows
from skiway.formats.readers.scanning import DataFile, IdAssigner, Scan
from skiway.formats.schemas import Path, TableSchema, field_id, with_id, with_ids
from skiway.formats.source import (
    Content,
    Format,
    PartitionField,
    PartitionSpec,
    Snapshot,
    TableHandle,
    TableName,
    WholeFile,
    file_values,
)
from skiway.foundation.memory_budget import arrow_bytes

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

_ROW_ID: Final = ("_row_id", 2147483540)
_LAST_UPDATED: Final = ("_last_updated_sequence_number", 2147483539)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The two columns of a table's files. Readers find them by id; their names differ from those of the table's columns."""

    row_id: pa.Field
    last_updated: pa.Field

    @classmethod
    def of(cls, schema: pa.Schema) -> Lineage:
        """The columns for a table with this schema."""
        row_id, last_updated = (
            with_id(pa.field(_distinct(name, schema.names), pa.int64()), number)
            for name, number in (_ROW_ID, _LAST_UPDATED)
        )
        return cls(row_id, last_updated)

    def added_to(self, schema: pa.Schema) -> pa.Schema:
        """`schema` with the two columns at its end."""
        return pa.schema([*schema, self.row_id, self.last_updated])

    def filled(self, rows: pa.RecordBatch, positions: pa.Array, file: FileLineage) -> pa.RecordBatch:
        """`rows`, which are at `positions` of a file, with the values that they inherit from the file."""
        if file.first_row_id is not None:
            inherited = pc.add(positions, pa.scalar(file.first_row_id, pa.int64()))
            rows = _with(rows, self.row_id, pc.coalesce(rows.column(self.row_id.name), inherited))
        number = pa.scalar(file.sequence_number, pa.int64())
        return _with(rows, self.last_updated, pc.coalesce(rows.column(self.last_updated.name), number))

    def changed(self, rows: pa.RecordBatch, which: pa.Array) -> pa.RecordBatch:
        """`rows`, of which those in the mask `which` were changed."""
        before = rows.column(self.last_updated.name)
        return _with(rows, self.last_updated, pc.if_else(which, pa.scalar(None, pa.int64()), before))


@dataclass(frozen=True, slots=True)
class FileLineage:
    """What the rows of a file inherit. Rows of a table that was upgraded have no ids until the next commit."""

    first_row_id: int | None
    sequence_number: int | None


def with_lineage(schema: Schema) -> Schema:
    """The schema of files that contain the lineage of their rows."""
    taken = [field.name for field in schema.fields]
    more = [
        lib.types.NestedField(number, _distinct(name, taken), lib.types.LongType(), required=False)
        for name, number in (_ROW_ID, _LAST_UPDATED)
    ]
    return lib.schema.Schema(*schema.fields, *more, schema_id=schema.schema_id)


def _distinct(name: str, taken: list[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _with(rows: pa.RecordBatch, field: pa.Field, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(field.name), field, column)


class IcebergTable(TableHandle):
    """An Iceberg table, in any version of the format that PyIceberg can parse."""

    def __init__(
        self,
        name: TableName,
        metadata: TableMetadata,
        *,
        metadata_location: str,
        files: Files,
    ) -> None:
        self.name = name
        self.format = Format.ICEBERG
        self.location = metadata.location
        self.metadata_location = metadata_location
        self.properties = dict(metadata.properties)
        self.partition_specs = tuple(_spec(spec) for spec in metadata.partition_specs)
        self.refs = {ref: of.snapshot_id for ref, of in metadata.refs.items()}
        self.metadata = metadata
        self._files = files
        self._io = lib.metadata_files.ReadingIO(files)
        self.schema = arrow_schema(metadata.schema())

    @cached_property
    def _schemas(self) -> dict[int, TableSchema]:
        """All schemas that the table has had, by id."""
        now = {self.schema.id: self.schema}
        return {schema.schema_id: now.get(schema.schema_id) or arrow_schema(schema) for schema in self.metadata.schemas}

    @property
    def partition_spec(self) -> PartitionSpec:
        """The default spec, which is not necessarily the newest."""
        return next(spec for spec in self.partition_specs if spec.id == self.metadata.default_spec_id)

    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:  # noqa: ARG002
        found = self.metadata.current_snapshot()
        return None if found is None else _snapshot(found, self.refs)

    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        return self.snapshots_except({snapshot.id for snapshot in known})

    def snapshots_except(self, known: Set[int]) -> list[Snapshot]:
        """The snapshots with other ids, oldest first."""
        others = (snapshot for snapshot in self.metadata.snapshots if snapshot.snapshot_id not in known)
        return sorted(
            (_snapshot(snapshot, self.refs) for snapshot in others),
            key=lambda snapshot: (snapshot.sequence_number, snapshot.created_at, snapshot.id),
        )

    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        number = self._snapshot(snapshot).schema_id
        return self.schema if number in (None, self.schema.id) else self._schemas[number]

    def files(self, snapshot: Snapshot) -> pa.Table:
        return self.placed_files(snapshot).drop_columns(PLACES.names)

    def plan(
        self,
        snapshot: Snapshot,
        filter: Filter | None = None,  # noqa: A002
        *,
        schema: pa.Schema | None = None,
    ) -> pa.Table:
        found = super().plan(snapshot, filter, schema=schema)
        return self._in_partitions(found, filter, schema or self.schema_at(snapshot).arrow) if filter else found

    def whole_files(self, snapshot: Snapshot, files: pa.Table, *, max_remote: int = 0) -> list[WholeFile] | None:
        # Other readers do not return variants as JSON.
        return (
            None
            if self._variants(self.schema_at(snapshot))
            else super().whole_files(snapshot, files, max_remote=max_remote)
        )

    def lineage(self, snapshot: Snapshot) -> dict[int, FileLineage]:
        """What the rows of each file inherit, by the ordinal of the file."""
        found = file_values(self.placed_files(snapshot), "ordinal", "first_row_id", "sequence_number")
        return {ordinal: FileLineage(first_row, number) for ordinal, first_row, number in found}

    def deleted_positions(self, snapshot: Snapshot, file: pa.Table) -> np.ndarray:
        """The positions that position deletes and deletion vectors delete in a file, which is a row of the file table."""
        deletes = self.placed_files(snapshot).take(file["deletes"][0].values) if file["deletes"][0].as_py() else None
        found = None if deletes is None else self._deleted(file["path"][0].as_py(), deletes)
        return np.array([], np.int64) if found is None else found.to_numpy()

    def placed_files(self, snapshot: Snapshot) -> pa.Table:
        """The file table with the additional columns `PLACES`."""
        found = self._snapshot(snapshot)
        schema = self.schema_at(snapshot)
        if not found.manifest_list:
            feature = "snapshots without a manifest list"
            raise Unsupported(
                f"table {str(self.name)!r} has {feature}, which are not supported; rewrite its manifests with an engine that "
                "supports them",
                key="table.feature",
                table=str(self.name),
                feature=feature,
            )
        return self._files.cached(
            "iceberg files",
            found.manifest_list,
            schema.id,
            load=lambda: file_table(self.metadata, found, self._measured(schema), self._io, str(self.name)),
            size_of=arrow_bytes,
        )

    def new_manifests(self, snapshot: Snapshot) -> list[str]:
        """The manifest list of a snapshot, and the manifests that were written for it."""
        listed = lib.manifest_files.known_manifests(self._snapshot(snapshot), self._io)
        return [
            snapshot.manifest_list,
            *(manifest.manifest_path for manifest in listed if manifest.added_snapshot_id == snapshot.id),
        ]

    def _measured(self, schema: TableSchema) -> pa.Schema:
        """The columns that statistics are about: the bounds of variants are not those of their JSON."""
        hidden = self._variants(schema)
        return pa.schema([field for field in schema.arrow if field.name not in hidden]) if hidden else schema.arrow

    def _variants(self, schema: TableSchema) -> frozenset[str]:
        """The columns that are variants or contain some."""
        return variant_columns(next(each for each in self.metadata.schemas if each.schema_id == schema.id))

    def _snapshot(self, snapshot: Snapshot) -> Any:
        found = self.metadata.snapshot_by_id(snapshot.id)
        if found is None:
            raise self._no_snapshot(snapshot)
        return found

    def _in_partitions(self, files: pa.Table, filter: Filter, known: pa.Schema) -> pa.Table:  # noqa: A002
        """The `files` whose partition may have rows that match `filter`, which uses the column names of `known`."""
        if not any(spec.fields for spec in self.metadata.partition_specs):
            return files  # at once: the translation of the filter takes a millisecond
        from pyiceberg.expressions.visitors import bind, inclusive_projection
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        from skiway.formats.iceberg.planning.filters import to_iceberg

        same = [number for number, each in self._schemas.items() if each.arrow.equals(known, check_metadata=True)]
        schema = next((each for each in self.metadata.schemas if each.schema_id in same), None)
        if schema is None:
            return files
        condition = to_iceberg(filter, schema)
        matching = []
        for spec in self.metadata.partition_specs:
            part = files.filter(pc.field("spec_id") == spec.spec_id)
            sources = {field.source_id for field in spec.fields}
            if part.num_rows and sources and sources <= schema._lazy_id_to_field.keys():
                fields = lib.schema.Schema(*spec.partition_type(schema).fields)
                projected = bind(fields, inclusive_projection(schema, spec)(condition), case_sensitive=True)
                part = part.take(_matching(part, spec, expression_to_pyarrow(projected, fields)))
            matching.append(part)
        return pa.concat_tables(matching).sort_by("ordinal")

    def _id_assigner(self, snapshot: Snapshot) -> IdAssigner:  # noqa: ARG002
        return self._with_ids

    def _with_ids(self, schema: pa.Schema, file: str) -> pa.Schema:
        """The schema of a file with field ids: its own, or those of the table's name mapping."""
        if any(field_id(field) is not None for field in schema):
            return schema
        if self._ids_by_path is None:
            raise Unsupported(
                f"file {file!r} of table {str(self.name)!r} has no field ids, and the table has no name mapping; set the table "
                "property 'schema.name-mapping.default'",
                key="table.feature",
                table=str(self.name),
                feature="files without field ids",
                file=file,
            )
        return with_ids(schema, self._ids_by_path.get)

    @cached_property
    def _ids_by_path(self) -> dict[Path, int | None] | None:
        mapping = self.metadata.name_mapping()
        return None if mapping is None else dict(_paths(mapping.root, ()))

    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:
        placed = self.placed_files(snapshot)
        for row in files.drop_columns(["stats"]).to_pylist():
            deletes = placed.take(pa.array(row["deletes"], pa.int32())) if row["deletes"] else None
            constants = self.defaults | self._partition_values(row)
            deleted = None if deletes is None else self._deleted(row["path"], deletes)
            keys = () if deletes is None else self._deleted_keys(deletes)
            yield DataFile(
                row["path"],
                row["ordinal"],
                constants=constants,
                deleted=deleted,
                deleted_keys=keys,
                format=row["format"],
                rows=row["row_count"],
            )

    @cached_property
    def defaults(self) -> dict[int, pa.Scalar]:
        """The default values of columns in files that were written before the column was added, by field id."""
        found = [defaults(schema) for schema in self.metadata.schemas]
        return {number: value for each in found for number, value in each.items()}

    def _partition_values(self, row: Mapping[str, Any]) -> dict[int, pa.Scalar]:
        """The values of identity partition fields: tables migrated from Hive have them in paths only."""
        spec = next(spec for spec in self.partition_specs if spec.id == row["spec_id"])
        return {
            field.source_id: pa.scalar(row["partition"][str(field.id)], self._partition_types[field.id])
            for field in spec.fields
            if field.transform == "identity"
        }

    @cached_property
    def _partition_types(self) -> dict[int, pa.DataType]:
        return partition_types(self.metadata)

    def _deleted(self, path: str, deletes: pa.Table) -> pa.Array | None:
        """The positions that the delete files `deletes` delete in the data file at `path`."""
        found = []
        for row in deletes.select(["path", "format", "content", "row_count", *PLACES.names]).to_pylist():
            if row["content"] == Content.EQUALITY_DELETES:
                continue
            if row["blob_offset"] is not None:
                blob = self._files.read(row["path"], offset=row["blob_offset"], size=row["blob_size"])
                found.append(deletion_vector(blob, file=row["path"], rows=row["row_count"]))
            else:
                positions = self._position_deletes(row["path"], row["format"])
                found.append(positions.get(path, pa.array([], pa.int64())))
        return merged_positions(found)

    def _position_deletes(self, path: str, of: str) -> dict[str, pa.Array]:
        def load() -> dict[str, pa.Array]:
            return positions_by_file(self._delete_file(path, of, POSITIONS, position_ids))

        def size_of(found: dict[str, pa.Array]) -> int:
            return sum(each.nbytes + 200 for each in found.values())

        return self._files.cached("position deletes", path, load=load, size_of=size_of)

    def _deleted_keys(self, deletes: pa.Table) -> tuple[EqualityDeletes, ...]:
        """The equality deletes among the delete files `deletes`, together by the columns that they compare."""
        alike: dict[tuple[int, ...], list[tuple[str, str]]] = {}
        for row in deletes.select(["path", "format", "content", "equality_ids"]).to_pylist():
            if row["content"] == Content.EQUALITY_DELETES:
                alike.setdefault(tuple(sorted(row["equality_ids"])), []).append((row["path"], row["format"]))
        return tuple(self._equality_deletes(ids, files) for ids, files in alike.items())

    def _equality_deletes(self, ids: Sequence[int], files: Sequence[tuple[str, str]]) -> EqualityDeletes:
        fields = key_fields(ids, self._field_paths, table=str(self.name))

        def load() -> EqualityDeletes:
            schema = pa.schema(fields)
            return EqualityDeletes.of(fields, [self._delete_file(*file, schema, self._with_ids) for file in files])

        types = tuple(str(field.type) for field in fields)
        return self._files.cached("equality deletes", types, *files, load=load, size_of=lambda found: found.nbytes)

    @cached_property
    def _field_paths(self) -> dict[int, FieldPath]:
        """Every field that the table has had, by id, as defined last: types only become wider."""
        found: dict[int, FieldPath] = {}
        for schema in (*self._schemas.values(), self.schema):
            found |= field_paths(schema.arrow)
        return found

    def _delete_file(self, path: str, of: str, schema: pa.Schema, assign_ids: IdAssigner) -> pa.Table:
        """The columns of a delete file, found by id."""
        scan = Scan(self._files, schema, schema.names, assign_ids)
        return read_rows(scan, [DataFile(path, 0, format=of, constants=self.defaults)]).read_all()


def _matching(files: pa.Table, spec: Any, condition: pc.Expression) -> pa.Array:
    """The row numbers of `files` whose partition values satisfy `condition`, which refers to them by name."""
    values = files["partition"].combine_chunks()
    columns = {field.name: values.field(str(field.field_id)) for field in spec.fields}
    numbered = pa.table({**columns, "$row": pa.array(range(files.num_rows), pa.int64())})
    return numbered.filter(condition)["$row"].combine_chunks()


def _spec(spec: Any) -> PartitionSpec:
    fields = [
        PartitionField(field.field_id, field.name, field.source_id, str(field.transform)) for field in spec.fields
    ]
    return PartitionSpec(spec.spec_id, tuple(fields))


def _snapshot(found: Any, refs: Mapping[str, int]) -> Snapshot:
    summary = (
        {}
        if found.summary is None
        else {"operation": found.summary.operation.value, **found.summary.additional_properties}
    )
    return Snapshot(
        id=found.snapshot_id,
        created_at=datetime.fromtimestamp(found.timestamp_ms / 1000, UTC),
        parent_id=found.parent_snapshot_id,
        sequence_number=found.sequence_number or 0,
        schema_id=found.schema_id,
        summary=summary,
        refs=tuple(sorted(ref for ref, number in refs.items() if number == found.snapshot_id)),
        manifest_list=found.manifest_list or "",
    )


def _paths(fields: Sequence[Any], above: Path) -> Iterator[tuple[Path, int | None]]:
    for field in fields:
        for name in field.names:
            yield (*above, name), field.field_id
            yield from _paths(field.fields, (*above, name))
