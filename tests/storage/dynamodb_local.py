"""DynamoDB Local, Amazon's own emulator: unlike moto, it implements transactions, including concurrent ones.

Run as a program, this module only downloads the jars, which takes longer than a test may.
"""

from __future__ import annotations

import fcntl
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import maven
from ports import free_port
from skiway.spark_jobs.java import ensure_java

VERSION = "2.6.1"
JARS = Path(__file__).parents[2] / ".cache" / f"dynamodb-local-{VERSION}"
START_S = 60
RETRY_AFTER_S = 600


@contextmanager
def running_dynamodb() -> Iterator[str]:
    """Run a server with its tables in memory; yields its address."""
    if not ensure_jars(timeout_s=60):
        pytest.skip("needs DynamoDB Local; to get it: run once with a network")
    port = free_port()
    command = [
        ensure_java(), f"-Dsqlite4java.library.path={JARS}", "-cp", f"{JARS}/*",
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


def ensure_jars(*, timeout_s: float) -> bool:
    """Whether the server's jars are present, after downloading them from Maven with the Ivy that comes with Spark."""
    JARS.parent.mkdir(exist_ok=True)
    with JARS.with_name("dynamodb-local.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers may need them at once
        complete, failed = JARS / ".complete", JARS.with_name("dynamodb-local.failed")
        if not complete.exists() and not _is_recent(failed):  # otherwise the next test would wait for the same failure
            fetched = maven.fetch(f"com.amazonaws:DynamoDBLocal:{VERSION}", JARS, timeout_s=timeout_s)
            (complete if fetched else failed).touch()
        return complete.exists()


def _is_recent(mark: Path) -> bool:
    return mark.exists() and time.time() - mark.stat().st_mtime < RETRY_AFTER_S


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


if __name__ == "__main__":
    print(
        "DynamoDB Local is installed"
        if ensure_jars(timeout_s=900)
        else "DynamoDB Local could not be fetched; its tests skip"
    )
