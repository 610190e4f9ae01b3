"""Stream the rows of data files in any format; the next batches, and the next file, are decoded in advance."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from itertools import chain, repeat
from typing import Final

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.avro import avro_batches
from skiway.formats.orc import orc_batches
from skiway.formats.parquet.reading import parquet_batches
from skiway.formats.read_ahead import read_ahead
from skiway.formats.scanning import DataFile, Scan

__all__ = ["read_rows"]

_READERS: Final[Mapping[str, Callable[[Scan, DataFile], Generator[pa.RecordBatch]]]] = {
    "parquet": parquet_batches,
    "avro": avro_batches,
    "orc": orc_batches,
}


def read_rows(scan: Scan, files: Iterable[DataFile]) -> pa.RecordBatchReader:
    """Stream the rows of all `files`, in order, reading ahead."""
    later = replace(scan, first_batch_rows=None)
    scans = chain([scan], repeat(later))
    batches = read_ahead(zip(scans, files, strict=False), lambda one: _batches(*one))
    return pa.RecordBatchReader.from_batches(scan.output_schema, (batch for batch in batches if batch.num_rows))


def _batches(scan: Scan, file: DataFile) -> Generator[pa.RecordBatch]:
    if scan.share is not None and scan.share[0] > 0 and file.format != "parquet":
        return  # only Parquet files have parts that can be read on their own, so the first share is the whole file
    if file.etag is not None:
        scan.files.check_unchanged(file.path, file.etag)
    reader = _READERS.get(file.format)
    if reader is None:
        raise Unsupported(
            f"file {file.path!r} has the format {file.format!r}, which is not supported; rewrite it as Parquet",
            key="table.feature",
            file=file.path,
            feature=f"data files in {file.format}",
        )
    yield from reader(scan, file)
