"""Back up a store into a folder, and restore it.

    manifest.json       when the backup was made, and what it contains; written last
    pointers.jsonl.gz   all pointers as of one moment: key, value, version, and when it expires
    blobs/              the blobs that the pointers refer to, by their addresses
    secrets/            the encrypted files of the secrets store, if it is a folder
    warehouse.jsonl.gz  the files of managed tables and their sizes, but not their contents

Blobs and warehouse files never change, and garbage collection spares young ones. So everything that the pointers of one
moment refer to can be copied afterwards, while servers write. Secrets are deleted as soon as no pointer refers to them. So
they are copied before the pointers, and then the new ones once more.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from skiway import __version__
from skiway.clock import from_micros, to_micros
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed, Unavailable
from skiway.formats.iceberg.warehouse import Warehouse, uri_of
from skiway.metastore.managed.places import places
from skiway.storage import FORMAT_VERSION, Pointer, StoreFormat, Stores, blob_digest

__all__ = ["Manifest", "read_manifest", "restore_backup", "write_backup"]

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
    """Copy the files of the secrets store to those that were copied before. Files may appear and vanish meanwhile."""

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
