"""A server that shares a DuckDB file: many clients read and write it at once, with everything that Airport supports.

Start it with `python examples/duckdb_file.py [location [file]]`; without a file it creates an example. In DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'shop' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM shop.sales.customers WHERE name LIKE 'A%';
    INSERT INTO shop.sales.customers (id, name) VALUES (3, 'Edsger') RETURNING *;
    UPDATE shop.sales.customers SET credit = credit + 5 WHERE id = 1 RETURNING name, credit;
    CREATE TABLE shop.sales.orders (id BIGINT PRIMARY KEY, total DECIMAL(9, 2) CHECK (total > 0));
    CREATE SCHEMA shop.archive;

The catalog has the name of the file. The schema `main` is shown as `main_`, because DuckDB's client cannot query a schema
called `main`. Views are not served, nor are tables with generated columns, VARIANTs or a column called `rowid`.

Press Ctrl-C to stop the server.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from skiway import airport, errors
from skiway.airport import filters
from skiway.airport.conversion import storable, to_column
from skiway.airport.wire.protocol import CheckConstraints, encode

SHOP = """
    CREATE SCHEMA sales;
    CREATE TABLE sales.customers (
        id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, credit DECIMAL(9, 2) DEFAULT 10 CHECK (credit >= 0)
    );
    COMMENT ON TABLE sales.customers IS 'people who buy';
    COMMENT ON COLUMN sales.customers.credit IS 'in euros';
    INSERT INTO sales.customers VALUES (1, 'Ada', 20), (2, 'Grace', 7.5);
"""

# Expressions of clients run in this DuckDB, so it must not access anything but its file.
SETTINGS = {
    "arrow_lossless_conversion": "true",  # preserves types such as UUID and HUGEINT in Arrow
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
}

# DuckDB's errors, a part of their message, and our error class. The first match counts.
ERRORS = (
    (duckdb.ConstraintException, "", errors.ConstraintViolation),
    (duckdb.TransactionException, "", errors.Conflict),
    (duckdb.DependencyException, "", errors.PreconditionFailed),
    (duckdb.NotImplementedException, "", errors.Unsupported),
    (duckdb.OutOfMemoryException, "", errors.LimitExceeded),
    (duckdb.CatalogException, "already exists", errors.AlreadyExists),
    (duckdb.CatalogException, "does not exist", errors.NotFound),
    (duckdb.CatalogException, "", errors.PreconditionFailed),
    (duckdb.BinderException, "does not have a column", errors.NotFound),
    (duckdb.ProgrammingError, "", errors.InvalidArgument),
    (duckdb.DataError, "", errors.InvalidArgument),
)


@contextlib.contextmanager
def mapped_errors() -> Iterator[None]:
    """Convert DuckDB's errors to ours."""
    try:
        yield
    except duckdb.Error as error:
        message = str(error).partition("\n")[0].partition(" Error: ")[2] or str(error)
        matches = (ours for theirs, part, ours in ERRORS if isinstance(error, theirs) and part in message)
        raise next(matches, errors.Internal)(message) from error


def quoted(*names: str) -> str:
    """A qualified name in SQL."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def new_column(name: str) -> str:
    if name.lower() == "rowid":
        raise errors.InvalidArgument(f"a column cannot be called {name!r}, which is reserved for the row id")
    return quoted(name)


def expression(sql: str) -> str:
    """Check that `sql` is a single expression, and put it in parentheses. The line break ends a comment in it."""
    with mapped_errors():
        duckdb.SQLExpression(sql)
    return f"({sql}\n)"


def metadata(field: pa.Field, name: str) -> str:
    return (field.metadata or {}).get(name.encode(), b"").decode()


def shown(schema: str) -> str:
    """The name that clients see: `main` becomes `main_`, and `main_` becomes `main__`, so that names stay unique."""
    return f"{schema}_" if re.fullmatch("main_*", schema) else schema


def stored(schema: str) -> str:
    return schema[:-1] if re.fullmatch("main_+", schema) else schema


class FileCatalog(airport.Catalog, airport.Versioned, airport.DynamicCatalog):
    """A DuckDB file. Each call uses its own cursor and its own transaction."""

    def __init__(self, name: str, database: duckdb.DuckDBPyConnection) -> None:
        self.name, self.database = name, database
        self._version, self._lock = 1, threading.Lock()
        self.found: dict[tuple[str, str], FileTable] = {}  # tables that were looked up since the last DDL
        ((self._file,),) = database.execute("SELECT current_database()").fetchall()

    def sql(self, *names: str) -> str:
        """The fully qualified name of a schema or table. Shorter names may be ambiguous."""
        return quoted(self._file, *names)

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with mapped_errors(), self.database.cursor() as cursor:
            yield cursor

    def change(self, *statements: str) -> None:
        """Run DDL in a transaction, and increase the version."""
        with self.cursor() as cursor:
            cursor.begin()
            for sql in statements:
                if len(cursor.extract_statements(sql)) != 1:  # a client must not smuggle in a second statement
                    raise errors.InvalidArgument(f"expected a single statement: {sql}")
                cursor.execute(sql)
            cursor.commit()
        with self._lock:
            self._version += 1
            self.found = {}

    def types(self, schema: pa.Schema) -> list[str]:
        """DuckDB's names of the column types."""
        with self.cursor() as cursor:
            cursor.register("empty", pa.RecordBatchReader.from_batches(schema, []))
            return [row[1] for row in cursor.execute("DESCRIBE temp.main.empty").fetchall()]

    def version(self) -> airport.CatalogVersion:
        return airport.CatalogVersion(self._version)

    def schemas(self) -> list[FileSchema]:
        found = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database()"
        with self.cursor() as cursor:
            rows = cursor.execute(f"{found} AND schema_name NOT IN ('information_schema', 'pg_catalog')").fetchall()
        return [FileSchema(self, name) for (name,) in rows]

    def create_schema(self, name, *, comment="", tags=None) -> FileSchema:
        if comment or tags:
            raise errors.Unsupported("DuckDB does not support comments and tags of schemas")
        self.change(f"CREATE SCHEMA {self.sql(stored(name))}")
        return FileSchema(self, stored(name))

    def drop_schema(self, name, *, if_exists=False) -> None:
        try:
            self.change(f"DROP SCHEMA {'IF EXISTS' if if_exists else ''} {self.sql(stored(name))}")
        except errors.PreconditionFailed as error:
            raise errors.SchemaNotEmpty(f"schema {name!r} is not empty: drop its tables first") from error


class FileSchema(airport.Schema, airport.DynamicSchema):
    def __init__(self, catalog: FileCatalog, stored_name: str) -> None:
        self.name, self._stored, self._catalog = shown(stored_name), stored_name, catalog

    def tables(self, name: str | None = None) -> list[FileTable]:
        query = """
            SELECT table_name, comment FROM duckdb_tables() AS t
            WHERE database_name = current_database() AND schema_name = $1
                AND lower(table_name) = lower(coalesce($2, table_name)) AND NOT contains(sql, ' GENERATED ALWAYS AS')
                AND NOT EXISTS (FROM duckdb_columns() AS c WHERE c.table_oid = t.table_oid
                    AND (lower(column_name) = 'rowid' OR contains(data_type, 'VARIANT')))
        """
        with self._catalog.cursor() as cursor:
            rows = cursor.execute(query, [self._stored, name]).fetchall()
        return [FileTable(self._catalog, self._stored, *row) for row in rows]

    def table(self, name: str) -> FileTable | None:
        found, key = self._catalog.found, (self._stored, name)  # of before the query: DDL replaces the dictionary
        if key not in found and (table := next(iter(self.tables(name)), None)):
            found[key] = table
        return found.get(key)

    def create_table(self, create: airport.CreateTable) -> FileTable:
        if create.on_conflict == "ignore" and (found := self.table(create.name)):
            return found
        table = FileTable(self._catalog, self._stored, create.name, create.comment)
        strict = {*create.not_null, *(field.name for field in create.schema if not field.nullable)}
        parts = [table.definition(field) + " NOT NULL" * (field.name in strict) for field in create.schema]
        parts += [f"PRIMARY KEY ({listed(create.primary_key)})"] if create.primary_key else []
        parts += [f"UNIQUE ({listed(columns)})" for columns in create.unique]
        parts += [f"CHECK {expression(check)}" for check in create.checks]
        comments = {f"COLUMN {table.sql}.{quoted(field.name)}": metadata(field, "comment") for field in create.schema}
        comments[f"TABLE {table.sql}"] = create.comment
        self._catalog.change(
            f"CREATE {'OR REPLACE' if create.on_conflict == 'replace' else ''} TABLE {table.sql} ({', '.join(parts)})",
            *(f"COMMENT ON {what} IS {text(comment)}" for what, comment in comments.items() if comment),
        )
        return table

    def drop_table(self, name, *, if_exists=False) -> None:
        self._catalog.change(f"DROP TABLE {'IF EXISTS' if if_exists else ''} {self._catalog.sql(self._stored, name)}")

    def rename_table(self, name, new_name, *, if_exists=False) -> None:
        table = f"{'IF EXISTS' if if_exists else ''} {self._catalog.sql(self._stored, name)}"
        self._catalog.change(f"ALTER TABLE {table} RENAME TO {quoted(new_name)}")


# Bounds that hold for all strings and blobs. DuckDB's client requires bounds for these types.
WIDEST = {"VARCHAR": ("", "\U0010ffff" * 2), "JSON": ("", "\U0010ffff" * 2), "BLOB": (b"", b"\xff" * 8)}


class FileTable(airport.Table, airport.Writable, airport.DynamicTable, airport.HasStatistics):
    """A table of the file, with DuckDB's own row ids."""

    def __init__(self, catalog: FileCatalog, schema: str, name: str, comment: str | None) -> None:
        self.name, self.comment, self.catalog = name, comment or "", catalog
        self.sql, self._names = catalog.sql(schema, name), [schema, name]

    @functools.cached_property
    def schema(self) -> pa.Schema:
        this = "WHERE database_name = current_database() AND schema_name = $1 AND table_name = $2"
        facts = f"SELECT column_name, comment, column_default, is_nullable FROM duckdb_columns() {this}"
        checks = f"SELECT expression FROM duckdb_constraints() {this} AND constraint_type = 'CHECK'"
        with self.catalog.cursor() as cursor:
            cursor.begin()  # all three queries see the same state
            fields = cursor.execute(f"SELECT *, rowid FROM {self.sql} LIMIT 0").to_arrow_table().schema
            known = {name: details for name, *details in cursor.execute(facts, self._names).fetchall()}
            constraints = [check for (check,) in cursor.execute(checks, self._names).fetchall()]
        columns = [described(storable(field), *known.get(field.name, ("", "", True))) for field in fields]
        return pa.schema(columns, {"check_constraints": encode(CheckConstraints(constraints))} if constraints else None)

    def scan(self, options: airport.ScanOptions) -> Iterator[pa.RecordBatch]:
        schema = airport.project_schema(self.schema, options.columns)
        where = filters.to_sql(options.filter)
        query = f"SELECT {listed(schema.names)} FROM {self.sql}" + (f" WHERE {where}" if where else "")
        with self.catalog.cursor() as cursor:  # a snapshot of the table
            for batch in cursor.execute(query).to_arrow_reader(65_536):
                yield converted(batch, schema)

    def row_count(self) -> int:
        with self.catalog.cursor() as cursor:
            return cursor.execute(f"SELECT count(*) FROM {self.sql}").fetchone()[0]

    def column_statistics(self, column: str, duckdb_type: str) -> airport.ColumnStatistics:
        """Statistics that stay valid if other clients write between planning and scanning, so not the current bounds.

        The file prunes with its own bounds anyway, because filters are pushed down. The number of distinct values is an
        estimate, which DuckDB uses to order joins.
        """
        with self.catalog.cursor() as cursor:
            row = cursor.execute(f"SELECT stats({quoted(column)}) FROM {self.sql} LIMIT 1").fetchone()
        distinct = re.search(r"\[Approx Unique: (\d+)\]$", row[0]) if row else None
        low, high = WIDEST.get(duckdb_type, (None, None))
        has_null = None if self.schema.field(column).nullable else False
        count = int(distinct[1]) if distinct else None
        return airport.ColumnStatistics(min=low, max=high, has_null=has_null, distinct_count=count)

    def write(self, write: airport.Write) -> FileStatement:
        return FileStatement(self, write)

    def definition(self, field: pa.Field) -> str:
        (type_name,) = self.catalog.types(pa.schema([field]))
        default = metadata(field, "default")
        return f"{new_column(field.name)} {type_name}" + (f" DEFAULT {expression(default)}" if default else "")

    def alter(self, *changes: str) -> None:
        self.catalog.change(*(f"ALTER TABLE {self.sql} {change}" for change in changes))

    def add_column(self, field, *, if_not_exists=False) -> None:
        self.add_field([], field, if_not_exists=if_not_exists)

    def remove_column(self, name, *, if_exists=False, cascade=False) -> None:
        self.remove_field([name], if_exists=if_exists, cascade=cascade)

    def rename_column(self, name, new_name) -> None:
        self.rename_field([name], new_name)

    def change_column_type(self, field, expression_sql) -> None:
        (type_name,) = self.catalog.types(pa.schema([field]))
        self.alter(f"ALTER {quoted(field.name)} SET DATA TYPE {type_name} USING {expression(expression_sql)}")

    def set_not_null(self, name) -> None:
        self.alter(f"ALTER {quoted(name)} SET NOT NULL")

    def drop_not_null(self, name) -> None:
        self.alter(f"ALTER {quoted(name)} DROP NOT NULL")

    def set_default(self, name, expression_sql) -> None:
        self.alter(f"ALTER {quoted(name)} SET DEFAULT {expression(expression_sql)}")

    def add_constraint(self, constraint) -> None:
        self.alter(f"ADD {constraint}")  # DuckDB only supports PRIMARY KEY here

    def add_field(self, path, field, *, if_not_exists=False) -> None:
        parent = f"{quoted(*path)}." if path else ""
        constraints = [] if field.nullable or path else [f"ALTER {quoted(field.name)} SET NOT NULL"]
        self.alter(
            f"ADD COLUMN {'IF NOT EXISTS' if if_not_exists else ''} {parent}{self.definition(field)}", *constraints
        )

    def rename_field(self, path, new_name) -> None:
        self.alter(f"RENAME COLUMN {quoted(*path)} TO {new_column(new_name)}")

    def remove_field(self, path, *, if_exists=False, cascade=False) -> None:
        flag = "IF EXISTS" if if_exists else ""
        self.alter(f"DROP COLUMN {flag} {quoted(*path)} {'CASCADE' if cascade else ''}")


def described(field: pa.Field, comment: str | None, default: str | None, nullable: bool) -> pa.Field:
    added = {name: value for name, value in (("comment", comment), ("default", default)) if value}
    return field.with_nullable(nullable).with_metadata({**(field.metadata or {}), **added})


def converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to `schema`. The Arrow types of the input depend on the settings of the sender."""
    return pa.RecordBatch.from_arrays([to_column(batch[field.name], field) for field in schema], schema=schema)


class FileStatement(airport.Statement):
    """An INSERT, UPDATE or DELETE as one transaction of DuckDB.

    New rows are inserted immediately. Updates and deletes are collected in a temporary table and applied at the commit
    by one SQL statement, which reads the table once instead of once per batch.
    """

    def __init__(self, table: FileTable, write: airport.Write) -> None:
        self._table, self._write = table, write
        self._schema = airport.project_schema(table.schema, write.schema.names)
        self._columns, self._rows = listed(self._schema.names), 0
        self._cursor = table.catalog.database.cursor()
        with mapped_errors():
            self._cursor.begin()
            # DuckDB's transaction begins with this first access, before the client scans for rows to change. Later
            # changes of other clients are conflicts and are never overwritten.
            self._cursor.execute(f"CREATE TEMP TABLE pending AS SELECT {self._columns} FROM {table.sql} LIMIT 0")

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        operation = self._write.operation
        sink = self._table.sql if operation == "insert" else "temp.main.pending"
        with mapped_errors():
            self._cursor.register("batch", converted(rows, self._schema))
            self._cursor.execute(f"INSERT INTO {sink} ({self._columns}) FROM temp.main.batch")
            self._rows += rows.num_rows
            if not self._write.options.returning:
                return None
            return self._found(rows["rowid"]) if operation == "delete" else rows

    def commit(self) -> int:
        with contextlib.closing(self._cursor), mapped_errors():
            count = self._rows if self._write.operation == "insert" else self._apply_changes()
            self._cursor.commit()
            return count

    def abort(self) -> None:
        self._cursor.close()  # closing the cursor rolls back

    def _found(self, ids: pa.Array) -> pa.RecordBatch:
        """The rows with these ids, in the same order."""
        query = f"SELECT *, rowid FROM {self._table.sql} WHERE rowid IN (SELECT rowid FROM temp.main.batch)"
        found = self._cursor.execute(query).to_arrow_table()
        positions = pc.index_in(ids.cast(pa.int64()), found["rowid"])
        self._require(len(ids), len(ids) - positions.null_count)
        return found.drop_columns("rowid").take(positions).combine_chunks().to_batches()[0]

    def _apply_changes(self) -> int:
        table, values = self._table.sql, [name for name in self._schema.names if name != "rowid"]
        sets = ", ".join(f"{quoted(name)} = new.{quoted(name)}" for name in values)
        without_duplicates = (
            "(SELECT DISTINCT ON (rowid) * FROM temp.main.pending)"  # UPDATE … FROM may contain a row twice
        )
        update = f"UPDATE {table} AS old SET {sets} FROM {without_duplicates} AS new WHERE old.rowid = new.rowid"
        delete = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM temp.main.pending)"
        ((expected,),) = self._cursor.execute("SELECT count(DISTINCT rowid) FROM temp.main.pending").fetchall()
        ((changed,),) = self._cursor.execute(update if values else delete).fetchall()
        self._require(expected, changed)
        return changed

    def _require(self, expected: int, found: int) -> None:
        if found < expected:
            missing = expected - found
            raise errors.NotFound(f"{missing} of {expected} rows no longer exist in {self._table.name!r}: retry")


def create_shop(path: Path) -> None:
    with duckdb.connect(path) as database:
        database.execute(SHOP)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[FileCatalog]:
    with duckdb.connect(path, config=SETTINGS) as database:
        yield FileCatalog(path.stem, database)


if __name__ == "__main__":
    print(__doc__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(*sys.argv[2:3] or [folder, "shop.duckdb"])
        if not sys.argv[2:]:
            create_shop(path)
        try:
            with opened(path) as catalog:
                airport.serve(catalog, *sys.argv[1:2])
        except duckdb.IOException as error:  # not a DuckDB file, or another process has it open
            sys.exit(str(error))
