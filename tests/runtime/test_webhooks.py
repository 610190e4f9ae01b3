"""The delivery of webhooks over HTTP: real endpoints on this machine, some of which do not answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory
from skiway.errors import PermissionDenied, TimedOut, Unavailable
from skiway.metastore import Realm, webhooks
from skiway.metastore.webhooks import DeliveryRules, WebhookPlace, signature
from skiway.model import v1
from skiway.runtime.telemetry import count_deliveries
from skiway.runtime.workers import Deliveries, WebSender
from skiway.security import MemorySecrets
from skiway.security.source_access import SourceAccess
from skiway.storage import open_stores
from skiway.telemetry.metrics import Metrics
from storage.homes import Clock

SECRET = "a secret of many bytes"


class Endpoint(ThreadingHTTPServer):
    """Answers with `status`, and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.requests = 204, list[tuple[dict[str, str], bytes]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((dict(self.headers), body))
        self.send_response(self.server.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Stay silent."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@contextmanager
def silent(*, trickle: bool = False) -> Iterator[str]:
    """The address of a server that accepts connections and never answers, or answers one byte at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        stop = threading.Event()

        def serve() -> None:
            listening.settimeout(0.05)
            open_ones = []
            while not stop.is_set():
                with suppress(TimeoutError):
                    open_ones.append(listening.accept()[0])
                for each in open_ones if trickle else ():
                    with suppress(OSError):
                        each.sendall(b"H")
            for each in open_ones:
                each.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            stop.set()
            thread.join()


def test_timeout_of_the_connection_is_no_answer_either() -> None:
    with silent() as url, pytest.raises(TimedOut, match=r"there was no answer within 0\.2 s"):
        WebSender(SourceAccess(), timeout_s=0.2)._post("a1", url, b"{}", {})


def test_request_has_the_body_and_headers(endpoint: Endpoint) -> None:
    WebSender(SourceAccess(), timeout_s=200)("a1", endpoint.url, b"{}", {"X-Skiway-Event-Id": "a1-1"})
    (headers, body) = endpoint.requests[0]
    assert (body, headers["X-Skiway-Event-Id"]) == (b"{}", "a1-1")
    assert headers["User-Agent"].startswith("skiway/")


@pytest.mark.parametrize("status", [302, 400, 404, 500])
def test_other_answers_than_success_are_errors_and_redirects_are_not_followed(endpoint: Endpoint, status: int) -> None:
    endpoint.status = status
    with pytest.raises(Unavailable, match=f"status {status}"):
        WebSender(SourceAccess(), timeout_s=200)("a1", endpoint.url, b"{}", {})
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("trickle", [False, True])
def test_endpoint_that_never_answers_times_out(trickle: bool) -> None:
    with silent(trickle=trickle) as url:
        before = time.monotonic()
        with pytest.raises((TimedOut, Unavailable)):
            WebSender(SourceAccess(), timeout_s=0.3)("a1", url, b"{}", {})
        assert time.monotonic() - before < 3


def test_addresses_are_checked_when_a_request_is_sent(endpoint: Endpoint) -> None:
    with pytest.raises(PermissionDenied, match="where sources may not be"):
        WebSender(SourceAccess(addresses=(), for_callers=True), timeout_s=5)("a1", endpoint.url, b"{}", {})
    assert endpoint.requests == []


def test_endpoint_that_never_answers_delays_no_other_webhook(endpoint: Endpoint) -> None:
    with open_stores("memory://") as stores, silent() as url:
        factory, secrets = ResourceFactory(stores, clock=now), MemorySecrets()
        for name, where in (("a-silent", url), ("b-good", endpoint.url)):
            spec = v1.WebhookSpec(display_name=name, url=where, events=["catalog.created"], secret=SECRET)
            webhooks.calls(secrets, None).create(factory.home, v1.CreateWebhookRequest(spec=spec))
        send, rules = WebSender(SourceAccess(), timeout_s=2), DeliveryRules(base_backoff_s=60)
        deliveries = Deliveries(stores, factory.realm, secrets=secrets, send=send, rules=rules)
        for name in ("one", "two"):
            factory.catalog(name)
        before = time.monotonic()
        deliveries.look()
        while len(endpoint.requests) < 2:
            assert time.monotonic() - before < 1.9, "it waited for the other one"
            time.sleep(0.01)
        assert time.monotonic() - before < 1.9, "it waited for the other one"
        deliveries.wait()
        status = webhooks.calls(secrets, None).get(factory.home, v1.GetWebhookRequest(display_name="a-silent")).status
        assert (status.attempt, "no answer" in status.last_error) == (1, True)
    events = [json.loads(body) for _, body in endpoint.requests]
    assert [each["name"] for each in events] == ["one", "two"]
    headers, body = endpoint.requests[0]
    assert headers["X-Skiway-Signature"] == signature(SECRET.encode(), int(headers["X-Skiway-Timestamp"]), body)


def test_nothing_is_read_while_nothing_happens(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[str]()

    def watched(realm: Realm) -> webhooks.Due:
        looks.append(realm.account_id)
        return original(realm)

    original = webhooks.due_webhooks
    monkeypatch.setattr(webhooks, "due_webhooks", watched)
    clock = Clock()
    with open_stores("memory://", clock=clock) as stores:
        factory, secrets = ResourceFactory(stores, clock=clock), MemorySecrets()
        spec = v1.WebhookSpec(display_name="hook", url=endpoint.url, events=["catalog.created"], secret=SECRET)
        made = webhooks.calls(secrets, None).create(factory.home, v1.CreateWebhookRequest(spec=spec)).webhook
        attempts = list[str]()
        deliveries = Deliveries(
            stores,
            factory.realm,
            secrets=secrets,
            send=WebSender(SourceAccess(), timeout_s=200),
            rules=DeliveryRules(base_backoff_s=60),
            clock=clock,
            on_attempt=lambda _account_id, result, _seconds: attempts.append(result),
        )

        def looked(times: int) -> int:
            before = len(looks)
            for _ in range(times):
                deliveries.look()
                deliveries.wait()
            return len(looks) - before

        looked(3)
        assert looked(10) == 0
        endpoint.status = 500
        factory.catalog("one")
        looked(3)
        assert (attempts, looked(10)) == (["failed"], 0)
        endpoint.status = 204
        clock.advance(61)
        looked(3)
        assert (attempts, looked(10)) == (["failed", "accepted"], 0)
        place = WebhookPlace(factory.home, made.resource_id.id)
        place.lease("a server that dies", 30)
        factory.catalog("two")
        looked(5)
        assert attempts == ["failed", "accepted"]
        clock.advance(31)  # the lease expires, and nothing in the store changes
        looked(1)
        assert attempts == ["failed", "accepted", "accepted"]


def test_deliveries_are_counted() -> None:
    metrics = Metrics(strict=True)
    count_deliveries(metrics)("a1", "given_up", 0.5)
    text = metrics.prometheus_text()
    assert 'skiway_service_webhooks_attempts_total{account="a1",result="given_up"} 1' in text
    assert 'skiway_service_webhooks_duration_seconds_count{account="a1",result="given_up"} 1' in text


def now() -> Any:
    """The time, for a store that is not controlled by a test."""
    from skiway.storage import utc_now

    return utc_now()
