"""A commit waits for the disk once, however many files it has written, and then changes pointers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.foundation import files
from skiway.storage.pointers.memory import MemoryPointerStore

FIRST = datetime(2024, 1, 1)
ROWS = pa.table({"ts": pa.array([FIRST + timedelta(hours=hour) for hour in range(40)], pa.timestamp("us"))})


@pytest.mark.parametrize("hours", [1, 40])
def test_an_insert_syncs_all_files_together_and_before_it_publishes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    with lake.client() as client:
        client.create_schema("s")
        lake.managed_table(ROWS.schema, partition_by=["hour(ts)"])
        client.insert("s.t", ROWS.slice(0, 1))  # creates folders
        synced, published = list[set[str]](), list[int]()
        sync, apply = files._sync, MemoryPointerStore._apply

        def recorded(requests: Sequence[Any]) -> None:
            synced.append({path for request in requests for path in request.paths})
            sync(requests)

        def applied(store: MemoryPointerStore, batch: Sequence[Any]) -> None:
            if any("/tables/" in operation.key for operation in batch):
                published.append(len(synced))
            apply(store, batch)

        monkeypatch.setattr(files, "_sync", recorded)
        monkeypatch.setattr(MemoryPointerStore, "_apply", applied)
        client.insert("s.t", ROWS.slice(0, hours))
        together = max(synced, key=len)
        names = [Path(path).suffix for path in together]
        assert (names.count(".parquet"), names.count(".avro"), names.count(".json")) == (hours, 2, 1)
        assert published == [synced.index(together) + 1], "the pointer changes right after that"
        assert client.scan("s.t").read_all().num_rows == 1 + hours
