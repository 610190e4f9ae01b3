"""How large an IPC message becomes when it is decoded, and the error if that is too large.

The headers of messages are flatbuffers. Positions in them are bytes from the start of the data. Reading never fails: what is
outside of the data reads as 0, so callers check what they get.

A message can be far smaller than its rows. A compressed buffer announces its size, and Arrow allocates that many bytes before
it decompresses anything. A column of NULLs has no bytes at all, however many rows it has. And a dictionary, a run or a
view may stand for the same long value a million times, which takes its full size when the column is stored. `check_message`
reads the header of a message before Arrow does; `check_values` looks at a decoded batch before anything is made from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import LimitExceeded


def flatbuffer_integer(data: bytes, position: int, size: int) -> int:
    """The integer of `size` bytes at a position; only one of eight bytes is signed."""
    return int.from_bytes(data[position : position + size], "little", signed=size == 8)


def flatbuffer_field(data: bytes, table: int, number: int) -> int:
    """The position of a field of a table; 0 if the field is missing."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = 4 + 2 * number
    offset = flatbuffer_integer(data, vtable + entry, 2) if entry < flatbuffer_integer(data, vtable, 2) else 0
    return table + offset if offset else 0


def flatbuffer_reference(data: bytes, table: int, number: int) -> int:
    """The position of the table or vector that a field refers to; 0 if the field is missing."""
    position = flatbuffer_field(data, table, number)
    return position + flatbuffer_integer(data, position, 4) if position else 0


MAX_DECODED_BYTES: Final = 256 * 1024 * 1024
TRUSTED_DECODED_BYTES: Final = 8 * 1024 * 1024 * 1024
"""For a server that a user chose, which may send much larger batches."""

ROW_BYTES: Final = 8
"""What a row counts at least, even if its columns take no space: servers number rows with 64-bit integers."""

_DICTIONARY, _BATCH = 2, 3
_BUFFER: Final = Struct("<qq")
_RAW: Final = -1  # announced by a buffer of a compressed batch that is not compressed itself
_OLD_COMPRESSION: Final = b"ARROW:experimental_compression"
"""How Arrow 0.17 announced compression, which Arrow still reads. Nothing writes it any more."""


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The rows of a message and the bytes of its buffers, both after decompression."""

    rows: int = 0
    size: int = 0
    dictionary: int | None = None
    """The number of the dictionary, if the message contains one."""
    is_delta: bool = False
    """Whether its values are added to those that the dictionary has."""


def check_message(header: bytes, body: memoryview, limit: int = MAX_DECODED_BYTES) -> MessageSize:
    """The size of a message; `LimitExceeded` if it exceeds `limit`, `ValueError` if the header is malformed."""
    root = flatbuffer_integer(header, 0, 4)
    kind = _value(header, root, 1, 1)
    table = flatbuffer_reference(header, root, 2)
    if kind not in (_DICTIONARY, _BATCH) or not table:
        return MessageSize(size=len(body))
    dictionary, is_delta, batch = None, False, table
    if kind == _DICTIONARY:
        dictionary, is_delta = _value(header, table, 0, 8), bool(_value(header, table, 2, 1))
        batch = flatbuffer_reference(header, table, 1)
    rows = _value(header, batch, 0, 8)
    if rows < 0:
        raise ValueError(f"a batch of {rows} rows")
    if _OLD_COMPRESSION in header:
        raise ValueError("the compression of Arrow 0.17 is not supported")
    size = _decompressed(header, batch, body) if flatbuffer_field(header, batch, 3) else len(body)
    check_size(max(size, rows * ROW_BYTES), limit, f"a batch of {rows} rows")
    return MessageSize(rows, size, dictionary, is_delta)


def _value(header: bytes, table: int, number: int, size: int) -> int:
    position = flatbuffer_field(header, table, number)
    return flatbuffer_integer(header, position, size) if position else 0


def _decompressed(header: bytes, batch: int, body: memoryview) -> int:
    """What the buffers of a compressed batch announce, in total."""
    vector = flatbuffer_reference(header, batch, 2)
    if not vector:
        return 0
    end = vector + 4 + flatbuffer_integer(header, vector, 4) * _BUFFER.size
    if end > len(header):
        raise ValueError("the header is truncated")
    total = 0
    for offset, length in _BUFFER.iter_unpack(header[vector + 4 : end]):
        if length == 0:
            continue
        if offset < 0 or length < 8 or offset + length > len(body):
            raise ValueError("a buffer is outside of the message")
        announced = int.from_bytes(body[offset : offset + 8], "little", signed=True)
        if announced < _RAW:
            raise ValueError(f"a buffer announces {announced} bytes")
        total += length if announced == _RAW else announced
    return total


def check_stream(stream: bytes, limit: int = MAX_DECODED_BYTES) -> None:
    """Check all messages of an IPC stream together."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)):
        total += check_message(message.metadata.to_pybytes(), memoryview(message.body), limit).size
        check_size(total, limit, "an Arrow stream")


def check_size(size: int, limit: int, what: str) -> None:
    """Raise `LimitExceeded` if `what` takes more than `limit` bytes."""
    if size > limit:
        raise LimitExceeded(
            f"{what} takes {size} bytes when it is decoded, which is more than the limit of {limit} bytes: send smaller "
            "batches",
            key="message.decoded_size",
            limit=str(limit),
            found=str(size),
        )


# -- values that stand for more than they take ------------------------------------------------------------------------


def expands(data_type: pa.DataType) -> bool:
    """Whether columns of the type can be larger in a plain layout: dictionaries, runs and views, also inside of others."""
    if isinstance(data_type, pa.BaseExtensionType):
        return expands(data_type.storage_type)
    kinds = pa.types
    if (
        kinds.is_dictionary(data_type)
        or kinds.is_run_end_encoded(data_type)
        or kinds.is_string_view(data_type)
        or kinds.is_binary_view(data_type)
        or kinds.is_list_view(data_type)
        or kinds.is_large_list_view(data_type)
    ):
        return True
    return any(expands(data_type.field(i).type) for i in range(data_type.num_fields))


def check_values(columns: Iterable[pa.Array], limit: int = MAX_DECODED_BYTES) -> None:
    """Check what columns take in a plain layout, in total. Their buffers must be large enough, as `validate()` checks."""
    check_size(sum(map(_plain_size, columns)), limit, "a batch")


def _plain_size(column: pa.Array) -> int:
    """The bytes of a column in a plain layout, or a little more."""
    kind, kinds = column.type, pa.types
    if isinstance(column, pa.ExtensionArray):
        return _plain_size(column.storage)
    if isinstance(column, pa.DictionaryArray):
        return _repeated_size(column.dictionary, column.indices)
    if isinstance(column, pa.RunEndEncodedArray):
        return _runs_size(column)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        numbers = pa.Array.from_buffers(pa.int32(), 4 * (column.offset + len(column)), [None, column.buffers()[1]])
        lengths = pc.list_element(pa.FixedSizeListArray.from_arrays(numbers, 4), 0)  # a view starts with its length
        lengths = pc.if_else(column.is_valid(), lengths.slice(column.offset), 0)
        return _sum(lengths) + ROW_BYTES * len(column)
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        elements = _sum(column.sizes)
        return elements * max(1, _largest_value(column.values)) + ROW_BYTES * len(column)
    if isinstance(column, pa.StructArray):
        return sum(_plain_size(column.field(i)) for i in range(kind.num_fields))
    if isinstance(column, pa.ListArray | pa.LargeListArray | pa.MapArray | pa.FixedSizeListArray):
        return _plain_size(column.values) + ROW_BYTES * len(column)
    return int(column.nbytes)


def _runs_size(column: pa.RunEndEncodedArray) -> int:
    """The bytes of a column of runs: at most that many of the largest value, or else the exact number for strings."""
    at_most = len(column) * _largest_value(column.values)
    if at_most <= MAX_DECODED_BYTES or not _has_lengths(column.values.type) or column.offset:
        return at_most
    ends = pc.cast(column.run_ends, pa.int64())
    runs = pc.subtract(ends, pa.concat_arrays([pa.array([0], pa.int64()), ends.slice(0, len(ends) - 1)]))
    return _sum(pc.multiply(runs, pc.cast(pc.binary_length(column.values), pa.int64()))) + ROW_BYTES * len(column)


def _repeated_size(values: pa.Array, places: pa.Array) -> int:
    """The bytes of `values` taken at `places`: at most that many of the largest, or else the exact number for strings."""
    at_most = len(places) * _largest_value(values)
    if at_most <= MAX_DECODED_BYTES or not _has_lengths(values.type):
        return at_most
    return _sum(pc.take(pc.binary_length(values), places)) + ROW_BYTES * len(places)


def _largest_value(values: pa.Array) -> int:
    """The bytes of the largest value, or more."""
    if not len(values):
        return 0
    if _has_lengths(values.type):
        return int(pc.max(pc.binary_length(values)).as_py() or 0) + ROW_BYTES
    if values.type.num_fields == 0 and not expands(values.type):
        return -(-int(values.nbytes) // len(values))
    return _plain_size(values)


def _sum(numbers: pa.Array) -> int:
    return int(pc.sum(numbers).as_py() or 0)


def _has_lengths(data_type: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(data_type)
        or kinds.is_binary(data_type)
        or kinds.is_large_string(data_type)
        or kinds.is_large_binary(data_type)
    )
