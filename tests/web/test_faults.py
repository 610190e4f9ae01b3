"""What visitors see when the server itself is at fault: a page with the id of the request, which the log has, too."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest

from skiway.web import Explorer
from skiway.web.pages import PAGES
from skiway.web.visits import Clients, Page


def get(path: str) -> httpx.Response:
    unused: Any = None
    clients = Clients(unused, unused, unused, unused)
    app = Explorer(clients, key=lambda: b"k" * 32, ended=set())  # type: ignore[arg-type]

    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://lake") as client:
            return await client.get(path)

    return asyncio.run(sent())


def broken(_: Any) -> Page:
    raise RuntimeError("the secret reason")


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/health", lambda _: Page("health.html", "Health", {})),  # the template lacks its data
        ("/health.json", lambda _: Page("health.html", "Health", {"x": "\ud800"})),
        ("/health", broken),
    ],
    ids=["template", "json", "page"],
)
def test_fault_is_shown_and_logged_with_the_id_of_the_request(
    path: str, page: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(PAGES, ("GET", "health"), page)  # type: ignore[arg-type]
    with caplog.at_level(logging.ERROR, "skiway.web"):
        answer = get(path)
    assert answer.status_code == 500
    assert "fault of the server" in answer.text
    (found,) = set(re.findall(r"\b[0-9a-f]{16}\b", answer.text))
    (record,) = caplog.records
    assert found in record.getMessage()
    assert record.exc_info is not None
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"]
    if not path.endswith(".json"):
        assert '<main id="main"' in answer.text, "the frame of pages"


def test_fault_of_the_frame_of_pages_is_shown_without_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr("skiway.web.app.rendered", fail)
    with caplog.at_level(logging.ERROR, "skiway.web"):
        answer = get("/nowhere")
    assert answer.status_code == 500
    assert "That did not work" in answer.text
    assert "secret" not in answer.text
