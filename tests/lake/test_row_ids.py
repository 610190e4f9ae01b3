from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from skiway.errors import Conflict, LimitExceeded
from skiway.lake.reading.scans import RowIds


def files(count: int, rows: int) -> pa.Table:
    return pa.table({"ordinal": pa.array(range(count), pa.int32()), "row_count": pa.array([rows] * count, pa.int64())})


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (1, 1 << 40), (1000, 1_000_000), (1_000_000, 1 << 30)])
def test_row_ids_resolve_to_their_rows(count: int, rows: int) -> None:
    ids = RowIds.of("t1", 42, files(count, rows))
    ordinals = pa.array([0, count - 1, count // 2], pa.int32())
    positions = pa.array([0, rows - 1, rows // 3], pa.int64())
    encoded = ids.encode(ordinals, positions)
    assert encoded.type == pa.int64()
    assert min(encoded.to_pylist()) >= 0
    found = ids.decode(encoded)
    assert found[0].tolist() == ordinals.to_pylist()
    assert found[1].tolist() == positions.to_pylist()


def test_row_ids_of_another_snapshot_or_table_are_rejected() -> None:
    own = RowIds.of("t1", 42, files(10, 100))
    row = pa.array([1], pa.int32()), pa.array([7], pa.int64())
    for other in (RowIds.of("t1", 43, files(10, 100)), RowIds.of("t2", 42, files(10, 100))):
        with pytest.raises(Conflict, match="run the statement again"):
            own.decode(other.encode(*row))


def test_made_up_small_row_ids_are_rejected() -> None:
    ids = RowIds.of("t1", 42, files(10, 100))
    with pytest.raises(Conflict):
        ids.decode(pa.array(np.arange(100)))


def test_snapshot_without_room_for_a_tag_is_rejected() -> None:
    with pytest.raises(LimitExceeded, match="fewer or smaller files"):
        RowIds.of("t1", 42, files(1 << 20, 1 << 40))
