"""Branches of large lakes: creating one, reading on it, and merging a thousand changed tables with one commit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metastore.branches.world import World
from metastore.resource_factory import ResourceFactory
from skiway.metastore import Realm, namespaces, tables
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.repository import Repository
from skiway.model import v1
from skiway.storage import Stores, open_blobs, open_pointers
from storage.homes import Clock, running_postgres

MANY = 10_000
PER_NAMESPACE = 1_000


def filled(factory: ResourceFactory, count: int) -> list[v1.Namespace]:
    """Namespaces with tables, which have records as large as those of tables with thirty columns."""
    schema = (
        '{"type":"struct","fields":['
        + ",".join(f'{{"id":{n},"name":"column_{n}","type":"long"}}' for n in range(30))
        + "]}"
    )
    spaces = [factory.namespace(f"space_{number}") for number in range(count // PER_NAMESPACE)]
    repository = Repository(factory.stores, TABLE)
    for number in range(count):
        space = spaces[number // PER_NAMESPACE]
        own_id = v1.ResourceId(account_id="a1", id=f"00000000-0000-4000-8000-{number:012d}", kind=v1.RK_TABLE)
        repository.create(
            v1.Table(
                resource_id=own_id,
                display_name=f"table_{number}",
                catalog_id=space.catalog_id,
                namespace_id=space.resource_id,
                schema_json=schema,
            )
        )
    return spaces


def test_a_branch_of_ten_thousand_tables_is_created_in_a_second_and_reads_like_main(tmp_path: Path) -> None:
    clock = Clock()
    url = f"sqlite:///{tmp_path}/pointers.db"
    with Stores(open_pointers(url, clock=clock), open_blobs((tmp_path / "blobs").as_uri(), clock=clock)) as stores:
        world = World(ResourceFactory(stores, clock), tmp_path)
        spaces = filled(world.factory, MANY)
        pointers = stores.pointers.count("/")
        began = time.process_time()
        branch = world.branch("dev")
        took = time.process_time() - began
        base = stores.pointers.get(keys.branch_base("a1", branch.resource_id.id))
        assert base is not None
        size = len(stores.blobs.get(base.blob_uri))
        print(f"creating took {took:.2f} s, and the base has {size / 1e6:.2f} MB")
        assert size < 2_000_000
        assert stores.pointers.count("/") - pointers < 10
        assert took < 1, "seconds of CPU time"
        on_main, on_branch = compared(lambda realm: read(realm, spaces), world.realm(), world.realm("dev"))
        print(f"reading took {on_main * 1e6:.0f} and {on_branch * 1e6:.0f} microseconds per table")
        assert on_branch < 1.2 * on_main


def read(realm: Realm, spaces: list[v1.Namespace]) -> int:
    """List a namespace, and look tables up by name."""
    space = spaces[3].resource_id.id
    found = sum(1 for _ in tables.scan(realm, space))
    for number in range(3000, 3300):
        assert tables.find(realm, space, f"table_{number}") is not None
    assert namespaces.lookup(realm, spaces[0].catalog_id, ["space_3"]) is not None
    return found + 300


def compared(act: Any, *realms: Realm) -> list[float]:
    """The shortest CPU time per table in each realm, of several turns."""
    best = [float("inf")] * len(realms)
    for _ in range(7):
        for number, realm in enumerate(realms):
            began = time.process_time()
            count = act(realm)
            best[number] = min(best[number], (time.process_time() - began) / count)
    return best


@pytest.fixture(params=["sqlite", "postgresql"])
def large_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    clock = Clock()
    if request.param == "sqlite":
        with opened(f"sqlite:///{tmp_path}/pointers.db", tmp_path, clock) as world:
            yield world
    else:
        with running_postgres() as url, opened(url, tmp_path, clock) as world:
            yield world


class opened:
    """A world with stores at a URL."""

    def __init__(self, url: str, folder: Path, clock: Clock) -> None:
        self.stores = Stores(open_pointers(url, clock=clock), open_blobs((folder / "blobs").as_uri(), clock=clock))
        self.folder, self.clock = folder, clock

    def __enter__(self) -> World:
        self.stores.__enter__()
        return World(ResourceFactory(self.stores, self.clock), self.folder)

    def __exit__(self, *given: Any) -> None:
        self.stores.__exit__(*given)


def test_a_thousand_changed_tables_are_one_commit(large_world: World) -> None:
    world = large_world
    (space,) = filled(world.factory, PER_NAMESPACE)
    world.branch("dev")
    realm = world.realm("dev")
    for table in list(tables.scan(realm, space.resource_id.id)):
        spec = v1.TableSpec(description="changed")
        request = v1.UpdateTableRequest(table_id=table.resource_id, spec=spec)
        request.update_mask.paths.append("description")
        tables.update(realm, request)
    pointers: Any = world.factory.stores.pointers
    batches: list[int] = []
    inner = pointers._apply
    pointers._apply = lambda batch: (batches.append(len(batch)), inner(batch))[1]
    began = time.perf_counter()
    done = world.merge("dev")
    print(
        f"merging {len(done.changes)} tables took {time.perf_counter() - began:.1f} s, with {max(batches)} operations"
    )
    assert len(done.changes) == PER_NAMESPACE
    assert max(batches) > PER_NAMESPACE
    assert sum(size > 10 for size in batches) == 1, "one batch has all changes"
    assert {each.description for each in tables.scan(world.realm(), space.resource_id.id)} == {"changed"}
