"""A load that dies at any step is continued by the next one: the copy has each row once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.faults import Crashed, CrashingBlobs, CrashingPointers, CrashPoint
from metastore.ingest.copies import FolderCopy
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.metastore.connectors.specs import CopyMode
from skiway.storage import Stores, open_stores
from storage.homes import Clock

FILE_OPERATIONS = ("create", "seal", "write")


class WritePoint(CrashPoint):
    """Crashes before a write. To crash after one is to crash before the next."""

    def run(self, operation: Any, *arguments: Any, **keywords: Any) -> Any:
        is_write = operation.__name__ in ("_apply", "_create", "_overwrite", *FILE_OPERATIONS)
        return super().run(operation, *arguments, **keywords) if is_write else operation(*arguments, **keywords)


@contextmanager
def crashing_files(point: CrashPoint) -> Iterator[None]:
    """Count the operations on files of the warehouse as steps, too."""
    methods = {name: getattr(TableFiles, name) for name in FILE_OPERATIONS}

    def counted(method: Any) -> Any:
        return lambda *arguments, **keywords: point.run(method, *arguments, **keywords)

    for name, method in methods.items():
        setattr(TableFiles, name, counted(method))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(TableFiles, name, method)


def write(folder: Path, name: str, ids: list[int], value: str) -> None:
    pq.write_table(pa.table({"id": ids, "v": [value] * len(ids)}), folder / f"{name}.parquet")


def crash_at_every_step(
    tmp_path: Path, mode: CopyMode, keys: tuple[str, ...], expected: list[list[Any]], *, files: int = 1
) -> int:
    """Crash loads at each step in turn; after each crash, the next load must give the expected rows. Returns the steps."""
    at = 0
    while True:
        at += 1 if files == 1 else 5  # the steps of a load are alike
        folder = tmp_path / f"{mode}-{at}"
        crashes = 0
        with open_stores("memory://", clock=Clock()) as stores:
            lake = ManagedTableFactory.at(ResourceFactory(stores, Clock()), folder)
            lake.factory.first_namespace()
            orders = FolderCopy(lake, folder / "source", more={"step_bytes": 1}).in_mode(mode, *keys)
            for number, rows in enumerate(expected):
                ids = [number, number + 1, 100 + number]
                for part in range(files):  # a row each if there are several, of which each is a step
                    write(orders.folder, f"{number}-{part}", ids[part : None if files == 1 else part + 1], f"v{number}")
                point = WritePoint(at)
                crashing = Stores(CrashingPointers(stores.pointers, point), CrashingBlobs(stores.blobs, point))
                killed = FolderCopy(
                    ManagedTableFactory(ResourceFactory(crashing, Clock()), lake.warehouse),
                    orders.root,
                    rules=orders.rules,
                    more=orders.more,
                )
                try:
                    with crashing_files(point):
                        killed.load()
                except Crashed:
                    crashes += 1
                gc.collect()  # closes files of the crashed load now, and not while a later one holds a lock
                orders.load()
                assert orders.rows() == rows, f"after a crash at step {at} of load {number}"
                assert not orders.load()
        if not crashes:
            return at


@pytest.mark.parametrize("files", [1, 3], ids=["one-step", "three-steps"])
@pytest.mark.parametrize(
    ("mode", "keys", "expected"),
    [
        (
            CopyMode.APPEND,
            (),
            [
                [(0, "v0"), (1, "v0"), (100, "v0")],
                [(0, "v0"), (1, "v0"), (1, "v1"), (100, "v0"), (101, "v1"), (2, "v1")],
            ],
        ),
        (
            CopyMode.UPSERT,
            ("id",),
            [
                [(0, "v0"), (1, "v0"), (100, "v0")],
                [(0, "v0"), (1, "v1"), (100, "v0"), (101, "v1"), (2, "v1")],
            ],
        ),
        (
            CopyMode.REPLACE,
            (),
            [
                [(0, "v0"), (1, "v0"), (100, "v0")],
                [(0, "v0"), (1, "v0"), (1, "v1"), (100, "v0"), (101, "v1"), (2, "v1")],
            ],
        ),
    ],
    ids=["append", "upsert", "replace"],
)
def test_crash_at_every_step_neither_loses_nor_duplicates_rows(tmp_path, mode, keys, expected, files):
    assert crash_at_every_step(tmp_path, mode, keys, expected, files=files) > 15
