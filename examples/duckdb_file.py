"""A DuckDB file for many: clients read and write it at once, with all that SQL can say over Airport.

Start it with `python examples/duckdb_file.py [location [file]]`; without a file it makes one to play with. In DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'shop' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM shop.sales.customers WHERE name LIKE 'A%';
    INSERT INTO shop.sales.customers (id, name) VALUES (3, 'Edsger') RETURNING *;
    UPDATE shop.sales.customers SET credit = credit + 5 WHERE id = 1 RETURNING name, credit;
    CREATE TABLE shop.sales.orders (id BIGINT PRIMARY KEY, total DECIMAL(9, 2) CHECK (total > 0));
    CREATE SCHEMA shop.archive;

The catalog is called like the file. Its schema `main` is shown as `main_`: the client cannot look into a `main`. Left
out are views, and tables with generated columns, VARIANTs or a column called `rowid`. Ctrl-C ends the server.
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
from skiway.airport.wire.payloads import CheckConstraints, encode

SHOP = """
    CREATE SCHEMA sales;
    CREATE TABLE sales.customers (
        id BIGINT PRIMARY KEY, name VARCHAR NOT NULL, credit DECIMAL(9, 2) DEFAULT 10 CHECK (credit >= 0)
    );
    COMMENT ON TABLE sales.customers IS 'people who buy';
    COMMENT ON COLUMN sales.customers.credit IS 'in euros';
    INSERT INTO sales.customers VALUES (1, 'Ada', 20), (2, 'Grace', 7.5);
"""

# Callers' expressions run in this DuckDB, so it may touch nothing but its file. Lossless types are told apart in Arrow.
SETTINGS = {
    "arrow_lossless_conversion": "true",
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
}

# What DuckDB refuses, said with our errors; the first line that fits counts.
REFUSALS = (
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
def told() -> Iterator[None]:
    """Errors of DuckDB leave this block as ours."""
    try:
        yield
    except duckdb.Error as error:
        message = str(error).partition("\n")[0].partition(" Error: ")[2] or str(error)
        fits = (ours for theirs, part, ours in REFUSALS if isinstance(error, theirs) and part in message)
        raise next(fits, errors.Internal)(message) from error


def quoted(*names: str) -> str:
    """A dotted name that means exactly these names."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def new_column(name: str) -> str:
    if name.lower() == "rowid":
        raise errors.InvalidArgument(f"a column cannot be called {name!r}: that is the name of the row id")
    return quoted(name)


def expression(sql: str) -> str:
    """SQL that is one expression and nothing behind it; the line break ends a comment in it."""
    with told():
        duckdb.SQLExpression(sql)
    return f"({sql}\n)"


def fact(field: pa.Field, name: str) -> str:
    return (field.metadata or {}).get(name.encode(), b"").decode()


def shown(schema: str) -> str:
    """`main` is shown as `main_`, and `main_` as `main__`, so that no two are shown alike."""
    return f"{schema}_" if re.fullmatch("main_*", schema) else schema


def stored(schema: str) -> str:
    return schema[:-1] if re.fullmatch("main_+", schema) else schema


class FileCatalog(airport.Catalog, airport.Versioned, airport.DynamicCatalog):
    """A DuckDB file. Each call works on a cursor of its own, in a transaction of its own."""

    def __init__(self, name: str, database: duckdb.DuckDBPyConnection) -> None:
        self.name, self.database = name, database
        self._version, self._lock = 1, threading.Lock()
        ((self._file,),) = database.execute("SELECT current_database()").fetchall()

    def sql(self, *names: str) -> str:
        """The full name of a schema or table; a shorter one could also mean something else."""
        return quoted(self._file, *names)

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with told(), self.database.cursor() as cursor:
            yield cursor

    def change(self, *statements: str) -> None:
        """Run DDL, all or nothing, and let clients know by the version."""
        with self.cursor() as cursor:
            cursor.begin()
            for sql in statements:
                if len(cursor.extract_statements(sql)) != 1:  # no caller's text may bring a second one
                    raise errors.InvalidArgument(f"this must be one statement: {sql}")
                cursor.execute(sql)
            cursor.commit()
        with self._lock:
            self._version += 1

    def types(self, schema: pa.Schema) -> list[str]:
        """Types of columns as DuckDB itself spells them."""
        with self.cursor() as cursor:
            cursor.register("empty", schema.empty_table())
            return [row[1] for row in cursor.execute("DESCRIBE temp.empty").fetchall()]

    def version(self) -> airport.CatalogVersion:
        return airport.CatalogVersion(self._version)

    def schemas(self) -> list[FileSchema]:
        found = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database()"
        with self.cursor() as cursor:
            rows = cursor.execute(f"{found} AND schema_name NOT IN ('information_schema', 'pg_catalog')").fetchall()
        return [FileSchema(self, name) for (name,) in rows]

    def create_schema(self, name, *, comment="", tags=None) -> FileSchema:
        if comment or tags:
            raise errors.Unsupported("DuckDB keeps no comments and tags of schemas: leave them out")
        self.change(f"CREATE SCHEMA {self.sql(stored(name))}")
        return FileSchema(self, stored(name))

    def drop_schema(self, name, *, if_exists=False) -> None:
        try:
            self.change(f"DROP SCHEMA {'IF EXISTS' if if_exists else ''} {self.sql(stored(name))}")
        except errors.PreconditionFailed as error:
            raise errors.SchemaNotEmpty(f"schema {name!r} is not empty: drop what is in it first") from error


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
        return next(iter(self.tables(name)), None)

    def create_table(self, create: airport.CreateTable) -> FileTable:
        if create.on_conflict == "ignore" and (found := self.table(create.name)):
            return found
        made = FileTable(self._catalog, self._stored, create.name, create.comment)
        strict = {*create.not_null, *(field.name for field in create.schema if not field.nullable)}
        parts = [made.definition(field) + " NOT NULL" * (field.name in strict) for field in create.schema]
        parts += [f"PRIMARY KEY ({listed(create.primary_key)})"] if create.primary_key else []
        parts += [f"UNIQUE ({listed(columns)})" for columns in create.unique]
        parts += [f"CHECK {expression(check)}" for check in create.checks]
        comments = {f"COLUMN {made.sql}.{quoted(field.name)}": fact(field, "comment") for field in create.schema}
        comments[f"TABLE {made.sql}"] = create.comment
        self._catalog.change(
            f"CREATE {'OR REPLACE' if create.on_conflict == 'replace' else ''} TABLE {made.sql} ({', '.join(parts)})",
            *(f"COMMENT ON {what} IS {text(said)}" for what, said in comments.items() if said),
        )
        return made

    def drop_table(self, name, *, if_exists=False) -> None:
        self._catalog.change(f"DROP TABLE {'IF EXISTS' if if_exists else ''} {self._catalog.sql(self._stored, name)}")

    def rename_table(self, name, new_name, *, if_exists=False) -> None:
        table = f"{'IF EXISTS' if if_exists else ''} {self._catalog.sql(self._stored, name)}"
        self._catalog.change(f"ALTER TABLE {table} RENAME TO {quoted(new_name)}")


# True of all texts and bytes; without bounds the client takes no statistics of such a column.
WIDEST = {"VARCHAR": ("", "\U0010ffff" * 2), "JSON": ("", "\U0010ffff" * 2), "BLOB": (b"", b"\xff" * 8)}


class FileTable(airport.Table, airport.Writable, airport.DynamicTable, airport.HasStatistics):
    """A table of the file. Its row ids are DuckDB's own."""

    def __init__(self, catalog: FileCatalog, schema: str, name: str, comment: str | None) -> None:
        self.name, self.comment, self.catalog = name, comment or "", catalog
        self.sql, self._names = catalog.sql(schema, name), [schema, name]

    @functools.cached_property
    def schema(self) -> pa.Schema:
        this = "WHERE database_name = current_database() AND schema_name = $1 AND table_name = $2"
        facts = f"SELECT column_name, comment, column_default, is_nullable FROM duckdb_columns() {this}"
        checks = f"SELECT expression FROM duckdb_constraints() {this} AND constraint_type = 'CHECK'"
        with self.catalog.cursor() as cursor:
            cursor.begin()  # all three answers are about one state
            fields = cursor.execute(f"SELECT *, rowid FROM {self.sql} LIMIT 0").to_arrow_table().schema
            known = {name: told_of for name, *told_of in cursor.execute(facts, self._names).fetchall()}
            rules = [rule for (rule,) in cursor.execute(checks, self._names).fetchall()]
        columns = [described(storable(field), *known.get(field.name, ("", "", True))) for field in fields]
        return pa.schema(columns, {"check_constraints": encode(CheckConstraints(rules))} if rules else None)

    def scan(self, options: airport.ScanOptions) -> Iterator[pa.RecordBatch]:
        schema = airport.project_schema(self.schema, options.columns)
        where = filters.to_sql(options.filter)
        query = f"SELECT {listed(schema.names)} FROM {self.sql}" + (f" WHERE {where}" if where else "")
        with self.catalog.cursor() as cursor:  # all rows are of the moment when it begins
            for batch in cursor.execute(query).to_arrow_reader(65_536):
                yield fitted(batch, schema)

    def row_count(self) -> int:
        with self.catalog.cursor() as cursor:
            return cursor.execute(f"SELECT count(*) FROM {self.sql}").fetchone()[0]

    def column_statistics(self, column: str, duckdb_type: str) -> airport.ColumnStatistics:
        """What stays true if others write between a query's planning and its scan; that rules out the present bounds.

        The file prunes with its own bounds anyway, since filters are pushed down to it. The number of distinct values
        is an estimate, by which DuckDB orders joins.
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
        (spelled,) = self.catalog.types(pa.schema([field]))
        default = fact(field, "default")
        return f"{new_column(field.name)} {spelled}" + (f" DEFAULT {expression(default)}" if default else "")

    def alter(self, *changes: str) -> None:
        self.catalog.change(*(f"ALTER TABLE {self.sql} {change}" for change in changes))

    def add_column(self, field, *, if_not_exists=False) -> None:
        self.add_field([], field, if_not_exists=if_not_exists)

    def remove_column(self, name, *, if_exists=False, cascade=False) -> None:
        self.remove_field([name], if_exists=if_exists, cascade=cascade)

    def rename_column(self, name, new_name) -> None:
        self.rename_field([name], new_name)

    def change_column_type(self, field, expression_sql) -> None:
        (spelled,) = self.catalog.types(pa.schema([field]))
        self.alter(f"ALTER {quoted(field.name)} SET DATA TYPE {spelled} USING {expression(expression_sql)}")

    def set_not_null(self, name) -> None:
        self.alter(f"ALTER {quoted(name)} SET NOT NULL")

    def drop_not_null(self, name) -> None:
        self.alter(f"ALTER {quoted(name)} DROP NOT NULL")

    def set_default(self, name, expression_sql) -> None:
        self.alter(f"ALTER {quoted(name)} SET DEFAULT {expression(expression_sql)}")

    def add_constraint(self, constraint) -> None:
        self.alter(f"ADD {constraint}")  # of a primary key, that is; the others DuckDB refuses

    def add_field(self, path, field, *, if_not_exists=False) -> None:
        place = f"{quoted(*path)}." if path else ""
        rules = [] if field.nullable or path else [f"ALTER {quoted(field.name)} SET NOT NULL"]
        self.alter(f"ADD COLUMN {'IF NOT EXISTS' if if_not_exists else ''} {place}{self.definition(field)}", *rules)

    def rename_field(self, path, new_name) -> None:
        self.alter(f"RENAME COLUMN {quoted(*path)} TO {new_column(new_name)}")

    def remove_field(self, path, *, if_exists=False, cascade=False) -> None:
        flag = "IF EXISTS" if if_exists else ""
        self.alter(f"DROP COLUMN {flag} {quoted(*path)} {'CASCADE' if cascade else ''}")


def described(field: pa.Field, comment: str | None, default: str | None, nullable: bool) -> pa.Field:
    facts = {name: said for name, said in (("comment", comment), ("default", default)) if said}
    return field.with_nullable(nullable).with_metadata({**(field.metadata or {}), **facts})


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same values in these columns and types: in which form a type arrives depends on the settings of its sender."""
    return pa.RecordBatch.from_arrays([to_column(batch[field.name], field) for field in schema], schema=schema)


class FileStatement(airport.Statement):
    """An INSERT, UPDATE or DELETE: one transaction of DuckDB.

    New rows go into the table as they come. Changes wait in a temporary table and are made at the end by one SQL
    statement, which goes through the table once, not once per batch.
    """

    def __init__(self, table: FileTable, write: airport.Write) -> None:
        self._table, self._write = table, write
        self._schema = airport.project_schema(table.schema, write.schema.names)
        self._columns, self._rows = listed(self._schema.names), 0
        self._cursor = table.catalog.database.cursor()
        with told():
            self._cursor.begin()
            # DuckDB's transaction begins with this first look at the table, before the client scans for rows to
            # change: what others change after it is a conflict, never overwritten.
            self._cursor.execute(f"CREATE TEMP TABLE waiting AS SELECT {self._columns} FROM {table.sql} LIMIT 0")

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        operation = self._write.operation
        sink = self._table.sql if operation == "insert" else "temp.waiting"
        with told():
            self._cursor.register("batch", fitted(rows, self._schema))
            self._cursor.execute(f"INSERT INTO {sink} ({self._columns}) FROM temp.batch")
            self._rows += rows.num_rows
            if not self._write.options.returning:
                return None
            return self._found(rows["rowid"]) if operation == "delete" else rows

    def commit(self) -> int:
        with contextlib.closing(self._cursor), told():
            count = self._rows if self._write.operation == "insert" else self._changed()
            self._cursor.commit()
            return count

    def abort(self) -> None:
        self._cursor.close()  # which rolls back

    def _found(self, ids: pa.Array) -> pa.RecordBatch:
        """The rows with these ids, one for each and in their order."""
        query = f"SELECT *, rowid FROM {self._table.sql} WHERE rowid IN (SELECT rowid FROM temp.batch)"
        found = self._cursor.execute(query).to_arrow_table()
        places = pc.index_in(ids.cast(pa.int64()), found["rowid"])
        self._require(len(ids), len(ids) - places.null_count)
        return found.drop_columns("rowid").take(places).combine_chunks().to_batches()[0]

    def _changed(self) -> int:
        table, values = self._table.sql, [name for name in self._schema.names if name != "rowid"]
        sets = ", ".join(f"{quoted(name)} = new.{quoted(name)}" for name in values)
        one_each = "(SELECT DISTINCT ON (rowid) * FROM temp.waiting)"  # an UPDATE … FROM may name a row twice
        update = f"UPDATE {table} AS old SET {sets} FROM {one_each} AS new WHERE old.rowid = new.rowid"
        delete = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM temp.waiting)"
        ((asked,),) = self._cursor.execute("SELECT count(DISTINCT rowid) FROM temp.waiting").fetchall()
        ((changed,),) = self._cursor.execute(update if values else delete).fetchall()
        self._require(asked, changed)
        return changed

    def _require(self, asked: int, found: int) -> None:
        if found < asked:
            raise errors.NotFound(f"{asked - found} of {asked} rows are not in {self._table.name!r}: read it again")


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
        except duckdb.IOException as error:  # no DuckDB file, or another process has it open
            sys.exit(str(error))
