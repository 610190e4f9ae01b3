"""A standalone Spark cluster of local processes: a master and workers, with the Spark of the locked PySpark."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_S = 120


@contextmanager
def standalone_cluster(folder: Path, *, workers: int) -> Iterator[str]:
    """The address of the master of a new cluster. Each worker has one core.

    They have different addresses, because Spark runs a speculative copy of a task on another host only.
    """
    folder.mkdir()
    with ExitStack() as running:
        master = _started(running, folder / "master.log", "master.Master", "--host", "127.0.0.1", "--port", "0")
        address = _found(master, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            place = ("--host", f"127.0.0.{number + 1}", "--work-dir", str(folder / f"work{number}"))
            size = ("--cores", "1", "--memory", "1g")
            worker = _started(running, folder / f"worker{number}.log", "worker.Worker", *place, *size, address)
            _found(worker, r"(Successfully registered with master)")
        yield address


def _started(running: ExitStack, log: Path, program: str, *arguments: str) -> Path:
    """Start a process of Spark, which is ended with the cluster; returns its log."""
    import pyspark

    from skiway.spark_jobs.java import ensure_java

    ensure_java()
    program_file = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    command = [program_file, f"org.apache.spark.deploy.{program}", "--webui-port", "0", *arguments]
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=variables)
    running.callback(process.wait, 60)
    running.callback(process.terminate)
    return log


def _found(log: Path, pattern: str) -> str:
    """What a log says, once it does."""
    deadline = time.monotonic() + START_S
    while (found := re.search(pattern, log.read_text())) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log} does not say {pattern!r} within {START_S} s")
        time.sleep(0.05)
    return found[1]
