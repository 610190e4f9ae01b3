"""The layout of the pointers: one function per key.

Each resource has one key by id, its canonical one, and some by name or place; all carry the address of the same blob.
The blobs of a resource are in the folder named after its canonical key, so every blob tells whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from skiway.metastore.records.names import encoded, folded
from skiway.storage import Pointer

__all__ = [
    "account",
    "account_name",
    "catalog",
    "catalog_name",
    "closing",
    "connector",
    "connector_name",
    "current_snapshot",
    "folder",
    "idempotency",
    "is_current",
    "is_plain",
    "job",
    "job_active",
    "job_leased",
    "job_listing",
    "job_ready",
    "lease",
    "lease_active",
    "namespace",
    "namespace_fold",
    "namespace_level",
    "namespace_path",
    "of_account",
    "of_table",
    "owner",
    "pin",
    "queue_time",
    "relation_name",
    "secret",
    "snapshot",
    "snapshot_time",
    "statistics",
    "table",
    "table_name",
    "table_of",
    "view",
    "view_name",
]

MAX = 2**63 - 1


def folder(key: str) -> str:
    """Where the blobs of the resource with this canonical key are."""
    return key.removeprefix("/")


def owner(pointer: Pointer) -> str:
    """The canonical key of the resource whose blob the pointer names."""
    return "/" + pointer.blob_uri.rsplit("/", 2)[0]


def closing(key: str) -> str:
    """The marker that nothing may be put into the resource with this canonical key; absent most of the time."""
    return f"/closing{key}"


def is_plain(key: str) -> bool:
    """Whether the pointer at this key belongs to no resource: it says something itself, or expires by itself."""
    return not key.startswith(("/accounts/", "/queue/")) or key.split("/")[3:4] == ["idempotency"]


def table_of(key: str) -> str | None:
    """The canonical key of the table that a snapshot's or statistics' key belongs to; None for other keys."""
    parts = key.split("/")
    if len(parts) < 6 or parts[3] != "tables" or parts[5] != "snapshots":
        return None
    return "/".join((*parts[:4], "by-id", parts[4]))


def of_account(account_id: str) -> str:
    """What all keys of an account begin with, except its own."""
    return f"/accounts/{encoded(account_id)}/"


def account(account_id: str) -> str:
    return f"/accounts/by-id/{encoded(account_id)}"


def account_name(name: str = "") -> str:
    """Without a name: what the keys of all accounts begin with. So with the others below."""
    return f"/accounts/by-name/{encoded(name)}"


def catalog(account_id: str, catalog_id: str) -> str:
    return f"{of_account(account_id)}catalogs/by-id/{encoded(catalog_id)}"


def catalog_name(account_id: str, name: str = "") -> str:
    return f"{of_account(account_id)}catalogs/by-name/{encoded(name)}"


def namespace(account_id: str, namespace_id: str) -> str:
    return f"{of_account(account_id)}namespaces/by-id/{encoded(namespace_id)}"


def namespace_path(account_id: str, catalog_id: str, path: Sequence[str] = ()) -> str:
    """Followed by a slash, what the keys of all namespaces below `path` begin with."""
    return "/".join((f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/namespaces/by-path", *map(encoded, path)))


def namespace_level(account_id: str, catalog_id: str, path: Sequence[str], *, depth: int | None = None) -> str:
    """A namespace among those of the same depth: followed by a slash, the path of a parent at the depth of its children
    is what the keys of just these children begin with.
    """
    level = len(path) if depth is None else depth
    base = f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/namespaces/by-depth/{level}"
    return "/".join((base, *map(encoded, path)))


def namespace_fold(account_id: str, catalog_id: str, path: Sequence[str]) -> str:
    """One key for all paths that differ in case only; namespaces of managed catalogs claim it."""
    base = f"{of_account(account_id)}catalogs/{encoded(catalog_id)}/namespaces/by-fold"
    return "/".join((base, *(encoded(folded(segment)) for segment in path)))


def table(account_id: str, table_id: str) -> str:
    return f"{of_account(account_id)}tables/by-id/{encoded(table_id)}"


def table_name(account_id: str, namespace_id: str, name: str = "") -> str:
    return f"{_in_namespace(account_id, namespace_id)}tables/by-name/{encoded(name)}"


def view(account_id: str, view_id: str) -> str:
    return f"{of_account(account_id)}views/by-id/{encoded(view_id)}"


def view_name(account_id: str, namespace_id: str, name: str = "") -> str:
    return f"{_in_namespace(account_id, namespace_id)}views/by-name/{encoded(name)}"


def relation_name(account_id: str, namespace_id: str, name: str = "") -> str:
    """Tables and views share one space of names: both claim this key."""
    return f"{_in_namespace(account_id, namespace_id)}relations/by-name/{encoded(name)}"


def of_table(account_id: str, table_id: str) -> str:
    """What all keys of a table's snapshots and statistics begin with."""
    return f"{of_account(account_id)}tables/{encoded(table_id)}/"


def snapshot(account_id: str, table_id: str, snapshot_id: int) -> str:
    return f"{of_table(account_id, table_id)}snapshots/by-id/{snapshot_id:019d}"


def snapshot_time(account_id: str, table_id: str, moment_micros: int | None = None, snapshot_id: int = MAX) -> str:
    """Newest first: both numbers are counted down. Without a snapshot, what sorts right before all of that moment."""
    prefix = f"{of_table(account_id, table_id)}snapshots/by-time/"
    if moment_micros is None:
        return prefix
    return f"{prefix}{MAX - moment_micros:019d}-{MAX - snapshot_id:019d}"


def current_snapshot(account_id: str, table_id: str) -> str:
    """Holds the id of the current snapshot, not a blob's address."""
    return f"{of_table(account_id, table_id)}snapshots/current"


def is_current(key: str) -> bool:
    """Whether this is the key that tells a table's current snapshot."""
    return key.endswith("/snapshots/current")


def statistics(account_id: str, table_id: str, snapshot_id: int, *, of: str) -> str:
    return f"{of_table(account_id, table_id)}snapshots/{snapshot_id:019d}/stats/{of}"


def connector(account_id: str, connector_id: str) -> str:
    return f"{of_account(account_id)}connectors/by-id/{encoded(connector_id)}"


def connector_name(account_id: str, name: str = "") -> str:
    return f"{of_account(account_id)}connectors/by-name/{encoded(name)}"


def secret(account_id: str, connector_id: str, secret_id: str = "") -> str:
    """The marker that there may be a secret of this id; it holds when it was set, not a blob's address."""
    return f"/secrets/{encoded(account_id)}/{encoded(connector_id)}/{encoded(secret_id)}"


def job(account_id: str, job_id: str = "") -> str:
    return f"{of_account(account_id)}jobs/by-id/{encoded(job_id)}"


def job_active(account_id: str, digest: str) -> str:
    """Taken by the job that does this work, as long as it is not over."""
    return f"{of_account(account_id)}jobs/active/{digest}"


def job_listing(
    account_id: str, *, connector_id: str = "", state: int = 0, created_micros: int | None = None, job_id: str = ""
) -> str:
    """Newest first, of one connector or all, in one state or any. Without a time, what such keys begin with."""
    whose = f"of-connector/{encoded(connector_id)}" if connector_id else "all"
    prefix = f"{of_account(account_id)}jobs/{whose}/{state or 'any'}/"
    return prefix if created_micros is None else f"{prefix}{MAX - created_micros:019d}-{encoded(job_id)}"


def job_ready(due_micros: int | None = None, account_id: str = "", job_id: str = "") -> str:
    """Jobs of all accounts that wait, in the order in which they become due."""
    return _in_queue("ready", due_micros, account_id, job_id)


def job_leased(until_micros: int | None = None, account_id: str = "", job_id: str = "") -> str:
    """Jobs of all accounts that run, in the order in which their leases end."""
    return _in_queue("leased", until_micros, account_id, job_id)


def queue_time(key: str) -> int:
    """When the job at a key of the queue becomes due, or its lease ends, in microseconds after 1970."""
    return int(key.split("/")[3])


def lease(account_id: str, query_id: str) -> str:
    """Clients may choose the ids of queries, so their digest stands for them."""
    return f"{of_account(account_id)}leases/by-id/{_digest(query_id)}"


def lease_active(account_id: str, query_id: str | None = None) -> str:
    """Taken by a query that is neither ended nor expired; without one, what all such keys begin with."""
    return f"{of_account(account_id)}leases/active/{'' if query_id is None else _digest(query_id)}"


def pin(uri: str, query_id: str | None = None) -> str:
    """Says that a query reads the blob at `uri`; without a query, what all such keys begin with."""
    return f"/pins/{uri}/{'' if query_id is None else _digest(query_id)}"


def idempotency(account_id: str, operation: str, key: str) -> str:
    """Clients choose keys of any length, so their digest stands for them."""
    scope = of_account(account_id) if account_id else "/platform/"
    return f"{scope}idempotency/{encoded(operation)}/{_digest(key)}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _in_queue(place: str, micros: int | None, account_id: str, job_id: str) -> str:
    prefix = f"/queue/{place}/"
    return prefix if micros is None else f"{prefix}{micros:019d}/{encoded(account_id)}/{encoded(job_id)}"


def _in_namespace(account_id: str, namespace_id: str) -> str:
    return f"{of_account(account_id)}namespaces/{encoded(namespace_id)}/"
