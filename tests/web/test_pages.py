"""The pages of the explorer, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from formats.odd_tables import write_delta
from runtime.servers import Server, add_swapped_columns, eventually, started
from skiway.client import AirportClient, Metastore
from skiway.client.metastore import Job, PlannedTable
from skiway.client.metastore.calls import Calls
from skiway.metastore.pipelines.lineage import COLUMNS
from skiway.metastore.pipelines.lineage import PIPELINE as PIPELINE_ID
from skiway.model import v1
from skiway.presentation.results import OpenClients
from skiway.web import charts
from skiway.web.pages import PAGES, jobs, tree
from skiway.web.pages.objects.views import TABS as VIEW_TABS
from skiway.web.rendering import rendered
from skiway.web.visits import Clients, Page, Visit
from skiway.web.visits import Visitor as WebVisitor
from web.explorers import TABS, Visitor, store_history, visiting

SCRIPT = "<script>alert(1)</script>"
ESCAPED = ("&lt;script&gt;", r"\u003cscript\u003e")
"""The tag as text of HTML, and in JSON inside of a page."""
PIPELINE = {
    "pipeline.yml": f"name: {SCRIPT}\ncatalog: lake\nnamespace: sales\n",
    "adults.sql": f"-- @description: {SCRIPT}\nSELECT id FROM people WHERE name <> '{SCRIPT}'",
    "counted.sql": "SELECT count(*) AS n FROM adults",
    "planted.sql": f"-- @table: {SCRIPT}\nSELECT * FROM `{SCRIPT}s`",
    "coded.py": (
        "from pyspark import pipelines as dp\n"
        f"@dp.materialized_view(comment='{SCRIPT}')\n"
        "def coded():\n"
        f"    return spark.table('people')  # <img src=x> {SCRIPT}\n"
    ),
}
NOTE = {"type": "struct", "fields": [{"id": 1, "name": "note", "required": False, "type": "string"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("explorer") / "home"
    with started(home, "--set", "webhooks.max_attempts=1") as running:
        with AirportClient(running.addresses["airport"], "lake") as lake:
            lake.create_schema("sales")
            people = pa.table({"id": pa.array(range(100), pa.int64()), "name": ["ann"] * 60 + ["bob"] * 40})
            lake.create_table_as("sales.people", people)
            lake.insert("sales.people", pa.table({"id": pa.array([1000], pa.int64()), "name": ["late"]}))
            planted = pa.table({SCRIPT: [SCRIPT, None]})
            lake.create_table_as(("sales", f"t{SCRIPT}"), planted)
            lake.create_table_as(("sales", "x/y.json"), pa.table({"a": [1]}))
        with Metastore(running.address) as metastore:
            metastore.tables.update("lake.sales.people", description="customers of the shop")
            snapshot = metastore.snapshots.get("lake.sales.people")
            histogram = v1.Histogram(bounds=["0", "50", "1000"], counts=[50, 51])
            column = v1.ColumnStats(
                column_id=1, column_name="id", logical_type="BIGINT", value_count=101, null_count=0, min="0", max="1000"
            )
            column.histogram.CopyFrom(histogram)
            metastore.statistics.put_columns("lake.sales.people", snapshot, [column])
            store_history(home, metastore)
            metastore.pipelines.create(PIPELINE)
            metastore.connectors.create("shop", kind="parquet", uri=str(home.parent / "nothing"), catalog="lake")
            metastore.webhooks.create(
                "alerts",
                url=f"http://127.0.0.1:9/{SCRIPT}",
                events=["namespace.*"],
                secret="planted-secret-0123",
                description=SCRIPT,
            )
        yield running


@pytest.fixture
def visitor(server: Server) -> Iterator[Visitor]:
    with visiting(server) as found:
        yield found


PATHS = {
    "": "/",
    "search": "/search?q=people",
    "catalogs": "/catalogs/lake",
    "branches": "/branches",
    "tables": "/tables/lake/sales/people",
    "connectors": "/connectors",
    "pipelines": "/pipelines",
    "jobs": "/jobs",
    "queries": "/queries",
    "events": "/events",
    "webhooks": "/webhooks",
    "settings": "/settings",
    "health": "/health",
    "accounts": "/accounts",
    "tokens": "/tokens",
    "audit": "/audit",
    "access": "/access",
    "policies": "/policies",
    "sql": "/sql?catalog=lake&sql=select+1+as+a",
    "history": "/history",
    "new": "/new/policy",
    "delete": "/delete/policy/x",
}


@pytest.mark.parametrize("path", [*PATHS.values(), *(f"{PATHS['tables']}?tab={tab}" for tab in TABS)])
def test_page_has_a_twin_in_json_and_strict_headers(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.text.count("<h1>") == 1
    assert "</html>" in answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert visitor.data("/index" if path == "/" else path)


def test_every_page_that_only_shows_is_tested() -> None:
    elsewhere = {"views", "results", "tree"}  # below
    elsewhere |= {"run", "complete", "progress"}  # in test_workbench.py, because they answer scripts and have no HTML
    assert {kind for method, kind in PAGES if method == "GET"} == PATHS.keys() | elsewhere


def test_numbers_of_rows_say_at_most_if_they_are_bounds(server: Server, visitor: Visitor) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake, Metastore(server.address) as metastore:
        lake.create_schema("upserts")
        lake.create_table_as("upserts.upserted", pa.table({"a": list(range(1500))}))
        assert "1,500 rows" in visitor.page("/search?q=upserted")
        assert "at most" not in visitor.page("/catalogs/lake/upserts")
        bound = {"quality.row_count": "bound"}
        snapshot = metastore.snapshots.get("lake.upserts.upserted")
        metastore.statistics.put("lake.upserts.upserted", snapshot, row_count=1500, properties=bound)
        for path in ("/search?q=upserted", "/catalogs/lake/upserts", "/tables/lake/upserts/upserted"):
            assert "at most 1,500" in visitor.page(path), path
        assert re.search(r"<dt>Rows</dt><dd>at most [0-9,]+</dd>", visitor.page("/"))
        assert visitor.data("/tables/lake/upserts/upserted")["rows_are_bound"] is True
        assert visitor.data("/tables/lake/upserts/upserted")["rows"] == 1500
        lake.drop_table("upserts.upserted")
        lake.drop_schema("upserts")


def test_home_counts_the_tables(visitor: Visitor) -> None:
    data = visitor.data("/index")
    assert data["tables"] >= 3
    assert data["formats"][0]["format"] == "iceberg"
    assert {"kind": "table", "action": "created"}.items() <= max(
        (each for each in data["changes"] if each["name"] == "people"), key=lambda each: -each["sequence"]
    ).items()


@pytest.mark.parametrize(
    ("text", "where"),
    [("people", "name"), ("PEO", "name"), ("shop customers", "comment"), ("sales name", "column name")],
)
def test_search_finds_names_columns_and_comments(visitor: Visitor, text: str, where: str) -> None:
    results = visitor.data(f"/search?q={quote(text)}")["results"]
    assert (results[0]["path"], results[0]["where"]) == (["lake", "sales", "people"], where)


def test_search_finds_tags_and_tables_of_nested_namespaces(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as metastore:
        metastore.namespaces.create("lake.deep.inside")
        metastore.tables.create("lake.deep.inside.treasure", schema=NOTE)
        metastore.policies.tag("lake.deep.inside.treasure", "note", ["confidential"])
    (found,) = results(visitor, "confidential")
    assert (found["path"], found["where"]) == (
        ["lake", "deep", "inside", "treasure"],
        "tag confidential of column note",
    )
    assert "tag confidential of column note" in visitor.page("/search?q=confidential")
    with Metastore(server.address) as metastore:
        metastore.policies.tag("lake.deep.inside.treasure", "note", [])
    assert len(results(visitor, "confidential")) == 0


def test_accounts_and_health(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as metastore:
        metastore.namespaces.create("lake.unmeasured")
        metastore.tables.create("lake.unmeasured.notes", schema=NOTE)
    assert [each["id"] for each in visitor.data("/accounts")["accounts"]] == ["default"]
    checks = {each["name"]: each for each in visitor.data("/health")["checks"]}
    assert checks["Records"]["state"] == "ok"
    assert checks["Statistics"]["state"] == "attention"
    named = [each["text"] for each in checks["Statistics"]["findings"]]
    assert "lake.unmeasured.notes" in named
    assert "lake.sales.people" not in named
    assert checks["Statistics"]["count"] == len(named)


def test_audit_log_shows_calls_and_can_be_filtered(visitor: Visitor) -> None:
    visitor.page("/tables/lake/sales/people")
    records = visitor.data("/audit")["records"]
    assert {"GetTable"} & {each["operation"].rpartition("/")[2] for each in records}
    times = [datetime.fromisoformat(each["time"]) for each in records]
    assert times == sorted(times, reverse=True)
    failed = visitor.data("/audit?q=no-such-text-anywhere")
    assert (failed["records"], failed["found"]) == ([], 0)


def test_search_finds_what_was_created_just_now_and_forgets_what_was_dropped(visitor: Visitor, server: Server) -> None:
    visitor.page("/search?q=people")
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.create_table_as("sales.brandnew", pa.table({"a": [1]}))
        assert len(results(visitor, "brandnew")) == 1
        lake.drop_table("sales.brandnew")
        assert len(results(visitor, "brandnew")) == 0


def results(visitor: Visitor, text: str) -> list[dict[str, Any]]:
    """What a search finds."""
    found: list[dict[str, Any]] = visitor.data(f"/search?q={text}")["results"]
    return found


def test_tree_has_the_members_of_each_container_in_parts(
    visitor: Visitor, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(path: str) -> list[tuple[str, str]]:
        return [(each["kind"], each["name"]) for each in visitor.get(path).json()["items"]]

    assert names("/tree") == [("catalog", "lake")]
    assert ("namespace", "sales") in names("/tree/lake")
    everything = names("/tree/lake/sales")
    assert {("table", "people"), ("table", f"t{SCRIPT}"), ("table", "x/y.json")} <= {*everything}
    assert visitor.get("/tree/lake/sales").json()["next"] is None
    assert visitor.get("/tree/lake/none").status_code == 404
    assert visitor.get("/tree/lake/sales?from=2").status_code == 400

    # The same in small parts, in this process.
    monkeypatch.setattr(tree, "PART", 2)
    opened = OpenClients(server.address)
    unused: Any = None
    clients = Clients(lambda _: opened.metastore(""), unused, unused, unused)
    found, start = list[tuple[str, str]](), ""
    while start is not None:
        shown = tree.tree(Visit(WebVisitor(), clients, ("lake", "sales"), {"from": start}))
        part = json.loads(bytes(shown.body))
        assert len(part["items"]) <= 3
        found += [(each["kind"], each["name"]) for each in part["items"]]
        start = part["next"]
    assert found == everything


def test_search_of_the_page_replaces_only_the_content(visitor: Visitor) -> None:
    fragment = visitor.get("/search?q=people", **{"hx-request": "true"}).text
    assert "people" in fragment
    assert "<html" not in fragment


def test_columns_show_their_histogram(visitor: Visitor) -> None:
    page = visitor.page("/tables/lake/sales/people")
    assert "customers of the shop" in page
    assert 'aria-label="id: histogram from 0 to 1,000"' in page
    assert "<title>0 to 36: 36</title>" in page


def test_nested_fields_are_shown_below_their_column(server: Server, visitor: Visitor) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake, Metastore(server.address) as metastore:
        lake.create_schema("nested")
        boxes = pa.table({"tags": [["a"], ["b", "c"]], "x.y": [{"size": 1}, {"size": 2}], "id": [1, 2]})
        lake.create_table_as("nested.boxes", boxes)
        snapshot = metastore.snapshots.get("lake.nested.boxes")
        names = {3: "id", 5: "x.y.size", 4: "tags.element"}
        columns = [
            v1.ColumnStats(column_id=number, column_name=name, logical_type="STRING", value_count=4 + number)
            for number, name in names.items()
        ]
        metastore.statistics.put_columns("lake.nested.boxes", snapshot, columns)
    shown = visitor.data("/tables/lake/nested/boxes")["columns"]["columns"]
    assert [(each["name"], each["nested"]) for each in shown] == [
        ("tags", False),
        ("tags.element", True),
        ("x.y", False),
        ("x.y.size", True),
        ("id", False),
    ]
    assert [each["profile"]["values"] for each in shown if each["profile"]] == [8, 9, 7]
    assert visitor.page("/tables/lake/nested/boxes").count("see its fields") == 2


def test_rows_are_filtered_sorted_and_paged(visitor: Visitor) -> None:
    path = "/tables/lake/sales/people?tab=rows"
    by_name = visitor.data(f"{path}&c0=name&o0=is&v0=bob&c1=id&o1=least&v1=90&sort=-id&limit=3")["preview"]
    assert [row[0] for row in by_name["rows"]] == [99, 98, 97]
    assert by_name["has_more"]
    more = visitor.data(f"{path}&c0=name&o0=is&v0=bob&c1=id&o1=least&v1=90&sort=-id&limit=3&page=2")["preview"]
    assert [row[0] for row in more["rows"]] == [96, 95, 94]
    assert by_name["columns"] == [{"name": "id", "type": "BIGINT"}, {"name": "name", "type": "VARCHAR"}]
    nothing = visitor.data(f"{path}&c0=name&o0=contains&v0={quote(chr(39))}")["preview"]
    assert (nothing["rows"], nothing["error"]) == ([], "")
    assert "seven" in visitor.data(f"{path}&c0=id&o0=is&v0=seven")["preview"]["error"]
    assert visitor.get(f"{path}&sort=none").status_code == 400
    assert visitor.get(f"{path}&c0=id&o0=drop&v0=1").status_code == 400


def test_two_snapshots_are_compared_with_their_rows(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.call(("skiway", "tag"), "sales.people", SCRIPT).read_all()
    newer, older = visitor.data("/tables/lake/sales/people?tab=snapshots")["history"]["snapshots"][:2]
    assert newer["caller"] == "dev-user"
    assert (SCRIPT in newer["names"], older["names"]) == (True, [])
    assert "&lt;script&gt;" in visitor.page("/tables/lake/sales/people?tab=snapshots")
    path = f"/tables/lake/sales/people?tab=snapshots&from={newer['id']}&to={older['id']}&rows=1"
    compared = visitor.data(path)["history"]["compared"]
    assert (compared["first"]["id"], compared["last"]["id"]) == (older["id"], newer["id"])
    assert compared["totals"][0] == {"name": "Rows", "first": 100, "last": 101}
    assert [part["rows"] for part in compared["rows"]] == [[[1000, "late"]], []]
    assert '<span class="added">+1</span>' in visitor.page(path)
    assert visitor.get("/tables/lake/sales/people?tab=snapshots&from=1&to=2").status_code == 400


def test_column_has_a_histogram_with_axes(visitor: Visitor) -> None:
    page = visitor.page("/tables/lake/sales/people?column=id&scale=log")
    assert 'class="axes" role="img" aria-label="id: histogram from 0 to 1,000"' in page
    assert 'aria-current="true">logarithmic</a>' in page
    assert page.count("<h1>") == 1


def test_home_groups_repeated_changes_and_says_who_made_them(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.create_table_as("sales.grown", pa.table({"n": [0]}))
        for number in (1, 2, 3):
            lake.insert("sales.grown", pa.table({"n": [number]}))
        lake.drop_table("sales.grown")
    found = [each for each in visitor.data("/index")["changes"] if each["action"] == "committed"]
    assert (found[0]["caller"], found[0]["count"]) == ("dev-user", 3)
    assert sum(count for _, count in visitor.data("/index")["by_hour"]) >= 5


def test_view_has_the_tabs_of_tables(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.call(("skiway", "create_view"), "sales.adults", "SELECT id, name FROM sales.people").read_all()
    path = "/views/lake/sales/adults"
    assert visitor.data(path)["columns"] == [{"name": "id", "type": "BIGINT"}, {"name": "name", "type": "VARCHAR"}]
    rows = visitor.data(f"{path}?tab=rows&sort=-id&limit=1")["preview"]["rows"]
    assert rows == [[1000, "late"]]
    found = visitor.data(f"{path}?tab=lineage")["lineage"]
    assert [(each["kind"], each["path"]) for each in found["sources"]] == [("table", ["lake", "sales", "people"])]
    below = visitor.data("/tables/lake/sales/people?tab=lineage")["lineage"]["targets"]
    assert ("view", ["lake", "sales", "adults"]) in [(each["kind"], each["path"]) for each in below]
    for tab in VIEW_TABS:
        assert visitor.page(f"{path}?tab={tab}").count("<h1>") == 1
    assert visitor.get(f"{path}?tab=files").status_code == 404


def test_first_page_is_small(visitor: Visitor) -> None:
    """The home page with everything that it loads, as browsers receive it."""
    page = visitor.page("/")
    files = {*re.findall(r'(?:src|href)="(/static/[^"#]+)', page)}
    assert len(files) >= 6
    sizes = {}
    with httpx.Client(base_url=visitor.browser.base_url, headers={"accept-encoding": "gzip"}) as browser:
        for each in files:
            with browser.stream("GET", each) as answer:
                sizes[each] = sum(map(len, answer.iter_raw()))
    assert len(page) + sum(sizes.values()) < 100_000


def test_statistics_over_time_are_shown(visitor: Visitor) -> None:
    path = "/tables/lake/sales/people?tab=statistics"
    ids, names = visitor.data(path)["statistics"]["columns"]
    assert [each["median"] for each in ids["profiles"]] == ["40", "70"]
    assert [each["top_values"][0]["count"] for each in names["profiles"]] == [40, 70]
    page = visitor.page(path)
    assert 'aria-label="Median of id by snapshot' in page
    assert page.index("<small>70.0 %") < page.index("<small>40.0 %")  # the newest first


def clients_of(server: Server) -> Clients:
    """The clients of pages that run in the process of the test."""
    opened = OpenClients(server.address)
    return Clients(
        metastore=lambda visitor: opened.metastore(visitor.token),
        airport=lambda visitor, catalog: opened.airport(visitor.token, catalog),
        location=lambda: server.addresses["airport"],
        editor=lambda visitor, catalog, query_id: opened.for_query(visitor.token, catalog, query_id),
    )


def test_table_page_makes_few_calls(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes the server about as long as the page itself."""
    made: list[str] = []
    call = Calls.call

    def counted(self: Calls, request: Any, response: Any) -> Any:
        made.append(request.DESCRIPTOR.name.removesuffix("Request"))
        return call(self, request, response)

    monkeypatch.setattr(Calls, "call", counted)
    page = PAGES["GET", "tables"](Visit(WebVisitor(), clients_of(server), ("lake", "sales", "people")))
    assert isinstance(page, Page)
    assert page.data["name"] == "lake.sales.people"
    profile = ["ListColumnStats", "GetSnapshot", "ListColumnStats", "ListFileColumnStats"]  # now and before
    assert made == ["ResolveTable", "GetTable", "GetTableStats", *profile, "GetColumnTags"]


@pytest.mark.parametrize(("kind", "names"), [("", ()), ("search", ()), ("catalogs", ("lake",))])
def test_pages_say_that_the_index_is_being_built_and_reload_themselves(
    server: Server, monkeypatch: pytest.MonkeyPatch, kind: str, names: tuple[str, ...]
) -> None:
    call = Calls.call
    waited: list[int] = []

    def incomplete(self: Calls, request: Any, response: Any) -> Any:
        answer = call(self, request, response)
        if hasattr(answer, "incomplete"):
            answer.incomplete.reason, answer.incomplete.is_temporary = "more will be found", True
            waited.append(request.wait_ms)
        return answer

    monkeypatch.setattr(Calls, "call", incomplete)
    page = PAGES["GET", kind](Visit(WebVisitor(), clients_of(server), names, {"q": "people"}))
    assert isinstance(page, Page)
    assert page.data["incomplete"] == {"reason": "more will be found", "is_temporary": True}
    shell = {"title": "", "path": "/", "is_fragment": True, "form_token": "", "now": datetime.now(UTC)}
    text = rendered(page.template, {**page.data, "shell": shell})
    assert 'role="status" hx-get="" hx-trigger="load delay:2s" hx-target="#main">More will be found.' in text
    assert sum(waited) < 1000, "of all calls of the page together, in ms"
    lasting = {**page.data, "incomplete": {"reason": "some are missing", "is_temporary": False}, "shell": shell}
    text = rendered(page.template, lasting)
    assert "Some are missing." in text
    assert 'hx-get=""' not in text


def test_rows_travel_in_time(visitor: Visitor) -> None:
    history = visitor.data("/tables/lake/sales/people?tab=snapshots")["history"]["snapshots"]
    assert [each["added_rows"] for each in history] == [1, 100]
    assert [each["is_current"] for each in history] == [True, False]
    now = visitor.data("/tables/lake/sales/people?tab=rows&limit=1000")["preview"]
    before = visitor.data(f"/tables/lake/sales/people?tab=rows&limit=1000&at={history[1]['id']}")
    assert [len(now["rows"]), len(before["preview"]["rows"])] == [101, 100]
    assert before["rows"] == 100
    assert f"As of snapshot {history[1]['id']}" in visitor.page(f"/tables/lake/sales/people?at={history[1]['id']}")


def test_changed_table_is_shown_as_it_is_now(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.create_table_as("sales.changing", pa.table({"a": [1]}))
        assert visitor.data("/tables/lake/sales/changing?tab=rows")["preview"]["rows"] == [[1]]
        lake.add_column("sales.changing", pa.field("b", pa.int64()))
    assert visitor.data("/tables/lake/sales/changing?tab=rows")["preview"]["rows"] == [[1, None]]


def test_name_with_a_slash_and_the_suffix_of_twins(visitor: Visitor) -> None:
    listed = visitor.page("/catalogs/lake/sales")
    assert 'href="/tables/lake/sales/x%2Fy%2Ejson"' in listed
    assert visitor.data("/tables/lake/sales/x%2Fy%2Ejson")["path"] == ["lake", "sales", "x/y.json"]
    assert "</html>" in visitor.page("/tables/lake/sales/x%2Fy%2Ejson")


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/catalogs/lake/sales", "/search?q=script", f"/search?q={quote(SCRIPT)}", "/events", "/history"),
        *(f"/{kind}?q={quote(SCRIPT)}&caller={quote(SCRIPT)}" for kind in ("events", "history")),
        *(
            f"/new/{kind}?name={quote(SCRIPT)}&sql={quote(SCRIPT)}&object={quote(SCRIPT)}"
            for kind in ("policy", "view", "grant")
        ),
        f"/delete/policy/{quote(SCRIPT, safe='')}",
        f"/sql?catalog=lake&chart={quote(SCRIPT)}&sql=select+1",
        *(f"/tables/lake/sales/{quote(f't{SCRIPT}', safe='')}?tab={tab}" for tab in TABS),
        f"/sql?catalog=lake&sql={quote(f'select 1 as {chr(34)}{SCRIPT}{chr(34)}')}",
        *(f"/sql?catalog=lake&sql={quote(SCRIPT)}", f"/sql?catalog={quote(SCRIPT)}&sql=select+1"),
        *(f"/{quote(SCRIPT)}", f"/tables/lake/sales/{quote(SCRIPT, safe='')}", f"/jobs/{quote(SCRIPT, safe='')}"),
        *(f"/tables/lake/sales/people?tab={quote(SCRIPT)}", f"/tables/lake/sales/people?at={quote(SCRIPT)}"),
        f"/tables/lake/sales/people?limit={quote(SCRIPT)}&tab=rows",
        f"/jobs?state={quote(SCRIPT)}",
        "/pipelines",
        f"/pipelines/{quote(SCRIPT, safe='')}",
    ],
)
def test_planted_script_is_only_text(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in answer.text
    before = re.findall(r"([^\s>]{0,20})alert\(1\)", answer.text)
    assert all(each.endswith(ESCAPED) for each in before), before


def test_result_of_a_query_is_shown_and_downloaded(visitor: Visitor) -> None:
    sql = quote("select name, count(*) as n from sales.people group by all order by all")
    result = visitor.data(f"/sql?catalog=lake&sql={sql}")["result"]
    assert result["rows"] == [["ann", 60], ["bob", 40], ["late", 1]]
    csv = visitor.get(f"/results?catalog=lake&format=csv&sql={sql}")
    assert csv.text.splitlines() == ['"name","n"', '"ann",60', '"bob",40', '"late",1']
    parquet = visitor.get(f"/results?catalog=lake&format=parquet&sql={sql}")
    from pyarrow.parquet import read_table

    assert read_table(pa.BufferReader(parquet.content)).num_rows == 3
    assert "attachment" in parquet.headers["content-disposition"]


def test_decimals_have_no_exponents(visitor: Visitor) -> None:
    page = visitor.page(f"/sql?catalog=lake&sql={quote('select 0::decimal(38, 10) as n')}")
    assert "0.0000000000" in page
    assert "0E-10" not in page


@pytest.mark.parametrize("sql", ["select * from read_csv('/etc/passwd')", "drop table sales.people", "select"])
def test_query_that_is_refused_shows_why(visitor: Visitor, sql: str) -> None:
    answer = visitor.get(f"/sql?catalog=lake&sql={quote(sql)}")
    assert answer.status_code == 400
    assert 'class="warning"' in answer.text
    assert "root:" not in answer.text
    assert visitor.data("/tables/lake/sales/people")["rows"] == 101


def test_lineage_leads_in_both_directions(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.create_table_as("sales.copied", lake.scan("sales.people").read_all()[:0])
        with lake.transaction(explicit=True):
            lake.insert("sales.copied", lake.scan("sales.people").read_all())
    data = visitor.data("/tables/lake/sales/copied?tab=lineage")["lineage"]
    assert [each["path"] for each in data["sources"]] == [["lake", "sales", "people"]]
    data = visitor.data("/tables/lake/sales/people?tab=lineage")["lineage"]
    assert ["lake", "sales", "copied"] in [each["path"] for each in data["targets"]]
    assert '<a href="/tables/lake/sales/copied" data-node="lake.sales.copied">' in visitor.page(
        "/tables/lake/sales/people?tab=lineage"
    )


def test_lineage_of_columns_is_shown_in_both_directions(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as lake:
        source = lake.tables.get("lake.sales.people").id
    catalog = RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake")
    made = catalog.create_table("sales.computed", pa.schema({"n": pa.int64()}), properties={PIPELINE_ID: "p1"})
    columns = {"n": {source: ["id", SCRIPT]}}
    made.append(pa.table({"n": [1]}), snapshot_properties={COLUMNS: json.dumps(columns)})
    (edge,) = visitor.data("/tables/lake/sales/computed?tab=lineage")["lineage"]["sources"]
    assert (edge["path"], edge["writes"], edge["first_day"]) == (["lake", "sales", "people"], 0, None)
    assert edge["columns"] == [{"column": "n", "sources": ["id", SCRIPT]}]
    computed = visitor.page("/tables/lake/sales/computed?tab=lineage")
    assert 'n <span class="dim">from</span> lake.sales.people.id, lake.sales.people.&lt;script&gt;' in computed
    assert 'data-from="lake.sales.people/id" data-to="lake.sales.computed/n"' in computed
    page = visitor.page("/tables/lake/sales/people?tab=lineage")
    assert 'lake.sales.computed.n <span class="dim">from</span> id, &lt;script&gt;' in page
    assert "<script>alert" not in page
    catalog.drop_table("sales.computed")


def test_recent_scans_are_listed(visitor: Visitor) -> None:
    visitor.page("/tables/lake/sales/people?tab=rows")
    plans = visitor.data("/tables/lake/sales/people?tab=plans")["scans"]["plans"]
    assert plans[0]["files_considered"] >= 1


def test_quality_rules_are_shown_with_their_results(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as metastore:
        metastore.rules.create("many", "lake.sales.people", "row_count", {"min": 10**9}, description="a lot <b>")
        metastore.rules.create("new", "lake.sales.people", "row_count", {"min": 1})
        metastore.rules.check("lake.sales.people", ["many"])
    try:
        many, new = visitor.data("/tables/lake/sales/people?tab=quality")["quality"]["rules"]
        assert (many["status"], many["method"], new["status"], new["checked_at"]) == (
            "failed",
            "metadata",
            "unknown",
            None,
        )
        page = visitor.page("/tables/lake/sales/people?tab=quality")
        assert "expected at least 1000000000 rows" in page
        assert "a lot &lt;b&gt;" in page
        (failing,) = visitor.data("/")["failing_rules"]
        assert (failing["name"], failing["path"]) == ("many", ["lake", "sales", "people"])
        assert "rule <strong>many</strong> of" in visitor.page("/")
    finally:
        with Metastore(server.address) as metastore:
            for name in ("many", "new"):
                metastore.rules.delete(name)


def test_policies_are_shown_with_and_without_a_description(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as metastore:
        metastore.policies.create("plain", to=["user:eve"], mask="null", columns=["secret"])
        metastore.policies.create("told", to=["user:eve"], row_filter="true", on=["lake.sales"], description="for <b>")
    try:
        plain, told = visitor.data("/policies")["policies"]
        assert (plain["mask"], plain["columns"], plain["row_filter"]) == ("null", ["secret"], None)
        assert (told["mask"], told["row_filter"], told["description"]) == (None, "true", "for <b>")
        page = visitor.page("/policies")
        assert "for &lt;b&gt;" in page
        assert "None" not in page
    finally:
        with Metastore(server.address) as metastore:
            for name in ("plain", "told"):
                metastore.policies.delete(name)


def test_grants_and_events_link_to_the_pages_of_their_objects(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.call(("skiway", "create_view"), "sales.linked", "SELECT name FROM sales.people").read_all()
    with Metastore(server.address) as metastore:
        metastore.grants.add("lake.sales.people", "user:bob", "read")
    visitor.page("/search?q=linked")
    assert len(results(visitor, "linked")) == 1
    for page in ("/", "/events"):
        assert 'href="/views/lake/sales/linked"' in visitor.page(page)
    assert 'table <a href="/tables/lake/sales/people">' in visitor.page("/access")
    (grant,) = visitor.data("/access")["grants"]
    assert grant["path"] == ["lake", "sales", "people"]


def test_view_shows_its_dialects(visitor: Visitor, server: Server) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.call(("skiway", "create_view"), "sales.names", "SELECT name FROM sales.people").read_all()
    data = visitor.data("/views/lake/sales/names")
    assert "name" in data["dialects"]["duckdb"].lower()
    assert "SELECT name" in visitor.page("/views/lake/sales/names")


# -- changes ----------------------------------------------------------------------------------------------------------


def test_sync_is_started_and_its_job_shown(visitor: Visitor, server: Server) -> None:
    answer = visitor.send("/connectors/shop", {"action": "sync"})
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    with Metastore(server.address) as lake:
        job = lake.jobs.wait(place.rpartition("/")[2], timeout_s=60)
    assert visitor.data(place)["job"]["state"] == job.state == "failed"
    assert "nothing" in visitor.page(place)
    assert place in visitor.page("/")  # a failing job
    assert "there is nothing at" in visitor.data(place)["log"]
    assert "<h2>Log</h2>" in visitor.page(place)


def test_tables_that_cannot_be_read_are_shown_with_their_reasons(
    visitor: Visitor, server: Server, tmp_path: Path
) -> None:
    one = pa.table({"id": pa.array([1], pa.int64())})
    write_delta(tmp_path / "good", one)
    write_delta(tmp_path / "bad", one, features=("timeTravelByMagic",))
    with Metastore(server.address) as lake:
        lake.connectors.create(
            "odd",
            kind="delta",
            uri=str(tmp_path),
            catalog="lake",
            namespace="odd",
            properties={"delta.source": "filesystem"},
        )
        job = lake.jobs.wait(lake.connectors.sync("odd"), timeout_s=60)
        table = lake.tables.get("lake.odd.bad")
    reason = "needs the unsupported reader feature timeTravelByMagic; drop the feature, or copy the table"
    assert (job.state, table.problem.endswith(reason), table.message.upstream.problem) == (
        "partial",
        True,
        table.problem,
    )
    (listed,) = (each for each in visitor.data("/catalogs/lake/odd")["members"] if each["problem"])
    assert (listed["path"], listed["problem"]) == (["lake", "odd", "bad"], table.problem)
    for path in ("/catalogs/lake/odd", "/tables/lake/odd/bad", "/connectors/odd"):
        assert reason in visitor.page(path), path
    assert visitor.data("/connectors/odd")["last"]["errors"] == {"bad": table.problem}
    assert reason not in visitor.page("/tables/lake/odd/good")


def test_script_in_the_log_of_a_job_is_only_text(visitor: Visitor, server: Server, tmp_path: Path) -> None:
    with Metastore(server.address) as lake:
        lake.connectors.create("planted", kind="parquet", uri=str(tmp_path / SCRIPT), catalog="lake")
        job = lake.jobs.wait(lake.connectors.sync("planted"), timeout_s=60)
        lake.connectors.delete("planted")
    page = visitor.page(f"/jobs/{job.id}")
    assert SCRIPT in visitor.data(f"/jobs/{job.id}")["log"]
    assert "&lt;script&gt;" in page.partition("<h2>Log</h2>")[2]
    assert "<script>alert" not in page


def test_pipeline_shows_its_tables_and_why_they_are_refreshed(visitor: Visitor) -> None:
    data = visitor.data(f"/pipelines/{quote(SCRIPT, safe='')}")
    assert sorted((each["table"], each["action"], each["last_action"]) for each in data["tables"]) == [
        (f"sales.{SCRIPT}", "fail", None),
        ("sales.adults", "replace", None),
        ("sales.coded", "fail", None),
        ("sales.counted", "replace", None),
    ]
    assert [sorted(layer) for layer in data["layers"]] == [
        [f"sales.{SCRIPT}s", "sales.people"],
        [f"sales.{SCRIPT}", "sales.adults", "sales.coded"],
        ["sales.counted"],
    ]
    page = visitor.page(f"/pipelines/{quote(SCRIPT, safe='')}")
    assert "the table does not exist yet" in page
    assert page.count('<path class="line"') == 4
    assert "# &lt;img src=x&gt; &lt;script&gt;alert" in page
    assert "pipelines.python.enabled=true" in page
    assert "<img src=x" not in page
    assert "<script>alert" not in page


def test_tables_in_the_graph_of_a_pipeline_are_links() -> None:
    planned = [
        PlannedTable("s.a", "keep", "", ["s.t"], "append", datetime(2026, 1, 1, tzinfo=UTC)),
        PlannedTable("s.b", "replace", "", ["s.a", "s.t"]),
    ]
    shown = [jobs.table_data(each, "lake") for each in planned]
    assert [each["link"] for each in shown] == ["/tables/lake/s/a", ""]
    found = jobs.layers({each.table: each.reads for each in planned})
    assert found == [["s.t"], ["s.a"], ["s.b"]]
    drawn = charts.graph(found, shown)
    assert drawn.count("<a href=") == 1
    assert drawn.count('<path class="line"') == 3
    assert 'aria-label="2 tables and the 1 tables that they are made from"' in drawn


def test_failures_have_their_places_in_the_files() -> None:
    files = {"a.sql": "1\n2\n3\n4\n5\n6", "pipeline.yml": "name: x"}
    texts = {
        "s.a": "a.sql, line 2, column 7: no such column: b (at b)",
        "s.A": "it was changed: run again",
        "s.b": "b.sql, line 1: who knows",
        "s.c": "skipped, because s.a failed",
    }
    errors = [v1.TableError(table=table, message=text) for table, text in texts.items()]
    found = jobs.failures(Job(v1.Job(table_errors=errors)), files)
    assert found["skipped"] == ["s.c"]
    placed, by_name, unknown = found["failures"]
    assert (placed["file"], placed["line"], placed["column"]) == ("a.sql", 2, 7)
    assert placed["message"] == "no such column: b (at b)"
    assert [each["text"] for each in placed["lines"]] == ["1", "2", "3", "4", "5"]
    assert (by_name["file"], by_name["line"], by_name["lines"]) == ("a.sql", None, [])
    assert (unknown["file"], unknown["message"]) == ("", "b.sql, line 1: who knows")


def test_pipeline_is_run_and_its_job_shown(visitor: Visitor, server: Server) -> None:
    path = f"/pipelines/{quote(SCRIPT, safe='')}"
    assert visitor.send(path, {"action": "dance"}).status_code == 400
    assert visitor.send(path, {"action": "run", "form_token": "wrong"}).status_code == 403
    answer = visitor.send(path, {"action": "run"})
    assert answer.status_code == 303
    with Metastore(server.address) as lake:
        job = lake.jobs.wait(answer.headers["location"].rpartition("/")[2], timeout_s=60)
    page = visitor.page(answer.headers["location"])
    assert "pipelines.enabled" in page
    assert f'<a href="{path}">' in page
    assert [each["id"] for each in visitor.data(path)["jobs"]] == [job.id]


def test_connector_is_paused_and_resumed(visitor: Visitor, server: Server) -> None:
    for action, expected in (("pause", True), ("resume", False)):
        assert visitor.send("/connectors/shop", {"action": action}).status_code == 303
        with Metastore(server.address) as lake:
            assert lake.connectors.get("shop").is_paused is expected


def test_webhook_shows_what_was_given_up_and_sends_it_again(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as lake:
        lake.namespaces.create("lake.given_up")

    def letters() -> Any:
        return visitor.data("/webhooks/alerts")["letters"]

    eventually(lambda: any(each["name"] == "given_up" for each in letters()))
    (letter,) = [each for each in letters() if each["name"] == "given_up"]
    assert (letter["kind"], letter["action"]) == ("namespace", "created")
    assert letter["error"]
    page = visitor.page("/webhooks/alerts")
    assert "Send given-up events again" in page
    assert SCRIPT not in page
    assert SCRIPT not in visitor.page("/webhooks")
    for path in ("/webhooks", "/webhooks/alerts"):
        assert "planted-secret" not in visitor.page(path) + visitor.get(f"{path}.json").text
    for action in ("pause", "redeliver"):
        assert visitor.send("/webhooks/alerts", {"action": action}).status_code == 303
    assert all(each["is_due"] for each in letters())
    assert "is being sent again" in visitor.page("/webhooks/alerts")
    assert visitor.send("/webhooks/alerts", {"action": "resume"}).status_code == 303
    eventually(lambda: not any(each["is_due"] for each in letters()))


def test_webhook_is_paused_and_resumed(visitor: Visitor, server: Server) -> None:
    for action, expected in (("pause", True), ("resume", False)):
        assert visitor.send("/webhooks/alerts", {"action": action}).status_code == 303
        assert (visitor.data("/webhooks/alerts")["webhook"]["state"] == "paused") is expected
        with Metastore(server.address) as lake:
            assert lake.webhooks.get("alerts").paused is expected
    assert visitor.send("/webhooks/alerts", {"action": "explode"}).status_code == 400
    assert visitor.send("/webhooks/alerts", {"action": "pause", "form_token": ""}).status_code == 403
    assert visitor.data("/webhooks/alerts")["webhook"]["state"] != "paused"


def test_health_shows_what_maintenance_would_do_and_starts_it(visitor: Visitor, server: Server) -> None:
    here = "/tables/lake/sales/worn"
    with AirportClient(server.addresses["airport"], "lake") as lake:
        lake.create_table_as("sales.worn", pa.table({"id": pa.array([0], pa.int64())}))
        for number in range(1, 6):
            lake.insert("sales.worn", pa.table({"id": pa.array([number], pa.int64())}))
    health = visitor.data(f"{here}?tab=health")["health"]
    figures = health["figures"]
    assert (figures["small_files"], figures["files_saved"], figures["reclaimable_bytes"]) == (6, 5, 0)
    assert 0.8 < figures["expected_gain"] < 1
    assert [(each["action"], each["is_due"]) for each in health["decisions"]] == [
        ("optimize", True),
        ("expire", False),
        ("clean", False),
    ]
    assert sum(each["files"] for each in health["sizes"]) == 6
    page = visitor.page(f"{here}?tab=health")
    assert "6 of 6 data files" in page
    assert "Expected gain" in page
    planned = visitor.data(f"{here}?tab=health&plan=optimize")["health"]["plan"]
    assert (planned["file_count"], len({each["path"] for each in planned["files"]})) == (6, 6)
    assert "6 files" in visitor.page(f"{here}?tab=health&plan=optimize")
    assert "There is nothing to do." in visitor.page(f"{here}?tab=health&plan=clean")
    assert "would expire" not in visitor.page(f"{here}?tab=health&plan=expire"), "they were current just now"
    assert visitor.data(f"{here}?tab=health")["health"]["figures"]["data_files"] == 6, "a dry run changes nothing"
    answer = visitor.send(here, {"action": "optimize"}, on=f"{here}?tab=health")
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    with Metastore(server.address) as lake:
        lake.maintenance.wait("lake.sales.worn", place.rpartition("=")[2], timeout_s=60)
    after = visitor.data(place)["health"]
    assert (after["job"]["state"], after["figures"]["data_files"]) == ("succeeded", 1)
    assert "rewrote 6 files as 1" in visitor.page(place)


def test_health_refuses_unknown_actions_jobs_and_forged_forms(visitor: Visitor) -> None:
    here = "/tables/lake/sales/people"
    refused = visitor.send(here, {"action": "explode"}, on=f"{here}?tab=health")
    assert (refused.status_code, "is not an action: use optimize, expire, clean" in refused.text) == (400, True)
    assert visitor.send(here, {"action": "clean", "form_token": "0"}, on=f"{here}?tab=health").status_code == 403
    assert "is not an action" in visitor.data(f"{here}?tab=health&plan=explode")["health"]["reason"]
    unknown = visitor.data(f"{here}?tab=health&job=none")["health"]
    assert (unknown["job"], bool(unknown["reason"]), bool(unknown["figures"])) == (None, True, True)


@pytest.mark.parametrize("form", [{"form_token": ""}, {"form_token": "0" * 64}])
def test_form_without_the_token_of_the_session_changes_nothing(
    visitor: Visitor, server: Server, form: dict[str, str]
) -> None:
    answer = visitor.send("/connectors/shop", {"action": "pause", **form})
    assert answer.status_code == 403
    with Metastore(server.address) as lake:
        assert not lake.connectors.get("shop").is_paused


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a&" * 30_000, "the form has 30001 fields, the maximum is 100"),
        ("a=" + "x" * 2_000_000, "or more bytes, the maximum is 65536"),
        ("a=" + "%41" * 300_000, "or more bytes, the maximum is 65536"),
        ("[" * 1_000_000, "or more bytes, the maximum is 65536"),
    ],
    ids=["fields", "text", "escapes", "nesting"],
)
def test_huge_form_is_rejected_before_work_begins(visitor: Visitor, body: str, reason: str) -> None:
    """Forms were decoded in the thread that serves all requests."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for path in ("/connectors/shop", "/logout"):
        answer = visitor.browser.post(path, content=body, headers=headers)
        assert answer.status_code == 413
        assert reason in answer.text


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT+1+IN+(" + "1," * 25_500 + "1)", "the maximum is 50000"),
        ("SELECT+" + "(" * 26_000 + "1" + ")" * 26_000, "the maximum is 50000"),
        ("SELECT+" + "NOT+" * 4_000 + "true", "Max expression depth"),
    ],
    ids=["values", "parentheses", "nesting"],
)
def test_huge_query_is_rejected_before_work_begins(visitor: Visitor, sql: str, reason: str) -> None:
    for page in ("sql", "results"):
        answer = visitor.get(f"/{page}?catalog=lake&format=csv&sql={sql}")
        assert answer.status_code in (400, 429)
        assert reason in answer.text


def test_huge_address_is_rejected(server: Server) -> None:
    """Queries of the explorer are in its addresses, so these limit them, too."""
    with closing(HTTPConnection(urlsplit(server.addresses["http"]).netloc, timeout=30)) as connection:
        connection.request("GET", "/sql?sql=" + "x" * 1_000_000)
        assert connection.getresponse().status == 400


def test_form_of_another_origin_changes_nothing(visitor: Visitor, server: Server) -> None:
    answer = visitor.send("/connectors/shop", {"action": "pause"}, origin="http://evil.example")
    assert answer.status_code == 403
    with Metastore(server.address) as lake:
        assert not lake.connectors.get("shop").is_paused


def test_token_of_another_visitor_is_refused(visitor: Visitor, server: Server) -> None:
    with visiting(server) as other:
        other.page("/connectors")
        other.browser.cookies.clear()
        answer = visitor.send("/connectors/shop", {"action": "pause"}, cookie="skiway_visitor=somebody-else")
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "path", ["/nothing", "/tables/lake/sales/none", "/tables/lake", "/catalogs/none", "/jobs/none"]
)
def test_unknown_page_says_so(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 404
    assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    "path",
    [
        *(
            f"/static/{each}.js"
            for each in (
                *("htmx-2.0.11.min", "shell", "tree", "palette", "workbench", "grid", "chart", "forms", "progress"),
                *("vendor/ace-1.45.2/ace", "vendor/echarts-6.1.0/echarts.common.min"),
            )
        ),
        "/static/style.css",
        "/static/icons-1.33.0.svg",
    ],
)
def test_files_of_pages_are_served(visitor: Visitor, path: str) -> None:
    assert visitor.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2f..%2fapp.py"])
def test_other_files_are_not_served(visitor: Visitor, path: str) -> None:
    assert "Explorer" not in visitor.get(path).text


def test_statistics_have_the_present_names_of_columns(server: Server, visitor: Visitor) -> None:
    with AirportClient(server.addresses["airport"], "lake") as lake, Metastore(server.address) as metastore:
        add_swapped_columns(lake, metastore, "renames.t")
        shown = visitor.data("/tables/lake/renames/t")["columns"]["columns"]
        bounds = {each["name"]: (each["profile"]["min"], each["profile"]["max"]) for each in shown}
        assert bounds == {"a": ("100", "200"), "b": ("1", "2")}
        assert "gone" not in visitor.page("/tables/lake/renames/t")
        lake.drop_table("renames.t")
        lake.drop_schema("renames")
