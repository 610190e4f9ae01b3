"""Rows that wait: in any order, on disk or not, they come back sorted, each once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.errors import Unavailable
from skiway.lake.spill import WaitingRows


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=12),
    st.lists(st.integers(0, 45), max_size=6),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_all_rows_come_back_by_id_the_last_of_each(batches: list[list[int]], stops: list[int], buffer: int) -> None:
    expected: dict[int, str] = {}
    with closing(WaitingRows(buffer_bytes=buffer)) as waiting:
        for number, ids in enumerate(batches):
            texts = [f"{number}/{place}" for place in range(len(ids))]
            expected |= dict(zip(ids, texts, strict=True))
            waiting.add(pa.array(ids, pa.int64()), pa.record_batch({"text": pa.array(texts, pa.string())}))
        waiting.seal()
        seen: dict[int, str] = {}
        for stop in [*sorted(stops), 1000]:
            found = waiting.take(stop)
            if found is not None:
                ids, rows = found
                assert (np.diff(ids) > 0).all()
                assert all(not seen or each > max(seen) for each in ids)
                assert (ids < stop).all()
                seen |= dict(zip(ids.tolist(), rows.column("text").to_pylist(), strict=True))
            assert {each for each in expected if each < stop} == seen.keys()
    assert seen == expected


def test_nothing_is_seen_of_the_file_they_wait_in(tmp_path: Path) -> None:
    with closing(WaitingRows(str(tmp_path), buffer_bytes=1000)) as waiting:
        for start in range(0, 10_000, 100):
            waiting.add(pa.array(range(start, start + 100)), pa.record_batch({"x": range(start, start + 100)}))
        assert list(tmp_path.iterdir()) == []
        waiting.seal()
        found = waiting.take(10_000)
        assert found is not None
        assert found[1].column("x").to_pylist() == list(range(10_000))


def test_rows_without_values_can_wait_too() -> None:
    with closing(WaitingRows(buffer_bytes=1)) as waiting:
        waiting.add(pa.array([3, 1, 2]), pa.record_batch({"x": [1, 2, 3]}).select([]))
        waiting.seal()
        found = waiting.take(3)
    assert found is not None
    assert found[0].tolist() == [1, 2]


def test_a_disk_without_room_is_told(tmp_path: Path) -> None:
    with (
        closing(WaitingRows(str(tmp_path / "nowhere"), buffer_bytes=1)) as waiting,
        pytest.raises(Unavailable, match="cannot be buffered"),
    ):
        waiting.add(pa.array([1]), pa.record_batch({"x": [1]}))
