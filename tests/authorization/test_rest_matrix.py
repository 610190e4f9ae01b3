"""Every route of the Iceberg REST catalog × callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from authorization.callers import CALLERS, RESTRICTED, SOME, Caller, Least
from authorization.worlds import Worlds, unchanged
from skiway.rest import RestApp
from skiway.rest.app import ROUTES
from skiway.vending import S3Keys, S3Service, Signer, StaticKeys, Vending

REFUSED = (401, 403, 404)
SEEN = ('"NoSuchPlan', "is not a generic table")
"""In the errors for callers who may read the table: the plan does not exist, or the table is an Iceberg table."""

SALES = "/v1/lake/namespaces/sales"
PEOPLE = f"{SALES}/tables/people"
ADULTS = f"{SALES}/views/adults"
COLUMNS = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}
RENAMED = {
    "source": {"namespace": ["sales"], "name": "people"},
    "destination": {"namespace": ["sales"], "name": "persons"},
}
VERSION = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "representations": [{"type": "sql", "sql": "SELECT id FROM people", "dialect": "spark"}],
    "default-namespace": ["sales"],
}
RENAMED_VIEW = {
    "source": {"namespace": ["sales"], "name": "adults"},
    "destination": {"namespace": ["sales"], "name": "seniors"},
}
CHANGE = {
    "identifier": {"namespace": ["sales"], "name": "people"},
    "requirements": [],
    "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
}
SIGNED = {"region": "eu-west-1", "uri": "https://lake.s3.amazonaws.com/x", "method": "GET", "headers": {}}
OPEN: Final = Least("read")
READ_TABLE, WRITE_TABLE = Least("read", "table"), Least("write", "table")
READ_VIEW, WRITE_VIEW = Least("read", "namespace"), Least("write", "namespace")  # nobody has a grant on only the view
WRITE_NAMESPACE, WRITE_CATALOG = Least("write", "namespace"), Least("write", "catalog")


@dataclass(frozen=True)
class Row:
    """A request of a route, and the least privilege for it. `is_open` routes are for everybody.

    `answers` are the statuses for callers who have the privilege.
    """

    path: str
    least: Least
    body: Any = None
    is_open: bool = False
    answers: Collection[int] = range(200, 300)


ROWS: Final = {
    "GetConfig": Row("/v1/config?warehouse=lake", READ_TABLE),
    "GetToken": Row("/v1/oauth/tokens", OPEN, {}, is_open=True),
    "ListNamespaces": Row("/v1/lake/namespaces", READ_TABLE),
    "CreateNamespace": Row("/v1/lake/namespaces", WRITE_CATALOG, {"namespace": ["new"]}),
    "LoadNamespace": Row(SALES, READ_TABLE),
    "NamespaceExists": Row(SALES, READ_TABLE),
    "DropNamespace": Row("/v1/lake/namespaces/empty", WRITE_CATALOG),
    "UpdateProperties": Row(f"{SALES}/properties", WRITE_NAMESPACE, {"updates": {"a": "b"}}),
    "ListTables": Row(f"{SALES}/tables", READ_TABLE),
    "CreateTable": Row(f"{SALES}/tables", WRITE_NAMESPACE, {"name": "new", "schema": COLUMNS}),
    "LoadTable": Row(PEOPLE, READ_TABLE),
    "TableExists": Row(PEOPLE, READ_TABLE),
    "CommitTable": Row(
        PEOPLE, WRITE_TABLE, {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
    ),
    "DropTable": Row(PEOPLE, WRITE_TABLE),
    "PlanTableScan": Row(f"{PEOPLE}/plan", READ_TABLE, {}),
    "FetchPlanningResult": Row(f"{PEOPLE}/plan/$plan", READ_TABLE),
    "CancelPlanning": Row(f"{PEOPLE}/plan/$plan", READ_TABLE),
    "FetchScanTasks": Row(f"{PEOPLE}/tasks", READ_TABLE, {"plan-task": "$plan.1"}, answers=[404]),  # it has one part
    "LoadCredentials": Row(f"{PEOPLE}/credentials", READ_TABLE),
    "SignRequest": Row(f"{PEOPLE}/sign", READ_TABLE, SIGNED, answers=[406]),  # the table is not in S3
    "ReportMetrics": Row(f"{PEOPLE}/metrics", READ_TABLE, {"report-type": "scan-report"}),
    "RenameTable": Row("/v1/lake/tables/rename", WRITE_TABLE, RENAMED),
    "RegisterTable": Row(f"{SALES}/register", WRITE_NAMESPACE, {"name": "registered", "metadata-location": ""}),
    "CommitTransaction": Row("/v1/lake/transactions/commit", WRITE_TABLE, {"table-changes": [CHANGE]}),
    "ListGenericTables": Row(f"/polaris{SALES}/generic-tables", READ_TABLE),
    "LoadGenericTable": Row(f"/polaris{SALES}/generic-tables/people", READ_TABLE, answers=[404]),
    "ListViews": Row(f"{SALES}/views", READ_TABLE),
    "CreateView": Row(f"{SALES}/views", WRITE_NAMESPACE, {"name": "new", "schema": COLUMNS, "view-version": VERSION}),
    "LoadView": Row(ADULTS, READ_VIEW),
    "ViewExists": Row(ADULTS, READ_VIEW),
    "ReplaceView": Row(ADULTS, WRITE_VIEW, {"updates": [{"action": "set-properties", "updates": {"a": "b"}}]}),
    "DropView": Row(ADULTS, WRITE_VIEW),
    "RenameView": Row("/v1/lake/views/rename", WRITE_VIEW, RENAMED_VIEW),
    "RegisterView": Row(f"{SALES}/register-view", WRITE_NAMESPACE, {"name": "registered", "metadata-location": ""}),
}
PERMISSIONS: Final = {
    "catalog.read": ("GetConfig",),
    "namespace.read": ("ListNamespaces", "LoadNamespace", "NamespaceExists"),
    "namespace.write": ("CreateNamespace", "DropNamespace", "UpdateProperties"),
    "table.read": (
        *("ListTables", "LoadTable", "TableExists", "ListGenericTables", "LoadGenericTable", "ReportMetrics"),
        *("PlanTableScan", "FetchPlanningResult", "CancelPlanning", "FetchScanTasks"),
        *("LoadCredentials", "SignRequest"),
    ),
    "table.write": ("CreateTable", "CommitTable", "DropTable", "RenameTable", "RegisterTable", "CommitTransaction"),
    "view.read": ("ListViews", "LoadView", "ViewExists"),
    "view.write": ("CreateView", "ReplaceView", "DropView", "RenameView", "RegisterView"),
}
"""The routes for which a role needs each permission."""

PERMISSION_OF: Final = {name: permission for permission, names in PERMISSIONS.items() for name in names}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def app(worlds: Worlds) -> Iterator[Starlette]:
    keys = S3Keys("key", "secret")
    vending = Vending({"s3": StaticKeys(accounts=["a1"], read=keys, write=keys)}, Signer(lambda: keys, S3Service()))
    rest = RestApp(worlds.access, warehouse=worlds.warehouse, vending=vending)
    yield Starlette(routes=[Mount("/iceberg", rest)])
    rest.close()


def test_every_route_has_a_rule() -> None:
    assert ROWS.keys() == {route.name for route in ROUTES}, "add what the new route requires to ROWS"
    assert {route.name for route in ROUTES if not route.permissions} == {
        name for name, row in ROWS.items() if row.is_open
    }
    found = {route.name: route.permissions for route in ROUTES if route.permissions}
    assert found == {name: (permission,) for name, permission in PERMISSION_OF.items()}


@pytest.fixture(autouse=True, scope="module")
def _metadata_files(worlds: Worlds) -> None:
    """The bodies of registrations name files of this world."""
    for name, location in (("RegisterTable", worlds.table_metadata), ("RegisterView", worlds.view_metadata)):
        ROWS[name].body["metadata-location"] = location


def sent(app: Starlette, method: str, row: Row, callers: list[Caller]) -> list[httpx.Response]:
    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://lake") as client:
            return [
                await client.request(
                    method, f"/iceberg{row.path}", json=row.body, headers={"authorization": f"Bearer {caller.name}"}
                )
                for caller in callers
            ]

    return asyncio.run(send())


CATALOGS: Final = ("lake", "lake%40dev")
"""Main, and a branch of it."""
ON_MAIN_ONLY: Final = {"RegisterTable"}
"""The routes that no caller can use on a branch."""


def in_catalog(name: str, catalog: str) -> Row:
    """The row of a route, in this catalog."""
    row = ROWS[name]
    return replace(row, path=row.path.replace("/v1/lake/", f"/v1/{catalog}/").replace("=lake", f"={catalog}"))


def planned(app: Starlette, row: Row, caller: Caller, catalog: str) -> Row:
    """The row with the id of a plan of the caller, if it is about one; if the caller may not plan, one of another caller."""
    if "$plan" not in f"{row.path} {row.body}":
        return row
    administrator = next(each for each in CALLERS if each.name == "administrator")
    answers = sent(app, "POST", in_catalog("PlanTableScan", catalog), [caller, administrator])
    made = next(answer for answer in answers if answer.status_code == 200)
    body = json.dumps(row.body).replace("$plan", made.json()["plan-id"])
    return replace(row, path=row.path.replace("$plan", made.json()["plan-id"]), body=json.loads(body))


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_row(route: Any, catalog: str, app: Starlette, worlds: Worlds) -> None:
    if catalog != "lake" and route.name in ON_MAIN_ONLY:
        return
    for caller in SOME:
        row = planned(app, in_catalog(route.name, catalog), caller, catalog)
        by_role = caller.has_role_for([PERMISSION_OF.get(route.name, "")]) or caller.has_grant_for(row.least)
        allowed = row.is_open or (caller.account_id == "a1" and by_role)
        with unchanged(worlds, allowed=allowed, changes=route.changes):
            (answer,) = sent(app, route.method, row, [caller])
            where = f"{route.endpoint} by {caller}: {answer.status_code} {answer.text[:300]}"
            assert allowed == (answer.status_code not in REFUSED or any(each in answer.text for each in SEEN)), where
            assert allowed or "hidden" not in answer.text, where
            assert row.is_open or not allowed or answer.status_code in row.answers, where


ON_PEOPLE: Final = "policies no names, some rows restrict what you see of table people"
ON_ADULTS: Final = "policy no adults restricts what you see of view adults"
REFUSED_BY_POLICIES: Final = {
    **dict.fromkeys(("LoadTable", "CommitTable", "DropTable", "RenameTable", "CommitTransaction"), ON_PEOPLE),
    **dict.fromkeys(("LoadCredentials", "SignRequest", "LoadGenericTable"), ON_PEOPLE),
    **dict.fromkeys(("PlanTableScan", "FetchPlanningResult", "CancelPlanning", "FetchScanTasks"), ON_PEOPLE),
    **dict.fromkeys(("LoadView", "ReplaceView", "DropView", "RenameView"), ON_ADULTS),
}
"""The routes that would show or change files of a table, or the SQL of a view, for a caller whom policies restrict on it."""


@pytest.mark.parametrize("catalog", CATALOGS)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_restricted_caller(route: Any, catalog: str, app: Starlette, worlds: Worlds) -> None:
    if catalog != "lake" and route.name in ON_MAIN_ONLY:
        return
    row = planned(app, in_catalog(route.name, catalog), RESTRICTED, catalog)
    before = worlds.now.state()
    (answer,) = sent(app, route.method, row, [RESTRICTED])
    if route.name in REFUSED_BY_POLICIES:
        assert answer.status_code == 403, answer.text
        assert REFUSED_BY_POLICIES[route.name] in answer.text
        assert worlds.now.state() == before
    else:
        assert row.is_open or answer.status_code in row.answers, answer.text
    worlds.renew()


@pytest.mark.parametrize(("on", "names"), [("table", ["people"]), ("namespace", ["orders", "people"])])
def test_listing_shows_what_is_granted(on: str, names: list[str], app: Starlette) -> None:
    row, caller = ROWS["ListTables"], next(each for each in CALLERS if (each.on, each.privilege) == (on, "read"))
    (answer,) = sent(app, "GET", row, [caller])
    assert sorted(each["name"] for each in json.loads(answer.text)["identifiers"]) == names
