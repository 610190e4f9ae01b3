"""Branches of the lake in the explorer, and in the calls that it makes, which read them as they read main."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.servers import Server, started
from skiway.client import AirportClient, Metastore, col
from skiway.errors import NotFound, PreconditionFailed
from web.explorers import Visitor, visiting

PEOPLE = pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "late"]})
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A lake with a branch that has changed one table, dropped one, and made one; and with a conflict in a third."""
    home: Path = tmp_path_factory.mktemp("branches") / "home"
    with started(home) as running:
        with AirportClient(running.addresses["airport"], "lake") as lake, Metastore(running.address) as metastore:
            lake.create_schema("sales")
            for name in ("people", "orders", "gone"):
                lake.create_table_as(("sales", name), PEOPLE)
            lake.call(("skiway", "create_view"), "sales.names", "SELECT name FROM sales.people").read_all()
            metastore.branches.create("lake@dev", description=f"to try {SCRIPT}")
            metastore.branches.create("lake@v1", is_tag=True)
            with AirportClient(running.addresses["airport"], "lake@dev") as dev:
                dev.insert("sales.people", pa.table({"id": [4], "name": ["dee"]}))
                dev.create_table_as(("sales", "returns"), PEOPLE)
                dev.drop_table(("sales", "gone"))
                dev.delete("sales.orders", where=col("id") == 1)
            lake.delete("sales.orders", where=col("id") == 2)
        yield running


@pytest.fixture
def visitor(server: Server) -> Iterator[Visitor]:
    with visiting(server) as found:
        yield found


def tree(visitor: Visitor, path: str) -> list[tuple[str, str]]:
    return [(each["kind"], each["name"]) for each in visitor.get(path).json()["items"]]


# --- calls --------------------------------------------------------------------------------------------------------------


def test_a_client_reads_a_branch_like_main(server: Server) -> None:
    with Metastore(server.address) as main:
        dev = main.on_branch("lake@dev")
        assert [each.name for each in dev.tables("lake@dev.sales")] == ["orders", "people", "returns"]
        assert [each.name for each in main.tables("lake.sales")] == ["gone", "orders", "people"]
        assert dev.tables.get("lake@dev.sales.people").stats.row_count == 4
        assert main.tables.get("lake.sales.people").stats.row_count == 3
        assert len(list(dev.snapshots("lake@dev.sales.people"))) == 2
        assert [each.name for each in dev.namespaces("lake@dev")] == ["sales"]
        assert dev.views.get("lake@dev.sales.names").name == "names"


def test_calls_that_change_something_or_are_about_main_refuse_branches(server: Server) -> None:
    with Metastore(server.address) as main:
        dev = main.on_branch("lake@dev")
        with pytest.raises(PreconditionFailed, match="works on main only"):
            dev.tables.update("lake@dev.sales.people", description="x")
        with pytest.raises(PreconditionFailed, match="works on main only"):
            list(dev.connectors())
        with pytest.raises(NotFound, match="nothing"):
            list(main.on_branch("lake@nothing").namespaces("lake@nothing"))


# --- pages --------------------------------------------------------------------------------------------------------------


def test_the_tree_has_branches_below_their_catalog(visitor: Visitor) -> None:
    assert tree(visitor, "/tree/lake") == [("branch", "dev"), ("branch", "v1"), ("namespace", "sales")]
    assert tree(visitor, "/tree/lake%40dev") == [("namespace", "sales")]
    assert ("table", "returns") in tree(visitor, "/tree/lake%40dev/sales")
    assert ("table", "gone") not in tree(visitor, "/tree/lake%40dev/sales")


def test_branches_are_listed_with_how_much_they_have_changed(visitor: Visitor) -> None:
    found = visitor.data("/branches/lake")["branches"]
    assert [(each["name"], each["is_tag"], each["changes"]) for each in found] == [
        ("lake@dev", False, 4),
        ("lake@v1", True, None),
    ]
    assert visitor.data("/branches")["branches"] == found
    for page in ("/branches", "/branches/lake%40dev", "/catalogs/lake%40dev"):
        assert "to try &lt;script&gt;" in visitor.page(page)


def test_objects_of_a_branch_are_browsed(visitor: Visitor) -> None:
    members = visitor.data("/catalogs/lake%40dev/sales")["members"]
    assert [(each["path"][-1], each["kind"], each["rows"]) for each in members] == [
        ("names", "view", None),
        ("orders", "table", 2),
        ("people", "table", 4),
        ("returns", "table", 3),
    ]
    page = visitor.page("/catalogs/lake%40dev")
    assert "The same on main" in page
    people = visitor.data("/tables/lake%40dev/sales/people?tab=rows")
    assert "dee" in [row[1] for row in people["preview"]["rows"]]
    assert people["rows"] == 4
    for tab in people["tabs"]:
        assert "lake@dev" in visitor.page(f"/tables/lake%40dev/sales/people?tab={tab}")
    assert visitor.get("/tables/lake%40dev/sales/people?tab=health").status_code == 404
    for tab in visitor.data("/views/lake%40dev/sales/names")["tabs"]:
        assert "lake@dev" in visitor.page(f"/views/lake%40dev/sales/names?tab={tab}")
    assert visitor.get("/tables/lake%40dev/sales/gone").status_code == 404
    assert visitor.get("/catalogs/lake%40nothing").status_code == 404


def test_queries_run_on_a_branch(visitor: Visitor) -> None:
    query = "catalog=lake%40dev&sql=select+count(*)+n+from+sales.people"
    assert visitor.data(f"/sql?{query}")["result"]["rows"] == [[4]]
    assert "lake@dev" in visitor.data("/sql")["catalogs"]
    assert visitor.get(f"/run?{query}&run=0123456789").json()["columns"][0]["values"] == [4]


def changes(visitor: Visitor, query: str = "") -> dict[str, Any]:
    return {each["name"]: each for each in visitor.data(f"/branches/lake%40dev{query}")["changes"]}


def test_a_diff_shows_what_both_sides_did_and_leads_to_both(visitor: Visitor) -> None:
    found = changes(visitor)
    assert {name: (each["action"], each["on_main"], bool(each["conflict"])) for name, each in found.items()} == {
        "sales.people": ("changed", "", False),
        "sales.orders": ("changed", "changed", True),
        "sales.returns": ("created", "", False),
        "sales.gone": ("dropped", "", False),
    }
    assert (found["sales.people"]["rows_on_main"], found["sales.people"]["rows_on_branch"]) == (3, 4)
    page = visitor.page("/branches/lake%40dev")
    for link in ("lake%40dev/sales/people", "lake/sales/people", "lake%40dev/sales/returns", "lake/sales/gone"):
        assert f'href="/tables/{link}"' in page
    assert 'href="/tables/lake/sales/returns"' not in page
    assert 'href="/tables/lake%40dev/sales/gone"' not in page
    assert "1 change is in conflict" in page
    chosen = visitor.page("/branches/lake%40dev?theirs=sales.orders")
    assert "/new/merge?name=lake%40dev&amp;theirs=sales.orders" in chosen
    assert "in conflict with main" not in chosen


def test_a_merge_is_tried_refused_and_made(visitor: Visitor, server: Server) -> None:
    form = {"name": "lake@dev", "ours": "", "theirs": ""}
    planned = visitor.send("/new/merge.json", {**form, "action": "plan"}, on="/new/merge").json()["preview"]
    assert "1 of 4 changes are in conflict" in planned["caption"]
    refused = visitor.send("/new/merge", {**form, "action": "make"}, on="/new/merge")
    assert refused.status_code == 400
    assert "sales.orders" in refused.text
    form["ours"] = "sales.orders"
    planned = visitor.send("/new/merge.json", {**form, "action": "plan"}, on="/new/merge").json()["preview"]
    assert planned["caption"] == "3 changes would be merged"
    assert ["table sales.orders", "changed", "changed", "keep main"] in planned["rows"]
    with Metastore(server.address) as lake:
        assert lake.tables.get("lake.sales.people").stats.row_count == 3, "nothing was merged so far"
        answer = visitor.send("/new/merge", {**form, "action": "make"}, on="/new/merge")
        assert answer.headers["location"] == "/branches/lake%40dev"
        assert lake.tables.get("lake.sales.people").stats.row_count == 4
    page = visitor.page("/branches/lake%40dev")
    assert "no longer be changed" in page
    assert "/new/merge" not in page
    assert "skiway branches delete lake@dev" in visitor.page("/delete/branch/lake%40dev")
    gone = visitor.send("/delete/branch/lake%40dev", {"action": "delete"}, on="/new/merge")
    assert gone.headers["location"] == "/branches"
    assert visitor.get("/branches/lake%40dev").status_code == 404
