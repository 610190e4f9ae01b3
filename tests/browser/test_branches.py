"""People try something on a branch: they make it, change it, look at what has changed, and merge it."""

from __future__ import annotations

import pyarrow as pa
from playwright.sync_api import Page, expect

from browser.conftest import screenshot
from browser.lake import Lake
from skiway.client import AirportClient, col


def test_branch_is_made_changed_compared_and_merged(tab: Page, lake: Lake) -> None:
    location, token = lake.server.addresses["airport"], lake.tokens["ada"]
    with AirportClient(location, "lake", token=token) as main:
        main.create_table_as("sales.prices", pa.table({"item": ["pen", "ink"], "euro": [1.5, 4.0]}))
    tab.get_by_role("link", name="Branches", exact=True).click()
    tab.get_by_role("link", name="Branch", exact=True).click()
    tab.locator("#f-name").fill("lake@trial")
    expect(tab.locator("#command")).to_have_text("skiway branches create lake@trial")
    tab.get_by_role("button", name="Create").click()
    expect(tab.get_by_role("main")).to_contain_text("The branch has changed nothing")

    # A view is made in the explorer, and rows are changed by somebody with DuckDB, here and on main.
    tab.goto(f"{lake.address}/new/view")
    tab.locator("#f-name").fill("lake@trial.sales.cheap")
    tab.locator("#f-sql").fill("SELECT item FROM sales.prices WHERE euro < 2")
    tab.get_by_role("button", name="Create").click()
    expect(tab.get_by_text("On the branch lake@trial")).to_be_visible()
    with AirportClient(location, "lake@trial", token=token) as trial:
        trial.delete("sales.prices", where=col("item") == "pen")
    with AirportClient(location, "lake", token=token) as main:
        main.delete("sales.prices", where=col("item") == "ink")

    # The tree has the branch, and its objects are those of the branch.
    tab.reload()
    expect(tab.get_by_role("treeitem", name="branch trial")).to_have_attribute("aria-expanded", "true")
    expect(tab.get_by_role("treeitem", name="cheap")).to_have_attribute("aria-current", "page")
    tab.get_by_role("treeitem", name="branch trial").click()
    tab.get_by_role("link", name="Compare with lake").click()
    row = tab.get_by_role("row").filter(has_text="sales.prices")
    expect(row).to_contain_text("conflict")
    expect(tab.get_by_role("status").last).to_contain_text("1 change is in conflict")
    screenshot(tab, "branch-conflict")
    row.get_by_role("link", name="take the branch").click()
    expect(tab.get_by_role("status").last).not_to_contain_text("conflict")
    tab.get_by_role("link", name="Merge…").click()
    expect(tab.locator("#f-theirs")).to_have_value("sales.prices")
    expect(tab.locator("#command")).to_have_text("skiway branches merge lake@trial --theirs sales.prices")
    tab.get_by_role("button", name="Dry run").click()
    expect(tab.get_by_role("heading", name="2 changes would be merged")).to_be_visible()
    tab.get_by_role("button", name="Merge", exact=True).click()
    expect(tab.get_by_role("status").last).to_contain_text("merged by ada")
    tab.get_by_role("navigation", name="Location").get_by_role("link", name="lake", exact=True).click()
    expect(tab.get_by_role("row").filter(has_text="lake@trial")).to_contain_text("merged")
    tab.goto(f"{lake.address}/tables/lake/sales/prices?tab=rows")
    expect(tab.locator("tbody tr")).to_have_count(1)
    expect(tab.locator("tbody tr")).to_contain_text("ink")
