"""Tests in a real browser: `make test-web`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, StorageState, sync_playwright

from browser.lake import Lake, filled
from web.explorers import with_tokens

SCREENSHOTS = Path(os.environ.get("SKIWAY_SCREENSHOTS", "")) if os.environ.get("SKIWAY_SCREENSHOTS") else None

if not os.environ.get("SKIWAY_WEB"):
    collect_ignore = [each.name for each in Path(__file__).parent.glob("test_*.py")]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.fail(
            "there is no Chromium on PATH: run `make test-web`, which installs it, or `apt-get install chromium`"
        )
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A server whose pages all have something to show."""
    home = tmp_path_factory.mktemp("browser") / "home"
    home.mkdir()
    settings = ("--set", f"sources.local_roots={home.parent}", "--set", "sources.addresses=127.0.0.1")
    with with_tokens(home, *settings, "--set", "webhooks.max_attempts=1") as (server, tokens):
        yield filled(server, tokens, home.parent)


@pytest.fixture
def server_address(lake: Lake) -> str:
    return lake.address


@pytest.fixture(scope="session")
def session(browser: Browser, lake: Lake) -> StorageState:
    """The cookies of an administrator who has logged in, as a person does."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(lake.address)
        page.get_by_label("Token").fill(lake.tokens["ada"])
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Log out").wait_for()
        return context.storage_state()


@pytest.fixture
def context(browser: Browser, session: StorageState) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1200, "height": 900}, storage_state=session) as made:
        yield made


@dataclass(frozen=True)
class Watched:
    """What is wrong with a page: errors in its console, dialogs, and requests that leave the server."""

    page: Page
    problems: list[str]


@contextmanager
def watched(context: BrowserContext, address: str) -> Iterator[Watched]:
    """A new page. At the end, nothing was wrong with it."""
    page = context.new_page()
    problems: list[str] = []

    def note_dialog(dialog: Dialog) -> None:
        problems.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda each: problems.append(each.text) if each.type == "error" else None)
    page.on("pageerror", lambda each: problems.append(str(each)))
    page.on("dialog", note_dialog)
    page.on(
        "request",
        lambda each: None if each.url.startswith(f"{address}/") else problems.append(f"request to {each.url}"),
    )
    yield Watched(page, problems)
    assert problems == []


def screenshot(page: Page, name: str) -> None:
    """Keep a picture of the whole page, if pictures are wanted."""
    if SCREENSHOTS is not None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@pytest.fixture
def tab(context: BrowserContext, server_address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab with the home page, which `watched` checks."""
    with watched(context, server_address) as opened:
        opened.page.goto(server_address)
        yield opened.page
        screenshot(opened.page, request.node.name.replace("/", "_")[:100])
