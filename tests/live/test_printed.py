"""Every SQL statement printed in the README, the documentation, the examples and the demo works in the real client."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.pages import PROJECT
from live import servers
from live.clients import Client, Session
from live.printed import PORT, Printed, Scene, printed_statements, read_excluded, read_scenes
from live.report import REPORT
from live.servers import LiveServer, serving
from ports import free_port

EXCLUDED = [each for each in read_excluded() if each.applies]
STATEMENTS = [each for each in printed_statements() if not any(excluded.contains(each) for excluded in EXCLUDED)]


@pytest.fixture(scope="module")
def demo(folder: Path) -> Iterator[LiveServer]:
    """The demo, which takes a minute to build."""
    with serving(servers.demo, folder / "demo") as server:
        yield server


@pytest.mark.parametrize("scene", read_scenes(), ids=lambda scene: scene.name)
def test_printed_statements_work(scene: Scene, client: Client, folder: Path, request: pytest.FixtureRequest) -> None:
    statements = list(filter(scene.contains, STATEMENTS))
    problems = []
    with _server(scene, Path(tempfile.mkdtemp(dir=folder)), request) as server:
        for together in [[each] for each in statements] if scene.separate else [statements]:
            with _session(scene, client, server) as session:
                for statement in together:
                    problems += _problems(scene, statement, session, server)
    REPORT.printed += len(statements)
    assert not problems, "\n".join(problems)


def _problems(scene: Scene, statement: Printed, session: Session, server: LiveServer) -> list[str]:
    sql = server.filled(statement.sql).replace(PORT, str(server.port))
    for text, query in scene.values.items():
        if text in sql:
            sql = sql.replace(text, str(session.rows(query)[0][0]))
    outcome = session.run(sql)
    error = scene.fails.get(statement.sql)
    if error is not None:
        expected = outcome.status == "error" and error in outcome.message
        return [] if expected else [f"{sql}\n  must fail with {error!r}: {outcome.status} {outcome.message}"]
    return [] if outcome.status == "ok" else [f"{sql}\n  {outcome.status}: {outcome.message}"]


@contextmanager
def _session(scene: Scene, client: Client, server: LiveServer) -> Iterator[Session]:
    setup = [statement.replace(PORT, str(server.port)) for statement in scene.setup]
    with client.session(*setup, folder=server.folder, variables=server.client_variables) as session:
        yield session


@contextmanager
def _server(scene: Scene, folder: Path, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    if scene.server == "demo":
        yield request.getfixturevalue("demo")
        return
    with serving(_start(scene), folder) as server:
        (folder / "data").mkdir()
        yield server


def _start(scene: Scene) -> Callable[[Path], LiveServer]:
    match scene.server:
        case "lake":
            return servers.lake
        case "lake with tokens":
            return servers.lake_with_tokens
        case "lake with Spark":
            return servers.lake_with_spark
        case "scratch":
            return servers.memory
        case "program":
            return lambda folder: _program(scene, folder)
        case "examples/tls.py":
            return _tls
        case example:
            return lambda folder: servers.example(Path(example).stem, "", folder)


def _program(scene: Scene, folder: Path) -> LiveServer:
    port = free_port()
    program = str(Path(__file__).with_name("page_server.py"))
    location = f"grpc://127.0.0.1:{port}"
    return LiveServer([sys.executable, program, scene.page, scene.heading, scene.program, location], "", folder, port)


def _tls(folder: Path) -> LiveServer:
    """The example with the certificate that its text describes."""
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=localhost"
    words += " -addext subjectAltName=DNS:localhost -keyout server.key -out server.pem"
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    port = free_port()
    command = [
        sys.executable,
        str(PROJECT / "examples" / "tls.py"),
        "server.pem",
        "server.key",
        f"grpc+tls://localhost:{port}",
    ]
    server = LiveServer(command, "", folder, port)
    server.client_variables = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(folder / "server.pem")}
    return server
