"""Resolve the names in a path to catalogs, namespaces and tables.

The prefix is the name of a catalog, and the unit separator 0x1F separates the levels of a namespace. Tables of connectors
are served as they are upstream if they are Iceberg tables. Tables of other formats have no metadata for Iceberg clients:
they are not listed, and loading one fails with 404 and the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from skiway.errors import AlreadyExists, NotFound, PermissionDenied
from skiway.formats.iceberg.table import IcebergTable
from skiway.metastore import Realm, catalogs, connectors, namespaces, tables
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import dotted, normal_path, normal_text
from skiway.metastore.resources.hierarchy import require_path
from skiway.model import v1
from skiway.rest.calls import Mirrors, RestRequest

__all__ = [
    "SEPARATOR",
    "catalog",
    "claiming",
    "find_table",
    "is_served",
    "levels",
    "named_catalog",
    "namespace",
    "namespace_at",
    "opened",
    "require_managed",
    "require_served",
    "table",
    "table_at",
    "writable",
]


def is_served(table: v1.Table, *, mirrors: Mirrors | None) -> bool:
    """Whether Iceberg clients can read the table."""
    return bool(table.metadata_location) or (mirrors is not None and table.upstream.format == v1.TF_ICEBERG)


def require_served(table: v1.Table, *, mirrors: Mirrors | None) -> v1.Table:
    """Return the table, or raise `NotFound` if Iceberg clients cannot read it."""
    if not is_served(table, mirrors=mirrors):
        named = v1.TableFormat.Name(table.upstream.format).removeprefix("TF_").lower()
        found = f"of format {named}" if table.upstream.format else "without files"
        raise NotFound(
            f"table {table.display_name} is {found} and cannot be read as Iceberg: attach this server in DuckDB "
            "by its Airport address instead",
            key="table.not_iceberg",
            display_name=table.display_name,
        )
    return table


def opened(realm: Realm, table: v1.Table, *, mirrors: Mirrors | None) -> IcebergTable:
    """Open a table of a connector."""
    handle = None if mirrors is None else mirrors(realm, table)
    if not isinstance(handle, IcebergTable):
        raise NotFound(
            f"table {table.display_name} is recorded as an Iceberg table, but its source has it in another format: "
            "synchronise its connector",
            key="table.not_iceberg",
            display_name=table.display_name,
        )
    return handle


SEPARATOR: Final = "\x1f"


def levels(text: str) -> tuple[str, ...]:
    """Split a namespace in a path or parameter into its levels."""
    return tuple(text.split(SEPARATOR))


def catalog(request: RestRequest) -> v1.Catalog:
    """The catalog in the path."""
    return named_catalog(request.realm, request.names["prefix"])


def named_catalog(realm: Realm, given: str) -> v1.Catalog:
    """The catalog with this name."""
    found = catalogs.find(realm, given)
    if found is None:
        raise failure(NotFound, "catalog.by.name.missing", catalog=normal_text(given))
    return found.value


def writable(request: RestRequest) -> v1.Catalog:
    """The catalog in the path, for a change; catalogs of connectors are read-only."""
    found = catalog(request)
    if found.damage:
        raise damaged_error("catalog", found.display_name, found.damage)
    if found.connector_ref:
        raise _mirrored(f"catalog {found.display_name}", _connector_name(request.realm, found.connector_ref))
    return found


def namespace(request: RestRequest, of: v1.Catalog, *, damaged: bool = False) -> v1.Namespace:
    """The namespace in the path; if `damaged`, also one with a damaged record."""
    return namespace_at(request.realm, of, levels(request.names["namespace"]), damaged=damaged)


def namespace_at(realm: Realm, of: v1.Catalog, path: Sequence[str], *, damaged: bool = False) -> v1.Namespace:
    """The namespace at a path; if `damaged`, also one with a damaged record."""
    return require_path(realm, of, normal_path(path, field="namespace"), damaged=damaged).value


def table(request: RestRequest, of: v1.Catalog) -> v1.Table:
    """The table in the path."""
    return table_at(request.realm, of, levels(request.names["namespace"]), request.names["table"])


def table_at(realm: Realm, of: v1.Catalog, path: Sequence[str], given: str) -> v1.Table:
    """The table with this name, in any format.

    If the namespace does not exist, the error says that the table does not exist: Spark loads `a.b.branch_c` to find out
    whether it is a table, and expects this error.
    """
    wanted, name = normal_path(path, field="namespace"), normal_text(given)
    where = namespaces.find(realm, of.resource_id.id, wanted)
    found = find_table(realm, where, name) if where else None
    if found is None:
        inside = of.display_name
        raise failure(
            NotFound, "table.by.name.missing", resource="table", catalog=inside, path=dotted(wanted), name=name
        )
    return found


def find_table(realm: Realm, where: v1.Namespace, given: str) -> v1.Table | None:
    """The table with this name, or None."""
    return tables.find(realm, where.resource_id.id, given)


def require_managed(realm: Realm, found: v1.Table) -> v1.Table:
    """Return the table if it is managed, else raise `PermissionDenied`."""
    if not found.metadata_location:
        name = _connector_name(realm, found.upstream.connector_id.id)
        raise _mirrored(f"table {found.display_name}", name)
    return found


@contextmanager
def claiming(path: Sequence[str], name: str, *, key: str = "table.already.exists") -> Iterator[None]:
    """Report an existing table with its full name if the block fails to create it."""
    try:
        yield
    except AlreadyExists as error:
        if error.key != "table.already.exists":  # a view, say
            raise
        raise AlreadyExists(error.message, key=key, resource="table", name=dotted((*path, name))) from error


def _mirrored(what: str, connector: str) -> PermissionDenied:
    whose = f"connector {connector}" if connector else "an unknown source"
    return PermissionDenied(
        f"{what} belongs to {whose} and is read-only: change it upstream",
        key="table.mirrored",
        connector=connector,
    )


def _connector_name(realm: Realm, connector_id: str) -> str:
    found = connectors.find(realm, connector_id)
    return found.value.display_name if found else connector_id
