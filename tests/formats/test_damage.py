"""Damaged tables: any damage to a file is reported as an error, never a crash and never wrong rows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scope
from formats.managed import LooseTable
from formats.test_contents import now
from skiway.errors import Internal, PermissionDenied, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import Source, TableHandle, open_source
from skiway.formats.files import FileCache
from skiway.formats.iceberg import metadata
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.metadata_files import WritingIO

ROWS = pa.table({"id": [1, 2, 3], "place": ["here", "there", None], "much": [1.5, None, 2.5]})
REPLACEMENTS: tuple[Any, ...] = (None, "x", -1, 10**30, [], {}, [None], {"type": "struct"})


@pytest.fixture
def table(tmp_path: Path) -> LooseTable:
    made = LooseTable(tmp_path, ROWS.schema, "bucket[2](id)")
    made.append(ROWS)
    made.append(ROWS.slice(0, 1))
    return made


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """All containers of a document, each with all its keys."""
    for key in (
        list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    ):
        yield document, key
        yield from places(document[key])


def damaged_versions(document: Any) -> Iterator[str]:
    """The document as text, with one value replaced or removed."""
    for holder, key in places(document):
        original = holder[key]
        for other in REPLACEMENTS:
            holder[key] = other
            yield json.dumps(document)
        if isinstance(holder, dict):
            del holder[key]
            yield json.dumps(document)
        holder[key] = original


def read_all(source: Source, name: str) -> None:
    handle = source.load((), name)
    for snapshot in handle.snapshots():
        handle.schema_at(snapshot)
        handle.files(snapshot)
    if handle.current() is not None:
        handle.read(now(handle)).read_all()


def test_damaged_metadata_is_rejected_or_read(table: LooseTable, tmp_path: Path) -> None:
    document = json.loads(Path(table.location.removeprefix("file://")).read_text())
    place = tmp_path / "damaged" / "v1.metadata.json"
    place.parent.mkdir()
    options = {"allowed-locations": str(tmp_path)}
    refused = 0
    for text in islice(damaged_versions(document), None, None, 1 if scope.ALL else 5):
        place.write_text(text)
        with open_source("iceberg", str(place), options=options) as source:
            try:
                read_all(source, "damaged")
            except Internal:
                raise
            except SkiwayError:
                refused += 1
    assert refused > 25


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b'{"format-version": 2}', b"[" * 100_000]
)
def test_nonsensical_metadata_of_a_managed_table_is_corrupt(table: LooseTable, content: bytes) -> None:
    place = f"{table.metadata.location}/metadata/9-damaged.metadata.json"
    table.files.write(place, content)
    with pytest.raises(PreconditionFailed, match="is corrupt") as refused:
        read_metadata(table.files, place)
    assert (refused.value.key, refused.value.params["file"]) == ("file.corrupt", place)


@pytest.mark.parametrize("what", ["snap-*.avro", "*-m0.avro"])
def test_damaged_manifests_are_rejected_or_read(table: LooseTable, what: str) -> None:
    folder = Path(table.metadata.location.removeprefix("file://")) / "metadata"
    chance = random.Random(7)
    for path in sorted(folder.glob(what)):
        intact = path.read_bytes()
        first_block = intact.index(intact[-16:]) + 16  # the marker that ends blocks also ends the header
        for size in (
            *range(0, len(intact), 97 if scope.ALL else 397),
            first_block,
            first_block + 1,
            len(intact) - 16,
            len(intact) - 1,
        ):
            path.write_bytes(intact[:size])
            with pytest.raises(PreconditionFailed, match="is corrupt"):
                read_all_files(fresh(table))
            with pytest.raises(PreconditionFailed, match="is corrupt"):
                read_by_writers(table)
        for _ in range(60 if scope.ALL else 20):
            spoiled = bytearray(intact)
            spoiled[chance.randrange(len(intact))] ^= 1 << chance.randrange(8)
            path.write_bytes(spoiled)
            # A damaged path may also lead out of the folder, and a damaged key may make the file look encrypted.
            with suppress(PreconditionFailed, PermissionDenied, Unsupported):
                read_all_files(fresh(table))
            with suppress(PreconditionFailed, PermissionDenied):
                read_by_writers(table)
        path.write_bytes(intact)
    assert fresh(table).read(now(table.handle)).read_all().num_rows == 4


def fresh(table: LooseTable) -> TableHandle:
    """The table with an empty cache."""
    table.files = replace(table.files, cache=FileCache())
    return table.handle


def read_all_files(handle: TableHandle) -> None:
    for snapshot in handle.snapshots():
        handle.files(snapshot)


def read_by_writers(table: LooseTable) -> None:
    """Read what a commit reads of the previous snapshot."""
    from skiway.formats.iceberg.manifest_files import entries, manifests

    for snapshot in table.metadata.snapshots:
        for manifest in manifests(snapshot, WritingIO(table.files)):
            entries(manifest, WritingIO(table.files))


def test_commit_on_damaged_manifests_changes_nothing(table: LooseTable) -> None:
    folder = Path(table.metadata.location.removeprefix("file://")) / "metadata"
    for path in folder.glob("snap-*.avro"):
        path.write_bytes(b"Obj\1")
    before, files = table.location, sorted(folder.iterdir())
    late = table.write(ROWS)
    with pytest.raises(PreconditionFailed, match="is corrupt"):
        table.change(append(late))
    assert (table.location, sorted(folder.iterdir())) == (before, files)


def test_immutable_files_are_read_only_once(table: LooseTable) -> None:
    """Otherwise a table in use would fail as soon as its file is damaged."""
    Path(table.location.removeprefix("file://")).unlink()
    assert read_metadata(table.files, table.location) is not None
    assert metadata.version_of(table.location) == 2
