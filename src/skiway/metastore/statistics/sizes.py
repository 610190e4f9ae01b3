"""Tables with their sizes: one call instead of one for each table, for those who show many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skiway.errors import PreconditionFailed
from skiway.metastore.records.damage import explaining_damage
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables
from skiway.metastore.resources.snapshots import current_id
from skiway.metastore.statistics.api import is_row_bound, table_statistics
from skiway.model import v1

__all__ = ["list_tables", "size_of"]


def list_tables(realm: Realm, request: v1.ListTablesRequest) -> v1.ListTablesResponse:
    """List the tables of a namespace by name; with their sizes, if the request asks for them."""
    response = tables.list_(realm, request)
    if request.with_sizes:
        response.sizes.extend(_sizes(realm, response.tables))
    return response


def _sizes(realm: Realm, found: Iterable[v1.Table]) -> Iterator[v1.TableSize]:
    """The known sizes."""
    return filter(None, (size_of(realm, table) for table in found))


def size_of(realm: Realm, table: v1.Table) -> v1.TableSize | None:
    """The size of a table, or what is wrong with its statistics; None if it has none.

    A size counts all rows, so the repository hides it from callers under a row filter.
    """
    if table.damage:
        return None
    try:
        with explaining_damage("statistics of table", table.resource_id.id):
            snapshot_id = current_id(realm, table.resource_id.id)
            stats = None if snapshot_id is None else table_statistics(realm, table.resource_id.id, snapshot_id)
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
        return v1.TableSize(table_id=table.resource_id, damage=error.message)
    if stats is None:
        return None
    return v1.TableSize(
        table_id=table.resource_id,
        snapshot_id=stats.snapshot_id,
        row_count=stats.row_count,
        data_file_count=stats.data_file_count,
        total_size_bytes=stats.total_size_bytes,
        row_count_is_bound=is_row_bound(stats),
    )
