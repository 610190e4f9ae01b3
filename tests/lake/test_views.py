"""Views: created by `skiway.create_view`, read like tables, and run on the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import (
    AlreadyExists,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    Unsupported,
)
from skiway.lake.system.effects import EffectFunction
from skiway.metastore import catalogs, grants, namespaces, tables, views
from skiway.model import v1
from skiway.sql import QueryEngine

ROWS = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "region": [f"r{number % 4}" for number in range(1000)],
        "amount": pa.array([number * 1.5 for number in range(1000)]),
        "tags": [[f"t{number % 3}"] for number in range(1000)],
    }
)


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """A client of a lake with one table."""
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", ROWS.schema)
        client.insert("s.t", ROWS)
        yield client


def create_view(db: AirportClient, name: str, sql: str, **named: Any) -> dict[str, Any]:
    (row,) = db.call("skiway.create_view", name, sql, named=named).read_all().to_pylist()
    db.reload()
    return dict(row)


def rows(db: AirportClient, name: str, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = db.scan(name, **options).read_all().to_pylist()
    return found


def expected(sql: str) -> list[dict[str, Any]]:
    with duckdb.connect() as duck:
        duck.register("t", ROWS)
        found: list[dict[str, Any]] = duck.execute(sql).to_arrow_table().to_pylist()
        return found


def test_view_is_created_read_and_dropped(db: AirportClient) -> None:
    sql = "SELECT region, sum(id) AS total, count(*) AS n, avg(amount) AS mean FROM s.t GROUP BY region ORDER BY region"
    created = create_view(db, "s.totals", sql, comment="by region")
    assert created == {
        "view": "managed.s.totals",
        "action": "created",
        "columns": ["region VARCHAR", "total HUGEINT", "n BIGINT", "mean DOUBLE"],
    }
    shown = db.table("s.totals")
    assert (shown.comment, shown.columns) == ("by region", ("region", "total", "n", "mean"))
    found = sorted(rows(db, "s.totals", columns=["n", "mean", "region"]), key=lambda row: row["region"])
    wanted = expected(sql.replace("s.t", "t"))
    assert [(row["region"], row["n"], row["mean"]) for row in found] == [
        (row["region"], row["n"], row["mean"]) for row in wanted
    ]
    db.call("skiway.drop_view", "s.totals").read_all()
    db.reload()
    with pytest.raises(NotFound):
        db.table("s.totals")


def test_client_learns_about_a_view_without_a_new_listing(db: AirportClient) -> None:
    """DuckDB's client never loads its listing again: dbt learns from these two statements what it has created."""
    shown = pa.schema({"shown": pa.bool_()})
    db.call("skiway.create_view", "s.few", "SELECT id FROM t WHERE id < 3").read_all()
    db.create_table("s.few", shown, on_conflict="ignore")
    assert db.table("s.few").columns == ("id",)
    replace = {"replace": True}
    db.call("skiway.create_view", "s.few", "SELECT id, region FROM t WHERE id < 3", named=replace).read_all()
    db.rename_table("s.few", "few")
    assert db.table("s.few").columns == ("id", "region")
    assert rows(db, "s.few")[:1] == [{"id": 0, "region": "r0"}]
    with pytest.raises(AlreadyExists):
        db.create_table("s.few", shown)
    with pytest.raises(Unsupported, match="is a view"):
        db.rename_table("s.few", "other")
    with pytest.raises(NotFound):
        db.rename_table("s.none", "none")


def test_changes_of_the_table_are_visible_in_the_view(db: AirportClient) -> None:
    create_view(db, "s.few", "SELECT id FROM t WHERE id < 3")
    assert [row["id"] for row in rows(db, "s.few")] == [0, 1, 2]
    db.delete("s.t", where=col("id") == 1)
    assert [row["id"] for row in rows(db, "s.few")] == [0, 2]


@pytest.mark.parametrize(
    ("options", "predicate"),
    [
        ({"where": col("id") == 7}, "id = 7"),
        ({"where": (col("id") > 990) & (col("region") == "r1")}, "id > 990 AND region = 'r1'"),
        ({"where": col("amount") >= 1497.0, "columns": ["region", "id"]}, "amount >= 1497.0"),
        ({"columns": ["tags"]}, "true"),
    ],
)
def test_filters_and_columns(db: AirportClient, options: dict[str, Any], predicate: str) -> None:
    create_view(db, "s.v", "SELECT id, region, amount, tags FROM s.t")
    columns = ", ".join(options.get("columns", ["id", "region", "amount", "tags"]))
    found = sorted(rows(db, "s.v", **options), key=repr)
    assert found == sorted(expected(f"SELECT {columns} FROM t WHERE {predicate}"), key=repr)


def test_filter_reaches_the_files(db: AirportClient) -> None:
    """Of a table with many files, the view reads those that its own query selects."""
    db.create_table("s.parts", ROWS.schema)
    for start in range(0, 1000, 250):
        db.insert("s.parts", ROWS.slice(start, 250))
    create_view(db, "s.late", "SELECT id, region FROM s.parts WHERE id >= 750")
    assert len(rows(db, "s.late")) == 250
    plan = db.scan("skiway.plans", where=col("table_name") == "parts").read_all().to_pylist()[-1]
    assert (plan["files_considered"], plan["files_read"]) == (4, 1)


def test_rows_are_counted_and_limited(db: AirportClient) -> None:
    create_view(db, "s.v", "SELECT * FROM s.t")
    assert db.count("s.v") == 1000
    assert len(rows(db, "s.v", limit=5)) == 5


def test_views_read_views_and_points_in_time(db: AirportClient) -> None:
    before = db.scan("skiway.snapshots", where=col("table_name") == "t").read_all()["snapshot_id"][-1].as_py()
    db.delete("s.t", where=col("id") >= 10)
    create_view(db, "s.now", "SELECT id FROM t")
    create_view(db, "s.past", f"SELECT id FROM t AT (VERSION => {before})")
    create_view(db, "s.both", "SELECT (SELECT count(*) FROM now) AS now, (SELECT count(*) FROM s.past) AS past")
    assert rows(db, "s.both") == [{"now": 10, "past": 1000}]
    assert db.call(
        "skiway.query", "SELECT count(*) AS n FROM s.both JOIN s.now ON id < past"
    ).read_all().to_pylist() == [{"n": 10}]


def test_view_that_would_read_itself_is_rejected(db: AirportClient) -> None:
    create_view(db, "s.a", "SELECT id FROM s.t")
    create_view(db, "s.b", "SELECT id FROM s.a")
    with pytest.raises(InvalidArgument, match=r"reads itself: managed\.s\.a reads managed\.s\.b reads managed\.s\.a"):
        create_view(db, "s.a", "SELECT id FROM s.b", replace=True)
    assert len(rows(db, "s.a")) == 1000


def test_system_table_lists_views(lake: Lake, db: AirportClient) -> None:
    create_view(db, "s.v", "SELECT id, amount FROM t", comment="few columns")
    (shown,) = db.scan("skiway.views").read_all().to_pylist()
    assert shown["view_id"]
    assert shown["created_at"] <= shown["updated_at"]
    assert {
        name: shown[name] for name in ("schema_name", "view_name", "sql", "columns", "reads", "comment", "damage")
    } == {
        "schema_name": "s",
        "view_name": "v",
        "sql": [("duckdb", "SELECT id, amount FROM t")],
        "columns": ["id BIGINT", "amount DOUBLE"],
        "reads": ["managed.s.t"],
        "comment": "few columns",
        "damage": None,
    }
    with lake.client(token="nothing") as other:
        assert other.scan("skiway.views").read_all().num_rows == 0


def test_view_is_replaced(db: AirportClient) -> None:
    create_view(db, "s.v", "SELECT id FROM s.t")
    with pytest.raises(AlreadyExists, match="replace => true"):
        create_view(db, "s.V", "SELECT 1 AS one")
    assert create_view(db, "s.v", "SELECT 1 AS one", replace=True)["action"] == "replaced"
    assert rows(db, "s.v") == [{"one": 1}]


def test_columns_stay_as_they_were_created(db: AirportClient) -> None:
    create_view(db, "s.v", "SELECT * FROM s.t")
    db.add_column("s.t", pa.field("more", pa.int32()))
    assert list(rows(db, "s.v", limit=1)[0]) == ["id", "region", "amount", "tags"]
    db.remove_column("s.t", "amount")
    with pytest.raises(SkiwayError, match="amount"):
        rows(db, "s.v")


def test_types_stay_as_they_were_created(db: AirportClient) -> None:
    db.create_table("s.n", pa.schema({"a": pa.int32()}))
    db.insert("s.n", pa.table({"a": pa.array([1, 2], pa.int32())}))
    create_view(db, "s.v", "SELECT a FROM s.n")
    assert db.statistics("s.v", "a").max == 2
    db.change_column_type("s.n", "a", pa.int64())
    db.reload()
    assert db.statistics("s.v", "a").max is None  # the bounds of the table have another type
    found = db.scan("s.v").read_all()
    assert (found.schema.field("a").type, found["a"].to_pylist()) == (pa.int32(), [1, 2])


def test_view_in_another_dialect_is_translated(db: AirportClient) -> None:
    sql = "SELECT `id`, date_format(timestamp '2026-01-02', 'yyyy') AS year FROM s.t WHERE id < 2"
    create_view(db, "s.v", sql, dialect="spark")
    assert rows(db, "s.v") == [{"id": 0, "year": "2026"}, {"id": 1, "year": "2026"}]
    with pytest.raises(InvalidArgument, match="klingon"):
        create_view(db, "s.w", "SELECT 1", dialect="klingon")


@pytest.mark.parametrize(
    ("name", "sql", "error", "message"),
    [
        ("v", "SELECT 1 AS a", InvalidArgument, "write schema.name"),
        ("other.s.v", "SELECT 1 AS a", InvalidArgument, "call other.skiway.create_view"),
        ("nowhere.v", "SELECT 1 AS a", NotFound, "schema 'nowhere' does not exist"),
        ("s.t", "SELECT 1 AS a", AlreadyExists, "is a table"),
        ("s.v", "  ", InvalidArgument, "needs SQL"),
        ("s.v", "DROP TABLE s.t", InvalidArgument, "only SELECT"),
        ("s.v", "SELECT 1; SELECT 2", InvalidArgument, "found 2 statements"),
        ("s.v", "SELECT * FROM s.missing", NotFound, "s.missing does not exist"),
        ("s.v", "SELECT nope FROM s.t", InvalidArgument, "nope"),
        ("s.v", "SELECT * FROM read_csv('/etc/passwd')", InvalidArgument, "table function read_csv cannot be used"),
        ("s.v", "SELECT * FROM '/etc/passwd'", NotFound, "passwd"),
    ],
)
def test_invalid_views_are_rejected_and_nothing_is_stored(
    db: AirportClient, name: str, sql: str, error: type[SkiwayError], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_view(db, name, sql)
    db.reload()
    (schema,) = (each for each in db.schemas() if each.name == "s")
    assert [table.name for table in schema.tables] == ["t"]


def test_planning_a_statement_changes_nothing(db: AirportClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB asks for the columns of a function when it plans a statement, even one that EXPLAIN only shows."""
    monkeypatch.setattr(EffectFunction, "execute", lambda *_: iter(()))
    assert db.call("skiway.create_view", "s.v", "SELECT 1 AS a").read_all().schema.names == [
        "view",
        "action",
        "columns",
    ]
    db.reload()
    with pytest.raises(NotFound):
        db.table("s.v")


def test_views_cannot_be_changed_like_tables(db: AirportClient) -> None:
    create_view(db, "s.v", "SELECT id FROM s.t")
    with pytest.raises(SkiwayError):
        db.insert("s.v", pa.table({"id": [1]}))
    with pytest.raises(Unsupported, match=r"s\.v is a view: use skiway\.create_view"):
        db.drop_table("s.v")
    with pytest.raises(Unsupported, match="is a table: use DROP TABLE"):
        db.call("skiway.drop_view", "s.t").read_all()
    with pytest.raises(AlreadyExists):
        db.create_table("s.v", ROWS.schema)


def test_views_cannot_be_created_in_the_catalog_of_a_connector(lake: Lake) -> None:
    mirror = lake.catalog("mirror", connector_ref="somewhere")
    lake.namespace(mirror, ["s"])
    with lake.client(catalog="mirror") as client, pytest.raises(PreconditionFailed, match="is read-only") as error:
        create_view(client, "s.v", "SELECT 1 AS a")
    assert error.value.key in ("", "catalog.not_managed")


def test_dropping_a_missing_view(db: AirportClient) -> None:
    with pytest.raises(NotFound, match=r"view managed\.s\.v does not exist"):
        db.call("skiway.drop_view", "s.v").read_all()
    assert db.call("skiway.drop_view", "s.v", named={"if_exists": True}).read_all().to_pylist() == [
        {"view": "managed.s.v", "action": "none"}
    ]


def store(lake: Lake, name: str, sql: str) -> None:
    """Create a view as other programs do over gRPC or REST, without its columns."""
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    namespace = namespaces.lookup(lake.realm, catalog.value.resource_id, ["s"])
    assert namespace is not None
    spec = v1.ViewSpec(
        display_name=name,
        catalog_id=catalog.value.resource_id,
        namespace_id=namespace.resource_id,
        sql_definitions=[v1.ViewSql(sql=sql, dialect="spark")],
    )
    views.create(lake.realm, v1.CreateViewRequest(spec=spec))


def test_views_of_other_programs_are_bound_and_broken_ones_are_marked(lake: Lake, db: AirportClient) -> None:
    store(lake, "good", "SELECT max(`id`) AS last FROM s.t")
    store(lake, "broken", "SELECT * FROM s.nothing")
    store(lake, "invalid", "SELECT FROM WHERE")
    with lake.client() as other:
        assert rows(other, "s.good") == [{"last": 999}]
        assert other.table("s.broken").comment == "cannot be read: table managed.s.nothing does not exist"
        with pytest.raises(NotFound, match=r"s\.nothing does not exist"):
            rows(other, "s.broken")
        assert other.table("s.invalid").comment.startswith(
            "cannot be read: its SQL in the dialect spark cannot be translated"
        )
        with pytest.raises(NotFound, match=r"s\.nothing does not exist"):
            other.call("skiway.query", "SELECT * FROM s.broken").read_all()
        assert other.count("s.t") == 1000


def test_view_does_not_look_broken_because_the_server_is_busy(
    lake: Lake, db: AirportClient, queries: QueryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(lake, "v", "SELECT id FROM s.t")

    def busy(_: object) -> pa.Schema:
        raise LimitExceeded("try again later", key="sql.busy")

    with lake.client() as other:
        with monkeypatch.context() as patched:
            patched.setattr(queries, "columns", busy)
            with pytest.raises(LimitExceeded, match="try again later"):
                other.schemas()
        assert other.table("s.v").columns == ("id",)


def test_only_writers_create_and_drop_views(lake: Lake, db: AirportClient) -> None:
    create_view(db, "s.v", "SELECT id FROM s.t WHERE id < 2")
    with lake.client(token="reader") as reader:
        assert rows(reader, "s.v") == [{"id": 0}, {"id": 1}]
        for function, arguments in (("create_view", ("s.w", "SELECT 1 AS a")), ("drop_view", ("s.v",))):
            with pytest.raises(PermissionDenied):
                reader.call(f"skiway.{function}", *arguments).read_all()


def test_each_caller_lists_what_it_may_read(lake: Lake, db: AirportClient) -> None:
    """Listings are cached, but only for callers who see the same objects."""
    db.create_table("s.other", pa.schema({"id": pa.int64()}))
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    namespace = namespaces.lookup(lake.realm, catalog.value.resource_id, ["s"])
    assert namespace is not None
    for caller, name in (("nothing", "t"), ("stranger", "other")):
        table = tables.find(lake.realm, namespace.resource_id.id, name)
        assert table is not None
        request = v1.AddGrantRequest(object_id=table.resource_id, grantee=f"user:{caller}", privilege=v1.PV_READ)
        grants.add(lake.realm, request)
    for _ in range(2):
        for caller, names in (("nothing", ["t"]), ("stranger", ["other"]), ("reader", ["other", "t"])):
            with lake.client(token=caller) as client:
                listed = [each.name for schema in client.schemas() if schema.name == "s" for each in schema.tables]
                assert sorted(listed) == names


def test_reader_needs_rights_on_the_tables_of_a_view(lake: Lake, db: AirportClient) -> None:
    """A view gives no rights of its creator."""
    create_view(db, "s.v", "SELECT id FROM s.t WHERE id < 2")
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    namespace = namespaces.lookup(lake.realm, catalog.value.resource_id, ["s"])
    assert namespace is not None
    view = views.find_any_case(lake.realm, catalog.value, namespace.resource_id.id, "v")
    table = tables.find(lake.realm, namespace.resource_id.id, "t")
    assert view is not None
    assert table is not None

    def grant(object_id: v1.ResourceId) -> None:
        request = v1.AddGrantRequest(object_id=object_id, grantee="user:nothing", privilege=v1.PV_READ)
        grants.add(lake.realm, request)

    with lake.client(token="nothing") as other:
        with pytest.raises((NotFound, PermissionDenied)):
            rows(other, "s.v")
        grant(view.resource_id)
        other.reload()
        assert [each.name for schema in other.schemas() if schema.name == "s" for each in schema.tables] == ["v"]
        with pytest.raises((NotFound, PermissionDenied)):
            rows(other, "s.v")
        grant(table.resource_id)
        other.reload()
        assert rows(other, "s.v") == [{"id": 0}, {"id": 1}]
