"""DynamoDB as Amazon ships it for a machine of one's own: transactions as the service has them, also concurrent ones."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from skiway.pipeline.java import ensure_java

VERSION = "2.6.1"
JARS = Path(__file__).parents[2] / ".cache" / f"dynamodb-local-{VERSION}"
START_S = 60


@contextmanager
def running_dynamodb() -> Iterator[str]:
    """A server with its tables in memory; its address."""
    java, jars, port = ensure_java(), _jars(), _free_port()
    command = [
        java, f"-Dsqlite4java.library.path={jars}", "-cp", f"{jars}/*",
        "com.amazonaws.services.dynamodbv2.local.main.ServerRunner",
        "-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _jars() -> Path:
    """The folder with the server's jars, brought from Maven's registry by the Ivy that comes with Spark."""
    JARS.parent.mkdir(exist_ok=True)
    with JARS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers may want them at once
        if not (JARS / ".complete").exists():
            _fetch()
            (JARS / ".complete").touch()
    return JARS


def _fetch() -> None:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    [ivy] = (Path(spark.origin).parent / "jars").glob("ivy-*.jar")
    command = [
        ensure_java(), "-jar", ivy, "-dependency", "com.amazonaws", "DynamoDBLocal", VERSION, "-confs", "default",
        "-cache", JARS.parent / "ivy", "-retrieve", f"{JARS}/[artifact]-[revision].[ext]", "-warn",
    ]  # fmt: skip
    fetched = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if fetched.returncode or not list(JARS.glob("DynamoDBLocal-*.jar")):
        # A network is no part that a machine has or lacks, so this is a skip everywhere.
        pytest.skip("DynamoDB Local could not be fetched from Maven's registry; to get it: run once with a network")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "DynamoDB Local ended instead of starting"
            assert time.monotonic() < deadline, f"DynamoDB Local did not listen within {START_S} s"
            time.sleep(0.1)
