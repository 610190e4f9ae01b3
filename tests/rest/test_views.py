"""Views over Iceberg REST: versions, dialects, conflicts, and the views of DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from rest.rest_server import RestServer, opened
from skiway.formats.iceberg.view_metadata import ViewUpdate
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm, managed, views
from skiway.metastore.gc import sweep_warehouse
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.model import v1
from skiway.storage import Stores, utc_now

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}
VIEWS = "/v1/lake/namespaces/ns/views"
RENAME = "/v1/lake/views/rename"


@pytest.fixture
def server(stores: Stores, tmp_path: Path) -> Iterator[RestServer]:
    properties = {"view-default.owner": "lake", "view-default.color": "blue", "view-override.tier": "gold"}
    with opened(stores, tmp_path, approved=tmp_path / "approved", properties=properties) as server:
        assert server.call("POST", "/v1/lake/namespaces", {"namespace": ["ns"]}).status_code == 200
        yield server


def version(
    sql: str = "SELECT id FROM tbl", *, dialect: str = "spark", schema_id: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "version-id": 1,
        "timestamp-ms": 1_700_000_000_000,
        "schema-id": schema_id,
        "summary": {"engine-name": "spark"},
        "representations": [{"type": "sql", "sql": sql, "dialect": dialect}],
        "default-namespace": ["ns"],
        **more,
    }


def create(server: RestServer, name: str = "v", **more: Any) -> dict[str, Any]:
    body = {"name": name, "schema": SCHEMA, "view-version": version(), "properties": {}, **more}
    answer = server.call("POST", VIEWS, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def replacing(sql: str, *, dialect: str = "spark") -> list[dict[str, Any]]:
    return [
        {"action": "add-view-version", "view-version": version(sql, dialect=dialect)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def commit(server: RestServer, *updates: dict[str, Any], name: str = "v", uuid: str | None = None) -> Any:
    required = [{"type": "assert-view-uuid", "uuid": uuid}] if uuid else []
    return server.call("POST", f"{VIEWS}/{name}", {"requirements": required, "updates": list(updates)})


def current(loaded: dict[str, Any]) -> dict[str, Any]:
    metadata = loaded["metadata"]
    return next(each for each in metadata["versions"] if each["version-id"] == metadata["current-version-id"])


def error(answer: Any) -> tuple[int, str, str]:
    found = answer.json()["error"]
    return answer.status_code, found["type"], found["message"]


def test_created_view_is_listed_and_loaded(server: RestServer) -> None:
    made = create(server, properties={"comment": "adults", "color": "red", "tier": "lead"})
    assert made["metadata"]["properties"] == {"comment": "adults", "owner": "lake", "color": "red", "tier": "gold"}
    assert (current(made)["version-id"], current(made)["schema-id"]) == (1, 0)
    assert made["metadata"]["version-log"] == [{"timestamp-ms": 1_700_000_000_000, "version-id": 1}]
    file = Path(made["metadata-location"].removeprefix("file://"))
    assert json.loads(file.read_text()) == made["metadata"]
    assert server.call("GET", VIEWS).json()["identifiers"] == [{"namespace": ["ns"], "name": "v"}]
    assert server.call("HEAD", f"{VIEWS}/v").status_code == 204
    assert server.call("GET", f"{VIEWS}/v").json() == made
    assert server.call("GET", "/v1/lake/namespaces/ns/tables").json()["identifiers"] == []


def test_location_that_a_client_derives_from_the_namespace_is_a_suggestion(server: RestServer) -> None:
    """Trino sends one for each new view, and for each new version."""
    place = server.call("GET", "/v1/lake/namespaces/ns").json()["properties"]["location"]
    made = create(server, location=f"{place}/v-0123")
    assert not made["metadata"]["location"].startswith(place)
    moved = {"action": "set-location", "location": f"{place}/v-4567"}
    answer = commit(server, moved, *replacing("SELECT 2 AS id"))
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["location"] == made["metadata"]["location"]


def test_replaced_view_keeps_its_versions_and_only_the_last_file(server: RestServer) -> None:
    made = create(server)
    answer = commit(server, *replacing("SELECT 2 AS id"), uuid=made["metadata"]["view-uuid"])
    assert answer.status_code == 200, answer.text
    replaced = answer.json()
    assert [each["version-id"] for each in replaced["metadata"]["versions"]] == [1, 2]
    assert [each["version-id"] for each in replaced["metadata"]["version-log"]] == [1, 2]
    assert current(replaced)["representations"][0]["sql"] == "SELECT 2 AS id"
    assert not Path(made["metadata-location"].removeprefix("file://")).exists()
    assert Path(replaced["metadata-location"].removeprefix("file://")).exists()
    again = commit(server, *replacing("SELECT id FROM tbl")).json()  # an equal version is used again
    assert (again["metadata"]["current-version-id"], len(again["metadata"]["versions"])) == (1, 2)
    assert [each["version-id"] for each in again["metadata"]["version-log"]] == [1, 2, 1]


def test_old_versions_are_forgotten(server: RestServer) -> None:
    create(server, properties={"version.history.num-entries": "2"})
    for number in range(4):
        last = commit(server, *replacing(f"SELECT {number} AS id")).json()["metadata"]
    assert [each["version-id"] for each in last["versions"]] == [4, 5]
    assert [each["version-id"] for each in last["version-log"]] == [4, 5]


def test_schemas_and_properties_change(server: RestServer) -> None:
    create(server)
    other = {**SCHEMA, "fields": [{"id": 1, "name": "n", "type": "string", "required": False}]}
    added = version("SELECT name AS n FROM tbl", schema_id=-1)
    updates = (
        {"action": "add-schema", "schema": other, "last-column-id": 1},
        {"action": "add-view-version", "view-version": added},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "set-properties", "updates": {"comment": "names"}},
        {"action": "remove-properties", "removals": ["color", "unknown"]},
    )
    metadata = commit(server, *updates).json()["metadata"]
    assert [each["schema-id"] for each in metadata["schemas"]] == [0, 1]
    assert metadata["versions"][-1]["schema-id"] == 1
    assert metadata["properties"] == {"owner": "lake", "tier": "gold", "comment": "names"}


def test_a_dialect_is_not_lost_by_accident(server: RestServer) -> None:
    create(server)
    status, kind, message = error(commit(server, *replacing("SELECT 1 AS id", dialect="trino")))
    assert (status, kind) == (400, "IllegalArgumentException")
    assert message.startswith("Cannot replace view due to loss of view dialects")
    assert "spark" in message
    allowed = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}
    assert commit(server, allowed, *replacing("SELECT 1 AS id", dialect="trino")).status_code == 200


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([{"action": "set-current-view-version", "view-version-id": 7}], "no version 7"),
        ([{"action": "set-current-view-version", "view-version-id": -1}], "none was added"),
        ([{"action": "add-view-version", "view-version": version(schema_id=4)}], "schema 4"),
        ([{"action": "add-view-version", "view-version": version(schema_id=-1)}], "none was added"),
        ([{"action": "add-view-version", "view-version": version(" ")}], "no SQL"),
        ([{"action": "add-view-version", "view-version": version(representations=[])}], "no SQL"),
        ([{"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}], "uuid cannot change"),
        (
            [{"action": "set-properties", "updates": {"version.history.num-entries": "none"}}],
            "version.history.num-entries",
        ),
        (
            [
                {
                    "action": "add-view-version",
                    "view-version": version(
                        representations=[
                            {"type": "sql", "sql": "SELECT 1", "dialect": each} for each in ("trino", "Trino")
                        ]
                    ),
                }
            ],
            "Cannot add multiple queries for dialect trino",
        ),
    ],
)
def test_updates_that_do_not_fit_are_rejected(server: RestServer, updates: list[dict[str, Any]], message: str) -> None:
    before = create(server)
    status, _, found = error(commit(server, *updates))
    assert (status, message in found) == (400, True), found
    assert server.call("GET", f"{VIEWS}/v").json() == before


def test_wrong_uuid_is_a_failed_requirement(server: RestServer) -> None:
    create(server)
    status, kind, message = error(commit(server, *replacing("SELECT 1"), uuid="00000000-0000-0000-0000-000000000000"))
    assert (status, kind) == (409, "CommitFailedException")
    assert message.startswith("Requirement failed: view UUID does not match")


def test_concurrent_replacements_all_succeed(server: RestServer) -> None:
    create(server)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: commit(server, *replacing(f"SELECT {number} AS id")), range(8)))
    assert [each.status_code for each in answers] == [200] * 8
    metadata = server.call("GET", f"{VIEWS}/v").json()["metadata"]
    sql = {each["representations"][0]["sql"] for each in metadata["versions"]}
    assert sql == {"SELECT id FROM tbl", *(f"SELECT {number} AS id" for number in range(8))}
    folder = Path(metadata["location"].removeprefix("file://"))
    assert len(list(folder.rglob("*.json"))) == 1


def test_renamed_view_has_its_history(server: RestServer) -> None:
    made = create(server)
    server.call("POST", "/v1/lake/namespaces", {"namespace": ["other"]})
    body = {"source": {"namespace": ["ns"], "name": "v"}, "destination": {"namespace": ["other"], "name": "w"}}
    assert server.call("POST", RENAME, body).status_code == 204
    assert server.call("GET", f"{VIEWS}/v").status_code == 404
    assert server.call("GET", "/v1/lake/namespaces/other/views/w").json() == made


def test_names_are_shared_with_tables(server: RestServer) -> None:
    create(server)
    create(server, "w")
    table = {"name": "t", "schema": SCHEMA}
    assert server.call("POST", "/v1/lake/namespaces/ns/tables", table).status_code == 200
    body = {"name": "V", "schema": SCHEMA, "view-version": version()}
    assert error(server.call("POST", VIEWS, body))[1:] == (
        "AlreadyExistsException",
        "View already exists: ns.V; choose another name, or replace the view",
    )
    answer = server.call("POST", VIEWS, {**body, "name": "t"})
    assert error(answer)[2].startswith("Table with same name already exists: ns.t")
    answer = server.call("POST", "/v1/lake/namespaces/ns/tables", {**table, "name": "v"})
    assert error(answer)[2].startswith("View with same name already exists: ns.v")
    for name, kind in (("w", "View"), ("t", "Table")):
        rename = {"source": {"namespace": ["ns"], "name": "v"}, "destination": {"namespace": ["ns"], "name": name}}
        answer = server.call("POST", RENAME, rename)
        assert error(answer)[2].startswith(f"Cannot rename ns.v to ns.{name}. {kind} already exists")
        assert answer.status_code == 409
    answer = server.call("DELETE", "/v1/lake/namespaces/ns")
    assert error(answer)[:2] == (409, "NamespaceNotEmptyException")


def test_missing_views_have_the_type_that_clients_expect(server: RestServer) -> None:
    missing = {"source": {"namespace": ["ns"], "name": "x"}, "destination": {"namespace": ["ns"], "name": "y"}}
    for answer in (
        server.call("GET", f"{VIEWS}/x"),
        server.call("DELETE", f"{VIEWS}/x"),
        commit(server, name="x"),
        server.call("POST", RENAME, missing),
    ):
        status, kind, message = error(answer)
        assert (status, kind) == (404, "NoSuchViewException")
        assert message.startswith("View does not exist: ns.x")
    assert server.call("HEAD", f"{VIEWS}/x").status_code == 404
    status, kind, message = error(server.call("GET", "/v1/lake/namespaces/none/views"))
    assert (status, kind, message) == (404, "NoSuchNamespaceException", "Namespace does not exist: none")


def test_dropped_view_leaves_no_file_unless_told_so(server: RestServer) -> None:
    made, kept = create(server), create(server, "kept", properties={"gc.enabled": "false"})
    for name in ("v", "kept"):
        assert server.call("DELETE", f"{VIEWS}/{name}").status_code == 204
    assert not Path(made["metadata-location"].removeprefix("file://")).exists()
    assert Path(kept["metadata-location"].removeprefix("file://")).exists()
    answer = register(server, "again", kept["metadata-location"])
    assert answer.status_code == 200, answer.text
    assert answer.json() == kept
    assert commit(server, *replacing("SELECT 3 AS id"), name="again").status_code == 200


def register(server: RestServer, name: str, location: str) -> Any:
    return server.call("POST", "/v1/lake/namespaces/ns/register-view", {"name": name, "metadata-location": location})


def test_only_files_in_approved_locations_are_registered(server: RestServer, tmp_path: Path) -> None:
    made = create(server)
    assert error(register(server, "twice", made["metadata-location"]))[:2] == (409, "AlreadyExistsException")
    assert error(register(server, "v", made["metadata-location"]))[2].startswith("View already exists: ns.v")
    outside, approved = tmp_path / "x.metadata.json", tmp_path / "approved" / "v" / "x.metadata.json"
    approved.parent.mkdir(parents=True)
    foreign = {**made["metadata"], "location": f"file://{approved.parent}"}
    for file in (outside, approved):
        file.write_text(json.dumps(foreign))
    assert error(register(server, "w", f"file://{outside}"))[0] == 400
    assert register(server, "w", f"file://{approved}").status_code == 200
    approved.write_text(json.dumps({**foreign, "location": "file:///elsewhere"}))
    assert error(register(server, "x", f"file://{approved}"))[0] == 400
    for content in ("{}", "planted", '{"planted": "planted"}', json.dumps({**foreign, "format-version": "planted"})):
        approved.write_text(content)
        found = error(register(server, "x", f"file://{approved}"))[2]
        assert "not the metadata of an Iceberg view" in found
        assert "planted" not in found, "errors do not quote files"


def test_locations_must_be_approved_and_free(server: RestServer, tmp_path: Path) -> None:
    body = {"name": "x", "schema": SCHEMA, "view-version": version(), "location": f"file://{tmp_path}/elsewhere"}
    assert "not approved" in error(server.call("POST", VIEWS, body))[2]
    place = f"file://{tmp_path}/approved/views/x"
    made = create(server, location=place)
    assert made["metadata"]["location"] == place
    assert made["metadata-location"].startswith(f"{place}/metadata/")
    table = {"name": "t", "schema": SCHEMA, "location": f"file://{tmp_path}/approved/t"}
    assert server.call("POST", "/v1/lake/namespaces/ns/tables", table).status_code == 200
    moved = {"action": "set-location", "location": f"file://{tmp_path}/approved/t/inside"}
    assert error(commit(server, moved))[:2] == (409, "AlreadyExistsException")
    moved["location"] = f"file://{tmp_path}/approved/new"
    found = commit(server, moved).json()
    assert found["metadata-location"].startswith(moved["location"])
    custom = {"action": "set-properties", "updates": {"write.metadata.path": f"file://{tmp_path}/approved/other"}}
    assert error(commit(server, custom))[0] == 400


DUCKDB_SQL = 'SELECT id, "a b" AS tags FROM "deep.er".t JOIN lake.main_.u USING (id)'


def duckdb_view(server: RestServer) -> v1.View:
    return server.factory.view(
        "adults",
        sql_definitions=[v1.ViewSql(sql=DUCKDB_SQL, dialect="duckdb")],
        output_columns=[
            v1.SchemaColumn(name="id", logical_type="BIGINT"),
            v1.SchemaColumn(name="tags", logical_type="VARCHAR[]"),
        ],
    )


def test_view_of_duckdb_is_shown_in_further_dialects(server: RestServer) -> None:
    duckdb_view(server)
    loaded = server.call("GET", f"{VIEWS}/adults").json()
    metadata = loaded["metadata"]
    first, second = metadata["schemas"][0]["fields"]
    assert (first["name"], first["type"]) == ("id", "long")
    assert second["type"] == {"type": "list", "element-id": 3, "element": "string", "element-required": False}
    dialects = {each["dialect"]: each["sql"] for each in metadata["versions"][0]["representations"]}
    assert dialects == {
        "duckdb": DUCKDB_SQL,
        "spark": "SELECT id, `a b` AS tags FROM `deep`.`er`.`t` AS `t` JOIN `main`.`u` AS `u` USING (id)",
        "trino": 'SELECT id, "a b" AS tags FROM "lake"."deep.er"."t" AS "t" JOIN "lake"."main"."u" AS "u" USING (id)',
    }
    assert server.call("GET", f"{VIEWS}/adults").json() == loaded
    assert server.call("GET", VIEWS).json()["identifiers"] == [{"namespace": ["ns"], "name": "adults"}]


def test_changes_of_other_doors_become_versions(server: RestServer) -> None:
    realm, view = server.factory.home, duckdb_view(server)
    before = server.call("GET", f"{VIEWS}/adults").json()["metadata"]
    commented = {"action": "set-properties", "updates": {"comment": "grown-ups"}}
    assert commit(server, commented, name="adults", uuid=before["view-uuid"]).status_code == 200
    stored = views.get(realm, v1.GetViewRequest(view_id=view.resource_id)).view
    assert (stored.description, len(stored.output_columns)) == ("grown-ups", 2)
    spec = v1.ViewSpec(
        sql_definitions=[v1.ViewSql(sql="SELECT 1 AS id, [] AS tags", dialect="duckdb")], description="all"
    )
    request = v1.UpdateViewRequest(view_id=view.resource_id, spec=spec)
    request.update_mask.paths.extend(["sql_definitions", "description"])
    views.update(realm, request)
    after = server.call("GET", f"{VIEWS}/adults").json()["metadata"]
    assert (after["view-uuid"], after["current-version-id"]) == (before["view-uuid"], 2)
    assert after["properties"] == {"comment": "all"}
    assert after["versions"][0] == before["versions"][0]
    assert after["versions"][1]["representations"][0]["sql"] == "SELECT 1 AS id, [] AS tags"
    assert len(after["schemas"]) == 1


def test_whoever_changes_the_query_becomes_the_definer(server: RestServer) -> None:
    """Otherwise a writer could read with the rights of another caller."""
    stores = server.factory.stores
    definer = Realm(stores, "a1", caller="ada", policies=CallerPolicies(lambda: stores, "a1", Subject("ada")))
    view = duckdb_view(server)
    spec = v1.ViewSpec(rights=v1.VR_DEFINER)
    request = v1.UpdateViewRequest(view_id=view.resource_id, spec=spec)
    request.update_mask.paths.append("rights")
    assert views.update(definer, request).view.definer.subject == "ada"

    def stored() -> str:
        return views.get(server.factory.home, v1.GetViewRequest(view_id=view.resource_id)).view.definer.subject

    commented = {"action": "set-properties", "updates": {"comment": "grown-ups"}}
    assert commit(server, commented, name="adults").status_code == 200
    assert stored() == "ada"
    queries = {"spark": "SELECT 1", "trino": "SELECT 1", "duckdb": DUCKDB_SQL}
    all_ = [{"type": "sql", "sql": sql, "dialect": dialect} for dialect, sql in queries.items()]
    changed = {"action": "add-view-version", "view-version": version(representations=all_)}
    answer = commit(server, changed, {"action": "set-current-view-version", "view-version-id": -1}, name="adults")
    assert answer.status_code == 200, answer.text
    assert stored() == "anybody", "a further dialect is a change, too"


def test_view_without_known_columns_is_not_served(server: RestServer) -> None:
    server.factory.view("unknown")
    assert server.call("GET", VIEWS).json()["identifiers"] == []
    status, kind, message = error(server.call("GET", f"{VIEWS}/unknown"))
    assert (status, kind) == (404, "NoSuchViewException")
    assert "columns are not known" in message


def test_listing_has_pages(server: RestServer) -> None:
    for name in "abc":
        create(server, name)
    first = server.call("GET", f"{VIEWS}?pageSize=2").json()
    rest = server.call("GET", f"{VIEWS}?pageSize=2&pageToken={first['next-page-token']}").json()
    assert [each["name"] for each in first["identifiers"] + rest["identifiers"]] == ["a", "b", "c"]
    assert rest["next-page-token"] is None


def test_garbage_collection_keeps_the_file_of_a_view(server: RestServer, stores: Stores) -> None:
    made, dropped = create(server), create(server, "dropped", properties={"gc.enabled": "false"})
    folder = Path(made["metadata-location"].removeprefix("file://")).parent
    (folder / "leftover.metadata.json").write_text("{}")
    server.call("DELETE", f"{VIEWS}/dropped")
    later = lambda: utc_now() + timedelta(days=4)  # noqa: E731
    sweep_warehouse(stores, server.warehouse, clock=later, dry_run=False)
    assert [each.name for each in folder.iterdir()] == [made["metadata-location"].rpartition("/")[2]]
    assert not Path(dropped["metadata-location"].removeprefix("file://")).exists()


def test_same_request_with_a_key_creates_one_view(server: RestServer) -> None:
    body = {"name": "v", "schema": SCHEMA, "view-version": version()}
    first, second = (server.call("POST", VIEWS, body, idempotency_key="k1") for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()


def test_replacement_that_lost_a_race_is_made_again(server: RestServer, stores: Stores) -> None:
    """Another server, which shares no locks with this one, commits between reading the view and storing it."""
    create(server)
    commits: list[Any] = []

    def clock() -> datetime:
        if not commits:
            commits.append(None)
            commits.append(commit(server, *replacing("SELECT 1 AS id")).status_code)
        return utc_now()

    view = views.find(server.factory.home, server.factory.first_namespace().resource_id.id, "v")
    assert view is not None
    parsed = TypeAdapter(list[ViewUpdate]).validate_python(replacing("SELECT 2 AS id"))
    other = Warehouse.at(
        str(server.warehouse.root), approved=[(name, str(each)) for name, each in server.warehouse.approved]
    )
    made = managed.commit_view(Realm(stores, "a1", clock=clock), other, view.resource_id, parsed)
    assert commits == [None, 200]
    assert [each.version_id for each in made.metadata.versions] == [1, 2, 3]
    assert len(list(Path(made.metadata.location.removeprefix("file://")).rglob("*.json"))) == 1
