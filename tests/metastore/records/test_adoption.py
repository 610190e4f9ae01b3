"""Several calls adopt the snapshots of a table on a branch at once: none of them fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skiway.metastore.records.branches import Base, BranchPointers
from skiway.metastore.records.repository import Stored
from skiway.model import v1
from skiway.storage import ABSENT, Operation, Pointer, Put
from skiway.storage.pointers.memory import MemoryPointerStore

FOUND = [Pointer(f"/accounts/a1/tables/t/snapshots/{number}", f"blob{number}", 1) for number in (1, 2)]


def branch(inner: MemoryPointerStore) -> BranchPointers:
    own = v1.ResourceId(account_id="a1", id="b")
    record = v1.Branch(resource_id=own, catalog_id=v1.ResourceId(account_id="a1", id="c"))
    return BranchPointers(inner, Stored(record, Pointer("/branch", "blob", 1)), Base({}, [], frozenset()))


class Racing(MemoryPointerStore):
    """A store in which another call does a part of the same before each batch."""

    steps: list[list[Operation]]

    def _apply(self, batch: Sequence[Operation]) -> None:
        if self.steps and len(batch) > 1:
            super()._apply(self.steps.pop(0))
        super()._apply(batch)


@pytest.mark.parametrize("finishes", [False, True])
def test_another_call_adopts_the_same_table_meanwhile(finishes: bool) -> None:
    inner = Racing()
    inner.steps = []
    one = branch(inner)
    first, second = (Put(one._prefix + each.key, f"1 {each.blob_uri}", expect=ABSENT) for each in FOUND)
    begun: list[Operation] = [first]
    ended: list[Operation] = [second, Put(one._mark("t"), "adopted", expect=ABSENT)] if finishes else [second]
    inner.steps = [begun, ended]
    one.adopted("t", FOUND)
    one.finish_adoption("t")
    assert [each.blob_uri for each in inner.scan(one._prefix + "/accounts")] == ["1 blob1", "1 blob2"]
    assert inner.get(one._mark("t")) is not None
    assert not inner.steps
