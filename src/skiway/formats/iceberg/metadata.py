# mypy: disable-error-code="no-any-return"
"""Table metadata: created, validated, changed by requirements and updates, read and written.

Metadata is an immutable value. A change checks its requirements and returns new metadata; nothing is stored until that is
written as a new file.

The table assigns the ids of schemas, partition specs and sort orders, whatever a client proposes. A client numbers what
it adds by the state it has seen, so two clients may use the same id for different things, or add what exists already.
Here each addition gets the next free id, or the id of an equal one, and "the last added" is replaced by its id.

Times never decrease, whatever the clocks of clients and servers show: Iceberg's Java library rejects metadata whose logs
are not in order. So a snapshot is never older than the last change of its table.

Removing what does not exist changes nothing, as in Iceberg's Java library: another client may have removed it before.
"""

from __future__ import annotations

import gzip
import uuid
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skiway.errors import Conflict, InvalidArgument, SkiwayError
from skiway.formats.files import decoding
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.types import check_defaults, with_fresh_ids
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.foundation.clock import utc_now

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate


# PyIceberg is partly untyped.

MAIN: Final = "main"
"""The branch whose head is the current snapshot."""

_FORMATS: Final = ("1", "2", "3")
_LAST_ADDED: Final = -1
# What PyIceberg raises if it is given metadata or updates that do not fit together.
_INCONSISTENCY_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    StopIteration,
    TypeError,
)


def validated(metadata: TableMetadata) -> TableMetadata:
    """Return `metadata` if all schemas, specs, orders and snapshots that it refers to exist; raise ValueError otherwise."""
    references: dict[str, tuple[set[int], Iterable[int | None]]] = {
        "schema": (
            {schema.schema_id for schema in metadata.schemas},
            [metadata.current_schema_id, *(each.schema_id for each in metadata.snapshots)],
        ),
        "partition spec": ({spec.spec_id for spec in metadata.partition_specs}, [metadata.default_spec_id]),
        "sort order": ({order.order_id for order in metadata.sort_orders}, [metadata.default_sort_order_id]),
        "snapshot": ({each.snapshot_id for each in metadata.snapshots}, [metadata.current_snapshot_id]),
    }
    for what, (existing, referenced) in references.items():
        missing = next((each for each in referenced if each is not None and each not in existing), None)
        if missing is not None:
            raise ValueError(f"it refers to {what} {missing}, which does not exist")
    for snapshot in metadata.snapshots:
        numbers = (snapshot.snapshot_id, snapshot.parent_snapshot_id or 0, snapshot.sequence_number or 0)
        if any(number.bit_length() > 63 for number in numbers):
            raise ValueError(f"its snapshot {snapshot.snapshot_id} has numbers beyond 64 bits")
        datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return metadata


def with_assigned_ids(base: TableMetadata | None, updates: Sequence[TableUpdate]) -> tuple[TableUpdate, ...]:
    """The updates with the ids that they get when applied to `base`, or to a new table."""
    assigner = _IdAssigner(base)
    return tuple(each for update in updates for each in assigner.assigned(update))


_ADDITIONS: Final = {
    "add-schema": ("schema_", "schema_id"),
    "add-spec": ("spec", "spec_id"),
    "add-sort-order": ("sort_order", "order_id"),
}
"""What an update adds, and where the id of that is."""
_CHOICES: Final = {
    "set-current-schema": ("schema_", "schema_id"),
    "set-default-spec": ("spec", "spec_id"),
    "set-default-sort-order": ("sort_order", "sort_order_id"),
}
"""What an update chooses, by the id in this field."""


class _IdAssigner:
    def __init__(self, base: TableMetadata | None) -> None:
        self._known: dict[str, dict[int, Any]] = {
            "schema_": {} if base is None else {schema.schema_id: schema for schema in base.schemas},
            "spec": {} if base is None else {spec.spec_id: spec for spec in base.partition_specs},
            "sort_order": {} if base is None else {order.order_id: order for order in base.sort_orders},
        }
        self._last: dict[str, int] = {}

    def assigned(self, update: Any) -> Iterator[Any]:
        """Replace `update` by one update, or none."""
        if update.action in _ADDITIONS:
            yield from self._added(update, *_ADDITIONS[update.action])
        elif update.action in _CHOICES:
            kind, field = _CHOICES[update.action]
            is_last = getattr(update, field) == _LAST_ADDED and kind in self._last
            yield update.model_copy(update={field: self._last[kind]}) if is_last else update
        elif update.action != "upgrade-format-version" or update.format_version != 3:
            yield update  # PyIceberg cannot upgrade to version 3, so that has been done before

    def _added(self, update: Any, kind: str, field: str) -> Iterator[Any]:
        added, known = getattr(update, kind), self._known[kind]
        content: Callable[[Any], Any] = (lambda schema: schema) if kind == "schema_" else attrgetter("fields")
        same = (number for number, other in known.items() if content(other) == content(added))
        unused = max(known, default=_LAST_ADDED) + 1
        if kind == "sort_order":  # 0 is the id of the unsorted order
            unused = max(1, unused) if added.fields else 0
        number = self._last[kind] = next(same, unused)
        if number not in known:
            known[number] = added.model_copy(update={field: number})
            yield update.model_copy(update={kind: known[number]})


def new_metadata(
    schema: Schema,
    *,
    location: str,
    spec: PartitionSpec | None = None,
    order: SortOrder | None = None,
    properties: dict[str, str] | None = None,
) -> TableMetadata:
    """Create the metadata of a table without snapshots; column ids are assigned anew.

    The property `format-version` is 1, 2, which is the default, or 3.
    """
    properties = dict(properties or {})
    version = properties.setdefault("format-version", "2")
    if version not in _FORMATS:
        raise InvalidArgument(
            f"format-version {version!r} is not supported; use {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}",
            key="format.version",
        )
    numbered = spec is None and order is None and _is_numbered(schema)
    with _translated("the table"):
        schema.check_format_version_compatibility(int(version))
        check_defaults(schema, format_version=int(version))
        _check_transforms(spec, order)
        made = lib.metadata.new_table_metadata(
            schema.model_copy(update={"fields": schema.fields[:1]}) if numbered else schema,
            lib.partitioning.UNPARTITIONED_PARTITION_SPEC if spec is None else spec,
            lib.sorting.UNSORTED_SORT_ORDER if order is None else order,
            location,
            properties,
        )
        made.spec().check_compatible(made.schema())
        made.sort_order().check_compatible(made.schema())
    if numbered:  # then the first column stands for all, because PyIceberg takes long to number them again
        made = made.model_copy(update={"schemas": [schema], "last_column_id": len(schema.fields)})
    elif version == "3":  # only then there may be default values, which PyIceberg drops
        made = made.model_copy(update={"schemas": [with_fresh_ids(schema)]})
    return made.model_copy(update={"next_row_id": 0}) if version == "3" else made


def _check_transforms(*given: PartitionSpec | SortOrder | None) -> None:
    """Reject transforms that nobody can write, which PyIceberg accepts and forgets."""
    for field in (field for each in given if each is not None for field in each.fields):
        if isinstance(field.transform, lib.transforms.UnknownTransform):
            raise ValueError(
                f"the transform {field.transform._transform!r} is unknown: use identity, year, month, day, hour, bucket[N], "
                "truncate[N] or void"
            )


def _is_numbered(schema: Schema) -> bool:
    """Are the ids of the columns, none of which is nested, those that a new table assigns?"""
    return (schema.schema_id, schema.identifier_field_ids) == (0, []) and all(
        field.field_id == number and field.field_type.is_primitive for number, field in enumerate(schema.fields, 1)
    )


def updated(
    base: TableMetadata | None,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    *,
    location: str = "",
) -> TableMetadata:
    """Apply updates to `base`, which is stored at `location`; without a base, create the metadata of a new table.

    Raises Conflict with key `commit.failed` if a requirement does not hold, or a snapshot was made for an older state.
    """
    for requirement in requirements:
        try:
            requirement.validate(base)
        except lib.exceptions.CommitFailedException as error:
            raise commit_failed(str(error)) from error
    if base is not None:
        _check_current(base, updates)
    start = _empty_metadata() if base is None else base
    wanted = [update.format_version for update in updates if update.action == "upgrade-format-version"]
    if 3 in wanted and start.format_version < 3:
        start = _upgraded_to_version_3(start)
    with _translated("the update"):
        for update in updates:
            if update.action == "add-schema":
                version = max([start.format_version, *wanted])
                update.schema_.check_format_version_compatibility(version)
                check_defaults(update.schema_, format_version=version)
            _check_transforms(getattr(update, "spec", None), getattr(update, "sort_order", None))
        assigned = with_assigned_ids(base, updates)
        made = _changed(start if base is None else base, start, assigned, location)
        if base is None:
            made = lib.metadata.TableMetadataUtil.parse_obj(lib.added_types.with_types(made.model_dump()))
    # A replacement may start at a lower number, but the sequence number of a table never decreases.
    last = max(getattr(each, "last_sequence_number", None) or 0 for each in (base, made))
    if made.format_version > 1 and getattr(made, "last_sequence_number", None) != last:
        made = made.model_copy(update={"last_sequence_number": last})
    return made


def _changed(
    base: TableMetadata, start: TableMetadata, updates: tuple[TableUpdate, ...], location: str
) -> TableMetadata:
    """What PyIceberg's `update_table_metadata` returns, without a deep copy of it; `base` itself if nothing changes.

    `start` is `base`, or its upgrade to version 3.

    The copy takes longer than anything else in a commit to a table with a long history. It is not necessary, because
    neither PyIceberg nor this project ever changes metadata in place.
    """
    from pyiceberg.utils.datetime import datetime_to_millis

    context, made = lib.update._TableMetadataUpdateContext(), start
    for update in updates:
        if (effective := _effective(update, made)) is not None:
            before, made = made, lib.update._apply_table_update(effective, made, context)
            if update.action == "remove-snapshots":
                made = _without_removed(before, made)
    if context.has_changes() or start is not base or not is_ordered(base):
        if location:
            made = lib.update._update_table_metadata_log(made, location, base.last_updated_ms)
        if made.last_updated_ms == base.last_updated_ms:
            made = made.model_copy(update={"last_updated_ms": datetime_to_millis(utc_now())})
        made = ordered(_without_intermediate(made, updates))
        _check_schemas_of_snapshots(base, made)
    made.spec().check_compatible(made.schema())
    made.sort_order().check_compatible(made.schema())
    return made


def _effective(update: Any, metadata: TableMetadata) -> Any:
    """The part of `update` that changes `metadata`, or None. PyIceberg rejects removals of what does not exist."""
    match update.action:
        case "add-snapshot" if update.snapshot.timestamp_ms < metadata.last_updated_ms:
            return _at_time(update, metadata.last_updated_ms)
        case "set-snapshot-ref" if update.ref_name == MAIN and update.type != "branch":
            raise ValueError("main is a branch, it cannot become a tag")
        case "set-location" if update.location == getattr(metadata, "location", None):  # a new table has none
            return None
        case "remove-properties":
            return _remaining(update, "removals", metadata.properties)
        case "remove-snapshots":
            return _remaining(update, "snapshot_ids", {each.snapshot_id for each in metadata.snapshots})
        case "remove-partition-specs":
            return _remaining(update, "spec_ids", {spec.spec_id for spec in metadata.partition_specs})
        case "remove-schemas":
            return _remaining(update, "schema_ids", {schema.schema_id for schema in metadata.schemas})
        case "remove-statistics":
            known = {statistics.snapshot_id for statistics in metadata.statistics}
            return update if update.snapshot_id in known else None
        case "remove-partition-statistics":
            known = {statistics.snapshot_id for statistics in metadata.partition_statistics}
            return update if update.snapshot_id in known else None
        case _:
            return update


def _remaining(update: Any, field: str, existing: Container[Any]) -> Any:
    kept = [each for each in getattr(update, field) if each in existing]
    return update.model_copy(update={field: kept}) if kept else None


def _at_time(update: Any, time_ms: int) -> Any:
    return update.model_copy(update={"snapshot": update.snapshot.model_copy(update={"timestamp_ms": time_ms})})


def not_in_future(updates: Sequence[TableUpdate], now: datetime) -> tuple[TableUpdate, ...]:
    """The updates of a client whose clock may be ahead: its snapshots are not newer than `now`."""
    now_ms = int(now.timestamp() * 1000)
    return tuple(
        _at_time(update, now_ms)
        if update.action == "add-snapshot" and update.snapshot.timestamp_ms > now_ms
        else update
        for update in updates
    )


def _without_removed(before: TableMetadata, made: TableMetadata) -> TableMetadata:
    """Correct what PyIceberg leaves behind of snapshots that were removed.

    The log of snapshots begins after the last removed one, because the snapshot before that was not current in its time.
    """
    existing = {snapshot.snapshot_id for snapshot in made.snapshots}
    log: list[Any] = []
    for entry in before.snapshot_log:
        if entry.snapshot_id in existing:
            log.append(entry)
        else:
            log.clear()
    statistics = [each for each in made.partition_statistics if each.snapshot_id in existing]
    return made.model_copy(update={"snapshot_log": log, "partition_statistics": statistics})


def _without_intermediate(made: TableMetadata, updates: Sequence[Any]) -> TableMetadata:
    """Remove snapshots from the log that were added and replaced by others in the same change: they were never current."""
    added = {update.snapshot.snapshot_id for update in updates if update.action == "add-snapshot"} - {
        made.current_snapshot_id
    }
    if not any(entry.snapshot_id in added for entry in made.snapshot_log):
        return made
    log = [entry for entry in made.snapshot_log if entry.snapshot_id not in added]
    return made.model_copy(update={"snapshot_log": log})


def _check_schemas_of_snapshots(base: TableMetadata, made: TableMetadata) -> None:
    removed = {schema.schema_id for schema in base.schemas} - {schema.schema_id for schema in made.schemas}
    for snapshot in made.snapshots if removed else ():
        if snapshot.schema_id in removed:
            raise ValueError(f"schema {snapshot.schema_id} is that of snapshot {snapshot.snapshot_id}: expire it first")


def ordered(metadata: TableMetadata) -> TableMetadata:
    """The metadata with times that never decrease in its logs; `metadata` itself if that is so."""
    if is_ordered(metadata):
        return metadata
    snapshots, files = _rising(metadata.snapshot_log), _rising(metadata.metadata_log)
    last = max(metadata.last_updated_ms, *(each.timestamp_ms for each in (*snapshots[-1:], *files[-1:])))
    return metadata.model_copy(update={"snapshot_log": snapshots, "metadata_log": files, "last_updated_ms": last})


def is_ordered(metadata: TableMetadata, *, tolerance_ms: int = 0) -> bool:
    """Whether the times in the logs never decrease, and the last update is not older than they are."""
    for log in (metadata.snapshot_log, metadata.metadata_log):
        times = [*(entry.timestamp_ms for entry in log), metadata.last_updated_ms]
        if any(later < earlier - tolerance_ms for earlier, later in pairwise(times)):
            return False
    return True


def _rising(log: Sequence[Any]) -> list[Any]:
    times = accumulate((entry.timestamp_ms for entry in log), max)
    return [each.model_copy(update={"timestamp_ms": time}) for each, time in zip(log, times, strict=True)]


def history(metadata: TableMetadata) -> Iterator[Snapshot]:
    """The current snapshot and those before it, as far as they exist."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    current = metadata.current_snapshot()
    number = None if current is None else current.snapshot_id
    while number is not None and (found := by_id.pop(number, None)) is not None:
        yield found
        number = found.parent_snapshot_id


def summary_properties(snapshot: Snapshot) -> dict[str, str]:
    """The properties in the summary of a snapshot."""
    return {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)


def commit_failed(reason: str) -> Conflict:
    """The error of a commit that conflicts with the current state of the table."""
    reason = reason.removeprefix("Requirement failed: ").rstrip(".")
    return Conflict(
        f"the commit failed because the table has changed: {reason}; reload the table and retry the change",
        key="commit.failed",
        reason=reason,
    )


def _check_current(base: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    """Check that new snapshots continue the sequence numbers and row ids of `base`."""
    last, next_row = base.next_sequence_number() - 1, getattr(base, "next_row_id", None)
    # To replace a table, its main branch is removed before a snapshot is added.
    replaces = any(update.action == "remove-snapshot-ref" and update.ref_name == MAIN for update in updates)
    for update in updates:
        if update.action == "add-snapshot":
            number, row = update.snapshot.sequence_number, update.snapshot.first_row_id
            replaces_all = update.snapshot.parent_snapshot_id is None and replaces
            if number is not None and number <= last and not replaces_all:
                raise commit_failed(f"a snapshot has sequence number {number}, but the table is at {last}")
            if row is not None and next_row is not None and row < next_row:
                raise commit_failed(f"a snapshot assigns row id {row} again, but the table is at {next_row}")


def _empty_metadata() -> TableMetadata:
    """The metadata that the updates of a new table are applied to; the first of them sets the format version."""
    return lib.metadata.TableMetadataV1.model_construct(
        last_column_id=-1, schema=lib.schema.Schema(), last_updated_ms=0
    )


def _upgraded_to_version_3(metadata: TableMetadata) -> TableMetadata:
    """Upgrade to version 3, which PyIceberg cannot do. Row ids are assigned from the next snapshot on."""
    first_row = getattr(metadata, "next_row_id", None) or 0
    return lib.metadata.TableMetadataV3.model_construct(
        **{**dict(metadata), "format_version": 3, "next_row_id": first_row}
    )


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Run a block in which errors of PyIceberg become InvalidArgument."""
    from pydantic import ValidationError as Malformed

    try:
        yield
    except SkiwayError:
        raise
    except (ValueError, KeyError, NotImplementedError, lib.exceptions.ValidationError, Malformed) as error:
        reason = "; ".join(str(error).splitlines()[:3])[:400]
        raise InvalidArgument(f"{what} is not possible: {reason}", key="update.invalid", reason=reason) from error
    except _INCONSISTENCY_ERRORS as error:
        reason = type(error).__name__
        raise InvalidArgument(
            f"{what} is not possible: its ids of schemas, specs, orders or snapshots are inconsistent with each other or with "
            f"the table ({reason}); load the table and compare them",
            key="update.invalid",
            reason=reason,
        ) from error


def metadata_json(metadata: TableMetadata) -> str:
    """The metadata as JSON, as in a metadata file."""
    if metadata.format_version == 1:
        return msgspec.json.encode(_dumped(metadata)).decode()
    new = [snapshot for snapshot in metadata.snapshots if id(snapshot) not in _snapshot_texts]
    document = _dumped(metadata.model_copy(update={"snapshots": new}))
    for snapshot, dumped in zip(new, document["snapshots"], strict=True):
        _snapshot_texts[id(snapshot)] = msgspec.Raw(msgspec.json.encode(dumped))
        weakref.finalize(snapshot, _snapshot_texts.pop, id(snapshot), None).atexit = False
    document["snapshots"] = [_snapshot_texts[id(snapshot)] for snapshot in metadata.snapshots]
    return msgspec.json.encode(document).decode()


_snapshot_texts: Final[dict[int, msgspec.Raw]] = {}
"""The JSON of each snapshot in memory, by its `id`. A commit adds one snapshot to those of the metadata before, which are unchanged."""


def _dumped(metadata: TableMetadata) -> dict[str, Any]:
    # PyIceberg can serialize all parts of version 3, but not the whole. With a long history, `json` takes 0.3 ms longer.
    return metadata.model_dump(mode="json", by_alias=True, exclude_none=True)


def write_metadata(
    files: TableFiles,
    metadata: TableMetadata,
    *,
    version: int,
    text: str = "",
    sealed: bool = True,
    ids: Callable[[], object] = uuid.uuid4,
) -> str:
    """Write the metadata to a new file with this version number, and return its location; see `TableFiles.write`.

    `text` is the metadata as JSON, if the caller has it.
    """
    compressed = metadata.properties.get("write.metadata.compression-codec", "none").lower() == "gzip"
    suffix = ".gz.metadata.json" if compressed else ".metadata.json"
    location = f"{metadata_folder(metadata)}/{version:05d}-{ids()}{suffix}"
    data = (text or metadata_json(metadata)).encode()
    files.write(location, gzip.compress(data) if compressed else data, sealed=sealed)
    _cached(files, location, lambda: metadata)
    return location


def read_metadata(files: TableFiles, location: str) -> TableMetadata:
    """Read a metadata file, or return it from the cache: such files never change."""

    def load() -> TableMetadata:
        with decoding(files, location):
            return validated(lib.metadata_files.table_metadata(files, location))

    return _cached(files, location, load)


def _cached(files: TableFiles, location: str, load: Callable[[], TableMetadata]) -> TableMetadata:
    # The size in memory is estimated: snapshots are what makes metadata large.
    return files.cached("iceberg metadata", location, load=load, size_of=lambda it: 10_000 + 4_000 * len(it.snapshots))


def metadata_folder(metadata: TableMetadata) -> str:
    """The folder of the table's metadata files and manifests."""
    return metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata").rstrip("/")


def version_of(location: str) -> int:
    """The version number in the name of a metadata file; -1 if it has none."""
    number = location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1
