"""A server without authentication is closed to web pages of other sites."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse

from runtime.in_process import requested
from skiway.config import load
from skiway.runtime.http.door import LocalOnly
from skiway.runtime.process import guarded

APP = PlainTextResponse("iceberg")


def status(path: str = "/iceberg/v1/config", *, method: str = "POST", **headers: str) -> int:
    app = LocalOnly(APP, allowed_hosts=["Lake.example.com"])
    return requested(app, path, method=method, headers=headers).status_code


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/iceberg/v1/config", "/metrics", "/"])
def test_rebound_name_is_rejected(path: str, method: str) -> None:
    assert status(path, method=method, host="evil.example:8181") == 403
    assert status(path, method=method, host="evil.example:8181", origin="http://evil.example:8181") == 403


HOSTS = [
    *("127.0.0.1:8181", "127.0.0.1", "[::1]:8181", "192.168.1.5:8181"),
    *("localhost:8181", "LOCALHOST", "localhost.", "lake.example.com", "lake.example.com.:443"),
]


@pytest.mark.parametrize("host", HOSTS)
def test_address_or_allowed_name_is_accepted(host: str) -> None:
    assert status(host=host) == 200
    assert status(host=host, origin=f"http://{host}") == 200


@pytest.mark.parametrize(
    "host", ["", "localhost.evil.example", "127.0.0.1.evil.example", "[::1", "a:b:c", "2130706433"]
)
def test_similar_or_malformed_name_is_rejected(host: str) -> None:
    assert status(host=host) == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", "http://localhost.evil.example"],
)
def test_page_of_another_origin_is_rejected(origin: str) -> None:
    assert status(host="localhost:8181", origin=origin) == 403


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_may_use_any_name(path: str) -> None:
    assert status(path, host="skiway.svc:8181") == 200


def test_rejection_says_what_to_do() -> None:
    answer = requested(LocalOnly(APP), "/", headers={"host": "lake:8181"}).json()["error"]
    assert (answer["code"], "server.http.allowed_hosts" in answer["message"]) == (403, True)


def test_only_mode_dev_is_guarded() -> None:
    assert isinstance(guarded(APP, load(flags={"server.http.allowed_hosts": "lake; skiway"})), LocalOnly)
    tokens = {"auth.mode": "token", "auth.tokens.file": "tokens.toml"}
    assert guarded(APP, load(flags=tokens)) is APP
