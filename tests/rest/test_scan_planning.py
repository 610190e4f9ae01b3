"""Remote scan planning: the files that the server plans are those that the client would find itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import GreaterThan
from pyiceberg.table import Table

from rest.rest_server import RestServer, opened
from skiway.errors import NotFound
from skiway.metastore import Realm
from skiway.metastore.planning.scans import MAX_PLANS, PLANS_KEPT, ScanPlan, add_plan, find_plan
from skiway.rest.handlers import scan_planning
from skiway.storage import Stores, open_stores
from storage.homes import Clock

HERE = "/v1/lake/namespaces/sales/tables/people"


@pytest.fixture
def server(stores: Stores, tmp_path: Path) -> Iterator[RestServer]:
    with opened(stores, tmp_path) as running:
        running.pyiceberg().create_namespace("sales")
        yield running


@pytest.fixture
def people(server: RestServer) -> Table:
    """A table with three files: the ids 0 to 9, 10 to 19, and 20 to 29."""
    table = server.pyiceberg().create_table("sales.people", pa.schema({"id": pa.int64(), "name": pa.string()}))
    for start in (0, 10, 20):
        ids = list(range(start, start + 10))
        table.append(pa.table({"id": ids, "name": [f"n{number}" for number in ids]}))
    return table


def remote(server: RestServer) -> RestCatalog:
    return server.pyiceberg(**{"scan-planning-mode": "server"})


def plan(server: RestServer, body: Any = None, caller: str = "anybody", **headers: str) -> httpx.Response:
    return server.call("POST", f"{HERE}/plan", body or {}, authorization=f"Bearer {caller}", **headers)


def paths(answer: Any) -> list[str]:
    return sorted(each["data-file"]["file-path"] for each in answer["file-scan-tasks"])


def local_paths(table: Table, **options: Any) -> list[str]:
    return sorted(each.file.file_path for each in table.scan(**options).plan_files())


def test_pyiceberg_reads_what_the_server_planned(
    server: RestServer, people: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = RestCatalog.plan_scan
    monkeypatch.setattr(RestCatalog, "plan_scan", lambda *given: (calls.append("plan"), real(*given))[1])
    monkeypatch.setattr(scan_planning, "PART_FILES", 2)
    table = remote(server).load_table("sales.people")
    assert table.scan().to_arrow().sort_by("id")["id"].to_pylist() == list(range(30))
    some = table.scan(row_filter=GreaterThan("id", 14), selected_fields=("id",))
    assert sorted(each.file.file_path for each in some.plan_files()) == local_paths(
        people, row_filter=GreaterThan("id", 14)
    )
    assert sorted(some.to_arrow()["id"].to_pylist()) == list(range(15, 30))
    assert len(calls) == 3


def test_deleted_rows_are_not_read(server: RestServer, people: Table) -> None:
    people.delete("id < 5")
    assert remote(server).load_table("sales.people").scan().to_arrow().num_rows == 25


def test_empty_table(server: RestServer) -> None:
    server.pyiceberg().create_table("sales.people", pa.schema({"id": pa.int64()}))
    found = plan(server, {"filter": {"type": "eq", "term": "id", "value": 1}}).json()
    assert (found["status"], found["file-scan-tasks"]) == ("completed", [])
    assert remote(server).load_table("sales.people").scan().to_arrow().num_rows == 0


def test_snapshots(server: RestServer, people: Table) -> None:
    ids = [each.snapshot_id for each in people.metadata.snapshots]
    first = plan(server, {"snapshot-id": ids[0]}).json()
    assert paths(first) == local_paths(people, snapshot_id=ids[0])
    between = plan(server, {"start-snapshot-id": ids[0], "end-snapshot-id": ids[2]}).json()
    assert paths(between) == sorted(set(local_paths(people)) - set(paths(first)))
    filtered = {"type": "lt", "term": "id", "value": 15}
    some = plan(server, {"start-snapshot-id": ids[0], "end-snapshot-id": ids[2], "filter": filtered}).json()
    assert len(paths(some)) == 1
    assert some["file-scan-tasks"][0]["residual-filter"] == filtered


def test_metadata_columns_can_be_selected(server: RestServer, people: Table) -> None:
    """Spark does so for UPDATE and DELETE."""
    body = {"select": ["id", "_file", "_pos", "_partition.x"], "filter": {"type": "eq", "term": "_file", "value": "x"}}
    assert paths(plan(server, body).json()) == local_paths(people)


def test_names_of_an_older_schema(server: RestServer, people: Table) -> None:
    with people.update_schema() as change:
        change.rename_column("id", "number")
    old = people.metadata.snapshots[0].snapshot_id
    by_new = {"snapshot-id": old, "filter": {"type": "gt", "term": "number", "value": 5}, "select": ["number"]}
    by_old = {"snapshot-id": old, "filter": {"type": "gt", "term": "id", "value": 5}, "use-snapshot-schema": True}
    assert len(paths(plan(server, by_new).json())) == len(paths(plan(server, by_old).json())) == 1
    assert plan(server, {**by_new, "use-snapshot-schema": True}).status_code == 400
    none = {**by_old, "filter": {"type": "gt", "term": "id", "value": 50}}
    assert paths(plan(server, none).json()) == []


@pytest.mark.usefixtures("people")
def test_parts_are_fetched_until_the_plan_is_cancelled(
    server: RestServer, people: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_planning, "PART_FILES", 1)
    made = plan(server).json()
    plan_id = made["plan-id"]
    again = server.call("GET", f"{HERE}/plan/{plan_id}").json()
    assert {**again, "plan-id": plan_id} == made
    assert len(made["plan-tasks"]) == 2
    fetched = [server.call("POST", f"{HERE}/tasks", {"plan-task": each}).json() for each in made["plan-tasks"]]
    assert sorted([*paths(made), *(path for each in fetched for path in paths(each))]) == local_paths(people)
    for wrong in (f"{plan_id}.0", f"{plan_id}.3", f"{plan_id}.x", plan_id, "", "x.1"):
        answer = server.call("POST", f"{HERE}/tasks", {"plan-task": wrong})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchPlanTaskException"), wrong
    as_other = {"authorization": "Bearer reader"}
    assert server.call("GET", f"{HERE}/plan/{plan_id}", **as_other).status_code == 404, "plans belong to their callers"
    assert server.call("POST", f"{HERE}/tasks", {"plan-task": made["plan-tasks"][0]}, **as_other).status_code == 404
    assert server.call("DELETE", f"{HERE}/plan/{plan_id}", **as_other).status_code == 404
    assert server.call("DELETE", f"{HERE}/plan/{plan_id}").status_code == 204
    for answer in (
        server.call("GET", f"{HERE}/plan/{plan_id}"),
        server.call("DELETE", f"{HERE}/plan/{plan_id}"),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchPlanIdException")
    answer = server.call("POST", f"{HERE}/tasks", {"plan-task": made["plan-tasks"][0]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "NoSuchPlanTaskException")


@pytest.mark.usefixtures("people")
def test_plan_is_of_the_snapshot_at_its_time(server: RestServer, people: Table) -> None:
    made = plan(server).json()
    people.append(pa.table({"id": [99], "name": ["x"]}))
    assert len(paths(server.call("GET", f"{HERE}/plan/{made['plan-id']}").json())) == 3
    assert len(paths(plan(server).json())) == 4


@pytest.mark.parametrize(
    "body",
    [
        {"snapshot-id": 77},
        {"snapshot-id": "x"},
        {"snapshot-id": 1, "start-snapshot-id": 1, "end-snapshot-id": 2},
        {"start-snapshot-id": 1},
        {"end-snapshot-id": 1},
        {"start-snapshot-id": 1, "end-snapshot-id": 77},
        {"filter": {"type": "eq", "term": "nothing", "value": 1}},
        {"filter": 7},
        {"select": ["nothing"]},
        {"select": "id"},
        {"filter": {"type": "eq", "term": "name", "value": "x" * 200_000}},
    ],
    ids=lambda body: json.dumps(body)[:60],
)
@pytest.mark.usefixtures("people")
def test_invalid_plans_are_rejected(server: RestServer, body: Any) -> None:
    answer = plan(server, body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException"), answer.text


@pytest.mark.usefixtures("people")
def test_repeated_request_with_an_idempotency_key_gets_the_same_plan(server: RestServer) -> None:
    first, again = (plan(server, {}, idempotency_key="k").json() for _ in range(2))
    assert first == again


def test_plans_expire_and_their_number_is_limited() -> None:
    clock = Clock()
    with open_stores("memory://", clock=clock) as stores:
        realm = Realm(stores, "a1", clock=clock, caller="ada")
        ids = []
        for _ in range(MAX_PLANS + 3):
            ids.append(add_plan(realm, "t1", ScanPlan(snapshot_id=1)))
            clock.advance(1)
        assert find_plan(realm, "t1", ids[3]) == ScanPlan(snapshot_id=1)
        with pytest.raises(NotFound):
            find_plan(realm, "t1", ids[2])
        assert len(list(stores.pointers.scan("/plans/"))) == MAX_PLANS
        clock.advance(PLANS_KEPT.total_seconds())
        with pytest.raises(NotFound):
            find_plan(realm, "t1", ids[-1])
