"""Every page, wide and narrow, light and dark: axe-core finds nothing, it fits, and the browser reports no errors."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, StorageState

import scope
from browser.conftest import screenshot, watched
from browser.lake import Lake
from skiway.web.pages import PAGES
from skiway.web.pages.objects.views import TABS as VIEW_TABS
from web.explorers import TABS

PHONE: Final = 400
TABLE: Final = "/tables/lake/sales/people"
PATHS: Final = [
    "/",
    "/search?q=people",
    "/catalogs/lake",
    "/catalogs/lake/sales",
    *(f"{TABLE}?tab={tab}" for tab in TABS),
    f"{TABLE}?tab=health&plan=expire",
    f"{TABLE}?tab=columns&column=id&scale=log",
    f"{TABLE}?tab=rows&c0=name&o0=is&v0=ann&sort=-id",
    f"{TABLE}?tab=snapshots&from={{older}}&to={{newer}}&rows=1",
    "/tables/lake/sales/orders?tab=rows",
    *(f"/views/lake/sales/names?tab={tab}" for tab in VIEW_TABS),
    "/branches",
    "/branches/lake@dev",
    "/catalogs/lake@dev",
    "/catalogs/lake@dev/sales",
    "/tables/lake@dev/sales/people",
    "/new/merge?name=lake@dev",
    "/connectors",
    "/connectors/bikes",
    "/pipelines",
    "/pipelines/shop",
    "/jobs",
    "/jobs/{failed_job}",
    "/queries",
    "/events",
    "/webhooks",
    "/webhooks/alerts",
    "/health",
    "/accounts",
    "/tokens",
    "/audit?q=policy",  # of all records, axe-core checks each row
    "/access",
    "/policies",
    "/settings",
    "/history",
    "/new/policy?name=x&to=role:x&columns=name",
    "/delete/policy/hide%20names",
    "/sql?catalog=lake&sql=select+name,+count(*)+from+sales.people+group+by+all",
]
DARK: Final = ("home", "jobs-failed_job", "tables-lake-sales-people-tab-columns")
"""Pages that are always checked in dark colors, too: together they have every color."""
PHONES: Final = ("tokens", "catalogs-lake")
"""Pages that are always checked on a phone, too: one of each layout of tables."""
ALWAYS: Final = {*DARK, *PHONES, "history", "policies"}


DATA = {"complete", "progress", "results", "run", "tree"}
"""What scripts of pages load."""


def test_all_pages_are_in_the_list() -> None:
    visited = {re.split(r"[/?]", path)[1] for path in PATHS}
    assert {kind for method, kind in PAGES if method == "GET"} - visited == DATA


def _name(path: str) -> str:
    return re.sub(r"\W+", "-", path.partition("&sql")[0]).strip("-") or "home"


@pytest.mark.parametrize("path", scope.sample(PATHS, every=8, keep=lambda path: _name(path) in ALWAYS))
def test_page(context: BrowserContext, lake: Lake, path: str) -> None:
    with watched(context, lake.address) as opened:
        page = opened.page
        answer = page.goto(
            f"{lake.address}{path.format(failed_job=lake.failed_job, older=lake.snapshots[1], newer=lake.snapshots[0])}"
        )
        assert answer is not None
        assert answer.status == 200
        _check(page, _name(path))


@pytest.mark.parametrize("path", ["/login", "/tables/lake/sales/none"])
def test_page_of_a_refusal(browser: Browser, session: StorageState, lake: Lake, path: str) -> None:
    """The pages that show no data: the login, and errors."""
    with browser.new_context(storage_state=None if path == "/login" else session) as context:
        page = context.new_page()
        page.goto(f"{lake.address}{path}")
        _check(page, path.rpartition("/")[2])


def _check(page: Page, name: str) -> None:
    """Look at a page as it is, in the dark, and on a phone. axe-core runs once; with SKIWAY_TESTS=all, each time."""
    screenshot(page, f"{name}-light")
    assert _violations(page) == []
    page.emulate_media(color_scheme="dark")
    screenshot(page, f"{name}-dark")
    if scope.ALL or name in DARK:
        assert _violations(page) == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": PHONE, "height": 800})
    screenshot(page, f"{name}-{PHONE}")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    if scope.ALL or name in PHONES:
        assert _violations(page) == []


def _violations(page: Page) -> list[Any]:
    found = Axe().run(page).response["violations"]
    return [(each["id"], each["nodes"][0]["html"]) for each in found]
