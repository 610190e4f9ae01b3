"""Check a store: every pointer has its blob, every resource its names and parents, and every managed table its files, as
many and as large as its metadata says.

Servers may write meanwhile. The check reads each resource on its own, and reports a defect only if the pointer that it
concerns is unchanged afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from skiway.errors import NotFound, SkiwayError
from skiway.formats import Location, location
from skiway.formats.iceberg.commits import plain
from skiway.formats.iceberg.metadata import is_ordered, read_metadata
from skiway.formats.iceberg.warehouse import Warehouse, uri_of
from skiway.metastore.gc.references import files_of_state
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.places import files_of_table, folder_of_table
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import KINDS, TABLE, Kind
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.storage import Pointer, Stores

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["Checker", "Defect"]

_TOLERANCE_MS: Final = 60_000
_BY_NOUN: Final = {kind.noun: kind for kind in KINDS}
_STATISTICS: Final = {"table": "table_stats", "columns": "column_stats", "files": "file_stats"}


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of a store: where it is, as a key or the location of a file, and what is wrong."""

    place: str
    problem: str


class Checker:
    """Checks a store and, if a warehouse is given, the files of managed tables. `counts` says how much was checked.

    With `repair`, defects that a commit to the table can repair are not returned, but repaired; `repaired` lists them.
    """

    def __init__(self, stores: Stores, warehouse: Warehouse | None = None, *, repair: bool = False) -> None:
        self._stores, self._warehouse, self._repair = stores, warehouse, repair
        self.counts: Counter[str] = Counter()
        self.repaired: list[str] = []
        self._unordered: dict[str, v1.Table] = {}

    def defects(self) -> Iterator[Defect]:
        """Check everything, and yield the defects as they are found."""
        for pointer in self._stores.pointers.scan():
            self.counts["pointer"] += 1
            found = list(self._defects(pointer))
            if found and self._is_unchanged(pointer):
                # Another resource that the pointer refers to may have changed between two reads: look once more.
                yield from self._defects(pointer)
        if self._warehouse is not None:
            yield from self._repairs(self._warehouse)

    def _is_unchanged(self, pointer: Pointer) -> bool:
        return self._stores.pointers.get(pointer.key) == pointer

    def _defects(self, pointer: Pointer) -> Iterator[Defect]:
        key = pointer.key
        if keys.is_plain(key):
            return
        if keys.is_current(key):
            yield from self._of_current(pointer)
        elif "/snapshots/profiles/" in key:
            if self._stores.blobs.head(pointer.blob_uri) is None:
                yield Defect(key, f"its content {pointer.blob_uri} is missing")
        elif keys.owner(pointer) == key:
            yield from self._of_resource(pointer)
        else:
            yield from self._of_name(pointer)

    def _of_current(self, pointer: Pointer) -> Iterator[Defect]:
        """The current snapshot of a table exists, unless the table is deleted and only waits for garbage collection."""
        if not self._has_table(pointer.key):
            return
        snapshot = f"{pointer.key.removesuffix('current')}by-id/{int(pointer.blob_uri):019d}"
        if self._stores.pointers.get(snapshot) is None:
            yield Defect(pointer.key, f"its snapshot {pointer.blob_uri} does not exist")

    def _of_name(self, pointer: Pointer) -> Iterator[Defect]:
        """A name belongs to an existing resource, in the same version."""
        owner = self._stores.pointers.get(keys.owner(pointer))
        if owner is None:
            yield Defect(pointer.key, f"its resource {keys.owner(pointer)} does not exist")
        elif owner.blob_uri != pointer.blob_uri:
            yield Defect(pointer.key, f"its content is another than that of {owner.key}")

    def _of_resource(self, pointer: Pointer) -> Iterator[Defect]:
        key = pointer.key
        self.counts["resource"] += 1
        try:
            kind = _kind_of(key)
            value = kind.message.FromString(self._stores.blobs.get(pointer.blob_uri))
        except NotFound:
            yield Defect(key, f"its content {pointer.blob_uri} is missing")
            return
        except (SkiwayError, DecodeError, LookupError) as error:
            yield Defect(key, f"its content {pointer.blob_uri} cannot be read: {error}")
            return
        if kind.key(value) != key:
            yield Defect(key, f"it contains the {kind.noun} with key {kind.key(value)}")
            return
        for name in kind.names(value):
            named = self._stores.pointers.get(name)
            if named is None or named.blob_uri != pointer.blob_uri:
                yield Defect(key, f"the {kind.noun} {kind.title(value)} has no name {name}")
        for parent in _parents(value):
            if self._stores.pointers.get(parent) is None:
                yield Defect(key, f"the {kind.noun} {kind.title(value)} is in {parent}, which does not exist")
        if kind is TABLE and value.metadata_location and self._warehouse is not None:
            yield from self._of_files(self._warehouse, value)

    def _of_files(self, warehouse: Warehouse, table: v1.Table) -> Iterator[Defect]:
        """All files that the current state of a managed table references exist, and counts and sizes agree."""
        self.counts["managed table"] += 1
        try:
            place = location(table.metadata_location)
            realm = Realm(self._stores, table.resource_id.account_id)
            files = files_of_table(realm, warehouse, table)
            folder = location(folder_of_table(realm, warehouse, table))
            listed = {each.location: each.size for each in files.walk(folder)}
            if place not in listed:
                yield Defect(table.metadata_location, f"the metadata of table {table.display_name} is missing")
                return
            wrong: list[Defect] = []
            used = files_of_state(
                files, place, on_manifest=lambda manifest, entries: wrong.extend(_wrong(manifest, entries, listed))
            )
            self.counts["file"] += len(used)
            yield from self._of_history(table, read_metadata(files, table.metadata_location))
            yield from (Defect(each.place, f"{each.problem} (table {table.display_name})") for each in wrong)
            for missing in sorted(used - listed.keys(), key=str):
                if files.find(uri_of(missing)) is None:
                    yield Defect(uri_of(missing), f"a file of table {table.display_name} is missing")
        except SkiwayError as error:
            yield Defect(table.metadata_location, f"table {table.display_name} cannot be read: {error}")

    def _of_history(self, table: v1.Table, metadata: TableMetadata) -> Iterator[Defect]:
        """Times in the history do not decrease by more than Iceberg's Java library tolerates."""
        if is_ordered(metadata, tolerance_ms=_TOLERANCE_MS):
            return
        if self._repair:
            self._unordered[table.resource_id.id] = table
            return
        yield Defect(
            table.metadata_location,
            f"the times in its history decrease (table {table.display_name}), so Spark and other Java clients reject the table: "
            "run skiway check --repair",
        )

    def _repairs(self, warehouse: Warehouse) -> Iterator[Defect]:
        """Repair what was found. Defects that cannot be repaired are returned."""
        for table in self._unordered.values():
            try:
                realm = Realm(self._stores, table.resource_id.account_id)
                change(realm, warehouse, table.resource_id, plain((), ()))  # every commit puts the times in order
                self.repaired.append(f"the history of table {table.display_name}: {table.metadata_location}")
            except SkiwayError as error:
                yield Defect(table.metadata_location, f"table {table.display_name} cannot be repaired: {error}")

    def _has_table(self, key: str) -> bool:
        table = keys.table_of(key)
        return table is None or self._stores.pointers.get(table) is not None


def _wrong(manifest: ManifestFile, entries: Sequence[ManifestEntry], sizes: Mapping[Location, int]) -> Iterator[Defect]:
    """The numbers of a manifest that differ from those in its list, and the files that differ from their entries in size."""
    rows = sum(entry.data_file.record_count for entry in entries)
    for noun, found, added, existing in (
        ("files", len(entries), manifest.added_files_count, manifest.existing_files_count),
        ("rows", rows, manifest.added_rows_count, manifest.existing_rows_count),
    ):
        if added is not None and existing is not None and found != added + existing:
            yield Defect(manifest.manifest_path, f"it has {found} {noun}, but {added + existing} according to its list")
    for each in (entry.data_file for entry in entries):
        size = sizes.get(location(each.file_path))
        if size is not None and size != each.file_size_in_bytes:
            yield Defect(
                each.file_path, f"it has {size} bytes, but {each.file_size_in_bytes} according to its manifest"
            )


def _kind_of(key: str) -> Kind[Any]:
    """The kind of the resource with this canonical key. Raise LookupError if there is no such kind."""
    match key.split("/")[1:]:
        case ["accounts", "by-id", _]:
            return _BY_NOUN["account"]
        case [*_, "snapshots", "by-id", _]:
            return _BY_NOUN["snapshot"]
        case [*_, "stats", of]:
            return _BY_NOUN[_STATISTICS[of]]
        case [*_, "grants", "by-object", _, _]:
            return _BY_NOUN["grant"]
        case [*_, "policies", "by-id", _]:
            return _BY_NOUN["policy"]
        case [*_, "column-tags", "by-table", _]:
            return _BY_NOUN["column_tags"]
        case [*_, "job-logs", "by-job", _]:
            return _BY_NOUN["job_log"]
        case [*_, "rule-results", "by-rule", _]:
            return _BY_NOUN["rule_results"]
        case [*_, plural, "by-id", _]:
            return _BY_NOUN[plural.removesuffix("s")]
    raise LookupError(f"{key} is the key of no kind of resource")


def _parents(value: Any) -> Iterator[str]:
    """The canonical keys of the resources that contain a namespace, table or view."""
    if isinstance(value, v1.Namespace | v1.Table | v1.View):
        yield keys.catalog(value.resource_id.account_id, value.catalog_id.id)
    if isinstance(value, v1.Table | v1.View):
        yield keys.namespace(value.resource_id.account_id, value.namespace_id.id)
