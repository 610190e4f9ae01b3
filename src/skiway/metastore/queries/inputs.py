"""The inputs of a query: which tables it reads, and in which state.

A view stands for the tables it reads, also through other views; a view that reads itself adds nothing. A table that
occurs several times is read in one state. An explicit state (an id, a time, the current one) takes precedence over the
default. Two explicit states must be the same snapshot, because rows of another state than the requested one would be
wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import VIEW
from skiway.metastore.records.names import dotted
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.resources import directory, hierarchy
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

__all__ = ["Inputs", "Read"]


@dataclass(frozen=True, slots=True)
class Read:
    """A table that is read, and in which state; an empty reference leaves the state open."""

    table_id: v1.ResourceId
    snapshot: v1.SnapshotRef
    by_view: bool


@dataclass(frozen=True, slots=True)
class Inputs:
    """Resolves inputs. `expansions` has the views that were found, each after those it reads."""

    realm: Realm
    default_catalog: v1.Catalog
    expansions: dict[str, v1.ViewExpansion] = field(default_factory=dict, init=False)
    _visited: set[str] = field(default_factory=set, init=False)

    def reads(self, inputs: Iterable[v1.QueryInput]) -> Iterator[Read]:
        """Every table that the inputs read, as often as they do."""
        for number, each in enumerate(inputs):
            target = self._target(each, field=f"inputs[{number}]")
            if target.kind == v1.RK_TABLE:
                yield Read(target, each.snapshot, by_view=False)
                continue
            if each.snapshot.WhichOneof("which") == "snapshot_id":
                raise failure(InvalidArgument, "query.input.view.cannot.use.snapshot.id", view_id=target.id)
            for table_id in self._tables_of(target):
                yield Read(table_id, each.snapshot, by_view=True)

    def _target(self, given: v1.QueryInput, *, field: str) -> v1.ResourceId:
        match given.WhichOneof("target"):
            case "name":
                name = v1.NameRef()
                name.CopyFrom(given.name)
                name.catalog = name.catalog or self.default_catalog.display_name
                found = self._found(name)
                if found is None:
                    raise _unresolved(name)
                return found
            case "table_id":
                return hierarchy.table(self.realm, given.table_id, field=f"{field}.table_id").value.resource_id
            case "view_id":
                return self._view(given.view_id, field=f"{field}.view_id").resource_id
            case _:
                raise failure(InvalidArgument, "query.input.invalid", field=field)

    def _found(self, name: v1.NameRef) -> v1.ResourceId | None:
        """The table or view with this name.

        An id in the reference takes precedence, and its kind decides which of the two it is.
        """
        kind = name.resource_id.kind if name.HasField("resource_id") else v1.RK_UNSPECIFIED
        if kind != v1.RK_VIEW:
            with suppress(NotFound):
                return directory.resolve_table(self.realm, v1.ResolveTableRequest(ref=name)).resource_id
        if kind != v1.RK_TABLE:
            with suppress(NotFound):
                return directory.resolve_view(self.realm, v1.ResolveViewRequest(ref=name)).resource_id
        return None

    def _view(self, given: v1.ResourceId, *, field: str) -> v1.View:
        view_id = local_id(self.realm, given, v1.RK_VIEW, field=field)
        return self.realm.all(VIEW).require(keys.view(self.realm.account_id, view_id), name=view_id).value

    def _tables_of(self, view_id: v1.ResourceId) -> Iterable[v1.ResourceId]:
        """The tables that a view reads in the end, each once."""
        if view_id.id in self._visited:
            known = self.expansions.get(view_id.id)
            return known.base_table_ids if known else ()  # not resolved yet: the view reads itself
        self._visited.add(view_id.id)
        view = self._view(view_id, field="view_id")
        tables: dict[str, v1.ResourceId] = {}
        for relation in view.base_relations:
            target = self._base(view, relation)
            found = [target] if target.kind == v1.RK_TABLE else self._tables_of(target)
            tables.update((each.id, each) for each in found)
        self.expansions[view_id.id] = v1.ViewExpansion(
            view_id=view_id, canonical_sql=_canonical_sql(view), base_table_ids=tables.values()
        )
        return tables.values()

    def _base(self, view: v1.View, relation: v1.NameRef) -> v1.ResourceId:
        """The table or view that a view means by a name: in its own catalog, along its search path, and then in its own
        namespace.
        """
        own = hierarchy.namespace(self.realm, view.namespace_id).value
        catalog = relation.catalog or hierarchy.catalog(self.realm, own.catalog_id).value.display_name
        searched = [tuple(each.split(".")) for each in view.creation_search_path]
        for path in [tuple(relation.path)] if relation.path else [*searched, full_path(own)]:
            found = self._found(v1.NameRef(catalog=catalog, path=path, name=relation.name))
            if found is not None:
                return found
        raise _unresolved(v1.NameRef(catalog=catalog, path=relation.path, name=relation.name))


def _unresolved(name: v1.NameRef) -> NotFound:
    text = name.resource_id.id if name.HasField("resource_id") else dotted((name.catalog, *name.path, name.name))
    return failure(NotFound, "query.input.unresolved", name=text)


def _canonical_sql(view: v1.View) -> str:
    """The SQL for DuckDB, or the first one."""
    texts = {each.dialect: each.sql for each in reversed(view.sql_definitions)}
    return texts.get("duckdb", view.sql_definitions[0].sql if view.sql_definitions else "")
