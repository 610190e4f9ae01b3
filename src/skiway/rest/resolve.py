"""Resolve the names in a path to catalogs, namespaces, tables and views.

The prefix is the name of a catalog, and the unit separator 0x1F separates the levels of a namespace. Tables of connectors
are served as they are upstream if they are Iceberg tables. Tables of other formats are exported (see `metastore.exports`), unless
Iceberg clients would read them incorrectly: then loading one fails with 404 and the reason, and it is a generic table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied, Unsupported
from skiway.formats.iceberg.table import IcebergTable
from skiway.metastore import Realm, catalogs, connectors, exports, tables, views
from skiway.metastore.records.damage import damaged_error, explaining_damage
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import dotted, folded, normal_path, normal_text
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import find_path, full_path, require_path
from skiway.model import v1
from skiway.rest.bodies import Identifier, Renaming
from skiway.rest.calls import Lake, Mirrors, RestRequest


def is_served(table: v1.Table, *, mirrors: Mirrors | None) -> bool:
    """Whether Iceberg clients can read the table, unless it cannot be exported."""
    if table.metadata_location:
        return True
    if mirrors is None or table.upstream.problem:
        return False
    return table.upstream.format == v1.TF_ICEBERG or exports.is_exportable(table)


def require_served(table: v1.Table, *, mirrors: Mirrors | None) -> v1.Table:
    """Return the table, or raise `NotFound` if Iceberg clients cannot read it."""
    if not is_served(table, mirrors=mirrors):
        raise _not_iceberg(table, table.upstream.problem)
    return table


def opened(realm: Realm, lake: Lake, table: v1.Table) -> IcebergTable:
    """Open a table of a connector: an Iceberg table, or the export of another one. Raises `NotFound` if there is none."""
    if lake.mirrors is None:
        raise _not_iceberg(table, "")
    try:
        found = lake.mirrors(realm, table)
        if isinstance(found.handle, IcebergTable):
            if found.handle.has_variants:
                raise _not_iceberg(table, "it has columns of type variant")
            return found.handle
        if table.upstream.format != v1.TF_ICEBERG:
            return exports.export(realm, lake.warehouse, table, found)
    except Unsupported as error:
        raise _not_iceberg(table, error.message) from error
    raise NotFound(
        f"table {table.display_name} is recorded as an Iceberg table, but its source has it in another format: "
        "synchronise its connector",
        key="table.not_iceberg",
        display_name=table.display_name,
    )


def format_name(table: v1.Table) -> str:
    """The name of the format of a mirrored table."""
    return v1.TableFormat.Name(table.upstream.format).removeprefix("TF_").lower()


def _not_iceberg(table: v1.Table, reason: str) -> NotFound:
    found = f"of format {format_name(table)}" if table.upstream.format else "without files"
    why = f", because {reason.rstrip('.')}" if reason else ""
    return NotFound(
        f"table {table.display_name} is {found} and cannot be read as Iceberg{why}: attach this server in DuckDB "
        "by its Airport address instead",
        key="table.not_iceberg",
        display_name=table.display_name,
    )


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
    where = find_path(realm, of, wanted, damaged=True)
    with explaining_damage("table", dotted((*wanted, name))):
        found = find_table(realm, of, where.value, name) if where else None
    if found is None:
        inside = of.display_name
        raise failure(
            NotFound, "table.by.name.missing", resource="table", catalog=inside, path=dotted(wanted), name=name
        )
    return found


def find_table(realm: Realm, of: v1.Catalog, where: v1.Namespace, given: str) -> v1.Table | None:
    """The table with this name, or None."""
    return tables.lookup(realm, of, where.resource_id.id, given)


def require_managed(realm: Realm, found: v1.Table) -> v1.Table:
    """Return the table if it is managed, else raise `PermissionDenied`."""
    if not found.metadata_location:
        name = _connector_name(realm, found.upstream.connector_id.id)
        raise _mirrored(f"table {found.display_name}", name)
    return found


def view(request: RestRequest, of: v1.Catalog) -> v1.View:
    """The view in the path."""
    return view_at(request.realm, of, levels(request.names["namespace"]), request.names["view"])


def view_at(realm: Realm, of: v1.Catalog, path: Sequence[str], given: str) -> v1.View:
    """The view with this name. As for tables, a missing namespace means that the view does not exist."""
    wanted, name = normal_path(path, field="namespace"), normal_text(given)
    where = find_path(realm, of, wanted, damaged=True)
    with explaining_damage("view", dotted((*wanted, name))):
        found = views.lookup(realm, of, where.value.resource_id.id, name) if where else None
    if found is None:
        inside = of.display_name
        raise failure(NotFound, "view.by.name.missing", resource="view", catalog=inside, path=dotted(wanted), name=name)
    return found


def check_identifier(request: RestRequest, named: Identifier | None, name: str) -> None:
    """Raise if a body names another table or view than the path."""
    path = levels(request.names["namespace"])
    if named is not None and [*map(folded, (*named.namespace, named.name))] != [*map(folded, (*path, name))]:
        found = ".".join((*named.namespace, named.name))
        raise InvalidArgument(
            f"identifier is {found}, but the path names {'.'.join((*path, name))}: send both for the same one",
            key="field.invalid",
            field="identifier",
        )


# --- names of new tables and views ------------------------------------------------------------------------------------


@contextmanager
def claiming(
    realm: Realm, where: v1.Namespace, name: str, *, kind: str = "table", key: str = "table.already.exists"
) -> Iterator[None]:
    """Report an existing table or view with its full name if the block fails to create a `kind` with this name."""
    try:
        yield
    except AlreadyExists as error:
        full = dotted((*full_path(where), name))
        if error.key == f"{kind}.already.exists":
            shown = key if kind == "table" else error.key
            raise AlreadyExists(error.message, key=shown, resource=kind, name=full) from error
        if error.key == "relation.name.already.claimed":
            shown = f"{kind}.already.exists" if _holder(realm, where, name) == kind else f"{kind}.name.taken"
            raise AlreadyExists(error.message, key=shown, resource=kind, name=full) from error
        raise


def require_free(realm: Realm, where: v1.Namespace, name: str, *, kind: str) -> None:
    """Raise `AlreadyExists` if a table or view has the name."""
    found = _holder(realm, where, name)
    if found is not None:
        key = f"{kind}.already.exists" if found == kind else "relation.name.already.claimed"
        raise failure(AlreadyExists, key, resource=kind, name=name)


@contextmanager
def renaming(realm: Realm, where: v1.Namespace, wanted: Renaming) -> Iterator[None]:
    """Report an existing table or view if the block fails to rename one because of it."""
    try:
        yield
    except AlreadyExists as error:
        source = dotted((*wanted.source.namespace, wanted.source.name))
        destination = dotted((*wanted.destination.namespace, wanted.destination.name))
        found = _holder(realm, where, wanted.destination.name)
        if found is None:
            raise
        raise AlreadyExists(
            f"Cannot rename {source} to {destination}. {found.capitalize()} already exists; choose another name",
            key=f"{found}.rename.taken",
            resource=found,
            name=destination,
        ) from error


def _holder(realm: Realm, where: v1.Namespace, name: str) -> str | None:
    """Whether the name, in any case, is that of a table or of a view."""
    everything = Realm(realm.stores, realm.account_id)  # names are taken even if the caller may not see what has them
    of = hierarchy.catalog(everything, where.catalog_id).value
    inside = where.resource_id.id
    if tables.find_any_case(everything, of, inside, name) is not None:
        return "table"
    return "view" if views.find_any_case(everything, of, inside, name) is not None else None


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
