"""Merges by key: new rows are committed together with the deletion of the rows that have their keys.

Tasks read the keys on both sides, join them, and write the delete files. The worker only sees files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Conflict, SkiwayError
from skiway.formats import Snapshot, bound_type, data_files, field_id
from skiway.formats.iceberg.changes.commits import checked, overwrite
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.types import bounds
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore.ingest.keys import FileKeys, KeyJoins, KeyRows, KnownKeys, Places, new_keys
from skiway.metastore.ingest.rows import FilePart, Target, grouped, key_fields_of
from skiway.metastore.managed.commits import TableChange, change_all
from skiway.metastore.managed.states import ManagedTable, handle_of, is_certainly_undone, load
from skiway.metastore.records.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

ATTEMPTS: Final = 5
FEW_KEYS: Final = 500_000
"""So many keys are sent to all tasks, which is faster than to distribute all rows by their keys."""

_MOST_RANGES: Final = 256


@dataclass(frozen=True, slots=True)
class ReplacedKeys:
    """Keys whose rows are replaced or deleted. `count` is at least their number; None if it is not known.

    `ranges` has the smallest and the largest key of each file, column by column. It is None if they are not known.
    """

    columns: pa.Schema
    rows: Sequence[KeyRows]
    count: int | None
    ranges: Sequence[tuple[pa.Array, pa.Array]] | None = None

    @classmethod
    def of(cls, target: Target, files: Sequence[DataFile], columns: pa.Schema) -> ReplacedKeys:
        """The keys of new data files of the target."""
        count = sum(file.record_count for file in files)
        return cls(columns, new_keys(target, files, columns), count, [_range(files, key) for key in columns])

    def of_columns(self, columns: pa.Schema) -> ReplacedKeys:
        """These keys, in the columns of another table with the same names."""
        return replace(self, columns=key_fields_of(columns, tuple(self.columns.names)))

    def and_gone(self, rows: Sequence[KeyRows], count: int | None) -> ReplacedKeys:
        """These keys, and others that are not replaced but deleted."""
        total = None if count is None or self.count is None else self.count + count
        return ReplacedKeys(self.columns, [*self.rows, *rows], total) if rows else self

    def and_known(self, gone: KnownKeys) -> ReplacedKeys:
        """These keys, and those of some rows that are not replaced but deleted."""
        count = None if self.count is None else self.count + gone.rows.num_rows
        ranges = None
        if self.ranges is not None:
            ranges = [
                tuple(
                    pa.concat_arrays([known, pa.array([of(column.cast(key.type)).as_py()], key.type).cast(known.type)])
                    for known, of in zip(ends, (pc.min, pc.max), strict=True)
                )
                for ends, key, column in zip(self.ranges, self.columns, gone.rows.columns, strict=True)
            ]
        return ReplacedKeys(self.columns, [*self.rows, gone], count, ranges)


def _range(files: Sequence[DataFile], key: pa.Field) -> tuple[pa.Array, pa.Array]:
    number, of = field_id(key), bound_type(key.type)
    low, high = (
        bounds([(getattr(file, side) or {}).get(number) for file in files], of)
        for side in ("lower_bounds", "upper_bounds")
    )
    return low, high


@dataclass(frozen=True, slots=True)
class Aside:
    """The quarantine of a table: the rows that are added to it. Those with replaced keys leave it, as they leave the table."""

    table_id: v1.ResourceId
    target: Target
    added: Sequence[DataFile] = ()

    @property
    def has_rows(self) -> bool:
        """Whether there may be rows before."""
        return self.target.metadata.current_snapshot() is not None


def merge(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    added: Sequence[DataFile],
    keys: ReplacedKeys,
    joins: KeyJoins,
    *,
    aside: Aside | None = None,
    guard: Callable[[TableMetadata], None],
    properties: Mapping[str, str],
    check: Callable[[], None] = lambda: None,
) -> ManagedTable:
    """Commit data files together with the deletion of the rows that have one of the keys.

    Rows with these keys also leave the quarantine `aside`, with the same commit. `guard` is called with the metadata that the commit is
    made for, and may raise. `check` is called before each attempt. If the
    table changes in the meantime, its rows are searched again. The caller removes `added` if nothing was committed.
    """
    places = [(table_id, added)]
    if aside is not None and (aside.added or aside.has_rows):
        places.append((aside.table_id, aside.added))
    for attempt in range(ATTEMPTS):
        check()
        made: list[tuple[ManagedTable, Deleted]] = []
        changes = []
        for place, files in places:
            now = load(realm, warehouse, place)
            if not made:
                guard(now.metadata)
            current = now.handle.current()
            own = keys if not made else keys.of_columns(now.handle.schema.arrow)
            deleted = rows_with(own, now, warehouse, joins)
            producer = overwrite(
                deleted.whole,
                files,
                deletes=deleted.files,
                based_on=None if current is None else current.id,
                alone=True,
                operation="overwrite" if deleted.whole or deleted.files else "append",
                properties=properties if not made else {},
            )
            if not made:
                producer = checked(producer, guard)
            if not made or files or deleted.whole or deleted.files:
                changes.append(TableChange(place, producer))
            made.append((now, deleted))
        try:
            done = change_all(realm, warehouse, changes)
            return next(each for each in done if each.id == made[0][0].id)
        except SkiwayError as error:
            if is_certainly_undone(error):
                for now, deleted in made:
                    now.files.remove({file.file_path for file in deleted.files})
            is_overtaken = isinstance(error, Conflict) and error.key == "commit.failed"
            if not is_overtaken or attempt + 1 == ATTEMPTS:
                raise
    raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class Deleted:
    """What deletes rows: delete files, and the paths of data files of which no row is left."""

    files: list[DataFile] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)


def rows_with(keys: ReplacedKeys, table: ManagedTable, warehouse: Warehouse, joins: KeyJoins) -> Deleted:
    """What deletes the rows of a table that have one of the keys, in its state as it was loaded, for a commit `overwrite`."""
    own = handle_of(table.table, table.metadata, warehouse.files(table.metadata.location))
    current = own.current()
    if current is None or keys.count == 0:
        return Deleted()
    files = may_have(data_files(own.files(current)), keys)
    if not files.num_rows:
        return Deleted()
    columns = own.schema.arrow
    rows = [
        FileKeys(
            FilePart(own, current, some, columns),
            keys.columns,
            number,
            {each: each for each in some["ordinal"].to_pylist()},
        )
        for number, some in enumerate(grouped(files))
    ]
    each = DeletingRows(table.files, table.metadata, own, current)
    are_few = keys.count is not None and keys.count <= FEW_KEYS
    made = joins.matches(rows, keys.rows, keys.columns, each, are_few=are_few)
    return Deleted([file for one in made for file in one.files], [path for one in made for path in one.whole])


def may_have(files: pa.Table, keys: ReplacedKeys) -> pa.Table:
    """The data files that may have rows with one of the keys, by the bounds of the key columns."""
    if keys.ranges is None or not files.num_rows:
        return files
    count = len(keys.ranges[0][0])
    kept = np.zeros(files.num_rows, dtype=bool)
    steps = [slice(place, place + 1) for place in range(count)] if count <= _MOST_RANGES else [slice(0, count)]
    for step in steps:
        here = np.ones(files.num_rows, dtype=bool)
        for key, (low, high) in zip(keys.columns, keys.ranges, strict=True):
            here &= _overlaps(files["stats"].combine_chunks(), key, low[step], high[step])
        kept |= here
    return files.filter(pa.array(kept))


def _overlaps(stats: pa.StructArray, key: pa.Field, low: pa.Array, high: pa.Array) -> np.ndarray:
    """Which units may have a value between the smallest of `low` and the largest of `high`. Unknown bounds exclude nothing."""
    name = str(field_id(key))
    if stats.type.get_field_index(name) < 0:
        return np.ones(len(stats), dtype=bool)
    own = stats.field(name)
    outside = pa.repeat(False, len(stats))
    for side, of, ends, compare in (
        ("max", pc.min, low, pc.less),
        ("min", pc.max, high, pc.greater),
    ):
        limit = None if ends.null_count else of(ends)
        if limit is not None and own.field(side).type == limit.type:
            outside = pc.or_(outside, pc.fill_null(compare(own.field(side), limit), False))
    return pc.invert(outside).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class DeletingRows:
    """Deletes rows of a table in tasks, by their positions."""

    files: TableFiles
    metadata: TableMetadata
    handle: IcebergTable
    snapshot: Snapshot

    def __call__(self, places: Places) -> Deleted:
        """Write delete files for the rows; the files without remaining rows are named instead."""
        listed = self.handle.files(self.snapshot)
        whole = []
        with DeleteFileWriter(self.files, self.metadata) as deletes:
            for number, positions in places:
                file = listed.slice(number, 1)
                before = self.handle.deleted_positions(self.snapshot, file)
                if len(np.union1d(positions, before)) == file["row_count"][0].as_py():
                    whole.append(file["path"][0].as_py())
                else:
                    deletes.add(file["path"][0].as_py(), positions, before=before)
            return Deleted(deletes.close(), whole)
