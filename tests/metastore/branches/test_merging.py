"""Merges: all changes or none, whoever else writes and whenever the process dies; and what keeps changes from being merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from metastore.branches.world import World
from metastore.races import meanwhile
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict, PreconditionFailed
from skiway.metastore import branches, events
from skiway.metastore.resources import snapshots
from skiway.model import v1
from skiway.storage import Check, Operation, PointerStore, Stores


class Crashed(BaseException):
    """The process is killed."""


class MortalPointers(PointerStore):
    """Pointers of a process that dies at its write number `at`, before or after it, and does nothing from then on."""

    def __init__(self, inner: PointerStore, at: int, *, after: bool) -> None:
        super().__init__(clock=inner._clock)
        self.inner, self.at, self.after, self.writes = inner, at, after, 0
        self.max_large_batch = inner.max_large_batch  # type: ignore[misc]

    def _live(self) -> None:
        if self.at and self.writes >= self.at:
            raise Crashed

    def _apply(self, batch: Sequence[Operation]) -> None:
        self._live()
        if all(isinstance(each, Check) for each in batch):
            return self.inner._apply(batch)
        if self.writes + 1 == self.at and not self.after:
            self.writes += 1
            raise Crashed
        self.inner._apply(batch)
        self.writes += 1
        self._live()
        return None

    def _get(self, key: str) -> Any:
        self._live()
        return self.inner._get(key)

    def _scan(self, *given: Any, **named: Any) -> Any:
        self._live()
        return self.inner._scan(*given, **named)

    def _count(self, *given: Any, **named: Any) -> Any:
        self._live()
        return self.inner._count(*given, **named)

    def _purge(self, *given: Any, **named: Any) -> Any:
        return self.inner._purge(*given, **named)


class OvertakenPointers(MortalPointers):
    """Pointers of a process that is overtaken: before its writes, others make those of a list, one after another."""

    def __init__(self, inner: PointerStore, others: list[Callable[[Sequence[Operation]], object]]) -> None:
        super().__init__(inner, 0, after=False)
        self.others = others

    def _apply(self, batch: Sequence[Operation]) -> None:
        if self.others and any("/adopted/" in each.key for each in batch):
            self.others.pop(0)(batch)
        super()._apply(batch)


@pytest.fixture
def world(factory: ResourceFactory, tmp_path: Path) -> World:
    world = World(factory, tmp_path)
    for name in ("a.kept", "a.changed", "a.dropped", "a.renamed"):
        world.create(name)
        world.insert(name, 1)
    return world


def changes(world: World) -> None:
    """Create a branch with all kinds of changes, and append rows on main, too."""
    world.branch("dev")
    world.insert("a.changed", 2, branch="dev")
    world.drop("a.dropped", "dev")
    world.rename("a.renamed", "b.new", "dev")
    world.insert("b.new", 2, branch="dev")
    world.create("b.created", "dev")
    world.insert("b.created", 7, branch="dev")
    world.insert("a.changed", 9)


BEFORE = {"a.kept": [1], "a.changed": [1, 9], "a.dropped": [1], "a.renamed": [1]}
AFTER = {"a.kept": [1], "a.changed": [1, 2, 9], "b.new": [1, 2], "b.created": [7]}


def test_all_kinds_of_changes_are_published_together_with_an_event(world: World) -> None:
    changes(world)
    plan = world.merge("dev", dry_run=True)
    assert world.contents() == BEFORE
    assert {(each.name, each.action, each.on_main, each.plan) for each in plan.changes} == {
        ("b", "created", "", "publish"),
        ("b.created", "created", "", "publish"),
        ("b.new", "renamed", "", "publish"),
        ("a.changed", "changed", "changed", "append"),
        ("a.dropped", "dropped", "", "publish"),
    }
    done = world.merge("dev")
    assert done.branch.state == v1.BS_MERGED
    assert world.contents() == AFTER
    realm = world.factory.home
    found = events.list_(realm, v1.ListEventsRequest()).events
    assert [(each.action, each.name) for each in found if each.kind == "branch"] == [
        ("created", "lake@dev"),
        ("merged", "lake@dev"),
    ]
    # Sequence numbers continue, and the files of the branch belong to main.
    metadata = world.load("a.changed").metadata
    assert metadata.last_sequence_number == 3
    assert metadata.current_snapshot().summary.additional_properties["skiway.merged.from"] == "lake@dev"
    world.insert("a.changed", 3)
    assert world.rows("a.changed") == [1, 2, 3, 9]
    world.delete("dev")
    for _ in range(2):
        world.factory.clock.now += timedelta(days=4)
        world.sweep()
    assert world.contents() == {**AFTER, "a.changed": [1, 2, 3, 9]}
    assert world.files() == world.files_of_main()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_process_that_dies_leaves_main_as_before_or_after_the_merge(
    factory: ResourceFactory, tmp_path: Path, after: bool
) -> None:
    for step in range(1, 100):
        world = World(ResourceFactory(_fresh(factory), factory.clock), tmp_path / f"{step}")
        for name in ("a.kept", "a.changed", "a.dropped", "a.renamed"):
            world.create(name)
            world.insert(name, 1)
        changes(world)
        main = world.factory.home
        mortal = MortalPointers(world.factory.stores.pointers, step, after=after)
        try:
            world.merge("dev", of=replace(main, stores=Stores(mortal, main.stores.blobs)))
        except Crashed:
            pass
        else:
            assert step > 4, "there are at least: the lock, the closing of nothing, the batch, and what follows it"
            return
        assert world.contents() in (BEFORE, AFTER)
        # Others take over when the merge takes too long.
        world.factory.clock.now += timedelta(minutes=10)
        if world.contents() == BEFORE:
            world.merge("dev")
        assert world.contents() == AFTER
        world.sweep()
        assert world.contents() == AFTER
    raise AssertionError("the merge never ends")


def _fresh(factory: ResourceFactory) -> Stores:
    from skiway.storage import open_blobs, open_pointers

    return Stores(open_pointers("memory://", clock=factory.clock), open_blobs("memory://", clock=factory.clock))


def test_writers_on_main_during_a_merge_lose_nothing(world: World) -> None:
    changes(world)
    meanwhile(world.factory, "/accounts/a1/tables/by-id/", lambda: world.insert("a.changed", 10))
    world.merge("dev")
    assert world.contents() == {**AFTER, "a.changed": [1, 2, 9, 10]}


def test_a_writer_on_the_branch_is_part_of_the_merge_or_fails(world: World) -> None:
    world.branch("dev")
    world.insert("a.changed", 2, branch="dev")
    late = world.realm("dev")
    world.merge("dev")
    with pytest.raises((Conflict, PreconditionFailed)):
        branches_insert(world, late)
    assert world.rows("a.changed") == [1, 2]


def branches_insert(world: World, realm: Any) -> None:
    from skiway.formats.iceberg.changes.commits import append
    from skiway.metastore import managed

    table = managed.load(realm, world.warehouse, world.table("a.changed").resource_id)
    managed.change(
        realm, world.warehouse, table.table.resource_id, append(world._files(table, [99])), sleep=lambda _: None
    )


def test_mergers_and_writers_at_once_publish_everything(world: World) -> None:
    for number in range(4):
        world.branch(f"b{number}")
        for name in ("a.kept", "a.changed"):
            world.insert(name, 100 + number, branch=f"b{number}")

    def merge(number: int) -> None:
        world.merge(f"b{number}")

    def write(number: int) -> None:
        world.insert("a.kept", 200 + number)

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(act, number) for act in (merge, write) for number in range(4)]
    for each in done:
        each.result()
    assert world.rows("a.kept") == [1, *range(100, 104), *range(200, 204)]
    assert world.rows("a.changed") == [1, *range(100, 104)]


def test_more_tables_than_a_usual_batch_has_operations_are_one_commit(world: World) -> None:
    names = [f"many.t{number}" for number in range(120)]
    world.branch("dev")
    for name in names:
        world.create(name, "dev")
        world.insert(name, 1, branch="dev")
    batches: list[int] = []
    pointers: Any = world.factory.stores.pointers
    inner = pointers._inner._apply
    pointers.max_large_batch = pointers._inner.max_large_batch
    pointers._inner._apply = lambda batch: (batches.append(len(batch)), inner(batch))[1]
    world.merge("dev")
    assert max(batches) > 1000
    assert [name for name in world.names() if name.startswith("many.")] == sorted(names)


CONFLICTS: list[tuple[Callable[[World, str], object], Callable[[World, str], object], str]] = [
    (lambda w, b: w.insert("a.kept", 2, branch=b), lambda w, b: w.replace("a.kept", 3, branch=b), "a.kept"),
    (lambda w, b: w.replace("a.kept", 2, branch=b), lambda w, b: w.insert("a.kept", 3, branch=b), "a.kept"),
    (lambda w, b: w.insert("a.kept", 2, branch=b), lambda w, b: w.drop("a.kept", b), "a.kept"),
    (lambda w, b: w.drop("a.kept", b), lambda w, b: w.insert("a.kept", 2, branch=b), "a.kept"),
    (lambda w, b: w.rename("a.kept", "a.x", b), lambda w, b: w.drop("a.kept", b), "a.x"),
    (lambda w, b: w.rename("a.kept", "a.x", b), lambda w, b: w.rename("a.kept", "a.y", b), "a.x"),
    (lambda w, b: w.create("a.new", b), lambda w, b: w.create("a.new", b), "a.new"),
    (lambda w, b: w.rename("a.kept", "a.new", b), lambda w, b: w.create("a.new", b), "a.new"),
]


@pytest.mark.parametrize(("on_branch", "on_main", "name"), CONFLICTS)
def test_conflicts_are_reported_and_resolved_for_main_or_for_the_branch(
    world: World, on_branch: Any, on_main: Any, name: str
) -> None:
    world.branch("dev")
    world.branch("other")
    for branch in ("dev", "other"):
        on_branch(world, branch)
        world.insert("a.changed", 5, branch=branch)
    on_main(world, "")
    before = world.contents()
    with pytest.raises(Conflict) as raised:
        world.merge("dev")
    assert raised.value.key == "branch.conflicts"
    assert name in raised.value.message
    assert world.diff("dev")[name].conflict
    assert world.contents() == before
    wanted = {**world.contents("other")}
    world.merge("dev", ours=[name])
    assert world.contents() == {**before, "a.changed": [1, 5]}
    # The other branch has appended the same row, so both are there now.
    world.merge("other", theirs=[name])
    taken = {key: rows for key, rows in wanted.items() if key != "a.changed"}
    assert {key: rows for key, rows in world.contents().items() if key in taken} == taken
    assert world.rows("a.changed") == [1, 5, 5]


def test_a_namespace_that_main_filled_is_not_dropped(world: World) -> None:
    world.namespace("empty")
    world.branch("dev")
    world.drop_namespace("empty", "dev")
    world.create("empty.t")
    with pytest.raises(Conflict, match="on main it contains something else"):
        world.merge("dev")
    world.drop("empty.t")
    world.merge("dev")
    found = branches.list_(world.factory.home, v1.ListBranchesRequest(catalog="lake")).branches
    assert [each.state for each in found] == [v1.BS_MERGED]


def test_branches_begin_with_one_state_of_several_tables(world: World) -> None:
    """A commit of two tables during the creation is part of the base with both of them, or with neither."""
    meanwhile(world.factory, "/accounts/a1/branches/by-id/", lambda: world.rename("a.kept", "a.moved"))
    world.branch("dev")
    assert sorted(world.contents("dev")) == sorted(world.contents())


def test_processes_that_first_use_a_table_of_a_branch_at_once_do_not_disturb_each_other(world: World) -> None:
    world.branch("dev")
    home, pointers = world.factory.home, world.factory.stores.pointers
    table_id = world.table("a.kept").resource_id.id

    def begin(batch: Sequence[Operation]) -> None:
        pointers.apply([each for each in batch if not isinstance(each, Check)][:1])

    def end(_: Sequence[Operation]) -> None:
        assert snapshots.current(world.realm("dev"), table_id) is not None

    overtaken = OvertakenPointers(pointers, [begin, end])
    late = world.realm("dev", of=replace(home, stores=Stores(overtaken, home.stores.blobs)))
    found = snapshots.current(late, table_id)
    assert overtaken.others == []
    assert found is not None
    assert found.value == snapshots.current(world.realm("dev"), table_id).value  # type: ignore[union-attr]
