"""A server of airport-go, the Airport library for Go, as a peer. `AIRPORT_GO` names the folder of its sources.

It is built once with Go, from `bench/airport_go/main.go`, and reads the rows of our own server from a file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

from bench.servers import big

PROGRAM: Final = Path(__file__).parent / "airport_go" / "main.go"
BUILT: Final = Path(__file__).parents[1] / ".cache" / "airport_go"
MODULE: Final = """module skiway/bench/airport_go

go 1.26

require github.com/hugr-lab/airport-go v0.0.0

replace github.com/hugr-lab/airport-go => {sources}
"""


def is_available() -> bool:
    """Whether the peer can be built here."""
    return "AIRPORT_GO" in os.environ and shutil.which("go") is not None


@contextmanager
def serving(rows: int) -> Iterator[str]:
    """Run the server, and yield its address."""
    program = _built(Path(os.environ["AIRPORT_GO"]))
    data = BUILT / "rows.arrow"
    table = big(rows)
    with pa.OSFile(str(data), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with subprocess.Popen([program, data], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"grpc://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _built(sources: Path) -> Path:
    """The program, which is built again if it is older than our own source."""
    program = BUILT / "airport_go"
    if not program.exists() or program.stat().st_mtime < PROGRAM.stat().st_mtime:
        BUILT.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAM, BUILT)
        (BUILT / "go.mod").write_text(MODULE.format(sources=sources.resolve()))
        for command in (["go", "mod", "tidy"], ["go", "build", "-o", program.name, "."]):
            subprocess.run(command, cwd=BUILT, check=True)
    return program
