"""Scans of a few small files in this process, without a Spark job: what Spark's tasks would compute, with the same code.

A Spark job takes about half a second, however little it reads, and the start of Spark takes seconds. So this process scans files
itself if they are small in sum, on disk and in object stores. Spark is needed only for files that pyarrow cannot read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Cancelled, SkiwayError
from skiway.formats import TableSchema, location
from skiway.formats.files import Files
from skiway.formats.schemas import element_leaves, leaves
from skiway.pipeline.profile.python_scans import PythonScan, is_hidden
from skiway.pipeline.profile.scanning import Scan, ScanFiles, ScanResult, joined_results
from skiway.pipeline.summaries.files import summarized

__all__ = ["SMALL", "InProcessScans", "SmallScan"]

_LEAST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SmallScan:
    """What is small enough for this process: files with at most so many bytes and values in sum.

    The number of values is that of rows times columns. A file counts as at least 10,000 rows, because it takes that long to open it.
    """

    bytes: int = 64 << 20
    values: int = 16_000_000  # takes one to two seconds on one core

    def includes(self, files: pa.Table, schema: TableSchema, access: Files | None) -> bool:
        """Is a scan of these files small, and can this process do it?

        Sizes and row counts must be known. Values in lists and maps are left to Spark.
        """
        sizes, counts = files["size_bytes"], pc.max_element_wise(files["row_count"], _LEAST_ROWS, skip_nulls=False)
        size, rows = (pc.sum(each, skip_nulls=False, min_count=0).as_py() for each in (sizes, counts))
        return (
            size is not None
            and size <= self.bytes
            and rows is not None
            and rows * len(leaves(schema.arrow)) <= self.values
            and not element_leaves(schema.arrow)
            and all(_is_readable(path, access) for path in files["path"].to_pylist())
        )


SMALL: Final = SmallScan()


def _is_readable(path: str, access: Files | None) -> bool:
    return not is_hidden(path) and (access is not None or location(path).scheme == "file")


@dataclass(frozen=True, slots=True)
class InProcessScans:
    """Scans files in this process. `access` opens them; `on_spark` scans those that this process cannot read.

    `cancelled` is called for each batch of rows.
    """

    on_spark: ScanFiles
    access: Files | None
    cancelled: Callable[[], bool]

    def __call__(self, scan: Scan, files: pa.Table) -> ScanResult:
        python = PythonScan(scan, files)
        found = [
            summarized(part, python.columns, python.schema, open_file=self._open, on_batch=self._check)
            for part in python.parts()
        ]
        done, rest = python.result(found)
        return joined_results([done, self.on_spark(scan, rest)]) if rest.num_rows else done

    def _open(self, path: str) -> pa.NativeFile:
        if self.access is None:
            return pa.OSFile(path)
        try:
            return self.access.open(path)
        except SkiwayError as error:
            raise OSError(error.message) from error

    def _check(self) -> None:
        if self.cancelled():
            raise Cancelled("profiling was cancelled while files were read; the next profile reads them again")
