"""The figures of a column, from batches of its values.

A batch is processed by a few calls of pyarrow, numpy and datasketches, however many rows it has. Spark's aggregates process each value by
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.pipeline.summaries.frequent_values import FrequentValues
from skiway.pipeline.summaries.theta import ThetaSketch, hashes

__all__ = ["ColumnRequest", "ColumnSummary", "is_text"]

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
        self._values = self._nans = self._width = 0
        self._least: list[pa.Scalar] = []
        self._most: list[pa.Scalar] = []
        self._theta = ThetaSketch(wanted.lg_k)
        self._kll = datasketches.kll_doubles_sketch(_KLL_SIZE)
        self._frequent = FrequentValues()

    def add(self, batch: pa.Array) -> None:
        """Add the values of a batch. Strings and bytes may be the values of a dictionary."""
        values = batch.drop_null()
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
        """The requested figures by name. Without values, bounds and frequent values are NULL."""
        made = {
            "values": self._values,
            "nans": self._nans,
            "width": self._width,
            "min": pc.min(pa.array(self._least)) if self._least else None,
            "max": pc.max(pa.array(self._most)) if self._most else None,
            "theta": self._theta.serialize(),
            "kll": bytes(self._kll.serialize()),
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
