"""Tests in a real browser: `make test-web`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, sync_playwright

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


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1200, "height": 900}) as made:
        yield made


@pytest.fixture
def tab(context: BrowserContext, server_address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A tab. At the end, it has logged no errors, and no request has left the server."""
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
        lambda each: None if each.url.startswith(server_address) else problems.append(f"request to {each.url}"),
    )
    page.goto(server_address)
    yield page
    if SCREENSHOTS is not None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{request.node.name.replace('/', '_')[:100]}.png", full_page=True)
    assert problems == []
