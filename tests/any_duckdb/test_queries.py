"""The same queries on the lake and on local tables of plain DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from any_duckdb.conftest import Locations
from skiway import duckdb as skiway_duckdb
from skiway.duckdb import LakeConnection

ROWS = """
    SELECT i AS id, CASE WHEN i % 7 = 0 THEN NULL ELSE 'n' || i % 5 END AS name, i % 3 = 0 AS even,
        (i * 1.5)::DOUBLE AS f, (i / 4)::DECIMAL(12, 3) AS price, DATE '2024-01-01' + (i % 40)::INTEGER AS day,
        TIMESTAMP '2024-01-01' + to_microseconds(i * 1000001) AS moment, [i, NULL] AS list, {'x': i, 'y': 'a'} AS s,
        CASE WHEN i % 11 = 0 THEN 'nan'::DOUBLE WHEN i % 13 = 0 THEN NULL ELSE -i END AS d
    FROM range(300) r(i)
"""
SETUP = (
    "CREATE SCHEMA {c}.q",
    "CREATE TABLE {c}.q.a AS " + ROWS,
    "CREATE TABLE {c}.q.b AS SELECT i AS id, 'n' || i AS name, NULL::INTEGER AS nothing FROM range(4) r(i)",
    'CREATE TABLE {c}.q."Zürich x" AS SELECT i AS "größe 1", i AS "select" FROM range(3) r(i)',
)
QUERIES = (
    "SELECT * FROM a",
    "SELECT a.id, b.name FROM a JOIN b USING (name)",
    "SELECT a.id, b.nothing FROM a LEFT JOIN b ON a.name = b.name WHERE b.id IS NULL OR b.id = 2",
    "SELECT a.id, b.id FROM a RIGHT JOIN b ON a.id = b.id AND a.day > DATE '2024-01-02'",
    "SELECT * FROM a FULL JOIN b ON a.id = b.id WHERE a.day >= DATE '2024-02-01' OR b.id = 3",
    "SELECT name, count(*), sum(price), avg(f), min(day), max(moment), bool_or(even) FROM a GROUP BY name",
    "SELECT name, count(*) FROM a GROUP BY ROLLUP (name) HAVING count(*) > 10",
    "SELECT count(*), count(d), sum(id) FILTER (WHERE even) FROM a",
    *(
        f"SELECT id FROM a WHERE {condition}"
        for condition in (
            "id = 5",
            "id <> 5",
            "id IN (1, 5, 250)",
            "id NOT IN (1, 5)",
            "id > 5 AND id <= 9 OR id = 100",
            "id = 5.0",
            "id > 5.5",
            "name = 'n1'",
            "name IS NULL",
            "name IS NOT NULL AND name LIKE 'n%1'",
            "name IN ('n1', 'n2')",
            "NOT even",
            "even",
            "even = true",
            "f > 10.25",
            "price = 2.250",
            "price BETWEEN 1 AND 2",
            "day = '2024-01-03'",
            "day >= DATE '2024-02-01'",
            "day < '-infinity'",
            "day IN (DATE '2024-01-02', DATE '0044-03-15 (BC)')",
            "moment > TIMESTAMP '2024-01-01 00:00:05.000004'",
            "moment = 'infinity'",
            "d > 5",
            "d = 'nan'",
            "d <= -100",
            "d IS DISTINCT FROM NULL",
            "s.x = 7",
            "list[1] = 8",
            "id % 2 = 0 AND day > DATE '2024-01-20'",
            "id = (SELECT max(id) FROM b)",
            "id IN (SELECT id FROM b WHERE name > 'n0')",
            "EXISTS (FROM b WHERE b.id = a.id)",
            "(id, name) IN (SELECT id, name FROM b)",
            "id > ALL (SELECT id FROM b)",
            "a.id < 3 AND day IS NOT NULL",
            "false",
            "NULL",
        )
    ),
    "SELECT id FROM a ORDER BY id DESC LIMIT 3",
    "SELECT id FROM a ORDER BY name NULLS FIRST, id LIMIT 5 OFFSET 2",
    "SELECT count(*) FROM (SELECT * FROM a LIMIT 7)",
    "SELECT count(*) FROM (SELECT * FROM a WHERE day > DATE '2024-01-10' LIMIT 7)",
    "SELECT id FROM a WHERE id % 100 = 99 AND day IS NOT NULL LIMIT 3",
    "SELECT DISTINCT name FROM a",
    "SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) FROM a QUALIFY row_number() OVER (PARTITION BY name ORDER BY id) < 3",
    "SELECT id, lag(id, 2) OVER (ORDER BY id), sum(price) OVER (ORDER BY id ROWS 3 PRECEDING) FROM a",
    "WITH c AS (SELECT * FROM a WHERE id < 10), a AS (SELECT 1 AS id) SELECT c.id FROM c JOIN a ON c.id > a.id",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n, name FROM r JOIN b ON b.id = n",
    "SELECT id FROM a WHERE id < 3 UNION ALL SELECT id FROM b UNION SELECT 99",
    "SELECT id FROM b EXCEPT SELECT id FROM a WHERE day = DATE '2024-01-02'",
    "SELECT unnest(list) FROM a WHERE id < 3",
    "SELECT b.name, l.id FROM b, LATERAL (SELECT a.id FROM a WHERE a.name = b.name AND a.id < 20) l",
    "FROM a SELECT max(id) WHERE day = DATE '2024-01-05'",
    "SELECT x.id FROM a x, a y WHERE x.id = y.id + 1 AND x.day = DATE '2024-01-05' AND y.id > 3",
    "SELECT id FROM a AS t(id2) WHERE id2 < 3 AND day < DATE '2024-01-03'".replace("SELECT id ", "SELECT id2 "),
    'SELECT "größe 1" FROM "Zürich x" WHERE "select" > 0',
    'SELECT "Zürich x"."größe 1" AS "ä b" FROM "Zürich x" ORDER BY 1 LIMIT 2',
    "SELECT a.* EXCLUDE (s, list), COLUMNS('^f$') + 1 FROM a WHERE id < 5",
    "PIVOT (SELECT name, even, id FROM a WHERE day < DATE '2024-01-20') ON even USING sum(id)",
    "SELECT * FROM a ASOF JOIN b ON a.id >= b.id WHERE a.id < 9",
    "SELECT count(*) FROM a POSITIONAL JOIN b",
    "SELECT id FROM a USING SAMPLE 100%",
    "SELECT (SELECT count(*) FROM b WHERE b.id < a.id) FROM a WHERE a.day = DATE '2024-01-02'",
    "SUMMARIZE b",
    "SELECT 'x' AS a -- FROM b",
    "VALUES (1), (2)",
)


@pytest.fixture(scope="module")
def lake(servers: Locations) -> Iterator[LakeConnection]:
    with skiway_duckdb.connect(servers.lake) as connection:
        for statement in SETUP:
            connection.sql(statement.replace("{c}", "lake"))
        connection.sql("USE lake.q")
        yield connection


@pytest.fixture(scope="module")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS lake").fetchall()
        for statement in SETUP:
            connection.execute(statement.replace("{c}", "lake")).fetchall()
        connection.execute("USE lake.q").fetchall()
        yield connection


@pytest.mark.parametrize("query", QUERIES)
def test_rows_and_types_are_those_of_plain_duckdb(
    lake: LakeConnection, plain: duckdb.DuckDBPyConnection, query: str
) -> None:
    found, expected = lake.sql(query), plain.sql(query)
    assert found is not None
    assert found.columns == expected.columns
    assert list(map(str, found.types)) == list(map(str, expected.types))
    if "ORDER BY" in query and "OVER" not in query:
        assert repr(found.fetchall()) == repr(expected.fetchall())
    else:
        assert sorted(map(repr, found.fetchall())) == sorted(map(repr, expected.fetchall()))
