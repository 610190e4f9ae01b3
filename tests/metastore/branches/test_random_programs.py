"""Random programs over main and branches, compared after each step with a model in memory that copies everything."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

import scope
from metastore.branches.world import MAIN, Model, Table, World
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict

STEPS = ("insert", "insert", "replace", "create", "drop", "rename", "branch", "merge", "delete", "sweep", "expire")


class Program:
    """Does the same to a lake and to its model."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.model, self.random = world, Model(), random.Random(seed)
        self.number = 0
        for name in ("a.one", "a.two", "b.one"):
            self.create(MAIN, name)

    def next(self) -> int:
        self.number += 1
        return self.number

    def create(self, branch: str, name: str) -> None:
        self.model.states[branch][self.world.create(name, branch)] = Table(name)

    def step(self) -> str:
        branch = self.random.choice(list(self.model.states))
        what = self.random.choice(STEPS)
        state = self.model.states[branch]
        if what == "create":
            name = f"{self.random.choice('abc')}.{self.random.choice(('one', 'two', 'three'))}"
            if name not in self.model.contents(branch):
                self.create(branch, name)
        elif what == "branch" and len(self.model.states) < 4:
            name = f"b{self.next()}"
            self.world.branch(name)
            self.model.bases[name], self.model.states[name] = (
                dict(self.model.states[MAIN]),
                dict(self.model.states[MAIN]),
            )
        elif what == "merge" and branch != MAIN:
            self.merge(branch)
        elif what == "delete" and branch != MAIN:
            self.world.delete(branch)
            del self.model.states[branch]
        elif what == "sweep":
            self.world.factory.clock.now += timedelta(days=self.random.choice((0, 4)))
            self.world.sweep()
        elif state:
            self.change(branch, what, self.random.choice(sorted(state)))
        return f"{what} on {branch or 'main'}"

    def change(self, branch: str, what: str, table_id: str) -> None:
        state = self.model.states[branch]
        table = state[table_id]
        rows = [self.next() for _ in range(self.random.randint(1, 3))]
        if what == "insert":
            self.world.insert(table.name, *rows, branch=branch)
            state[table_id] = table.after("append", rows=(*table.rows, *rows))
        elif what == "replace":
            self.world.replace(table.name, *rows, branch=branch)
            state[table_id] = table.after(f"replace {rows}", rows=tuple(rows))
        elif what == "drop":
            self.world.drop(table.name, branch, purge=branch == MAIN and self.random.random() < 0.5)
            del state[table_id]
        elif what == "rename":
            name = f"{self.random.choice('ab')}.r{self.next()}"
            self.world.rename(table.name, name, branch)
            state[table_id] = table.after(f"rename {name}", name=name)
        elif what == "expire" and branch == MAIN and table.rows:
            self.world.expire(table.name)
            state[table_id] = table.after(f"expire {self.next()}") if self.world.expired else table

    def merge(self, branch: str) -> None:
        result, conflicts = self.model.merged(branch)
        if conflicts:
            before = self.world.contents()
            with pytest.raises(Conflict) as raised:
                self.world.merge(branch)
            assert raised.value.key == "branch.conflicts"
            assert self.world.contents() == before
            self.world.merge(branch, ours=sorted(conflicts))
        else:
            self.world.merge(branch)
        self.model.states[MAIN] = result
        self.world.delete(branch)
        del self.model.states[branch]

    def check(self) -> None:
        for branch in self.model.states:
            assert self.world.contents(branch) == self.model.contents(branch)


@pytest.mark.parametrize("seed", range(40 if scope.ALL else 6))
def test_branches_and_main_are_as_in_a_model_that_copies_everything(
    factory: ResourceFactory, tmp_path: Path, seed: int
) -> None:
    world = World(factory, tmp_path)
    program = Program(world, seed)
    done = []
    for _ in range(30):
        done.append(program.step())
        try:
            program.check()
        except BaseException as error:
            error.add_note(f"after {done}")
            raise
    # Nothing that was only used by branches stays.
    for branch in [each for each in program.model.states if each]:
        world.delete(branch)
    for _ in range(2):
        factory.clock.now += timedelta(days=4)
        world.sweep()
    assert world.contents() == program.model.contents(MAIN)
    assert list(world.overlays()) == []
    assert world.files() == world.files_of_main()
