"""Managed tables as seen through both doors of a server, and the files that their metadata refers to according to PyIceberg."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from faults.deployments import Deployment
from runtime.servers import eventually
from skiway.client import AirportClient

SCHEMA = pa.schema({"id": pa.int64(), "word": pa.string()})

State = dict[str, list[dict[str, Any]]]
"""The rows of each table, sorted by id."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Clients for both doors to the tables, Airport and REST."""

    db: AirportClient
    catalog: RestCatalog

    def state(self) -> State:
        """All tables with their rows, which must be the same through both doors."""
        listed = {".".join(name) for name in self.catalog.list_tables("s")}
        eventually(lambda: self._tables_of_airport() == listed)  # listings may be up to a second old
        by_airport = {name: _sorted_rows(self.db.scan(name).read_all()) for name in listed}
        by_rest = {name: _sorted_rows(self.catalog.load_table(name).scan().to_arrow()) for name in listed}
        assert by_airport == by_rest
        return by_rest

    def _tables_of_airport(self) -> set[str]:
        self.db.reload()
        return {f"s.{table.name}" for schema in self.db.schemas() if schema.name == "s" for table in schema.tables}

    def referenced_files(self) -> set[str]:
        """Every file that the metadata of any table refers to, for any of its snapshots."""
        tables = map(self.catalog.load_table, self.catalog.list_tables("s"))
        return {uri.removeprefix("file://") for table in tables for uri in _files_referenced_by(table)}


@contextmanager
def connected(addresses: dict[str, str]) -> Iterator[Doors]:
    """New clients for both doors of a server."""
    with (
        AirportClient(addresses["airport"], catalog="lake") as db,
        closing(RestCatalog("lake", uri=f"{addresses['http']}/iceberg", warehouse="lake")) as catalog,
    ):
        yield Doors(db, catalog)


def rows(*ids: int, word: str = "old") -> pa.Table:
    return pa.table({"id": ids, "word": [f"{word} {number}" for number in ids]}, schema=SCHEMA)


def stored_files(deployment: Deployment) -> set[str]:
    """All files in the warehouse, which a server may be changing: folders that vanish meanwhile count as empty."""
    walked = os.walk(deployment.warehouse.root.path)
    return {f"{folder}/{name}" for folder, _, names in walked for name in names}


@dataclass(frozen=True, slots=True)
class SavedDeployment:
    """A copy of a deployment, which is restored in place, since files refer to each other by absolute path."""

    deployment: Deployment
    copy: Path

    @classmethod
    def of(cls, deployment: Deployment) -> SavedDeployment:
        copy = deployment.folder.with_name(f"{deployment.folder.name}-saved")
        shutil.copytree(deployment.folder, copy, ignore=shutil.ignore_patterns("server-*"))
        return cls(deployment, copy)

    def restore(self) -> Deployment:
        shutil.rmtree(self.deployment.folder)
        shutil.copytree(self.copy, self.deployment.folder)
        return self.deployment


def _sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.select(SCHEMA.names).to_pylist(), key=lambda row: row["id"])


def _files_referenced_by(table: Table) -> Iterator[str]:
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    yield from (each.statistics_path for each in table.metadata.statistics)
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
