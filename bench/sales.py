"""The rows that are scanned and profiled: ten columns of keys, measures, strings and timestamps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def rows(part: int, count: int) -> pa.Table:
    """`count` rows, reproducible for each `part`. `id` continues from the previous part."""
    draw = np.random.default_rng(part)
    words = pa.array([f"customer-{number}" for number in range(50_000)])
    kinds = pa.array(["open", "paid", "sent", "lost"])
    return pa.table(
        {
            "id": np.arange(part * count, (part + 1) * count),
            "customer": draw.integers(0, 1_000_000, count),
            "store": draw.integers(0, 500, count).astype(np.int32),
            "amount": draw.lognormal(3, 1, count),
            "rate": draw.random(count).astype(np.float32),
            "name": words.take(pa.array(draw.integers(0, 50_000, count))),
            "state": kinds.take(pa.array(draw.integers(0, 4, count))),
            "day": pa.array(draw.integers(18_000, 20_000, count).astype(np.int32)).cast(pa.date32()),
            "at": pa.array(draw.integers(0, 10**15, count)).cast(pa.timestamp("us")),
            "good": pa.array(draw.random(count) < 0.9),
        }
    )
