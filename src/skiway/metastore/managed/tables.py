"""Creating, dropping and renaming managed tables: Iceberg tables in the warehouse whose catalog is the metastore."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed
from skiway.formats import location as at
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.metadata import (
    new_metadata,
    not_in_future,
    read_metadata,
    updated,
    version_of,
    write_metadata,
)
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse, uri_of
from skiway.metastore.managed import locations
from skiway.metastore.managed.states import ManagedTable, NewTable, managed_record, publish, undoing
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of, is_used
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.names import encoded, exact_name, normal_text
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import Claim, once, retrying, set_plain
from skiway.metastore.resources import hierarchy, tables
from skiway.metastore.resources.hierarchy import is_managed, writable_id
from skiway.model import v1
from skiway.storage import ABSENT, Operation, Pointer

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableRequirement, TableUpdate

DROPPED_FILE: Final = "dropped"
"""A file in the folder of a dropped table. Its age is that of the drop."""

_UNDROP_WITHIN: Final = timedelta(days=3, hours=-1)
"""Garbage collection keeps the files of dropped tables for three days."""

Also: TypeAlias = Callable[[Stored[v1.Table]], Sequence[Operation]]


def _nothing_else(_stored: Stored[v1.Table]) -> Sequence[Operation]:
    return ()


def create(
    realm: Realm,
    warehouse: Warehouse,
    *,
    namespace_id: v1.ResourceId,
    name: str,
    schema: pa.Schema | Schema,
    partition_by: Sequence[str] = (),
    spec: PartitionSpec | None = None,
    order: SortOrder | None = None,
    properties: Mapping[str, str] | None = None,
    location: str | None = None,
    stage: bool = False,
    also: Also = _nothing_else,
) -> ManagedTable:
    """Create a table without snapshots.

    `partition_by` is `spec` by names: `region`, `day(ts)`. The property `format-version` is 1, 2 or 3, and `comment`
    describes the table. With `stage` no table is stored; `create_staged` or `create_filled` creates it later. `also`
    returns further operations for the batch that stores the table. `location` must be one that the operator approved
    for the catalog (see `places`). One below the location of the namespace is a suggestion, which is not followed.
    """
    place = required_place(realm, namespace_id)
    table_id = realm.ids()
    folder = locations.folder_of(realm, warehouse, table_id)
    if location and locations.is_in_namespace(realm, warehouse, place.resource_id.id, location):
        location = None
    if location:
        catalog = hierarchy.catalog(realm, place.catalog_id).value
        folder = locations.chosen_folder(realm, warehouse, catalog, location)
    kept = dict(properties or {})
    table = new_record(realm, place, table_id, name)
    locations.check_properties(kept, locations.table_files(realm, warehouse, table, folder), folder)
    wanted, spec = _shape(schema, partition_by, spec, properties=kept)
    metadata = new_metadata(wanted, location=folder, spec=spec, order=order, properties=kept)
    if location:
        locations.claim_place(realm, warehouse, folder, table_id)
    if stage:
        locations.claim(realm, table_id)
        return ManagedTable(
            Stored(table, Pointer("", "", ABSENT)), metadata, locations.table_files(realm, warehouse, table, folder)
        )
    return _created(realm, warehouse, table, metadata, also=also)


def create_filled(
    realm: Realm,
    warehouse: Warehouse,
    staged: ManagedTable,
    added: Sequence[DataFile],
    *,
    properties: Mapping[str, str] | None = None,
) -> ManagedTable:
    """Create a table that `create` staged together with its first rows. Readers never see it without them.

    `properties` are those of its first snapshot.
    """
    return _recorded_or_forgotten(realm, filled_table(realm, warehouse, staged, added, properties=properties))


def filled_table(
    realm: Realm,
    warehouse: Warehouse,
    staged: ManagedTable,
    added: Sequence[DataFile],
    *,
    properties: Mapping[str, str] | None = None,
) -> NewTable:
    """Write the metadata of a table that `create` staged, with its first rows. The table can then be published."""
    first = append(added, properties=properties)(staged.metadata, staged.files, realm.clock)
    with undoing(lambda: staged.files.remove(first.written)):
        return _written(realm, warehouse, staged.table, updated(staged.metadata, first.requirements, first.updates))


@dataclass(frozen=True, slots=True)
class TableCreation:
    """The creation of a table that a client staged, with all updates since then, which may include its first snapshots."""

    namespace_id: v1.ResourceId
    name: str
    requirements: Sequence[TableRequirement]
    updates: Sequence[TableUpdate]


def create_staged(realm: Realm, warehouse: Warehouse, creation: TableCreation) -> ManagedTable:
    """Create a table that was staged."""
    return _recorded_or_forgotten(realm, staged_table(realm, warehouse, creation))


def staged_table(realm: Realm, warehouse: Warehouse, creation: TableCreation) -> NewTable:
    """Write the metadata of a table that was staged, with all its updates. The table can then be published."""
    from pyiceberg.table.update import SetLocationUpdate

    place = required_place(realm, creation.namespace_id)
    named = [update.location for update in creation.updates if update.action == "set-location"]
    table_id = locations.id_in(at(locations.folder_on_main(realm, named[-1])).name) if named else realm.ids()
    folder = locations.folder_of(realm, warehouse, table_id)
    if named and (claimed := _staged_place(realm, warehouse, place, named[-1])):
        table_id, folder = claimed.table_id, uri_of(claimed.folder)
    table = new_record(realm, place, table_id, creation.name)
    files = locations.table_files(realm, warehouse, table, folder)
    locations.check_updates(creation.updates, files, folder)  # also that it belongs to this id
    at_home = SetLocationUpdate(location=folder)
    others = [each for each in not_in_future(creation.updates, realm.clock()) if each.action != "set-location"]
    metadata = updated(None, creation.requirements, [*others, at_home])
    check_fillable(realm, table, metadata)
    return _written(realm, warehouse, table, metadata)


def drop(realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, *, purge: bool = False) -> None:
    """Delete the table.

    With `purge` its files are deleted at once, otherwise by gc, because queries may still read them.

    Its metadata is not read, so a damaged table can be dropped too, even if its record is lost.
    """
    found = managed_record(realm, table_id, damaged=True).value
    if (branch := branch_of(realm.stores)) is not None and purge:
        raise failure(PreconditionFailed, "branch.purge", name=branch.branch.display_name)
    # What branches of the lake use stays until they are deleted.
    purge = purge and not is_used(realm.stores, realm.account_id, keys.table(realm.account_id, found.resource_id.id))
    _drop(realm, warehouse, found, v1.DeleteTableRequest(table_id=found.resource_id), purge=purge)


def _drop(
    realm: Realm, warehouse: Warehouse, table: v1.Table, request: v1.DeleteTableRequest, *, purge: bool = False
) -> None:
    table_id = request.table_id.id
    folder = locations.folder_of_table(realm, warehouse, table)
    realm.require("table.write", table)
    if table.metadata_location and not purge:
        remember(realm, table)
    tables.delete(realm, request)
    for each in sorted({folder, *_further_folders(realm, warehouse, table_id)}):
        files = warehouse.files(each)
        if purge:
            files.remove(str(one.location) for one in files.walk(at(each)))
            files.remove_folders(at(each))
            locations.release_place(realm.stores, each)
        else:
            # Records the time of the drop: the files may be old, and running queries still need them for a while.
            files.write(f"{each}/{DROPPED_FILE}", b"")
    if purge:
        locations.release(realm, table_id)


def _further_folders(realm: Realm, warehouse: Warehouse, table_id: str) -> Iterator[str]:
    """The folders in which a table was before it was moved."""
    if not warehouse.approved or branch_of(realm.stores) is not None:
        return
    own = locations.folder_of(realm, warehouse, table_id)
    if warehouse.files(own).walk(at(own)):
        yield own
    for place in locations.places(realm.stores):
        mine = (place.account_id, place.table_id) == (realm.account_id, table_id)
        if mine and any(place.folder.is_within(root) for _, root in warehouse.approved):
            yield uri_of(place.folder)


def remember(realm: Realm, table: v1.Table) -> None:
    """Remember a table that is dropped now, for `undrop`. This is not undone if the drop fails: the table exists then."""
    key = keys.dropped(realm.account_id, table.namespace_id.id, table.display_name, table.resource_id.id)
    value = f"{realm.clock().isoformat()} {encoded(table.display_name)} {table.metadata_location}"
    set_plain(realm.stores, key, value, expires_at=realm.clock() + _UNDROP_WITHIN)


def drop_unused(realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId) -> bool:
    """Delete the table if it has not changed since it was created without rows. Return whether it was deleted."""
    try:
        found = managed_record(realm, table_id)
        table = found.value
        if table.updated_at != table.created_at or version_of(table.metadata_location) != 0:
            return False
        files = locations.files_of_table(realm, warehouse, table)
        if read_metadata(files, table.metadata_location).snapshots:
            return False
        unchanged = v1.Precondition(expected_version=found.meta.pointer_version)
        _drop(realm, warehouse, table, v1.DeleteTableRequest(table_id=table.resource_id, precondition=unchanged))
    except (NotFound, Conflict):  # another caller has dropped or changed it
        return False
    return True


def rename(realm: Realm, table_id: v1.ResourceId, *, name: str, namespace_id: v1.ResourceId | None = None) -> v1.Table:
    """Rename the table, and move it if a namespace is given. Its files stay where they are."""
    require_addressable(name)
    spec, paths = v1.TableSpec(display_name=name), ["display_name"]
    if namespace_id is not None:
        place = required_place(realm, namespace_id)
        spec.catalog_id.CopyFrom(place.catalog_id)
        spec.namespace_id.CopyFrom(place.resource_id)
        paths += ["catalog_id", "namespace_id"]
    request = v1.UpdateTableRequest(table_id=table_id, spec=spec)
    request.update_mask.paths.extend(paths)
    return tables.update(realm, request).table


def require_addressable(*names: str) -> None:
    """Raise if a name is one that clients of Iceberg REST remove from URL paths, so that it could never be found."""
    for name in names:
        if normal_text(name) in (".", ".."):
            raise InvalidArgument(
                f"the name {name!r} is not allowed, because clients remove it from URL paths: choose another name",
                key="name.dots",
                field="name",
            )


def required_place(realm: Realm, namespace_id: v1.ResourceId) -> v1.Namespace:
    """The namespace, which must be in a managed catalog."""
    writable_id(realm, namespace_id, v1.RK_NAMESPACE, field="namespace_id")
    namespace = hierarchy.namespace(realm, namespace_id).value
    catalog = hierarchy.catalog(realm, namespace.catalog_id).value
    if not is_managed(catalog):
        raise PreconditionFailed(
            f"catalog {catalog.display_name} mirrors the tables of a connector: create the table in the connector's source, "
            "or in a managed catalog",
            key="catalog.not_managed",
            display_name=catalog.display_name,
        )
    return namespace


def _staged_place(realm: Realm, warehouse: Warehouse, namespace: v1.Namespace, given: str) -> locations.Place | None:
    """The place that was claimed when a table was staged at an approved location; None if it was not."""
    catalog = hierarchy.catalog(realm, namespace.catalog_id).value
    approved = warehouse.approved_for(realm.account_id, catalog.display_name)
    if not any(at(given).is_within(root) for root in approved):
        return None
    place = locations.find_place(realm.stores, given)
    return place if place is not None and place.account_id == realm.account_id else None


def _shape(
    schema: pa.Schema | Schema, partition_by: Sequence[str], spec: PartitionSpec | None, *, properties: dict[str, str]
) -> tuple[Schema, PartitionSpec | None]:
    """The schema and the spec. The format version is the lowest that has all types, unless `properties` have one."""
    from skiway.formats.iceberg.changes.evolution import partition_spec
    from skiway.formats.iceberg.types import format_version, iceberg_schema

    if isinstance(schema, pa.Schema):
        version = properties.setdefault("format-version", str(format_version(schema)))
        schema = iceberg_schema(schema, format_version=3 if version == "3" else 2)
    return schema, partition_spec(schema, partition_by) if partition_by else spec


def new_record(realm: Realm, place: v1.Namespace, table_id: str, name: str) -> v1.Table:
    """The record of a table that is created now."""
    return v1.Table(**fields_of_new(realm, place, table_id, v1.RK_TABLE, name))


def fields_of_new(
    realm: Realm, place: v1.Namespace, of: str, kind: v1.ResourceKind.ValueType, name: str
) -> dict[str, Any]:
    """The first fields of the record of a table or view with the id `of` that is created now."""
    require_addressable(name)
    now = realm.now()
    return {
        "resource_id": resource_id(realm, of, kind),
        "catalog_id": place.catalog_id,
        "namespace_id": place.resource_id,
        "display_name": exact_name(name, resource="table" if kind == v1.RK_TABLE else "view"),
        "created_at": now,
        "updated_at": now,
    }


def _created(
    realm: Realm, warehouse: Warehouse, table: v1.Table, metadata: TableMetadata, *, also: Also = _nothing_else
) -> ManagedTable:
    return _recorded_or_forgotten(realm, _written(realm, warehouse, table, metadata), also=also)


def _recorded_or_forgotten(realm: Realm, new: NewTable, *, also: Also = _nothing_else) -> ManagedTable:
    with undoing(lambda: forget_staged(realm, new)):
        return recorded(realm, new.table, new.metadata, new.location, new.files, also=also)


def check_fillable(realm: Realm, table: v1.Table, metadata: TableMetadata) -> None:
    """Raise `PermissionDenied` if policies prevent that the caller creates the table with the snapshots of the metadata."""
    from skiway.formats.iceberg.types import schema_json

    if metadata.snapshots:
        described = v1.Table()
        described.CopyFrom(table)
        described.schema_json = schema_json(metadata.schema())
        realm.require_fillable(described)


def _written(realm: Realm, warehouse: Warehouse, table: v1.Table, metadata: TableMetadata) -> NewTable:
    files = locations.table_files(realm, warehouse, table, metadata.location)
    locations.claim(realm, table.resource_id.id)
    return NewTable(table, metadata, write_metadata(files, metadata, version=0), files)


def forget_staged(realm: Realm, new: NewTable) -> None:
    """Delete the metadata of a table that was not published, and its folder with its claims if that is empty.

    If a client has written to the folder, garbage collection deletes it, and the client can repeat the creation before. The
    folder may also be that of an existing table, if a caller named it.
    """
    folder, table_id = at(new.metadata.location), new.table.resource_id.id
    new.files.remove([new.location])
    new.files.remove_folders(folder)
    exists = realm.all(TABLE).find(keys.table(realm.account_id, table_id)) is not None
    if not exists and not new.files.walk(folder):
        locations.release_place(realm.stores, new.metadata.location)
        locations.release(realm, table_id)


def recorded(
    realm: Realm,
    table: v1.Table,
    metadata: TableMetadata,
    location: str,
    files: TableFiles,
    *,
    also: Also = _nothing_else,
) -> ManagedTable:
    """Store a table with metadata that exists, and the records of its snapshots."""

    def attempt() -> ManagedTable:
        (made,) = publish(
            realm, [NewTable(table, metadata, location, files)], also=lambda published: also(published[0].stored)
        )
        return made

    return retrying(attempt)


def create_requested(
    realm: Realm, request: v1.CreateTableRequest, *, warehouse: Warehouse | None = None
) -> v1.CreateTableResponse:
    """Create the table that the request describes.

    A table with columns and without an upstream, in a managed catalog, becomes a managed table. Any other is only a
    record: of the table that its upstream names, or of one whose columns are not known yet.
    """
    spec = request.spec
    if warehouse is None or not _is_whole_request(spec) or not _belongs_to_managed_catalog(realm, spec):
        return tables.create(realm, request)
    schema = _schema(spec.schema_json)
    if schema is None:
        return tables.create(realm, request)
    claim = Claim(realm, "CreateTable", request.idempotency.key, spec, v1.CreateTableResponse)

    def also(stored: Stored[v1.Table]) -> tuple[Operation, ...]:
        return claim.storing(v1.CreateTableResponse(table=stored.value, meta=stored.meta))

    def make() -> v1.CreateTableResponse:
        comment = {"comment": spec.description} if spec.description else {}
        made = create(
            realm,
            warehouse,
            namespace_id=spec.namespace_id,
            name=spec.display_name,
            schema=schema,
            properties={**spec.properties, **comment},
            also=also,
        )
        return v1.CreateTableResponse(table=made.table, meta=made.stored.meta)

    return once(claim, make)


def _is_whole_request(spec: v1.TableSpec) -> bool:
    """Does the spec have all fields of a managed table, and no upstream? What it lacks is reported like for any table."""
    has_place = spec.HasField("catalog_id") and spec.HasField("namespace_id")
    return has_place and spec.HasField("schema_json") and not spec.HasField("upstream")


def _belongs_to_managed_catalog(realm: Realm, spec: v1.TableSpec) -> bool:
    namespace = hierarchy.namespace(realm, spec.namespace_id).value
    if namespace.catalog_id.id != spec.catalog_id.id:
        return False  # which is reported like for any table
    return is_managed(hierarchy.catalog(realm, namespace.catalog_id).value)


def _schema(text: str) -> Schema | None:
    """The schema, or None if it has no columns."""
    from skiway.formats.iceberg.metadata_files import parsed_schema

    try:
        parsed = json.loads(text)
        if isinstance(parsed, dict) and not parsed.get("fields"):
            return None
        return parsed_schema(parsed)
    except ValueError as error:
        reason = str(error).strip().partition("\n")[0]
        raise failure(
            InvalidArgument,
            "field.invalid",
            field="schema_json",
            found=f"not a schema ({reason})",
            wanted='give it in the JSON form of Iceberg, such as {"type": "struct", "fields": [{"id": 1, "name": "id", '
            '"required": true, "type": "long"}]}',
        ) from None
