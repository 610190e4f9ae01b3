"""A pipeline is run from its page, its failure is read, and it is run again once it is corrected."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from browser.conftest import screenshot, watched
from runtime.servers import Server, started
from skiway.client import AirportClient, Metastore

FILES = {
    "pipeline.yml": "name: shop\ncatalog: lake\nnamespace: sales\n",
    "by_name.sql": "SELECT\n  name,\n  sum(amuont) AS total\nFROM orders\nGROUP BY name",
    "best.sql": "SELECT name FROM by_name WHERE total > 10",
}
RUN_MS = 200_000
"""Spark starts first."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("pipelines") / "home", "--set", "pipelines.enabled=true") as server:
        with AirportClient(server.addresses["airport"], "lake") as lake:
            lake.create_schema("sales")
            lake.create_table_as("sales.orders", pa.table({"name": ["ann", "bob"], "amount": [20.0, 1.0]}))
        with Metastore(server.address) as metastore:
            metastore.pipelines.create(FILES)
        yield server


@pytest.fixture
def tab(browser: Browser, served: Server) -> Iterator[Page]:
    with (
        browser.new_context(viewport={"width": 1200, "height": 900}) as context,
        watched(context, served.addresses["http"]) as opened,
    ):
        yield opened.page


@pytest.mark.timeout(600)
def test_failure_of_a_run_is_read_and_the_pipeline_is_run_again(tab: Page, served: Server) -> None:
    tab.goto(served.addresses["http"])
    tab.get_by_role("link", name="Pipelines").click()
    tab.get_by_role("main").get_by_role("link", name="shop").click()
    tab.get_by_role("button", name="Run now").click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("Run of shop")
    expect(tab.get_by_role("progressbar")).to_be_visible()
    failed = tab.get_by_role("region", name="Failure of sales.by_name", exact=True)
    expect(failed).to_be_visible(timeout=RUN_MS)  # the page follows the run by itself
    expect(tab.get_by_role("status").last).to_contain_text("1 table failed, and 1 was skipped")
    expect(failed).to_contain_text("by_name.sql, line 3, column 7")
    expect(failed.get_by_role("alert")).to_contain_text("amuont")
    expect(failed.locator("li.wrong")).to_have_text("sum(amuont) AS total")
    expect(tab.get_by_role("main")).to_contain_text("Correct by_name.sql")
    screenshot(tab, "pipeline-failure")
    failed.get_by_role("link", name="by_name.sql").click()
    expect(tab.get_by_role("heading", name="by_name.sql")).to_be_in_viewport()
    tab.go_back()
    corrected = {**FILES, "by_name.sql": FILES["by_name.sql"].replace("amuont", "amount")}
    with Metastore(served.address) as metastore:
        metastore.pipelines.update("shop", corrected)
    tab.get_by_role("button", name="Run again").click()
    expect(tab.locator(".state")).to_have_text("succeeded", timeout=RUN_MS)
    tab.get_by_role("navigation", name="Location").get_by_role("link", name="shop").click()
    tab.get_by_role("main").get_by_role("link", name="sales.best").last.click()
    expect(tab.get_by_role("heading", level=1)).to_have_text("best")
