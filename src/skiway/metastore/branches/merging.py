# mypy: disable-error-code="call-arg"
"""The changes of a branch as one batch on main: all of them are published, or none.

The batch names the state on main of everything that it changes, and that of the branch. So it fails if anything has changed since
it was planned, and is then planned again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Conflict, Contention, SkiwayError
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.metadata import metadata_json, updated, version_of, write_metadata
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.metastore.branches.differences import Comparison, Difference, place
from skiway.metastore.managed import locations
from skiway.metastore.managed.states import (
    KEPT,
    added_snapshots,
    current_snapshot,
    handle_of,
    is_certainly_undone,
    update_record,
)
from skiway.metastore.managed.tables import DROPPED_FILE
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import NAMESPACE, TABLE, VIEW, Kind, folding
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import closed, copied, inside, reopening
from skiway.metastore.resources.hierarchy import Below, full_path
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Put

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

LOG: Final = 100
"""How many replaced states the metadata of a merged table names."""


@dataclass
class Merge:
    """One attempt to merge the differences of a branch. `written` are the files that it has written, which a failure leaves unused."""

    comparison: Comparison
    differences: Sequence[Difference]
    source: str
    """The name of the branch, such as `lake@dev`."""
    written: list[tuple[TableFiles, str]] = field(default_factory=list)
    _puts: dict[str, str] = field(default_factory=dict)
    _freed: dict[str, str] = field(default_factory=dict)
    _more: list[Operation] = field(default_factory=list)
    _checks: dict[str, Check] = field(default_factory=dict)

    @property
    def main(self) -> Realm:
        """The realm of the caller on main, who must be allowed to make each of the changes."""
        return self.comparison.main

    def apply(self, also: Sequence[Operation]) -> None:
        """Publish all differences together with further operations."""
        published = [each for each in self.differences if each.plan != "keep"]
        replaced = [other for each in published for other in each.replaced]
        with ExitStack() as closing:
            try:
                for each in [*published, *replaced]:
                    self._prepare(each)
                for each in published:
                    if each.kind is NAMESPACE and each.main is not None and each.action in ("dropped", "renamed"):
                        self._close(closing, each)
                self.main.stores.pointers.apply([*self._operations(), *also], large=True)
            except SkiwayError as error:
                if is_certainly_undone(error):
                    for files, path in self.written:
                        files.remove([path])
                raise

    # --- one object ---------------------------------------------------------------------------------------------------

    def _prepare(self, each: Difference) -> None:
        realm, repository = self.main, self.main.all(each.kind)
        kind = _folding(each.kind)
        if each.main is not None:
            self._freed |= dict.fromkeys(
                (kind.key(each.main.value), *kind.names(each.main.value)), each.main.pointer.blob_uri
            )
        if each.branch is None:
            assert each.main is not None, "it is missing on both sides"
            repository.require_change(each.main.value)
            self._prepare_drop(each.main.value)
            return
        wanted = self._record(each)
        if each.main is None:
            for guard in repository.guards:
                guard.require_create(wanted)
        else:
            repository.require_change(each.main.value, wanted)
        wanted.updated_at.CopyFrom(realm.now())
        key = kind.key(wanted)
        data = wanted.SerializeToString(deterministic=True)
        uri = realm.stores.blobs.put(data, folder=keys.folder(key), suffix=".pb")
        for name in (key, *kind.names(wanted)):
            if name in self._puts:
                raise _contended()
            self._puts[name] = uri
        if each.main is None or place(each.main.value) != place(wanted):
            self._enter(wanted)

    def _record(self, each: Difference) -> Any:
        """The record that the object gets on main."""
        wanted = copied(each.main.value if each.plan == "append" and each.main else each.branch)
        if isinstance(wanted, v1.View):
            _rename_catalog(wanted, self.source)
        if each.kind is not TABLE or not each.branch.metadata_location:
            return wanted
        is_same = each.main is not None and each.branch.metadata_location == each.main.value.metadata_location
        if not is_same:
            self._publish_state(each, wanted)
        return wanted

    def _publish_state(self, each: Difference, wanted: v1.Table) -> None:
        """Write the metadata that the table gets on main, and add the records of its new snapshots."""
        realm, warehouse = self.main.as_server(), self.comparison.warehouse
        before = None if each.main is None else self.comparison.metadata(each.main.value)
        files = locations.files_of_table(realm, warehouse, wanted if each.main is None else each.main.value)
        branch = self.comparison.metadata(each.branch)
        if each.plan == "append":
            assert before is not None
            assert each.main is not None
            made = self._appended(each, before, branch, files)
            location = each.main.value.metadata_location
        else:
            locations.claim(realm, each.id)
            made = _moved(branch, before, each.main.value.metadata_location if each.main else "", files.home)
            location = each.main.value.metadata_location if each.main else ""
        version = version_of(location) + 1 if location else 0
        written = write_metadata(files, made, version=version, text=metadata_json(made))
        self.written.insert(0, (files, written))
        wanted.metadata_location = written
        update_record(wanted, made, written, before=None)
        self._more += added_snapshots(
            realm, wanted, made, before, files, opened=lambda: handle_of(wanted, made, files), synced=True
        )
        self._more += current_snapshot(realm, each.id, made)

    def _appended(
        self, each: Difference, before: TableMetadata, branch: TableMetadata, files: TableFiles
    ) -> TableMetadata:
        known = {one.snapshot_id for one in self.comparison.metadata(each.base).snapshots}
        added = _added_files(branch, {one.snapshot_id for one in branch.snapshots} - known, files)
        properties = {"skiway.merged.from": self.source, "skiway.merged.by": self.main.caller}
        change = append(added, properties={name: text for name, text in properties.items() if text})(
            before, files, self.main.clock
        )
        self.written += ((files, path) for path in change.written)
        assert each.main is not None
        return updated(before, change.requirements, change.updates, location=each.main.value.metadata_location)

    def _prepare_drop(self, value: Any) -> None:
        if not isinstance(value, v1.Table) or not value.metadata_location:
            return
        # The time of the drop: garbage collection waits from then on. It is harmless if the merge fails.
        folder = locations.folder_of_table(self.main, self.comparison.warehouse, value)
        self.comparison.warehouse.files(folder).write(f"{folder}/{DROPPED_FILE}", b"")

    # --- where objects are --------------------------------------------------------------------------------------------

    def _enter(self, wanted: Any) -> None:
        """Check in the batch that what contains the object exists, and is not deleted or moved meanwhile."""
        realm, account_id = self.main.as_server(), self.main.account_id
        if not isinstance(wanted, v1.Namespace):
            parent: str | None = keys.namespace(account_id, wanted.namespace_id.id)
        elif wanted.parents:
            path = keys.namespace_path(account_id, wanted.catalog_id.id, tuple(wanted.parents))
            found = realm.stores.pointers.get(path)
            parent = None if found is None else keys.owner(found)
        else:
            parent = keys.catalog(account_id, wanted.catalog_id.id)
        if parent is None or parent in self._puts:
            return  # it is created by the same batch, or missing, which `_operations` finds out
        pointer = realm.stores.pointers.get(parent)
        if pointer is None:
            raise _contended()
        for check in inside(pointer):
            assert isinstance(check, Check)
            self._checks[check.key] = check

    def _close(self, closing: ExitStack, each: Difference) -> None:
        """Let nobody put anything into a namespace that is deleted or moved."""
        assert each.main is not None
        realm, namespace = self.main.as_server(), each.main.value

        def require() -> None:
            below = {found.key for found in realm.stores.pointers.scan(_children(realm, namespace))}
            names = (keys.table_name, keys.view_name) if each.branch is None else ()
            for of in names:
                below |= {found.key for found in realm.stores.pointers.scan(of(realm.account_id, each.id))}
            if below - (self._freed.keys() - self._puts.keys()):
                raise _contended()

        moved = closing.enter_context(closed(realm, each.main.pointer, resource="namespace", require=require))
        self._more += reopening(moved)

    # --- the batch ----------------------------------------------------------------------------------------------------

    def _operations(self) -> Iterator[Operation]:
        pointers = self.main.stores.pointers
        for key, uri in self._puts.items():
            found = pointers.get(key)
            if found is not None and self._freed.get(key) != found.blob_uri:
                raise _contended()
            if found is None and key in self._freed:
                raise _contended()
            yield Put(key, uri, expect=ABSENT if found is None else found.version)
        for key, before in self._freed.items():
            if key not in self._puts:
                found = pointers.get(key)
                if found is None or found.blob_uri != before:
                    raise _contended()
                yield Delete(key, expect=found.version)
        yield from (check for key, check in self._checks.items() if key not in self._puts and key not in self._freed)
        yield from self._more


def _rename_catalog(view: v1.View, source: str) -> None:
    """Let a view that was created on the branch read the same tables on main."""
    named: tuple[Any, ...] = (*view.base_relations, view.definer, *view.definer.bindings)
    for each in named:
        if each.catalog == source:
            each.catalog = source.rpartition(BRANCH_MARK)[0]


def _children(realm: Realm, namespace: v1.Namespace) -> str:
    return Below(realm, namespace.catalog_id.id, full_path(namespace), recursive=True).prefix


def _folding(kind: Kind[Any]) -> Kind[Any]:
    return folding(kind, lambda _: True)


def _contended() -> Contention:
    return failure(Contention, "store.contended", what="the lake")


def _moved(branch: TableMetadata, before: TableMetadata | None, location: str, home: str) -> TableMetadata:
    """The metadata of a branch as that of the table on main, whose state `before` is at `location`."""
    properties = {name: text for name, text in branch.properties.items() if name != KEPT}
    log: list[Any] = []
    if before is not None:
        if KEPT in before.properties:
            properties[KEPT] = before.properties[KEPT]
        entry = lib.snapshots.MetadataLogEntry(metadata_file=location, timestamp_ms=before.last_updated_ms)
        log = [*before.metadata_log, entry][-LOG:]
    changed: dict[str, Any] = {
        "location": home if before is None else before.location,
        "properties": properties,
        "metadata_log": log,
    }
    for name in ("last_sequence_number", "next_row_id", "last_column_id", "last_partition_id"):
        numbers = [getattr(each, name, None) for each in (branch, before) if each is not None]
        known = [number for number in numbers if number is not None]
        if known and hasattr(branch, name):
            changed[name] = max(known)
    return branch.model_copy(update=changed)


def _added_files(branch: TableMetadata, new: set[int], files: TableFiles) -> list[DataFile]:
    """The data files of the branch's current snapshot that its own snapshots have added, without numbers of rows."""
    from skiway.formats.iceberg.metadata_files import WritingIO

    io, added = WritingIO(files), list[Any]()
    for manifest in lib.manifest_files.manifests(branch.current_snapshot(), io):
        for entry in lib.manifest_files.entries(manifest, io):
            if entry.snapshot_id in new:
                added.append(lib.manifest_files.without_row_ids(entry.data_file))
    return added


def unresolved(found: Sequence[Difference]) -> list[str]:
    """The conflicts that keep the differences from being merged."""
    return [each.conflict for each in found if each.conflict and each.plan != "keep"]


def resolve(
    comparison: Comparison, found: Sequence[Difference], *, ours: Sequence[str] = (), theirs: Sequence[str] = ()
) -> None:
    """Find the conflicts of names, and decide those that the caller has decided, by the names of the objects."""
    keep, take = set(ours), set(theirs)
    for each in found:
        names = {each.name, each.previous_name, _name_on_main(comparison, each)}
        if names & keep:
            each.conflict, each.plan = each.conflict or "kept", "keep"
        elif each.conflict and names & take:
            each.conflict, each.plan = "", "publish"
    _find_taken_names(comparison, found, take)


def _name_on_main(comparison: Comparison, each: Difference) -> str:
    return "" if each.main is None else comparison._name(each.main.value, on_branch=False)


def _find_taken_names(comparison: Comparison, found: Sequence[Difference], take: set[str]) -> None:
    """Find objects whose names, or namespaces, main does not have free; `take` are names to be taken from objects of main."""
    realm, freed, created = comparison.main.as_server(), set[str](), set[str]()
    for each in found:
        kind = _folding(each.kind)
        if each.plan == "keep" or each.conflict:
            continue
        if each.main is not None:
            freed.update(kind.names(each.main.value))
        if each.branch is not None:
            created.add(each.key)
    for each in found:
        if each.plan == "keep" or each.conflict or each.branch is None:
            continue
        if (reason := _missing_place(comparison, each, created)) != "":
            each.conflict = reason
            continue
        for name in _folding(each.kind).names(each.branch):
            holder = realm.stores.pointers.get(name)
            if holder is None or name in freed:
                continue
            if each.name in take and each.kind is not NAMESPACE:
                other = _holder(realm, holder.blob_uri)
                if other is not None:
                    each.replaced = [other]
                    freed.update(_folding(other.kind).names(other.main.value))  # type: ignore[union-attr]
                    continue
            each.conflict = f"{each.kind.noun} {each.name} was {each.action} on the branch, but main has another object of this name"
            break
    for each in found:
        if each.plan != "keep" and not each.conflict and each.kind is NAMESPACE and each.branch is None and each.main:
            _check_empty(realm, each, freed)


def _missing_place(comparison: Comparison, each: Difference, created: set[str]) -> str:
    """Why the object has no place on main; empty if it has one."""
    realm = comparison.main.as_server()
    if isinstance(each.branch, v1.Namespace):
        if not each.branch.parents:
            return ""
        path = keys.namespace_path(realm.account_id, each.branch.catalog_id.id, tuple(each.branch.parents))
        above = comparison.view.get(path)
        key = None if above is None else keys.owner(above)
    else:
        key = keys.namespace(realm.account_id, each.branch.namespace_id.id)
    if key is None or (key not in created and realm.stores.pointers.get(key) is None):
        return f"{each.kind.noun} {each.name} was {each.action} on the branch, but its namespace was dropped on main"
    return ""


def _check_empty(realm: Realm, each: Difference, freed: set[str]) -> None:
    assert each.main is not None
    for prefix in (
        keys.table_name(realm.account_id, each.id),
        keys.view_name(realm.account_id, each.id),
        _children(realm, each.main.value),
    ):
        if any(found.key not in freed for found in realm.stores.pointers.scan(prefix)):
            each.conflict = f"namespace {each.name} was dropped on the branch, but on main it contains something else"


def _holder(realm: Realm, uri: str) -> Difference | None:
    key = keys.of_blob(uri) or ""
    kinds: tuple[Kind[Any], ...] = (TABLE, VIEW)
    for kind in kinds:
        if key.startswith(kind.by_id(realm.account_id, "")):
            main = realm.all(kind).find(key)
            if main is not None:
                return Difference(kind, keys.decoded(keys.last_segment(key)), None, None, main, True)
    return None


def lost_race(error: SkiwayError) -> bool:
    """Whether a merge failed because something changed since it was planned."""
    return isinstance(error, Contention) or (isinstance(error, Conflict) and error.key.startswith("pointer."))
