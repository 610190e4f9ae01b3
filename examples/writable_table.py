"""A table in plain Arrow that takes INSERT, UPDATE and DELETE, each with RETURNING.

Start it with `python examples/writable_table.py [location]`, then type into DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'todo' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    INSERT INTO todo.home.notes VALUES ('water the ferns', 2) RETURNING *;
    UPDATE todo.home.notes SET priority = priority + 1 WHERE text LIKE '%ferns' RETURNING text, priority;
    DELETE FROM todo.home.notes WHERE priority = 1 RETURNING text;
    SELECT rowid, * FROM todo.home.notes;

Ctrl-C ends the server.
"""

import sys
import threading

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import CatalogBuilder, DeletableBatch, DmlResult, Insertable, Table, UpdatableBatch, serve
from skiway.errors import NotFound


class Notes(Table, Insertable, UpdatableBatch, DeletableBatch):
    name = "notes"
    schema = pa.schema({"text": pa.string(), "priority": pa.int32(), "rowid": pa.int64()})

    def __init__(self):
        self._rows = pa.table({"text": ["buy tea", "feed the cat"], "priority": [1, 3], "rowid": [0, 1]}, self.schema)
        self._next_id = 2
        self._lock = threading.Lock()

    def scan(self, options):
        return self._rows  # replaced by each write, never changed: a scan shows what was there when it began

    def insert(self, rows, options):
        new = rows.read_all()  # outside of the lock: rows come as fast as the client sends them
        with self._lock:
            ids = pa.array(range(self._next_id, self._next_id + new.num_rows))
            self._rows = pa.concat_tables([self._rows, new.append_column("rowid", ids).cast(self.schema)])
            self._next_id += new.num_rows
        return DmlResult(new.num_rows, new)

    def update_batch(self, rows, options):
        new = rows.read_all()  # the changed columns, or more, with the row ids
        with self._lock:
            self._find(new["rowid"])
            place = pc.index_in(self._rows["rowid"], new["rowid"]).combine_chunks()  # NULL for rows that stay
            for index, field in enumerate(self.schema):
                if field.name in new.column_names:
                    changed = new[field.name].cast(field.type).take(place)
                    values = pc.if_else(place.is_valid(), changed, self._rows[field.name])
                    self._rows = self._rows.set_column(index, field, values)
        return DmlResult(new.num_rows, new)

    def delete_batch(self, rows, options):
        ids = rows.read_all()["rowid"]
        with self._lock:
            gone = self._find(ids)
            self._rows = self._rows.filter(pc.invert(pc.is_in(self._rows["rowid"], ids)))
        return DmlResult(gone.num_rows, gone)

    def _find(self, ids):
        """The rows with these ids, in their order."""
        places = pc.index_in(ids, self._rows["rowid"])
        if places.null_count:
            raise NotFound(f"{places.null_count} of {len(ids)} rows are not in {self.name!r}: read it again")
        return self._rows.take(places)


def catalog():
    todo = CatalogBuilder("todo")
    todo.schema("home").table(Notes())
    return todo.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
