"""The files that delta-rs opens by itself while it reads a table: the log, its sidecars, and deletion vectors.

A log may refer to files anywhere, and files of the log may be symbolic links. So all of them are checked before delta-rs
sees the table. Data files are read by the Parquet reader, which checks them as well.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

from skiway.errors import PermissionDenied, SkiwayError
from skiway.formats.files import Files, Found, decoding
from skiway.formats.parquet.reading import open_file
from skiway.security.source_access import Location, location

__all__ = ["check_log", "check_vectors"]

_CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\..*(parquet|json)")
_COMMIT: Final = re.compile(r"\d{20}\.json")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_UUID_CHARACTERS: Final = 20
_AT_ONCE: Final = 8
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def check_log(files: Files, table: Location) -> None:
    """Raise PermissionDenied if the log of a table leads to files that its source may not read."""
    folder = table / "_delta_log"
    if folder.scheme == "file":
        for link in files.links(folder):
            files.reach.check(link)
    for checkpoint in _matching(files, folder, _CHECKPOINT):
        for action in _actions(files, checkpoint, "sidecar"):
            _check(files, folder / "_sidecars", str(action.get("path", "")))


def check_vectors(files: Files, table: Location) -> None:
    """Raise PermissionDenied if a deletion vector is in a file that the source may not read."""
    folder = table / "_delta_log"
    logged = [*_matching(files, folder, _COMMIT), *_matching(files, folder, _CHECKPOINT)]
    if (folder / "_sidecars") in files.children(folder)[0]:
        logged += files.children(folder / "_sidecars")[1]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for actions in threads.map(lambda file: list(_actions(files, file, "add")), logged):
            for action in actions:
                vector = action.get("deletionVector")
                if isinstance(vector, dict) and vector.get("storageType") in ("u", "p"):
                    _check_vector(files, table, vector["storageType"], str(vector.get("pathOrInlineDv", "")))


def _check_vector(files: Files, table: Location, kind: str, path: str) -> None:
    if kind == "p":
        _check(files, table, path)
        return
    prefix, encoded = path[:-_UUID_CHARACTERS], path[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{_uuid(encoded)}.bin"
    _check(files, table, f"{prefix}/{name}" if prefix else name)


def _uuid(encoded: str) -> str:
    try:
        return str(UUID(bytes=base64.b85decode(encoded.translate(str.maketrans(_Z85, _B85)))))
    except ValueError:
        return "invalid"  # delta-rs rejects it too


def _check(files: Files, base: Location, path: str) -> None:
    """Check the file at `path`, which is a URL or relative to `base`."""
    plain = unquote(path)
    try:
        place = location(plain) if _ABSOLUTE.match(plain) else location(f"{base}/{plain}")
    except SkiwayError:
        place = None
    # delta-rs opens a URL of another bucket in the bucket of the table.
    if place is None or (place.scheme, place.bucket) != (base.scheme, base.bucket):
        raise PermissionDenied(
            f"the log of the table at {str(base)!r} refers to a file outside of its storage, which is not opened",
            key="location.outside",
            location=str(base),
        )
    files.reach.check(place)


def _matching(files: Files, folder: Location, form: re.Pattern[str]) -> list[Found]:
    return [each for each in files.children(folder)[1] if form.fullmatch(each.location.name)]


def _actions(files: Files, file: Found, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind in a file of the log."""
    uri = str(file.location)
    if not file.location.name.endswith(".json"):
        with decoding(files, uri), open_file(files, uri) as parquet:
            wanted = {"sidecar": ["sidecar"], "add": ["add.deletionVector"]}[kind]
            if kind not in parquet.schema_arrow.names:
                return
            for batch in parquet.iter_batches(columns=wanted):
                if kind in batch.schema.names:
                    yield from filter(None, batch[kind].to_pylist())
        return
    for line in files.read(uri).splitlines():
        if kind.encode() in line:
            try:
                action = json.loads(line)
            except ValueError:
                continue  # delta-rs reports it
            if isinstance(action, dict) and isinstance(action.get(kind), dict):
                yield action[kind]
