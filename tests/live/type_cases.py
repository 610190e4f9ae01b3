"""Every type of DuckDB in every kind of statement."""

from __future__ import annotations

from collections.abc import Iterator

from duckdb_types import SHAPES, TYPES, Type
from live.cases import ATTACH_AGAIN, LOSSLESS, Case, Step, case

__all__ = ["type_cases"]

NUMBERS_AND_TIMES = {"BOOLEAN", "INTEGER", "HUGEINT", "small HUGEINT", "UHUGEINT", "BIGNUM", "TIME_NS", "TIMETZ"}
SENT_DIFFERENTLY = NUMBERS_AND_TIMES | {
    "UUID",
    "BIT",
    "JSON",
    "GEOMETRY",
    "BOOLEAN[]",
    "UUID[]",
    "small STRUCT",
    "UNION",
}
"""The types that lossless conversion changes, alone or nested, and one that it does not."""

FAMILIES = {
    *(
        "BOOLEAN",
        "UTINYINT",
        "small HUGEINT",
        "DOUBLE",
        "DECIMAL(38,10)",
        "VARCHAR",
        "BLOB",
        "wide DATE",
        "TIME",
        "TIMESTAMPTZ",
    ),
    *("INTERVAL", "UUID", "JSON", "ENUM", "GEOMETRY"),
}
"""A type of each family, which is tested in each kind of nesting."""

ORDERED = "SELECT * FROM {s}.t ORDER BY id"
CREATE = "CREATE TABLE {{s}}.t (id INTEGER, v {sql})"


def type_cases() -> Iterator[Case]:
    """Each type in each kind of statement, with DuckDB's default settings and with lossless conversion."""
    for mode, settings in (("default", ()), ("lossless", (LOSSLESS,))):
        for each in (each for each in TYPES if mode == "default" or each.name in SENT_DIFFERENTLY):
            for kind, steps in _kinds(each).items():
                targets = ("memory", "lake") if kind == "time travel" else ("memory", "file", "lake")
                yield case(f"types/{mode}/{each.name}/{kind}", *steps, targets=targets, settings=settings)
    for each in TYPES:
        yield case(f"types/default/{each.name}/on the server", *_on_the_server(each), targets=["lake"])
    for shape in SHAPES:
        for each in (shape.of(each) for each in TYPES if each.name in FAMILIES):
            kinds = _kinds(each)
            yield case(f"types/nested/{each.name}/attached again", *kinds["attached again"])
            yield case(f"types/nested/{each.name}/on the server", *_on_the_server(each), targets=["lake"])
    yield case("types/default/NULL/ctas", "CREATE TABLE {s}.t AS SELECT 1 AS id, NULL AS v", "DESCRIBE {s}.t", ORDERED)


def _kinds(each: Type) -> dict[str, list[str | Step]]:
    create = CREATE.format(sql=each.sql)
    filled: list[str | Step] = [create, f"INSERT INTO {{s}}.t {each.rows()}"]
    one, other = each.cast(each.values[0]), each.cast(each.values[-1])
    return {
        "create": [create, "DESCRIBE {s}.t", "SELECT * FROM {s}.t"],
        "ctas": [f"CREATE TABLE {{s}}.t AS {each.rows()}", "DESCRIBE {s}.t", ORDERED],
        "insert": [
            create,
            *(f"INSERT INTO {{s}}.t VALUES ({i}, {each.cast(value)})" for i, value in enumerate(each.values)),
            f"INSERT INTO {{s}}.t {each.rows()}",
            "INSERT INTO {s}.t (id) VALUES (99)",
            ORDERED,
        ],
        "update": [
            *filled,
            f"UPDATE {{s}}.t SET v = {other} WHERE id = 0",
            ORDERED,
            "UPDATE {s}.t SET v = NULL WHERE id = 1",
            f"UPDATE {{s}}.t SET v = {one} WHERE v IS NULL",
            ORDERED,
            "DELETE FROM {s}.t WHERE id = 0",
            ORDERED,
        ],
        "returning": [
            create,
            f"INSERT INTO {{s}}.t {each.rows()} RETURNING *",
            f"UPDATE {{s}}.t SET v = {other} WHERE id = 0 RETURNING id, v",
            "DELETE FROM {s}.t WHERE id = 0 RETURNING *",
            ORDERED,
        ],
        "attached again": [
            *filled,
            *ATTACH_AGAIN,
            "DESCRIBE {s}.t",
            ORDERED,
            f"UPDATE {{s}}.t SET v = {other} WHERE id = 0",
            f"SELECT id FROM {{s}}.t WHERE v = {other} ORDER BY id",
            f"INSERT INTO {{s}}.t VALUES (98, {one}), (99, NULL)",
            ORDERED,
        ],
        "filter": [*filled, *_filters(each)],
        "statistics": [
            *filled,
            "SELECT count(*), count(v), count(DISTINCT v) FROM {s}.t",
            "SELECT min(v), max(v) FROM {s}.t",
            f"SELECT count(*) FROM {{s}}.t WHERE v > {other}",
            f"SELECT count(*) FROM {{s}}.t WHERE v < {one}",
            Step("SELECT stats(v) FROM {s}.t LIMIT 1", compare="success"),
        ],
        "time travel": [
            *filled,
            Step("SELECT now()::TIMESTAMP", compare="success", save="moment"),
            "UPDATE {s}.t SET v = NULL",
            Step(
                "SELECT * FROM {s}.t AT (TIMESTAMP => TIMESTAMP '{moment}') ORDER BY id",
                plain=each.rows() + " ORDER BY id",
            ),
            ORDERED,
        ],
    }


def _on_the_server(each: Type) -> list[str | Step]:
    """Values of server-side SQL, and of a view."""
    rows = each.rows()
    return [
        Step(f"SELECT * FROM db.skiway.query($q${rows}$q$) ORDER BY id", plain=f"{rows} ORDER BY id"),
        Step(
            f"CALL db.skiway.create_view('{{schema}}.v', $q${rows}$q$)",
            plain=f"CREATE VIEW {{s}}.v AS {rows}",
            compare="success",
        ),
        *ATTACH_AGAIN,
        "SELECT * FROM {s}.v ORDER BY id",
        "SELECT id FROM {s}.v WHERE v IS NOT NULL ORDER BY id",
    ]


def _filters(each: Type) -> list[str | Step]:
    ids = "SELECT id FROM {s}.t WHERE "
    conditions = ["v IS NULL", "v IS NOT NULL"]
    for value in map(each.cast, (each.values[0], each.values[-1])):
        conditions += [f"v {operator} {value}" for operator in ("<>", "<", "<=", ">", ">=", "IS DISTINCT FROM")]
    conditions += [f"v = {each.cast(value)}" for value in each.values]
    listed = ", ".join(map(each.cast, each.values[:2]))
    conditions += [f"v IN ({listed})", f"v NOT IN ({listed})", f"v IS NULL OR v = {each.cast(each.values[-1])}"]
    return [f"{ids}{condition} ORDER BY id" for condition in conditions]
