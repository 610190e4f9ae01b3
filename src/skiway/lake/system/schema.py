"""The schema `skiway` of every catalog: what the metastore knows, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from skiway.airport import ScanOptions, Schema, Table, filters
from skiway.lake.context import Context
from skiway.lake.names import SYSTEM_SCHEMA, schema_name
from skiway.lake.schema import table_records
from skiway.lake.system import activity
from skiway.lake.system import tables as known
from skiway.lake.system.tables import Asked, Shown
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import NAMESPACE
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

__all__ = ["SystemSchema"]

_NAMES: Final = pa.schema({"schema_name": pa.string(), "table_name": pa.string()})

_ALL: Final[tuple[tuple[str, str, pa.Schema, Callable[[Asked], pa.Table]], ...]] = (
    ("tables", "the tables of this catalog", known.TABLES, known.tables),
    ("columns", "their columns", known.COLUMNS, known.columns),
    ("snapshots", "their snapshots", known.SNAPSHOTS, known.snapshots),
    ("files", "the files of their current snapshots", known.FILES, known.files),
    ("column_stats", "what was found by profiling them", known.COLUMN_STATS, known.column_stats),
    ("jobs", "synchronisation, newest first", activity.JOBS, activity.jobs),
    ("plans", "recent scans of this server: what their filters spared them", activity.PLANS, activity.plans),
)


class SystemSchema(Schema):
    """Tables, columns, snapshots, files and statistics of one catalog; the account's jobs; recent scans."""

    name = SYSTEM_SCHEMA
    comment = "what the metastore knows"

    def __init__(self, context: Context, catalog: v1.Catalog) -> None:
        self._context = context
        self._catalog = catalog

    def tables(self) -> Sequence[Table]:
        """All of them; what a caller may not see is not in them."""
        return [SystemTable(self._context, self._catalog, *made) for made in _ALL]


class SystemTable(Table):
    """One of them, made anew by each scan."""

    def __init__(
        self,
        context: Context,
        catalog: v1.Catalog,
        name: str,
        comment: str,
        schema: pa.Schema,
        make: Callable[[Asked], pa.Table],
    ) -> None:
        self.name, self.comment = name, comment
        self._schema, self._make = schema, make
        self._context, self._catalog = context, catalog

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._schema

    def scan(self, options: ScanOptions) -> pa.Table:
        """Its rows; those of tables that the filter does not name are not even looked for."""
        realm = self._context.callers.realm()
        asked = Asked(realm, self._context, self._catalog.display_name, list(self._shown(options)))
        return self._make(asked)

    def _shown(self, options: ScanOptions) -> Iterator[Shown]:
        """The tables that the caller may see and the filter names."""
        callers = self._context.callers
        callers.require("catalog.read")
        if not callers.may("table.read"):
            return
        condition = filters.to_arrow(options.filter, _NAMES) if options.filter else None
        for schema, namespace in self._namespaces():
            found = list(table_records(callers.realm(), namespace))
            names = pa.table(
                {"schema_name": [schema] * len(found), "table_name": [t.display_name for t in found]}, _NAMES
            )
            numbered = names.append_column("number", pa.array(range(len(found)), pa.int64()))
            chosen = numbered if condition is None else numbered.filter(condition)
            yield from (Shown(schema, found[number]) for number in chosen["number"].to_pylist())

    def _namespaces(self) -> Iterator[tuple[str, v1.Namespace]]:
        realm = self._context.callers.realm()
        prefix = keys.namespace_path(realm.account_id, self._catalog.resource_id.id, ()) + "/"
        for pointer in realm.stores.pointers.scan(prefix):
            found = realm.all(NAMESPACE).follow(pointer)
            if found is not None:
                yield schema_name(full_path(found.value)), found.value
