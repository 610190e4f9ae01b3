# mypy: disable-error-code=no-any-return
"""The metadata of Iceberg tables: made, changed by requirements and updates, read and written.

Metadata is a value. A change validates its requirements against it and gives new metadata; nothing is stored until the
new metadata is written as a file of its own.
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Conflict, InvalidArgument, SkiwayError
from skiway.formats.damage import undamaged
from skiway.formats.iceberg_numbering import numbered
from skiway.formats.iceberg_soundness import checked
from skiway.formats.iceberg_warehouse import TableFiles
from skiway.formats.kept import Kept

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = ["metadata_json", "new_metadata", "read_metadata", "updated", "version_of", "write_metadata"]

_FORMATS: Final = ("2", "3")
_STUMBLES: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, StopIteration, TypeError)
_read: Final = Kept[tuple[object, ...], Any](
    64 << 20, size_of=lambda metadata: 10_000 + 4_000 * len(metadata.snapshots)
)


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
    _read.get((files.identity, location), lambda: metadata)
    return location


def read_metadata(files: TableFiles, location: str) -> TableMetadata:
    """The metadata in a file. It never changes, so it is read once."""

    def read() -> TableMetadata:
        from pyiceberg.serializers import FromInputFile

        with undamaged(files, location):
            return checked(FromInputFile.table_metadata(files.io.new_input(location)))

    return _read.get((files.identity, location), read)


def metadata_folder(metadata: TableMetadata) -> str:
    """Where the table keeps its metadata files and manifests."""
    return metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata").rstrip("/")


def version_of(location: str) -> int:
    """The number that the name of a metadata file begins with; -1 where it has none."""
    number = location.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isdecimal() else -1
