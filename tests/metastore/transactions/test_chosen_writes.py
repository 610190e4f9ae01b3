"""Commits that choose writes, and commits that replace the rows of tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, expect_error
from metastore.transactions.test_transactions import HOUR_S, Workbench, numbers
from skiway.errors import NotFound, PermissionDenied, PreconditionFailed
from skiway.metastore import managed
from skiway.metastore.records.access import AccessDecision
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock


@pytest.fixture
def bench(factory: ResourceFactory, tmp_path: Path) -> Workbench:
    return Workbench.of(factory, tmp_path)


def staged(bench: Workbench, unit: str, *values: int) -> str:
    answer = bench.stage(unit, bench.people, numbers(*values))
    assert (answer.row_count, bool(answer.write_id)) == (len(values), bool(values))
    return answer.write_id


def data_files(bench: Workbench) -> set[Path]:
    return {path for path in bench.files() if path.suffix == ".parquet" or path.name.startswith("staged-")}


def test_only_chosen_writes_are_committed_and_the_files_of_others_deleted(bench: Workbench) -> None:
    before = data_files(bench)
    unit = bench.begin()
    first, _, second = staged(bench, unit, 2), staged(bench, unit, 2), staged(bench, unit, 3)
    bench.append(unit, bench.orders, numbers(4))
    done = bench.commit(unit, only=[first, second])
    assert bench.rows() == ([1, 2, 3], [1])
    assert len(data_files(bench) - before) == 2
    assert [(each.table_id.id, each.row_count) for each in done.committed] == [(bench.people.id, 2)]
    assert bench.commit(unit, only=[first]) == done, "a repeated commit changes nothing"
    assert damage(bench.lake.factory.stores) == []


def test_commit_of_no_writes_drops_all(bench: Workbench) -> None:
    before = bench.files()
    unit = bench.begin()
    staged(bench, unit, 2)
    assert bench.commit(unit, only=[]).state == v1.TX_COMMITTED
    assert (bench.rows(), bench.files()) == (([1], [1]), before)


def test_write_that_the_transaction_does_not_have_is_refused(bench: Workbench) -> None:
    unit, other = bench.begin(), bench.begin()
    mine, foreign = staged(bench, unit, 2), staged(bench, other, 3)
    with expect_error(NotFound, "transaction.write", write_id=foreign, transaction_id=unit):
        bench.commit(unit, only=[mine, foreign])
    assert (bench.rows(), bench.get(unit).state) == (([1], [1]), v1.TX_OPEN)


def test_rows_that_arrive_during_the_commit_are_dropped(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = bench.begin()
    chosen = staged(bench, unit, 2)
    before = data_files(bench)

    def append_first(*arguments: Any, **more: Any) -> Any:
        monkeypatch.undo()
        bench.append(unit, bench.people, numbers(2))
        return managed.change_all(*arguments, **more)

    monkeypatch.setattr("skiway.metastore.transactions.api.change_all", append_first)
    bench.commit(unit, only=[chosen])
    assert bench.rows() == ([1, 2], [1])
    assert {each for each in data_files(bench) - before if each.suffix == ".parquet"} == set()
    with expect_error(PreconditionFailed, "transaction.ended", state="committed"):
        bench.append(unit, bench.people, numbers(2))
    assert not [path for path in bench.files() if "staged-" in path.name]


def test_rows_are_replaced_with_what_others_have_committed_meanwhile(bench: Workbench) -> None:
    unit = bench.begin()
    write = staged(bench, unit, 5)
    bench.append(unit, bench.orders, numbers(6))
    bench.lake.append(bench.people, 7)
    done = bench.commit(unit, replaced=(bench.people,))
    assert bench.rows() == ([5], [1, 6])
    assert write in {each.write_id for each in done.writes}
    assert len(bench.lake.load(bench.people).metadata.snapshots) == 3


@pytest.mark.parametrize("only", [None, []])
def test_table_without_new_rows_becomes_empty(bench: Workbench, only: list[str] | None) -> None:
    done = bench.commit(bench.begin(), only=only, replaced=(bench.people, bench.people))
    assert bench.rows() == ([], [1])
    assert [(each.table_id.id, each.row_count) for each in done.committed] == [(bench.people.id, 0)]


def test_replacing_needs_the_right_to_write(bench: Workbench) -> None:
    stores = bench.lake.factory.stores
    access = AccessDecision(lambda: stores, "a1", allows=("table.read",).__contains__, grantees=())
    caller = replace(bench, realm=replace(bench.realm, access=access))
    unit = caller.begin()
    with pytest.raises(PermissionDenied):
        caller.commit(unit, replaced=(bench.people,))
    other = bench.as_("ada", account="a2")
    unit = other.begin()
    with pytest.raises(NotFound):
        other.commit(unit, replaced=(bench.people,))
    assert bench.rows() == ([1], [1])


def test_mirrored_table_is_not_replaced(bench: Workbench) -> None:
    mirrored = bench.lake.factory.table("mirrored")
    unwritable = replace(bench.people, stored=replace(bench.people.stored, value=mirrored))
    with expect_error(PreconditionFailed, "table.not_managed"):
        bench.commit(bench.begin(), replaced=(unwritable,))


def test_after_a_crash_garbage_collection_deletes_what_the_commit_dropped(tmp_path: Path) -> None:
    at, outcomes = 0, set()
    while True:
        at += 1
        clock = Clock()
        factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
        bench = Workbench.of(factory, tmp_path / f"{at}")
        before = data_files(bench)
        unit = bench.begin()
        chosen, _ = staged(bench, unit, 2), staged(bench, unit, 2)
        crash_point = CrashPoint(at, "after")
        crashing = replace(bench, realm=replace(bench.realm, stores=crashing_stores(factory.stores, crash_point)))
        with suppress(Crashed):
            crashing.commit(unit, only=[chosen])
        rows = bench.lake.rows(bench.people)
        assert rows in ([1], [1, 2]), f"crashed after operation {at}"
        outcomes.add(len(rows))
        for _ in range(2):  # expires, then is forgotten
            clock.advance(24 * HOUR_S)
            bench.collect()
        left = [path for path in data_files(bench) - before if path.suffix == ".parquet"]
        assert len(left) == len(rows) - 1, f"crashed after operation {at}"
        assert bench.lake.rows(bench.people) == rows
        if crash_point.done < at:
            break
    assert outcomes == {1, 2}
