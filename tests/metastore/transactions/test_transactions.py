"""Transactions: what is staged, committed, aborted and expired, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import (
    Conflict,
    ConstraintViolation,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    Unavailable,
    Unsupported,
)
from skiway.formats.iceberg.changes.commits import delete_all
from skiway.metastore import Realm, gc, managed, transactions
from skiway.metastore.managed import ManagedTable, commits
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.transactions import StagingArea, TransactionRules, staged_writes
from skiway.metastore.transactions.staged_writes import Effect
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

HOUR_S = 3600.0


def stream(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def numbers(*values: int | None) -> bytes:
    return stream(pa.record_batch({"x": pa.array(values, pa.int64())}))


@dataclass
class Workbench:
    """A lake with two tables, `people` and `orders`, of one row each, and the calls of one caller."""

    lake: ManagedTableFactory
    people: ManagedTable
    orders: ManagedTable
    realm: Realm
    area: StagingArea

    @classmethod
    def of(cls, factory: ResourceFactory, folder: Path, **rules: Any) -> Workbench:
        lake = ManagedTableFactory.at(factory, folder)
        tables = [lake.append(lake.create(name), 1) for name in ("people", "orders")]
        area = StagingArea(lake.warehouse, rules=TransactionRules(**rules))
        return cls(lake, *tables, replace(lake.home, caller="ada"), area)

    def as_(self, caller: str, *, account: str = "a1") -> Workbench:
        realm = replace(self.lake.factory.realm(account), caller=caller)
        return replace(self, realm=realm)

    def begin(self, ttl_s: int = 0) -> str:
        request = v1.BeginTransactionRequest(ttl_seconds=ttl_s)
        return transactions.begin(self.realm, request, area=self.area).transaction.transaction_id

    def append(self, unit: str, table: ManagedTable, *messages: bytes, **more: Any) -> int:
        return self.stage(unit, table, *messages, **more).row_count

    def stage(self, unit: str, table: ManagedTable, *messages: bytes, **more: Any) -> v1.AppendRowsResponse:
        first, *others = messages or (b"",)
        requests = [v1.AppendRowsRequest(transaction_id=unit, table_id=id_of(table), rows=first, **more)]
        requests += [v1.AppendRowsRequest(rows=rows) for rows in others]
        return transactions.append(self.realm, requests, area=self.area)

    def commit(
        self, unit: str, *, only: list[str] | None = None, replaced: tuple[ManagedTable, ...] = ()
    ) -> v1.Transaction:
        request = v1.CommitTransactionRequest(transaction_id=unit, replaced_table_ids=map(id_of, replaced))
        if only is not None:
            request.only.CopyFrom(v1.WriteSelection(write_ids=only))
        return transactions.commit(self.realm, request, area=self.area).transaction

    def abort(self, unit: str) -> v1.Transaction:
        request = v1.AbortTransactionRequest(transaction_id=unit)
        return transactions.abort(self.realm, request, area=self.area).transaction

    def get(self, unit: str) -> v1.Transaction:
        return transactions.get(self.realm, v1.GetTransactionRequest(transaction_id=unit)).transaction

    def listed(self) -> list[str]:
        found = transactions.list_(self.realm, v1.ListTransactionsRequest()).transactions
        return [each.transaction_id for each in found]

    def rows(self) -> tuple[list[int], list[int]]:
        return self.lake.rows(self.people), self.lake.rows(self.orders)

    def files(self) -> set[Path]:
        return {path for path in Path(self.lake.warehouse.root.path).rglob("*") if path.is_file()}

    def collect(self, *, warehouse_age_s: float | None = None) -> None:
        stores, clock = self.lake.factory.stores, self.lake.factory.clock
        gc.sweep_transactions(stores, self.lake.warehouse, clock=clock)
        if warehouse_age_s is not None:
            gc.sweep_warehouse(stores, self.lake.warehouse, clock=clock, min_age_s=warehouse_age_s, dry_run=False)


@pytest.fixture
def bench(factory: ResourceFactory, tmp_path: Path) -> Workbench:
    return Workbench.of(factory, tmp_path)


# --- commit and abort -------------------------------------------------------------------------------------------------


def test_rows_of_all_tables_become_visible_with_the_commit(bench: Workbench) -> None:
    unit = bench.begin()
    assert bench.append(unit, bench.people, numbers(2), numbers(3, 4)) == 3
    assert bench.append(unit, bench.orders, numbers(5)) == 1
    assert bench.append(unit, bench.people, numbers(6)) == 1
    assert bench.rows() == ([1], [1])
    assert (bench.listed(), bench.get(unit).state) == ([unit], v1.TX_OPEN)
    done = bench.commit(unit)
    assert bench.rows() == ([1, 2, 3, 4, 6], [1, 5])
    assert (bench.listed(), done.state) == ([], v1.TX_COMMITTED)
    tables = [bench.lake.load(table) for table in (bench.people, bench.orders)]
    assert [(each.table_id.id, each.snapshot_id, each.row_count) for each in done.committed] == [
        (table.id, table.metadata.current_snapshot_id, count) for table, count in zip(tables, (4, 1), strict=True)
    ]
    assert [len(table.metadata.snapshots) for table in tables] == [2, 2], "all writes to a table are one snapshot"
    assert not [path for path in bench.files() if "staged-" in path.name]
    assert damage(bench.lake.factory.stores) == []


def test_commit_can_be_repeated(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    done = bench.commit(unit)
    assert bench.commit(unit) == done
    assert bench.rows() == ([1, 2], [1])


def test_aborted_rows_and_their_files_are_gone(bench: Workbench) -> None:
    before = bench.files()
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    bench.append(unit, bench.orders, numbers(2))
    assert len(bench.files() - before) == 4
    aborted = bench.abort(unit)
    assert aborted.state == v1.TX_ABORTED
    assert bench.files() == before
    bench.lake.factory.clock.advance(1)
    assert bench.abort(unit) == aborted
    assert bench.rows() == ([1], [1])


def test_transaction_without_rows_can_be_committed(bench: Workbench) -> None:
    unit = bench.begin()
    assert bench.append(unit, bench.people) == 0
    assert bench.commit(unit).state == v1.TX_COMMITTED
    assert len(bench.lake.load(bench.people).metadata.snapshots) == 1


def test_partitioned_rows_and_later_changes_of_the_table_are_kept(bench: Workbench) -> None:
    table = bench.lake.create("parts", pa.schema({"x": pa.int64(), "y": pa.string()}), partition_by=["y"])
    unit = bench.begin()
    rows = pa.record_batch({"x": pa.array([1, 2, 3]), "y": ["a", "b", None]})
    assert bench.append(unit, table, stream(rows)) == 3
    other = bench.as_("grace")
    fast = other.begin()
    other.append(fast, table, stream(pa.record_batch({"x": pa.array([9]), "y": ["a"]})))
    other.commit(fast)
    bench.commit(unit)
    assert bench.lake.rows(table) == [1, 2, 3, 9]
    handle = bench.lake.load(table).handle
    assert len(handle.files(handle.current())) == 4, "each row is in the file of its partition"


@pytest.mark.parametrize("end", [Workbench.commit, Workbench.abort])
def test_ended_transaction_takes_no_rows(bench: Workbench, end: Callable[[Workbench, str], v1.Transaction]) -> None:
    unit = bench.begin()
    state = "committed" if end is Workbench.commit else "aborted"
    end(bench, unit)
    before = bench.files()
    with expect_error(PreconditionFailed, "transaction.ended", transaction_id=unit, state=state):
        bench.append(unit, bench.people, numbers(2))
    with expect_error(PreconditionFailed, "transaction.ended", state=state):
        (bench.abort if end is Workbench.commit else bench.commit)(unit)
    assert bench.files() == before
    assert bench.rows() == ([1], [1])


def change(*added: str, removed: Sequence[str] = (), deletes: Sequence[v1.StagedDelete] = ()) -> v1.StagedWrite:
    return v1.StagedWrite(data_files=added, change=v1.StagedChange(removed_files=removed, deletes=deletes))


def test_effect_of_changes_is_what_is_left_after_the_last() -> None:
    positions = [v1.StagedDelete(path=f"d{number}", data_file="old") for number in range(2)]
    vectors = [v1.StagedDelete(path=f"v{n}", data_file="old", vector_offset=n, vector_length=9) for n in range(2)]
    other = v1.StagedDelete(path="d2", data_file="other")
    insert = v1.StagedWrite(data_files=["a", "b"])
    for writes, added, removed, deletes in (
        ([insert, change("c", removed=["a", "old"])], ["b", "c"], ["old"], []),
        ([change(deletes=[positions[0], other]), change(deletes=positions[1:])], [], [], [*positions, other]),
        ([change(deletes=[vectors[0], other]), change(deletes=vectors[1:])], [], [], [vectors[1], other]),
        ([change(deletes=[vectors[0], other]), change("c", removed=["old"])], ["c"], ["old"], [other]),
    ):
        assert Effect.of(writes) == Effect(added, removed, deletes)


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_conflict_in_one_table_commits_nothing(bench: Workbench) -> None:
    unit = bench.begin()
    expected = bench.people.metadata.current_snapshot_id
    bench.append(unit, bench.people, numbers(2), expected_snapshot_id=expected)
    bench.append(unit, bench.orders, numbers(2))
    bench.lake.append(bench.people, 7)
    before = bench.files()
    with expect_error(Conflict, "commit.failed"):
        bench.commit(unit)
    assert bench.rows() == ([1, 7], [1])
    assert bench.files() == before, "a failed commit must leave no manifests"
    assert bench.get(unit).state == v1.TX_OPEN
    bench.abort(unit)


def test_expected_snapshot_that_is_current_is_no_conflict(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2), expected_snapshot_id=bench.people.metadata.current_snapshot_id)
    empty = bench.lake.create("empty")
    bench.append(unit, empty, numbers(3), expected_snapshot_id=0)
    bench.lake.append(bench.orders, 7)
    bench.commit(unit)
    assert (bench.rows(), bench.lake.rows(empty)) == (([1, 2], [1, 7]), [3])


def test_dropped_table_fails_the_commit(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    bench.append(unit, bench.orders, numbers(2))
    managed.drop(bench.lake.home, bench.lake.warehouse, id_of(bench.orders))
    with pytest.raises(NotFound):
        bench.commit(unit)
    assert bench.lake.rows(bench.people) == [1]
    bench.abort(unit)
    assert not [path for path in bench.files() if "staged-" in path.name]


def before_the_change(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something else when the next commit has read the transaction, and is about to change the tables."""

    def act_first(*arguments: Any, **more: Any) -> Any:
        monkeypatch.undo()
        action()
        return managed.change_all(*arguments, **more)

    monkeypatch.setattr("skiway.metastore.transactions.api.change_all", act_first)


def test_rows_that_arrive_during_the_commit_are_not_lost(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    before_the_change(monkeypatch, lambda: bench.append(unit, bench.orders, numbers(3)))
    with expect_error(Conflict, "transaction.changed", transaction_id=unit):
        bench.commit(unit)
    assert bench.rows() == ([1], [1])
    bench.commit(unit)
    assert bench.rows() == ([1, 2], [1, 3])


def test_abort_during_the_commit_wins_or_loses_completely(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    before_the_change(monkeypatch, lambda: bench.abort(unit))
    with expect_error(PreconditionFailed, "transaction.ended", state="aborted"):
        bench.commit(unit)
    assert (bench.rows(), bench.get(unit).state) == (([1], [1]), v1.TX_ABORTED)


def test_commits_at_the_same_time_are_one(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    faster: list[v1.Transaction] = []
    before_the_change(monkeypatch, lambda: faster.append(bench.commit(unit)))
    assert [bench.commit(unit)] == faster
    assert bench.rows() == ([1, 2], [1])


class LosingAnswers(CrashPoint):
    """Operations take effect, but the connection is lost before the answer to one of them arrives."""

    def run(self, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return super().run(operation, *arguments, **keywords)
        except Crashed:
            raise Unavailable("the connection was lost") from None


def losing_answers(bench: Workbench, call: Callable[[Workbench], Any]) -> Iterator[int]:
    """Make a call again and again, each time without the answer to its next operation, until it gets all answers."""
    at = 0
    while True:
        at += 1
        losing = LosingAnswers(at, "after")
        realm = replace(bench.realm, stores=crashing_stores(bench.lake.factory.stores, losing))
        try:
            call(replace(bench, realm=realm))
        except Unavailable:
            yield at
        else:
            return


def test_commit_with_a_lost_answer_can_be_repeated(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    bench.append(unit, bench.orders, numbers(2))
    lost = [bench.rows() for _ in losing_answers(bench, lambda losing: losing.commit(unit))]
    assert {len(people) for people, _ in lost} == {1, 2}
    assert bench.commit(unit).state == v1.TX_COMMITTED
    assert bench.rows() == ([1, 2], [1, 2])


def test_rows_are_kept_if_the_answer_to_their_staging_is_lost(bench: Workbench) -> None:
    """The transaction may refer to their files, whatever the caller learned."""
    unit = bench.begin()
    calls = 1 + len(list(losing_answers(bench, lambda losing: losing.append(unit, bench.people, numbers(2)))))
    staged = bench.get(unit)
    assert 1 < len(staged.writes) < calls, "some operations come before the rows are staged, and some after it"
    bench.commit(unit)
    assert bench.rows() == ([1, *[2] * len(staged.writes)], [1])


def test_concurrent_commits_of_several_tables_stay_equal(bench: Workbench) -> None:
    def work(worker: int) -> None:
        own = bench.as_(f"caller {worker}")
        unit = own.begin()
        for table in (own.people, own.orders)[:: 1 if worker % 2 else -1]:
            own.append(unit, table, numbers(worker))
        own.abort(unit) if worker == 5 else own.commit(unit)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(2, 10)))
    expected = [1, 2, 3, 4, 6, 7, 8, 9]
    assert bench.rows() == (expected, expected)
    assert damage(bench.lake.factory.stores) == []


class Overtaken(CrashPoint):
    """Another change of a table comes first, once."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action: Callable[[], object] | None = action

    def run(self, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        action = self.action
        if action and operation.__name__ == "_apply" and any("/tables/" in each.key for each in arguments[0]):
            self.action = None
            action()
        return super().run(operation, *arguments, **keywords)


def test_commit_that_loses_a_race_reports_each_table_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "LOCK_TIMEOUT_S", 0.1)  # the commit that overtakes does not get the lock
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    bench.append(unit, bench.orders, numbers(3, 4))
    overtaken = Overtaken(lambda: bench.lake.append(bench.orders, 7))
    stores = crashing_stores(bench.lake.factory.stores, overtaken)
    done = replace(bench, realm=replace(bench.realm, stores=stores)).commit(unit)
    assert overtaken.action is None
    assert [(each.table_id.id, each.row_count) for each in done.committed] == [
        (bench.people.id, 1),
        (bench.orders.id, 2),
    ]
    assert bench.rows() == ([1, 2], [1, 3, 4, 7])


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_any_operation_of_a_commit_commits_everything_or_nothing(tmp_path: Path, when: Any) -> None:
    at, outcomes = 0, set()
    while True:
        at += 1
        clock = Clock()
        factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
        bench = Workbench.of(factory, tmp_path / f"{at}")
        unit = bench.begin()
        bench.append(unit, bench.people, numbers(2))
        bench.append(unit, bench.orders, numbers(2))
        crash_point = CrashPoint(at, when)
        crashing = replace(bench, realm=replace(bench.realm, stores=crashing_stores(factory.stores, crash_point)))
        with suppress(Crashed):
            crashing.commit(unit)
        rows = bench.rows()
        assert rows in (([1], [1]), ([1, 2], [1, 2])), f"crashed {when} operation {at}"
        assert damage(factory.stores) == []
        outcomes.add(len(rows[0]))
        bench.commit(unit)
        assert bench.rows() == ([1, 2], [1, 2])
        if crash_point.done < at:
            break
    assert outcomes == {1, 2}


def test_two_first_statements_at_once_begin_one_transaction(bench: Workbench) -> None:
    clock = bench.lake.factory.clock
    until = clock() + timedelta(hours=1)
    first: list[v1.Transaction] = []

    def slow() -> datetime:
        """The time, which is asked for before the record is written: the other statement is faster."""
        if not first:
            first.append(staged_writes.opened(bench.realm, "t", until=until).value)
            clock.advance(1)
        return clock()

    second = staged_writes.opened(replace(bench.realm, clock=slow), "t", until=until).value
    assert [second] == first
    assert bench.listed() == ["t"]


# --- callers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("caller", "account"), [("grace", "a1"), ("ada", "a2"), ("", "a1")])
def test_transaction_does_not_exist_for_others(bench: Workbench, caller: str, account: str) -> None:
    if account == "a2":
        bench.lake.factory.account("a2")
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    other = bench.as_(caller, account=account)
    before = bench.files()
    for call in (
        lambda: other.get(unit),
        lambda: other.append(unit, bench.people, numbers(3)),
        lambda: other.commit(unit),
        lambda: other.abort(unit),
    ):
        with expect_error(NotFound, "transaction", id=unit):
            call()
    assert other.listed() == []
    assert bench.files() == before
    bench.commit(unit)
    assert bench.rows() == ([1, 2], [1])


@pytest.mark.parametrize("permissions", [("table.read",), ("table.read", "table.write")])
def test_rows_are_written_only_for_tables_that_the_caller_may_change(
    bench: Workbench, permissions: tuple[str, ...]
) -> None:
    stores = bench.lake.factory.stores
    access = AccessDecision(lambda: stores, "a1", allows=permissions.__contains__, grantees=())
    caller = replace(bench, realm=replace(bench.realm, access=access))
    unit, before = caller.begin(), bench.files()
    if "table.write" in permissions:
        assert caller.append(unit, bench.people, numbers(2)) == 1
        return
    with pytest.raises(PermissionDenied):
        caller.append(unit, bench.people, numbers(2))
    assert bench.files() == before
    assert not caller.get(unit).writes


def test_files_are_staged_only_by_callers_who_may_change_the_table(bench: Workbench) -> None:
    stores, unit = bench.lake.factory.stores, bench.begin()
    access = AccessDecision(lambda: stores, "a1", allows=lambda permission: permission == "table.read", grantees=())
    with pytest.raises(PermissionDenied):
        staged_writes.stage(replace(bench.realm, access=access), unit, staged_writes.NewWrite(bench.people, [], 0))
    assert not bench.get(unit).writes


def test_number_of_open_transactions_and_of_writes_is_limited(factory: ResourceFactory, tmp_path: Path) -> None:
    bench = Workbench.of(factory, tmp_path, max_open=2, max_writes=1)
    unit, _ = bench.begin(), bench.begin()
    with expect_error(LimitExceeded, "transaction.too_many", limit="2"):
        bench.begin()
    bench.as_("grace").begin()
    bench.append(unit, bench.people, numbers(2))
    before = bench.files()
    with expect_error(LimitExceeded, "transaction.too_large", limit="1"):
        bench.append(unit, bench.people, numbers(3))
    assert bench.files() == before
    bench.commit(unit)
    bench.begin()
    assert bench.rows() == ([1, 2], [1])


# --- expiry and garbage collection ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requested_s", "open_s"), [(0, 50), (-1, 50), (1, 1), (100, 100), (101, 100)])
def test_transaction_stays_open_as_long_as_requested_within_limits(requested_s: int, open_s: float) -> None:
    assert TransactionRules(default_ttl_s=50.0, max_ttl_s=100.0).ttl_s(requested_s) == open_s


def test_expired_transaction_is_collected_with_its_files(bench: Workbench) -> None:
    before = bench.files()
    unit, other = bench.begin(), bench.begin(ttl_s=7200)
    bench.append(unit, bench.people, numbers(2))
    bench.append(other, bench.orders, numbers(2))
    kept = bench.get(other).writes[0]
    clock = bench.lake.factory.clock
    clock.advance(HOUR_S - 1)
    bench.collect()
    assert bench.get(unit).state == v1.TX_OPEN
    clock.advance(1)
    with expect_error(PreconditionFailed, "transaction.ended", state="expired"):
        bench.commit(unit)
    with expect_error(PreconditionFailed, "transaction.ended", state="expired"):
        bench.append(unit, bench.people, numbers(3))
    bench.collect()
    assert bench.get(unit).state == v1.TX_EXPIRED
    left = {kept.manifest, *kept.data_files}
    assert {f"file://{path}" for path in bench.files() - before} == left
    assert bench.listed() == [other]
    clock.advance(24 * HOUR_S)
    bench.collect()
    with expect_error(NotFound, "transaction"):
        bench.get(unit)


def test_files_of_open_transactions_survive_garbage_collection(bench: Workbench) -> None:
    unit = bench.begin(ttl_s=4 * 3600)
    bench.append(unit, bench.people, numbers(2))
    before = bench.files()
    orphan = next(path for path in before if path.suffix == ".parquet").with_name("orphan.parquet")
    orphan.write_bytes(b"")
    bench.collect(warehouse_age_s=-10 * 365 * 24 * HOUR_S)  # whatever the clock says, all files are old enough
    assert not orphan.exists()
    assert bench.files() == before
    bench.commit(unit)
    assert bench.rows() == ([1, 2], [1])


def test_record_of_a_committed_transaction_is_deleted_after_a_day_and_its_rows_stay(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    bench.commit(unit)
    bench.lake.factory.clock.advance(24 * HOUR_S - 1)
    bench.collect()
    assert bench.get(unit).state == v1.TX_COMMITTED
    bench.lake.factory.clock.advance(1)
    bench.collect()
    with pytest.raises(NotFound):
        bench.get(unit)
    assert bench.rows() == ([1, 2], [1])
    assert damage(bench.lake.factory.stores) == []


def test_dry_run_deletes_nothing(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    bench.lake.factory.clock.advance(HOUR_S)
    before = bench.files()
    stores, clock = bench.lake.factory.stores, bench.lake.factory.clock
    found = gc.sweep_transactions(stores, bench.lake.warehouse, clock=clock, dry_run=True)
    assert (len(found.removed), len(found.files)) == (1, 2)
    assert (bench.files(), bench.get(unit).state) == (before, v1.TX_OPEN)


# --- bad input --------------------------------------------------------------------------------------------------------


def not_managed(bench: Workbench) -> ManagedTable:
    return replace(bench.people, stored=replace(bench.people.stored, value=bench.lake.factory.table("mirrored")))


BAD_ROWS: tuple[tuple[str, tuple[bytes, ...], type[SkiwayError], str], ...] = (
    ("not Arrow", (b"nonsense",), InvalidArgument, "rows.malformed"),
    ("cut off", (numbers(1, 2, 3)[:-60],), InvalidArgument, "rows.malformed"),
    ("empty message", (numbers(1), b""), InvalidArgument, "rows.malformed"),
    ("unknown column", (stream(pa.record_batch({"y": [1]})),), InvalidArgument, "column.unknown"),
    ("other type", (stream(pa.record_batch({"x": ["a"]})),), InvalidArgument, "column.value"),
    ("second message", (numbers(2), stream(pa.record_batch({"x": ["a"]}))), InvalidArgument, "column.value"),
)


@pytest.mark.parametrize(
    ("messages", "error", "key"), [case[1:] for case in BAD_ROWS], ids=[each[0] for each in BAD_ROWS]
)
def test_bad_rows_stage_nothing(bench: Workbench, messages: Any, error: type[SkiwayError], key: str) -> None:
    unit = bench.begin()
    before = bench.files()
    with expect_error(error, key):
        bench.append(unit, bench.people, *messages)
    assert (bench.files(), len(bench.get(unit).writes)) == (before, 0)
    bench.commit(unit)
    assert bench.rows() == ([1], [1])


def test_missing_value_of_a_required_column_stages_nothing(bench: Workbench) -> None:
    table = bench.lake.create("strict", pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    unit = bench.begin()
    with expect_error(ConstraintViolation, "column.not_null"):
        bench.append(unit, table, numbers(1, None))
    assert not bench.get(unit).writes


def test_requests_without_ids_or_for_other_objects_are_rejected(bench: Workbench) -> None:
    unit = bench.begin()
    with expect_error(InvalidArgument, "field", field="transaction_id"):
        bench.append("", bench.people, numbers(1))
    with expect_error(InvalidArgument, "field", field="transaction_id"):
        bench.commit(" ")
    with expect_error(NotFound, "transaction"):
        bench.append("invented", bench.people, numbers(1))
    with expect_error(PreconditionFailed, "table.not_managed"):
        bench.append(unit, not_managed(bench), numbers(1))
    system = v1.ResourceId(account_id="_system", id="x", kind=v1.RK_TABLE)
    for request, error in (
        (v1.AppendRowsRequest(transaction_id=unit), InvalidArgument),
        (v1.AppendRowsRequest(transaction_id=unit, table_id=v1.ResourceId(id="none")), NotFound),
        (v1.AppendRowsRequest(transaction_id=unit, table_id=system), PermissionDenied),
    ):
        with pytest.raises(error):
            transactions.append(bench.realm, [request], area=bench.area)
    with expect_error(InvalidArgument, "rows.table.changed", field="table_id"):
        transactions.append(
            bench.realm,
            [
                v1.AppendRowsRequest(transaction_id=unit, table_id=id_of(bench.people), rows=numbers(1)),
                v1.AppendRowsRequest(transaction_id=unit, table_id=id_of(bench.orders), rows=numbers(1)),
            ],
            area=bench.area,
        )
    with expect_error(Unsupported, "warehouse.missing"):
        replace(bench, area=StagingArea()).commit(unit)
    assert not bench.get(unit).writes


def test_rows_are_appended_to_what_others_have_left(bench: Workbench) -> None:
    unit = bench.begin()
    bench.append(unit, bench.people, numbers(2))
    managed.change(bench.lake.home, bench.lake.warehouse, id_of(bench.people), delete_all())
    bench.commit(unit)
    assert bench.rows() == ([2], [1])


@pytest.mark.parametrize("end", [Workbench.commit, Workbench.abort])
def test_transaction_that_ends_during_an_upload_takes_no_rows(
    bench: Workbench, end: Callable[[Workbench, str], v1.Transaction]
) -> None:
    unit = bench.begin()
    before = bench.files()

    def upload() -> Iterator[v1.AppendRowsRequest]:
        yield v1.AppendRowsRequest(transaction_id=unit, table_id=id_of(bench.people), rows=numbers(2))
        end(bench, unit)

    with expect_error(PreconditionFailed, "transaction.ended", transaction_id=unit):
        transactions.append(bench.realm, upload(), area=bench.area)
    assert (bench.files(), len(bench.get(unit).writes)) == (before, 0)


def interrupted(first: v1.AppendRowsRequest) -> Iterator[v1.AppendRowsRequest]:
    yield first
    raise ConnectionError("the client disconnected")


def test_interrupted_upload_stages_nothing(bench: Workbench) -> None:
    unit = bench.begin()
    before = bench.files()
    first = v1.AppendRowsRequest(transaction_id=unit, table_id=id_of(bench.people), rows=numbers(2))
    with pytest.raises(ConnectionError):
        transactions.append(bench.realm, interrupted(first), area=bench.area)
    assert (bench.files(), len(bench.get(unit).writes)) == (before, 0)
