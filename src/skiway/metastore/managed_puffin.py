"""Sketches of a managed table, attached to its metadata, where engines look for the numbers of distinct values.

Iceberg keeps them in a file per snapshot, in the format Puffin, which the metadata names. What the metastore itself tells
does not depend on it: a table that changes too fast for it, or is gone meanwhile, is left as it is.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from skiway.errors import SkiwayError
from skiway.formats.iceberg_commits import Change, Clock, Producer
from skiway.formats.iceberg_warehouse import TableFiles, Warehouse
from skiway.metastore import managed_commits
from skiway.metastore.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["SketchFile", "Sketched", "attach", "sketches_of", "with_sketches"]

log = logging.getLogger("skiway.profile")


class SketchFile(Protocol):
    """A Puffin file: its content, the size of its footer, and what is said of each blob there."""

    @property
    def data(self) -> bytes: ...
    @property
    def footer_size(self) -> int: ...
    @property
    def blobs(self) -> Sequence[Mapping[str, Any]]: ...


@runtime_checkable
class Sketched(Protocol):
    """What came of a profile that has made sketches."""

    def puffin(self) -> SketchFile: ...


def sketches_of(profiled: object) -> SketchFile | None:
    """The sketches that a profile has made, if it has."""
    return profiled.puffin() if isinstance(profiled, Sketched) else None


def attach(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, *, snapshot_id: int, sketches: SketchFile | None
) -> None:
    """Let the table's metadata name the sketches of a snapshot, in the place of those it had; no snapshot is made."""
    if sketches is None or not sketches.blobs:
        return
    try:
        managed_commits.change(realm, warehouse, table_id, with_sketches(snapshot_id, sketches))
    except SkiwayError as error:
        log.warning("the sketches of table %s are not in its metadata: %s", table_id.id, error)


def with_sketches(snapshot_id: int, sketches: SketchFile) -> Producer:
    """A change that fits every state in which there is the snapshot, and leaves others as they are."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        from pyiceberg.table.update import SetStatisticsUpdate

        if metadata.snapshot_by_id(snapshot_id) is None:
            return Change((), ())
        path = f"{metadata.location}/metadata/{snapshot_id}-{uuid.uuid4()}.stats"
        said = {
            "snapshot-id": snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": len(sketches.data),
            "file-footer-size-in-bytes": sketches.footer_size,
            "blob-metadata": [_without_place(blob) for blob in sketches.blobs],
        }
        update = SetStatisticsUpdate.model_validate({"statistics": said})
        files.write(path, sketches.data)
        return Change((), (update,), (path,))

    return produce


def _without_place(blob: Mapping[str, Any]) -> dict[str, Any]:
    """What metadata says of a blob: not where in the file it is."""
    return {name: value for name, value in blob.items() if name not in ("offset", "length")}
