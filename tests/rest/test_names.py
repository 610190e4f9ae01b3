"""Names in managed catalogs are case-insensitive for every call; the stored spelling is kept and returned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest.rest_server import RestServer, opened
from skiway.storage import open_stores

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}
VERSION = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "default-namespace": ["Shop"],
    "representations": [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "duckdb"}],
}
TABLES, VIEWS = "/v1/lake/namespaces/sHOP/tables", "/v1/lake/namespaces/sHOP/views"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[RestServer]:
    """A server with the table Shop.Orders and the view Shop.Recent."""
    with open_stores("memory://") as stores, opened(stores, tmp_path, approved=tmp_path / "places") as server:
        expect(server, 200, "POST", "/v1/lake/namespaces", {"namespace": ["Shop"]})
        expect(server, 200, "POST", TABLES, {"name": "Orders", "schema": SCHEMA})
        expect(
            server, 200, "POST", VIEWS, {"name": "Recent", "schema": SCHEMA, "view-version": VERSION, "properties": {}}
        )
        yield server


def expect(server: RestServer, status: int, method: str, path: str, body: Any = None) -> Any:
    response = server.call(method, path, body)
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def set_property(**more: Any) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}], **more}


def names(server: RestServer, path: str) -> list[str]:
    return [each["name"] for each in expect(server, 200, "GET", path)["identifiers"]]


def test_tables_are_found_in_any_case(shop: RestServer) -> None:
    for name in ("Orders", "orders", "ORDERS"):
        loaded = expect(shop, 200, "GET", f"{TABLES}/{name}")
        assert loaded["metadata"]["location"]
        expect(shop, 204, "HEAD", f"{TABLES}/{name}")
        expect(shop, 200, "POST", f"{TABLES}/{name}/plan", {})
    assert names(shop, TABLES) == ["Orders"]


def test_commits_name_tables_in_any_case(shop: RestServer) -> None:
    made = expect(shop, 200, "POST", f"{TABLES}/ORDERS", set_property())
    assert made["metadata"]["properties"]["a"] == "b"
    named = set_property(identifier={"namespace": ["shop"], "name": "orders"})
    expect(shop, 200, "POST", f"{TABLES}/ORDERS", named)
    expect(shop, 204, "POST", "/v1/lake/transactions/commit", {"table-changes": [named]})
    other = set_property(identifier={"namespace": ["shop"], "name": "others"})
    assert "the path names" in expect(shop, 400, "POST", f"{TABLES}/ORDERS", other)["error"]["message"]
    creation = {"requirements": [{"type": "assert-create"}], "updates": []}
    expect(shop, 409, "POST", f"{TABLES}/ORDERS", creation)


def test_tables_are_renamed_and_dropped_in_any_case(shop: RestServer) -> None:
    source = {"namespace": ["SHOP"], "name": "oRDERS"}
    expect(shop, 204, "POST", "/v1/lake/tables/rename", {"source": source, "destination": source | {"name": "ORDERS"}})
    assert names(shop, TABLES) == ["ORDERS"]
    taken = expect(
        shop,
        409,
        "POST",
        "/v1/lake/tables/rename",
        {"source": source, "destination": {"namespace": ["shop"], "name": "recent"}},
    )
    assert "View already exists" in taken["error"]["message"]
    expect(shop, 204, "DELETE", f"{TABLES}/orders")
    assert names(shop, TABLES) == []


def test_registered_tables_replace_those_in_any_case(shop: RestServer) -> None:
    before = expect(shop, 200, "GET", f"{TABLES}/orders")
    expect(shop, 200, "POST", f"{TABLES}/orders", set_property())
    body = {"name": "orders", "metadata-location": before["metadata-location"], "overwrite": True}
    expect(shop, 200, "POST", "/v1/lake/namespaces/shop/register", body)
    after = expect(shop, 200, "GET", f"{TABLES}/orders")
    assert "a" not in after["metadata"]["properties"]
    assert names(shop, TABLES) == ["Orders"]
    expect(shop, 409, "POST", "/v1/lake/namespaces/shop/register", {**body, "overwrite": False})


def test_views_are_found_in_any_case(shop: RestServer) -> None:
    expect(shop, 200, "GET", f"{VIEWS}/recent")
    expect(shop, 204, "HEAD", f"{VIEWS}/RECENT")
    named = set_property(identifier={"namespace": ["shop"], "name": "recent"})
    expect(shop, 200, "POST", f"{VIEWS}/RECENT", named)
    source = {"namespace": ["SHOP"], "name": "rECENT"}
    expect(shop, 204, "POST", "/v1/lake/views/rename", {"source": source, "destination": source | {"name": "Newest"}})
    assert names(shop, VIEWS) == ["Newest"]
    expect(shop, 204, "DELETE", f"{VIEWS}/newest")
    assert names(shop, VIEWS) == []


def test_namespaces_are_found_in_any_case(shop: RestServer) -> None:
    assert expect(shop, 200, "GET", "/v1/lake/namespaces/SHOP")["namespace"] == ["Shop"]
    expect(shop, 204, "HEAD", "/v1/lake/namespaces/shop")
    expect(shop, 200, "POST", "/v1/lake/namespaces/shop/properties", {"updates": {"a": "b"}})
    expect(shop, 409, "POST", "/v1/lake/namespaces", {"namespace": ["SHOP"]})
    made = expect(shop, 200, "POST", "/v1/lake/namespaces", {"namespace": ["SHOP", "Eu", "De"]})
    assert made["namespace"] == ["Shop", "Eu", "De"]
    assert expect(shop, 200, "GET", "/v1/lake/namespaces?parent=SHOP")["namespaces"] == [["Shop", "Eu"]]
    expect(shop, 204, "DELETE", "/v1/lake/namespaces/shop%1FEU%1Fde")
    expect(shop, 204, "DELETE", "/v1/lake/namespaces/shop%1Feu")
    assert expect(shop, 200, "GET", "/v1/lake/namespaces")["namespaces"] == [["Shop"]]


def test_names_of_tables_and_views_do_not_answer_for_each_other(shop: RestServer) -> None:
    expect(shop, 404, "GET", f"{TABLES}/RECENT")
    expect(shop, 404, "GET", f"{VIEWS}/ORDERS")
    expect(shop, 404, "GET", f"{TABLES}/ORDER")
