"""Buffered rows that are spilled in many small pieces are all returned, each once, in order."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from skiway.lake.writing import rewriting
from skiway.lake.writing.rewriting import WaitingRows, _Piece, _Run


def rows(ids: range | list[int]) -> tuple[pa.Array, pa.RecordBatch]:
    return pa.array(list(ids), pa.int64()), pa.record_batch({"x": [f"row {number}" for number in ids]})


@pytest.mark.parametrize("piece_bytes", [1, 40, 200, 1 << 18])
@pytest.mark.parametrize("step", [1, 3, 10, 100])
def test_rows_of_all_pieces_are_taken(
    tmp_path: Path, piece_bytes: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_PIECE_BYTES", piece_bytes)
    found: list[tuple[int, str]] = []
    with closing(WaitingRows(str(tmp_path), buffer_bytes=300)) as waiting:
        for first in (20, 0, 10):
            waiting.add(*rows(range(first, first + 10)))
        waiting.add(*rows([29, 30]))
        waiting.seal()
        for before in range(step, 31 + step, step):
            taken = waiting.take(before)
            if taken is not None:
                numbers, values = taken
                assert (numbers < before).all()
                assert (numbers >= before - step).all()
                found += zip(numbers.tolist(), values.column("x").to_pylist(), strict=True)
        assert waiting.take(1000) is None
    assert found == [(number, f"row {number}") for number in range(31)]


def test_pieces_are_read_one_after_the_other() -> None:
    batches = [pa.record_batch({"": pa.array(ids, pa.int64())}) for ids in ([1, 2], [3, 4], [5])]
    run = _Run([_Piece(batch) for batch in batches])
    assert [batch.column(0).to_pylist() for batch in run.take(3)] == [[1, 2]]
    assert [batch.column(0).to_pylist() for batch in run.take(5)] == [[3, 4]]
    assert run.take(5) == []
    assert [batch.column(0).to_pylist() for batch in run.take(6)] == [[5]]
    assert run.take(100) == []
    again = _Run([_Piece(batch) for batch in batches])
    assert np.concatenate([batch.column(0).to_numpy() for batch in again.take(100)]).tolist() == [1, 2, 3, 4, 5]
