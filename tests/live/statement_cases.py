"""All kinds of statements: queries, DML, DDL, constraints, and what is not supported."""

from __future__ import annotations

from collections.abc import Iterator

from live.cases import Case, Step, case

__all__ = ["statement_cases"]

PEOPLE = (
    "CREATE TABLE {s}.people (id INTEGER, name VARCHAR, born DATE, score DOUBLE)",
    "INSERT INTO {s}.people VALUES (1, 'Ada', '1815-12-10', 9.5), (2, 'Grace', '1906-12-09', 8.25), "
    "(3, 'Edsger', '1930-05-11', NULL), (4, NULL, NULL, 0)",
)
ALL = "SELECT * FROM {s}.people ORDER BY id"

QUERIES = {
    "projection": "SELECT name FROM {s}.people",
    "no columns": "SELECT 1 FROM {s}.people",
    "count": "SELECT count(*) FROM {s}.people",
    "expression": "SELECT upper(name) || '!' AS loud, score * 2 FROM {s}.people",
    "star expressions": "SELECT * EXCLUDE (born) REPLACE (id + 1 AS id) FROM {s}.people",
    "FROM first": "FROM {s}.people",
    "LIKE": "SELECT id FROM {s}.people WHERE name LIKE '%a%'",
    "ILIKE": "SELECT id FROM {s}.people WHERE name ILIKE 'a%'",
    "prefix": "SELECT id FROM {s}.people WHERE starts_with(name, 'Gr')",
    "regular expression": "SELECT id FROM {s}.people WHERE regexp_matches(name, '^[AG]')",
    "BETWEEN": "SELECT id FROM {s}.people WHERE born BETWEEN '1900-01-01' AND '1910-01-01'",
    "OR": "SELECT id FROM {s}.people WHERE id = 1 OR name = 'Grace' OR score IS NULL",
    "NOT": "SELECT id FROM {s}.people WHERE NOT (score > 5 AND id < 3)",
    "function in filter": "SELECT id FROM {s}.people WHERE year(born) = 1906 AND length(name) > 3",
    "CASE in filter": "SELECT id FROM {s}.people WHERE CASE WHEN id > 2 THEN score IS NULL ELSE true END",
    "cast in filter": "SELECT id FROM {s}.people WHERE id::VARCHAR = '2'",
    "large IN": f"SELECT id FROM {{s}}.people WHERE id IN ({', '.join(map(str, range(2, 2000, 2)))})",
    "IN with NULL": "SELECT id FROM {s}.people WHERE name IN ('Ada', NULL)",
    "NOT IN with NULL": "SELECT id FROM {s}.people WHERE name NOT IN ('Ada', NULL)",
    "impossible": "SELECT id FROM {s}.people WHERE id > 5 AND id < 3",
    "always true": "SELECT id FROM {s}.people WHERE 1 = 1",
    "limit": "SELECT id FROM {s}.people ORDER BY id LIMIT 2 OFFSET 1",
    "top": "SELECT id FROM {s}.people ORDER BY score DESC NULLS LAST, id LIMIT 2",
    "group": "SELECT name IS NULL AS anonymous, count(*), sum(score) FROM {s}.people GROUP BY ALL",
    "having": "SELECT id % 2, count(*) FROM {s}.people GROUP BY 1 HAVING count(*) > 1",
    "grouping sets": "SELECT id % 2 AS a, score > 1 AS b, count(*) FROM {s}.people GROUP BY CUBE (a, b)",
    "window": "SELECT id, row_number() OVER (ORDER BY score), lag(name) OVER (ORDER BY id) FROM {s}.people",
    "qualify": "SELECT id FROM {s}.people QUALIFY row_number() OVER (ORDER BY id DESC) = 1",
    "distinct on": "SELECT DISTINCT ON (id % 2) id % 2, name FROM {s}.people ORDER BY id % 2, id",
    "self join": "SELECT a.id, b.id FROM {s}.people AS a JOIN {s}.people AS b ON a.id < b.id",
    "left join": "SELECT a.id, b.name FROM {s}.people AS a LEFT JOIN {s}.people AS b ON a.id = b.id + 1",
    "anti join": "SELECT id FROM {s}.people AS a ANTI JOIN {s}.people AS b ON a.id = b.id + 1",
    "asof join": "SELECT a.id, b.id FROM {s}.people AS a ASOF JOIN {s}.people AS b ON a.score >= b.score",
    "join with local rows": "SELECT name, x FROM {s}.people JOIN (VALUES (1, 'a'), (3, 'c')) AS v(id, x) USING (id)",
    "lateral": "SELECT id, n FROM {s}.people, LATERAL (SELECT unnest(range(id)) AS n)",
    "correlated": "SELECT id FROM {s}.people AS p WHERE score = (SELECT max(score) FROM {s}.people WHERE id <= p.id)",
    "exists": "SELECT id FROM {s}.people AS p WHERE EXISTS (SELECT 1 FROM {s}.people WHERE id = p.id + 1)",
    "union": "SELECT id FROM {s}.people UNION ALL BY NAME SELECT name FROM {s}.people",
    "except": "SELECT id FROM {s}.people EXCEPT SELECT id FROM {s}.people WHERE id > 2",
    "recursive": "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < "
    "(SELECT max(id) FROM {s}.people)) SELECT * FROM r",
    "materialized": "WITH p AS MATERIALIZED (FROM {s}.people) SELECT a.id FROM p AS a JOIN p AS b ON a.id = b.id",
    "pivot": "PIVOT {s}.people ON name USING count(*) GROUP BY score",
    "unpivot": "UNPIVOT (SELECT id, score, length(name)::DOUBLE AS l FROM {s}.people) ON score, l",
    "sample": "SELECT count(*) FROM (FROM {s}.people USING SAMPLE 100%)",
    "describe": "DESCRIBE {s}.people",
    "show": "SHOW {s}.people",
    "summarize": "SELECT column_name, min, max, null_percentage FROM (SUMMARIZE {s}.people)",
    "columns of a schema": "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'people' "
    "AND '{s}' = database_name || '.' || schema_name ORDER BY column_index",
    "information schema": "SELECT table_name, table_type FROM information_schema.tables "
    "WHERE '{s}' = table_catalog || '.' || table_schema",
    "row ids": "SELECT count(DISTINCT rowid) FROM {s}.people",
    "filter on row id": "SELECT count(*) FROM {s}.people WHERE rowid IS NOT NULL",
    "unknown column": "SELECT nothing FROM {s}.people",
    "unknown table": "SELECT * FROM {s}.nothing",
    "division error": "SELECT CAST(name AS INTEGER) FROM {s}.people",
}

CHANGES = {
    "insert some columns": "INSERT INTO {s}.people (name, id) VALUES ('Alan', 5)",
    "insert by name": "INSERT INTO {s}.people BY NAME SELECT 'Alan' AS name, 5 AS id",
    "insert default": "INSERT INTO {s}.people VALUES (5, DEFAULT, DEFAULT, 1)",
    "insert default values": "INSERT INTO {s}.people DEFAULT VALUES",
    "insert casts": "INSERT INTO {s}.people VALUES ('5', 6, '2000-01-01', '7.5')",
    "insert from itself": "INSERT INTO {s}.people SELECT id + 10, name, born, score FROM {s}.people",
    "insert too few": "INSERT INTO {s}.people VALUES (1, 2)",
    "insert bad value": "INSERT INTO {s}.people VALUES ('x', 'y', '2000-01-01', 1)",
    "insert unknown column": "INSERT INTO {s}.people (nothing) VALUES (1)",
    "insert nothing": "INSERT INTO {s}.people SELECT * FROM {s}.people WHERE false",
    "insert returning expression": "INSERT INTO {s}.people (id) VALUES (5), (6) RETURNING id * 2 AS twice, name",
    "update all": "UPDATE {s}.people SET score = id * 1.5",
    "update nothing": "UPDATE {s}.people SET score = 1 WHERE false",
    "update several": "UPDATE {s}.people SET score = 1, name = 'x' WHERE id > 2",
    "update swap": "UPDATE {s}.people SET id = score, score = id WHERE score IS NOT NULL",
    "update default": "UPDATE {s}.people SET score = DEFAULT",
    "update from": "UPDATE {s}.people SET name = v.x FROM (VALUES (1, 'one'), (3, 'three')) AS v(id, x) WHERE people.id = v.id",
    "update from itself": "UPDATE {s}.people SET score = b.id FROM {s}.people AS b WHERE people.id = b.id + 1",
    "update subquery": "UPDATE {s}.people SET score = (SELECT max(score) FROM {s}.people)",
    "update returning": "UPDATE {s}.people SET score = 2 WHERE id < 3 RETURNING id, score + 1 AS more",
    "update bad cast": "UPDATE {s}.people SET id = name",
    "update unknown column": "UPDATE {s}.people SET nothing = 1",
    "delete some": "DELETE FROM {s}.people WHERE score IS NULL",
    "delete all": "DELETE FROM {s}.people",
    "delete nothing": "DELETE FROM {s}.people WHERE false",
    "delete using": "DELETE FROM {s}.people USING (VALUES (1), (2)) AS v(id) WHERE people.id = v.id",
    "delete subquery": "DELETE FROM {s}.people WHERE id IN (SELECT id FROM {s}.people WHERE score > 1)",
    "delete returning": "DELETE FROM {s}.people WHERE id = 1 RETURNING name, born",
    "truncate": "TRUNCATE {s}.people",
    "merge": "MERGE INTO {s}.people USING (SELECT 1 AS id) AS v ON people.id = v.id WHEN MATCHED THEN DELETE",
    "insert or replace": "INSERT OR REPLACE INTO {s}.people VALUES (1, 'x', NULL, NULL)",
    "on conflict": "INSERT INTO {s}.people VALUES (1, 'x', NULL, NULL) ON CONFLICT DO NOTHING",
}

DEFINITIONS = {
    "add column": "ALTER TABLE {s}.people ADD COLUMN extra INTEGER",
    "add column again": "ALTER TABLE {s}.people ADD COLUMN name INTEGER",
    "add column if not exists": "ALTER TABLE {s}.people ADD COLUMN IF NOT EXISTS name INTEGER",
    "add column with default": "ALTER TABLE {s}.people ADD COLUMN extra INTEGER DEFAULT 7",
    "add not null column": "ALTER TABLE {s}.people ADD COLUMN extra INTEGER NOT NULL",
    "add list column": "ALTER TABLE {s}.people ADD COLUMN extra INTEGER[]",
    "drop column": "ALTER TABLE {s}.people DROP COLUMN born",
    "drop unknown column": "ALTER TABLE {s}.people DROP COLUMN nothing",
    "drop column if exists": "ALTER TABLE {s}.people DROP COLUMN IF EXISTS nothing",
    "drop column in other case": "ALTER TABLE {s}.people DROP COLUMN BORN",
    "rename column": "ALTER TABLE {s}.people RENAME COLUMN name TO title",
    "rename column in other case": "ALTER TABLE {s}.people RENAME COLUMN NAME TO title",
    "rename column to its other case": "ALTER TABLE {s}.people RENAME COLUMN name TO NAME",
    "rename to existing column": "ALTER TABLE {s}.people RENAME COLUMN name TO born",
    "rename table in other case": "ALTER TABLE {s}.PEOPLE RENAME TO people2",
    "widen": "ALTER TABLE {s}.people ALTER COLUMN id TYPE BIGINT",
    "widen in other case": "ALTER TABLE {s}.people ALTER COLUMN ID TYPE BIGINT",
    "narrow": "ALTER TABLE {s}.people ALTER COLUMN id TYPE TINYINT",
    "to text": "ALTER TABLE {s}.people ALTER COLUMN id TYPE VARCHAR",
    "convert with expression": "ALTER TABLE {s}.people ALTER COLUMN id TYPE VARCHAR USING 'n' || id",
    "impossible type": "ALTER TABLE {s}.people ALTER COLUMN name TYPE INTEGER",
    "set not null": "ALTER TABLE {s}.people ALTER COLUMN id SET NOT NULL",
    "set not null with nulls": "ALTER TABLE {s}.people ALTER COLUMN name SET NOT NULL",
    "drop not null": "ALTER TABLE {s}.people ALTER COLUMN id DROP NOT NULL",
    "set default": "ALTER TABLE {s}.people ALTER COLUMN score SET DEFAULT 5",
    "drop default": "ALTER TABLE {s}.people ALTER COLUMN score DROP DEFAULT",
    "add primary key": "ALTER TABLE {s}.people ADD PRIMARY KEY (id)",
    "create again": "CREATE TABLE {s}.people (i INTEGER)",
    "create again in other case": "CREATE TABLE {s}.PEOPLE (i INTEGER)",
    "create if not exists": "CREATE TABLE IF NOT EXISTS {s}.people (i INTEGER)",
    "create or replace": "CREATE OR REPLACE TABLE {s}.people (i INTEGER)",
    "create as if not exists": "CREATE TABLE IF NOT EXISTS {s}.people AS SELECT 1 AS i",
    "create as again": "CREATE TABLE {s}.people AS SELECT 1 AS i",
    "drop": "DROP TABLE {s}.people",
    "drop in other case": "DROP TABLE {s}.PEOPLE",
    "drop if exists": "DROP TABLE IF EXISTS {s}.nothing",
    "drop unknown": "DROP TABLE {s}.nothing",
    "drop full schema": "DROP SCHEMA {s}",
    "drop schema cascade": "DROP SCHEMA {s} CASCADE",
    "create schema again": "CREATE SCHEMA {s}",
    "create schema if not exists": "CREATE SCHEMA IF NOT EXISTS {s}",
    "drop schema if exists": "DROP SCHEMA IF EXISTS db.nothing_at_all",
    "drop unknown schema": "DROP SCHEMA db.nothing_at_all",
    "create view": "CREATE VIEW {s}.v AS SELECT 1",
    "create index": "CREATE INDEX i ON {s}.people (id)",
    "create sequence": "CREATE SEQUENCE {s}.q",
    "create macro": "CREATE MACRO {s}.m(x) AS x + 1",
    "create type": "CREATE TYPE {s}.t AS ENUM ('a', 'b')",
    "comment": "COMMENT ON TABLE {s}.people IS 'folks'",
    "analyze": "ANALYZE {s}.people",
}

TABLES = {
    "two columns with the same name": "(a INTEGER, A INTEGER)",
    "not null": "(i INTEGER NOT NULL, t VARCHAR)",
    "primary key": "(i INTEGER PRIMARY KEY, t VARCHAR)",
    "compound key": "(i INTEGER, t VARCHAR, PRIMARY KEY (i, t))",
    "unique": "(i INTEGER UNIQUE, t VARCHAR)",
    "check": "(i INTEGER CHECK (i > 0), t VARCHAR)",
    "check of two columns": "(i INTEGER, t VARCHAR, CHECK (i > length(t)))",
    "default": "(i INTEGER, t VARCHAR DEFAULT 'x')",
    "generated": "(i INTEGER, t VARCHAR, g INTEGER GENERATED ALWAYS AS (i + 1))",
    "unknown type": "(i NOTHING)",
}


def statement_cases() -> Iterator[Case]:
    for label, query in QUERIES.items():
        yield case(f"queries/{label}", *PEOPLE, query)
    for label, change in CHANGES.items():
        yield case(f"changes/{label}", *PEOPLE, change, ALL)
    for label, definition in DEFINITIONS.items():
        after = ("INSERT INTO {s}.people (id) VALUES (9)", "DESCRIBE {s}.people", "SELECT * FROM {s}.people")
        yield case(f"definitions/{label}", *PEOPLE, definition, *after)
    for label, columns in TABLES.items():
        yield case(
            f"constraints/{label}",
            f"CREATE TABLE {{s}}.t {columns}",
            "INSERT INTO {s}.t (i, t) VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO {s}.t (i, t) VALUES (1, 'a')",
            "INSERT INTO {s}.t (i, t) VALUES (-1, 'c')",
            "INSERT INTO {s}.t (t) VALUES ('d')",
            "INSERT INTO {s}.t (i) VALUES (8)",
            "UPDATE {s}.t SET i = 2 WHERE i = 1",
            "UPDATE {s}.t SET i = NULL WHERE i = 2",
            "SELECT * FROM {s}.t ORDER BY ALL",
            "DESCRIBE {s}.t",
        )
    yield from _structs()
    yield from _transactions()
    yield case(
        "copy",
        *PEOPLE,
        "COPY {s}.people TO '/dev/null' (FORMAT csv)",
        Step("COPY (SELECT * FROM {s}.people) TO '/dev/null' (FORMAT parquet)"),
        "CREATE TABLE {s}.copied AS FROM {s}.people",
        "SELECT * FROM {s}.copied ORDER BY id",
    )
    yield from _failures()
    yield case(
        "prepared statements",
        *PEOPLE,
        "PREPARE p AS SELECT name FROM {s}.people WHERE id = ?",
        "EXECUTE p(2)",
        "PREPARE q AS INSERT INTO {s}.people (id, name) VALUES (?, ?)",
        "EXECUTE q(7, 'Barbara')",
        "EXECUTE p(7)",
    )


def _failures() -> Iterator[Case]:
    """Statements whose query fails, at the first row or after many."""
    late = "SELECT CASE WHEN i = 99999 THEN error('no')::BIGINT ELSE i END AS x FROM range(100000) AS r(i)"
    rows = "SELECT count(*), sum(x) FROM {s}.t"
    yield case("failures/create as", "CREATE TABLE {s}.t AS SELECT error('no')::BIGINT AS x", "SELECT * FROM {s}.t")
    yield case("failures/late create as", f"CREATE TABLE {{s}}.t AS {late}", "SELECT * FROM {s}.t")
    yield case("failures/late insert", "CREATE TABLE {s}.t (x BIGINT)", f"INSERT INTO {{s}}.t {late}", rows)
    yield case(
        "failures/late update",
        "CREATE TABLE {s}.t AS SELECT i AS x FROM range(100000) AS r(i)",
        "UPDATE {s}.t SET x = CASE WHEN x = 99999 THEN error('no')::BIGINT ELSE -x END",
        rows,
    )
    yield case(
        "failures/late delete",
        "CREATE TABLE {s}.t AS SELECT i AS x FROM range(100000) AS r(i)",
        "DELETE FROM {s}.t WHERE CASE WHEN x = 99999 THEN error('no')::BOOLEAN ELSE true END",
        rows,
    )


def _structs() -> Iterator[Case]:
    create = "CREATE TABLE {s}.t (i INTEGER, s STRUCT(a INTEGER, b STRUCT(c VARCHAR)))"
    insert = "INSERT INTO {s}.t VALUES (1, {'a': 1, 'b': {'c': 'x'}}), (2, NULL)"
    changes = {
        "add field": "ALTER TABLE {s}.t ADD COLUMN s.d INTEGER",
        "add nested field": "ALTER TABLE {s}.t ADD COLUMN s.b.d INTEGER",
        "drop field": "ALTER TABLE {s}.t DROP COLUMN s.a",
        "rename field": "ALTER TABLE {s}.t RENAME COLUMN s.a TO z",
        "drop unknown field": "ALTER TABLE {s}.t DROP COLUMN s.nothing",
    }
    for label, change in changes.items():
        yield case(f"structs/{label}", create, insert, change, "DESCRIBE {s}.t", "SELECT * FROM {s}.t ORDER BY i")
    yield case(
        "structs/fields in filters",
        create,
        insert,
        "SELECT i FROM {s}.t WHERE s.a = 1",
        "SELECT s.b.c FROM {s}.t WHERE s.b.c = 'x'",
        "SELECT i FROM {s}.t WHERE s.a IS NULL",
        "UPDATE {s}.t SET s = {'a': 5, 'b': {'c': NULL}} WHERE i = 2",
        "SELECT * FROM {s}.t ORDER BY i",
    )


def _transactions() -> Iterator[Case]:
    insert = "INSERT INTO {s}.people (id) VALUES (5)"
    yield case(
        "transactions/commit", *PEOPLE, "BEGIN", insert, ALL, "UPDATE {s}.people SET score = 1", ALL, "COMMIT", ALL
    )
    yield case("transactions/rollback", *PEOPLE, "BEGIN", insert, "ROLLBACK", ALL)
    yield case(
        "transactions/rollback of a table", "BEGIN", "CREATE TABLE {s}.t (i INTEGER)", "ROLLBACK", "SELECT * FROM {s}.t"
    )
    yield case(
        "transactions/after an error",
        *PEOPLE,
        "BEGIN",
        "INSERT INTO {s}.people VALUES ('x', 'y', NULL, 1)",
        insert,
        "ROLLBACK",
        ALL,
    )
    yield case("transactions/read only", *PEOPLE, "BEGIN READ ONLY", ALL, insert, "ROLLBACK", ALL)
