"""Buffered rows: added in any order, in memory or on disk, they are returned sorted and without duplicates."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.errors import Unavailable
from skiway.lake.writing.rewriting import WaitingRows


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=12),
    st.lists(st.integers(0, 45), max_size=6),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_rows_are_returned_by_id_and_the_last_duplicate_wins(
    batches: list[list[int]], stops: list[int], buffer: int
) -> None:
    expected: dict[int, str] = {}
    with closing(WaitingRows(buffer_bytes=buffer)) as buffered:
        for number, ids in enumerate(batches):
            texts = [f"{number}/{place}" for place in range(len(ids))]
            expected |= dict(zip(ids, texts, strict=True))
            buffered.add(pa.array(ids, pa.int64()), pa.record_batch({"text": pa.array(texts, pa.string())}))
        buffered.seal()
        seen: dict[int, str] = {}
        for stop in [*sorted(stops), 1000]:
            found = buffered.take(stop)
            if found is not None:
                ids, rows = found
                assert (np.diff(ids) > 0).all()
                assert all(not seen or each > max(seen) for each in ids)
                assert (ids < stop).all()
                seen |= dict(zip(ids.tolist(), rows.column("text").to_pylist(), strict=True))
            assert {each for each in expected if each < stop} == seen.keys()
    assert seen == expected


def test_spill_file_is_not_visible_in_the_folder(tmp_path: Path) -> None:
    with closing(WaitingRows(str(tmp_path), buffer_bytes=1000)) as buffered:
        for start in range(0, 10_000, 100):
            buffered.add(pa.array(range(start, start + 100)), pa.record_batch({"x": range(start, start + 100)}))
        assert list(tmp_path.iterdir()) == []
        buffered.seal()
        found = buffered.take(10_000)
        assert found is not None
        assert found[1].column("x").to_pylist() == list(range(10_000))


def test_rows_without_columns_can_be_buffered() -> None:
    with closing(WaitingRows(buffer_bytes=1)) as buffered:
        buffered.add(pa.array([3, 1, 2]), pa.record_batch({"x": [1, 2, 3]}).select([]))
        buffered.seal()
        found = buffered.take(3)
    assert found is not None
    assert found[0].tolist() == [1, 2]


def test_unwritable_spill_folder_is_reported(tmp_path: Path) -> None:
    with (
        closing(WaitingRows(str(tmp_path / "nowhere"), buffer_bytes=1)) as buffered,
        pytest.raises(Unavailable, match="cannot be buffered"),
    ):
        buffered.add(pa.array([1]), pa.record_batch({"x": [1]}))
