"""The store of profiles, per table: a data file that was profiled is not read again for later snapshots.

A table has an index, a single blob that lists the profiled files, and parts, which hold their profiles. A new part absorbs
parts that are not larger than itself, so that there are few, however often files are added. Part and index are published
in one transaction. A part that is not in the index is garbage, and so is a file in a part other than its part in the index.

A file is profiled again if columns are requested that were left out in its profile, if the profile was made by a version of
the code that is too old, or on request.
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
from skiway.metastore.statistics import CURRENT_VERSION
from skiway.metastore.statistics.file_table import ProfileIndex, ProfileRecords, written
from skiway.model import v1
from skiway.spark_jobs.profile.figures import IDENTITY, PROFILE

_PART_BYTES: Final = 128 << 20
_INDEX: Final = pa.schema(
    [
        *(PROFILE.field(name) for name in IDENTITY),
        pa.field("part", pa.string()),
        pa.field("part_bytes", pa.int64()),
        pa.field("left_out", pa.list_(pa.int32())),  # column ids; NULL if there are none
        pa.field("with_elements", pa.bool_()),  # whether values in lists and maps are profiled; not in old versions
        pa.field("version", pa.int32()),  # of the code that made the profile; NULL before version 1
        pa.field("run", pa.string()),  # the run that was to read all files again; NULL if there was none
    ]
)


@dataclass(frozen=True, slots=True)
class ProfileStore:
    """The profiles of the data files of one table, without the columns `left_out`. With `elements`, the table has lists or maps.

    Profiles of versions before `since` do not count. With a `run`, files are unknown until this run has profiled them.
    """

    realm: Realm
    table_id: v1.ResourceId
    left_out: frozenset[int] = frozenset()
    elements: bool = False
    since: int = 0
    run: str = ""

    def unknown(self, files: pa.Table) -> pa.Table:
        """The rows of a file table whose files have no profile. Costs one read."""
        return files.filter(
            pc.invert(pc.is_in(_identities(files), value_set=_identities(self._done_of(self._known()))))
        )

    def load(self, files: pa.Table) -> pa.Table:
        """Load the profiles of those files that have one."""
        return retrying(lambda: self._load(_identities(files)))

    def _load(self, wanted: pa.Array) -> pa.Table:
        known = self._usable_of(self._known())
        needed = known.filter(pc.is_in(_identities(known), value_set=wanted))
        try:
            parts = [self._files_in(part, needed) for part in needed["part"].unique().to_pylist()]
        except NotFound as error:
            # Absorbed concurrently; the index names the new part. If the part is really lost, retries end after a while.
            raise Contention(f"profiles of table {self.table_id.id} are missing: {error}; profile it again") from None
        return pa.concat_tables([PROFILE.empty_table(), *parts])

    def add(self, profiles: pa.Table) -> None:
        """Store the profiles of files. Profiles that need not be made again are not replaced, and failed files are not stored."""
        failed = profiles.filter(profiles["column_id"].is_null())["path"]
        complete = profiles.filter(pc.invert(pc.is_in(profiles["path"], value_set=failed.combine_chunks())))
        for piece in _pieces(complete):
            retrying(lambda piece=piece: self._add(piece))  # type: ignore[misc]

    def _add(self, profiles: pa.Table) -> None:
        index = self._records.index()
        known = _index(index)
        fresh = _without(profiles, self._done_of(known))
        if not fresh.num_rows:
            return
        known = _without(known, fresh)  # profiled again
        absorbed = self._absorbable(known, fresh.nbytes)
        content = pa.concat_tables([fresh, *(self._files_in(part, known) for part in absorbed)]).sort_by(
            [("path", "ascending"), ("column_id", "ascending")]
        )
        # A part is addressed by its content. Profiles that are made again can be the same, but their part is another one.
        made = {"version": str(CURRENT_VERSION), "run": self.run}
        part = written(content.replace_schema_metadata(made).combine_chunks())
        moved = known.filter(pc.is_in(known["part"], value_set=pa.array(absorbed, pa.string())))
        rows = pa.concat_tables([self._files(fresh), moved.drop_columns(["part", "part_bytes"])])
        rows = rows.append_column("part", pa.repeat(self._records.digest(part), rows.num_rows))
        rows = rows.append_column("part_bytes", pa.repeat(content.nbytes, rows.num_rows))
        unchanged = known.filter(pc.invert(pc.is_in(known["part"], value_set=pa.array(absorbed, pa.string()))))
        new_index = pa.concat_tables([unchanged, rows.select(_INDEX.names).cast(_INDEX)]).sort_by("path")
        self._records.publish(index, part=part, index=written(new_index.combine_chunks()))
        if absorbed:
            self._records.delete_parts(except_those=lambda: self._known()["part"].unique().to_pylist())

    def _known(self) -> pa.Table:
        return _index(self._records.index())

    def _done_of(self, known: pa.Table) -> pa.Table:
        """The files that need not be profiled."""
        usable = self._usable_of(known)
        return usable.filter(pc.equal(usable["run"], self.run)) if self.run else usable

    def _usable_of(self, known: pa.Table) -> pa.Table:
        """The files whose profile is recent enough and has all requested columns."""
        known = known.filter(pc.greater_equal(pc.fill_null(known["version"], 0), self.since))
        if self.elements:
            known = known.filter(known["with_elements"])
        columns = known["left_out"].combine_chunks()
        wanted = pc.invert(pc.is_in(columns.flatten(), value_set=pa.array(sorted(self.left_out), pa.int32())))
        lacking = columns.value_parent_indices().filter(wanted)
        return known.filter(pc.invert(pc.is_in(pa.array(range(known.num_rows), pa.int64()), value_set=lacking)))

    def _files_in(self, part: str, index: pa.Table) -> pa.Table:
        """The profiles in a part of those files that belong to it according to the index."""
        mine = index.filter(pc.equal(index["part"], part))
        found = self._part(part)
        is_mine = pc.is_in(_identities(found), value_set=_identities(mine))
        return found if is_mine.false_count == 0 else found.filter(is_mine)  # sketches are large to copy

    def _absorbable(self, known: pa.Table, size: int) -> list[str]:
        """The parts that a part of this size absorbs, as long as the result is not too large."""
        parts = known.group_by(["part", "part_bytes"]).aggregate([]).sort_by("part_bytes")
        absorbed: list[str] = []
        for part in parts.to_pylist():
            if part["part_bytes"] > size or size + part["part_bytes"] > _PART_BYTES:
                break
            size += part["part_bytes"]
            absorbed.append(part["part"])
        return absorbed

    def _files(self, profiles: pa.Table) -> pa.Table:
        """The files of new profiles, as rows of the index without their part."""
        files = profiles.select(IDENTITY).group_by(list(IDENTITY)).aggregate([])
        more = {
            "left_out": sorted(self.left_out) or None,
            "with_elements": True,
            "version": CURRENT_VERSION,
            "run": self.run or None,
        }
        for name, value in more.items():
            field = _INDEX.field(name)
            files = files.append_column(field, pa.array([value] * files.num_rows, field.type))
        return files

    def _part(self, part: str) -> pa.Table:
        return _with_columns(_opened(self._records.part(part), PROFILE), PROFILE)

    @property
    def _records(self) -> ProfileRecords:
        return ProfileRecords(self.realm, self.table_id)


def _pieces(profiles: pa.Table) -> Iterator[pa.Table]:
    """Split profiles into pieces of limited size; those of a file stay together."""
    paths = profiles["path"].unique()
    size = max(1, len(paths) * _PART_BYTES // max(profiles.nbytes, _PART_BYTES))
    for first in range(0, len(paths), size):
        yield profiles.filter(pc.is_in(profiles["path"], value_set=paths.slice(first, size)))


def _opened(arrow_file: bytes, schema: pa.Schema) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(arrow_file)).read_all() if arrow_file else schema.empty_table()


def _index(stored: ProfileIndex) -> pa.Table:
    return _with_columns(_opened(stored.content, _INDEX), _INDEX)


def _with_columns(found: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with all columns of the schema: those that an old version did not have are NULL."""
    for field in schema:
        if field.name not in found.column_names:
            found = found.append_column(field, pa.nulls(found.num_rows, field.type))
    return found.select(schema.names)


def _without(some: pa.Table, others: pa.Table) -> pa.Table:
    """The rows of `some` whose files are not in `others`."""
    return some.filter(pc.invert(pc.is_in(_identities(some), value_set=_identities(others))))


def _identities(files: pa.Table) -> pa.Array:
    """A string per row that identifies the file."""
    parts = [pc.coalesce(files[name].cast(pa.string()), "") for name in IDENTITY]
    joined = pc.binary_join_element_wise(*parts, "\t")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
