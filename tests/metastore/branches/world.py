"""A lake with branches for tests: statements on main and on branches, read by PyIceberg, and a model in memory that copies everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from skiway.formats import location
from skiway.formats.iceberg.changes.commits import append, delete_all
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import Realm, branches, catalogs, managed, namespaces, tables
from skiway.metastore.gc import warehouse as gc
from skiway.metastore.gc.sweeps import sweep_blobs, sweep_pointers
from skiway.metastore.records import keys
from skiway.metastore.table_maintenance.cleaning import expire_snapshots
from skiway.model import v1

NUMBERS = pa.schema({"x": pa.int64()})
MAIN = ""


@dataclass
class World:
    """A lake with one catalog. Branches are named by what follows `lake@`, and main by an empty text."""

    factory: ResourceFactory
    folder: Path
    tables: ManagedTableFactory = field(init=False)
    expired: bool = False
    """Whether the last call of `expire` has changed the table."""

    def __post_init__(self) -> None:
        self.tables = ManagedTableFactory.at(self.factory, self.folder)
        # Files have times of the real clock. All are old enough to be deleted, unless something uses them.
        self.factory.clock.now = datetime.now(UTC) + timedelta(days=10)
        if self.catalog is None:
            self.factory.catalog("lake")

    @property
    def catalog(self) -> v1.Catalog | None:
        found = catalogs.find(self.factory.home, "lake")
        return None if found is None else found.value

    @property
    def warehouse(self) -> Any:
        return self.tables.warehouse

    def realm(self, branch: str = MAIN, of: Realm | None = None) -> Realm:
        main = of or self.factory.home
        if not branch:
            return main
        found = branches.on_branch(main, self.warehouse, f"lake@{branch}")
        assert found is not None, f"there is no branch {branch}"
        return found[0]

    # --- branches -----------------------------------------------------------------------------------------------------

    def branch(self, name: str, *, of: Realm | None = None, **options: Any) -> v1.Branch:
        request = v1.CreateBranchRequest(name=f"lake@{name}", **options)
        return branches.create(of or self.factory.home, request).branch

    def delete(self, name: str) -> None:
        branches.delete(self.factory.home, v1.DeleteBranchRequest(name=f"lake@{name}"))

    def diff(self, name: str, *, of: Realm | None = None) -> dict[str, v1.BranchChange]:
        request = v1.DiffBranchRequest(name=f"lake@{name}")
        found = branches.diff(of or self.factory.home, request, warehouse=self.warehouse).changes
        return {each.name: each for each in found}

    def merge(self, name: str, *, of: Realm | None = None, **options: Any) -> v1.MergeBranchResponse:
        request = v1.MergeBranchRequest(name=f"lake@{name}", **options)
        return branches.merge(of or self.factory.home, request, warehouse=self.warehouse)

    # --- statements ---------------------------------------------------------------------------------------------------

    def namespace(self, name: str, branch: str = MAIN) -> v1.Namespace:
        realm = self.realm(branch)
        catalog = self.catalog
        assert catalog is not None
        found = namespaces.lookup(realm, catalog.resource_id, [name])
        if found is None:
            spec = v1.NamespaceSpec(display_name=name, catalog_id=catalog.resource_id)
            found = namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec)).namespace
        return found

    def drop_namespace(self, name: str, branch: str = MAIN) -> None:
        request = v1.DeleteNamespaceRequest(namespace_id=self.namespace(name, branch).resource_id, require_empty=True)
        namespaces.delete(self.realm(branch), request)

    def create(self, name: str, branch: str = MAIN) -> str:
        namespace, _, own = name.partition(".")
        place = self.namespace(namespace, branch).resource_id
        made = managed.create(self.realm(branch), self.warehouse, namespace_id=place, name=own, schema=NUMBERS)
        return made.id

    def table(self, name: str, branch: str = MAIN) -> v1.Table:
        namespace, _, own = name.partition(".")
        found = tables.find(self.realm(branch), self.namespace(namespace, branch).resource_id.id, own)
        assert found is not None, f"there is no table {name} on {branch or 'main'}"
        return found

    def load(self, name: str, branch: str = MAIN) -> managed.ManagedTable:
        return managed.load(self.realm(branch), self.warehouse, self.table(name, branch).resource_id)

    def _files(self, table: managed.ManagedTable, rows: list[int]) -> list[Any]:
        with DataFileWriter(table.files, table.metadata) as writer:
            writer.write(pa.record_batch({"x": pa.array(rows, pa.int64())}))
            return writer.close()

    def insert(self, name: str, *rows: int, branch: str = MAIN) -> None:
        table = self.load(name, branch)
        files = self._files(table, list(rows))
        managed.change(self.realm(branch), self.warehouse, table.table.resource_id, append(files))

    def replace(self, name: str, *rows: int, branch: str = MAIN) -> None:
        """Replace all rows, as UPDATE and DELETE do with those of some files."""
        table = self.load(name, branch)
        files = self._files(table, list(rows)) if rows else []
        managed.change(self.realm(branch), self.warehouse, table.table.resource_id, delete_all(files))

    def drop(self, name: str, branch: str = MAIN, **options: Any) -> None:
        managed.drop(self.realm(branch), self.warehouse, self.table(name, branch).resource_id, **options)

    def rename(self, name: str, new: str, branch: str = MAIN) -> None:
        namespace, _, own = new.partition(".")
        place = self.namespace(namespace, branch).resource_id
        managed.rename(self.realm(branch), self.table(name, branch).resource_id, name=own, namespace_id=place)

    def expire(self, name: str) -> None:
        """Expire all snapshots of a table of main but the current one."""
        table = self.load(name)
        done = expire_snapshots(
            self.realm(), self.warehouse, table.table.resource_id, max_age_ms=0, min_count=1, dry_run=False
        )
        self.expired = bool(done.expired)

    # --- reading ------------------------------------------------------------------------------------------------------

    def rows(self, name: str, branch: str = MAIN) -> list[int]:
        """The rows of a table as PyIceberg reads them from its metadata file."""
        found = StaticTable.from_metadata(self.table(name, branch).metadata_location)
        return sorted(found.scan().to_arrow()["x"].to_pylist())

    def names(self, branch: str = MAIN) -> list[str]:
        realm, catalog = self.realm(branch), self.catalog
        assert catalog is not None
        return sorted(
            f"{namespace.display_name}.{table.display_name}"
            for namespace in namespaces.scan(realm, catalog.resource_id.id)
            for table in tables.scan(realm, namespace.resource_id.id)
        )

    def contents(self, branch: str = MAIN) -> dict[str, list[int]]:
        return {name: self.rows(name, branch) for name in self.names(branch)}

    # --- garbage ------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """All sweeps, of which none may change what anybody reads."""
        stores, clock = self.factory.stores, self.factory.clock
        branches.sweep(stores, clock=clock)
        done = gc.sweep_warehouse(stores, self.warehouse, clock=clock, size=1000, dry_run=False)
        assert not done.damaged
        token: str | None = None
        while True:
            found = sweep_pointers(stores, size=1000, token=token)
            assert not found.damaged
            if (token := found.next_token) is None:
                break
        self.factory.clock.now += timedelta(minutes=5)
        while True:
            token = sweep_blobs(stores, clock=clock, size=1000, token=token).next_token
            if token is None:
                break

    def files(self) -> set[Any]:
        """All files of the warehouse."""
        return {each.location for each in self.warehouse.everything().walk(self.warehouse.root)}

    def files_of_main(self) -> set[Any]:
        """The files that the present tables of main use."""
        found: set[Any] = set()
        for name in self.names():
            table = self.load(name)
            found |= gc.files_of_state(table.files, location(table.metadata_location))
        return found

    def overlays(self) -> Iterator[str]:
        return (each.key for each in self.factory.stores.pointers.scan(keys.overlay()))


@dataclass(frozen=True)
class Table:
    """A table of the model: where it is, its rows, and what was done to it, one after another."""

    name: str
    rows: tuple[int, ...] = ()
    done: tuple[str, ...] = ()

    def after(self, what: str, **changes: Any) -> Table:
        return replace(self, done=(*self.done, what), **changes)


@dataclass
class Model:
    """What main and each branch contain, by the ids of tables, and what a branch began with."""

    states: dict[str, dict[str, Table]] = field(default_factory=lambda: {MAIN: {}})
    bases: dict[str, dict[str, Table]] = field(default_factory=dict)

    def contents(self, branch: str) -> dict[str, list[int]]:
        return {each.name: sorted(each.rows) for each in self.states[branch].values()}

    def merged(self, branch: str) -> tuple[dict[str, Table], set[str]]:
        """What main contains after a merge, and the names of tables in conflict, which then stay as they are on main."""
        base, own, main = self.bases[branch], self.states[branch], dict(self.states[MAIN])
        conflicts: set[str] = set()
        changed = [
            each for each in {**base, **own} if base.get(each) != own.get(each) and main.get(each) != own.get(each)
        ]
        wanted: dict[str, Table | None] = {}
        for table_id in changed:
            before, mine, theirs = base.get(table_id), own.get(table_id), main.get(table_id)
            if theirs == before:
                wanted[table_id] = mine
            elif before and mine and theirs and _only_appends(before, mine) and _only_appends(before, theirs):
                added = mine.rows[len(before.rows) :]
                wanted[table_id] = theirs.after("append", rows=(*theirs.rows, *added))
            else:
                conflicts.add(table_id)
        while True:
            result = {each: table for each, table in {**main, **wanted}.items() if table is not None}
            names = [each.name for each in result.values()]
            taken = {each for each in wanted if result.get(each) and names.count(result[each].name) > 1}
            if not taken:
                break
            conflicts |= taken
            for each in taken:
                del wanted[each]
        every = {**base, **own}
        return result, {(own.get(each) or every[each]).name for each in conflicts}


def _only_appends(before: Table, after: Table) -> bool:
    return set(after.done[len(before.done) :]) <= {"append"}
