"""A table in plain Arrow that supports INSERT, UPDATE and DELETE with RETURNING.

Start it with `python examples/writable_table.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'todo' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    INSERT INTO todo.home.notes VALUES ('water the ferns', 2) RETURNING *;
    UPDATE todo.home.notes SET priority = priority + 1 WHERE text LIKE '%ferns' RETURNING text, priority;
    DELETE FROM todo.home.notes WHERE priority = 1 RETURNING text;
    SELECT rowid, * FROM todo.home.notes;

Press Ctrl-C to stop the server.
"""

import sys
import threading

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import CatalogBuilder, DeletableBatch, DmlResult, Insertable, Table, UpdatableBatch, serve
from skiway.errors import NotFound


class Notes(Table, Insertable, UpdatableBatch, DeletableBatch):
    """Notes in a pyarrow Table. Each write replaces the table, so scans need no lock."""

    name = "notes"
    schema = pa.schema({"text": pa.string(), "priority": pa.int32(), "rowid": pa.int64()})

    def __init__(self):
        self._rows = pa.table({"text": ["buy tea", "feed the cat"], "priority": [1, 3], "rowid": [0, 1]}, self.schema)
        self._next_id = 2
        self._lock = threading.Lock()

    def scan(self, options):
        return self._rows  # never modified, only replaced: a scan sees the rows at its beginning

    def insert(self, rows, options):
        new = rows.read_all()  # outside of the lock, because the client may send slowly
        with self._lock:
            ids = pa.array(range(self._next_id, self._next_id + new.num_rows))
            self._rows = pa.concat_tables([self._rows, new.append_column("rowid", ids).cast(self.schema)])
            self._next_id += new.num_rows
        return DmlResult(new.num_rows, new)

    def update_batch(self, rows, options):
        new = rows.read_all()  # the row ids, the changed columns, and possibly others
        with self._lock:
            self._find(new["rowid"])
            position = pc.index_in(self._rows["rowid"], new["rowid"]).combine_chunks()  # NULL for unchanged rows
            for index, field in enumerate(self.schema):
                if field.name in new.column_names:
                    changed = new[field.name].cast(field.type).take(position)
                    values = pc.if_else(position.is_valid(), changed, self._rows[field.name])
                    self._rows = self._rows.set_column(index, field, values)
        return DmlResult(new.num_rows, new)

    def delete_batch(self, rows, options):
        ids = rows.read_all()["rowid"]
        with self._lock:
            deleted = self._find(ids)
            self._rows = self._rows.filter(pc.invert(pc.is_in(self._rows["rowid"], ids)))
        return DmlResult(deleted.num_rows, deleted)

    def _find(self, ids):
        """The rows with these ids, in the same order."""
        positions = pc.index_in(ids, self._rows["rowid"])
        if positions.null_count:
            raise NotFound(f"{positions.null_count} of {len(ids)} rows no longer exist in {self.name!r}: retry")
        return self._rows.take(positions)


def catalog():
    """A catalog with one writable table."""
    todo = CatalogBuilder("todo")
    todo.schema("home").table(Notes())
    return todo.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
