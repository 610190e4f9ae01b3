"""What Python computes of a scan: the figures of the columns of each file, with `skiway.pipeline.summaries`.

They are the figures of Spark's aggregates in `scanning`, and take a quarter of the CPU time, because pyarrow decodes the files and whole
batches are processed at once. `python_tasks` runs this in Spark's tasks, and `in_process` in this process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final

import datasketches
import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import location
from skiway.pipeline.profile.figures import MAX_BOUND_LENGTH
from skiway.pipeline.profile.scanning import Scan, ScanResult, kind_of, matched_with_files
from skiway.pipeline.profile.sketches import union
from skiway.pipeline.summaries.columns import ColumnRequest
from skiway.pipeline.summaries.files import FileColumn, FilePart, converted

__all__ = ["PythonScan", "is_hidden"]

_PART_BYTES: Final = 128 << 20  # as Spark cuts files
_SPARE: Final = 8  # times as many frequent values are kept until the parts of a file are merged
_ARROW_TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
}


def is_hidden(path: str) -> bool:
    """Does Spark ignore a file with this name?"""
    return PurePath(location(path).path).name.startswith(("_", "."))


class PythonScan:
    """A scan of files by Python. `summarized(part, columns, schema)` is to be called for each of its parts, wherever it runs."""

    def __init__(self, scan: Scan, files: pa.Table) -> None:
        self._scan, self._files = scan, files
        self.columns = list(self._columns())

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the summaries."""
        fields = {"file": pa.int64(), "rows": pa.int64(), "error": pa.string()}
        for column in self.columns:
            names = self._scan.figure_names(column.place)
            fields |= {f"{name}{column.place}": _figure_type(name, column.type) for name in names}
        return pa.schema(fields)

    def parts(self) -> Iterator[FilePart]:
        """The parts of all files."""
        files, constants = self._files, self._constants()
        sizes = pc.fill_null(files["size_bytes"], 0).to_pylist()
        for number, (path, size) in enumerate(zip(files["path"].to_pylist(), sizes, strict=True)):
            own = {place: values.slice(number, 1) for place, values in constants.items()}
            count = max(1, -(-size // _PART_BYTES))
            yield from (FilePart(number, str(location(path)), part, count, own) for part in range(count))

    def result(self, summaries: Iterable[pa.RecordBatch]) -> tuple[ScanResult, pa.Table]:
        """The result for the files that were read, and the files that Python could not read."""
        found = pa.Table.from_batches(summaries, self.schema)
        failed = found.filter(found["error"].is_valid())["file"].combine_chunks()
        found = _one_row_per_file(found.filter(pc.invert(pc.is_in(found["file"], value_set=failed))), self._scan)
        files = self._files
        paths = pa.array([str(location(path)) for path in files["path"].to_pylist()], pa.string())
        seen = paths.take(found["file"].combine_chunks())
        is_done = pc.is_in(paths, value_set=seen)
        found = found.append_column("path", seen).filter(pc.field("rows") > 0)  # as Spark's aggregates have it
        done = matched_with_files(
            self._scan, files.filter(is_done), found, paths=found["path"].combine_chunks(), seen=seen
        )
        return done, files.filter(pc.invert(is_done))

    def _columns(self) -> Iterator[FileColumn]:
        scan, found = self._scan, dict(self._scan.layout.found)
        for place, leaf in enumerate(scan.columns):
            names = frozenset(scan.figure_names(place))
            yield FileColumn(
                place,
                found[leaf.id].path if leaf.id in found else None,
                _arrow_type(scan, place),
                "ns" if kind_of(leaf).domain == "nanos" else "us",
                ColumnRequest(names, scan.lg_k, _SPARE * scan.top, MAX_BOUND_LENGTH),
            )

    def _constants(self) -> dict[int, pa.Array]:
        """The values of the columns that are not in the files, with a value per file, by the place of the column."""
        constants = self._scan.constants
        return {
            column.place: converted(constants.values(self._files, leaf), column.type, column.unit)
            for column, leaf in zip(self.columns, self._scan.columns, strict=True)
            if leaf in constants.columns
        }


def _figure_type(name: str, of: pa.DataType) -> pa.DataType:
    if name in ("min", "max"):
        return of
    if name == "top":
        return pa.list_(pa.struct({"item": of, "count": pa.int64()}))
    return pa.binary() if name in ("theta", "kll") else pa.int64()


def _arrow_type(scan: Scan, place: int) -> pa.DataType:
    """The type in which the values of a column are processed, as Spark would send them to Python."""
    sql = kind_of(scan.columns[place]).sql
    precision_and_scale = map(int, re.findall(r"\d+", sql))
    return pa.decimal128(*precision_and_scale) if sql.startswith("DECIMAL") else _ARROW_TYPES[sql]


def _one_row_per_file(parts: pa.Table, scan: Scan) -> pa.Table:
    """Merge the parts of each file, and limit the frequent values."""
    numbers = parts["file"].unique()
    if len(numbers) < parts.num_rows:
        files = [parts.filter(pc.equal(parts["file"], number)) for number in numbers]
        parts = pa.concat_tables([_merged_parts(file, scan.lg_k) for file in files])
    for place, field in enumerate(parts.schema):
        if pa.types.is_list(field.type):
            parts = parts.set_column(place, field, pc.list_slice(parts[field.name], 0, max(1, scan.top)))
    return parts


def _merged_parts(file: pa.Table, lg_k: int) -> pa.Table:
    found = [_merged(name, file[name].combine_chunks(), lg_k) for name in file.column_names]
    return pa.table([pa.array([each], field.type) for each, field in zip(found, file.schema, strict=True)], file.schema)


def _merged(name: str, values: pa.Array, lg_k: int) -> Any:
    figure = name.rstrip("0123456789")
    if figure in ("rows", "values", "nans", "width"):
        return pc.sum(values)
    if figure in ("min", "max"):
        return pc.min_max(values)[figure]
    if figure == "theta":
        return union(values.to_pylist(), lg_k=lg_k)
    if figure == "kll":
        return _merged_kll(values.to_pylist())
    return _merged_top(values) if figure == "top" else values[0]


def _merged_kll(sketches: Sequence[bytes]) -> bytes:
    first, *others = map(datasketches.kll_doubles_sketch.deserialize, sketches)
    for other in others:
        first.merge(other)
    return bytes(first.serialize())


def _merged_top(lists: pa.ListArray) -> pa.Scalar:
    pairs = pa.Table.from_struct_array(lists.flatten())
    summed = pairs.group_by("item").aggregate([("count", "sum")]).sort_by([("count_sum", "descending")])
    both = [summed["item"].combine_chunks(), summed["count_sum"].combine_chunks()]
    merged = pa.StructArray.from_arrays(both, names=["item", "count"])
    return pa.ListArray.from_arrays(pa.array([0, len(merged)], pa.int32()), merged)[0]
