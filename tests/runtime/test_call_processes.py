"""`server.processes`: several processes serve the calls of one port, and none of them outlives the first."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.servers import Server, eventually, skiway, started
from skiway.client import AirportClient, Metastore

PROCESSES = 3
MANY = ("--set", f"server.processes={PROCESSES}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("processes") / "home", *MANY, fresh=True) as server:
        yield server


def children(pid: int) -> set[int]:
    """The additional processes of a server: its children that listen."""
    found = set()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parent = int(each.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                command = each.joinpath("cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            if parent == pid and b"spawn_main" in command:
                found.add(int(each.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def calls_by_process(server: Server) -> dict[str, int]:
    """How many calls of `list_schemas` each process has served."""
    with urllib.request.urlopen(f"{server.addresses['http']}/metrics") as response:
        text = response.read().decode()
    counted = re.findall(r"^skiway_core_rpc_requests_total\{(.*)\} (.*)$", text, re.MULTILINE)
    found: dict[str, int] = {}
    for labels, value in counted:
        if 'operation="list_schemas"' in labels:
            process = re.search(r'process="(\d+)"', labels)
            assert process is not None, labels
            found[process[1]] = found.get(process[1], 0) + int(float(value))
    return found


@contextmanager
def connected(server: Server) -> Iterator[AirportClient]:
    with AirportClient(server.addresses["airport"], "lake") as lake:
        yield lake


def test_connections_are_distributed_and_all_processes_share_the_lake(server: Server) -> None:
    with connected(server) as lake:
        lake.create_schema("shared")
        lake.create_table("shared.t", pa.schema({"a": pa.int64()}))
        lake.insert("shared.t", pa.table({"a": [1, 2, 3]}))
    for _ in range(40):
        with connected(server) as lake:
            assert "shared" in {schema.name for schema in lake.schemas()}
            assert lake.scan("shared.t").read_all()["a"].to_pylist() == [1, 2, 3]
    served = calls_by_process(server)
    assert set(served) == {str(number) for number in range(PROCESSES)}
    assert sum(served.values()) >= 40


def test_rows_of_one_process_are_read_by_all_others_at_once(server: Server) -> None:
    with connected(server) as lake:
        lake.create_schema("counted")
        lake.create_table("counted.t", pa.schema({"a": pa.int64()}))
    for number in range(20):
        with connected(server) as lake:
            lake.insert("counted.t", pa.table({"a": [number]}))
        with connected(server) as lake:
            assert lake.scan("counted.t").read_all().num_rows == number + 1


def test_a_process_that_is_killed_is_replaced(server: Server) -> None:
    pid = server.process.pid
    before = children(pid)
    assert len(before) == PROCESSES - 1
    victim = before.pop()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(children(pid) - {victim}) == PROCESSES - 1, within_s=60)
    eventually(lambda: len(calls_by_process(server)) == PROCESSES or _called(server), within_s=60)


def _called(server: Server) -> bool:
    """Call once more on a new connection; False, because that says nothing about the other processes."""
    with connected(server) as lake:
        lake.schemas()
    return False


def test_metastore_calls_work_on_every_process(server: Server) -> None:
    for _ in range(10):
        with Metastore(server.address) as lake:
            assert lake.catalogs.get("lake").name == "lake"


def test_all_processes_end_with_the_first(tmp_path: Path) -> None:
    with started(tmp_path / "home", *MANY, fresh=True) as server:
        others = children(server.process.pid)
        assert len(others) == PROCESSES - 1
        assert server.stop() == 0
        assert not any(map(is_running, others))


def test_other_processes_notice_that_the_first_was_killed(tmp_path: Path) -> None:
    with started(tmp_path / "home", *MANY, fresh=True) as server:
        others = children(server.process.pid)
        server.send_signal(signal.SIGKILL)
        server.ended()
        eventually(lambda: not any(map(is_running, others)), within_s=200)


def test_a_port_of_another_program_is_an_error_although_it_would_share(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ended = skiway("serve", "--home", tmp_path / "home", "--grpc", address, "--http", "127.0.0.1:0", *MANY)
    assert ended.returncode == 1
    assert f"cannot listen on {address}: address already in use" in ended.stderr


def test_stores_in_memory_cannot_be_shared(tmp_path: Path) -> None:
    ended = skiway(
        "serve", "--home", tmp_path / "home", *MANY, "--set", "kv.url=memory://", "--set", "blob.url=memory://"
    )
    assert ended.returncode == 1
    assert "server.processes is 3, but kv is in memory, which processes cannot share" in ended.stderr
