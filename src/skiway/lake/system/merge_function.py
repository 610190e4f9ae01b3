"""The function `merge`: DuckDB's client rejects MERGE INTO on the tables of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from skiway.airport import Parameter
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import InvalidArgument, NotFound
from skiway.lake.columns import ROWID
from skiway.lake.row_ids import WithRowIds
from skiway.lake.system.effects import ChangeTable, Place
from skiway.lake.writable import WritableTable
from skiway.sql import Query, including
from skiway.sql.merge import MergeQuery

__all__ = ["MergeFunction"]

_TARGET: Final = "$target"


class MergeFunction(ChangeTable):
    """`merge(table, source, on)`: updates, deletes and inserts rows in one commit, like MERGE INTO."""

    name = "merge"
    can_be_staged = True
    comment = (
        "Merges rows of a query into a table: merge('s.t', 'SELECT …', 'target.id = source.id', "
        "clauses => 'WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT')."
    )
    parameters = (
        Parameter("name", pa.string()),
        Parameter("source", pa.string()),
        Parameter("on", pa.string()),
        Parameter("clauses", pa.string(), named=True),
    )
    result = pa.schema({"table": pa.string(), "inserted": pa.int64(), "updated": pa.int64(), "deleted": pa.int64()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Join the source with the table on the server, and commit the changes."""
        for name, example in (("source", "SELECT …"), ("on", "target.id = source.id")):
            if not (given[name] or "").strip():
                raise InvalidArgument(f"merge needs {name!r}, such as {example!r}", key="merge.argument")
        table = self._find(self._catalog.display_name, place.schema, place.name)
        if not isinstance(table, WritableTable):
            raise NotFound(f"table {self.full_name(place)} does not exist", key="table", table=self.full_name(place))
        columns = {field.name: castable_type(field) for field in table.schema if field.name != ROWID}
        merge = MergeQuery(columns, given["source"], given["on"], given["clauses"] or "")
        statement = table.merging()
        try:
            for batch in self._context.queries.rows(self._query(merge, given["source"], table, place)):
                statement.apply(batch)
        except BaseException:
            statement.abort()
            raise
        statement.commit()
        counts = statement.counts
        return {
            "table": self.full_name(place),
            "inserted": counts["insert"],
            "updated": counts["update"],
            "deleted": counts["delete"],
        }

    def _query(self, merge: MergeQuery, source: str, table: WritableTable, place: Place) -> Query:
        catalog, owner = self._catalog.display_name, self._context.callers.principal.account_id
        read = Query(source, self._find, catalog=catalog, schema=place.schema, owner=owner)
        target = (catalog, place.schema, _TARGET)
        sql = merge.sql(".".join(map(identifier, target)), self._context.queries.columns(read).names)
        find = including(self._find, target, WithRowIds(_TARGET, table.schema, table.scan))
        return Query(sql, find, catalog=catalog, schema=place.schema, owner=owner)
