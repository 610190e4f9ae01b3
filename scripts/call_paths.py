"""Count the source files and functions of Skiway that a server runs for typical statements; the files have limits in `size.toml`.

A reader who follows a statement through the code opens these files. The statements run on a server in this process, through its
clients, whose own code is not counted. Statements that are named as arguments are listed with their files.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "skiway"
LIMITS = Path(__file__).with_name("size.toml")

Functions = set[tuple[str, int]]


class Recorder:
    """Records the functions of Skiway that threads of the server call. Background work is left out: it does not run each time."""

    def __init__(self) -> None:
        self._functions: Functions | None = None

    def install(self) -> None:
        """Record in all threads that start from now on."""
        threading.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        functions = self._functions
        if functions is not None and event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            functions.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def functions_of(self, statement: Callable[[], object]) -> Functions:
        """The functions that every run of a statement calls."""
        statement()
        runs = []
        for _ in range(3):
            self._functions = set()
            statement()
            runs.append(self._functions)
            self._functions = None
        return set.intersection(*runs)


@contextmanager
def statements(folder: Path) -> Iterator[dict[str, Callable[[], object]]]:
    """Typical statements by name, on a server that runs in this process."""
    import httpx
    import pyarrow as pa
    import pyarrow.parquet as pq

    from skiway.client import AirportClient, Metastore
    from skiway.config import load
    from skiway.runtime.process import running

    home, files = folder / "home", folder / "files" / "trips"
    home.mkdir(mode=0o700)
    files.mkdir(parents=True)
    rows = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", "Edsger"]})
    pq.write_table(rows, files / "1.parquet")
    flags = {"server.grpc.address": "127.0.0.1:0", "server.http.address": "127.0.0.1:0", "log.level": "ERROR"}
    with (
        running(load(home, flags=flags), home) as server,
        AirportClient(server.addresses["airport"], "lake") as lake,
        Metastore(server.addresses["rpc"]) as metastore,
        httpx.Client(base_url=f"{server.addresses['http']}/iceberg/v1/lake", timeout=120) as rest,
    ):
        lake.create_schema("s")
        lake.create_table("s.people", rows.schema)
        lake.insert("s.people", rows)
        metastore.catalogs.create("files")
        connector = metastore.connectors.create("trips", kind="parquet", uri=files.parent.as_uri(), catalog="files")
        change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
        yield {
            "select": lambda: lake.scan("s.people").read_all(),
            "insert": lambda: lake.insert("s.people", rows),
            "rest_commit": lambda: rest.post("/namespaces/s/tables/people", json=change).raise_for_status(),
            "sync": lambda: metastore.jobs.wait(metastore.connectors.sync(connector)),
        }


def main() -> int:
    """Print the figures, and the statements that exceed their limits."""
    recorder = Recorder()
    recorder.install()
    limits = tomllib.loads(LIMITS.read_text())["files_per_statement"]
    problems = []
    with tempfile.TemporaryDirectory() as folder, statements(Path(folder)) as runs:
        for name, statement in runs.items():
            functions = recorder.functions_of(statement)
            files = len({file for file, _ in functions})
            print(f"{name}: {files} files, {len(functions)} functions")
            if name in sys.argv[1:]:
                print(
                    *(f"  {Path(file).relative_to(SOURCE)}" for file in sorted({file for file, _ in functions})),
                    sep="\n",
                )
            if files > limits[name]:
                problems.append(f"{name} runs code of {files} files, its limit in {LIMITS.name} is {limits[name]}")
    print("\n".join(problems), end="\n" if problems else "")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
