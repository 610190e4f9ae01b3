"""Theta sketches of whole arrays: the hashes are those of the DataSketches libraries, computed with numpy.

The libraries hash one value per call, which takes 75 ns for a number in Python. For an array, it takes 20 ns here. Only long strings are
left to the library: numpy would take a second for a megabyte.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["ThetaSketch", "hashes"]

# MurmurHash3 for x64 with 128 bits, of which the sketches use the first 64, with the seed of the DataSketches libraries.
_SEED: Final = np.uint64(9001)
_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_SEED_HASH: Final = 0x93CC

_MAX_THETA: Final = np.uint64(2**63 - 1)
_AT_ONCE: Final = 1 << 14  # values per step, so that intermediate results fit into the cache of a core
_LONG: Final = 4096  # bytes
_EMPTY, _NOT_EMPTY = 0x1E, 0x1A  # flags of a compact sketch, with its hashes in order


class ThetaSketch:
    """The `2 ** lg_k` smallest hashes of all values."""

    def __init__(self, lg_k: int) -> None:
        self._size = 1 << lg_k
        self._theta = _MAX_THETA
        self._hashes = np.empty(0, np.uint64)
        self._new: list[Any] = []
        self._waiting = 0

    def update(self, found: Any) -> None:
        """Add hashes, in any order and with duplicates."""
        for first in range(0, len(found), _AT_ONCE):
            some = found[first : first + _AT_ONCE]
            small = some[some < self._theta]
            self._new.append(small)
            self._waiting += len(small)
            if self._waiting > 2 * self._size:
                self._compact()

    def serialize(self) -> bytes:
        """The compact sketch in the format of the DataSketches libraries."""
        self._compact()
        count, is_sample = len(self._hashes), self._theta < _MAX_THETA
        longs = 3 if is_sample else 2 if count > 1 else 1
        head = struct.pack("<BBBBBBH", longs, 3, 3, 0, 0, _NOT_EMPTY if count else _EMPTY, _SEED_HASH)
        if longs > 1:
            head += struct.pack("<II", count, 0)
        if is_sample:
            head += struct.pack("<Q", int(self._theta))
        return head + bytes(self._hashes.astype("<u8").tobytes())

    def _compact(self) -> None:
        if self._waiting:
            ordered = np.sort(np.concatenate([self._hashes, *self._new]))
            ordered = ordered[np.append(True, ordered[1:] != ordered[:-1])]  # np.unique takes ten times as long
            if len(ordered) > self._size:
                self._theta = ordered[self._size]
            self._hashes = ordered[: self._size].copy()
        self._new, self._waiting = [], 0


def hashes(values: pa.Array) -> Any:
    """The hashes of values, none of which is NULL: numbers, dates, timestamps, booleans, strings or bytes.

    As in the libraries, empty strings have none.
    """
    of = values.type
    if pa.types.is_string(of):
        is_long = pc.greater(pc.binary_length(values), _LONG)
        if is_long.true_count:
            return np.concatenate([_of_bytes(values.filter(pc.invert(is_long))), _of_long(values.filter(is_long))])
    if pa.types.is_string(of) or pa.types.is_binary(of):
        return _of_bytes(values)
    if pa.types.is_boolean(of):
        return _of_words(values.cast(pa.uint8()).to_numpy(), size=1)
    if pa.types.is_floating(of):
        numbers = values.cast(pa.float64()).to_numpy() + 0.0  # -0.0 becomes 0.0
        return _of_words(np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64), size=8)
    if of.bit_width == 32:
        return _of_words(values.view(pa.int32()).to_numpy().view(np.uint32), size=4)
    return _of_words(values.view(pa.int64()).to_numpy().view(np.uint64), size=8)


def _of_words(words: Any, *, size: int) -> Any:
    """Hash unsigned numbers of `size` bytes."""
    found = np.empty(len(words), np.uint64)
    for first in range(0, len(words), _AT_ONCE):
        some = words[first : first + _AT_ONCE].astype(np.uint64)
        h2 = np.full(len(some), _SEED)
        found[first : first + _AT_ONCE] = _finished(_SEED ^ _mixed(some, _C1, 31, _C2), h2, np.uint64(size))
    return found


def _of_bytes(values: pa.Array) -> Any:
    """Hash strings or bytes, in blocks of 16 bytes and a rest."""
    data, starts, sizes = _buffers(values)
    starts, sizes = starts[sizes > 0], sizes[sizes > 0]
    found = np.empty(len(starts), np.uint64)
    for first in range(0, len(starts), _AT_ONCE):
        found[first : first + _AT_ONCE] = _of_some_bytes(
            data, starts[first : first + _AT_ONCE], sizes[first : first + _AT_ONCE]
        )
    return found


def _of_long(values: pa.Array) -> Any:
    """Hash strings with the library, which has no function for it: a sketch of a single value has its hash."""
    found = []
    for value in values:
        sketch = datasketches.update_theta_sketch()
        sketch.update(value.as_py())
        found += list(sketch)
    return np.array(found, np.uint64)


def _of_some_bytes(words: Any, starts: Any, sizes: Any) -> Any:
    h1, h2 = np.full(len(starts), _SEED), np.full(len(starts), _SEED)
    blocks = sizes // 16
    for block in range(int(blocks.max(initial=0))):
        longer = np.flatnonzero(blocks > block)
        at, a, b = starts[longer] + 16 * block, h1[longer], h2[longer]
        a = (_rotated(a ^ _mixed(words[at], _C1, 31, _C2), 27) + b) * np.uint64(5) + np.uint64(0x52DCE729)
        b = (_rotated(b ^ _mixed(words[at + 8], _C2, 33, _C1), 31) + a) * np.uint64(5) + np.uint64(0x38495AB5)
        h1[longer], h2[longer] = a, b
    rest, at = sizes % 16, starts + 16 * blocks
    h1 ^= _mixed(_first_bytes(words[at], rest), _C1, 31, _C2)
    h2 ^= _mixed(_first_bytes(words[at + 8], rest - 8), _C2, 33, _C1)
    return _finished(h1, h2, sizes.astype(np.uint64))


def _buffers(values: pa.Array) -> tuple[Any, Any, Any]:
    """The words of eight bytes that begin at each byte, and where each value begins and how long it is."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    padded = bytearray(last - first + 24)  # a rest is read as two words
    if data is not None:
        padded[: last - first] = memoryview(data)[first:last]
    words = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))
    return words, ends[:-1] - first, np.diff(ends)


def _first_bytes(words: Any, count: Any) -> Any:
    """The first bytes of each word; the others become zero."""
    bits = (8 * np.clip(count, 0, 8)).astype(np.uint64)
    mask = np.where(bits == 64, np.uint64(2**64 - 1), (np.uint64(1) << (bits & np.uint64(63))) - np.uint64(1))
    return words & mask


def _mixed(words: Any, before: np.uint64, bits: int, after: np.uint64) -> Any:
    return _rotated(words * before, bits) * after


def _rotated(words: Any, bits: int) -> Any:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _finished(h1: Any, h2: Any, sizes: Any) -> Any:
    """The hash as sketches use it: positive as a signed number."""
    h1, h2 = h1 ^ sizes, h2 ^ sizes
    h1 = h1 + h2
    h2 = h2 + h1
    return (_spread(h1) + _spread(h2)) >> np.uint64(1)


def _spread(words: Any) -> Any:
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ (words >> np.uint64(33))
