"""The calls for branches: create, get, list, delete, diff and merge."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from skiway.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
)
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.branches.bases import collected
from skiway.metastore.branches.differences import Comparison, Difference
from skiway.metastore.branches.life import ending, event_of, life
from skiway.metastore.branches.merging import Merge, lost_race, resolve, unresolved
from skiway.metastore.branches.opening import find, is_dead, opened, split_name
from skiway.metastore.branches.required import checked, require_merger, require_passed, required_by, visible
from skiway.metastore.managed.tables import remember
from skiway.metastore.records import keys, updates
from skiway.metastore.records.branches import main_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import BRANCH, TABLE
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import copied
from skiway.metastore.resources import catalogs
from skiway.metastore.resources.hierarchy import is_managed, purge_table
from skiway.model import v1
from skiway.storage import ABSENT, Put

MAX_BRANCHES: Final = 100
"""How many branches and tags an account may have."""
ATTEMPTS: Final = 20
"""How often a merge is planned again because main has changed meanwhile."""
BUSY: Final = timedelta(minutes=2)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def create(realm: Realm, request: v1.CreateBranchRequest) -> v1.CreateBranchResponse:
    """Create a branch, or a tag, of a catalog as it is now."""
    catalog, name = _catalog(realm, request.name)
    if not _NAME.fullmatch(name) or name.casefold() == "main":
        raise failure(InvalidArgument, "branch.name.invalid", name=request.name, field="name")
    if not is_managed(catalog):
        raise failure(PreconditionFailed, "branch.not_managed", name=catalog.display_name)
    realm.require("namespace.write", catalog)
    repository = _branches(realm)
    count = repository.count(keys.branch(realm.account_id))
    if count >= MAX_BRANCHES:
        raise failure(LimitExceeded, "branch.too_many", found=str(count), limit=str(MAX_BRANCHES))
    now, own_id = realm.now(), realm.ids()
    branch = v1.Branch(
        resource_id=v1.ResourceId(account_id=realm.account_id, id=own_id),
        display_name=name,
        catalog_id=catalog.resource_id,
        description=request.description,
        owner=realm.caller,
        state=v1.BS_CREATING,
        is_tag=request.is_tag,
        created_at=now,
        updated_at=now,
        busy_until=timestamp(realm.clock() + BUSY),
    )
    made = _reserved(realm, repository, branch)
    try:
        base = collected(main_of(realm.stores).pointers, realm.account_id, catalog.resource_id.id)
        key = keys.branch_base(realm.account_id, own_id)
        uri = realm.stores.blobs.put(base.SerializeToString(deterministic=True), folder=keys.folder(key), suffix=".pb")
        opened_ = _changed(realm, made.value, v1.BS_OPEN)
        batch = repository.replacement(made, opened_).operations
        realm.stores.pointers.apply(
            [*batch, Put(key, uri, expect=ABSENT), event_of(realm, catalog, opened_, "created")]
        )
    except SkiwayError:
        with suppress(SkiwayError):
            repository.delete(made.pointer, made.value)
        raise
    return v1.CreateBranchResponse(branch=opened_)


def get(realm: Realm, request: v1.GetBranchRequest, *, warehouse: Warehouse | None = None) -> v1.GetBranchResponse:
    """Return a branch and, with a warehouse and for callers who see everything, how it has been used."""
    found = _found(realm, request.name)[1]
    shown = _shown(realm, found.value) if warehouse is None else _with_life(realm, warehouse, found)
    return v1.GetBranchResponse(branch=shown)


def list_(
    realm: Realm, request: v1.ListBranchesRequest, *, warehouse: Warehouse | None = None
) -> v1.ListBranchesResponse:
    """List the branches of a catalog by name, or those of all catalogs that the caller sees.

    With details, callers who see everything also get how the branches have been used.
    """
    seen = [each for each in catalogs.scan(realm) if not request.catalog or each.display_name == request.catalog]
    if request.catalog and not seen:
        raise failure(NotFound, "catalog.by.name.missing", catalog=request.catalog)
    found = (
        stored
        for catalog in seen
        for stored in _branches(realm).entries(keys.branch_name(realm.account_id, catalog.resource_id.id))
    )
    shown = [each for each in found if each.value.state != v1.BS_CREATING]
    if not request.details or warehouse is None:
        return v1.ListBranchesResponse(branches=[_shown(realm, each.value) for each in shown])
    return v1.ListBranchesResponse(branches=[_with_life(realm, warehouse, each) for each in shown])


def delete(realm: Realm, request: v1.DeleteBranchRequest) -> v1.DeleteBranchResponse:
    """Delete a branch. What only it uses is deleted later, because queries may still read it."""
    catalog, found = _found(realm, request.name)
    _require_owner(realm, catalog, found.value)
    gone, batch = ending(realm, catalog, found)
    updates.apply_batch(realm, batch, what=f"branch {found.value.display_name}")
    return v1.DeleteBranchResponse(branch=gone)


def diff(realm: Realm, request: v1.DiffBranchRequest, *, warehouse: Warehouse) -> v1.DiffBranchResponse:
    """What the branch has changed, as far as the caller may see it."""
    _, found = _found(realm, request.name)
    comparison = Comparison(_main(realm), opened(realm, warehouse, found), warehouse)
    differences = comparison.differences()
    resolve(comparison, differences)
    return v1.DiffBranchResponse(changes=comparison.described(differences, statistics=request.statistics))


def merge(realm: Realm, request: v1.MergeBranchRequest, *, warehouse: Warehouse) -> v1.MergeBranchResponse:
    """Publish all changes of a branch on main, with the rights of the caller, or nothing."""
    catalog, found = _found(realm, request.name)
    realm.require("namespace.write", catalog)
    require_merger(realm, catalog, request.name)
    if request.dry_run:
        comparison = Comparison(_main(realm), opened(realm, warehouse, found), warehouse)
        planned = _planned(comparison, request)
        checks = checked(required_by(catalog, request), comparison.main, comparison.branch, warehouse)
        described = comparison.described(planned)
        return v1.MergeBranchResponse(
            branch=_shown(realm, found.value), changes=described, checks=visible(realm, checks)
        )
    if found.value.is_tag:
        raise failure(PreconditionFailed, "branch.is_tag", name=found.value.display_name)
    if found.value.state == v1.BS_MERGING:
        raise failure(PreconditionFailed, "branch.unfinished", name=found.value.display_name)
    if found.value.state != v1.BS_OPEN:
        raise failure(PreconditionFailed, "branch.closed", name=found.value.display_name, state="merged")
    locked = _marked(realm, found, v1.BS_MERGING)

    def renew() -> None:
        nonlocal locked
        locked = _marked(realm, locked, v1.BS_MERGING)

    try:
        rules, on_it = required_by(catalog, request), opened(realm, warehouse, locked)
        checks = checked(rules, _main(realm), on_it, warehouse, after_each=renew)
        require_passed(realm, request.name, checks)
        for attempt in range(ATTEMPTS):
            main = replace(_main(realm), past_protection=True)
            comparison = Comparison(main, opened(realm, warehouse, locked), warehouse)
            differences = _planned(comparison, request)
            if conflicts := unresolved(differences):
                named = "; ".join(conflicts[:10])
                raise failure(Conflict, "branch.conflicts", name=request.name, conflicts=named)
            try:
                return _merged(realm, catalog, locked, comparison, differences, checks)
            except SkiwayError as error:
                if not lost_race(error) or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")
    except BaseException:
        with suppress(SkiwayError):
            _marked(realm, locked, v1.BS_OPEN)
        raise


def _planned(comparison: Comparison, request: v1.MergeBranchRequest) -> list[Difference]:
    differences = comparison.differences()
    known = {name for each in differences for name in (each.name, each.previous_name)}
    for name in (*request.ours, *request.theirs):
        if name not in known:
            raise failure(InvalidArgument, "branch.unknown.object", name=request.name, object=name)
    resolve(comparison, differences, ours=request.ours, theirs=request.theirs)
    return differences


def _merged(
    realm: Realm,
    catalog: v1.Catalog,
    locked: Stored[v1.Branch],
    comparison: Comparison,
    differences: list[Difference],
    checks: list[v1.BranchCheck],
) -> v1.MergeBranchResponse:
    described = list(comparison.described(differences))
    merged = _changed(realm, locked.value, v1.BS_MERGED)
    merged.merged_at.CopyFrom(realm.now())
    merged.merged_by = realm.caller
    merged.checks.extend(checks)
    published = [each for each in differences if each.plan != "keep"]
    dropped = [
        each.main.value
        for one in published
        for each in (one, *one.replaced)
        if each.branch is None and each.main is not None and each.kind is TABLE
    ]
    main = comparison.main
    for table in dropped:
        if table.metadata_location:
            remember(main, table)
    batch = _branches(realm).replacement(locked, merged).operations
    source = f"{catalog.display_name}{BRANCH_MARK}{locked.value.display_name}"
    Merge(comparison, differences, source).apply([*batch, event_of(realm, catalog, merged, "merged")])
    with suppress(SkiwayError):  # the merge is done, and garbage collection deletes the rest
        for table in dropped:
            purge_table(main, table.resource_id.id)
            updates.forget_grants(main.stores, keys.table(realm.account_id, table.resource_id.id))
    return v1.MergeBranchResponse(branch=_shown(realm, merged), changes=described, checks=visible(realm, checks))


# --- records -----------------------------------------------------------------------------------------------------------


def _branches(realm: Realm) -> Repository[v1.Branch]:
    return Repository(main_of(realm.stores), BRANCH)


def _main(realm: Realm) -> Realm:
    """The realm of the caller on main, as events record the caller."""
    return replace(realm, stores=main_of(realm.stores))


def _catalog(realm: Realm, name: str) -> tuple[v1.Catalog, str]:
    of, branch = split_name(name)
    if not of or not branch:
        raise failure(InvalidArgument, "branch.name.invalid", name=name, field="name")
    catalog = catalogs.find(realm, of)
    if catalog is None:
        raise failure(NotFound, "catalog.by.name.missing", catalog=of)
    return catalog.value, branch


def _found(realm: Realm, name: str) -> tuple[v1.Catalog, Stored[v1.Branch]]:
    catalog, branch = _catalog(realm, name)
    return catalog, find(realm, catalog, branch)


def _shown(realm: Realm, branch: v1.Branch) -> v1.Branch:
    """The branch without results of rules that the caller may not see."""
    if not branch.checks:
        return branch
    shown = copied(branch)
    del shown.checks[:]
    shown.checks.extend(visible(realm, branch.checks))
    return shown


def _with_life(realm: Realm, warehouse: Warehouse, found: Stored[v1.Branch]) -> v1.Branch:
    shown = copied(_shown(realm, found.value))
    restricted = realm.policies is not None and realm.policies.restrict_anything
    if not shown.damage and not restricted and realm.all(TABLE).sees_everything:
        shown.life.CopyFrom(life(opened(realm, warehouse, found), warehouse))
    return shown


def _require_owner(realm: Realm, catalog: v1.Catalog, branch: v1.Branch) -> None:
    if realm.access is None or (branch.owner and branch.owner == realm.caller):
        return
    try:
        realm.require("catalog.write", catalog)
    except PermissionDenied:
        raise failure(PermissionDenied, "branch.not_owner", name=branch.display_name, owner=branch.owner) from None


def _reserved(realm: Realm, repository: Repository[v1.Branch], branch: v1.Branch) -> Stored[v1.Branch]:
    try:
        return repository.create(branch)
    except AlreadyExists:
        taken = repository.find_named(BRANCH.names(branch)[0])
        if taken is None or taken.value.state != v1.BS_CREATING or not is_dead(realm, taken.value):
            raise
        repository.delete(taken.pointer, taken.value)
        return repository.create(branch)


def _changed(realm: Realm, branch: v1.Branch, state: v1.BranchState.ValueType) -> v1.Branch:
    made = copied(branch)
    made.state = state
    made.ClearField("busy_until")
    made.updated_at.CopyFrom(realm.now())
    return made


def _marked(realm: Realm, found: Stored[v1.Branch], state: v1.BranchState.ValueType) -> Stored[v1.Branch]:
    made = _changed(realm, found.value, state)
    if state == v1.BS_MERGING:
        made.busy_until.CopyFrom(timestamp(realm.clock() + BUSY))
    return _branches(realm).save(found, made)
