# mypy: disable-error-code="call-arg"
"""The maintenance of tables: which data files are worth rewriting, and which snapshots expire.

Files that are much smaller than the target size are packed into larger ones, partition by partition. Files of which many rows
are deleted are rewritten without these rows. With an order, all files of a partition are rewritten and their rows are sorted.

A group is rewritten as a stream: the rows of one file after another, without the deleted ones, go into new files of the
current schema and partition spec. Rows of version 3 keep their lineage. Nothing is visible until the group is committed with
`commits.overwrite(..., operation="replace")`, which fails if others have changed the files since.

As in Iceberg, each branch keeps its latest snapshots: at least a number of them, and all that are younger than an age. A branch
or tag may set its own limits, and expires as a whole if it has a maximum age; `main` never does. Snapshots that no ref
reaches expire by age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import InvalidArgument
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.changes.commits import Change, Producer, of_metadata
from skiway.formats.iceberg.changes.evolution import sort_order
from skiway.formats.iceberg.metadata import MAIN
from skiway.formats.iceberg.table import IcebergTable, Lineage
from skiway.formats.iceberg.types import variant_columns
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.iceberg.writing.data_files import DataFileWriter, sort_keys, target_file_bytes
from skiway.formats.readers.scanning import ROW_POSITION
from skiway.formats.row_order import RowOrder, SortedBy, ZOrdered, in_order
from skiway.formats.source import Content, Snapshot, TableName, data_files, file_values

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
    from pyiceberg.table.update import TableUpdate

_SMALL: Final = 0.75
_BUFFER_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class NewOrder:
    """The order that rewritten rows get. `sort_order_id` is that of the table's sort order, if it is the same."""

    order: RowOrder
    sort_order_id: int | None = None


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """What is rewritten, and how.

    Files below three quarters of `target_bytes` are small. A group of small files is rewritten if it has at least `min_files`, or
    fills a file. A file is rewritten if more than `max_deleted` of its rows are deleted, or any by equality. With an
    `order`, all files are rewritten. A group has at most `group_bytes`, unless it is one file.
    """

    target_bytes: int
    min_files: int = 5
    max_deleted: float = 0.1
    order: NewOrder | None = None
    group_bytes: int = 4 << 30

    @classmethod
    def of(cls, metadata: TableMetadata, **options: Any) -> CompactionRules:
        """The rules for a table, whose property has the target size unless the options do."""
        target = options.pop("target_bytes", 0) or target_file_bytes(metadata.properties)
        return cls(target, **options)

    def is_small(self, size: int) -> bool:
        """Whether a file of this size is small."""
        return size < _SMALL * self.target_bytes


def new_order(metadata: TableMetadata, *, sort: str = "", z_order: Sequence[str] = ()) -> NewOrder | None:
    """The order that lists of columns describe: `sort` like `ts DESC, id`, or the columns of a curve; None without any."""
    schema = metadata.schema()
    if sort and z_order:
        raise InvalidArgument("rows can be sorted or in z-order, not both: choose one", key="sort.invalid")
    if z_order:
        curve = sort_keys(schema, sort_order(schema, ", ".join(z_order)))
        if not 2 <= len(curve) <= 6:
            raise InvalidArgument(
                f"a z-order has 2 to 6 columns of the table, none of them nested, but {', '.join(z_order)!r} has "
                f"{len(curve)}: use another list, or sort by one column",
                key="sort.invalid",
            )
        return NewOrder(ZOrdered([name for name, _, _ in curve]))
    if not sort:
        return None
    wanted = sort_order(schema, sort)
    keys = sort_keys(schema, wanted)
    if not keys:
        raise InvalidArgument(
            f"rows cannot be sorted by {sort!r}: name columns that are not nested", key="sort.invalid"
        )
    same = metadata.sort_order().fields == wanted.fields
    return NewOrder(SortedBy(keys), metadata.default_sort_order_id if same else None)


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Data files of one partition that are rewritten together, as rows of the file table, and the reason."""

    files: pa.Table
    reason: str

    @property
    def paths(self) -> list[str]:
        """The paths of the files."""
        found: list[str] = self.files["path"].to_pylist()
        return found

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return int(pc.sum(self.files["size_bytes"], min_count=0).as_py())

    @property
    def row_count(self) -> int:
        """The number of rows, including deleted ones."""
        return int(pc.sum(self.files["row_count"], min_count=0).as_py())

    def unchanged_in(self, files: pa.Table) -> FileGroup:
        """The group in a later snapshot, with the data files `files`: without those that others have removed or deleted from."""
        before, now = (_deletes_by_path(each) for each in (self.files, files))
        same = pa.array([path for path, deletes in before.items() if now.get(path) == deletes], pa.string())
        return FileGroup(files.filter(pc.is_in(files["path"], value_set=same)), self.reason)


def _deletes_by_path(files: pa.Table) -> dict[str, tuple[int | None, int]]:
    """How many rows of each data file are deleted, if that is known, and with how many delete files."""
    found = file_values(files, "path", "deleted_rows", "deletes")
    return {path: (rows, len(deletes or ())) for path, rows, deletes in found}


def file_groups(table: IcebergTable, snapshot: Snapshot, rules: CompactionRules) -> list[FileGroup]:
    """The groups of files that are worth rewriting, partition by partition; none if the table has variants."""
    if variant_columns(table.metadata.schema()):
        return []  # Skiway does not write them
    files = table.files(snapshot)
    by_partition: dict[tuple[int, str], list[int]] = {}
    data = data_files(files)
    partitions = (repr(each) for each in data["partition"].to_pylist())  # as text, because NaN != NaN
    for place, key in enumerate(zip(data["spec_id"].to_pylist(), partitions, strict=True)):
        by_partition.setdefault(key, []).append(place)
    sizes, rows = data["size_bytes"].to_pylist(), data["row_count"].to_pylist()
    deleted = _deleted_shares(files, data)
    found = []
    for places in by_partition.values():
        chosen = [
            place
            for place in places
            if rules.order or rules.is_small(sizes[place]) or _is_worn(deleted[place], rules, rows[place])
        ]
        for packed in _packed(chosen, sizes, rules):
            worn = sum(_is_worn(deleted[place], rules, rows[place]) for place in packed)
            if reason := _reason([sizes[place] for place in packed], worn, rules):
                found.append(FileGroup(data.take(pa.array(packed, pa.int64())), reason))
    return found


def _deleted_shares(files: pa.Table, data: pa.Table) -> list[float]:
    """The share of deleted rows of each data file; 1 if it is not known, because rows are deleted by equality."""
    by_position = {
        ordinal: rows if content == Content.POSITION_DELETES else None
        for ordinal, content, rows in file_values(files, "ordinal", "content", "row_count")
        if content != Content.DATA
    }
    shares = []
    for rows, known, deletes in file_values(data, "row_count", "deleted_rows", "deletes"):
        counts = [by_position.get(each) for each in deletes or ()] if known is None else [known]
        numbers = [each for each in counts if each is not None]
        shares.append(1.0 if len(numbers) < len(counts) else min(1.0, sum(numbers) / rows) if rows else 0.0)
    return shares


def _is_worn(deleted: float, rules: CompactionRules, rows: int) -> bool:
    return rows > 0 and deleted > 0 and deleted >= rules.max_deleted


def _packed(places: Sequence[int], sizes: Sequence[int], rules: CompactionRules) -> Iterator[list[int]]:
    """The files in groups of at most the maximum size, in their order, so that neighbours stay together."""
    group: list[int] = []
    for place in places:
        if group and sum(sizes[index] for index in group) + sizes[place] > rules.group_bytes:
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _reason(sizes: Sequence[int], worn: int, rules: CompactionRules) -> str:
    """Why a group is rewritten; empty if it is not worth it."""
    if rules.order:
        return f"{len(sizes)} files are put in order"
    small = sum(map(rules.is_small, sizes))
    packs = small >= rules.min_files or (small > 1 and sum(sizes) >= rules.target_bytes)
    reasons = [f"{small} small files"] * packs + [f"{worn} files with deleted rows"] * bool(worn)
    return " and ".join(reasons)


def rewritten(
    table: IcebergTable,
    snapshot: Snapshot,
    group: FileGroup,
    rules: CompactionRules,
    *,
    files: TableFiles,
    check: Callable[[], None] = lambda: None,
) -> tuple[DataFileWriter, list[DataFile]]:
    """Write the rows of a group, without the deleted ones, into new files, and return them with their writer.

    If the commit fails, `writer.abort()` deletes the files. `check` is called between batches, and may raise to stop.
    """
    metadata = table.metadata
    now = table.schema.arrow
    lineage = Lineage.of(now) if metadata.format_version >= 3 else None
    schema = now if lineage is None else lineage.added_to(now)
    writer = DataFileWriter(
        files,
        metadata,
        buffer_bytes=min(_BUFFER_BYTES, rules.target_bytes),
        lineage=lineage is not None,
        target_bytes=rules.target_bytes,
        in_order=rules.order is not None,
        sort_order_id=rules.order.sort_order_id if rules.order else None,
    )
    with writer:  # deletes its files if anything fails
        rows = _live_rows(table, snapshot, group.files, schema, lineage)
        for batch in rows if rules.order is None else in_order(rows, schema, rules.order.order):
            check()
            writer.write(batch)
        return writer, writer.close()


def _live_rows(
    table: IcebergTable, snapshot: Snapshot, files: pa.Table, schema: pa.Schema, lineage: Lineage | None
) -> Iterator[pa.RecordBatch]:
    """The rows of files that are not deleted, in the table's current columns, with their lineage if it is given."""
    inherited = table.lineage(snapshot) if lineage else {}
    for place in range(files.num_rows):
        file = files.slice(place, 1)
        ordinal = file["ordinal"][0].as_py()
        for batch in table.read(snapshot, files=file, schema=schema, positions=True):
            rows = batch if lineage is None else lineage.filled(batch, batch.column(ROW_POSITION), inherited[ordinal])
            yield rows.select(schema.names)


def unused_deletes(metadata: TableMetadata, files: TableFiles) -> set[tuple[str, object]]:
    """The delete files of the current snapshot that apply to none of its data files, for `commits.tidy`."""
    table = IcebergTable(TableName((), "table"), metadata, metadata_location="", files=files)
    current = table.current()
    if current is None:
        return set()
    found = table.placed_files(current)
    applied = pc.list_flatten(data_files(found)["deletes"]).unique()
    deletes = found.filter(pc.not_equal(found["content"], Content.DATA))
    unused = deletes.filter(pc.invert(pc.is_in(deletes["ordinal"], value_set=applied)))
    places = file_values(unused, "path", "blob_offset", "blob_size")
    return {(path, None if offset is None else (offset, size)) for path, offset, size in places}


# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.

_MAX_AGE: Final = "history.expire.max-snapshot-age-ms"
_MIN_COUNT: Final = "history.expire.min-snapshots-to-keep"
_FIVE_DAYS_MS: Final = 5 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class ExpiryRules:
    """How long snapshots are kept, and how many of each branch at least."""

    max_age_ms: int = _FIVE_DAYS_MS
    min_count: int = 1

    @classmethod
    def of(
        cls, properties: Mapping[str, str], *, max_age_ms: int | None = None, min_count: int | None = None
    ) -> ExpiryRules:
        """The rules of a table with these properties; the arguments take precedence."""
        return cls(
            _number(properties, _MAX_AGE, _FIVE_DAYS_MS) if max_age_ms is None else max_age_ms,
            max(1, _number(properties, _MIN_COUNT, 1)) if min_count is None else max(1, min_count),
        )


@dataclass(frozen=True, slots=True)
class Expiry:
    """The refs and snapshots that expire, and why each other snapshot is kept."""

    refs: tuple[str, ...] = ()
    snapshots: tuple[int, ...] = ()
    kept: Mapping[int, str] = field(default_factory=dict)


def expirable(metadata: TableMetadata, rules: ExpiryRules, *, now_ms: int, in_use: Mapping[int, str]) -> Expiry:
    """What expires now. `in_use` are snapshots that are read, with the reasons to keep them."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    refs = [name for name, ref in metadata.refs.items() if _is_over(name, ref, by_id, now_ms)]
    kept: dict[int, str] = {}
    for name, ref in metadata.refs.items():
        if name not in refs:
            for number, reason in _kept_by(name, ref, by_id, rules, now_ms):
                kept.setdefault(number, reason)
    for number, reason in in_use.items():
        if number in by_id:
            kept.setdefault(number, reason)
    heads = [ref.snapshot_id for name, ref in metadata.refs.items() if name not in refs]
    reachable = {each.snapshot_id for head in heads for each in _ancestors(head, by_id)}
    for number, each in by_id.items():
        if number not in reachable and now_ms - each.timestamp_ms < rules.max_age_ms:
            kept.setdefault(number, "younger than the maximum age")
    gone = sorted(by_id.keys() - kept.keys(), key=lambda number: (by_id[number].timestamp_ms, number))
    return Expiry(tuple(refs), tuple(gone), kept)


def expire(choose: Callable[[TableMetadata], Expiry]) -> Producer:
    """Remove the refs and snapshots that `choose` returns for the current state of the table; nothing if there are none."""
    return of_metadata(lambda metadata: Change((), tuple(_updates(metadata, choose(metadata)))))


def _updates(metadata: TableMetadata, chosen: Expiry) -> Iterator[TableUpdate]:
    for name in chosen.refs:
        yield lib.update.RemoveSnapshotRefUpdate(ref_name=name)
    for statistics in metadata.partition_statistics:
        if statistics.snapshot_id in chosen.snapshots:
            yield lib.update.RemovePartitionStatisticsUpdate(snapshot_id=statistics.snapshot_id)
    if chosen.snapshots:  # their other statistics are removed with them
        yield lib.update.RemoveSnapshotsUpdate(snapshot_ids=list(chosen.snapshots))


def _is_over(name: str, ref: SnapshotRef, by_id: Mapping[int, IcebergSnapshot], now_ms: int) -> bool:
    """Whether a branch or tag has reached its maximum age, or its snapshot is missing."""
    if name == MAIN:
        return False
    found = by_id.get(ref.snapshot_id)
    limit = ref.max_ref_age_ms
    return found is None or (limit is not None and now_ms - found.timestamp_ms > limit)


def _kept_by(
    name: str, ref: SnapshotRef, by_id: Mapping[int, IcebergSnapshot], rules: ExpiryRules, now_ms: int
) -> Iterator[tuple[int, str]]:
    if ref.snapshot_ref_type.value == "tag":
        yield ref.snapshot_id, f"tag {name}"
        return
    at_least = rules.min_count if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
    max_age_ms = rules.max_age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms
    for place, each in enumerate(_ancestors(ref.snapshot_id, by_id)):
        if place == 0:
            yield each.snapshot_id, f"the head of branch {name}"
        elif place < at_least:
            yield each.snapshot_id, f"one of the last {at_least} of branch {name}"
        elif now_ms - each.timestamp_ms < max_age_ms:
            yield each.snapshot_id, "younger than the maximum age"


def _ancestors(number: int | None, by_id: Mapping[int, IcebergSnapshot]) -> Iterator[IcebergSnapshot]:
    """A snapshot and those before it, the latest first."""
    seen: set[int] = set()
    while number is not None and number in by_id and number not in seen:
        seen.add(number)
        yield by_id[number]
        number = by_id[number].parent_snapshot_id


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    found = properties.get(name, str(default))
    if not found.isdecimal():
        raise InvalidArgument(f"property {name} is {found!r}, but must be a number", key="property.invalid")
    return int(found)
