"""The catalog, namespace or table that a path means.

The prefix is a catalog's name. Levels of a namespace are separated by the unit separator, 0x1F.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from skiway.errors import AlreadyExists, NotFound, PermissionDenied
from skiway.metastore import Realm, catalogs, connectors, namespaces, tables
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import dotted, normal_path, normal_text
from skiway.metastore.resources.hierarchy import require_path
from skiway.model import v1
from skiway.rest.calls import Asked

__all__ = [
    "SEPARATOR",
    "catalog",
    "claiming",
    "find_table",
    "levels",
    "named_catalog",
    "namespace",
    "namespace_at",
    "require_managed",
    "table",
    "table_at",
    "writable",
]

SEPARATOR: Final = "\x1f"


def levels(text: str) -> tuple[str, ...]:
    """The levels of a namespace as a path or parameter holds them."""
    return tuple(text.split(SEPARATOR))


def catalog(asked: Asked) -> v1.Catalog:
    """The catalog that the call is about."""
    return named_catalog(asked.realm, asked.names["prefix"])


def named_catalog(realm: Realm, given: str) -> v1.Catalog:
    """The catalog with this name."""
    found = catalogs.find(realm, given)
    if found is None:
        raise failure(NotFound, "catalog.by.name.missing", catalog=normal_text(given))
    return found.value


def writable(asked: Asked) -> v1.Catalog:
    """The catalog that the call changes. What a connector brings in is changed where it comes from."""
    found = catalog(asked)
    if found.connector_ref:
        raise _mirrored(f"catalog {found.display_name}", _connector_name(asked.realm, found.connector_ref))
    return found


def namespace(asked: Asked, of: v1.Catalog) -> v1.Namespace:
    """The namespace that the call is about."""
    return namespace_at(asked.realm, of, levels(asked.names["namespace"]))


def namespace_at(realm: Realm, of: v1.Catalog, path: Sequence[str]) -> v1.Namespace:
    """The namespace at a path."""
    return require_path(realm, of, normal_path(path, field="namespace")).value


def table(asked: Asked, of: v1.Catalog) -> v1.Table:
    """The table that the call is about."""
    return table_at(asked.realm, of, levels(asked.names["namespace"]), asked.names["table"])


def table_at(realm: Realm, of: v1.Catalog, path: Sequence[str], given: str) -> v1.Table:
    """The table with this name, of whatever format.

    Where the namespace is missing, it is the table that is told to be: Spark asks for `a.b.branch_c` to learn whether
    that is a table, and takes only this for a no.
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
    """The table, if it can be changed here."""
    if not found.metadata_location:
        name = _connector_name(realm, found.upstream.connector_id.id)
        raise _mirrored(f"table {found.display_name}", name)
    return found


@contextmanager
def claiming(path: Sequence[str], name: str, *, key: str = "table.already.exists") -> Iterator[None]:
    """A block that makes a table of this name; that the name is taken is told with all of its parts."""
    try:
        yield
    except AlreadyExists as error:
        if error.key != "table.already.exists":  # a view, say
            raise
        raise AlreadyExists(error.message, key=key, resource="table", name=dotted((*path, name))) from error


def _mirrored(what: str, connector: str) -> PermissionDenied:
    whose = f"connector {connector}" if connector else "a source that is not known here"
    return PermissionDenied(
        f"{what} comes from {whose} and can only be read here: change it where it comes from",
        key="table.mirrored",
        connector=connector,
    )


def _connector_name(realm: Realm, connector_id: str) -> str:
    found = connectors.find(realm, connector_id)
    return found.value.display_name if found else connector_id
