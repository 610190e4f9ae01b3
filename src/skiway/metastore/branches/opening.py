"""The realm of a branch: the metastore as a caller sees it on the branch, with the rights that the caller has on main."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from functools import partial

from skiway.errors import NotFound
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.locations import files_of_table
from skiway.metastore.managed.states import added_snapshots, handle_of
from skiway.metastore.records import keys
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.branches import (
    BranchPointers,
    RightsPointers,
    base_of,
    branch_of,
    deciding,
    main_of,
)
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import BRANCH, TABLE
from skiway.metastore.records.names import BRANCH_MARK, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import copied
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.storage import Pointer, Put, Stores


def split_name(name: str) -> tuple[str, str]:
    """The name of a catalog, and that of its branch; empty for main."""
    catalog, mark, branch = normal_text(name).rpartition(BRANCH_MARK)
    return (catalog, branch) if mark else (normal_text(name), "")


def find(realm: Realm, catalog: v1.Catalog, name: str) -> Stored[v1.Branch]:
    """The branch of a catalog with this name. Raise `NotFound` if there is none, or if it is still created."""
    key = keys.branch_name(realm.account_id, catalog.resource_id.id, normal_text(name))
    repository = Repository(main_of(realm.stores), BRANCH)
    found = repository.find_named(key)
    if found is None or found.value.state == v1.BS_CREATING:
        raise failure(NotFound, "branch.by.name.missing", catalog=catalog.display_name, name=name)
    if found.value.state == v1.BS_MERGING and is_dead(realm, found.value):
        again = copied(found.value)
        again.state = v1.BS_OPEN
        again.ClearField("busy_until")
        found = repository.save(found, again)  # the batch of the merge that died cannot succeed any more
    return found


def is_dead(realm: Realm, branch: v1.Branch) -> bool:
    """Whether who creates or merges the branch takes so long that it has probably died."""
    return branch.HasField("busy_until") and branch.busy_until.ToDatetime(UTC) < realm.clock()


def on_branch(realm: Realm, warehouse: Warehouse, name: str) -> tuple[Realm, v1.Catalog] | None:
    """The realm of the caller on the branch with a name such as `lake@dev`, and the catalog there, which has this name.

    None if the name is not that of a branch of a catalog that the caller sees.
    """
    of, branch = split_name(name)
    catalog = catalogs.find(realm, of) if branch and catalogs.find(realm, name) is None else None
    if catalog is None or catalog.value.damage:
        return None
    try:
        found = find(realm, catalog.value, branch)
    except NotFound:
        return None
    on_it = opened(realm, warehouse, found)
    shown = catalogs.find(on_it, f"{catalog.value.display_name}{BRANCH_MARK}{found.value.display_name}")
    return None if shown is None else (on_it, shown.value)


def opened_again(realm: Realm, warehouse: Warehouse, branch_id: str) -> Realm:
    """The realm of the caller on a branch that was opened before. Raise `NotFound` if it was deleted."""
    found = Repository(main_of(realm.stores), BRANCH).find(keys.branch(realm.account_id, branch_id))
    if found is None or found.value.state == v1.BS_DELETED:
        raise failure(NotFound, "branch", resource="branch", id=branch_id)
    return opened(realm, warehouse, found)


def opened(realm: Realm, warehouse: Warehouse, found: Stored[v1.Branch]) -> Realm:
    """The realm of the caller on a branch."""
    main = main_of(realm.stores)
    adopt = partial(_adopt, replace(realm.as_server(), stores=main), warehouse)
    pointers = BranchPointers(main.pointers, found, base_of(main, found.value), adopt=adopt)
    stores = Stores(pointers, main.blobs)
    rights = Stores(RightsPointers(pointers), main.blobs)
    by_main = partial(deciding, rights)
    policies = None if realm.policies is None else realm.policies.on_branch(stores, rights, by_main)
    access = None if realm.access is None else realm.access.on_branch(stores, rights, by_main)
    return replace(realm, stores=stores, access=access, policies=policies)


def decision_on_branch(realm: Realm, decision: AccessDecision | None) -> AccessDecision | None:
    """The decision about a caller for the branch of a realm, which is that of main."""
    branch = branch_of(realm.stores)
    if decision is None or branch is None:
        return decision
    rights = Stores(RightsPointers(branch), realm.stores.blobs)
    return decision.on_branch(realm.stores, rights, partial(deciding, rights))


# --- snapshots of tables of the base ----------------------------------------------------------------------------------


def _adopt(main: Realm, warehouse: Warehouse, branch: BranchPointers, table_id: str) -> None:
    """Copy the pointers to the snapshots and statistics that a table of the base has, and make those that main has deleted."""
    key = keys.table(main.account_id, table_id)
    table = Repository(main.stores, TABLE).follow(branch.base.pointers[key])
    if table is None or not table.value.metadata_location:
        branch.finish_adoption(table_id)
        return
    realm = replace(main, stores=Stores(branch, main.stores.blobs))
    files = files_of_table(realm, warehouse, table.value)
    metadata = read_metadata(files, table.value.metadata_location)
    wanted = {each.snapshot_id for each in metadata.snapshots}
    found = list(_of_snapshots(main, table_id, wanted))
    branch.adopted(table_id, found)
    # What is still on main has been in use until now, and the branch uses it from now on.
    left = set(_of_snapshots(main, table_id, wanted))
    branch.forsake(each for each in found if each not in left)
    by_id = keys.snapshot(main.account_id, table_id)
    known = {int(keys.last_segment(each.key)) for each in left if each.key.startswith(by_id)}
    known = {number for number in known if _has_files(left, main.account_id, table_id, number)}
    partly = metadata.model_copy(
        update={"snapshots": [each for each in metadata.snapshots if each.snapshot_id in known]}
    )
    missing = added_snapshots(
        realm, table.value, metadata, partly, files, opened=lambda: handle_of(table.value, metadata, files), synced=True
    )
    branch.adopted(table_id, [Pointer(each.key, each.blob_uri, 1) for each in missing if isinstance(each, Put)])
    if metadata.current_snapshot_id is not None:
        current = keys.current_snapshot(main.account_id, table_id)
        branch.adopted(table_id, [Pointer(current, str(metadata.current_snapshot_id), 1)])
    branch.finish_adoption(table_id)


def _has_files(found: set[Pointer], account_id: str, table_id: str, snapshot_id: int) -> bool:
    wanted = keys.statistics(account_id, table_id, snapshot_id, of="files")
    return any(each.key == wanted for each in found)


def _of_snapshots(main: Realm, table_id: str, wanted: set[int]) -> Iterator[Pointer]:
    """The pointers on main to these snapshots, their statistics, and the profiles of files."""
    below = f"{keys.of_table(main.account_id, table_id)}snapshots/"
    profiles = keys.profile_part(main.account_id, table_id)
    for each in main.stores.pointers.scan(below):
        own = each.key.removeprefix(below).split("/")
        match own:
            case ["by-id", number] if int(number) in wanted:
                yield each
            case ["by-time", _] if int(keys.last_segment(keys.owner(each))) in wanted:
                yield each
            case [number, "stats", _] if number.isdecimal() and int(number) in wanted:
                yield each
            case ["profiles", "index"]:
                yield each
            case _ if each.key.startswith(profiles):
                yield each
