"""Shallow clones of Delta tables: the log of the clone refers to the files of its source by absolute URIs."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest

from skiway.errors import PermissionDenied
from skiway.formats import TableHandle, open_source

ROWS = pa.table({"k": ["x", "y z", "x", "ü:1"], "v": [1, 2, 3, 4]})


def _source(folder: Path) -> Path:
    source = folder / "the source" / "people"
    deltalake.write_deltalake(str(source), ROWS.slice(0, 3), partition_by=["k"])
    deltalake.write_deltalake(str(source), ROWS.slice(3), mode="append")
    return source


def _actions(commit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in commit.read_text().splitlines()]


def _cloned(source: Path, clone: Path, *, prefix: str, vector: dict[str, Any] | None = None) -> None:
    """Write the log of a clone as Spark does: absolute paths, which are URL-encoded once more."""
    (clone / "_delta_log").mkdir(parents=True)
    for commit in sorted((source / "_delta_log").glob("*.json")):
        actions = _actions(commit)
        for action in actions:
            if "protocol" in action and vector:
                features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
                action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
            if "add" in action:
                action["add"]["path"] = f"{prefix}{quote(str(source))}/{action['add']['path']}"
                if vector and action["add"]["partitionValues"] == {"k": "x"}:
                    action["add"]["deletionVector"] = vector
        (clone / "_delta_log" / commit.name).write_text("\n".join(map(json.dumps, actions)))


def _loaded(folder: Path, *, allowed: Path) -> TableHandle:
    with open_source("delta", str(folder), options={"allowed-locations": str(allowed)}) as source:
        return source.load((), "clone")


def _read(handle: TableHandle) -> pa.Table:
    snapshot = handle.current()
    assert snapshot is not None
    return handle.read(snapshot).read_all().sort_by("v")


@pytest.mark.parametrize("prefix", ["file:", "file://", "FILE:", ""])
def test_a_clone_reads_the_files_of_its_source(tmp_path: Path, prefix: str) -> None:
    _cloned(_source(tmp_path), tmp_path / "clones" / "clone", prefix=prefix)

    assert _read(_loaded(tmp_path / "clones", allowed=tmp_path)).to_pydict() == ROWS.to_pydict()


def test_a_clone_also_has_files_of_its_own(tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "clone"
    _cloned(_source(tmp_path), clone, prefix="file:")
    deltalake.write_deltalake(str(clone), pa.table({"k": ["own"], "v": [5]}), mode="append")

    found = _read(_loaded(tmp_path / "clones", allowed=tmp_path))

    assert found["v"].to_pylist() == [1, 2, 3, 4, 5]
    assert found["k"].to_pylist()[-1] == "own"


def test_deletion_vectors_of_a_clone_apply_to_the_files_of_its_source(tmp_path: Path) -> None:
    _cloned(_source(tmp_path), tmp_path / "clones" / "clone", prefix="file:", vector=_inline_vector([1]))

    assert _read(_loaded(tmp_path / "clones", allowed=tmp_path))["v"].to_pylist() == [1, 2, 4]


def test_a_clone_cannot_reach_files_that_its_connector_may_not_read(tmp_path: Path) -> None:
    _cloned(_source(tmp_path), tmp_path / "clones" / "clone", prefix="file:")

    with pytest.raises(PermissionDenied, match=r"people/.*allowed-locations"):
        _read(_loaded(tmp_path / "clones", allowed=tmp_path / "clones"))


def _inline_vector(deleted: list[int]) -> dict[str, Any]:
    """A deletion vector inside the log: a portable Roaring bitmap of 32-bit positions."""
    container = struct.pack(f"<{len(deleted)}H", *deleted)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, 16) + container
    blob = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = blob + b"\0" * (-len(blob) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": _z85(padded),
        "sizeInBytes": len(blob),
        "cardinality": len(deleted),
    }


def _z85(data: bytes) -> str:
    # Python's base85 has another alphabet.
    ours = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    theirs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    return base64.b85encode(data).decode().translate(str.maketrans(theirs, ours))
