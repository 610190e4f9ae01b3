"""A namespace of the metastore as a schema: its tables, looked up one by one or listed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from skiway.airport import CreateTable, DynamicSchema, Schema
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.formats.iceberg.commits import Replacement, replacing
from skiway.formats.iceberg.types import iceberg_schema
from skiway.lake.changes import Changes, check_alone, check_managed
from skiway.lake.columns import ROWID, columns_of
from skiway.lake.context import Context
from skiway.lake.create_as import Awaited, AwaitedTable
from skiway.lake.inserting import Target
from skiway.lake.names import schema_name
from skiway.lake.writable import WritableTable
from skiway.metastore import Realm, managed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.names import folded, normal_text
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

__all__ = ["LakeSchema", "table_records"]

log = logging.getLogger("skiway.lake")


class LakeSchema(Schema, DynamicSchema):
    """The tables of one namespace."""

    def __init__(self, context: Context, catalog: v1.Catalog, namespace: v1.Namespace) -> None:
        self.name = schema_name(full_path(namespace))
        self.comment = namespace.description
        self._context = context
        self._catalog = catalog
        self._namespace = namespace

    def tables(self) -> Sequence[WritableTable]:
        """All tables; one whose columns cannot be understood is left out, and logged."""
        realm = self._context.callers.realm()
        if not self._context.callers.may("table.read"):
            return []
        found = table_records(realm, self._namespace)
        return [self._table(record, listing=True) for record in found if self._can_be_shown(record)]

    def table(self, name: str) -> WritableTable | None:
        """The table of that name."""
        self._context.callers.require("table.read")
        record = self._record(name)
        if record is None:
            return None
        try:
            columns_of(record.schema_json)
        except ValueError as error:
            raise PreconditionFailed(
                f"table {name!r} has a schema that is not understood: {_first_line(error)}; synchronise its connector",
                key="table.schema",
            ) from error
        return self._table(record)

    # -- CREATE, DROP, ALTER … RENAME ---------------------------------------------------------------------------------

    def create_table(self, create: CreateTable) -> WritableTable | AwaitedTable:
        """A new managed table, without rows. One that is replaced keeps its id and its older snapshots."""
        self._context.callers.require("table.write")
        check_managed(self._catalog)
        wanted = _iceberg_columns(create)
        found = self._called(create.name)
        if found is not None and create.on_conflict == "ignore":
            return self._table(found)
        if create.rows_follow and (found is None or create.on_conflict == "replace"):
            return self._awaited_table(create.name, _awaited(create, wanted))
        properties = {"comment": create.comment} if create.comment else {}
        if found is not None and create.on_conflict == "replace":
            return self._table(self._replaced(found, wanted, properties))
        made = managed.create(
            self._context.callers.realm(),
            self._context.handles.warehouse,
            namespace_id=self._namespace.resource_id,
            name=create.name,
            schema=wanted,
            properties=properties,
        )
        self._changed()
        return self._table(made.table)

    def pending_table(self, name: str, binding: str) -> AwaitedTable | None:
        """The table that a binding says how to make, with rows."""
        awaited = Awaited.of(binding)
        return None if awaited is None else self._awaited_table(name, awaited)

    def _awaited_table(self, name: str, awaited: Awaited) -> AwaitedTable:
        managed.require_addressable(name)
        return AwaitedTable(name, awaited, lambda: self._target(name, awaited))

    def _target(self, name: str, awaited: Awaited) -> Target:
        """A new table, or the one of this name to be replaced; nothing has changed until the target commits."""
        self._context.callers.require("table.write")
        check_managed(self._catalog)
        check_alone()
        _check_names(awaited.schema)
        found = self._called(name) if awaited.replace else None
        if found is None:
            return self._new(name, awaited)
        changes = Changes(self._context, found)
        changes.check_allowed()
        base = changes.load()
        schema = iceberg_schema(awaited.schema, format_version=base.metadata.format_version)
        made = Replacement.of(base.metadata, schema, properties=awaited.properties)
        return Target(
            name,
            base.files,
            made.metadata,
            commit=lambda files: changes.commit(made.commit(files)),
            also_without_rows=True,
        )

    def _new(self, name: str, awaited: Awaited) -> Target:
        realm, warehouse = self._context.callers.realm(), self._context.handles.warehouse
        staged = managed.create(
            realm,
            warehouse,
            namespace_id=self._namespace.resource_id,
            name=name,
            schema=awaited.schema,
            properties=awaited.properties,
            stage=True,
        )

        def create(files: Sequence[DataFile]) -> None:
            managed.create_filled(realm, warehouse, staged, files)
            self._changed()

        return Target(name, staged.files, staged.metadata, commit=create, also_without_rows=True)

    def _replaced(self, found: v1.Table, wanted: pa.Schema, properties: Mapping[str, str]) -> v1.Table:
        changes = Changes(self._context, found)
        changes.check_allowed()
        schema = iceberg_schema(wanted, format_version=changes.load().metadata.format_version)
        return changes.commit(replacing(schema, properties=properties)).table

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a table; its files go when nobody can be reading them any more."""
        record = self._required(name, if_exists=if_exists)
        if record is not None:
            warehouse = self._context.handles.warehouse
            Changes(self._context, record).run(
                lambda: managed.drop(self._context.callers.realm(), warehouse, record.resource_id)
            )

    def rename_table(self, name: str, new_name: str, *, if_exists: bool = False) -> None:
        """Give a table another name."""
        record = self._required(name, if_exists=if_exists)
        if record is not None:
            Changes(self._context, record).run(
                lambda: managed.rename(self._context.callers.realm(), record.resource_id, name=new_name)
            )

    def _required(self, name: str, *, if_exists: bool) -> v1.Table | None:
        self._context.callers.require("table.write")
        record = self._record(name)
        if record is None and not if_exists:
            raise NotFound(f"schema {self.name!r} has no table {name!r}", key="table", table=name)
        return record

    def _called(self, name: str) -> v1.Table | None:
        """The table of that name, in any case."""
        realm = self._context.callers.realm()
        wanted = folded(normal_text(name))
        return next(
            (each for each in table_records(realm, self._namespace) if folded(each.display_name) == wanted), None
        )

    def _changed(self) -> None:
        self._context.versions.changed(self._context.callers.realm())

    # -- finding ------------------------------------------------------------------------------------------------------

    def _record(self, name: str) -> v1.Table | None:
        realm = self._context.callers.realm()
        key = keys.table_name(realm.account_id, self._namespace.resource_id.id, normal_text(name))
        return realm.all(TABLE).named(key) if normal_text(name) else None

    def _table(self, record: v1.Table, *, listing: bool = False) -> WritableTable:
        return WritableTable(
            self._context, record, catalog=self._catalog.display_name, schema_name=self.name, listing=listing
        )

    def _can_be_shown(self, record: v1.Table) -> bool:
        try:
            columns_of(record.schema_json)
        except ValueError as error:
            log.warning("table %s.%s is not shown: %s", self.name, record.display_name, _first_line(error))
            return False
        return True


def table_records(realm: Realm, namespace: v1.Namespace) -> Iterator[v1.Table]:
    """The tables of a namespace, by name."""
    prefix = keys.table_name(realm.account_id, namespace.resource_id.id)
    for pointer in realm.stores.pointers.scan(prefix):
        found = realm.all(TABLE).follow(pointer)
        if found is not None:
            yield found.value


def _awaited(create: CreateTable, wanted: pa.Schema) -> Awaited:
    return Awaited(wanted.serialize().to_pybytes(), create.on_conflict == "replace", create.comment)


def _iceberg_columns(create: CreateTable) -> pa.Schema:
    """The columns as Iceberg takes them; rules that it cannot keep are refused, not forgotten."""
    rules = {"PRIMARY KEY": create.primary_key, "UNIQUE": create.unique, "CHECK": create.checks}
    for rule, given in rules.items():
        if given:
            raise Unsupported(
                f"table {create.name!r} was to have {rule}, which managed tables, being Iceberg tables, cannot keep: leave "
                "it out",
                key="table.feature",
            )
    _check_names(create.schema)
    for field in create.schema:
        if (field.metadata or {}).get(b"default"):
            raise Unsupported(
                f"column {field.name!r} was to have a default, which managed tables cannot keep: leave it out",
                key="table.feature",
            )
    return pa.schema(
        [field.with_nullable(field.nullable and field.name not in create.not_null) for field in create.schema]
    )


def _check_names(schema: pa.Schema) -> None:
    for name in schema.names:
        if name.casefold() == ROWID:
            raise InvalidArgument(f"a column cannot be called {name!r}: that is the row id", key="column.reserved")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
