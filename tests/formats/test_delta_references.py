"""Files that the log of a Delta table refers to are checked before delta-rs opens them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skiway.errors import PermissionDenied, SkiwayError
from skiway.formats import open_source
from skiway.security.source_access import SourceAccess

ROWS = pa.table({"id": [1, 2, 3]})
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
ID = UUID(int=7)
ENCODED = base64.b85encode(ID.bytes).decode().translate(str.maketrans(B85, Z85))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    deltalake.write_deltalake(str(tmp_path / "open" / "people"), ROWS)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / f"deletion_vector_{ID}.bin").write_bytes(b"\x01planted-secret-of-another-account")
    return tmp_path / "open" / "people"


def read(table: Path) -> list[int]:
    access = SourceAccess(local_roots=(str(table.parent),))
    with open_source("delta", str(table.parent), access=access) as source:
        handle = source.load((), "people")
        snapshot = handle.current()
        assert snapshot is not None
        return handle.read(snapshot).read_all()["id"].to_pylist()


def with_vector(table: Path, vector: dict[str, Any]) -> None:
    log = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
        if "add" in action:
            action["add"]["deletionVector"] = {"offset": 1, "sizeInBytes": 10, "cardinality": 1, **vector}
    log.write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("p", "file://{closed}/deletion_vector_{id}.bin"),
        ("p", "{closed}/deletion_vector_{id}.bin"),
        ("p", "s3://bucket/deletion_vector_{id}.bin"),
        ("u", "../../closed{encoded}"),
        ("u", "file://{closed}{encoded}"),
    ],
)
def test_deletion_vector_of_another_table_is_not_opened(table: Path, kind: str, path: str) -> None:
    closed = table.parents[1] / "closed"
    with_vector(table, {"storageType": kind, "pathOrInlineDv": path.format(closed=closed, id=ID, encoded=ENCODED)})
    with pytest.raises(PermissionDenied) as caught:
        read(table)
    assert "DV" not in str(caught.value), "delta-rs was not asked"


@pytest.mark.parametrize("name", [f"deletion_vector_{ID}.bin", "_delta_log"])
def test_links_of_a_table_do_not_lead_outside(table: Path, name: str) -> None:
    closed = table.parents[1] / "closed"
    with_vector(table, {"storageType": "u", "pathOrInlineDv": ENCODED})
    if name == "_delta_log":
        (table / name).rename(closed / name)
    (table / name).symlink_to(closed / name)
    with pytest.raises(PermissionDenied, match="not open to sources"):
        read(table)


def test_commit_that_is_a_link_is_not_opened(table: Path) -> None:
    foreign = table.parents[1] / "closed" / "people"
    deltalake.write_deltalake(str(foreign), ROWS)
    (table / "_delta_log" / f"{1:020}.json").symlink_to(foreign / "_delta_log" / f"{0:020}.json")
    with pytest.raises(PermissionDenied, match="not open to sources"):
        read(table)


@pytest.mark.parametrize("path", ["file://{closed}/x.parquet", "../../../../closed/x.parquet", "x.parquet"])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_sidecar_of_another_table_is_not_opened(table: Path, path: str, form: str) -> None:
    log, closed = table / "_delta_log", table.parents[1] / "closed"
    sidecar = {"path": path.format(closed=closed), "sizeInBytes": 10, "modificationTime": 0}
    name = log / f"{0:020}.checkpoint.{UUID(int=1)}.{form}"
    if form == "json":
        name.write_text(json.dumps({"sidecar": sidecar}))
    else:
        pq.write_table(pa.table({"sidecar": [sidecar]}), name)
    with pytest.raises(SkiwayError) as caught:
        read(table)
    assert isinstance(caught.value, PermissionDenied) == (path != "x.parquet")
