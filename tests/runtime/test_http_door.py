"""The HTTP door: who is asked by operators, and where it listens."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import PlainTextResponse

from runtime.servers import started
from skiway.config.server import Http
from skiway.errors import Unavailable
from skiway.runtime import http_door
from skiway.runtime.http_door import HttpDoor, web_app


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def app(*, ready: bool = True) -> Any:
    return web_app(iceberg=PlainTextResponse("iceberg"), metrics=lambda: "metrics", is_ready=lambda: ready)


def opened(address: str | None) -> tuple[HttpDoor, str]:
    door = HttpDoor(app(), Http(address=address), drain_s=1)
    return door, door.start()["http"]


def closed(door: HttpDoor) -> None:
    door.drain()
    door.close()


def test_a_server_tells_that_it_lives_is_ready_and_what_it_measures(tmp_path) -> None:
    with started(tmp_path / "home") as server:
        http = server.addresses["http"]
        assert get(f"{http}/healthz") == (200, "ok\n")
        assert get(f"{http}/readyz") == (200, "ready\n")
        assert get(f"{http}/iceberg/v1/config?warehouse=lake")[0] == 200
        status, text = get(f"{http}/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert "skiway_core_task_enabled" in families
        cached = {sample.labels["cache"] for sample in families["skiway_core_cache_max_weight_bytes"].samples}
        assert cached == {"metadata.files", "metadata.graph", "metadata.hint"}
        assert families["skiway_core_cache_misses"].samples
        assert families["skiway_core_store_bytes"].samples
        assert get(f"{http}/nothing")[0] == 404


def test_a_server_that_is_not_ready_says_so() -> None:
    door = HttpDoor(app(ready=False), Http(address="127.0.0.1:0"), drain_s=1)
    try:
        assert get(f"{door.start()['http']}/readyz") == (503, "not ready\n")
    finally:
        closed(door)


def test_a_closed_door_answers_no_more() -> None:
    door, http = opened("127.0.0.1:0")
    assert get(f"{http}/healthz")[0] == 200
    closed(door)
    with pytest.raises(OSError, match="refused"):
        get(f"{http}/healthz")


def test_a_taken_address_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"cannot listen on {address}: address already in use; choose another"):
            HttpDoor(app(), Http(address=address)).start()


def test_without_an_address_the_usual_port_is_tried_first_and_then_any(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        usual = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(http_door, "DEFAULT_ADDRESS", usual)
    first, http = opened(None)
    second, elsewhere = opened(None)
    try:
        assert http == f"http://{usual}"
        assert elsewhere not in ("", http)
        assert get(f"{elsewhere}/healthz")[0] == 200
    finally:
        closed(first)
        closed(second)
