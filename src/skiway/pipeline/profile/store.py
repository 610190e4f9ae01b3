"""Profiles, kept per table: what was read of a data file once is never read again, even after the file is gone.

A table has an index, a single blob that tells which files are known, and parts that hold their profiles. A new part
swallows those that are not larger than itself, so there are few however often files are added. Part and index appear in
one step; a part that the index does not name is nobody's, and neither is a file in a part that the index does not name
for it.

Columns may be left out. A file that was profiled without some that are wanted now is as if it had never been.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import AlreadyExists, Contention, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import Kind
from skiway.metastore.records.parents import inside
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.statistics.file_table import written
from skiway.model import v1
from skiway.pipeline.profile.figures import IDENTITY, PROFILE

__all__ = ["ProfileStore"]

_PART_BYTES: Final = 128 << 20
_INDEX: Final = pa.schema(
    [
        *(PROFILE.field(name) for name in IDENTITY),
        pa.field("part", pa.string()),
        pa.field("part_bytes", pa.int64()),
        pa.field("left_out", pa.list_(pa.int32())),  # columns; NULL where there are none
    ]
)


@dataclass(frozen=True, slots=True)
class ProfileStore:
    """The profiles of the data files of one table, in which the columns `left_out` are not wanted."""

    realm: Realm
    table_id: v1.ResourceId
    left_out: frozenset[int] = frozenset()

    def unknown(self, files: pa.Table) -> pa.Table:
        """Those rows of a file table that were never profiled; one read."""
        return files.filter(pc.invert(pc.is_in(_identities(files), value_set=_identities(self._usable()))))

    def load(self, files: pa.Table) -> pa.Table:
        """The profiles of those files that are known."""
        return retrying(lambda: self._load(_identities(files)))

    def _load(self, wanted: pa.Array) -> pa.Table:
        known = self._usable()
        needed = known.filter(pc.is_in(_identities(known), value_set=wanted))
        try:
            parts = [self._files_in(part, needed) for part in needed["part"].unique().to_pylist()]
        except NotFound as error:
            # Swallowed meanwhile: the index tells by which. If it is simply lost, trying again does not help for ever.
            raise Contention(f"profiles of table {self.table_id.id} are gone: {error}; profile it again") from None
        return pa.concat_tables([PROFILE.empty_table(), *parts])

    def add(self, profiles: pa.Table) -> None:
        """Keep profiles of files, without the columns left out. Those known already are left as they are; what could not
        be read is not kept.
        """
        failed = profiles.filter(profiles["column_id"].is_null())["path"]
        kept = profiles.filter(pc.invert(pc.is_in(profiles["path"], value_set=failed.combine_chunks())))
        for piece in _pieces(kept):
            retrying(lambda piece=piece: self._add(piece))  # type: ignore[misc]

    def _add(self, profiles: pa.Table) -> None:
        index = self._indexes.find(self._index_key)
        known = _index(index)
        fresh = _without(profiles, self._usable_of(known))
        if not fresh.num_rows:
            return
        known = _without(known, fresh)  # profiled anew, with columns that were left out before
        swallowed = self._smaller(known, fresh.nbytes)
        content = pa.concat_tables([fresh, *(self._files_in(part, known) for part in swallowed)]).sort_by(
            [("path", "ascending"), ("column_id", "ascending")]
        )
        part = self._message(written(content.combine_chunks()))
        moved = known.filter(pc.is_in(known["part"], value_set=pa.array(swallowed, pa.string())))
        rows = pa.concat_tables([_files(fresh, self.left_out), moved.select([*IDENTITY, "left_out"])])
        rows = rows.append_column("part", pa.repeat(_digest(part), rows.num_rows))
        rows = rows.append_column("part_bytes", pa.repeat(content.nbytes, rows.num_rows))
        kept = known.filter(pc.invert(pc.is_in(known["part"], value_set=pa.array(swallowed, pa.string()))))
        self._publish(index, part, pa.concat_tables([kept, rows.select(_INDEX.names).cast(_INDEX)]).sort_by("path"))
        if swallowed:
            self._clear()

    def _publish(self, index: Stored[v1.FileStatsSet] | None, part: v1.FileStatsSet, rows: pa.Table) -> None:
        """Part and index at once, as long as the table exists and the index is as it was read."""
        table = hierarchy.table(self.realm, self.table_id)
        _, appearing = self._parts.reservation(part)
        unchanged = inside(table.pointer)
        message = self._message(written(rows.combine_chunks()))
        try:
            if index is None:
                self._indexes.create(message, also=lambda _: [*appearing, *unchanged])
            else:
                self._indexes.update(index, message, also=lambda _: [*appearing, *unchanged])
        except (AlreadyExists, NotFound, PreconditionFailed) as error:
            raise Contention(f"the profiles of table {self.table_id.id} are being changed by others: {error}") from None

    def _clear(self) -> None:
        """Remove parts that were swallowed. The index is read after them: what it names by then stays."""
        found = list(self.realm.stores.pointers.scan(f"{self._folder}parts/"))
        named = {self._part_key(part) for part in self._known()["part"].unique().to_pylist()}
        for pointer in found:
            if pointer.key not in named:
                self._parts.delete(pointer, v1.FileStatsSet())

    def _known(self) -> pa.Table:
        return _index(self._indexes.find(self._index_key))

    def _usable(self) -> pa.Table:
        return self._usable_of(self._known())

    def _usable_of(self, known: pa.Table) -> pa.Table:
        """Those that are known with all columns that are wanted."""
        columns = known["left_out"].combine_chunks()
        wanted = pc.invert(pc.is_in(columns.flatten(), value_set=pa.array(sorted(self.left_out), pa.int32())))
        lacking = columns.value_parent_indices().filter(wanted)
        return known.filter(pc.invert(pc.is_in(pa.array(range(known.num_rows), pa.int64()), value_set=lacking)))

    def _files_in(self, part: str, index: pa.Table) -> pa.Table:
        """The profiles in a part, of those files that the index says are there."""
        mine = index.filter(pc.equal(index["part"], part))
        found = self._part(part)
        return found.filter(pc.is_in(_identities(found), value_set=_identities(mine)))

    def _smaller(self, known: pa.Table, size: int) -> list[str]:
        """The parts that one of this size swallows, as long as the result is not too large."""
        parts = known.group_by(["part", "part_bytes"]).aggregate([]).sort_by("part_bytes")
        swallowed: list[str] = []
        for part in parts.to_pylist():
            if part["part_bytes"] > size or size + part["part_bytes"] > _PART_BYTES:
                break
            size += part["part_bytes"]
            swallowed.append(part["part"])
        return swallowed

    def _part(self, part: str) -> pa.Table:
        return _opened(self._parts.require(self._part_key(part), name=part), PROFILE)

    def _message(self, arrow_file: bytes) -> v1.FileStatsSet:
        identity = v1.ResourceId(account_id=self.realm.account_id, id=self.table_id.id, kind=v1.RK_TABLE)
        return v1.FileStatsSet(table_id=identity, arrow_file=arrow_file, updated_at=self.realm.now())

    # --- where it is --------------------------------------------------------------------------------------------------

    @property
    def _folder(self) -> str:
        # Among the snapshots, so that it goes with the table as they do.
        return f"{keys.of_table(self.realm.account_id, self.table_id.id)}snapshots/profiles/"

    @property
    def _index_key(self) -> str:
        return f"{self._folder}index"

    def _part_key(self, part: str) -> str:
        return f"{self._folder}parts/{part}"

    @property
    def _indexes(self) -> Repository[v1.FileStatsSet]:
        return self.realm.all(Kind("profile_index", v1.FileStatsSet, title=_title, key=lambda _: self._index_key))

    @property
    def _parts(self) -> Repository[v1.FileStatsSet]:
        return self.realm.all(
            Kind("profiles", v1.FileStatsSet, title=_title, key=lambda part: self._part_key(_digest(part)))
        )


def _pieces(profiles: pa.Table) -> Iterator[pa.Table]:
    """All profiles, those of a file together, in pieces of a bearable size."""
    paths = profiles["path"].unique()
    size = max(1, len(paths) * _PART_BYTES // max(profiles.nbytes, _PART_BYTES))
    for first in range(0, len(paths), size):
        yield profiles.filter(pc.is_in(profiles["path"], value_set=paths.slice(first, size)))


def _title(of: v1.FileStatsSet) -> str:
    return of.table_id.id


def _digest(part: v1.FileStatsSet) -> str:
    return sha256(part.arrow_file).hexdigest()


def _opened(stored: Stored[v1.FileStatsSet] | None, schema: pa.Schema) -> pa.Table:
    if stored is None:
        return schema.empty_table()
    return pa.ipc.open_file(pa.py_buffer(stored.value.arrow_file)).read_all()


def _index(stored: Stored[v1.FileStatsSet] | None) -> pa.Table:
    found = _opened(stored, _INDEX)
    if "left_out" in found.column_names:
        return found
    return found.append_column(_INDEX.field("left_out"), pa.nulls(found.num_rows, _INDEX.field("left_out").type))


def _files(profiles: pa.Table, left_out: frozenset[int]) -> pa.Table:
    """The files of profiles, as the index has them."""
    files = profiles.select(IDENTITY).group_by(list(IDENTITY)).aggregate([])
    columns = pa.array([sorted(left_out) or None] * files.num_rows, _INDEX.field("left_out").type)
    return files.append_column(_INDEX.field("left_out"), columns)


def _without(some: pa.Table, others: pa.Table) -> pa.Table:
    """Those rows that are of other files."""
    return some.filter(pc.invert(pc.is_in(_identities(some), value_set=_identities(others))))


def _identities(files: pa.Table) -> pa.Array:
    """One text per row that is equal for the same file."""
    parts = [pc.coalesce(files[name].cast(pa.string()), "") for name in IDENTITY]
    joined = pc.binary_join_element_wise(*parts, "\t")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
