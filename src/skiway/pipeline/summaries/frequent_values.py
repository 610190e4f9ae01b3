"""The most frequent values of a column, found with a limited number of counters.

This is the algorithm of Misra and Gries for whole batches: if there are more values than counters, the count of the first value without a
counter is subtracted from all counts. So with c counters, no count is more than n / c too small after n values.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

__all__ = ["FrequentValues"]

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
