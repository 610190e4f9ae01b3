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
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Contention, NotFound
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import retrying
from skiway.metastore.statistics.file_table import written
from skiway.metastore.statistics.profiles import ProfileIndex, ProfileRecords
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
        index = self._records.index()
        known = _index(index)
        fresh = _without(profiles, self._usable_of(known))
        if not fresh.num_rows:
            return
        known = _without(known, fresh)  # profiled anew, with columns that were left out before
        swallowed = self._smaller(known, fresh.nbytes)
        content = pa.concat_tables([fresh, *(self._files_in(part, known) for part in swallowed)]).sort_by(
            [("path", "ascending"), ("column_id", "ascending")]
        )
        part = written(content.combine_chunks())
        moved = known.filter(pc.is_in(known["part"], value_set=pa.array(swallowed, pa.string())))
        rows = pa.concat_tables([_files(fresh, self.left_out), moved.select([*IDENTITY, "left_out"])])
        rows = rows.append_column("part", pa.repeat(self._records.digest(part), rows.num_rows))
        rows = rows.append_column("part_bytes", pa.repeat(content.nbytes, rows.num_rows))
        kept = known.filter(pc.invert(pc.is_in(known["part"], value_set=pa.array(swallowed, pa.string()))))
        new_index = pa.concat_tables([kept, rows.select(_INDEX.names).cast(_INDEX)]).sort_by("path")
        self._records.publish(index, part=part, index=written(new_index.combine_chunks()))
        if swallowed:
            self._records.delete_parts(except_those=lambda: self._known()["part"].unique().to_pylist())

    def _known(self) -> pa.Table:
        return _index(self._records.index())

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
        return _opened(self._records.part(part), PROFILE)

    @property
    def _records(self) -> ProfileRecords:
        return ProfileRecords(self.realm, self.table_id)


def _pieces(profiles: pa.Table) -> Iterator[pa.Table]:
    """All profiles, those of a file together, in pieces of a bearable size."""
    paths = profiles["path"].unique()
    size = max(1, len(paths) * _PART_BYTES // max(profiles.nbytes, _PART_BYTES))
    for first in range(0, len(paths), size):
        yield profiles.filter(pc.is_in(profiles["path"], value_set=paths.slice(first, size)))


def _opened(arrow_file: bytes, schema: pa.Schema) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(arrow_file)).read_all() if arrow_file else schema.empty_table()


def _index(stored: ProfileIndex) -> pa.Table:
    found = _opened(stored.content, _INDEX)
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
