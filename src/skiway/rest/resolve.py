"""Resolve the names in a path to catalogs, namespaces, tables and views.

The prefix is the name of a catalog, and the unit separator 0x1F separates the levels of a namespace. Tables of connectors
are served as they are upstream if they are Iceberg tables. Tables of other formats are exported (see `metastore.exports`), unless
Iceberg clients would read them incorrectly: then loading one fails with 404 and the reason, and it is a generic table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied, Unsupported
from skiway.formats.iceberg.table import IcebergTable
from skiway.metastore import Realm, catalogs, connectors, exports, tables, views
from skiway.metastore.records.damage import damaged_error, explaining_damage
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import dotted, folded, normal_path, normal_text
from skiway.metastore.records.policies import NOT_CHANGED
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import find_path, full_path, require_path
from skiway.model import v1
from skiway.rest.bodies import Identifier, Renaming, decoded
from skiway.rest.calls import NO_CONTENT, Lake, Mirrors, RestRequest, RestResponse

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class Resolver:
    """Finds what a request names in one catalog: by default what its path names, else what its body names."""

    request: RestRequest
    catalog: v1.Catalog

    def namespace(self, path: Sequence[str] | None = None, *, damaged: bool = False) -> v1.Namespace:
        """The namespace; if `damaged`, also one with a damaged record."""
        path = normal_path(self._path(path), field="namespace")
        return require_path(self.request.realm, self.catalog, path, damaged=damaged).value

    def table(self, path: Sequence[str] | None = None, name: str | None = None) -> v1.Table:
        """The table, in any format.

        If the namespace does not exist, the error says that the table does not exist: Spark loads `a.b.branch_c` to find out
        whether it is a table, and expects this error.
        """
        return self._relation("table", tables.lookup, path, name)

    def served_table(self, path: Sequence[str] | None = None, name: str | None = None) -> v1.Table:
        """The table; raises `NotFound` if Iceberg clients cannot read it."""
        return require_served(self.table(path, name), mirrors=self.request.lake.mirrors)

    def managed_table(self, path: Sequence[str] | None = None, name: str | None = None) -> v1.Table:
        """The table; raises `PermissionDenied` if it belongs to a connector."""
        return require_managed(self.request.realm, self.served_table(path, name))

    def find_table(self, namespace: v1.Namespace, name: str) -> v1.Table | None:
        """The table with this name, or None."""
        return tables.lookup(self.request.realm, self.catalog, namespace.resource_id.id, name)

    def view(self, path: Sequence[str] | None = None, name: str | None = None) -> v1.View:
        """The view. As for tables, a missing namespace means that the view does not exist."""
        return self._relation("view", views.lookup, path, name)

    def _path(self, path: Sequence[str] | None) -> Sequence[str]:
        return levels(self.request.names["namespace"]) if path is None else path

    def _relation(
        self,
        kind: str,
        lookup: Callable[[Realm, v1.Catalog, str, str], T | None],
        path: Sequence[str] | None,
        name: str | None,
    ) -> T:
        realm, catalog = self.request.realm, self.catalog
        parent = normal_path(self._path(path), field="namespace")
        text = normal_text(self.request.names[kind] if name is None else name)
        namespace = find_path(realm, catalog, parent, damaged=True)
        with explaining_damage(kind, dotted((*parent, text))):
            relation = lookup(realm, catalog, namespace.value.resource_id.id, text) if namespace else None
        if relation is None:
            key = f"{kind}.by.name.missing"
            raise failure(NotFound, key, resource=kind, catalog=catalog.display_name, path=dotted(parent), name=text)
        return relation


def readable(request: RestRequest) -> Resolver:
    """Resolve in the catalog in the path."""
    return Resolver(request, named_catalog(request.realm, request.names["prefix"]))


def writable(request: RestRequest) -> Resolver:
    """Resolve in the catalog in the path, for a change; catalogs of connectors are read-only."""
    resolver = readable(request)
    catalog = resolver.catalog
    if catalog.damage:
        raise damaged_error("catalog", catalog.display_name, catalog.damage)
    if catalog.connector_ref:
        raise _mirrored(f"catalog {catalog.display_name}", _connector_name(request.realm, catalog.connector_ref))
    return resolver


def named_catalog(realm: Realm, name: str) -> v1.Catalog:
    """The catalog with this name."""
    catalog = catalogs.find(realm, name)
    if catalog is None:
        raise failure(NotFound, "catalog.by.name.missing", catalog=normal_text(name))
    return catalog.value


def require_managed(realm: Realm, table: v1.Table) -> v1.Table:
    """Return the table if it is managed, else raise `PermissionDenied`."""
    if not table.metadata_location:
        name = _connector_name(realm, table.upstream.connector_id.id)
        raise _mirrored(f"table {table.display_name}", name)
    return table


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


def renamed(
    request: RestRequest,
    find: Callable[[Resolver, Sequence[str], str], v1.Table | v1.View],
    rename: Callable[..., object],
) -> RestResponse:
    """Rename the table or view that the body names, or move it; if that fails because another has the name, report that one."""
    wanted = decoded(request.body, Renaming)
    resolver, source, destination = writable(request), wanted.source, wanted.destination
    relation = find(resolver, source.namespace, source.name)
    request.realm.require_unrestricted(relation, why=NOT_CHANGED)
    namespace = resolver.namespace(destination.namespace)
    try:
        rename(request.realm, relation.resource_id, name=destination.name, namespace_id=namespace.resource_id)
    except AlreadyExists as error:
        holder = _holder(request.realm, namespace, destination.name)
        if holder is None:
            raise
        before, after = (dotted((*each.namespace, each.name)) for each in (source, destination))
        raise AlreadyExists(
            f"Cannot rename {before} to {after}. {holder.capitalize()} already exists; choose another name",
            key=f"{holder}.rename.taken",
            resource=holder,
            name=after,
        ) from error
    return NO_CONTENT


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
