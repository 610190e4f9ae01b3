"""Views with definer rights: they show what their definer may read, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, SkiwayError
from skiway.lake.policies import PolicyChecks
from skiway.metastore import Realm, catalogs, grants, namespaces, policies, tables, views
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.model import v1
from skiway.sql import QueryEngine

ROWS = pa.table({"id": list(range(10)), "name": [f"n{i}" for i in range(10)], "region": ["EU", "US"] * 5})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """An administrator, with the tables `s.t` and, in a schema of its own, `open`."""
    with lake.client() as client:
        client.create_schema("s")
        client.create_schema("shared")
        client.create_table("s.t", ROWS.schema)
        client.insert("s.t", ROWS)
        yield client


def create_view(db: AirportClient, name: str, sql: str, **named: Any) -> None:
    db.call("skiway.create_view", name, sql, named=named).read_all()
    db.reload()


def ids(client: AirportClient, name: str, **options: Any) -> list[int]:
    return sorted(row["id"] for row in client.scan(name, **options).read_all().to_pylist())


def namespace_of(lake: Lake, schema: str) -> v1.Namespace:
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    found = namespaces.lookup(lake.realm, catalog.value.resource_id, [schema])
    assert found is not None
    return found


def table_id(lake: Lake) -> v1.ResourceId:
    found = tables.find(lake.realm, namespace_of(lake, "s").resource_id.id, "t")
    assert found is not None
    return found.resource_id


def grant(lake: Lake, caller: str, object_id: v1.ResourceId, privilege: v1.Privilege.ValueType = v1.PV_READ) -> None:
    request = v1.AddGrantRequest(object_id=object_id, grantee=f"user:{caller}", privilege=privilege)
    grants.add(lake.realm, request)


def view_of(lake: Lake, name: str, schema: str = "shared") -> v1.View:
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    found = views.find_any_case(lake.realm, catalog.value, namespace_of(lake, schema).resource_id.id, name)
    assert found is not None
    return found


def test_reader_needs_only_the_view(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id, region FROM s.t WHERE id < 4", rights="definer")
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id)
    with lake.client(token="nothing") as reader:
        assert ids(reader, "shared.v") == [0, 1, 2, 3]
        assert ids(reader, "shared.v", where=col("region") == "US", columns=["id"]) == [1, 3]
        assert len(ids(reader, "shared.v", limit=2)) == 2
        assert reader.count("shared.v") == 4
        with pytest.raises((NotFound, PermissionDenied)):
            ids(reader, "s.t")
        queried = reader.call("skiway.query", "SELECT max(id) AS id FROM shared.v").read_all().to_pylist()
        assert queried == [{"id": 3}]
        for sql in ("SELECT id FROM s.t", "SELECT id FROM shared.v, s.t"):
            with pytest.raises((NotFound, PermissionDenied)):
                reader.call("skiway.query", sql).read_all()


def test_invoker_rights_are_the_default(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM s.t")
    create_view(db, "shared.w", "SELECT id FROM s.t", rights="invoker")
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id)
    with lake.client(token="nothing") as reader:
        for name in ("shared.v", "shared.w"):
            with pytest.raises((NotFound, PermissionDenied)):
                ids(reader, name)
    with pytest.raises(InvalidArgument, match="use 'invoker' or 'definer'"):
        create_view(db, "shared.x", "SELECT 1 AS a", rights="owner")


def test_view_stops_working_when_its_definer_loses_the_right(lake: Lake, db: AirportClient) -> None:
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id, v1.PV_WRITE)
    grant(lake, "nothing", table_id(lake))
    with lake.client(token="nothing") as definer, lake.client(token="reader") as reader:
        create_view(definer, "shared.v", "SELECT id FROM s.t WHERE id < 2", rights="definer")
        assert ids(definer, "shared.v") == ids(reader, "shared.v") == [0, 1]
        grants.revoke(lake.realm, v1.RevokeGrantRequest(object_id=table_id(lake), grantee="user:nothing"))
        for client in (definer, reader):  # the reader may read the table itself
            with pytest.raises(PermissionDenied, match="rights of its definer, 'nothing'") as error:
                ids(client, "shared.v")
            assert error.value.key == "view.definer"
        grant(lake, "nothing", table_id(lake))
        assert ids(reader, "shared.v") == [0, 1]


def test_definer_cannot_show_what_policies_hide_from_it(lake: Lake, db: AirportClient, queries: QueryEngine) -> None:
    """The editor is in Europe by a claim of its token, and does not see names."""
    for rule in (
        {"row_filter": v1.PolicyFilter(predicate="region = caller('region')")},
        {"mask": v1.PolicyMask(columns=["name"], kind=v1.MK_NULL)},
    ):
        spec = v1.PolicySpec(
            display_name=next(iter(rule)),
            subjects=["group:emea"],
            objects=[table_id(lake)],
            **rule,  # type: ignore[arg-type]
        )
        policies.calls(PolicyChecks(queries)).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    with lake.client(token="editor") as editor:
        create_view(editor, "shared.v", "SELECT id, name, region FROM s.t", rights="definer")
    with lake.client(token="reader") as reader:
        seen = reader.scan("shared.v").read_all().to_pylist()
        assert {(row["name"], row["region"]) for row in seen} == {(None, "EU")}
        assert len(ids(reader, "s.t")) == 10
        assert ids(reader, "shared.v", where=col("region") == "US") == []


def test_policies_on_the_view_restrict_its_readers(lake: Lake, db: AirportClient, queries: QueryEngine) -> None:
    create_view(db, "shared.v", "SELECT id, region FROM s.t", rights="definer")
    spec = v1.PolicySpec(
        display_name="p",
        subjects=["user:reader"],
        objects=[view_of(lake, "v").resource_id],
        row_filter=v1.PolicyFilter(predicate="id < 3"),
    )
    policies.calls(PolicyChecks(queries)).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    with lake.client(token="reader") as reader:
        assert ids(reader, "shared.v") == [0, 1, 2]
    assert len(ids(db, "shared.v")) == 10


def test_conditions_of_readers_do_not_reach_hidden_rows(lake: Lake, db: AirportClient) -> None:
    """A condition that fails for hidden rows does not fail, wherever it is evaluated."""
    create_view(db, "shared.v", "SELECT id, name FROM s.t WHERE id < 4", rights="definer")
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id)
    with lake.client(token="nothing") as reader:
        sql = "SELECT id FROM shared.v WHERE CASE WHEN name >= 'n4' THEN error('seen') ELSE id < 2 END"
        assert len(reader.call("skiway.query", sql).read_all()) == 2


def test_errors_of_the_query_are_shown_to_its_definer_only(lake: Lake, db: AirportClient) -> None:
    """They quote values that the view does not show."""
    create_view(db, "shared.v", "SELECT id FROM s.t WHERE CAST(name AS INTEGER) > id", rights="definer")
    with pytest.raises(InvalidArgument, match="'n0'"):
        ids(db, "shared.v")
    with lake.client(token="reader") as reader:
        for read in (lambda: ids(reader, "shared.v"), lambda: reader.call("skiway.query", "FROM shared.v").read_all()):
            with pytest.raises(InvalidArgument, match="ask its definer, 'writer'") as error:
                read()
            assert "n0" not in str(error.value)


def test_who_changes_a_view_becomes_its_definer(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM s.t WHERE id < 2", rights="definer")
    assert view_of(lake, "v").definer.subject == "writer"
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id, v1.PV_WRITE)
    subject = Subject("nothing", frozenset({"system-objects"}))
    realm = Realm(lake.stores, "a1", caller="nothing", policies=CallerPolicies(lambda: lake.stores, "a1", subject))

    def update(path: str, **spec: Any) -> v1.View:
        request = v1.UpdateViewRequest(view_id=view_of(lake, "v").resource_id, spec=v1.ViewSpec(**spec))
        request.update_mask.paths.append(path)
        return views.update(realm, request).view

    assert update("description", description="d").definer.subject == "writer"
    changed = update("sql_definitions", sql_definitions=[v1.ViewSql(sql="SELECT id FROM s.t", dialect="duckdb")])
    assert changed.definer.subject == "nothing"
    with lake.client(token="reader") as reader, pytest.raises(PermissionDenied, match="'nothing'"):
        ids(reader, "shared.v")
    create_view(db, "shared.v", "SELECT id FROM s.t WHERE id < 3", rights="definer", replace=True)
    assert update("display_name", display_name="renamed").definer.subject == "nothing"


def test_claims_of_the_definer_are_not_shown(lake: Lake, db: AirportClient) -> None:
    with lake.client(token="editor") as editor:
        create_view(editor, "shared.v", "SELECT id FROM s.t", rights="definer")
    stored = view_of(lake, "v")
    assert ("EU" in stored.definer.claims_json, list(stored.definer.groups)) == (True, ["emea"])
    namespace_id = namespace_of(lake, "shared").resource_id
    shown = [
        views.get(lake.realm, v1.GetViewRequest(view_id=stored.resource_id)).view,
        *views.list_(lake.realm, v1.ListViewsRequest(namespace_id=namespace_id)).views,
    ]
    assert [each.definer for each in shown] == [v1.ViewDefiner(subject="editor")] * 2
    (row,) = db.scan("skiway.views").read_all().to_pylist()
    assert (row["rights"], row["definer"]) == ("definer", "editor")


def test_definer_rights_need_a_caller(lake: Lake) -> None:
    namespace = lake.namespace(lake.catalog("c"), ["n"])
    spec = v1.ViewSpec(
        display_name="v",
        catalog_id=namespace.catalog_id,
        namespace_id=namespace.resource_id,
        sql_definitions=[v1.ViewSql(sql="SELECT 1 AS a", dialect="duckdb")],
        rights=v1.VR_DEFINER,
    )
    with pytest.raises(InvalidArgument, match="needs a caller"):
        views.create(lake.realm, v1.CreateViewRequest(spec=spec))


def test_views_with_definer_rights_can_be_nested_but_not_in_a_cycle(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM s.t WHERE id < 5", rights="definer")
    create_view(db, "shared.w", "SELECT id FROM shared.v WHERE id > 2", rights="definer")
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id)
    with lake.client(token="nothing") as reader:
        assert ids(reader, "shared.w") == [3, 4]
        create_view(db, "shared.v", "SELECT id FROM shared.w", rights="definer", replace=True)
        with pytest.raises(SkiwayError, match="reads itself"):
            ids(reader, "shared.w")


def test_transaction_reads_the_view_as_of_its_begin(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM s.t", rights="definer")
    with lake.client(token="reader") as reader, reader.transaction():
        assert len(ids(reader, "shared.v")) == 10
        db.truncate("s.t")
        assert len(ids(reader, "shared.v")) == 10
        (lease,) = [row for row in db.scan("skiway.queries").read_all().to_pylist() if row["kind"] == "transaction"]
    assert (lease["caller"], [each["table"] for each in lease["tables"]]) == ("reader", ["managed.s.t"])


def test_views_read_points_in_time(lake: Lake, db: AirportClient) -> None:
    (before,) = [row["snapshot_id"] for row in db.scan("skiway.snapshots").read_all().to_pylist()]
    create_view(db, "shared.v", f"SELECT id FROM s.t AT (VERSION => {before})", rights="definer")
    db.truncate("s.t")
    assert len(ids(db, "shared.v")) == 10
    assert ids(db, "s.t") == []


# -- statistics --------------------------------------------------------------------------------------------------------


def bounds(client: AirportClient, name: str, column: str) -> tuple[Any, Any]:
    found = client.statistics(name, column)
    return found.min, found.max


@pytest.mark.parametrize("rights", ["invoker", "definer"])
def test_simple_views_have_the_statistics_of_their_table(lake: Lake, db: AirportClient, rights: str) -> None:
    create_view(
        db, "shared.v", "SELECT id AS number, upper(name) AS loud, t.region FROM s.t WHERE id > 7", rights=rights
    )
    create_view(db, "shared.all", "SELECT * FROM s.t", rights=rights)
    create_view(db, "shared.other", "SELECT id FROM s.t UNION ALL SELECT id FROM s.t", rights=rights)
    db.reload()
    assert bounds(db, "shared.v", "number") == (0, 9)
    assert bounds(db, "shared.v", "region") == ("EU", "US")
    assert bounds(db, "shared.v", "loud") not in (("n0", "n9"), ("N0", "N9"))
    assert bounds(db, "shared.all", "id") == (0, 9)
    with pytest.raises(SkiwayError, match="has no statistics"):
        bounds(db, "shared.other", "id")


def test_statistics_of_views_respect_policies_and_rights(lake: Lake, db: AirportClient, queries: QueryEngine) -> None:
    create_view(db, "shared.v", "SELECT id, region FROM s.t")
    create_view(db, "shared.d", "SELECT id, region FROM s.t", rights="definer")
    db.reload()
    spec = v1.PolicySpec(
        display_name="p",
        subjects=["user:reader"],
        objects=[table_id(lake)],
        row_filter=v1.PolicyFilter(predicate="id < 3"),
    )
    policies.calls(PolicyChecks(queries)).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    with lake.client(token="reader") as reader:
        assert bounds(reader, "shared.v", "id") != (0, 9)
        assert bounds(reader, "shared.d", "id") == (0, 9), "the definer is not restricted"
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id)
    with lake.client(token="nothing") as stranger:
        assert bounds(stranger, "shared.v", "id") != (0, 9)
