"""The counts of frequent values are never too large by more than the stated error."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from skiway.spark_jobs.summaries.columns import FrequentValues

BATCHES = st.lists(st.lists(st.integers(0, 30), max_size=60), max_size=8)


def found(batches: list[list[int]], counters: int, limit: int = 100) -> dict[int, int]:
    frequent = FrequentValues(counters)
    for batch in batches:
        counts = Counter(batch)
        frequent.add(pa.array(list(counts), pa.int64()), np.array(list(counts.values()), np.int64))
    values, counted = frequent.most_frequent(limit) or (pa.array([]), [])
    assert counted == sorted(counted, reverse=True)
    return dict(zip(values.to_pylist(), counted, strict=True))


@given(BATCHES)
def test_counts_are_exact_if_every_value_has_a_counter(batches: list[list[int]]) -> None:
    assert found(batches, 31) == Counter(value for batch in batches for value in batch)


@given(BATCHES, st.integers(1, 12))
def test_counts_are_off_by_at_most_the_rows_per_counter(batches: list[list[int]], counters: int) -> None:
    counts = Counter(value for batch in batches for value in batch)
    error = counts.total() / (counters + 1)
    listed = found(batches, counters)
    assert len(listed) <= counters
    assert all(counts[value] <= count <= counts[value] + error for value, count in listed.items())
    assert {value for value, count in counts.items() if count > 2 * error} <= listed.keys()


def test_subtracted_counts_are_added_to_the_result() -> None:
    assert found([[1, 1, 1, 2]], 1) == {1: 3}
    assert found([[1, 1, 1, 2], [1, 1, 2]], 1) == {1: 5}


def test_value_that_may_be_less_frequent_than_a_missing_one_is_not_listed() -> None:
    assert found([[1, 1, 1, 2, 3, 4]], 2) == {1: 3}
    assert found([[1, 1, 1, 2, 3, 4], [7, 8, 9]], 2) == {}


def test_only_the_most_frequent_are_listed() -> None:
    assert found([[1, 2, 2, 3, 3, 3]], 10, limit=2) == {3: 3, 2: 2}
    assert FrequentValues().most_frequent(3) is None
