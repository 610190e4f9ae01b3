"""Every kind of statement on a connection to a lake."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest

import skiway.duckdb
from any_duckdb.conftest import Locations
from skiway.duckdb import LakeConnection
from skiway.duckdb.expressions import predicate_of
from skiway.duckdb.rewriting import literal, with_parameters
from skiway.errors import InvalidArgument, NotFound, Unsupported


def rows(lake: LakeConnection, query: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    return lake.execute(query, parameters).fetchall()


def test_tables_are_created_changed_read_and_dropped(lake: LakeConnection) -> None:
    assert lake.sql("CREATE TABLE lake.s.t (id BIGINT NOT NULL, name VARCHAR)") is None
    assert rows(lake, "INSERT INTO lake.s.t VALUES (1, 'a'), (2, 'b'), (3, NULL)") == [(3,)]
    assert rows(lake, "UPDATE lake.s.t SET name = upper(name) WHERE id < 3") == [(2,)]
    assert rows(lake, "UPDATE lake.s.t SET name = 'z' WHERE id = 3 RETURNING *") == [(3, "z")]
    assert rows(lake, "DELETE FROM lake.s.t WHERE lake.s.t.name = 'A'") == [(1,)]
    assert rows(lake, "FROM lake.s.t ORDER BY id") == [(2, "B"), (3, "z")]
    assert lake.sql("ALTER TABLE lake.s.t ADD COLUMN day DATE") is None
    assert rows(lake, "SELECT day FROM lake.s.t WHERE day IS NULL LIMIT 1") == [(None,)]
    assert rows(lake, "CREATE TABLE lake.s.u AS SELECT id FROM lake.s.t") == [(2,)]
    assert rows(lake, "TRUNCATE lake.s.t") == [(2,)]
    assert rows(lake, "SHOW TABLES FROM lake.s") == [("t",), ("u",)]
    lake.sql("DROP TABLE lake.s.t; DROP TABLE lake.s.u")
    with pytest.raises(NotFound, match=r"table lake\.s\.t does not exist"):
        lake.sql("FROM lake.s.t")


def test_rows_are_changed_by_joins(lake: LakeConnection) -> None:
    """A row that is joined with several others changes once, and names may be those of both tables."""
    lake.sql("CREATE TABLE lake.s.t AS SELECT i AS id, 'n' || i AS name FROM range(6) r(i)")
    new = pa.table({"id": [1, 1, 2, 9], "name": ["one", "one", "two", "nine"]})
    changed = lake.sql("UPDATE lake.s.t SET name = new.name FROM new WHERE new.id = t.id")
    del new
    assert changed is not None
    assert changed.fetchall() == [(2,)]
    assert rows(
        lake, "UPDATE lake.s.t x SET name = b.name FROM lake.s.t b WHERE b.id = x.id - 1 AND x.id = 5 RETURNING *"
    ) == [(5, "n4")]
    assert rows(
        lake, "DELETE FROM lake.s.t USING (VALUES (3), (3)) v(id), lake.s.t o WHERE t.id = v.id AND o.id = 4"
    ) == [(1,)]
    assert rows(lake, "FROM lake.s.t ORDER BY id") == [(0, "n0"), (1, "one"), (2, "two"), (4, "n4"), (5, "n4")]


def test_relations_keep_their_filters_and_read_current_rows(lake: LakeConnection) -> None:
    lake.sql("CREATE TABLE lake.s.t AS SELECT i AS id, DATE '2024-01-01' + i::INTEGER AS day FROM range(5) r(i)")
    first = lake.sql("SELECT id FROM lake.s.t WHERE day = DATE '2024-01-02'")
    second = lake.sql("SELECT id FROM lake.s.t WHERE day = DATE '2024-01-04'")
    third = lake.sql("SELECT id FROM lake.s.t WHERE day > DATE '2024-01-02'").filter("id > 3")  # type: ignore[union-attr]
    assert first is not None
    assert second is not None
    assert (first.fetchall(), second.fetchall(), third.fetchall()) == ([(1,)], [(3,)], [(4,)])
    lake.sql("INSERT INTO lake.s.t VALUES (9, '2024-01-02')")
    assert sorted(lake.sql("SELECT id FROM lake.s.t WHERE day = DATE '2024-01-02'").fetchall()) == [(1,), (9,)]  # type: ignore[union-attr]
    assert first.filter("id > 5").fetchall() == [(9,)]


def test_objects_of_the_caller_and_temporary_tables_are_read_and_inserted(lake: LakeConnection) -> None:
    new = pa.table({"id": [1, 2], "name": ["a", None]})
    lake.sql("CREATE TABLE lake.s.t AS FROM new")
    lake.sql("INSERT INTO lake.s.t BY NAME SELECT id + 10 AS id FROM new WHERE id = 2")
    lake.sql("CREATE TEMP TABLE wanted AS SELECT 12 AS id")
    found = lake.sql("SELECT id, new.name FROM lake.s.t JOIN wanted USING (id) LEFT JOIN new ON new.id = t.id")
    del new
    assert found is not None
    assert found.fetchall() == [(12, None)]


def test_use_sets_the_schema(lake: LakeConnection) -> None:
    lake.sql("USE lake.s; CREATE TABLE t AS SELECT 1 AS id; UPDATE t SET id = 2")
    assert rows(lake, "FROM t") == rows(lake, "FROM lake.s.t") == [(2,)]
    with pytest.raises(NotFound, match=r"schema lake\.z does not exist"):
        lake.sql("USE lake.z")


VALUES: list[Any] = [
    None,
    True,
    -5,
    2**70,
    1.5,
    float("inf"),
    Decimal("-1.50"),
    "it's ? $1",
    "a\0b",
    b"\x00a",
    date(2024, 2, 29),
    datetime(2024, 2, 29, 1, 2, 3, 4),
    time(1, 2, 3, 4),
    timedelta(days=-1, microseconds=5),
    UUID(int=7),
    [1, None],
    {"a'": [date(2024, 1, 1)]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_parameters_have_the_values_that_duckdb_gives_them(value: Any) -> None:
    with duckdb.connect() as plain:
        given = plain.execute("SELECT ?", [value]).fetchall()
        assert plain.execute(f"SELECT {literal(value)}").fetchall() == given


def test_parameters_are_placeholders_outside_of_strings_and_comments(lake: LakeConnection) -> None:
    lake.sql("CREATE TABLE lake.s.t (id BIGINT, name VARCHAR)")
    rows(lake, "INSERT INTO lake.s.t VALUES (?, ?), ($2, '?') -- ?", [1, "2"])
    query = "SELECT id FROM lake.s.t WHERE name = $name OR name = '$name' /* $other */"
    assert rows(lake, query, {"name": "?"}) == [(2,)]
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    assert with_parameters("SELECT $$?$$, ?", [moment]).endswith("CAST('2024-01-01 00:00:00+00:00' AS TIMESTAMPTZ)")
    with pytest.raises(InvalidArgument, match="no value for parameter 2"):
        lake.sql("SELECT ?, ?", [1])
    with pytest.raises(InvalidArgument, match="no placeholder for parameter 2"):
        lake.sql("SELECT ?", [1, 2])


def test_functions_of_the_catalog_are_called(seen: LakeConnection) -> None:
    assert rows(seen, "SELECT sum(n) FROM seen.s.upto(1 + 3) WHERE n > 1") == [(5,)]
    assert rows(seen, "SELECT count(*) FROM seen.s.upto(3) a JOIN s.upto(4) AS b USING (n)") == [(3,)]
    assert rows(seen, 'CALL seen."s".upto(2)') == [(0,), (1,)]
    assert rows(seen, "SELECT upto.n FROM seen.s.numbers JOIN seen.s.upto(2) ON n = id ORDER BY 1") == [(0,), (1,)]
    with pytest.raises(NotFound, match="nothing"):
        seen.sql("FROM seen.s.nothing(1)")


# -- pushdown ----------------------------------------------------------------------------------------------------------


def scans(seen: LakeConnection, query: str) -> list[tuple[str, str]]:
    """Run a query and return what the server was asked for."""
    before = len(rows(seen, "FROM seen.s.scans"))
    rows(seen, query)
    return rows(seen, "FROM seen.s.scans")[before:]


@pytest.mark.parametrize(
    ("query", "columns", "filters"),
    [
        ("SELECT name FROM seen.s.numbers", "name", []),
        ("SELECT id FROM seen.s.numbers WHERE id = 700", "id", ["700"]),
        ("SELECT name FROM seen.s.numbers WHERE id = 700 AND name > 'a'", "name,id", ["700", '"a"']),
        ("SELECT id FROM seen.s.numbers n WHERE day >= DATE '1970-01-20'", "id,day", ["19"]),
        ("SELECT id FROM (SELECT * FROM seen.s.numbers) WHERE id BETWEEN 3 AND 5", "id", ["3", "5"]),
        ("SELECT a.id FROM seen.s.numbers a LEFT JOIN range(3) r(i) ON a.id = r.i WHERE a.id > 900", "id", ["900"]),
    ],
)
def test_columns_and_filters_are_sent_to_the_server(
    seen: LakeConnection, query: str, columns: str, filters: list[str]
) -> None:
    [(asked, document)] = scans(seen, query)
    assert set(columns.split(",")) >= set(asked.split(",")) >= {columns.split(",")[0]}
    assert all(each in document for each in filters), document
    assert ("BOUND" in document) == bool(filters)


def test_limit_ends_the_scan(seen: LakeConnection) -> None:
    assert len(rows(seen, "SELECT * FROM seen.s.endless LIMIT 1500")) == 1500
    assert rows(seen, "SELECT id FROM seen.s.endless WHERE id = 999 LIMIT 2") == [(999,), (999,)]


NAMES = pa.schema(
    {"id": pa.int64(), "name": pa.string(), "price": pa.decimal128(9, 2), "ok": pa.bool_(), "true": pa.int64()}
)


@pytest.mark.parametrize(
    "text",
    [
        "id > 5",
        "id IN (1, 5, 3000)",
        "id NOT IN (1, 5)",
        "id = 1 OR id = 7",
        "id BETWEEN -3 AND 4",
        "name = 'it''s \"x\" \\ é'",
        "name IN ('a\"b', 'c')",
        "name LIKE 'a%'",
        "price > -1.25",
        "ok = true",
        "id IS NULL",
        "name IS NOT NULL",
        '"true" = 5',
        "id > 2 AND name < 'b' AND price <= 3",
        "name = 'a\nb'",
    ],
)
def test_understood_filters_select_the_same_rows(text: str) -> None:
    """What Arrow's filter selects, the predicate for the server must select too."""
    from skiway.duckdb.scans import LakeScan

    kept = {
        "id": [None, -3, 1, 4, 5, 6, 7, 3000],
        "name": [None, "a", 'a"b', "c", 'it\'s "x" \\ é', "a\nb", "b", "z"],
        "price": [
            None,
            Decimal("-1.25"),
            Decimal("-1.24"),
            Decimal(3),
            Decimal("3.01"),
            Decimal(0),
            Decimal(9),
            Decimal(1),
        ],
        "ok": [None, True, False, True, False, True, False, True],
        "true": [None, 5, 4, 5, 6, 7, 8, 9],
    }
    table = pa.table(kept, schema=NAMES)
    filters: list[Any] = []

    class Seen(LakeScan):
        schema = NAMES

        def __init__(self) -> None: ...

        def scanner(self, columns: Any = None, filter: Any = None, **_: Any) -> Any:  # noqa: A002
            filters.append(filter)
            return pa.dataset.dataset(table).scanner(columns=columns, filter=filter)

    import pyarrow.dataset  # noqa: F401

    from skiway.client.airport.calls import Table
    from skiway.client.airport.filters import Selection

    seen = Seen()  # noqa: F841 - which DuckDB finds by its name
    with duckdb.connect() as plain:
        plain.execute(f"SELECT count(*) FROM seen WHERE {text}").fetchall()
    for each in filters:
        if each is not None and (predicate := predicate_of(each, NAMES)) is not None:
            [batch] = table.to_batches()
            selected = Selection(Table("s", "t", NAMES), None, predicate).apply(batch)
            assert selected.to_pylist() == table.filter(each).to_pylist(), (each, predicate)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_errors_say_what_is_wrong(lake: LakeConnection, servers: Locations) -> None:
    lake.sql("CREATE TABLE lake.s.people AS SELECT 1 AS id")
    with pytest.raises(NotFound, match=r"did you mean lake\.s\.people\?"):
        lake.sql("SELECT * FROM lake.s.peple")
    with pytest.raises(
        InvalidArgument, match=r"^Catalog Error: Table with name peple does not exist; did you mean lake\.s\.people\?$"
    ):
        lake.sql("SELECT * FROM peple")
    with pytest.raises(
        InvalidArgument,
        match=r"^Catalog Error: Table with name pg_other does not exist; write tables as catalog\.schema\.table",
    ):
        lake.sql("SELECT * FROM pg_other")
    with pytest.raises(NotFound, match=r"skiway\.merge"):  # which a lake has, and this server does not
        lake.sql("MERGE INTO lake.s.people p USING (SELECT 1 AS id) q ON p.id = q.id WHEN MATCHED THEN DELETE")
    with pytest.raises(InvalidArgument, match="'localhost:50051' is not a location"):
        skiway.duckdb.connect("localhost:50051")
    with pytest.raises(InvalidArgument, match="nonsense"):
        lake.sql("SELECT nonsense FROM lake.s.people")
    with pytest.raises(InvalidArgument, match="no rows"):
        lake.execute("USE lake.s").fetchall()
    with (
        pytest.raises(NotFound, match="catalog other does not exist"),
        skiway.duckdb.connect(servers.lake, "other") as other,
    ):
        other.sql("FROM other.s.t")


def test_catalogs_are_listed(lake: LakeConnection) -> None:
    assert lake.catalogs() == ["lake"]
    assert rows(lake, "SHOW DATABASES") == [("lake",)]


def test_fields_of_structs_are_not_mistaken_for_columns(lake: LakeConnection) -> None:
    lake.sql("CREATE TABLE lake.s.t (a INTEGER, s STRUCT(a INTEGER, b INTEGER))")
    for change in ("DROP COLUMN s.a", "RENAME COLUMN s.a TO z", "RENAME s.a TO z"):
        with pytest.raises(Unsupported, match="fields of structs"):
            lake.sql(f"ALTER TABLE lake.s.t {change}")
    lake.sql("ALTER TABLE lake.s.t ADD COLUMN IF NOT EXISTS a VARCHAR")
    assert [name for name, *_ in rows(lake, "DESCRIBE lake.s.t")] == ["a", "s"]
    lake.sql("ALTER TABLE lake.s.t RENAME COLUMN a TO x; ALTER TABLE lake.s.t DROP COLUMN s")
    assert [name for name, *_ in rows(lake, "DESCRIBE lake.s.t")] == ["x"]
    lake.sql("ALTER TABLE lake.s.t RENAME x TO y")
    assert [name for name, *_ in rows(lake, "DESCRIBE lake.s.t")] == ["y"]


A_UUID = "'7f1ff8a7-b1a9-4d1f-8f9a-0123456789ab'::UUID"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("UUID[][]", f"[[{A_UUID}, NULL], NULL, []]"),
        ("UUID[2]", f"[{A_UUID}, {A_UUID}]"),
        ('STRUCT("a b" UUID, c INTEGER)[]', f"[{{'a b': {A_UUID}, 'c': 1}}, NULL]"),
        ("MAP(UUID, UUID[])", f"MAP {{{A_UUID}: [{A_UUID}]}}"),
    ],
)
def test_nested_uuids_are_stored(lake: LakeConnection, kind: str, value: str) -> None:
    expected = duckdb.sql(f"SELECT CAST({value} AS {kind})").fetchall()
    lake.sql(f"CREATE TABLE lake.s.t (v {kind}); INSERT INTO lake.s.t VALUES ({value}), (NULL)")
    assert rows(lake, "FROM lake.s.t") == [*expected, (None,)]
    lake.sql(f"CREATE TABLE lake.s.other AS SELECT {value}::{kind} AS v")
    assert rows(lake, "FROM lake.s.other") == expected


def test_rows_have_times_with_time_zone(lake: LakeConnection) -> None:
    """DuckDB needs a package for them, which the extra `duckdb` installs."""
    lake.sql("SET TimeZone = 'UTC'")
    moment = datetime(2024, 1, 2, tzinfo=UTC)
    assert rows(lake, "SELECT TIMESTAMPTZ '2024-01-02 00:00:00+00'") == [(moment,)]
