"""The HTTP door: endpoints for operators, and where it listens."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import PlainTextResponse

from runtime.servers import started
from runtime.test_operators import operators
from skiway.client import Metastore
from skiway.config.server import Http
from skiway.errors import Unavailable
from skiway.runtime.http import door as http_door
from skiway.runtime.http.door import HttpDoor, web_app


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=200) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def app(*failed: str) -> Any:
    return web_app(
        iceberg=PlainTextResponse("iceberg"),
        explorer=PlainTextResponse("explorer"),
        metrics=lambda: "metrics",
        not_ready=lambda: failed,
        operators=operators(),
    )


def open_door(address: str | None) -> tuple[HttpDoor, str]:
    door = HttpDoor(app(), Http(address=address), drain_s=1)
    return door, door.start()["http"]


def close_door(door: HttpDoor) -> None:
    door.drain()
    door.close()


def test_server_reports_its_jobs(tmp_path) -> None:
    with started(tmp_path / "home", "--set", "log.format=json") as server, Metastore(server.address) as lake:
        lake.connectors.create("gone", kind="parquet", uri=str(tmp_path / "nothing"), catalog="lake")
        job = lake.jobs.wait(lake.connectors.sync("gone"), timeout_s=60)
        _, text = get(f"{server.addresses['http']}/metrics")
        server.stop()
        logged = [json.loads(line) for line in server.output().splitlines()]
    figures = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines()}
    names = ("queued", "running", "oldest_age_seconds", "attempts_total", "duration_seconds_bucket")
    assert figures >= {f"skiway_service_jobs_{name}" for name in names}
    assert re.search(r'skiway_service_jobs_attempts_total\{[^}]*result="failed"\} 1', text)
    [record] = [each for each in logged if each.get("job_id") == job.id]
    assert (record["level"], record["result"]) == ("ERROR", "failed")
    assert "there is nothing at" in record["message"]


def test_server_reports_health_readiness_and_metrics(tmp_path) -> None:
    with started(tmp_path / "home", "--set", "server.http.health_address=127.0.0.1:0") as server:
        http, probes = server.addresses["http"], server.addresses["health"]
        assert [get(f"{probes}{path}")[0] for path in ("/healthz", "/readyz", "/metrics", "/")] == [200, 200, 404, 404]
        assert get(f"{http}/healthz") == (200, "ok\n")
        assert get(f"{http}/readyz") == (200, "ready\n")
        assert get(f"{http}/iceberg/v1/config?warehouse=lake")[0] == 200
        status, text = get(f"{http}/v1/config?warehouse=lake")
        assert (status, f"set the uri of the client to {http}/iceberg" in json.loads(text)["error"]["message"]) == (
            404,
            True,
        )
        status, text = get(f"{http}/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert "skiway_core_task_enabled" in families
        cached = {sample.labels["cache"] for sample in families["skiway_core_cache_max_weight_bytes"].samples}
        assert cached == {"metadata.files", "metadata.graph", "metadata.hint"}
        assert families["skiway_core_cache_misses"].samples
        assert families["skiway_core_store_bytes"].samples
        assert get(f"{http}/nothing")[0] == 404
        for stranger in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
            assert get(f"{http}/iceberg/v1/config?warehouse=lake", **stranger)[0] == 403


def test_readiness_probe_fails_if_the_server_is_not_ready() -> None:
    door = HttpDoor(app("blob store"), Http(address="127.0.0.1:0"), drain_s=1)
    try:
        assert get(f"{door.start()['http']}/readyz") == (503, "not ready: blob store\n")
    finally:
        close_door(door)


def test_closed_door_refuses_connections() -> None:
    door, http = open_door("127.0.0.1:0")
    assert get(f"{http}/healthz")[0] == 200
    close_door(door)
    with pytest.raises(OSError, match="refused"):
        get(f"{http}/healthz")


def test_error_names_the_address_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"cannot listen on {address}: address already in use; choose another"):
            HttpDoor(app(), Http(address=address)).start()


def test_default_port_is_tried_first_and_then_any_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        default = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(http_door, "DEFAULT_ADDRESS", default)
    first, http = open_door(None)
    second, elsewhere = open_door(None)
    try:
        assert http == f"http://{default}"
        assert elsewhere not in ("", http)
        assert get(f"{elsewhere}/healthz")[0] == 200
    finally:
        close_door(first)
        close_door(second)
