"""Scans of a few small files in this process, without a Spark job: what Spark's tasks would compute, with the same code.

A Spark job takes about half a second, however little it reads, and the start of Spark takes seconds. So this process scans files
itself if they are small in sum, on disk and in object stores. Spark is needed only for files that pyarrow cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Cancelled, SkiwayError
from skiway.formats import TableSchema
from skiway.formats.files import Files
from skiway.formats.parquet.reading import checked_file
from skiway.formats.schemas import element_leaves, leaves
from skiway.pipeline.profile.python_scans import PythonScan, is_hidden
from skiway.pipeline.profile.scanning import Scan, ScanFiles, ScanResult, joined_results
from skiway.pipeline.summaries.files import FilePart, OpenFile, summarized, unread

__all__ = ["SMALL", "InProcessScans", "SmallScan"]

_LEAST_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SmallScan:
    """The limits of a scan that this process runs itself: the total size of the files, and the number of their values.

    The number of values is that of rows times columns. A file counts as at least 10,000 rows, because it takes that long to open it.
    """

    bytes: int = 64 << 20
    values: int = 16_000_000  # takes one to two seconds on one core

    def includes(self, files: pa.Table, schema: TableSchema) -> bool:
        """Is a scan of these files small, and can this process do it?

        Sizes and row counts must be known. Values in lists and maps are left to Spark, and so are files that it hides.
        """
        sizes, counts = files["size_bytes"], pc.max_element_wise(files["row_count"], _LEAST_ROWS, skip_nulls=False)
        size, rows = (pc.sum(each, skip_nulls=False, min_count=0).as_py() for each in (sizes, counts))
        return (
            size is not None
            and size <= self.bytes
            and rows is not None
            and rows * len(leaves(schema.arrow)) <= self.values
            and not element_leaves(schema.arrow)
            and not any(map(is_hidden, files["path"].to_pylist()))
        )


SMALL: Final = SmallScan()


@dataclass(frozen=True, slots=True)
class InProcessScans:
    """Scans files in this process. `access` opens them; `on_spark` scans those that this process cannot read.

    `cancelled` is called for each batch of rows.
    """

    on_spark: ScanFiles
    access: Files
    cancelled: Callable[[], bool]

    def __call__(self, scan: Scan, files: pa.Table) -> ScanResult:
        python = PythonScan(scan, files)
        done, rest = python.result(self._summary(python, part) for part in python.parts())
        return joined_results([done, self.on_spark(scan, rest)]) if rest.num_rows else done

    def _summary(self, python: PythonScan, part: FilePart) -> pa.RecordBatch:
        try:
            return summarized(part, python.columns, python.schema, open_file=self._opened, on_batch=self._check)
        except Cancelled:
            raise
        except SkiwayError as error:
            return unread(part, python.schema, error.message)

    @contextmanager
    def _opened(self, path: str) -> Iterator[OpenFile]:
        """Open a file with the checks of the lake's reader: a damaged or hostile file must not end this process."""
        with checked_file(self.access, path) as found:
            yield OpenFile(found.source, found.footer.metadata, found.pages.check_all)

    def _check(self) -> None:
        if self.cancelled():
            raise Cancelled("profiling was cancelled while files were read; the next profile reads them again")
