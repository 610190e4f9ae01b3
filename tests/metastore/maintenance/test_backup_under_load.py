"""A backup taken while clients write has everything that was acknowledged before, and is the state of one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory, mask
from runtime.servers import eventually
from scope import sample
from skiway.metastore.maintenance import Checker, restore_backup, write_backup
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.resources import catalogs, namespaces
from skiway.model import v1
from skiway.storage import Pointer, PointerStore, Stores, open_stores, utc_now
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import blob_home, pointer_home

PAGE = 1000
DURING = 2
"""Rounds of each writer during each page of the pointers that a backup reads."""


@dataclass
class Writer:
    """In round n it creates catalog n and namespace n, appends n to a table, and sets the description of a catalog to n.

    It also creates and deletes a catalog. `rounds` is the number of rounds that were acknowledged.
    """

    name: str
    managed: ManagedTableFactory
    rounds: int = 0
    table: ManagedTable = field(init=False)
    counter: v1.Catalog = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.managed.create(f"table {self.name}")
        self.counter = self.managed.factory.catalog(f"counter {self.name}", description="0")

    def write_round(self) -> None:
        factory, number = self.managed.factory, self.rounds + 1
        factory.catalog(f"{self.name} {number}")
        factory.namespace(f"{self.name} {number}", catalog=self.counter)
        self.managed.append(self.table, number)
        request = v1.UpdateCatalogRequest(
            catalog_id=self.counter.resource_id,
            spec=v1.CatalogSpec(description=str(number)),
            update_mask=mask("description"),
        )
        catalogs.update(factory.home, request)
        made = factory.catalog(f"{self.name} deleted {number}")
        catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=made.resource_id))
        self.rounds = number

    def write_until(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            self.write_round()

    def check_restored(self, managed: ManagedTableFactory, rounds: int) -> None:
        """All of the first `rounds` are there, and of what came later only what was complete at one moment."""
        home = managed.home
        made = _numbers(self.name, [each.display_name for each in _all_catalogs(home)])
        inside = _numbers(self.name, [each.display_name for each in _all_namespaces(home, self.counter)])
        rows = managed.rows(self.table)
        counted = int(_found(home, f"counter {self.name}").description)
        for numbers in (made, inside, rows):
            assert numbers == list(range(1, len(numbers) + 1)), "a prefix of what was written"
        assert len(made) >= len(inside) >= len(rows) >= counted >= rounds, "in the order in which it was written"
        assert len(made) <= counted + 1, "as of one moment"


def _numbers(name: str, names: Sequence[str]) -> list[int]:
    return sorted(int(each.split()[1]) for each in names if each.startswith(f"{name} ") and "deleted" not in each)


def _found(home: Any, name: str) -> v1.Catalog:
    found = catalogs.find(home, name)
    assert found is not None
    return found.value


def _pages(call: Callable[..., Any], request: Any) -> Iterator[Any]:
    while True:
        response = call(request)
        yield response
        if not (token := response.page.next_page_token):
            return
        request.page.page_token = token


def _all_catalogs(home: Any) -> list[v1.Catalog]:
    answers = _pages(lambda request: catalogs.list_(home, request), v1.ListCatalogsRequest())
    return [each for answer in answers for each in answer.catalogs]


def _all_namespaces(home: Any, catalog: v1.Catalog) -> list[v1.Namespace]:
    request = v1.ListNamespacesRequest(catalog_id=catalog.resource_id)
    answers = _pages(lambda request: namespaces.list_(home, request), request)
    return [each for answer in answers for each in answer.namespaces]


@contextmanager
def writing(writers: Sequence[Writer]) -> Iterator[None]:
    stopped = threading.Event()
    with ThreadPoolExecutor(len(writers)) as pool:
        running = [pool.submit(writer.write_until, stopped) for writer in writers]
        try:
            yield
        finally:
            stopped.set()
    for each in running:
        each.result()


def slow_down(pointers: PointerStore, pause: Callable[[], None]) -> None:
    """Pause after each page that is read, as with a large store."""
    snapshot, scan = pointers._snapshot, pointers._scan

    def slow_snapshot() -> Iterator[Pointer]:
        for number, pointer in enumerate(snapshot(), start=1):
            yield pointer
            if number % PAGE == 0:
                pause()

    def slow_scan(*arguments: Any, **more: Any) -> Sequence[Pointer]:
        found = scan(*arguments, **more)
        pause()
        return found

    pointers._snapshot, pointers._scan = slow_snapshot, slow_scan  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", sample(["sqlite", "postgresql"], every=2))
def test_backup_has_what_was_acknowledged_before_as_of_one_moment(
    kind: str,
    tmp_path: Path,
    server: Callable[[str], str],  # noqa: F811
) -> None:
    homes = pointer_home(kind, tmp_path, server), blob_home("file", tmp_path, server)
    with (
        Stores(homes[0].pointers(), homes[1].blobs()) as stores,
        Stores(homes[0].pointers(), homes[1].blobs()) as backed_up,
    ):
        managed = ManagedTableFactory.at(ResourceFactory(stores, utc_now), tmp_path)
        # They are between the keys of catalogs and those of namespaces and tables.
        stores.pointers.load(Pointer(f"/accounts/a1/idempotency/x/{number}", "text", 1) for number in range(PAGE))
        writers = [Writer(name, managed) for name in ("ada", "bob")]

        def pause() -> None:
            goals = [writer.rounds + DURING for writer in writers]
            eventually(lambda: all(writer.rounds >= goal for writer, goal in zip(writers, goals, strict=True)))

        slow_down(backed_up.pointers, pause)
        with writing(writers):
            pause()
            before = [writer.rounds for writer in writers]
            made = write_backup(backed_up, tmp_path / "backup", secrets=None, warehouse=managed.warehouse)
            assert all(writer.rounds >= past + DURING for writer, past in zip(writers, before, strict=True))
    assert made.missing == ()
    with open_stores("memory://") as restored:
        restore_backup(restored, tmp_path / "backup", secrets=None, warehouse=managed.warehouse)
        checker = Checker(restored, managed.warehouse)
        assert list(checker.defects()) == []
        assert checker.counts["managed table"] == len(writers)
        again = ManagedTableFactory(ResourceFactory(restored, utc_now), managed.warehouse)
        for writer, rounds in zip(writers, before, strict=True):
            writer.check_restored(again, rounds)
