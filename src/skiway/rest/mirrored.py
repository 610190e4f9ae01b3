"""Tables of connectors, as far as they are Iceberg tables: served to be read, and as they are upstream.

Tables of other formats have no metadata that a client of Iceberg could read. They are not listed, and asking for one is
answered with 404 and the reason.
"""

from __future__ import annotations

from typing import Protocol

from skiway.errors import NotFound
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.source import TableHandle
from skiway.metastore import Realm
from skiway.model import v1

__all__ = ["Mirrors", "is_served", "opened", "require_served"]


class Mirrors(Protocol):
    """Opens tables of connectors."""

    def __call__(self, realm: Realm, table: v1.Table, /) -> TableHandle:
        """The table as its source has it."""


def is_served(table: v1.Table, *, mirrors: Mirrors | None) -> bool:
    """Whether a client of Iceberg can read the table."""
    return bool(table.metadata_location) or (mirrors is not None and table.upstream.format == v1.TF_ICEBERG)


def require_served(table: v1.Table, *, mirrors: Mirrors | None) -> v1.Table:
    """The table, or an error that it is none for clients of Iceberg."""
    if not is_served(table, mirrors=mirrors):
        named = v1.TableFormat.Name(table.upstream.format).removeprefix("TF_").lower()
        found = f"of format {named}" if table.upstream.format else "without files"
        raise NotFound(
            f"there is a table {table.display_name}, but it is {found}, which cannot be read as Iceberg: attach this "
            "server in DuckDB by its Airport address instead",
            key="table.not_iceberg",
            display_name=table.display_name,
        )
    return table


def opened(realm: Realm, table: v1.Table, *, mirrors: Mirrors | None) -> IcebergTable:
    """The table as it is upstream."""
    handle = None if mirrors is None else mirrors(realm, table)
    if not isinstance(handle, IcebergTable):
        raise NotFound(
            f"table {table.display_name} is recorded as an Iceberg table, but its source has it in another format: "
            "synchronise its connector",
            key="table.not_iceberg",
            display_name=table.display_name,
        )
    return handle
