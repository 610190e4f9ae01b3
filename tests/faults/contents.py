"""The contents of a store, read from raw pointers and blobs: to compare states, and to find what gc may remove."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from metastore.integrity import damage, kind_of
from skiway.metastore.records import keys
from skiway.metastore.statistics import file_table
from skiway.model import v1
from skiway.storage import Pointer, Stores

VOLATILE = ("created_at", "updated_at", "ingested_at", "puts")
"""Fields that record when something happened; `puts` are idempotency keys with their times."""
PLATFORM = "/platform/"


def integrity_errors(stores: Stores) -> list[str]:
    """A description of every inconsistency in the store."""
    return [each for each in damage(stores) if not each.startswith(PLATFORM)]


def resources(stores: Stores) -> list[str]:
    """Every reachable resource as text, without ids and times, since a repeated call creates new ones."""
    return sorted(_texts(stores))


def ids(stores: Stores) -> set[str]:
    """The ids of all resources that have one."""
    return {pointer.key.rpartition("/")[2] for pointer in _reachable(stores) if "/by-id/" in pointer.key}


def orphaned_keys(stores: Stores) -> set[str]:
    """The keys of snapshots and statistics whose table no longer exists."""
    found = {pointer.key for pointer in stores.pointers.scan("/accounts/")}
    return {key for key in found if keys.table_of(key) not in (None, *found)}


def blobs(stores: Stores) -> set[str]:
    """The URIs of all blobs."""
    return {head.uri for head in stores.blobs.scan()}


def referenced_blobs(stores: Stores) -> set[str]:
    """The URIs of all blobs that a pointer refers to."""
    return {pointer.blob_uri for pointer in stores.pointers.scan("/accounts/") if "/" in pointer.blob_uri}


def _reachable(stores: Stores) -> list[Pointer]:
    orphaned = orphaned_keys(stores)
    found = stores.pointers.scan("/accounts/")
    found = (each for each in found if "/idempotency/" not in each.key and "/snapshots/profiles/" not in each.key)
    return [each for each in found if each.key not in orphaned]


def _texts(stores: Stores) -> Iterator[str]:
    for pointer in _reachable(stores):
        if keys.is_current(pointer.key):
            yield f"current {pointer.blob_uri}"
        elif keys.owner(pointer) == pointer.key:
            kind = kind_of(pointer.key)
            yield f"{kind.noun} {_stable_text(kind.message.FromString(stores.blobs.get(pointer.blob_uri)))}"


def _stable_text(message: Any) -> str:
    for field, value in message.ListFields():
        if field.name in VOLATILE:
            message.ClearField(field.name)
        elif isinstance(value, v1.ResourceId):
            value.ClearField("id")
        elif isinstance(value, v1.ConnectorAuth):
            value.ClearField("secret_id")
        elif field.name == "arrow_file":
            files = file_table.opened(value).select(["file_path", "row_count"])
            message.arrow_file = repr(files.to_pylist()).encode()
        elif field.name == "columns":
            for column in value:
                _stable_text(column)
    return str(message)
