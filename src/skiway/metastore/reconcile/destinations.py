"""The tables of an upstream that a connector mirrors, and the namespace and name of each here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from skiway.errors import Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.formats import Source, TableName
from skiway.metastore.connectors.api import selects
from skiway.metastore.reconcile.mirroring import mirrored_tables
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CONNECTOR, TABLE
from skiway.metastore.records.names import dotted, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import retrying
from skiway.metastore.resources import hierarchy, namespaces
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

__all__ = ["Destinations", "MirrorTarget", "store_destination_ids"]


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """A table upstream, and the namespace and name it gets here."""

    source: TableName
    namespace: tuple[str, ...]
    name: str

    def existing(self, realm: Realm, catalog_id: v1.ResourceId) -> v1.ResourceId | None:
        """The id of the destination namespace, if it exists."""
        found = namespaces.lookup(realm, catalog_id, self.namespace)
        return None if found is None else found.resource_id


@dataclass(slots=True)
class Destinations:
    """The destinations of a connector's tables in the scope of a job."""

    realm: Realm
    connector: v1.Connector
    scope: v1.JobScope
    resolved: list[MirrorTarget] = field(default_factory=list, init=False)

    def targets(self, source: Source) -> list[MirrorTarget]:
        """All destinations.

        Raise `NotFound` if there are none, because a filter that matches nothing is most likely misspelled.
        """
        chosen = list(self._chosen(source))
        if not chosen:
            raise self._nothing("the connector selects no table of its upstream", "connector.tables.none")
        if len(chosen) > 1 and self._own_name():
            raise InvalidArgument(
                f"connector {self.connector.display_name} has one destination table but selects {len(chosen)} tables:"
                " remove destination.table, or set source.table",
                key="connector.destination.table.many",
                field="destination.table_display_name",
            )
        self.resolved = [target for target in map(self._aim, chosen) if self._in_scope(target)]
        if not self.resolved:
            raise self._nothing("no table of the connector is in the requested scope", "scope.unmatched")
        return self.resolved

    @property
    def is_single(self) -> bool:
        """Whether the connector mirrors a single table."""
        return self.connector.source.HasField("table")

    def base(self) -> tuple[str, ...]:
        """The namespace below which all tables are mirrored; empty if they keep their upstream namespaces."""
        to = self.connector.destination
        if to.HasField("namespace_id"):
            return full_path(hierarchy.namespace(self.realm, to.namespace_id, field="destination.namespace_id").value)
        return tuple(to.namespace.segments) or self._source_path

    def _chosen(self, source: Source) -> Iterator[TableName]:
        wanted = self.connector.source
        for namespace in [self._source_path] if self._source_path else source.namespaces():
            for name in source.tables(namespace):
                if selects(wanted, namespace, name):
                    yield TableName(namespace, name)

    def _aim(self, table: TableName) -> MirrorTarget:
        below = table.namespace[len(self._source_path) :]
        path = tuple(map(normal_text, (*self.base(), *below))) or (self.connector.display_name,)
        own = self._by_table(table)
        name = own.table_display_name or self._own_name() or normal_text(table.name)
        return MirrorTarget(table, tuple(own.namespace.segments) or path, name)

    def _by_table(self, table: TableName) -> v1.TableDestination:
        """The destination of this table in `destination.tables`; the full name takes precedence over the plain one."""
        by_source = {each.source: each for each in self.connector.destination.tables}
        return by_source.get(str(table)) or by_source.get(table.name) or v1.TableDestination()

    def _own_name(self) -> str:
        to = self.connector.destination
        if to.HasField("table_id"):
            key = keys.table(self.realm.account_id, to.table_id.id)
            found = self.realm.all(TABLE).find(key)
            return found.value.display_name if found else ""
        return to.table_display_name

    def _in_scope(self, target: MirrorTarget) -> bool:
        paths = [tuple(each.segments) for each in self.scope.namespaces]
        return (not paths or target.namespace in paths) and self.scope.table in ("", target.name)

    @property
    def _source_path(self) -> tuple[str, ...]:
        return tuple(self.connector.source.namespace.segments)

    def _nothing(self, what: str, key: str) -> NotFound:
        name = self.connector.display_name
        names = [dotted(each.segments) for each in self.scope.namespaces] + [self.scope.table]
        requested = ", ".join(filter(None, names))
        return NotFound(
            f"{what} (connector {name}{f', requested: {requested}' if requested else ''}): check names and filters",
            key=key,
            name=name,
        )


def store_destination_ids(realm: Realm, connector: v1.Connector, destinations: Destinations) -> None:
    """Store the ids of the destinations that exist now, so that they may be renamed."""
    catalog_id = connector.destination.catalog_id
    base = destinations.base()
    if not base or not destinations.resolved:
        return
    namespace = namespaces.lookup(realm, catalog_id, base)
    if namespace is None:
        return
    table_id = _table_id(realm, connector, destinations, namespace) if destinations.is_single else None

    def edit(record: v1.Connector) -> None:
        if record.destination != connector.destination:
            return  # changed meanwhile: the ids belong to the old destination
        record.destination.namespace_id.CopyFrom(namespace.resource_id)
        record.destination.ClearField("namespace")
        if table_id is not None:
            record.destination.table_id.CopyFrom(table_id)
            record.destination.ClearField("table_display_name")

    def attempt() -> None:
        key = keys.connector(realm.account_id, connector.resource_id.id)
        try:
            updates.update(realm, realm.all(CONNECTOR), key, name=key, precondition=v1.Precondition(), edit=edit)
        except PreconditionFailed:
            raise failure(Contention, "store.contended", what=f"connector {connector.display_name}") from None

    retrying(attempt)


def _table_id(
    realm: Realm, connector: v1.Connector, destinations: Destinations, namespace: v1.Namespace
) -> v1.ResourceId | None:
    (target, *_) = destinations.resolved
    found = mirrored_tables(realm, namespace.resource_id.id, connector.resource_id.id)
    table = found.get((*target.source.namespace, target.source.name))
    return None if table is None else table.resource_id
