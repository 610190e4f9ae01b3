"""Maintenance of a store by its operator: check its integrity, back it up, and restore it.

All of it works on the stores of a running server. `Checker` reads them resource by resource and reports a defect only if it
persists; `write_backup` copies the pointers as of one moment, and then the blobs that they refer to.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from skiway import __version__
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed, SkiwayError, Unavailable
from skiway.formats import Location, location
from skiway.formats.iceberg.changes.commits import plain
from skiway.formats.iceberg.metadata import is_ordered, read_metadata
from skiway.formats.iceberg.warehouse import Warehouse, uri_of
from skiway.foundation.clock import from_micros, to_micros
from skiway.metastore.gc.warehouse import files_of_state
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.locations import files_of_table, folder_of_table, places
from skiway.metastore.records import keys
from skiway.metastore.records.branches import addresses_in
from skiway.metastore.records.kinds import KINDS, TABLE, Kind
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.storage import FORMAT_VERSION, Pointer, StoreFormat, Stores, blob_digest

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata

_FORMAT: Final = 1
_MANIFEST: Final = "manifest.json"
_POINTERS: Final = "pointers.jsonl.gz"
_BLOBS: Final = "blobs"
_SECRETS: Final = "secrets"
_WAREHOUSE: Final = "warehouse.jsonl.gz"
_DIGEST_CHARS: Final = 64
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a backup. `missing` are the addresses of blobs that the store has lost."""

    created_at: str
    pointers: int
    blobs: int
    secrets: int
    warehouse: str
    warehouse_files: int
    missing: tuple[str, ...] = ()
    skiway: str = __version__
    store_format: int = FORMAT_VERSION
    store_format_complete: bool = True
    format: int = _FORMAT


def write_backup(stores: Stores, folder: Path, *, secrets: Path | None, warehouse: Warehouse) -> Manifest:
    """Write a backup into a new folder. `secrets` is the folder of the secrets store, if it has one."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise InvalidArgument(f"{folder} already exists: give a folder that does not exist yet") from None
    except OSError as error:
        raise Unavailable(f"the folder {folder} cannot be created: {error.strerror}") from error
    created_at = datetime.now(UTC)
    for _ in range(_ATTEMPTS):
        found = stores.pointers.format()
        _copy_secrets(secrets, folder / _SECRETS)
        addresses, pointers = _copy_pointers(stores, folder / _POINTERS)
        _copy_secrets(secrets, folder / _SECRETS)
        missing = tuple(sorted(uri for uri in addresses if not _copy_blob(stores, uri, folder / _BLOBS / uri)))
        if not _were_replaced(stores, missing) and stores.pointers.format() == found:
            break
    manifest = Manifest(
        created_at.isoformat(),
        pointers,
        len(addresses) - len(missing),
        sum(each.is_file() for each in (folder / _SECRETS).rglob("*")),
        uri_of(warehouse.root),
        _list_files(stores, warehouse, folder / _WAREHOUSE),
        missing,
        store_format=found.version,
        store_format_complete=found.complete,
    )
    os.sync()
    (folder / _MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n")
    os.sync()
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a complete backup that this version can restore."""
    try:
        read: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
    except FileNotFoundError:
        raise InvalidArgument(f"{folder} is not a complete backup: it has no {_MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the backup {folder} cannot be read: {error}") from error
    if read.get("format") != _FORMAT or read.get("store_format", 0) > FORMAT_VERSION:
        raise PreconditionFailed(
            f"the backup {folder} was made by Skiway {read.get('skiway')}, and this is {__version__}: upgrade Skiway"
        )
    return Manifest(**{**read, "missing": tuple(read["missing"])})


def restore_backup(stores: Stores, folder: Path, *, secrets: Path | None, warehouse: Warehouse) -> Manifest:
    """Restore a backup into empty stores. The pointers come last, so that an interrupted restore shows nothing."""
    manifest = read_manifest(folder)
    if manifest.warehouse != uri_of(warehouse.root):
        raise PreconditionFailed(
            f"the tables of this backup are in the warehouse {manifest.warehouse}, but this one is {uri_of(warehouse.root)}: "
            f"their files contain absolute locations; add --set warehouse.uri={manifest.warehouse}"
        )
    if next(stores.pointers.scan(page_size=1), None) is not None:
        raise PreconditionFailed("the store is not empty: restore into a new home or a new database")
    if (folder / _SECRETS).is_dir():
        _restore_secrets(folder / _SECRETS, secrets)
    for file in (path for path in (folder / _BLOBS).rglob("*") if path.is_file()):
        _restore_blob(stores, file.relative_to(folder / _BLOBS).as_posix(), file)
    backed_up = StoreFormat(manifest.store_format, complete=manifest.store_format_complete)
    if (current := stores.pointers.format()) != backed_up:
        stores.pointers.change_format(current, backed_up)
    stores.pointers.load(_read_pointers(folder / _POINTERS))
    return manifest


# --- pointers ---------------------------------------------------------------------------------------------------------


def _copy_pointers(stores: Stores, file: Path) -> tuple[set[str], int]:
    """Write all pointers; return the addresses of the blobs they refer to, and the number of pointers."""
    addresses, count = set[str](), 0
    with gzip.open(file, "wt", encoding="utf-8") as out:
        for count, each in enumerate(stores.pointers.snapshot(), start=1):  # noqa: B007 - the last one counts
            expires = None if each.expires_at is None else to_micros(each.expires_at)
            out.write(json.dumps([each.key, each.blob_uri, each.version, expires], ensure_ascii=False) + "\n")
            if _is_address(each.blob_uri):
                addresses.add(each.blob_uri)
            addresses.update(filter(_is_address, addresses_in(stores, each)))
    return addresses, count


def _read_pointers(file: Path) -> Iterator[Pointer]:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            key, value, version, expires = json.loads(line)
            yield Pointer(key, value, version, None if expires is None else from_micros(expires))


# --- blobs, secrets and the warehouse ---------------------------------------------------------------------------------


def _were_replaced(stores: Stores, missing: Collection[str]) -> bool:
    """Whether a missing blob was deleted because its pointer changed since it was copied; then the copy is outdated."""
    return bool(missing) and not set(missing) <= {pointer.blob_uri for pointer in stores.pointers.snapshot()}


def _is_address(value: str) -> bool:
    try:
        blob_digest(value)
    except InvalidArgument:
        return False
    return True


def _copy_blob(stores: Stores, uri: str, file: Path) -> bool:
    """Copy a blob, unless it was copied before; return whether it exists."""
    if file.exists():
        return True
    try:
        content = stores.blobs.get(uri)
    except NotFound:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return True


def _restore_blob(stores: Stores, uri: str, file: Path) -> None:
    folder, _, name = uri.rsplit("/", 2)
    stores.blobs.put(
        file.read_bytes(), folder=folder, suffix=name[_DIGEST_CHARS:], sha256_hex=name[:_DIGEST_CHARS]
    )  # which verifies the content


def _copy_secrets(secrets: Path | None, target: Path) -> None:
    """Copy the files of the secrets store to those that were copied before. Files may appear and vanish during the copy."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise Unavailable(f"the secrets in {error.filename} cannot be read: {error.strerror}") from error

    if secrets is None or not secrets.is_dir():
        return
    for folder, _, names in os.walk(secrets, onerror=fail):
        into = target / Path(folder).relative_to(secrets)
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in names:
            try:
                shutil.copy2(Path(folder, name), into / name)
            except OSError as error:
                fail(error)


def _restore_secrets(source: Path, target: Path | None) -> None:
    if target is None:
        raise PreconditionFailed(
            "the backup contains secrets in encrypted files, but secrets.backend is not file: restore with the same backend"
        )
    if target.is_dir() and any(target.iterdir()):
        raise PreconditionFailed(f"the secrets folder {target} is not empty: restore into a new home")
    shutil.copytree(source, target, dirs_exist_ok=True)


def _list_files(stores: Stores, warehouse: Warehouse, file: Path) -> int:
    """Write the location and size of every file of managed tables; return their number."""
    count = 0
    with gzip.open(file, "wt", encoding="utf-8") as out:
        for uri, size in _table_files(stores, warehouse):
            out.write(json.dumps([uri, size], ensure_ascii=False) + "\n")
            count += 1
    return count


def _table_files(stores: Stores, warehouse: Warehouse) -> Iterator[tuple[str, int]]:
    files = warehouse.everything()
    for account in files.children(warehouse.root)[0]:
        for table in files.children(account)[0]:
            yield from ((uri_of(each.location), each.size) for each in files.walk(table))
    for place in places(stores):
        with suppress(PermissionDenied):  # the operator no longer approves the location
            found = warehouse.files(uri_of(place.folder)).walk(place.folder)
            yield from ((uri_of(each.location), each.size) for each in found)


_TOLERANCE_MS: Final = 60_000
_BY_NOUN: Final = {kind.noun: kind for kind in KINDS}
_STATISTICS: Final = {"table": "table_stats", "columns": "column_stats", "files": "file_stats"}
_SINGULARS: Final = {
    "branches": "branch",
    "policies": "policy",
    "column-tags": "column_tags",
    "rule-results": "rule_results",
}


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
        for address in addresses_in(self._stores, pointer):
            if self._stores.blobs.head(address) is None:
                yield Defect(key, f"its content {address} is missing")
        if keys.is_plain(key):
            return
        if keys.is_current(key):
            yield from self._of_current(pointer)
        elif "/snapshots/profiles/" in key or keys.is_branch_base(key):
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
        if isinstance(value, v1.Catalog) and BRANCH_MARK in value.display_name:
            # Earlier releases allowed such names.
            name = value.display_name
            yield Defect(
                key,
                f"catalog {name} has a name with {BRANCH_MARK}, which separates the name of a catalog from that of a branch, so it hides a "
                f"branch with this name: rename it with skiway catalogs update '{name}' --name NAME",
            )
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
                realm = Realm(self._stores, table.resource_id.account_id, past_protection=True)
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
        case [*_, "stats", statistics]:
            return _BY_NOUN[_STATISTICS[statistics]]
        case [*_, "grants", "by-object", _, _]:
            return _BY_NOUN["grant"]
        case [*_, plural, "by-id" | "by-table" | "by-job" | "by-rule", _]:
            return _BY_NOUN[_SINGULARS.get(plural, plural.removesuffix("s").replace("-", "_"))]
    raise LookupError(f"{key} is the key of no kind of resource")


def _parents(value: Any) -> Iterator[str]:
    """The canonical keys of the resources that contain a namespace, table or view."""
    if isinstance(value, v1.Namespace | v1.Table | v1.View):
        yield keys.catalog(value.resource_id.account_id, value.catalog_id.id)
    if isinstance(value, v1.Table | v1.View):
        yield keys.namespace(value.resource_id.account_id, value.namespace_id.id)
