"""What the lineage of a copy says: its source, its table, and what it has added."""

from __future__ import annotations

from urllib.parse import urlsplit

from skiway.formats.iceberg.metadata import history, summary_properties
from skiway.metastore.ingest.copying import CopyPlace
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy
from skiway.model import v1
from skiway.telemetry.lineage import Dataset, LineageRun


def describe_copy(
    realm: Realm,
    run: LineageRun,
    connector: v1.Connector,
    place: CopyPlace,
    made: ManagedTable | None,
    before: ManagedTable | None,
) -> None:
    """Add to a run what a load has read and made; nothing if it had nothing to do, so that `made` is None."""
    run.is_quiet = made is None
    if made is None:
        return
    catalog = hierarchy.catalog(realm, made.table.catalog_id).value.display_name
    space = hierarchy.full_path(hierarchy.namespace(realm, made.table.namespace_id).value)
    columns = made.handle.schema.arrow
    run.inputs = [Dataset(place.source, columns, namespace=source_namespace(connector.uri))]
    name, version = ".".join((catalog, *space, made.table.display_name)), str(made.metadata.current_snapshot_id)
    run.output = Dataset(name, columns, version, *_added(made, before))


def source_namespace(uri: str) -> str:
    """The namespace of the tables of a source: its address without user, password and parameters."""
    parts = urlsplit(uri.removeprefix("jdbc:") if "://" in uri else f"file://{uri}")
    address = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    return f"{parts.scheme}://{address}{parts.path}".rstrip("/")


def _added(now: ManagedTable, before: ManagedTable | None) -> tuple[int, int, int]:
    """The rows, bytes and files that a load has added: the sums over its snapshots."""
    known = None if before is None else before.metadata.current_snapshot_id
    found = [0, 0, 0]
    for snapshot in history(now.metadata):
        if snapshot.snapshot_id == known:
            break
        summary = summary_properties(snapshot)
        for place, key in enumerate(("added-records", "added-files-size", "added-data-files")):
            found[place] += int(summary.get(key, 0))
    rows, size, files = found
    return rows, size, files
