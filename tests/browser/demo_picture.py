"""The picture of the explorer in the README, which `make docs-images` takes of the demo."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from demo.demos import serving

IMAGES = Path(os.environ.get("SKIWAY_DOCS_IMAGES", ""))


@pytest.mark.timeout(1200)
def test_explorer_of_the_demo(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serving(home, tmp_path) as demo:
        demo.location()
        address = json.loads((home / "ready.json").read_text())["http"]
        with browser.new_context(viewport={"width": 1280, "height": 722}, color_scheme="light") as context:
            page = context.new_page()
            page.goto(f"{address}/tables/lake/sales/tickets")
            expect(page.get_by_text("Silberjoch").first).to_be_visible()
            page.screenshot(path=IMAGES / "explorer.png")
