"""One declaration per kind of resource: its message, its canonical key, and the other keys it is found by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from skiway.metastore import keys
from skiway.model import v1

__all__ = [
    "ACCOUNT",
    "CATALOG",
    "COLUMN_STATS",
    "CONNECTOR",
    "FILE_STATS",
    "IDEMPOTENCY",
    "JOB",
    "KINDS",
    "NAMESPACE",
    "SNAPSHOT",
    "TABLE",
    "TABLE_STATS",
    "VIEW",
    "Kind",
]

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Kind(Generic[M]):
    """What a repository must know: the messages of a kind, and where their pointers are.

    `title` is what a message calls the resource. `names` are the keys beside the canonical one; each is unique.
    """

    noun: str
    message: type[M]
    title: Callable[[M], str]
    key: Callable[[M], str]
    names: Callable[[M], tuple[str, ...]] = lambda _: ()


def _namespace_names(of: v1.Namespace) -> tuple[str, ...]:
    account, catalog, path = of.resource_id.account_id, of.catalog_id.id, (*of.parents, of.display_name)
    return keys.namespace_path(account, catalog, path), keys.namespace_level(account, catalog, path)


def _table_names(of: v1.Table) -> tuple[str, ...]:
    place = of.resource_id.account_id, of.namespace_id.id, of.display_name
    return keys.table_name(*place), keys.relation_name(*place)


def _view_names(of: v1.View) -> tuple[str, ...]:
    place = of.resource_id.account_id, of.namespace_id.id, of.display_name
    return keys.view_name(*place), keys.relation_name(*place)


def _snapshot_names(of: v1.Snapshot) -> tuple[str, ...]:
    # No time sorts oldest.
    micros = of.upstream_created_at.ToMicroseconds()
    return (keys.snapshot_time(of.table_id.account_id, of.table_id.id, micros, of.snapshot_id),)


def _statistics_key(of: str) -> Callable[[v1.TableStats | v1.ColumnStatsSet | v1.FileStatsSet], str]:
    return lambda stats: keys.statistics(stats.table_id.account_id, stats.table_id.id, stats.snapshot_id, of=of)


def _statistics_title(stats: v1.TableStats | v1.ColumnStatsSet | v1.FileStatsSet) -> str:
    return f"{stats.table_id.id}@{stats.snapshot_id}"


ACCOUNT = Kind(
    "account",
    v1.Account,
    title=lambda of: of.display_name,
    key=lambda of: keys.account(of.resource_id.id),
    names=lambda of: (keys.account_name(of.display_name),),
)
CATALOG = Kind(
    "catalog",
    v1.Catalog,
    title=lambda of: of.display_name,
    key=lambda of: keys.catalog(of.resource_id.account_id, of.resource_id.id),
    names=lambda of: (keys.catalog_name(of.resource_id.account_id, of.display_name),),
)
NAMESPACE = Kind(
    "namespace",
    v1.Namespace,
    title=lambda of: ".".join((*of.parents, of.display_name)),
    key=lambda of: keys.namespace(of.resource_id.account_id, of.resource_id.id),
    names=_namespace_names,
)
TABLE = Kind(
    "table",
    v1.Table,
    title=lambda of: of.display_name,
    key=lambda of: keys.table(of.resource_id.account_id, of.resource_id.id),
    names=_table_names,
)
VIEW = Kind(
    "view",
    v1.View,
    title=lambda of: of.display_name,
    key=lambda of: keys.view(of.resource_id.account_id, of.resource_id.id),
    names=_view_names,
)
SNAPSHOT = Kind(
    "snapshot",
    v1.Snapshot,
    title=lambda of: str(of.snapshot_id),
    key=lambda of: keys.snapshot(of.table_id.account_id, of.table_id.id, of.snapshot_id),
    names=_snapshot_names,
)
TABLE_STATS = Kind("table_stats", v1.TableStats, title=_statistics_title, key=_statistics_key("table"))
COLUMN_STATS = Kind("column_stats", v1.ColumnStatsSet, title=_statistics_title, key=_statistics_key("columns"))
FILE_STATS = Kind("file_stats", v1.FileStatsSet, title=_statistics_title, key=_statistics_key("files"))
CONNECTOR = Kind(
    "connector",
    v1.Connector,
    title=lambda of: of.display_name,
    key=lambda of: keys.connector(of.resource_id.account_id, of.resource_id.id),
    names=lambda of: (keys.connector_name(of.resource_id.account_id, of.display_name),),
)
JOB = Kind("job", v1.Job, title=lambda of: of.job_id, key=lambda of: keys.job(of.account_id, of.job_id))
IDEMPOTENCY = Kind(
    "idempotency",
    v1.IdempotencyRecord,
    title=lambda of: of.key,
    key=lambda of: keys.idempotency(of.account_id, of.operation, of.key),
)

KINDS = (
    ACCOUNT,
    CATALOG,
    NAMESPACE,
    TABLE,
    VIEW,
    SNAPSHOT,
    TABLE_STATS,
    COLUMN_STATS,
    FILE_STATS,
    CONNECTOR,
    JOB,
    IDEMPOTENCY,
)
