"""The command of `make fuzz`: fuzz all targets for some time, print a report, and store what was found."""

from __future__ import annotations

import argparse
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzz.cases import Finding
from fuzz.fuzzing import Result, fuzz, report
from fuzz.worker import BATCH

FOUND = Path(__file__).resolve().parents[2] / ".cache" / "fuzz"
TARGETS = ("flight", "memory", "lake", "rpc", "rest", "filters", "bodies", "parquet", "delta", "iceberg")


def main() -> int:
    given = _arguments()
    names = given.target or list(TARGETS)
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    print(f"fuzzing {', '.join(names)} with seed {seed}", flush=True)
    first, limit = 0, 1 << 40
    if given.case is not None:
        first, limit = given.case - given.case % BATCH, given.case + 1
    share = given.seconds * given.jobs / len(names)

    def run(name: str) -> Result:
        return fuzz(name, seed=seed, seconds=share, first=first, limit=limit)

    with ThreadPoolExecutor(given.jobs) as threads:
        results = list(threads.map(run, names))
    print(report(results, seed))
    found: list[Finding] = [finding for result in results for finding in result.findings.values()]
    for finding in found:
        print(f"stored {finding.save(FOUND)}")
    if found:
        print("fix the faults, then move these files to tests/fuzz/corpus, where `make test` repeats them")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=…", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long to run, all targets together (300)")
    parser.add_argument("--seed", type=int, help="repeat a run: the same seed gives the same cases")
    parser.add_argument("--target", action="append", choices=TARGETS, help="fuzz only this target; can be repeated")
    parser.add_argument("--case", type=int, help="run only the batch of cases up to this number")
    parser.add_argument("--jobs", type=int, default=2, help="how many targets run at a time (2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
