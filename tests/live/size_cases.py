"""Tables of sizes at which something begins: DuckDB's vectors (2,048 rows), its row groups (122,880), Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

from live.cases import Case, case

__all__ = ["size_cases"]

SIZES = (0, 1, 2047, 2048, 2049, 4096, 65536, 122879, 122880, 122881)

FACTS = "SELECT count(*), sum(i), min(i), max(i), count(DISTINCT t), sum(length(t)), count(n) FROM {s}.t"


def size_cases() -> Iterator[Case]:
    for size in SIZES:
        rows = f"SELECT i, 'row ' || i AS t, CASE WHEN i % 3 = 0 THEN i END AS n FROM range({size}) AS r(i)"
        create = "CREATE TABLE {s}.t (i BIGINT, t VARCHAR, n BIGINT)"
        insert = f"INSERT INTO {{s}}.t {rows}"
        yield case(
            f"sizes/{size}/ctas",
            f"CREATE TABLE {{s}}.t AS {rows}",
            FACTS,
            "SELECT * FROM {s}.t ORDER BY i DESC LIMIT 5",
        )
        yield case(
            f"sizes/{size}/insert",
            create,
            insert,
            FACTS,
            insert,
            FACTS,
            f"SELECT count(*) FROM {{s}}.t WHERE i >= {size} - 1 AND t LIKE 'row%'",
            "SELECT count(*) FROM {s}.t AS a JOIN {s}.t AS b USING (t)",
        )
        yield case(
            f"sizes/{size}/returning",
            create,
            f"{insert} RETURNING i, n",
            "DELETE FROM {s}.t WHERE i % 2 = 0 RETURNING i",
            FACTS,
        )
        yield case(
            f"sizes/{size}/update and delete",
            create,
            insert,
            "UPDATE {s}.t SET i = i + 1, t = t || '!'",
            FACTS,
            "UPDATE {s}.t SET n = i WHERE n IS NULL",
            FACTS,
            "DELETE FROM {s}.t WHERE i % 2 = 1",
            FACTS,
            "DELETE FROM {s}.t",
            FACTS,
        )
