"""Chooses how record batches are encoded, by a self-check of the fast encoders.

`MessageStream` and `SparseBatches` depend on how pyarrow lays out its output, which is not a documented interface. Before the first
use in a process, the self-check encodes a few small batches and decodes them with pyarrow. If anything differs or fails, one warning
is logged, and batches are encoded by `PlainMessageStream`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final

import pyarrow as pa

from skiway.airport.wire.messages import (
    CONTINUATION,
    Compression,
    Message,
    MessageEncoder,
    MessageStream,
    PlainMessageStream,
)
from skiway.airport.wire.sparse import SparseBatches

__all__ = ["SelfCheck", "message_stream", "self_check", "sparse_batches"]

log = logging.getLogger("skiway.airport")


def message_stream(schema: pa.Schema, compression: Compression | None) -> MessageEncoder:
    """An encoder for a new stream: the fast one if it works with this version of pyarrow."""
    return (MessageStream if self_check.passes() else PlainMessageStream)(schema, compression)


def sparse_batches(schema: pa.Schema, null_columns: Sequence[int]) -> SparseBatches | None:
    """The fast encoder for batches with only NULLs in `null_columns`; None if it does not support this version of pyarrow."""
    return SparseBatches(schema, null_columns) if self_check.passes() else None


class SelfCheck:
    """Checks once whether the fast encoders work with this version of pyarrow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passes: bool | None = None

    def passes(self) -> bool:
        """Whether the fast encoders may be used. The first call runs the check."""
        if self._passes is None:
            with self._lock:
                if self._passes is None:
                    self._passes = _run_check()
        return self._passes


self_check: Final = SelfCheck()


def _run_check() -> bool:
    try:
        for schema, batches in _samples():
            compressions: tuple[Compression | None, ...] = (None, "lz4")
            for compression in compressions:
                fast, plain = MessageStream(schema, compression), PlainMessageStream(schema, compression)
                _compare(schema, batches, map(fast.write, batches), map(plain.write, batches))
        schema, batches = _sparse_samples()
        sparse, plain = SparseBatches(schema, (0, 2, 4)), PlainMessageStream(schema, "lz4")
        messages = [sparse.message(batch) for batch in batches]
        _compare(schema, batches, ([message] for message in messages if message), map(plain.write, batches))
    except Exception as error:  # noqa: BLE001  (whatever a different layout leads to)
        log.warning(
            "pyarrow %s writes IPC messages in an unknown layout (%s: %s); record batches are encoded on a slower path",
            pa.__version__,
            type(error).__name__,
            error,
        )
        return False
    return True


# The samples are built from buffers: pa.array imports pandas if it is installed, which takes seconds.
_VALID: Final = b"\x0d"  # the second of four values is NULL


def _samples() -> Iterator[tuple[pa.Schema, list[pa.RecordBatch]]]:
    """Streams of a few types, with NULLs, slices, empty batches, and dictionaries that change."""
    columns = {
        "integer": _array(pa.int64(), _VALID, Struct("<4q").pack(1, 0, -3, 4)),
        "string": _array(pa.string(), _VALID, Struct("<5i").pack(0, 3, 3, 3, 8), b"one\xc3\xa9two"),
        "bool": _array(pa.bool_(), _VALID, b"\x09"),
        "list": _array(pa.list_(pa.int32()), _VALID, Struct("<5i").pack(0, 2, 2, 2, 4), children=[_integers()]),
        "struct": _array(pa.struct([("x", pa.int32())]), _VALID, children=[_integers()]),
        "mark": _array(pa.binary(4), _VALID, CONTINUATION * 4),  # data that looks like the start of a message
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    yield batch.schema, [batch, batch.slice(1, 2), batch.slice(0, 0), batch]
    dictionaries = [columns["string"], columns["string"].slice(2)]
    encoded = [pa.record_batch([values.dictionary_encode()], names=["dictionary"]) for values in dictionaries]
    yield encoded[0].schema, [encoded[0], encoded[0], encoded[1]]


def _sparse_samples() -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Batches with NULL columns at the positions 0, 2 and 4."""
    kinds = [pa.int64(), pa.string(), pa.list_(pa.struct([("x", pa.float64())])), pa.int32(), pa.string()]
    schema = pa.schema([pa.field(str(i), kind) for i, kind in enumerate(kinds)])
    strings = _array(pa.string(), _VALID, Struct("<5i").pack(0, 3, 3, 3, 8), b"one\xc3\xa9two")
    nulls = [pa.nulls(40, kind) for kind in kinds]
    data = [pa.concat_arrays([column] * 10) for column in (strings, _integers())]
    batch = pa.RecordBatch.from_arrays([nulls[0], data[0], nulls[2], data[1], nulls[4]], schema=schema)
    return schema, [batch, batch.slice(3, 37), batch]  # the NULLs of 40 rows are also those of 37


def _integers() -> pa.Array:
    return _array(pa.int32(), _VALID, Struct("<4i").pack(7, 0, 8, 9))


def _array(kind: pa.DataType, *buffers: bytes, children: list[pa.Array] | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, 4, [pa.py_buffer(buffer) for buffer in buffers], children=children)


def _compare(
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
    fast: Iterable[list[Message]],
    plain: Iterable[list[Message]],
) -> None:
    """Raise `ValueError` unless both encodings decode to `batches`."""
    for encoding, encoded in (("fast", fast), ("plain", plain)):
        if _decode(schema, encoded) != batches:
            raise ValueError(f"the {encoding} encoding of {schema.names} decodes to other rows")


def _decode(schema: pa.Schema, encoded: Iterable[list[Message]]) -> list[pa.RecordBatch]:
    stream = [schema.serialize().to_pybytes()]
    for header, body in (message for messages in encoded for message in messages):
        size = sum(map(len, header))
        stream += [CONTINUATION, size.to_bytes(4, "little"), *header, *body]
    with pa.ipc.open_stream(b"".join(stream)) as reader:
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)
    return batches
