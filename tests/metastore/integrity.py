"""Check the integrity of a store by its raw pointers and blobs, without the metastore's own code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skiway.metastore.records.kinds import KINDS
from skiway.storage import Pointer, Stores

# Pointers whose value is not the URI of a blob.
PLAIN = (
    "/automatic-profiles/",
    "/branches/",
    "/closing/",
    "/dropped/",
    "/events/",
    "/expected/",
    "/exports/",
    "/folders/",
    "/history/",
    "/pins/",
    "/pipeline-schedule/",
    "/places/",
    "/plans/",
    "/platform/sessions/",
    "/query-history/",
    "/reports/",
    "/schedule/",
    "/secrets/",
    "/usage/",
    "/webhooks/",
    "/written/",
)


def damage(stores: Stores) -> list[str]:
    """A description of every inconsistency between pointers, and between pointers and blobs."""
    return list(_damage(stores, {pointer.key: pointer for pointer in stores.pointers.scan()}))


def _damage(stores: Stores, pointers: dict[str, Pointer]) -> Iterator[str]:
    for key, pointer in pointers.items():
        if (
            key.startswith(PLAIN)
            or key.endswith("/snapshots/current")
            or "/snapshots/profiles/" in key
            or "/branches/bases/" in key
        ):
            continue
        canonical = "/" + pointer.blob_uri.rsplit("/", 2)[0]
        if canonical not in pointers:
            yield f"{key} refers to {canonical}, which does not exist"
        elif pointers[canonical].blob_uri != pointer.blob_uri:
            yield f"{key} refers to another blob than {canonical}"
        elif key == canonical:
            yield from _missing_names(stores, pointers, pointer)


def _missing_names(stores: Stores, pointers: dict[str, Pointer], pointer: Pointer) -> Iterator[str]:
    data = stores.blobs.get(pointer.blob_uri)
    kind = kind_of(pointer.key)
    value = kind.message.FromString(data)
    if kind.key(value) != pointer.key:
        yield f"{pointer.key} holds the blob of {kind.key(value)}"
    for name in kind.names(value):
        if name not in pointers:
            yield f"{pointer.key} has no pointer {name}"


def kind_of(canonical: str) -> Any:
    """The kind of the resource with this canonical key."""
    parts = canonical.split("/")
    match parts[1:]:
        case ["accounts", "by-id", _]:
            noun = "account"
        case [*_, "snapshots", "by-id", _]:
            noun = "snapshot"
        case [*_, "stats", of]:
            noun = {"table": "table_stats", "columns": "column_stats", "files": "file_stats"}[of]
        case [*_, "idempotency", _, _]:
            noun = "idempotency"
        case [*_, "grants", "by-object", _, _]:
            noun = "grant"
        case [*_, "branches", "by-id", _]:
            noun = "branch"
        case [*_, "policies", "by-id", _]:
            noun = "policy"
        case [*_, "column-tags", "by-table", _]:
            noun = "column_tags"
        case [*_, "job-logs", "by-job", _]:
            noun = "job_log"
        case [*_, "rule-results", "by-rule", _]:
            noun = "rule_results"
        case [*_, plural, "by-id", _]:
            noun = plural.removesuffix("s")
        case _:
            raise AssertionError(f"{canonical} is not a canonical key")
    return next(kind for kind in KINDS if kind.noun == noun)
