"""The figures of a column, from batches of its values.

A batch is processed by a few calls of pyarrow, numpy and datasketches, however many rows it has.

`hashes` and `ThetaSketch` compute what the DataSketches libraries compute, but with numpy and for whole arrays. The libraries hash one
value per call, which takes 75 ns for a number in Python. For an array, it takes 20 ns here. Only long strings are left to the library:
numpy would take a second for a megabyte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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


_COUNTERS: Final = 768  # as many as `approx_top_k` uses with 1,024 tracked values


class FrequentValues:
    """The frequent values of a column, all of the same type and without NULL."""

    def __init__(self, counters: int = _COUNTERS) -> None:
        self._counters = counters
        self._values: pa.Array | None = None
        self._counts: Any = np.empty(0, np.int64)
        self._missed = 0  # at most this much of each count was subtracted

    def add(self, values: pa.Array, counts: Any) -> None:
        """Add different values, and how often each occurs."""
        values, counts = self._limited(values, counts)
        if self._values is not None:
            both = pa.concat_arrays([self._values, values]).dictionary_encode()
            sums = np.bincount(both.indices.to_numpy(), np.concatenate([self._counts, counts]))
            values, counts = self._limited(both.dictionary, sums.astype(np.int64))
        self._values, self._counts = values, counts

    def most_frequent(self, limit: int) -> tuple[pa.Array, list[int]] | None:
        """Values and their counts, the most frequent first, without those that may be less frequent than a missing one."""
        if self._values is None:
            return None
        order = np.argsort(-self._counts, kind="stable")[:limit]
        order = order[self._counts[order] > self._missed]
        return self._values.take(pa.array(order)), (self._counts[order] + self._missed).tolist()

    def _limited(self, values: pa.Array, counts: Any) -> tuple[pa.Array, Any]:
        """Only as many values as there are counters."""
        if len(counts) <= self._counters:
            return values, counts
        excess = int(np.partition(counts, -self._counters - 1)[-self._counters - 1])
        kept = np.flatnonzero(counts > excess)
        self._missed += excess
        return values.take(pa.array(kept)), counts[kept] - excess


_KLL_SIZE: Final = 200  # the default of Spark


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """The names of the figures that are computed for a column, and their precision: see `Budget` of the profile.

    Strings of more than `longest` characters are not counted as frequent values. At most `top` of these are returned.
    """

    figures: frozenset[str]
    lg_k: int
    top: int
    longest: int


class ColumnSummary:
    """The figures of one column. The values come in batches."""

    def __init__(self, wanted: ColumnRequest) -> None:
        self._wanted = wanted
        self._count = self._values = self._nans = self._width = 0
        self._least: list[pa.Scalar] = []
        self._most: list[pa.Scalar] = []
        self._theta = ThetaSketch(wanted.lg_k)
        self._kll = datasketches.kll_doubles_sketch(_KLL_SIZE)
        self._frequent = FrequentValues()

    def add(self, batch: pa.Array) -> None:
        """Add the values of a batch. Strings and bytes may be the values of a dictionary."""
        values = batch.drop_null()
        self._count += len(batch)
        self._values += len(values)
        if not len(values):
            return
        # Only distinct values are hashed, and KLL takes half the time for values in order.
        is_counted = "top" in self._wanted.figures or isinstance(values, pa.DictionaryArray)
        distinct, counts = _counts(values) if is_counted else (values, None)
        if "width" in self._wanted.figures:
            widths = pc.binary_length(distinct).to_numpy().astype(np.int64)
            self._width += int(widths.sum() if counts is None else np.dot(widths, counts))
        text = distinct.cast(pa.string()) if pa.types.is_decimal(distinct.type) else distinct
        self._theta.update(hashes(text))
        if "top" in self._wanted.figures:
            self._frequent.add(*self._short(distinct, counts))
        if "kll" in self._wanted.figures:
            numbers = _numbers(text)
            if "nans" in self._wanted.figures:
                is_nan = np.isnan(numbers)
                self._nans += int(is_nan.sum())
                distinct, numbers = distinct.filter(pa.array(~is_nan)), numbers[~is_nan]
            self._kll.update(numbers if counts is None else np.repeat(numbers, counts))
        self._put_bounds(distinct)

    def result(self) -> dict[str, Any]:
        """The requested figures by name. Without values, bounds and frequent values are NULL; without rows, sketches are, too."""
        made = {
            "count": self._count,
            "values": self._values,
            "nans": self._nans,
            "width": self._width,
            "min": pc.min(pa.array(self._least)) if self._least else None,
            "max": pc.max(pa.array(self._most)) if self._most else None,
            "theta": self._theta.serialize() if self._count else None,
            "kll": bytes(self._kll.serialize()) if self._count else None,
            "top": self._top(),
        }
        return {name: made[name] for name in self._wanted.figures}

    def _short(self, values: pa.Array, counts: Any) -> tuple[pa.Array, Any]:
        """The values that are counted as frequent ones: strings only up to a length."""
        if not pa.types.is_string(values.type):
            return values, counts
        short = pc.less_equal(pc.utf8_length(values), self._wanted.longest)
        return values.filter(short), counts[short.to_numpy(zero_copy_only=False)]

    def _put_bounds(self, values: pa.Array) -> None:
        if len(values):
            both = pc.min_max(values)
            self._least.append(both["min"])
            self._most.append(both["max"])

    def _top(self) -> pa.Scalar | None:
        found = self._frequent.most_frequent(self._wanted.top)
        if found is None:
            return None
        pairs = pa.StructArray.from_arrays([found[0], pa.array(found[1], pa.int64())], names=["item", "count"])
        return pa.ListArray.from_arrays(pa.array([0, len(pairs)], pa.int32()), pairs)[0]


def _counts(values: pa.Array) -> tuple[pa.Array, Any]:
    """The distinct values, and how often each occurs."""
    if _is_whole_number(values.type):
        ordered = np.sort(_plain(values))  # takes half the time of a hash table if most values are different
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        return pa.array(ordered[starts]).view(values.type), np.diff(starts, append=len(ordered))
    if isinstance(values, pa.DictionaryArray):
        counts = np.bincount(values.indices.to_numpy(), minlength=len(values.dictionary))
        used = np.flatnonzero(counts)  # a dictionary is that of a whole row group
        return values.dictionary.take(pa.array(used)), counts[used]
    encoded = values.dictionary_encode()
    return encoded.dictionary, np.bincount(encoded.indices.to_numpy())


def is_text(of: pa.DataType) -> bool:
    """Is this a type of strings or bytes in which values are processed?"""
    return bool(pa.types.is_string(of) or pa.types.is_binary(of))


def _is_whole_number(of: pa.DataType) -> bool:
    return bool(pa.types.is_integer(of) or pa.types.is_date(of) or pa.types.is_timestamp(of))


def _plain(values: pa.Array) -> Any:
    """Whole numbers; of dates the days, of timestamps the microseconds."""
    return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_numpy()


def _numbers(values: pa.Array) -> Any:
    """The values as doubles. Decimals are given as text, because Arrow casts them inexactly."""
    if pa.types.is_string(values.type):
        values = values.cast(pa.float64())
    return (_plain(values) if _is_whole_number(values.type) else values.to_numpy()).astype(np.float64)
