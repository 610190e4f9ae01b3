"""The services of `deploy/compose.yaml` as processes of this machine: two servers, a worker and the proxy.

PostgreSQL comes from a wheel, and moto takes the place of MinIO. The images themselves are not built.
"""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from deploy.test_files import DEPLOY, compose
from ports import lasting_port
from runtime.servers import Server, environment, eventually, launch, skiway, wait_until_ready
from skiway.client import AirportClient
from storage.homes import running_aws, running_postgres

pytestmark = [pytest.mark.needs("postgres", "nginx"), pytest.mark.full, pytest.mark.timeout(600)]

ROWS = pa.table({"id": range(200_000), "name": [f"name {number}" for number in range(200_000)]})


@dataclass
class Topology:
    """Everything behind the proxy; `proxy` has its ports for gRPC and HTTP."""

    home: Path
    variables: dict[str, str]
    ports: dict[str, tuple[int, int]]
    proxy: tuple[int, int]

    @contextmanager
    def server(self, name: str) -> Iterator[Server]:
        ready = self.home.parent / f"{name}.json"
        grpc, http = (f"127.0.0.1:{port}" for port in self.ports[name])
        arguments = ("--home", self.home, "--grpc", grpc, "--http", http, "--ready-file", ready)
        with launch("serve", *arguments, env=environment(**self.variables), stderr=subprocess.PIPE) as process:
            try:
                yield Server(process, ready)
            finally:
                process.kill()

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[str]]:
        (command, *_) = compose()["services"]["worker"]["command"]
        options = {"env": environment(**self.variables), "stderr": subprocess.PIPE}
        with launch(command, "--home", self.home, **options) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def nginx(self) -> Iterator[None]:
        folder = self.home.parent / "nginx"
        folder.mkdir()
        (folder / "proxy.conf").write_text(self._proxy_conf())
        places = "".join(
            f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main = f"events {{}} http {{ access_log off; {places} include {folder}/proxy.conf; }}"
        (folder / "nginx.conf").write_text(f"daemon off; pid {folder}/pid; error_log stderr; {main}")
        command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        tested = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
        assert tested.returncode == 0, tested.stderr
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.terminate()

    def _proxy_conf(self) -> str:
        """The file with the ports of this test, and in the syntax of the installed version."""
        text = (DEPLOY / "proxy.conf").read_text()
        for name, (grpc, http) in self.ports.items():
            text = text.replace(f"{name}:50051", f"127.0.0.1:{grpc}").replace(f"{name}:8181", f"127.0.0.1:{http}")
        version = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr
        grpc, http = (f"listen 127.0.0.1:{port}" for port in self.proxy)
        if tuple(map(int, re.findall(r"\d+", version)[:3])) < (1, 25, 1):
            text, grpc = text.replace("http2 on;", ""), f"{grpc} http2"
        return text.replace("listen 50051", grpc).replace("listen 8181", http)

    def get(self, path: str) -> int:
        """The status of an HTTP request to the proxy; 0 if it does not listen yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.proxy[1]}{path}", timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except urllib.error.URLError:
            return 0


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    services = compose()["services"]
    with running_postgres() as database, running_aws(bucket="skiway") as endpoint:
        image = dict(re.findall(r"(SKIWAY__AUTH__MODE)=(\w+)", (DEPLOY / "Dockerfile").read_text()))
        given = {
            name: re.sub(r"\$\{.*\}", "secret", str(value))
            for name, value in services["server-1"]["environment"].items()
        }
        here = {"SKIWAY__KV__URL": database, "SKIWAY__STORAGE__AWS__S3__ENDPOINT": endpoint}
        assert given.keys() >= here.keys()
        names = [name for name in services if name.startswith("server-")]
        ports = {name: (lasting_port(), lasting_port()) for name in names}
        yield Topology(tmp_path / "home", image | given | here, ports, (lasting_port(), lasting_port()))


def first_token(topology: Topology) -> str:
    """Run the command at the top of the file, without which the servers do not start."""
    (command,) = re.findall(r"^# .* run --rm server-1 (.*)$", (DEPLOY / "compose.yaml").read_text(), re.MULTILINE)
    made = skiway(*command.split(), SKIWAY_HOME=str(topology.home), **topology.variables)
    assert made.returncode == 0, made.stderr
    return made.stdout.split()[-1]


def test_clients_use_both_servers_through_the_proxy(topology: Topology) -> None:
    with ExitStack() as parts:
        token = first_token(topology)
        servers = {name: parts.enter_context(topology.server(name)) for name in topology.ports}
        for server in servers.values():
            wait_until_ready(server)
        worker = parts.enter_context(topology.worker())
        parts.enter_context(topology.nginx())
        grpc, http = topology.proxy
        eventually(lambda: topology.get("/readyz") == 200)
        assert topology.get("/metrics") == 404
        assert topology.get("/iceberg/v1/config") == 401

        def client() -> AirportClient:
            return AirportClient(f"grpc://127.0.0.1:{grpc}", "lake", token=token)

        with client() as db:
            db.create_schema("s")
            db.create_table("s.t", ROWS.schema)
            assert db.insert("s.t", ROWS).count == ROWS.num_rows
            assert db.scan("s.t").read_all().num_rows == ROWS.num_rows
        catalog = RestCatalog("lake", uri=f"http://127.0.0.1:{http}/iceberg", warehouse="lake", token=token)
        location = catalog.load_table("s.t").location()
        assert location.startswith("s3://skiway/warehouse/")

        for number, name in enumerate(servers, start=1):
            assert servers[name].stop() == 0
            with client() as db:
                db.insert("s.t", ROWS.slice(0, 10))
                assert db.count("s.t") == ROWS.num_rows + 10 * number
            assert topology.get("/readyz") == 200
            servers[name] = parts.enter_context(topology.server(name))
            wait_until_ready(servers[name])
        assert worker.poll() is None
        checked = skiway("check", "--home", topology.home, **topology.variables)
        assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout
