"""Object stores on a local disk, for tests of everything except the requests to the services."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from obstore.store import LocalStore, ObjectStore

from skiway.formats import Location, object_stores
from skiway.formats.object_stores import ObjectReader, ObjectStorage, ObjectWriter


def keep_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep buckets of GCS and containers of Azure in `folder`."""

    class OnDisk(ObjectStorage):
        def open(self, place: Location) -> pa.NativeFile:
            return pa.PythonFile(ObjectReader(self.bucket(place.bucket), place.path), "r")

        def create(self, place: Location) -> pa.NativeFile:
            return pa.PythonFile(ObjectWriter(self.bucket(place.bucket), place.path), "w")

        def bucket(self, name: str) -> ObjectStore:
            return LocalStore(str(folder / name), mkdir=True)

    storages = object_stores._STORAGES
    monkeypatch.setattr(object_stores, "_STORAGES", {**storages, "gs": OnDisk, "abfss": OnDisk})
