"""What has changed in a table of files since the last load.

    Parquet, CSV, JSON    the files that are new. The position is the set of files that were loaded.
    Iceberg, Delta        the files that differ between two snapshots. The position is the snapshot.

Rows of an Iceberg or Delta table change by new files and new delete files. Files that only the older snapshot has, or with
other deletes, contain the rows that may have been changed or deleted: an upsert removes their keys and adds the rows of the
files that are new. This needs no change feed, and gives the same rows whatever the engine that wrote them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import PreconditionFailed
from skiway.formats import Format, Snapshot, Source, TableHandle, TableName, data_files
from skiway.metastore.ingest.positions import Position
from skiway.metastore.ingest.rows import Distribute, FilePart, Target, Written, last_rows, read_keys, write_part
from skiway.metastore.ingest.settings import CopyMode, CopyRules
from skiway.security.source_access import SourceAccess

__all__ = ["Changes", "CopiedTable", "CopyEngine", "DatabaseSource", "FileTable"]

_PART_BYTES: Final = 128 << 20
_LISTED: Final = (Format.PARQUET, Format.CSV, Format.JSON)


class Changes(Protocol):
    """What has to be loaded. If it `replaces`, it is all rows of the source, instead of those that the table has."""

    @property
    def replaces(self) -> bool: ...

    @property
    def file_count(self) -> int:
        """The number of files to read; 1 for a table of a database."""

    def columns(self) -> pa.Schema:
        """The columns of the rows."""

    def write(self, target: Target, keys: pa.Schema) -> Written:
        """Write the rows into new data files of the target. Of several rows with the same keys, the last one counts."""


class CopiedTable(Protocol):
    """A table of a source, as a copy reads it."""

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """What has changed since the position; without one, everything. None if nothing has."""


class DatabaseSource(Source):
    """The tables of a database or of an Airport server. They are copied and not mirrored, so `load` has no meaning for them."""

    @abstractmethod
    def copied(self, name: TableName) -> CopiedTable:
        """A table, as a copy reads it."""


class CopyEngine(Protocol):
    """What copies need besides the metastore: many processes, and access to databases."""

    @property
    def distribute(self) -> Distribute: ...

    def database(
        self, uri: str, *, options: Mapping[str, str], credentials: Mapping[str, str], access: SourceAccess
    ) -> DatabaseSource:
        """Open the database or the Airport server at `uri`, if `access` permits it."""


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table whose rows are in files."""

    handle: TableHandle
    distribute: Distribute

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """The files that are new, and those whose rows have been changed or deleted."""
        now = self.handle.current()
        if now is None:
            return None
        if rules.mode == CopyMode.REPLACE or position is None:
            return self._everything(now, rules, position)
        if self.handle.format in _LISTED:
            return self._listed(now, rules, position)
        return self._between(now, rules, position)

    def _everything(self, now: Snapshot, rules: CopyRules, position: Position | None) -> FileChanges | None:
        after = self._position(now, rules)
        files = data_files(self.handle.files(now))
        replaces = rules.mode == CopyMode.REPLACE
        return None if after == position else FileChanges(self, now, files, after, replaces=replaces)

    def _position(self, now: Snapshot, rules: CopyRules) -> dict[str, Any]:
        if self.handle.format not in _LISTED:
            return {"kind": "snapshot", "id": now.id, "digest": now.digest}
        if rules.mode == CopyMode.REPLACE:
            return {"kind": "listing", "digest": now.digest}
        return {"kind": "files", "files": self._etags(self.handle.files(now))}

    def _etags(self, files: pa.Table) -> dict[str, str]:
        """The files by their paths below the table, with what tells one content from another."""
        paths = (path.removeprefix(self.handle.location).lstrip("/") for path in files["path"].to_pylist())
        return dict(zip(paths, files["etag"].to_pylist(), strict=True))

    def _listed(self, now: Snapshot, rules: CopyRules, position: Position) -> FileChanges | None:
        loaded: dict[str, str] = _required(position, "files", self.handle)["files"]
        files = self.handle.files(now)
        etags = self._etags(files)
        changed = [path for path, etag in etags.items() if loaded.get(path, etag) != etag]
        if changed and rules.mode == CopyMode.APPEND:
            raise PreconditionFailed(
                f"{len(changed)} files have changed after they were loaded, such as {changed[0]!r}, so their rows cannot be "
                "appended: put new rows into new files, or use the mode upsert or replace",
                key="ingest.file.changed",
                file=changed[0],
            )
        new = files.filter(pa.array([loaded.get(path) != etag for path, etag in etags.items()], pa.bool_()))
        if not new.num_rows:
            return None
        # Files that are gone stay in the position: they may come back, for instance after a folder was not mounted.
        return FileChanges(self, now, new, {**position, "files": {**loaded, **etags}})

    def _between(self, now: Snapshot, rules: CopyRules, position: Position) -> FileChanges | None:
        stored = _required(position, "snapshot", self.handle)
        then = next((each for each in self.handle.snapshots() if each.id == stored["id"]), None)
        if then is None or then.digest != stored["digest"]:
            raise PreconditionFailed(
                f"snapshot {stored['id']} of {self.handle.name}, up to which rows were loaded, no longer exists, so the changes "
                "since then are unknown: load the table again in full, with skiway connectors sync --full",
                key="ingest.source.expired",
                snapshot=str(stored["id"]),
            )
        if then.id == now.id:
            return None
        old, new = self.handle.files(then), self.handle.files(now)
        removed, added = _without(old, _states(new)), _without(new, _states(old))
        if removed.num_rows and rules.mode == CopyMode.APPEND:
            raise PreconditionFailed(
                f"rows of {self.handle.name} were changed, deleted or rewritten since snapshot {then.id}, which the mode append "
                "cannot copy: use the mode upsert or replace",
                key="ingest.source.changed",
                snapshot=str(then.id),
            )
        return FileChanges(self, now, added, self._position(now, rules), removed=removed, before=then)


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Files to load, as rows of the file table of a snapshot, and files `before` whose rows may be gone."""

    table: FileTable
    snapshot: Snapshot
    added: pa.Table
    position: Position
    replaces: bool = False
    removed: pa.Table | None = None
    before: Snapshot | None = None

    @property
    def file_count(self) -> int:
        """The number of files to read."""
        return int(self.added.num_rows)

    def columns(self) -> pa.Schema:
        """The columns of the files."""
        return self.table.handle.columns_of(self.added)

    def write(self, target: Target, keys: pa.Schema) -> Written:
        """Write the rows, without those whose keys occur again later: in a later file by name, or in the same file."""
        parts = self._parts(self.snapshot, self.added, self.columns())
        found: list[pa.Table] = []
        if len(keys):
            found = self.table.distribute(lambda part: read_keys(part, keys), parts)
            parts = last_rows(parts, found, keys)
        written = self.table.distribute(lambda part: write_part(target, part), parts)
        if len(keys) and self.removed is not None and self.before is not None:
            schema = self.table.handle.schema_at(self.before).arrow
            gone = self._parts(self.before, self.removed, schema)
            found += self.table.distribute(lambda part: read_keys(part, keys), gone)
        return Written.all(written, self.position, [each.select(keys.names) for each in found])

    def _parts(self, snapshot: Snapshot, files: pa.Table, schema: pa.Schema) -> list[FilePart]:
        """The files in groups, in the order in which later rows win: by the number of the commit, then by name."""
        numbers = pc.fill_null(files["sequence_number"], 0)
        order = pc.sort_indices(
            pa.table({"number": numbers, "path": files["path"]}),
            sort_keys=[("number", "ascending"), ("path", "ascending")],
        )
        handle = self.table.handle
        return [FilePart(handle, snapshot, some, schema) for some in _grouped(files.take(order))]


def _grouped(files: pa.Table) -> Iterable[pa.Table]:
    first, size = 0, 0
    for place, each in enumerate(files["size_bytes"].to_pylist()):
        if size and size + each > _PART_BYTES:
            yield files.slice(first, place - first)
            first, size = place, 0
        size += each
    if files.num_rows > first:
        yield files.slice(first)


def _states(files: pa.Table) -> list[tuple[Any, ...]]:
    """What tells a data file from others, and from itself with other deletes."""
    paths = files["path"].to_pylist()
    names = dict(zip(files["ordinal"].to_pylist(), paths, strict=True))
    data = data_files(files)
    columns = (data[name].to_pylist() for name in ("path", "deleted_rows", "deletes"))
    return [
        (path, rows, *(names[each] for each in deletes or ())) for path, rows, deletes in zip(*columns, strict=True)
    ]


def _without(files: pa.Table, states: Sequence[tuple[Any, ...]]) -> pa.Table:
    known = set(states)
    return data_files(files).filter(pa.array([each not in known for each in _states(files)], pa.bool_()))


def _required(position: Position, kind: str, handle: TableHandle) -> Position:
    """The position, if it is of this kind. Another mode or another kind of source has other positions."""
    if position.get("kind") != kind:
        raise PreconditionFailed(
            f"the last load of {handle.name} was in another mode, or from another kind of source, so the changes since then "
            "are unknown: load the table again in full, with skiway connectors sync --full",
            key="ingest.position.other",
        )
    return position
