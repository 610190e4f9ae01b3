"""ATTACH and the first statement of DuckDB's real client on a lake with many tables.

    python -m bench.attaching 100000

measures with another number of tables. DuckDB loads the names of all schemas when it attaches, and the tables with the first statement.
A cold server has just started; for a warm one, another client has attached before.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.explorer import MEMORY, seeded
from bench.live import attach
from bench.report import Figure, report
from bench.serving import skiway_serve

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the client of `make live`
from live.clients import Session, find_client

TABLES: Final = 10_000
ROUNDS: Final = 7
COLD_S: Final = 1.0
WARM_MS: Final = {10_000: 50, 100_000: 2000}


def figures(count: int = TABLES) -> Iterator[Figure]:
    """Yield the figures of this part."""
    client = find_client()
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None, prefix="bench-") as place:
        home = Path(place)
        seeded(home, count, mirrored=True)
        with skiway_serve(home) as doors, client.session("SET enable_progress_bar = false") as session:
            empty = _memory(doors["pid"])
            cold = _attached(session, doors["airport"], count)
            yield Figure(f"{count:,} tables: cold", "s", cold, aim_below=COLD_S if count == TABLES else None)
            warm = statistics.median(_attached(session, doors["airport"], count) for _ in range(ROUNDS))
            yield Figure(f"{count:,} tables: warm", "ms", warm * 1000, aim_below=WARM_MS.get(count))
            used = (_memory(doors["pid"]) - empty) / count
            yield Figure(f"{count:,} tables: memory of the server for each, after listing them", "bytes", used)


def _attached(session: Session, location: str, count: int) -> float:
    """Seconds until a client has attached, and knows the columns of a table."""
    attach(session, "lake", location, "lake")
    began = session.timed(f"DESCRIBE lake.area_0.table_{min(count, 500) - 1}")
    session.need("DETACH lake")
    return began


def _memory(pid: str) -> int:
    """Bytes of memory of a process."""
    found = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(found[0].split()[1]) * 1024


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else TABLES
    report("attaching" if wanted == TABLES else f"attaching-{wanted}", figures(wanted))
