"""A commit whose outcome is unknown: the connection to the store was lost after it had taken effect.

The statement fails, but its rows may be in the table, so none of its files may be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import PreconditionFailed, SkiwayError, Unavailable

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})

Change = Callable[[AirportClient], object]
CHANGES: dict[str, tuple[Change, list[int]]] = {
    "insert": (lambda db: db.insert("s.t", pa.table({"id": [4], "v": ["d"]})), [1, 2, 3, 4]),
    "update": (lambda db: db.update("s.t", {"id": 9}, where=col("id") == 2), [1, 3, 9]),
    "delete": (lambda db: db.delete("s.t", where=col("id") == 2), [1, 3]),
}


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", ROWS.schema)
        db.insert("s.t", ROWS)
        yield db


@contextmanager
def failing(lake: Lake, monkeypatch: pytest.MonkeyPatch, error: SkiwayError, *, after: bool) -> Iterator[None]:
    """A block in which the next change of a table's record fails, before or after it has taken effect."""
    kind = type(lake.stores.pointers)
    real = kind._apply

    def apply(store: Any, batch: Any) -> None:
        of_a_table = any("/tables/" in operation.key for operation in batch)
        if not of_a_table or after:
            real(store, batch)
        if of_a_table:
            patch.undo()
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(kind, "_apply", apply)
        yield


def ids(lake: Lake) -> list[int]:
    """The ids that another client reads, through another server that has cached nothing."""
    with lake.served() as location, AirportClient(location, "managed") as other:
        return sorted(other.scan("s.t").read_all()["id"].to_pylist())


def warehouse_files(lake: Lake) -> set[Path]:
    return {path for path in lake.folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_files_are_kept_if_the_commit_took_effect(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch, change: Change, expected: list[int]
) -> None:
    with (
        failing(lake, monkeypatch, Unavailable("the connection was lost"), after=True),
        pytest.raises(Unavailable),
    ):
        change(db)
    assert ids(lake) == expected


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES)
def test_files_are_deleted_if_the_commit_was_certainly_rejected(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch, change: Change, expected: list[int]
) -> None:
    del expected
    before = warehouse_files(lake)
    with (
        failing(lake, monkeypatch, PreconditionFailed("the store is read-only"), after=False),
        pytest.raises(PreconditionFailed),
    ):
        change(db)
    assert (ids(lake), warehouse_files(lake)) == ([1, 2, 3], before)
