"""Tables whose rows are in files, as copies read them: which files are new, in what order they are loaded, and the position after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import PreconditionFailed
from skiway.formats import Format, Snapshot, TableHandle, data_files
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Changes, NewRows
from skiway.metastore.ingest.keys import FileKeys, KeyJoins, KeyRows, Places, WithoutNulls
from skiway.metastore.ingest.merging import ReplacedKeys
from skiway.metastore.ingest.positions import PART, Position
from skiway.metastore.ingest.rows import FilePart, Target, Written, grouped, write_part, write_rows
from skiway.metastore.jobs.attempts import Amounts

_LISTED: Final = (Format.PARQUET, Format.CSV, Format.JSON)


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table whose rows are in files."""

    handle: TableHandle
    distribute: KeyJoins

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """The files that are new, and those whose rows have been changed or deleted."""
        now = self.handle.current()
        if now is None:
            return None
        if rules.mode == CopyMode.REPLACE or position is None:
            return self._everything(now, rules, position)
        if position.get("kind") == PART:
            return self._rest(rules, position)
        if self.handle.format in _LISTED:
            return self._listed(now, rules, position)
        return self._between(now, rules, position)

    def _everything(self, now: Snapshot, rules: CopyRules, position: Position | None) -> FileChanges | None:
        after = self._position(now, rules)
        files = data_files(self.handle.files(now))
        replaces = rules.mode == CopyMode.REPLACE
        return None if after == position else FileChanges(self, now, files, after, replaces=replaces)

    def _rest(self, rules: CopyRules, position: Position) -> FileChanges | None:
        """The files of a snapshot that were not loaded when a load was stopped."""
        then, since = self._snapshot(position), position["since"]
        changes = self._everything(then, rules, None) if since is None else self._between(then, rules, since)
        if changes is None:
            return None
        done = position["done"]
        return replace(changes, added=ordered(changes.added).slice(done), since=since, done=done)

    def _position(self, now: Snapshot, rules: CopyRules) -> dict[str, Any]:
        if self.handle.format not in _LISTED:
            return {"kind": "snapshot", "id": now.id, "digest": now.digest}
        if rules.mode == CopyMode.REPLACE:
            return {"kind": "listing", "digest": now.digest}
        return {"kind": "files", "files": self.etags(self.handle.files(now))}

    def etags(self, files: pa.Table) -> dict[str, str]:
        """The files by their paths below the table, with what tells one content from another."""
        paths = (path.removeprefix(self.handle.location).lstrip("/") for path in files["path"].to_pylist())
        return dict(zip(paths, files["etag"].to_pylist(), strict=True))

    def _listed(self, now: Snapshot, rules: CopyRules, position: Position) -> FileChanges | None:
        loaded: dict[str, str] = _required(position, "files", self.handle)["files"]
        files = self.handle.files(now)
        etags = self.etags(files)
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
        return FileChanges(self, now, new, {**position, "files": {**loaded, **etags}}, since=position)

    def _between(self, now: Snapshot, rules: CopyRules, position: Position) -> FileChanges | None:
        then = self._snapshot(_required(position, "snapshot", self.handle))
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
        return FileChanges(self, now, added, self._position(now, rules), removed=removed, before=then, since=position)

    def _snapshot(self, stored: Position) -> Snapshot:
        """The snapshot of a position. Raise `PreconditionFailed` if it is gone."""
        then = next((snapshot for snapshot in self.handle.snapshots() if snapshot.id == stored["id"]), None)
        if then is None or then.digest != stored["digest"]:
            raise PreconditionFailed(
                f"snapshot {stored['id']} of {self.handle.name}, up to which rows were loaded, no longer exists, so the changes "
                "since then are unknown: load the table again in full, with skiway connectors sync --full",
                key="ingest.source.expired",
                snapshot=str(stored["id"]),
            )
        return then


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Files to load, as rows of the file table of a snapshot, and files `before` whose rows may be gone.

    `since` is the position before, if there is one, and `done` is the number of files of the snapshot that were loaded after it.
    """

    table: FileTable
    snapshot: Snapshot
    added: pa.Table
    position: Position
    replaces: bool = False
    removed: pa.Table | None = None
    before: Snapshot | None = None
    since: Position | None = None
    done: int = 0

    @property
    def amounts(self) -> Amounts:
        """The files to read, with their rows and bytes as far as these are known."""
        rows, size = (pc.sum(self.added[name], min_count=0).as_py() for name in ("row_count", "size_bytes"))
        return Amounts(self.added.num_rows, rows, size)

    def steps(self, step_bytes: int, *, growing: bool) -> list[FileChanges]:
        """Groups of files in their order. Changes with deleted rows are one step: half of an update is no state of the source."""
        files = ordered(self.added)
        if self.removed is not None and self.removed.num_rows:
            return [replace(self, added=files)]
        cuts, size, loaded = [0], 0, 0
        for place, each in enumerate(pc.fill_null(files["size_bytes"], 0).to_pylist()):
            if size and size + each > max(step_bytes, loaded // 4 if growing else 0):
                cuts.append(place)
                size = 0
            size, loaded = size + each, loaded + each
        cuts.append(files.num_rows)
        groups = [(end, files.slice(first, end - first)) for first, end in pairwise(cuts)]
        return [
            replace(
                self, added=some, position=self.position if end == files.num_rows else self._after(files.slice(0, end))
            )
            for end, some in groups
        ]

    def _after(self, files: pa.Table) -> Position:
        """The position after some of the files."""
        handle = self.table.handle
        if self.replaces:
            return self.position  # nothing is committed before all are loaded
        if handle.format in _LISTED:
            loaded = {} if self.since is None else self.since["files"]
            return {**self.position, "files": {**loaded, **self.table.etags(files)}}
        place = {"id": self.snapshot.id, "digest": self.snapshot.digest}
        return {"kind": PART, **place, "since": self.since, "done": self.done + files.num_rows}

    def columns(self) -> pa.Schema:
        """The columns of the files."""
        return self.table.handle.columns_of(self.added)

    def write(self, target: Target, keys: pa.Schema) -> NewRows:
        """Write the rows, without those whose keys occur again later: in a later file by name, or in the same file."""
        distribute, columns = self.table.distribute, self.columns()
        if not len(keys):
            parts = [self._part(self.snapshot, some, columns) for some in grouped(ordered(self.added))]
            made = distribute(lambda part: write_part(target, part), parts)
            return NewRows(Written.all(made, self.position))
        files = ordered(self.added)
        part = self._part(self.snapshot, files, columns)
        rows, parts_of = self._keys(part, keys)
        written = Written.all(distribute.last_rows(rows, keys, parts_of, _WritingRows(target, part)), self.position)
        replaced = ReplacedKeys.of(target, written.files, keys)
        if self.removed is None or self.before is None:
            return NewRows(written, replaced)
        schema = self.table.handle.schema_at(self.before).arrow
        gone, _ = self._keys(self._part(self.before, ordered(self.removed), schema), keys)
        count = pc.sum(self.removed["row_count"], skip_nulls=False, min_count=0).as_py()
        return NewRows(written, replaced.and_gone(gone, count))

    def _part(self, snapshot: Snapshot, files: pa.Table, schema: pa.Schema) -> FilePart:
        return FilePart(self.table.handle, snapshot, files, schema)

    @staticmethod
    def _keys(part: FilePart, keys: pa.Schema) -> tuple[list[KeyRows], list[int]]:
        """What reads the keys of files, whose numbers are their places, and the part of each file."""
        numbers = {ordinal: number for number, ordinal in enumerate(part.files["ordinal"].to_pylist())}
        rows: list[KeyRows] = []
        parts: list[int] = []
        for number, some in enumerate(grouped(part.files)):
            rows.append(WithoutNulls(FileKeys(replace(part, files=some), keys, number, numbers), keys))
            parts += [number] * some.num_rows
        return rows, parts


def ordered(files: pa.Table) -> pa.Table:
    """The files in the order in which later rows win: by the number of the commit, then by name."""
    numbers = pc.fill_null(files["sequence_number"], 0)
    order = pc.sort_indices(
        pa.table({"number": numbers, "path": files["path"]}),
        sort_keys=[("number", "ascending"), ("path", "ascending")],
    )
    return files.take(order)


@dataclass(frozen=True, slots=True)
class _WritingRows:
    """Writes the rows of files in a task, without those that later rows replace."""

    target: Target
    part: FilePart

    def __call__(self, places: Places) -> Written:
        return write_rows(self.target, (batch for place in places for batch in self._batches(*place)))

    def _batches(self, number: int, replaced: np.ndarray) -> Iterator[pa.RecordBatch]:
        file = self.part.files.slice(number, 1)
        part = replace(self.part, files=file, skipped={file["ordinal"][0].as_py(): replaced})
        return (batch.select(part.columns.names) for batch in part.batches())


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
    return data_files(files).filter(pa.array([state not in known for state in _states(files)], pa.bool_()))


def _required(position: Position, kind: str, handle: TableHandle) -> Position:
    """The position, if it is of this kind. Another mode or another kind of source has other positions."""
    if position.get("kind") != kind:
        raise PreconditionFailed(
            f"the last load of {handle.name} was in another mode, or from another kind of source, so the changes since then "
            "are unknown: load the table again in full, with skiway connectors sync --full",
            key="ingest.position.other",
        )
    return position
