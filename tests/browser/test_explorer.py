"""People use the explorer: they search, read histograms, travel in time, start a sync, run SQL, and are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, StorageState, expect

from browser.conftest import screenshot, watched
from browser.lake import Lake
from skiway.config.server import Http
from skiway.presentation.results import OpenClients
from skiway.runtime.http.door import HttpDoor
from skiway.web import Explorer
from skiway.web.visits import Clients


def jump(tab: Page, text: str, option: str = "") -> None:
    """Go to an object, a page, or a part of this page with Ctrl+K."""
    tab.keyboard.press("Control+k")
    tab.keyboard.type(text, delay=10)
    expect(tab.get_by_role("option", selected=True)).to_contain_text(option or text)
    with tab.expect_navigation():
        tab.keyboard.press("Enter")


def press_on(tab: Page, role: Any, name: str) -> None:
    """Press Enter on something that Tab leads to."""
    reach(tab, tab.get_by_role("main").get_by_role(role, name=name, exact=True))
    with tab.expect_navigation():
        tab.keyboard.press("Enter")


def reach(tab: Page, target: Locator) -> None:
    """Press Tab until it leads to something."""
    expect(target).to_be_visible()
    tab.get_by_role("main").focus()
    for _ in range(60):
        tab.keyboard.press("Tab")
        if target.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError(f"Tab does not lead to {target}")


def test_table_is_found_by_one_of_its_columns_with_the_keyboard(tab: Page) -> None:
    tab.keyboard.press("/")
    tab.keyboard.type("order_no", delay=20)
    expect(tab.locator("#tree-status")).to_have_text("1 result")
    expect(tab.get_by_role("treeitem")).to_contain_text("column order_no")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", level=1)).to_have_text("orders")


def test_tree_is_opened_with_the_keyboard_and_stays_open(tab: Page) -> None:
    expect(tab.get_by_role("treeitem", name="lake", exact=True)).to_be_visible()
    tab.keyboard.press("/")
    tab.keyboard.press("ArrowDown")
    for name in ("lake", "sales"):
        item = tab.get_by_role("treeitem", name=name, exact=True)
        expect(item).to_be_focused()
        tab.keyboard.press("ArrowRight")
        expect(item).to_have_attribute("aria-expanded", "true")
        expect(tab.get_by_role("treeitem", name="sales" if name == "lake" else "people", exact=True)).to_be_visible()
        if name == "lake":
            tab.keyboard.press("s")
    tab.keyboard.press("p")
    expect(tab.get_by_role("treeitem", name="people")).to_be_focused()
    tab.keyboard.press("ArrowLeft")
    expect(tab.get_by_role("treeitem", name="sales", exact=True)).to_be_focused()
    tab.keyboard.press("p")
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("heading", level=1)).to_have_text("people")
    expect(tab.get_by_role("treeitem", name="people")).to_have_attribute("aria-current", "page")
    expect(tab.get_by_role("treeitem", name="orders")).to_be_visible()


def test_histogram_is_read_with_the_keyboard(tab: Page) -> None:
    jump(tab, "lake.sales.people")
    press_on(tab, "link", "id")
    expect(tab.get_by_role("img", name="id: histogram from 0 to 5,000").first).to_be_visible()
    expect(tab.locator(".plot .axes")).to_contain_text("1,000")
    press_on(tab, "link", "logarithmic")
    expect(tab.get_by_role("link", name="logarithmic")).to_have_attribute("aria-current", "true")
    expect(tab.locator(".plot .axes text").get_by_text("100", exact=True)).to_be_visible()


def test_who_changed_a_table_is_seen_with_the_keyboard(tab: Page) -> None:
    expect(tab.get_by_role("region", name="Changed in the last 24 hours")).to_contain_text("ada")
    jump(tab, "lake.sales.people")
    jump(tab, "snapshots", "Snapshots")
    newest = tab.locator(".timeline li").first
    expect(newest).to_contain_text("ada")
    expect(newest).to_contain_text("+1 rows")


@pytest.fixture
def next_day(browser: Browser, lake: Lake) -> Iterator[Page]:
    """A tab of an explorer whose clock is a day after the last change of lake.sales.people."""
    opened = OpenClients(lake.server.addresses["airport"])
    metastore = opened.metastore(lake.tokens["ada"])
    changed = [each for each in metastore.events.newest(1000)[0] if each.name == "people" and each.snapshot_id]
    clients = Clients(
        metastore=lambda _: metastore,
        airport=lambda _, catalog: opened.airport(lake.tokens["ada"], catalog),
        location=lambda: lake.server.addresses["airport"],
        editor=lambda _, catalog, query: opened.for_query(lake.tokens["ada"], catalog, query),
        clock=lambda: changed[-1].occurred_at + timedelta(days=1),
    )
    explorer = Explorer(clients, key=lambda: b"k" * 32, ended=set())  # type: ignore[arg-type]
    door = HttpDoor(explorer, Http(address="127.0.0.1:0"), drain_s=1)
    address = door.start()["http"]
    with browser.new_context() as context, watched(context, address) as found:
        found.page.goto(address)
        yield found.page
    door.drain()
    door.close()


def test_who_changed_a_table_yesterday_is_seen_with_the_keyboard(next_day: Page) -> None:
    tab = next_day
    jump(tab, "lake.sales.people")
    press_on(tab, "link", "Changes")
    for typed, expected in (("tod", False), ("yes", True)):
        reach(tab, tab.get_by_label("When"))
        tab.keyboard.type(typed)
        press_on(tab, "button", "Filter")
        expect(tab.get_by_label("When").locator("option:checked")).to_contain_text(typed)
        change = tab.get_by_role("row").filter(has_text="table committed").filter(has_text="lake.sales.people")
        expect(change).to_have_count(int(expected))
    expect(change).to_contain_text("ada")
    expect(change).to_contain_text("airport")
    screenshot(tab, "events-yesterday")


def test_time_travel_and_comparison_with_the_keyboard(tab: Page) -> None:
    jump(tab, "lake.sales.people")
    jump(tab, "snapshots", "Snapshots")
    press_on(tab, "button", "Compare")
    compared = tab.get_by_role("region", name="Comparison")
    expect(compared).to_contain_text("+1")
    press_on(tab, "link", "Compare the rows")
    expect(tab.get_by_role("region", name="Only in the newer one")).to_contain_text("late")
    tab.locator(".timeline li").nth(1).get_by_role("link", name="Rows").press("Enter")
    expect(tab.get_by_text("As of snapshot")).to_be_visible()
    expect(tab.locator(".facts").get_by_text("1,000", exact=True)).to_be_visible()
    tab.get_by_role("link", name="Back to the current one").press("Enter")
    expect(tab.locator(".facts").get_by_text("1,001", exact=True)).to_be_visible()


def test_rows_are_filtered_sorted_and_opened(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/tables/lake/sales/people?tab=rows")
    tab.get_by_label("Column", exact=True).select_option("name")
    tab.get_by_label("Value", exact=True).fill("late")
    tab.get_by_role("button", name="Filter").click()
    expect(tab.locator("tbody tr")).to_have_count(1)
    tab.get_by_role("link", name="Remove the filter of name").click()
    tab.get_by_role("link", name="id", exact=True).click()
    tab.get_by_role("link", name="id", exact=True).click()
    expect(tab.locator("tbody tr").first).to_contain_text("5000")
    tab.goto(f"{server_address}/tables/lake/sales/orders?tab=rows")
    tab.locator("summary").first.click()
    expect(tab.get_by_text("<script>alert(1)</script>").last).to_be_visible()


def test_snippets_are_copied(context: BrowserContext, tab: Page, server_address: str) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server_address)
    tab.goto(f"{server_address}/tables/lake/sales/people?tab=connect")
    tab.get_by_role("button", name="Copy").first.click()
    expect(tab.get_by_role("button", name="Copy").first).to_contain_text("Copied")
    assert "ATTACH" in tab.evaluate("navigator.clipboard.readText()")


def test_lineage_is_followed(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/tables/lake/sales/people?tab=lineage")
    tab.locator("a[data-node='lake.sales.names']").hover()
    expect(tab.locator(".network .line.lit")).to_have_count(1)
    tab.locator("a[data-node='lake.sales.names']").press("Enter")
    expect(tab.get_by_role("heading", level=1)).to_have_text("names")


SHIFTS = """() => new Promise((done) => {
  let total = 0;
  const add = (list) => list.getEntries().forEach((each) => (total += each.value));
  new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(total), 500);
})"""


@pytest.mark.parametrize("path", ["/", "/tables/lake/sales/people", "/tables/lake/sales/people?tab=connect"])
def test_layout_does_not_shift_while_pages_load(tab: Page, server_address: str, path: str) -> None:
    tab.goto(f"{server_address}{path}")
    expect(tab.get_by_role("treeitem").first).to_be_visible()
    assert tab.evaluate(SHIFTS) < 0.01


def test_menu_opens_on_a_phone(tab: Page) -> None:
    tab.set_viewport_size({"width": 400, "height": 800})
    expect(tab.get_by_role("searchbox")).to_be_hidden()
    tab.get_by_role("button", name="Menu").click()
    tab.get_by_role("link", name="Operate").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("Health")


def test_sync_is_started_and_watched_until_it_ends(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/connectors")
    tab.get_by_role("button", name="Sync bikes").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("Sync of bikes")
    expect(tab.locator(".state")).to_have_text("succeeded", timeout=100_000)
    tab.goto(f"{server_address}/search?q=km")
    expect(tab.get_by_role("main")).to_contain_text("trips")


def test_pages_work_without_javascript(browser: Browser, session: StorageState, server_address: str) -> None:
    with browser.new_context(java_script_enabled=False, storage_state=session) as context:
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
    for name in ("Rows", "Snapshots", "Lineage", "Access", "Files", "Connect"):
        tab.get_by_role("navigation", name="Parts of the table").get_by_role("link", name=name).click()


def test_table_page_is_fast(tab: Page, server_address: str) -> None:
    """The measured figure is in the documentation; this limit only catches a page that became slow."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        tab.request.get(f"{server_address}/tables/lake/sales/people")
        times.append(time.perf_counter() - start)
    assert sorted(times)[len(times) // 2] < 2


def test_visitor_without_a_grant_is_refused(browser: Browser, lake: Lake) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{lake.address}/tables/lake/sales/people")
        page.get_by_label("Token").fill(lake.tokens["eve"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        screenshot(page, "refused")
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").fill(lake.tokens["ada"])
        page.get_by_role("button", name="Log in").click()
        page.goto(f"{lake.address}/tables/lake/sales/people")
        expect(page.get_by_role("heading", level=1)).to_contain_text("people")


def test_audit_log_is_filtered(tab: Page, server_address: str) -> None:
    tab.goto(f"{server_address}/audit")
    tab.get_by_label("Only records with this text").fill("CreatePolicy")
    tab.get_by_role("button", name="Filter").click()
    expect(tab.get_by_text("1 of 1 records")).to_be_visible()
    expect(tab.get_by_role("table")).to_contain_text("ada")


def test_health_leads_to_the_job_that_failed(tab: Page, lake: Lake) -> None:
    tab.get_by_role("link", name="Operate").click()
    tab.get_by_role("link", name=f"job {lake.failed_job} failed").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("Sync of nowhere")
    expect(tab.get_by_role("main")).to_contain_text(lake.failed_job)
    expect(tab.get_by_role("main")).to_contain_text("nothing")
