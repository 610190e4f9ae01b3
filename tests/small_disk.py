"""Runs on a disk of one megabyte that is full: prints how each part reports it. `test_causes.py` starts it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from skiway.doctor.checks import disk, disk_clock, examine
from skiway.errors import SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake.writing.rewriting import WaitingRows
from skiway.runtime.lifecycle import check_room
from skiway.storage import ABSENT, open_blobs, open_pointers


def main(folder: Path) -> None:
    pointers = open_pointers(f"sqlite:///{folder}/pointers.db")
    open_pointers(f"sqlite:///{folder}/earlier.db").close()
    blobs = open_blobs((folder / "blobs").as_uri())
    warehouse = Warehouse.at(str(folder / "warehouse")).everything()
    warehouse.write(f"{folder}/warehouse/t/before", b"x")
    _fill(folder / "filler")
    rows = WaitingRows(str(folder), buffer_bytes=1)
    cases: dict[str, Callable[[], object]] = {
        "pointers": lambda: [pointers.compare_and_set(f"/a/{n}", "x" * 1000, expect=ABSENT) for n in range(1000)],
        "blobs": lambda: blobs.put(b"x" * 100_000),
        "warehouse": lambda: warehouse.write(f"{folder}/warehouse/t/after", b"x" * 100_000),
        "statement": lambda: rows.add(pa.array([1]), pa.record_batch({"x": ["y" * 100_000]})),
        "opening": lambda: open_pointers(f"sqlite:///{folder}/other.db"),
        "readiness": lambda: check_room(folder),
        "reopening": lambda: open_pointers(f"sqlite:///{folder}/earlier.db"),
    }
    found = {name: _reported(case) for name, case in cases.items()}
    checks = {"disk": lambda: disk(folder, lambda _: 0), "clock": lambda: disk_clock(folder, time.time)}
    for finding in examine(checks):
        found[f"doctor: {finding.check}"] = [finding.state.value, finding.evidence, finding.fix]
    print(json.dumps(found))


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def _reported(case: Callable[[], object]) -> list[str]:
    try:
        case()
    except SkiwayError as error:
        return [type(error).__name__, error.key, error.message]
    return ["no error", "", ""]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
