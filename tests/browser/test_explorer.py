"""People use the explorer: they search, read histograms, travel in time, start a sync, run SQL, and are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from runtime.servers import Server, started
from skiway.client import AirportClient, Metastore
from skiway.model import v1
from web.explorers import with_tokens

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("browser")
    (root / "files" / "trips").mkdir(parents=True)
    pq.write_table(pa.table({"km": [1.5, 2.5]}), root / "files" / "trips" / "a.parquet")
    with started(root / "home") as running:
        with AirportClient(running.addresses["airport"], "lake") as lake:
            lake.create_schema("sales")
            people = pa.table({"id": pa.array(range(1000), pa.int64()), "name": ["ann"] * 600 + ["bob"] * 400})
            lake.create_table_as("sales.people", people)
            lake.insert("sales.people", pa.table({"id": pa.array([5000], pa.int64()), "name": ["late"]}))
            lake.create_table_as(("sales", f"t{SCRIPT}"), pa.table({SCRIPT: [SCRIPT]}))
        with Metastore(running.address) as metastore:
            metastore.tables.update("lake.sales.people", description="customers of the shop")
            snapshot = metastore.snapshots.get("lake.sales.people")
            column = v1.ColumnStats(
                column_id=1, column_name="id", logical_type="BIGINT", value_count=1001, null_count=0
            )
            column.min, column.max = "0", "5000"
            column.histogram.CopyFrom(v1.Histogram(bounds=["0", "500", "5000"], counts=[500, 501]))
            metastore.statistics.put_columns("lake.sales.people", snapshot, [column])
            metastore.connectors.create("bikes", kind="parquet", uri=str(root / "files"), catalog="lake")
        yield running


@pytest.fixture
def server_address(server: Server) -> str:
    return server.addresses["http"]


def test_table_is_found_by_typing(tab: Page) -> None:
    tab.keyboard.press("/")
    tab.keyboard.type("customers", delay=20)
    expect(tab.get_by_role("status")).to_contain_text("1 result")
    tab.get_by_role("link", name="lake.sales.people").click()
    expect(tab.get_by_role("heading", level=1)).to_contain_text("people")


def test_histogram_can_be_read(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/tables/lake/sales/people")
    expect(tab.get_by_role("img", name="id: histogram from 0 to 5000")).to_be_visible()


def test_rows_travel_in_time(tab: Page) -> None:
    tab.goto(tab.url + "tables/lake/sales/people?tab=snapshots")
    tab.locator(".timeline li").nth(1).get_by_role("link", name="Rows").click()
    expect(tab.get_by_text("As of snapshot")).to_be_visible()
    expect(tab.locator(".figures").get_by_text("1,000", exact=True)).to_be_visible()
    tab.get_by_role("link", name="Back to the current one").click()
    expect(tab.locator(".figures").get_by_text("1,001", exact=True)).to_be_visible()


def test_sync_is_started_and_watched_until_it_ends(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/connectors")
    tab.get_by_role("button", name="Sync bikes").click()
    expect(tab.get_by_role("heading", level=1)).to_contain_text("Job")
    expect(tab.locator(".state")).to_have_text("succeeded", timeout=100_000)
    tab.goto(f"{server_address}/search?q=km")
    expect(tab.get_by_role("main")).to_contain_text("trips")


def test_query_is_run_drawn_and_downloaded(tab: Page, server_address: str, tmp_path: Path) -> None:
    tab.goto(f"{server_address}/sql")
    tab.get_by_label("Query").fill("select name, count(*) as n from sales.people group by all order by all")
    tab.keyboard.press("Control+Enter")
    expect(tab.get_by_role("region", name="Result")).to_contain_text("600")
    expect(tab.get_by_role("img", name="n: 3 bars")).to_be_visible()
    with tab.expect_download() as download:
        tab.get_by_role("link", name="CSV").click()
    download.value.save_as(tmp_path / "result.csv")
    assert (tmp_path / "result.csv").read_text().splitlines()[1] == '"ann",600'


PAGES = [
    *(
        "/",
        "/search?q=people",
        "/catalogs/lake",
        "/connectors",
        "/jobs",
        "/queries",
        "/events",
        "/access",
        "/policies",
        "/settings",
    ),
    *(
        f"/tables/lake/sales/people?tab={tab}"
        for tab in ("columns", "rows", "snapshots", "files", "lineage", "plans", "access", "connect")
    ),
    "/sql?catalog=lake&sql=select+name,+count(*)+from+sales.people+group+by+all",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_page_is_accessible(browser: Browser, server_address: str, path: str, scheme: str) -> None:
    with browser.new_context(color_scheme=scheme, bypass_csp=True) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{server_address}{path}")
        found = Axe().run(page).response["violations"]
    serious = [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")]
    assert serious == []


@pytest.mark.parametrize("path", PAGES)
def test_page_fits_on_a_phone(browser: Browser, server_address: str, path: str) -> None:
    with browser.new_context(viewport={"width": 400, "height": 800}) as context:
        page = context.new_page()
        page.goto(f"{server_address}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_pages_work_without_javascript(browser: Browser, server_address: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(server_address)
        page.get_by_role("searchbox").fill("people")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="lake.sales.people").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("people")


def test_planted_scripts_do_not_run(tab: Page, server_address: str) -> None:
    for path in ("/catalogs/lake/sales", "/search?q=script", "/sql?catalog=lake&sql=from+sales.people+limit+1"):
        tab.goto(f"{server_address}{path}")
    tab.goto(f"{server_address}/catalogs/lake/sales")
    tab.get_by_role("link", name="alert(1)").click()
    for name in ("Rows", "Snapshots", "Files", "Access", "Connect"):
        tab.get_by_role("navigation", name="Parts of the table").get_by_role("link", name=name).click()


def test_table_page_is_fast(tab: Page, server_address: str) -> None:
    """The measured figure is in the documentation; this limit only catches a page that became slow."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        tab.request.get(f"{server_address}/tables/lake/sales/people")
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 2


def test_visitor_without_a_grant_is_refused(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with with_tokens(home) as (server, tokens), browser.new_context() as context:
        with AirportClient(server.addresses["airport"], "lake", token=tokens["ada"]) as lake:
            lake.create_schema("sales")
            lake.create_table_as("sales.people", pa.table({"id": [1]}))
        page = context.new_page()
        page.goto(f"{server.addresses['http']}/tables/lake/sales/people")
        page.get_by_label("Token").fill(tokens["eve"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").fill(tokens["ada"])
        page.get_by_role("button", name="Log in").click()
        page.goto(f"{server.addresses['http']}/tables/lake/sales/people")
        expect(page.get_by_role("heading", level=1)).to_contain_text("people")
