"""The sketches of arrays are those that the DataSketches library makes of single values."""

from __future__ import annotations

import math
import time
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.spark_jobs.profile.sketches import distinct_count, union
from skiway.spark_jobs.summaries.columns import ThetaSketch, hashes


def by_library(values: Any, lg_k: int = 12) -> bytes:
    sketch = datasketches.update_theta_sketch(lg_k)
    for value in values:
        sketch.update(value)
    return bytes(sketch.compact().serialize())


def by_array(values: pa.Array, lg_k: int = 12) -> bytes:
    sketch = ThetaSketch(lg_k)
    sketch.update(hashes(values))
    return sketch.serialize()


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_whole_numbers(values: list[int]) -> None:
    assert by_array(pa.array(values, pa.int64())) == by_library(values)
    assert by_array(pa.array(values, pa.timestamp("us"))) == by_library(values)


@given(st.lists(st.floats()))
def test_doubles(values: list[float]) -> None:
    assert by_array(pa.array(values, pa.float64())) == by_library(values)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=70)), st.integers(0, 3))
def test_strings_of_all_lengths(values: list[str], first: int) -> None:
    assert by_array(pa.array(values, pa.string()).slice(first)) == by_library(values[first:])
    as_bytes = pa.array([value.encode() for value in values], pa.binary())
    assert by_array(as_bytes) == by_library(values)


def test_long_strings() -> None:
    """A call of numpy for each 16 bytes would take seconds."""
    values = ["x" * 4095, "é" * 2048, "é" * 2049, "", "y", "z" * 1_000_000]
    started = time.process_time()
    assert by_array(pa.array(values)) == by_library(values)
    assert time.process_time() - started < 0.5


def test_floats_are_hashed_as_doubles() -> None:
    values = [0.1, -0.0, math.inf, math.nan]
    floats = np.array(values, np.float32)
    assert by_array(pa.array(floats)) == by_library(floats.astype(float).tolist())


@pytest.mark.parametrize(
    ("values", "as_bytes"),
    [
        (pa.array([1, -2, 2**31 - 1], pa.int32()), [n.to_bytes(4, "little", signed=True) for n in (1, -2, 2**31 - 1)]),
        (pa.array([-7, 19_000], pa.date32()), [n.to_bytes(4, "little", signed=True) for n in (-7, 19_000)]),
        (pa.array([True, False, True]), [b"\x01", b"\x00"]),
    ],
)
def test_small_values_are_hashed_as_their_bytes(values: pa.Array, as_bytes: list[bytes]) -> None:
    assert by_array(values) == by_array(pa.array(as_bytes, pa.binary()))


@pytest.mark.parametrize("count", [32, 33, 1000, 20_000])
def test_large_sketches_keep_the_smallest_hashes(count: int) -> None:
    """The union of one sketch has exactly its smallest hashes."""
    values = np.arange(count)
    assert union([by_array(pa.array(values), 5)], lg_k=5) == union([by_library(values.tolist(), 5)], lg_k=5)


def test_batches_and_duplicates_do_not_matter() -> None:
    values = pa.array(np.random.default_rng(1).integers(0, 30_000, 100_000))
    sketch = ThetaSketch(12)
    for first in range(0, len(values), 7001):
        sketch.update(hashes(values.slice(first, 7001)))
    assert sketch.serialize() == by_array(values.unique())
    count = distinct_count([sketch.serialize()])
    assert count.lower <= len(values.unique()) <= count.upper
