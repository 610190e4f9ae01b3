"""The page "Five minutes": its commands, and then what the explorer shows. `make docs-images` keeps the pictures for the page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from browser.conftest import screenshot, watched
from cli.test_cli_page import examples
from runtime.servers import Server, skiway, started

DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 1000
IMAGES = os.environ.get("SKIWAY_DOCS_IMAGES")
SQL = "SELECT day, sum(amount) AS total FROM shop.orders GROUP BY ALL ORDER BY day"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A new server after the commands of the page."""
    with started(tmp_path_factory.mktemp("five-minutes") / "home") as server:
        for line, _ in examples((DOCS / "five-minutes.md").read_text()):
            done = skiway(*shlex.split(line)[1:], SKIWAY_SERVER=server.address)
            assert done.returncode == 0, done.stderr
        yield server


@pytest.fixture
def tab(browser: Browser, served: Server) -> Iterator[Page]:
    with (
        browser.new_context(viewport={"width": WIDTH, "height": 640}, color_scheme="light") as context,
        watched(context, served.addresses["http"]) as opened,
    ):
        yield opened.page


def keep(page: Page, name: str, height: int) -> None:
    """Keep a picture of the top: for the documentation, if `make docs-images` asks for it, or with the others."""
    page.set_viewport_size({"width": WIDTH, "height": height})
    if IMAGES:
        Path(IMAGES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(IMAGES) / f"five-minutes-{name}.png")
    else:
        screenshot(page, f"five-minutes-{name}")


def test_table(tab: Page, served: Server) -> None:
    tab.goto(f"{served.addresses['http']}/tables/lake/shop/orders")
    for column in ("id", "customer", "day", "amount"):
        expect(tab.locator("main").get_by_text(column, exact=True).first).to_be_visible()
    keep(tab, "table", 485)  # without the folder of the table, which is one of this machine


def test_snapshots(tab: Page, served: Server) -> None:
    tab.goto(f"{served.addresses['http']}/tables/lake/shop/orders?tab=snapshots")
    expect(tab.get_by_text("5,000").first).to_be_visible()
    keep(tab, "snapshots", 760)


def test_query(tab: Page, served: Server) -> None:
    tab.goto(f"{served.addresses['http']}/sql?catalog=lake&sql={SQL}")
    expect(tab.get_by_role("cell", name="2026-01-01").first).to_be_visible()
    tab.get_by_role("tab", name="Chart").click()
    expect(tab.get_by_role("img", name="line chart of total by day, 90 points")).to_be_visible(timeout=20_000)
    keep(tab, "sql", 760)
