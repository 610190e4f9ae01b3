"""Sketches of files, merged into those of a table."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from struct import unpack_from
from typing import Any, Final

import datasketches
import numpy as np

from skiway import __version__
from skiway.formats import TableSchema
from skiway.formats.schemas import leaves
from skiway.pipeline.profile.values import value_kind

__all__ = [
    "CONFIDENCE",
    "THETA",
    "DistinctCount",
    "Puffin",
    "Spread",
    "either",
    "estimate",
    "spread",
    "union",
    "united",
    "written",
]

THETA: Final = "apache-datasketches-theta-v1"
"""What Iceberg calls these sketches."""

CONFIDENCE: Final = 0.954
"""How sure the bounds of an estimate are: two standard deviations."""

_VALUES: Final = 1 << 16  # of one level of all KLL sketches together


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """How many distinct values there are; `exact` where it was counted rather than estimated.

    `sketch` is that of all values; empty where there is no such one.
    """

    estimate: float
    lower: float
    upper: float
    error: float
    exact: bool
    sketch: bytes


@dataclass(frozen=True, slots=True)
class Spread:
    """How `count` numbers spread: bucket i holds `counts[i]` of them, from `bounds[i]` to `bounds[i + 1]`."""

    count: int
    bounds: Sequence[float]
    counts: Sequence[int]
    quantiles: dict[float, float]
    rank_error: float
    exact: bool


def union(sketches: Iterable[bytes], *, lg_k: int = 12) -> bytes:
    """The theta sketch of all values that the sketches have seen."""
    return bytes(_united(sketches, lg_k).serialize())


def united(sketches: Iterable[bytes], *, lg_k: int = 12) -> DistinctCount:
    """How many distinct values the sketches have seen together."""
    sketch = _united(sketches, lg_k)
    estimate = sketch.get_estimate()
    spread = sketch.get_upper_bound(1) - sketch.get_lower_bound(1)
    return DistinctCount(
        estimate=estimate,
        lower=sketch.get_lower_bound(2),
        upper=sketch.get_upper_bound(2),
        error=spread / 2 / estimate if estimate else 0.0,
        exact=not sketch.is_estimation_mode(),
        sketch=bytes(sketch.serialize()),
    )


def estimate(sketch: bytes) -> float:
    """How many distinct values a theta sketch has seen."""
    return float(datasketches.compact_theta_sketch.deserialize(sketch).get_estimate())


def either(parts: Sequence[DistinctCount]) -> DistinctCount:
    """Of counts that cannot be united, as the same value may be in several: at least the largest, at most all."""
    return DistinctCount(
        estimate=max((part.estimate for part in parts), default=0.0),
        lower=max((part.lower for part in parts), default=0.0),
        upper=sum(part.upper for part in parts),
        error=max((part.error for part in parts), default=0.0),
        exact=not parts,
        sketch=b"",
    )


def _united(sketches: Iterable[bytes], lg_k: int) -> Any:
    everything = datasketches.theta_union(lg_k)
    for sketch in sketches:
        everything.update(datasketches.compact_theta_sketch.deserialize(sketch))
    return everything.get_result()


def spread(sketches: Iterable[bytes], *, buckets: int, ranks: Sequence[float]) -> Spread | None:
    """How the numbers that the KLL sketches have seen spread, in buckets of about equal counts; None without any.

    The sketches are not thinned out into one, which would toss coins: all that they keep is looked at, so the same
    sketches always say the same, and no rank is further off than it is in the worst of them.
    """
    kept = _Kept()
    for sketch in sketches:
        kept.add(sketch)
    if not kept.values:
        return None
    numbers = kept.numbers()
    least, most = min(kept.least), max(kept.most)
    inner = [numbers.quantile(place / buckets) for place in range(1, buckets)]
    bounds = sorted({least, most, *inner})
    edges = [0, *map(numbers.count_upto, bounds[1:-1]), numbers.total]
    return Spread(
        count=numbers.total,
        bounds=bounds if len(bounds) > 1 else bounds * 2,
        counts=np.diff(edges).tolist(),
        quantiles={rank: numbers.quantile(rank) for rank in ranks},
        rank_error=datasketches.kll_doubles_sketch(min(kept.k)).normalized_rank_error(False),
        exact=kept.exact,
    )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers in order, and how many of all there are up to each."""

    values: Any
    upto: Any

    @property
    def total(self) -> int:
        return int(self.upto[-1])

    def quantile(self, rank: float) -> float:
        """The least number that this part of all does not exceed."""
        return float(self.values[np.searchsorted(self.upto, ceil(rank * self.total))])

    def count_upto(self, number: float) -> int:
        return int(self.upto[np.searchsorted(self.values, number, side="right") - 1])


class _Kept:
    """What KLL sketches of doubles keep, read from the binary form of the DataSketches libraries.

    A value of level i stands for 2^i. Sketches are many and small, so nothing is made of each but a few numbers.
    """

    def __init__(self) -> None:
        self.k = set[int]()
        self.values: list[bytes] = []
        self.levels: list[int] = []
        self.sizes: list[int] = []
        self.least: list[float] = []
        self.most: list[float] = []

    def add(self, sketch: bytes) -> None:
        is_empty, is_single = sketch[3] & 1, sketch[3] & 4
        if is_empty:
            return
        self.k.add(sketch[4] | sketch[5] << 8)
        levels = 1 if is_single else sketch[18]
        starts = (0,) if is_single else unpack_from(f"<{levels}I", sketch, 20)
        values = sketch[8:] if is_single else sketch[36 + 4 * levels :]
        least, most = unpack_from("<d", sketch, 8) * 2 if is_single else unpack_from("<2d", sketch, 20 + 4 * levels)
        ends = (*starts[1:], starts[0] + len(values) // 8)
        self.values.append(values)
        self.levels += range(levels)
        self.sizes += (end - start for start, end in zip(starts, ends, strict=True))
        self.least.append(least)
        self.most.append(most)

    def numbers(self) -> _Numbers:
        values = np.frombuffer(b"".join(self.values), "<f8")
        level_of = np.repeat(np.array(self.levels, np.int8), self.sizes)
        parts = [_thinned(np.sort(values[level_of == level]), 1 << level) for level in sorted(set(self.levels))]
        values, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = np.argsort(values)
        return _Numbers(values[order], np.cumsum(weights[order]))

    @property
    def exact(self) -> bool:
        """Whether every value is there, for itself."""
        return max(self.levels) == 0 and sum(self.sizes) <= _VALUES


def _thinned(ordered: Any, weight: int) -> tuple[Any, Any]:
    """Not too many values, each in the middle of those it stands for: what that moves a rank by is next to nothing."""
    step = -(-len(ordered) // _VALUES) or 1
    picked = ordered[step // 2 :: step]
    weights = np.full(len(picked), step * weight)
    weights[-1:] = weight * (len(ordered) - step * (len(picked) - 1))
    return picked, weights


# --------------------
# Theta sketches of a snapshot as a Puffin file, in which engines look for the numbers of distinct values.


_MAGIC: Final = b"PFA1"
_NO_FLAGS: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Puffin:
    """The file, the size of its footer, and what a table's metadata has to say of its blobs."""

    data: bytes
    footer_size: int
    blobs: list[dict[str, Any]]


def written(sketches: Mapping[int, bytes], schema: TableSchema, *, snapshot_id: int, sequence_number: int) -> Puffin:
    """The sketches, by column id, of those columns whose values Iceberg hashes as we do."""
    data, blobs = bytearray(_MAGIC), []
    for leaf in leaves(schema.arrow):
        kind, sketch = value_kind(leaf.type), sketches.get(leaf.id)
        if sketch is None or kind is None or not kind.as_iceberg:
            continue
        blobs.append(
            {
                "type": THETA,
                "fields": [leaf.id],
                "snapshot-id": snapshot_id,
                "sequence-number": sequence_number,
                "offset": len(data),
                "length": len(sketch),
                "properties": {"ndv": str(round(estimate(sketch)))},
            }
        )
        data += sketch
    footer = _footer(blobs)
    return Puffin(bytes(data + footer), len(footer), blobs)


def _footer(blobs: list[dict[str, Any]]) -> bytes:
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": f"Skiway {__version__}"}}).encode()
    return b"".join((_MAGIC, payload, struct.pack("<i", len(payload)), _NO_FLAGS, _MAGIC))
