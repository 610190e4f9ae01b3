"""Exports: Iceberg metadata of mirrored tables in other formats, for clients that read nothing else.

The metadata and the manifests are in the folder of the table in the warehouse, and name the data files of the source. A
pointer tells where the current metadata is, and of which versions it is made, or why the table cannot be exported. So all
servers return the same metadata. It is extended when a client loads the table and there are new versions.

Garbage collection keeps the files of the current metadata, and deletes all others, those of a table that was removed, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote
from uuid import UUID, uuid5

import msgspec

from skiway.errors import Conflict, NotFound, PreconditionFailed, Unsupported
from skiway.formats import OpenedTable, Snapshot, TableName, location
from skiway.formats.iceberg.export.versions import FORMAT, exported_metadata, identity_of, replacing
from skiway.formats.iceberg.metadata import read_metadata, write_metadata
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed import locations
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain
from skiway.metastore.resources import snapshots
from skiway.metastore.statistics.file_table import DELETED_ROWS
from skiway.model import v1
from skiway.storage import ABSENT, Pointer

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


FORMATS: Final = (v1.TF_DELTA, v1.TF_PARQUET)
_NAMES: Final = UUID("6f8a4c1e-52b7-4f0b-9c55-0d7a3b1e9f42")
_MAX_REASON: Final = 1000
_REFUSAL_KEPT: Final = timedelta(days=30)
_TURN_S: Final = 60.0
_MAPPING: Final = "delta.columnMapping.mode"


class Export(msgspec.Struct, frozen=True):
    """The location of the exported metadata, or the reason for a refusal. `state` is a digest of the exported versions."""

    state: str
    location: str = ""
    refused: str = ""


def is_exportable(table: v1.Table) -> bool:
    """Whether the table is in a format that can be exported."""
    return not table.metadata_location and table.upstream.format in FORMATS


def find_export(realm: Realm, table_id: str) -> Export | None:
    """The export of a table; None if no client has loaded the table yet."""
    return _parsed(realm.stores.pointers.get(keys.export(realm.account_id, table_id)))


def exports_of(realm: Realm) -> dict[str, Export]:
    """All exports of the account, by table id."""
    exports = ((pointer.key, _parsed(pointer)) for pointer in realm.stores.pointers.scan(keys.export(realm.account_id)))
    return {unquote(keys.last_segment(key)): export for key, export in exports if export is not None}


def forget_export(realm: Realm, table_id: str) -> None:
    """Forget the export of a table that was removed."""
    delete_plain(realm.stores, keys.export(realm.account_id, table_id))


def may_be_exported(realm: Realm, table: v1.Table, known: Export | None) -> bool:
    """Whether the records allow that clients read the table. Only `export` finds out."""
    if known is not None:
        return not known.refused
    if table.properties.get(_MAPPING, "none") != "none":
        return False
    if table.upstream.format != v1.TF_DELTA:
        return True
    current = snapshots.current(realm, table.resource_id.id)
    return current is None or not current.value.format_metadata.get(DELETED_ROWS)


def export(realm: Realm, warehouse: Warehouse, table: v1.Table, opened: OpenedTable) -> IcebergTable:
    """The table as an Iceberg table; raises Unsupported if Iceberg clients would not read it correctly.

    It has a snapshot for each version that the metastore has recorded, up to the current one.
    """
    table_id = table.resource_id.id
    versions = _versions(realm, table_id, opened)
    if not versions:
        raise Unsupported("it has no versions yet; synchronise its connector", key="table.not_exportable")
    place = _Place(realm, table_id, locations.folder_of(realm, warehouse, table_id), warehouse)
    state = _state(opened, versions)
    found = place.current(state)
    if found is None:
        with warehouse.lock(f"{place.folder}#export", timeout_s=_TURN_S):
            found = place.current(state) or place.made(state, opened, versions)
    metadata, written = found
    return IcebergTable(TableName((), table.display_name), metadata, metadata_location=written, files=place.files)


def _versions(realm: Realm, table_id: str, opened: OpenedTable) -> list[Snapshot]:
    """The recorded versions up to the current one, from old to new."""
    current = opened.current
    if current is None:
        return []
    pointers = realm.stores.pointers.scan(keys.snapshot(realm.account_id, table_id))
    recorded = {int(keys.last_segment(pointer.key)) for pointer in pointers}
    earlier = [snapshot for snapshot in opened.snapshots if snapshot.id in recorded and snapshot.id < current.id]
    return [*sorted(earlier, key=lambda each: each.id), current]


def _state(opened: OpenedTable, versions: Sequence[Snapshot]) -> str:
    """A digest of everything that the metadata depends on."""
    listed = [FORMAT, *((version.id, identity_of(version)) for version in versions)]
    if opened.recall is not None:  # which older listings can still be read depends on the files that exist now
        listing = opened.handle.current(opened.known)
        listed.append("" if listing is None else listing.digest)
    return sha256(json.dumps(listed).encode()).hexdigest()


def _is_readable(opened: OpenedTable, version: Snapshot) -> bool:
    try:
        opened.at(version)
    except NotFound:  # files of an old listing were changed or deleted
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder of a mirrored table in the warehouse, and the pointer to its export."""

    realm: Realm
    table_id: str
    folder: str
    warehouse: Warehouse

    @property
    def files(self) -> TableFiles:
        return self.warehouse.files(self.folder)

    @property
    def key(self) -> str:
        return keys.export(self.realm.account_id, self.table_id)

    def current(self, state: str) -> tuple[TableMetadata, str] | None:
        """The metadata of the export in this state; None if there is none, or its files are gone."""
        known = find_export(self.realm, self.table_id)
        if known is None or known.state != state:
            return None
        if known.refused:
            raise Unsupported(known.refused, key="table.not_exportable")
        metadata = self._read(known.location)
        return None if metadata is None else (metadata, known.location)

    def made(self, state: str, opened: OpenedTable, versions: Sequence[Snapshot]) -> tuple[TableMetadata, str]:
        """Export the versions, and publish that."""
        pointer = self.realm.stores.pointers.get(self.key)
        before = _parsed(pointer)
        previous = None if before is None else self._read(before.location)
        readable = [version for version in versions if _is_readable(opened, version)]
        locations.claim(self.realm, self.table_id)
        try:
            if not readable or readable[-1] is not versions[-1]:
                raise Unsupported("its files were changed; synchronise its connector", key="table.not_exportable")
            made = self._exported(opened, readable, previous)
        except Unsupported as error:
            if not self.files.walk(location(self.folder)):
                locations.release(self.realm, self.table_id)
            self._publish(Export(state, refused=error.message[:_MAX_REASON]), before=pointer)
            raise
        if previous is not None and before is not None:
            made = replacing(made, previous, before.location)
        written = write_metadata(self.files, made, version=versions[-1].id)
        if self._publish(Export(state, written), before=pointer):
            return made, written
        return self.current(state) or (made, written)

    def _read(self, metadata: str) -> TableMetadata | None:
        try:
            is_there = metadata and self.files.find(metadata) is not None
            return read_metadata(self.files, metadata) if is_there else None
        except (NotFound, PreconditionFailed):
            return None

    def _exported(
        self, opened: OpenedTable, versions: Sequence[Snapshot], previous: TableMetadata | None
    ) -> TableMetadata:
        number = uuid5(_NAMES, f"{self.realm.account_id}/{self.table_id}")
        exported = partial(exported_metadata, opened, versions, self.files, location=self.folder, table_uuid=number)
        if previous is not None:
            with suppress(Conflict, PreconditionFailed):  # its manifests are gone
                return exported(previous=previous)
        return exported()

    def _publish(self, made: Export, *, before: Pointer | None) -> bool:
        """Publish an export, and return whether no other server was faster."""
        expires_at = self.realm.clock() + _REFUSAL_KEPT if made.refused else None
        expect = ABSENT if before is None else before.version
        text = msgspec.json.encode(made).decode()
        try:
            self.realm.stores.pointers.compare_and_set(self.key, text, expect=expect, expires_at=expires_at)
        except (Conflict, NotFound):
            return False
        return True


def _parsed(pointer: Pointer | None) -> Export | None:
    return None if pointer is None else msgspec.json.decode(pointer.blob_uri, type=Export)
