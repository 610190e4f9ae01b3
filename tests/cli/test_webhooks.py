"""`skiway webhooks` on a running server, which delivers to an endpoint on this machine."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Run
from runtime.test_webhooks import Endpoint
from skiway.metastore.webhooks import signature

SECRET = "canary-of-a-signing-secret"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    return tmp_path / "secret"


def test_event_arrives_signed_and_the_secret_is_not_shown(run: Run, endpoint: Endpoint, secret_file: Path) -> None:
    made = run("webhooks", "create", "alerts", endpoint.url, "--event", "rule.*", "--secret-file", secret_file)
    assert (made.code, made.out) == (0, "created webhook alerts\n"), made.err
    try:
        assert run("rules", "create", "hooked", "lake.raw.people", "row_count", "--min", "1").code == 0
        ends_at = time.monotonic() + 200
        while not endpoint.requests:
            assert time.monotonic() < ends_at, run("webhooks", "get", "alerts").out
            time.sleep(0.05)
        headers, body = endpoint.requests[0]
        event = json.loads(body)
        assert (event["kind"], event["action"], event["name"]) == ("rule", "created", "hooked")
        assert headers["X-Skiway-Signature"] == signature(SECRET.encode(), int(headers["X-Skiway-Timestamp"]), body)
        shown = run("webhooks", "get", "alerts", "--output", "json")
        assert shown.json["events"] == ["rule.*"]
        assert run("webhooks", "dead-letters", "alerts", "--output", "json").json == []
        assert run("webhooks", "update", "alerts", "--pause").code == 0
        moved = run("webhooks", "update", "alerts", "--url", f"{endpoint.url}other")
        assert (moved.code, "give the secret again" in moved.err) == (1, True)
        listed = run("webhooks", "list", "--output", "json")
        assert [each["paused"] for each in listed.json] == [True]
        assert SECRET not in shown.out + listed.out
        assert run("webhooks", "redeliver", "alerts").out == "0 events are sent again\n"
    finally:
        run("rules", "delete", "hooked")
        assert run("webhooks", "delete", "alerts").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "w", "http://127.0.0.1:9/", "--event", "*"), 2, "give the secret that signs requests"),
        (
            ("create", "w", "http://127.0.0.1:9/", "--event", "*", "--secret-env", "NOT_SET"),
            1,
            "$NOT_SET, which is not set",
        ),
        (("create", "w", "http://169.254.169.254/", "--event", "*", "FILE"), 1, "link-local addresses are never"),
        (("create", "w", "nowhere", "--event", "*", "FILE"), 1, "give a URL such as"),
        (("create", "w", "http://127.0.0.1:9/", "--event", "rules.failed", "FILE"), 1, "kinds are account"),
        (("get", "nope"), 1, "there is no webhook nope"),
        (("update", "nope"), 2, "give at least one new value"),
    ],
)
def test_wrong_requests_say_what_to_do(
    run: Run, secret_file: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    given = [
        part for each in arguments for part in (("--secret-file", str(secret_file)) if each == "FILE" else (each,))
    ]
    done = run("webhooks", *given)
    assert done.code == code
    assert message in " ".join(done.err.replace("│", " ").split())
    assert SECRET not in done.out + done.err
