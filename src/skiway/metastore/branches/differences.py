"""What has changed on a branch and on main since the branch was created, object by object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import SkiwayError
from skiway.formats.iceberg.metadata import history, read_metadata, summary_properties
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.ingest.positions import POSITION, position_file
from skiway.metastore.managed.locations import files_of_table
from skiway.metastore.managed.states import KEPT
from skiway.metastore.records import keys
from skiway.metastore.records.branches import BranchPointers, branch_of
from skiway.metastore.records.kinds import NAMESPACE, TABLE, VIEW, Kind
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.resources import snapshots
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.statistics import present_columns
from skiway.metastore.statistics.api import table_statistics
from skiway.model import v1
from skiway.storage import Pointer, Stores

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

KINDS: Final[tuple[Kind[Any], ...]] = (NAMESPACE, TABLE, VIEW)
"""The kinds of objects that a branch has of its own, each before those that it contains."""


@dataclass
class Difference:
    """An object that the branch has changed: its record in the base, on the branch and on main, if it exists there.

    `plan` is what a merge does with it: `publish` the state of the branch, `append` its files, or `keep` that of main.
    """

    kind: Kind[Any]
    id: str
    base: Any
    branch: Any
    main: Stored[Any] | None
    is_changed_on_main: bool
    conflict: str = ""
    plan: str = "publish"
    name: str = ""
    previous_name: str = ""
    replaced: list[Difference] = field(default_factory=list)
    """Objects of main that have the names which the object gets, and which are deleted for it."""

    @property
    def key(self) -> str:
        """The canonical key of the object."""
        return str(self.kind.key(self.branch or self.base or self.main.value))  # type: ignore[union-attr]

    @property
    def action(self) -> str:
        """What the branch did."""
        if self.branch is None:
            return "dropped"
        if self.base is None:
            return "created"
        return "renamed" if place(self.base) != place(self.branch) else "changed"

    @property
    def on_main(self) -> str:
        """What happened on main."""
        if not self.is_changed_on_main:
            return ""
        if self.main is None:
            return "dropped"
        if self.base is None:
            return "created"
        return "renamed" if place(self.base) != place(self.main.value) else "changed"


def place(value: Any) -> tuple[Any, ...]:
    """Where an object is, and its name."""
    if isinstance(value, v1.Namespace):
        return full_path(value)
    return value.namespace_id.id, value.display_name


@dataclass(frozen=True)
class Comparison:
    """Compares a branch with main. `main` and `branch` are realms of the same caller, or of the server."""

    main: Realm
    branch: Realm
    warehouse: Warehouse

    @cached_property
    def view(self) -> BranchPointers:
        """The pointers of the branch."""
        found = branch_of(self.branch.stores)
        assert found is not None, "the realm is that of a branch"
        return found

    def differences(self) -> list[Difference]:
        """All objects that the branch has changed, with the conflicts between both sides."""
        found = [each for kind in KINDS for each in self._of_kind(kind)]
        for each in found:
            each.name = self._name(each.branch or each.base, on_branch=each.branch is not None)
            if each.action == "renamed":
                each.previous_name = self._name(each.base, on_branch=False)
            if each.is_changed_on_main:
                self._decide(each)
        return found

    def _of_kind(self, kind: Kind[Any]) -> Iterator[Difference]:
        everything = Repository(Stores(self.view.inner, self.main.stores.blobs), kind)
        for key, pointer in self.view.changed(kind.by_id(self.main.account_id, "")):
            base, main = self.view.base.pointers.get(key), self.view.inner.get(key)
            if _uri(pointer) == _uri(base) == "" or _uri(pointer) == _uri(base):
                continue
            if _uri(main) == _uri(pointer) or (main is None and pointer is None):
                continue  # both sides agree
            yield Difference(
                kind,
                keys.decoded(keys.last_segment(key)),
                _value(everything, base),
                _value(everything, pointer),
                everything.follow(main),
                _uri(main) != _uri(base),
            )

    def _name(self, value: Any, *, on_branch: bool) -> str:
        if isinstance(value, v1.Namespace):
            return ".".join(full_path(value))
        key = keys.namespace(self.main.account_id, value.namespace_id.id)
        namespaces = Repository(Stores(self.view.inner, self.main.stores.blobs), NAMESPACE)
        either = (self.view.get(key), self.view.inner.get(key), self.view.base.pointers.get(key))
        pointer = next((each for each in (either if on_branch else either[1:]) if each is not None), either[0])
        found = namespaces.follow(pointer)
        inside = ".".join(full_path(found.value)) if found else value.namespace_id.id
        return f"{inside}.{value.display_name}"

    # --- both sides have changed an object ----------------------------------------------------------------------------

    def _decide(self, each: Difference) -> None:
        what = f"{each.kind.noun} {each.name}"
        if each.branch is None or each.main is None or each.base is None:
            each.conflict = f"{what} was {each.action} on the branch and {each.on_main} on main"
        elif each.kind is not TABLE or {each.action, each.on_main} != {"changed"}:
            each.conflict = f"{what} was {each.action} on both sides"
            if each.action != each.on_main:
                each.conflict = f"{what} was {each.action} on the branch and {each.on_main} on main"
        else:
            reason = self._why_not_appended(each)
            each.plan = "publish" if reason else "append"
            each.conflict = reason and f"{what}: {reason}"

    def _why_not_appended(self, each: Difference) -> str:
        """Why the files that the branch has added cannot be appended on main; empty if they can."""
        assert each.main is not None
        if not (each.base.metadata_location and each.main.value.metadata_location and each.branch.metadata_location):
            return "both sides have changed it"
        base, branch, main = (self.metadata(of) for of in (each.base, each.branch, each.main.value))
        for side, name in ((branch, "the branch"), (main, "main")):
            if _shape(side) != _shape(base):
                return (
                    f"{name} has changed its columns, partitions or properties, and the other side has changed it, too"
                )
            if not _only_appended(side, since=base):
                return f"{name} has changed or deleted rows, and the other side has changed it, too"
        return ""

    def metadata(self, table: v1.Table) -> TableMetadata:
        """The metadata of a table in any of its states."""
        files = files_of_table(self.branch.as_server(), self.warehouse, table)
        return read_metadata(files, table.metadata_location)

    # --- for people ---------------------------------------------------------------------------------------------------

    def described(self, found: Sequence[Difference], *, statistics: bool = False) -> Iterator[v1.BranchChange]:
        """The differences that the caller may see, with numbers of rows as far as statistics tell them, and with those of columns if
        wanted.
        """
        for each in found:
            if self._is_visible(each):
                change = v1.BranchChange(
                    kind=each.kind.noun,
                    name=each.name,
                    action=each.action,
                    previous_name=each.previous_name,
                    on_main=each.on_main,
                    conflict=each.conflict,
                    plan="" if each.conflict else each.plan,
                )
                if each.kind is TABLE:
                    self._count(change, each)
                    if statistics:
                        change.columns.extend(self._columns(each))
                yield change

    def _is_visible(self, each: Difference) -> bool:
        """Whether the caller may read the object on the branch, or on main if it is only there."""
        if each.branch is not None:
            return self.branch.all(each.kind).at(each.key) is not None
        if each.main is not None:
            return self.main.all(each.kind).at(each.key) is not None
        repository = self.branch.all(each.kind)
        return all(guard.sees(each.base) and guard.shown(each.base) is not None for guard in repository.guards)

    def _columns(self, each: Difference) -> Iterator[v1.BranchColumn]:
        """The statistics of the columns on both sides, as far as the caller may see them. Columns of both have the same id."""
        sides = (
            (self.main, None if each.main is None else each.main.value),
            (self.branch, each.branch),
        )
        main, branch = (
            {} if table is None else {one.column_id: one for one in present_columns(realm, table)}
            for realm, table in sides
        )
        for number in dict.fromkeys((*branch, *main)):
            before, after = main.get(number), branch.get(number)
            name = (after or before or v1.ColumnStats()).column_name
            yield v1.BranchColumn(name=name, main=before, branch=after)

    def _count(self, change: v1.BranchChange, each: Difference) -> None:
        for realm, exists, name in (
            (self.main, each.main is not None, "rows_on_main"),
            (self.branch, each.branch is not None, "rows_on_branch"),
        ):
            rows = _rows(realm, each.id) if exists else None
            if rows is not None:
                setattr(change, name, rows)
        if not (change.HasField("rows_on_branch") and each.branch.metadata_location):
            return
        known = {one.snapshot_id for one in self.metadata(each.base).snapshots} if each.base is not None else set()
        new = [one for one in self.metadata(each.branch).snapshots if one.snapshot_id not in known]
        change.snapshots = len(new)
        change.rows_added = sum(int(summary_properties(one).get("added-records", 0)) for one in new)
        change.rows_removed = sum(int(summary_properties(one).get("deleted-records", 0)) for one in new)


def _rows(realm: Realm, table_id: str) -> int | None:
    """The number of rows by the statistics of the current snapshot; None if they are unknown, or withheld from the caller."""
    current = snapshots.current_id(realm, table_id)
    if current is None:
        return 0 if realm.policies is None or realm.policies.of_table(table_id) is None else None
    try:
        found = table_statistics(realm, table_id, current)
    except SkiwayError:
        return None
    return None if found is None else found.row_count


def _uri(pointer: Pointer | None) -> str:
    return "" if pointer is None else pointer.blob_uri


def _value(repository: Repository[Any], pointer: Pointer | None) -> Any:
    if pointer is None:
        return None
    return repository.kind.message.FromString(repository.stores.blobs.get(pointer.blob_uri))


def _shape(of: TableMetadata) -> tuple[Any, ...]:
    """What must be the same on both sides, so that files of one can be appended to the other."""
    properties = {name: text for name, text in of.properties.items() if name != KEPT}
    refs = {name: (ref.snapshot_id, ref.snapshot_ref_type) for name, ref in of.refs.items() if name != "main"}
    shape = (of.current_schema_id, of.default_spec_id, of.default_sort_order_id, of.format_version)
    return *shape, str(of.schemas), str(of.partition_specs), properties, refs


def _only_appended(side: TableMetadata, *, since: TableMetadata) -> bool:
    """Whether all snapshots since then were appended after the one that was current."""
    last = None
    for each in history(side):
        if each.snapshot_id == since.current_snapshot_id:
            return True
        summary = summary_properties(each)
        if (
            each.summary is None
            or each.summary.operation.value != "append"
            or POSITION in summary
            or position_file(each)
        ):
            return False
        if int(summary.get("added-delete-files", 0)) > 0:
            return False
        last = each
    return since.current_snapshot_id is None and (last is None or last.parent_snapshot_id is None)
