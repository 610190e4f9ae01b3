"""Metadata of Iceberg that can be parsed may still contradict itself; whoever reads it must not find out by and by."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Conflict, InvalidArgument, SkiwayError
from skiway.formats.files import decoding
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = [
    "checked",
    "commit_failed",
    "metadata_folder",
    "metadata_json",
    "new_metadata",
    "numbered",
    "read_metadata",
    "updated",
    "version_of",
    "write_metadata",
]


def checked(metadata: TableMetadata) -> TableMetadata:
    """`metadata`, if all that it names is in it; ValueError if not."""
    known: dict[str, tuple[set[int], Iterable[int | None]]] = {
        "schema": ({each.schema_id for each in metadata.schemas}, _named_schemas(metadata)),
        "partition spec": ({each.spec_id for each in metadata.partition_specs}, [metadata.default_spec_id]),
        "sort order": ({each.order_id for each in metadata.sort_orders}, [metadata.default_sort_order_id]),
        "snapshot": ({each.snapshot_id for each in metadata.snapshots}, [metadata.current_snapshot_id]),
    }
    for what, (there, named) in known.items():
        missing = next((each for each in named if each is not None and each not in there), None)
        if missing is not None:
            raise ValueError(f"it names {what} {missing}, which it has not")
    for each in metadata.snapshots:
        _check_numbers(each)
    return metadata


def _check_numbers(snapshot: Snapshot) -> None:
    numbers = (snapshot.snapshot_id, snapshot.parent_snapshot_id or 0, snapshot.sequence_number or 0)
    if any(number.bit_length() > 63 for number in numbers):
        raise ValueError(f"its snapshot {snapshot.snapshot_id} has numbers beyond 64 bits")
    datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def _named_schemas(metadata: TableMetadata) -> list[int | None]:
    return [metadata.current_schema_id, *(each.schema_id for each in metadata.snapshots)]


# --------------------
# Ids of schemas, partition specs and sort orders: the table gives them, whatever a client proposes.
#
# A client numbers what it adds by what it has seen. Two clients, or one with an old view, propose the same number for
# different things, or add again what is there. Here each addition gets the next free number, or the number of the equal
# one that the table has already, and "the last one added" is said by its number.


_LAST = -1


def numbered(base: TableMetadata | None, updates: Sequence[TableUpdate]) -> tuple[TableUpdate, ...]:
    """The updates as they are to be applied to `base`, or to nothing."""
    numbers = _Numbers(base)
    return tuple(each for update in updates for each in numbers.of(update))


class _Numbers:
    def __init__(self, base: TableMetadata | None) -> None:
        self._schemas: dict[int, Any] = {} if base is None else {each.schema_id: each for each in base.schemas}
        self._specs: dict[int, Any] = {} if base is None else {each.spec_id: each for each in base.partition_specs}
        self._orders: dict[int, Any] = {} if base is None else {each.order_id: each for each in base.sort_orders}
        self._properties = set() if base is None else set(base.properties)
        self._last: dict[str, int] = {}

    def of(self, update: Any) -> Iterator[Any]:
        """What takes the place of `update`: one update, or none."""
        match update.action:
            case "add-schema":
                yield from self._schema(update)
            case "add-spec":
                yield from self._spec(update)
            case "add-sort-order":
                yield from self._order(update)
            case "set-current-schema" if update.schema_id == _LAST and "schema" in self._last:
                yield update.model_copy(update={"schema_id": self._last["schema"]})
            case "set-default-spec" if update.spec_id == _LAST and "spec" in self._last:
                yield update.model_copy(update={"spec_id": self._last["spec"]})
            case "set-default-sort-order" if update.sort_order_id == _LAST and "order" in self._last:
                yield update.model_copy(update={"sort_order_id": self._last["order"]})
            case "upgrade-format-version" if update.format_version == 3:
                return  # PyIceberg refuses it, so it is done before
            case "set-properties":
                self._properties |= update.updates.keys()
                yield update
            case "remove-properties":
                # Those that are not there are removed already.
                yield update.model_copy(
                    update={"removals": [key for key in update.removals if key in self._properties]}
                )
                self._properties -= set(update.removals)
            case _:
                yield update

    def _schema(self, update: Any) -> Iterator[Any]:
        schema = update.schema_
        same = (number for number, known in self._schemas.items() if known == schema)
        number = self._last["schema"] = next(same, max(self._schemas, default=_LAST) + 1)
        if number not in self._schemas:
            self._schemas[number] = schema.model_copy(update={"schema_id": number})
            yield update.model_copy(update={"schema_": self._schemas[number]})

    def _spec(self, update: Any) -> Iterator[Any]:
        spec = update.spec
        same = (number for number, known in self._specs.items() if known.fields == spec.fields)
        number = self._last["spec"] = next(same, max(self._specs, default=_LAST) + 1)
        if number not in self._specs:
            self._specs[number] = spec.model_copy(update={"spec_id": number})
            yield update.model_copy(update={"spec": self._specs[number]})

    def _order(self, update: Any) -> Iterator[Any]:
        order = update.sort_order
        same = (number for number, known in self._orders.items() if known.fields == order.fields)
        # 0 is the order of those that are not sorted.
        unused = max([0, *self._orders]) + 1 if order.fields else 0
        number = self._last["order"] = next(same, unused)
        if number not in self._orders:
            self._orders[number] = order.model_copy(update={"order_id": number})
            yield update.model_copy(update={"sort_order": self._orders[number]})


# --------------------
# The metadata of Iceberg tables: made, changed by requirements and updates, read and written.
#
# Metadata is a value. A change validates its requirements against it and gives new metadata; nothing is stored until the
# new metadata is written as a file of its own.


# mypy: disable-error-code=no-any-return


_FORMATS: Final = ("2", "3")
_STUMBLES: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError)


def new_metadata(
    schema: Schema,
    *,
    location: str,
    spec: PartitionSpec | None = None,
    order: SortOrder | None = None,
    properties: dict[str, str] | None = None,
    table_uuid: uuid.UUID | None = None,
) -> TableMetadata:
    """The metadata of a table without snapshots, its columns numbered anew. The property `format-version` is 2 or 3."""
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    kept = dict(properties or {})
    version = kept.setdefault("format-version", "2")
    if version not in _FORMATS:
        raise InvalidArgument(
            f"format-version {version!r} was asked for; tables are written in version {' or '.join(_FORMATS)}",
            key="format.version",
        )
    with _refusing("the table"):
        made = new_table_metadata(
            schema,
            UNPARTITIONED_PARTITION_SPEC if spec is None else spec,
            UNSORTED_SORT_ORDER if order is None else order,
            location,
            kept,
            table_uuid,
        )
    return made.model_copy(update={"next_row_id": 0}) if version == "3" else made


def updated(
    base: TableMetadata | None,
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    *,
    location: str = "",
) -> TableMetadata:
    """`base`, which is at `location`, after the updates; without a base, the metadata of a new table.

    Conflict, with key `commit.failed`, where a requirement does not hold or a snapshot was made for an older state.
    """
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import update_table_metadata

    for requirement in requirements:
        try:
            requirement.validate(base)
        except CommitFailedException as error:
            raise commit_failed(str(error)) from error
    if base is not None:
        _check_current(base, updates)
    start = _nothing() if base is None else base
    if any(update.action == "upgrade-format-version" and update.format_version == 3 for update in updates):
        start = _of_version_3(start)
    with _refusing("the update"):
        made = update_table_metadata(
            base_metadata=start,
            updates=numbered(base, updates),
            enforce_validation=base is None,
            metadata_location=location or None,
        )
    # A snapshot that replaces all may be older than the table, whose numbers never go back.
    last = max(getattr(each, "last_sequence_number", None) or 0 for each in (base, made))
    return made.model_copy(update={"last_sequence_number": last}) if made.format_version > 1 else made


def commit_failed(reason: str) -> Conflict:
    """The error that a change does not fit what the table has become."""
    reason = reason.removeprefix("Requirement failed: ").rstrip(".")
    return Conflict(
        f"the commit failed, the table was changed meanwhile: {reason}; load the table again and repeat the change",
        key="commit.failed",
        reason=reason,
    )


def _check_current(base: TableMetadata, updates: Sequence[TableUpdate]) -> None:
    """A snapshot carries on the numbers of the state it was made for, so it fits no other."""
    from pyiceberg.table.update import AddSnapshotUpdate

    last, next_row = base.next_sequence_number() - 1, getattr(base, "next_row_id", None)
    for update in updates:
        if isinstance(update, AddSnapshotUpdate):
            number, row = update.snapshot.sequence_number, update.snapshot.first_row_id
            replaces_all = update.snapshot.parent_snapshot_id is None and _starts_anew(updates)
            if number is not None and number <= last and not replaces_all:
                raise commit_failed(f"a snapshot has sequence number {number}, but the table is at {last}")
            if row is not None and next_row is not None and row < next_row:
                raise commit_failed(f"a snapshot gives row id {row} anew, but the table is at {next_row}")


def _starts_anew(updates: Sequence[TableUpdate]) -> bool:
    """Whether the table is replaced: its branch is given up, and what comes continues nothing."""
    return any(update.action == "remove-snapshot-ref" and update.ref_name == "main" for update in updates)


def _nothing() -> TableMetadata:
    """What the updates of a new table are applied to, the first of which says in which version it is."""
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadataV1

    return TableMetadataV1.model_construct(last_column_id=-1, schema=Schema())


def _of_version_3(metadata: TableMetadata) -> TableMetadata:
    """The same in version 3, which PyIceberg knows but does not upgrade to. Rows are numbered from the next snapshot on."""
    from pyiceberg.table.metadata import TableMetadataV3

    first_row = getattr(metadata, "next_row_id", None) or 0
    return TableMetadataV3.model_construct(**{**dict(metadata), "format_version": 3, "next_row_id": first_row})


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """A block in which PyIceberg's complaints become ours."""
    from pydantic import ValidationError as Malformed
    from pyiceberg.exceptions import ValidationError

    try:
        yield
    except SkiwayError:
        raise
    except (ValueError, KeyError, NotImplementedError, ValidationError, Malformed) as error:
        reason = "; ".join(str(error).splitlines()[:3])[:400]
        raise InvalidArgument(f"{what} is not possible: {reason}", key="update.invalid", reason=reason) from error
    except _STUMBLES as error:  # it trusts that what it is given fits together
        reason = type(error).__name__
        raise InvalidArgument(
            f"{what} is not possible: its parts do not fit together, or not the table ({reason}); load the table, and compare "
            "the ids of schemas, specs, orders and snapshots",
            key="update.invalid",
            reason=reason,
        ) from error


def metadata_json(metadata: TableMetadata) -> str:
    """The metadata as its file holds it."""
    # PyIceberg writes version 3 in all its parts, but refuses to write the whole.
    return json.dumps(metadata.model_dump(mode="json", by_alias=True, exclude_none=True))


def write_metadata(
    files: TableFiles, metadata: TableMetadata, *, version: int, ids: Callable[[], object] = uuid.uuid4
) -> str:
    """Where the metadata was written, as a new file of this version."""
    packed = metadata.properties.get("write.metadata.compression-codec", "none").lower() == "gzip"
    suffix = ".gz.metadata.json" if packed else ".metadata.json"
    location = f"{metadata_folder(metadata)}/{version:05d}-{ids()}{suffix}"
    data = metadata_json(metadata).encode()
    files.write(location, gzip.compress(data) if packed else data)
    _cached(files, location, lambda: metadata)
    return location


def read_metadata(files: TableFiles, location: str) -> TableMetadata:
    """Read a metadata file, or return it from the cache: such files never change."""

    def load() -> TableMetadata:
        from pyiceberg.serializers import FromInputFile

        from skiway.formats.iceberg.file_io import WritingIO

        with decoding(files, location):
            return checked(FromInputFile.table_metadata(WritingIO(files).new_input(location)))

    return _cached(files, location, load)


def _cached(files: TableFiles, location: str, load: Callable[[], TableMetadata]) -> TableMetadata:
    # The size in memory is estimated: snapshots are what makes metadata large.
    return files.cached("iceberg metadata", location, load=load, size_of=lambda it: 10_000 + 4_000 * len(it.snapshots))


def metadata_folder(metadata: TableMetadata) -> str:
    """Where the table keeps its metadata files and manifests."""
    return metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata").rstrip("/")


def version_of(location: str) -> int:
    """The number that the name of a metadata file begins with; -1 where it has none."""
    number = location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1
