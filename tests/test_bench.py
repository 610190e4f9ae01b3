"""How benchmarks are reported: targets, results, the page, and failing parts."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # where the benchmarks are
from bench import page, report
from bench.__main__ import PARTS, figures_of, run
from bench.delaying import delayed
from bench.report import Figure, Latency, Measured

SLOW = Figure("slow", "ms", 300, 100, 3.0, aim_at_most=2.0, peer_is="the hare")
FAST = Figure("fast", "1/s", 500, 100, 5.0, aim=4.0)
SHORT = Figure("short", "s", 0.2, 0.1, 2.0, aim_below=0.3)
CALLS = Latency("calls", 8, 0.5, 2.5, 1600, store_operations=3, aim_p50_ms=1.0)


@pytest.fixture(autouse=True)
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    return tmp_path


def test_target_is_compared_with_its_measurement() -> None:
    assert SLOW.verdict() == "ratio <= 2: missed"
    assert FAST.verdict() == "ratio >= 4: reached"
    assert SHORT.verdict() == "< 0.3 s: reached"
    assert CALLS.verdict() == "p50 < 1 ms: reached"
    assert Figure("none", "s", 1).verdict() == ""


def test_results_are_read_back_unchanged() -> None:
    report.report("mixed", [SLOW, FAST, CALLS])
    facts, found = report.load_results("mixed")
    assert found == [SLOW, FAST, CALLS]
    assert facts["cores"]


def test_failing_part_does_not_stop_the_others(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    def fail() -> Iterator[Measured]:
        yield FAST
        raise OSError("no room [on disk]")

    code = run({"first": fail, "second": lambda: [SLOW]})
    assert code == 1
    output = capsys.readouterr().out
    assert "first failed: OSError: no room [on disk]" in output
    assert [path.name for path in results.iterdir()] == ["second.json"]


def test_exit_code_is_0_even_if_a_target_is_missed() -> None:
    assert run({"only": lambda: [SLOW, CALLS]}) == 0


def test_page_shows_only_the_stored_results() -> None:
    report.report("turtle", [SLOW, CALLS])
    text = page.renewed(f"before\n{page.BEGIN}\nold\n{page.END}after\n")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "\nold\n" not in text
    assert "| slow | 300 | 100 | ms | 3 | ratio <= 2: missed | the hare |" in text
    assert "| calls | 8 | 0.500 | 2.500 | 1,600 | 3 | p50 < 1 ms: reached |" in text
    assert page.renewed(text) == text


@pytest.mark.parametrize("name", PARTS)
def test_every_part_exists_and_is_on_the_page(name: str) -> None:
    assert callable(figures_of(name))
    assert f"| `{name}` |" in (page.PAGE).read_text()


def test_page_is_up_to_date_with_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert page.PAGE.read_text() == page.renewed(page.PAGE.read_text()), "run: python -m bench.page"


def test_delaying_proxy_makes_round_trips_longer_and_forwards_everything() -> None:
    delay_s, sent = 0.2, bytes(range(256)) * 8000
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with delayed(f"tcp://127.0.0.1:{server.getsockname()[1]}", delay_s) as location:
            host, _, port = location.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port)), timeout=30) as client:
                for message in (b"first", b"second"):
                    started = time.monotonic()
                    client.sendall(message)
                    assert client.recv(100) == message
                    assert time.monotonic() - started >= delay_s
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert b"".join(iter(lambda: client.recv(1 << 16), b"")) == sent


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(1 << 20):
            connection.sendall(data)


def test_delaying_proxy_forwards_to_this_machine_only() -> None:
    with pytest.raises(RuntimeError, match="ended"), delayed("grpc://192.0.2.1:80", 0.01):
        pass
