"""One real server for all command tests, with a lake that is synced and profiled once."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.servers import Server, skiway, started
from skiway.cli import main

ROWS = 6000
SPARK_S = 500


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.out.splitlines()]


Run = Callable[..., Done]


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server with `lake.raw.orders` and `lake.raw.people`, mirrored and not profiled."""
    root = tmp_path_factory.mktemp("cli")
    with started(root / "home") as server:
        write_sources(root / "data")
        env = {"SKIWAY_SERVER": server.address}
        made = skiway("connectors", "create", "raw", "--kind", "parquet", "--uri", root / "data", **env)
        assert made.returncode == 0, made.stderr
        synced = skiway("connectors", "sync", "raw", "--mode", "metadata", **env)
        assert synced.returncode == 0, synced.stderr
        yield server


@pytest.fixture(scope="session")
def profiled(lake: Server) -> str:
    """The output of a sync with statistics, which starts Spark in the server. Tests that use it need a longer timeout."""
    synced = skiway("connectors", "sync", "raw", "--watch", timeout_s=SPARK_S, SKIWAY_SERVER=lake.address)
    assert synced.returncode == 0, synced.stderr
    return synced.stderr + synced.stdout


def write_sources(folder: Path) -> None:
    """Write two Parquet tables: six files of orders, one for each month, and one file of people."""
    (folder / "orders").mkdir(parents=True)
    for month in range(6):
        numbers = range(month * ROWS // 6, (month + 1) * ROWS // 6)
        orders = pa.table(
            {
                "id": pa.array(numbers, pa.int64()),
                "customer": ["Ada" if n % 2 else ("Grace" if n % 10 else None) for n in numbers],
                "amount": [float(n % 100) for n in numbers],
                "day": [date(2025, 1, 1) + timedelta(days=31 * month + n % 28) for n in numbers],
                "paid": [n % 4 != 0 for n in numbers],
            }
        )
        pq.write_table(orders, folder / "orders" / f"{month}.parquet")
    pq.write_table(pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", None]}), folder / "people.parquet")


class Terminal(io.StringIO):
    """A terminal on which somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(lake: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command against the server through `main`, in this process."""
    for name in ("SKIWAY_TOKEN", "SKIWAY_ACCOUNT", "SKIWAY_HOME", "SKIWAY_CREDENTIAL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKIWAY_SERVER", lake.address)

    def run_(*arguments: str | Path, stdin_text: str = "", types: str | None = None) -> Done:
        stdin = io.StringIO(stdin_text) if types is None else Terminal(types)
        monkeypatch.setattr(sys, "argv", ["skiway", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", stdin)
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run_
