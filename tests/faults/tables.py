"""Managed tables behind the doors of a server, and what their metadata names, as PyIceberg reads it."""

from __future__ import annotations

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
"""The rows of each table, in order."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Both ways to the tables."""

    db: AirportClient
    catalog: RestCatalog

    def state(self) -> State:
        """What there is, which must be the same by whichever door it is read."""
        seen = {".".join(name) for name in self.catalog.list_tables("s")}
        eventually(lambda: self._listed() == seen)  # a listing may be a second old
        by_airport = {name: _in_order(self.db.scan(name).read_all()) for name in seen}
        by_rest = {name: _in_order(self.catalog.load_table(name).scan().to_arrow()) for name in seen}
        assert by_airport == by_rest
        return by_rest

    def _listed(self) -> set[str]:
        self.db.reload()
        return {f"s.{table.name}" for schema in self.db.schemas() if schema.name == "s" for table in schema.tables}

    def named_files(self) -> set[str]:
        """Every file that the metadata of some table names, for any of its snapshots."""
        tables = map(self.catalog.load_table, self.catalog.list_tables("s"))
        return {uri.removeprefix("file://") for table in tables for uri in _named_by(table)}


@contextmanager
def entered(addresses: dict[str, str]) -> Iterator[Doors]:
    """The doors of a server, as a new client finds them."""
    with (
        AirportClient(addresses["airport"], catalog="lake") as db,
        closing(RestCatalog("lake", uri=f"{addresses['http']}/iceberg", warehouse="lake")) as catalog,
    ):
        yield Doors(db, catalog)


def rows(*ids: int, word: str = "old") -> pa.Table:
    return pa.table({"id": ids, "word": [f"{word} {number}" for number in ids]}, schema=SCHEMA)


def stored_files(deployment: Deployment) -> set[str]:
    """All files in the warehouse."""
    return {str(path) for path in Path(deployment.warehouse.root.path).rglob("*") if path.is_file()}


@dataclass(frozen=True, slots=True)
class Saved:
    """A ground as it was, to begin from again: files name others by their places, so they must be at the same."""

    deployment: Deployment
    copy: Path

    @classmethod
    def of(cls, deployment: Deployment) -> Saved:
        copy = deployment.folder.with_name(f"{deployment.folder.name}-saved")
        shutil.copytree(deployment.folder, copy, ignore=shutil.ignore_patterns("server-*"))
        return cls(deployment, copy)

    def restored(self) -> Deployment:
        shutil.rmtree(self.deployment.folder)
        shutil.copytree(self.copy, self.deployment.folder)
        return self.deployment


def _in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.select(SCHEMA.names).to_pylist(), key=lambda row: row["id"])


def _named_by(table: Table) -> Iterator[str]:
    yield table.metadata_location
    yield from (each.metadata_file for each in table.metadata.metadata_log)
    yield from (each.statistics_path for each in table.metadata.statistics)
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            yield manifest.manifest_path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
