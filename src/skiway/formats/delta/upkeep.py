"""OPTIMIZE and VACUUM of Delta tables, by delta-rs.

A table is changed only if it is below a folder that the operator has opened for it, contains no symbolic links, and needs no
feature that delta-rs does not keep: it would read files without their deletion vectors, for example.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Conflict, PermissionDenied, SkiwayError, Unavailable, Unsupported
from skiway.formats.files import Files, first_lines
from skiway.formats.source import Packed, SizedFile, TableName
from skiway.security.source_access import Location

if TYPE_CHECKING:
    import deltalake


KEPT_FEATURES: Final = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz"}
"""The features that files keep when delta-rs rewrites them."""
_BY_PROPERTY: Final = {
    "delta.columnMapping.mode": ("columnMapping", ("", "none")),
    "delta.enableDeletionVectors": ("deletionVectors", ("", "false")),
    "delta.enableRowTracking": ("rowTracking", ("", "false")),
}
"""Features that a property turns on, and the values that do not."""
_TARGET_BYTES: Final = 100 << 20


class RewritableTable(ABC):
    """A Delta table whose files can be packed, and whose unused files can be removed."""

    name: TableName
    _place: Location
    _files: Files
    _newest: int

    @abstractmethod
    def _load(self, version: int | None) -> deltalake.DeltaTable: ...

    def check_rewritable(self) -> None:
        """Raise `PermissionDenied` if the operator does not allow it, and `Unsupported` if the table needs what cannot be kept."""
        self._files.reach.access.check_writable(self._place)
        linked = [str(each) for each in self._files.links(self._place) if each != self._place]
        if linked:
            raise PermissionDenied(
                f"table {str(self.name)!r} contains the symbolic link {linked[0]!r}, so it is not changed: it could lead elsewhere",
                key="location.refused",
            )
        unkept = sorted(_features(self._load(None)) - KEPT_FEATURES)
        if unkept:
            raise Unsupported(
                f"table {str(self.name)!r} has the feature {', '.join(unkept)}, which would not be kept: maintain the table with the "
                "program that writes it, or drop the feature",
                key="table.feature",
                table=str(self.name),
                feature=", ".join(unkept),
            )

    def packable(self, target_bytes: int) -> list[SizedFile]:
        """The files that `pack` would rewrite: small ones of partitions that have several."""
        import pyarrow as pa

        actions = pa.table(self._load(None).get_add_actions(flatten=False))
        target = target_bytes or _TARGET_BYTES
        parts = actions["partition"].to_pylist() if "partition" in actions.column_names else [None] * actions.num_rows
        small = [
            (repr(part), path, size)
            for part, path, size in zip(
                parts, actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True
            )
            if size < target
        ]
        per_part = Counter(part for part, _, _ in small)
        return [SizedFile(str(self._place / path), size) for part, path, size in small if per_part[part] > 1]

    def pack(self, *, target_bytes: int = 0, z_order: Sequence[str] = ()) -> Packed:
        """Pack small files, or rewrite all in a z-order. Raise `Conflict` if other writers were faster."""
        self.check_rewritable()
        optimizer, target = self._load(None).optimize, target_bytes or None
        with self._changing():
            done = optimizer.z_order(z_order, target_size=target) if z_order else optimizer.compact(target_size=target)
        removed, added = _figures(done, "filesRemoved"), _figures(done, "filesAdded")
        return Packed(done["numFilesRemoved"], done["numFilesAdded"], removed, added)

    def remove_unused(
        self, *, older_than: timedelta | None, keep: Collection[int], dry_run: bool = True
    ) -> list[SizedFile]:
        """Delete files that neither the current snapshot nor those in `keep` use, and that were not used or written since an age.

        Without an age, it is that of the table. In a dry run, they are only listed.
        """
        self.check_rewritable()
        table = self._load(None)
        hours = None if older_than is None else math.ceil(older_than.total_seconds() / 3600)
        options: dict[str, Any] = {
            "retention_hours": hours,
            "enforce_retention_duration": hours is None,
            "keep_versions": sorted(each for each in keep if each <= table.version()) or None,
            "full": True,
        }
        with self._changing():
            found = [self._place / path for path in table.vacuum(dry_run=True, **options)]
            sizes = {str(each): self._files.find(str(each)) for each in found}
            if not dry_run and found:
                removed = {str(self._place / path) for path in table.vacuum(dry_run=False, **options)}
                sizes = {each: size for each, size in sizes.items() if each in removed}
        return [SizedFile(each, 0 if size is None else size.size) for each, size in sorted(sizes.items())]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        from deltalake import exceptions

        try:
            yield
        except SkiwayError:
            raise
        except exceptions.CommitFailedError as error:
            raise Conflict(
                f"other writers changed table {str(self.name)!r} at the same time: try again",
                key="table.overtaken",
                detail=first_lines(error),
            ) from error
        except (exceptions.DeltaError, OSError) as error:
            raise Unavailable(
                f"table {str(self.name)!r} could not be maintained; the log of the server says why",
                key="source.unavailable",
                detail=first_lines(error),
            ) from error


def _features(table: deltalake.DeltaTable) -> set[str]:
    """The features that a table has: those in its protocol, and those that its properties turn on."""
    protocol, properties = table.protocol(), table.metadata().configuration
    by_property = {
        feature
        for name, (feature, unused) in _BY_PROPERTY.items()
        if str(properties.get(name, "")).lower() not in unused
    }
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())} | by_property


def _figures(done: dict[str, Any], name: str) -> int:
    """The size of files that delta-rs reports, in JSON or as a dictionary."""
    import json

    found = done.get(name) or {}
    return int((json.loads(found) if isinstance(found, str) else found).get("totalSize", 0))
