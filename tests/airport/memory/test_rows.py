"""Chunked rows behave like a plain list of rows, whatever the operations."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skiway.airport.memory import rows as rows_module
from skiway.airport.memory.definitions import ROWID_FIELD
from skiway.airport.memory.rows import Rows

SCHEMA = pa.schema([pa.field("v", pa.int64()), ROWID_FIELD])
SMALL = 8


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CHUNK_ROWS", SMALL)


def batch(values: list[int], ids: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64()), pa.array(ids, pa.int64())], schema=SCHEMA)


class Listed(RuleBasedStateMachine):
    """Chunked rows beside a plain list of [id, value, stamp]."""

    @initialize()
    def begin(self) -> None:
        self.rows = Rows(SCHEMA)
        self.model: list[list[int]] = []
        self.numbers: Iterator[int] = iter(range(10**9))
        self.ids: Iterator[int] = iter(range(10**9))

    @rule(sizes=st.lists(st.integers(0, 20), max_size=3), backwards=st.booleans())
    def append(self, sizes: list[int], backwards: bool) -> None:
        """Ids of concurrent statements come in any order."""
        stamp = next(self.numbers)
        batches = []
        for size in sizes:
            ids = [next(self.ids) for _ in range(size)]
            ids = ids[::-1] if backwards else ids
            batches.append(batch([stamp] * size, ids))
            self.model += [[row_id, stamp, stamp] for row_id in ids]
        self.rows = self.rows.append(batches, stamp)

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        chosen = self.choose(data)
        stamp = next(self.numbers)
        found = self.rows.find(pa.array([row[0] for row in chosen], pa.int64()))
        new = batch([-row[0] for row in chosen], [row[0] for row in chosen])
        self.rows = self.rows.replaced(found, new, stamp)
        for row in chosen:
            row[1:] = [-row[0], stamp]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        chosen = self.choose(data)
        self.rows = self.rows.removed(self.rows.find(pa.array([row[0] for row in chosen], pa.int64())))
        self.model = [row for row in self.model if row not in chosen]

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        chosen = self.choose(data)
        ids = [row[0] for row in chosen]
        found = self.rows.find(pa.array(ids, pa.int64()))
        assert self.rows.take(found).to_pydict() == {"v": [row[1] for row in chosen], "rowid": ids}
        assert self.rows.stamps(found).to_pylist() == [row[2] for row in chosen]
        missing = self.rows.find(pa.array([*ids, 10**9], pa.int64()))
        assert missing.positions.is_null().to_pylist() == [False] * len(ids) + [True]
        assert self.rows.stamps(missing).to_pylist()[-1] is None

    def choose(self, data: st.DataObject) -> list[list[int]]:
        return data.draw(st.lists(st.sampled_from(self.model), unique_by=lambda row: row[0])) if self.model else []

    @invariant()
    def same(self) -> None:
        table = self.rows.table()
        assert table.to_pydict() == {"v": [row[1] for row in self.model], "rowid": [row[0] for row in self.model]}
        assert len(self.rows) == len(self.model)

    @invariant()
    def few_chunks(self) -> None:
        sizes = [len(chunk) for chunk in self.rows.chunks]
        assert all(0 < size <= SMALL for size in sizes)
        assert all(chunk.stamps.null_count == 0 and len(chunk.stamps) == len(chunk) for chunk in self.rows.chunks)


TestRows = Listed.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=25)
