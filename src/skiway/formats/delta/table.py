"""Delta Lake tables, and folders of them: delta-rs reads the log, the Parquet reader reads the rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import plain_field
from skiway.errors import NotFound, PreconditionFailed, Unsupported
from skiway.formats.delta import log
from skiway.formats.delta.log import DeltaSchema, check_log, check_vectors
from skiway.formats.delta.upkeep import RewritableTable
from skiway.formats.files import Files, Found, first_lines, unreadable
from skiway.formats.opening import FolderLayout, SourceRequest, open_folders
from skiway.formats.readers.scanning import DataFile, IdAssigner
from skiway.formats.schemas import TableSchema, leaves
from skiway.formats.source import (
    Format,
    PartitionSpec,
    Snapshot,
    Source,
    TableHandle,
    TableName,
    file_rows,
    partition_struct,
)
from skiway.formats.statistics import bound_type, column_stats, constant_stats, stats_struct
from skiway.foundation.cache import Cache
from skiway.foundation.memory_budget import arrow_bytes
from skiway.security.source_access import Location, location

if TYPE_CHECKING:
    import deltalake


SUPPORTED_FEATURES: Final = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""The supported reader features. A table that needs any other raises `Unsupported`."""

_FIRST_PARTITION_ID: Final = 1000
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_TRUNCATED_US: Final = 999  # timestamps in statistics are truncated to milliseconds
_EXACT_DIGITS: Final = 15  # numbers in statistics are JSON, which some programs handle as doubles


class DeltaTable(TableHandle, RewritableTable):
    """A Delta table. Its snapshots are its versions."""

    def __init__(self, name: TableName, place: Location, files: Files) -> None:
        self.name = name
        self.format = Format.DELTA
        self.location = str(place)
        self._place = place
        self._files = files
        self._versions = Cache[int, "deltalake.DeltaTable"](8)
        self._vectors = Cache[int, dict[str, pa.Array]](4)
        self._schemas = Cache[int, DeltaSchema](8)
        newest = self._load(None)
        self._newest: int = newest.version()
        self._versions.put(self._newest, newest)
        metadata = newest.metadata()
        self.properties = dict(metadata.configuration)
        self.schema = self._schema(self._newest).table
        self.partition_specs = (self._schema(self._newest).spec,)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, it is loaded there."""
        return type(self), (self.name, self._place, self._files)

    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:  # noqa: ARG002
        return log.snapshots(self._files, self._place, upto=self._newest, since=self._newest)[-1]

    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        seen = {snapshot.id for snapshot in known}
        return log.snapshots(self._files, self._place, upto=self._newest, without=seen)

    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        return self._schema(snapshot.id).table

    def partition_spec_at(self, snapshot: Snapshot) -> PartitionSpec:
        return self._schema(snapshot.id).spec

    def has_mapped_columns(self, snapshot: Snapshot) -> bool:
        return self._schema(snapshot.id).mode != "none"

    def files(self, snapshot: Snapshot) -> pa.Table:
        return self._files.cached(
            "delta files",
            self.location,
            self._at(self._newest).metadata().id,
            snapshot.id,
            load=lambda: self._file_table(snapshot.id),
            size_of=arrow_bytes,
        )

    def _file_table(self, version: int) -> pa.Table:
        table, schema = self._at(version), self._schema(version)
        with self._translated():
            actions = pa.table(table.get_add_actions()).combine_chunks()
        places = [str(self._file(path)) for path in actions["path"].to_pylist()]
        actions = actions.set_column(actions.schema.get_field_index("path"), "path", pa.array(places)).sort_by("path")
        deleted = self._deleted(version)
        deleted_rows = [len(deleted.get(path, ())) for path in actions["path"].to_pylist()]
        partition = _partition(actions, schema)
        return file_rows(
            actions.num_rows,
            path=actions["path"],
            row_count=actions["num_records"],
            size_bytes=actions["size_bytes"],
            deleted_rows=deleted_rows,
            partition=partition,
            stats=_stats(actions, schema, partition, deleted_rows),
        )

    def _id_assigner(self, snapshot: Snapshot) -> IdAssigner:
        return self._schema(snapshot.id).with_ids

    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:
        deleted = self._deleted(snapshot.id)
        schema = self._schema(snapshot.id)
        sources = {str(field.id): field.source_id for field in schema.spec.fields}
        for file in range(files.num_rows):
            path = files["path"][file].as_py()
            values = files["partition"][file]
            constants = {number: values[name] for name, number in sources.items()}
            yield DataFile(path, files["ordinal"][file].as_py(), constants=constants, deleted=deleted.get(path))

    def _deleted(self, version: int) -> dict[str, pa.Array]:
        """The positions that deletion vectors delete, by path of the data file."""
        return self._vectors.get(version, lambda: self._read_vectors(version))

    def _read_vectors(self, version: int) -> dict[str, pa.Array]:
        if "deletionVectors" not in _required_features(self._at(version)):
            return {}
        check_vectors(self._files, self._place)
        with self._translated():
            found = pa.RecordBatchReader.from_stream(self._at(version).deletion_vectors()).read_all()
        paths = [str(self._file(path)) for path in found["filepath"].to_pylist()]
        masks = found["selection_vector"]
        return {path: _deleted_positions(masks[row].values) for row, path in enumerate(paths)}

    def _file(self, path: str) -> Location:
        """The location of a file in the log: a URL-encoded path, relative to the table or absolute.

        Shallow clones refer to the files of another table by absolute URIs; Hadoop writes `file:/path`.
        """
        plain = unquote(path)
        return location(plain) if _ABSOLUTE.match(path) else self._place / plain

    def _schema(self, version: int) -> DeltaSchema:
        return self._schemas.get(version, lambda: self._read_schema(version))

    def _read_schema(self, version: int) -> DeltaSchema:
        table = self._at(version)
        metadata = table.metadata()
        mode = metadata.configuration.get("delta.columnMapping.mode", "none")
        arrow = pa.schema([plain_field(field) for field in pa.schema(table.schema().to_arrow())])
        json_text = "" if mode == "none" else table.schema().to_json()
        return DeltaSchema.of(
            arrow, metadata.partition_columns, mode, first_id=_FIRST_PARTITION_ID, json_text=json_text
        )

    def _at(self, version: int) -> deltalake.DeltaTable:
        return self._versions.get(version, lambda: self._load(version))

    def _load(self, version: int | None) -> deltalake.DeltaTable:
        import deltalake

        place = self._files.reach.check(self._place)
        check_log(self._files, self._place)
        with self._translated(version):
            options = None if place.scheme == "file" else _options(self._files)
            table = deltalake.DeltaTable(_url(place), version=version, storage_options=options)
        unknown = sorted(_required_features(table) - SUPPORTED_FEATURES)
        if unknown:
            raise Unsupported(
                f"table {str(self.name)!r} needs the unsupported reader feature {', '.join(unknown)}; drop the feature, or "
                "copy the table",
                key="table.feature",
                table=str(self.name),
                feature=", ".join(unknown),
            )
        return table

    @contextmanager
    def _translated(self, version: int | None = None) -> Iterator[None]:
        from deltalake import exceptions

        table = f"table {str(self.name)!r} at {self.location!r}"

        def corrupt(error: BaseException) -> PreconditionFailed:
            return PreconditionFailed(f"{table} has a corrupt log", key="file.corrupt", detail=first_lines(error))

        try:
            yield
        except exceptions.TableNotFoundError as error:
            raise NotFound(f"{table} is not a Delta table", key="table.not_found", table=str(self.name)) from error
        except exceptions.DeltaProtocolError as error:
            raise Unsupported(
                f"{table} needs an unsupported version of the Delta protocol",
                key="table.feature",
                detail=first_lines(error),
                table=str(self.name),
            ) from error
        except exceptions.DeltaError as error:
            for pattern, reason in _DELTA_RS_REASONS.items():
                if found := re.search(pattern, str(error)):
                    message = f"{table} {reason.format(found[1])}"
                    raise Unsupported(message, key="table.feature", table=str(self.name)) from error
            if version is not None:
                raise NotFound(
                    f"{table} has no version {version}; it may have expired, list its snapshots",
                    key="snapshot.not_found",
                    detail=first_lines(error),
                    table=str(self.name),
                ) from error
            raise corrupt(error) from error
        except OSError as error:
            advice = "cannot be read; check the address and credentials of the source"
            raise unreadable(str(table), error, otherwise=advice) from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, which is no Exception and would end the thread
                raise
            raise corrupt(error) from None


_VARIANT_FEATURES: Final = {"variantType", "variantType-preview"}
_VARIANT_COLUMN: Final = re.compile(r'"(type|elementType|valueType)": ?"variant"')

_DELTA_RS_REASONS: Final = {
    r"Unsupported Delta table type: '(.+?)'": "has a column of type {}, which is not supported; drop the column, or copy the table",
    r"Unsupported: Feature '(.+?)' is not supported": "needs the unsupported reader feature {}; drop the feature, or copy the table",
    r"loading a (catalog-managed) table": "is {}, so that its files do not say which rows it has; mirror it from its catalog, or copy it",
    r"Column mapping is enabled but (.+)": "has invalid column mapping: {}; let its engine set delta.columnMapping.mode again",
}
"""What delta-rs says about a valid log that it cannot read, and what we say."""


def _url(place: Location) -> str:
    """The location for delta-rs, which decodes URLs."""
    return place.path if place.scheme == "file" else f"{place.scheme}://{place.bucket}/{quote(place.path)}"


def _deleted_positions(selected: pa.Array) -> pa.Array:
    """The positions of the rows that a selection vector does not select."""
    return pa.array(np.flatnonzero(~selected.to_numpy(zero_copy_only=False)).astype(np.int64))


def _options(files: Files) -> dict[str, str]:
    """The storage options of delta-rs."""
    names = {
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.session-token": "AWS_SESSION_TOKEN",
        "s3.region": "AWS_REGION",
        "s3.endpoint": "AWS_ENDPOINT_URL",
    }
    options = {names[key]: value for key, value in files.properties.items() if key in names}
    if "AWS_ACCESS_KEY_ID" in options and "AWS_SESSION_TOKEN" in os.environ:
        options.setdefault("AWS_SESSION_TOKEN", "")  # delta-rs would complete the keys with the token of the server
    proxy = {"proxy_url": files.relay} if files.relay else {}
    return {**options, **proxy, "AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": str(files.is_anonymous).lower()}


def _required_features(table: deltalake.DeltaTable) -> set[str]:
    """The features that readers need. That of variants counts only if a column is one: delta-rs adds it to other tables."""
    protocol = table.protocol()
    named = set(protocol.reader_features or ())
    if named & _VARIANT_FEATURES and _VARIANT_COLUMN.search(table.schema().to_json()) is None:
        named -= _VARIANT_FEATURES
    return named | ({"columnMapping"} if protocol.min_reader_version == 2 else set())


def _partition(actions: pa.Table, schema: DeltaSchema) -> pa.Array:
    """The partition values, with the types of their columns."""
    values: Any = actions["partition"].combine_chunks() if schema.spec.fields else None
    types = {field.name: field.type for field in schema.table.arrow}
    columns = {field.id: values.field(field.name).cast(types[field.name]) for field in schema.spec.fields}
    return partition_struct(columns, actions.num_rows)


def _stats(actions: pa.Table, schema: DeltaSchema, partition: pa.Array, deleted_rows: Sequence[int]) -> pa.Array:
    rows = actions["num_records"].combine_chunks()
    constant = {field.source_id: partition.field(str(field.id)) for field in schema.spec.fields}
    whole = pc.equal(pa.array(deleted_rows, pa.int64()), 0)  # otherwise the bounds may be values of deleted rows
    columns = {}
    for leaf in leaves(schema.table.arrow):
        if leaf.id in constant:
            columns[leaf.id] = constant_stats(constant[leaf.id], rows)
            continue
        path = schema.physical[leaf.id]
        nulls = _within(actions, "null_count", path)
        known = {"value_count": rows, **({"null_count": nulls} if nulls is not None else {})}
        known |= _bounds(leaf.type, _within(actions, "min", path), _within(actions, "max", path))
        columns[leaf.id] = column_stats(leaf.type, len(rows), exact=pc.and_(whole, _is_exact(leaf.type)), **known)
    return stats_struct(columns, len(rows))


def _within(actions: pa.Table, name: str, path: Sequence[str]) -> pa.Array | None:
    if name not in actions.column_names:
        return None
    found = actions[name].combine_chunks()
    for part in path:
        if not pa.types.is_struct(found.type) or found.type.get_field_index(part) < 0:
            return None
        found = found.field(part)
    return None if pa.types.is_struct(found.type) else found


def _bounds(of: pa.DataType, low: pa.Array | None, high: pa.Array | None) -> dict[str, pa.Array]:
    if low is None or high is None or (pa.types.is_decimal(of) and of.precision > _EXACT_DIGITS):
        return {}
    low, high = low.cast(bound_type(of)), high.cast(bound_type(of))
    if pa.types.is_timestamp(of):
        widening = pa.scalar(_TRUNCATED_US, pa.duration("us"))
        low, high = pc.subtract(low, widening), pc.add(high, widening)
    return {"min": low, "max": high}


def _is_exact(of: pa.DataType) -> bool:
    """Are bounds of this type values of the column? Strings and timestamps are truncated."""
    return not (pa.types.is_string(of) or pa.types.is_timestamp(of))


def open_delta(request: SourceRequest) -> Source:
    """Open the table at `request.uri`, or the tables below it."""
    kind = request.options.get("delta.source", "filesystem")
    if kind != "filesystem":
        raise Unsupported(
            f"delta.source {kind!r} is not supported; use 'filesystem' and the folder of the tables",
            key="source.kind",
        )
    return open_folders(request, _DeltaFolders(request.files()))


class _DeltaFolders(FolderLayout):
    """A folder with a log is a table."""

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:  # noqa: ARG002
        return folder / "_delta_log" in folders

    def open(self, name: TableName, place: Location) -> TableHandle:
        return DeltaTable(name, place, self.files)
