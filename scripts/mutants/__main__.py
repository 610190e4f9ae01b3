"""Mutation testing: change the code in small ways, one at a time, and see whether a test fails.

    make mutants                       # 90 mutants
    make mutants ARGS="--sample 200 --minutes 120"
    make mutants ARGS="--only metastore/gc --tests tests/metastore/gc --sample 20"

The operators are those of Cosmic Ray. The rest is here, because Cosmic Ray runs one command for all mutants, which would be
many minutes of tests for each, has no sampling, and changes files in place. Here a mutant runs only the tests that run its
line, which are recorded first; the sample depends on the seed alone; and all of it happens in copies of the repository.

`equivalent.toml` lists mutants that no test can kill, with reasons.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from recording import TESTS, record
from running import Outcome, copied, run_all
from sites import PACKAGES, Mutant, sampled

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ROOT / ".cache" / "mutants"
GOAL: Final = 0.9


def main() -> None:
    options = _options()
    started = time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    trees = [CACHE / f"tree-{number}" for number in range(options.jobs)]
    copied(ROOT, *trees)
    chosen = [
        (package, mutant)
        for package, mutants in sampled(trees[0], options.sample, seed=options.seed, only=options.only).items()
        for mutant in mutants
    ]
    equivalent = _equivalent()
    outcomes = [Outcome(one, package, "equivalent") for package, one in chosen if _key(one) in equivalent]
    waiting = [(package, one) for package, one in chosen if _key(one) not in equivalent]
    if options.list:
        for package, one in chosen:
            print(f"{package}: {_described(one)}")
        return
    coverage = record(trees, [options.tests] if options.tests else TESTS, CACHE)
    print(f"{len(waiting)} mutants, coverage of {len(coverage.seconds)} tests after {_minutes(started)}", flush=True)
    ran, left = run_all(
        waiting,
        trees,
        coverage,
        deadline=started + options.minutes * 60,
        limit_s=options.seconds,
        report=lambda one: print(_line(one), flush=True),
    )
    report = _report([*outcomes, *ran], left)
    (CACHE / "report.txt").write_text(report)
    print(report, f"{_minutes(started)} in all; this report is in {CACHE.relative_to(ROOT)}/report.txt", sep="\n")
    dead = sum(each.is_dead for each in ran)
    sys.exit(0 if ran and dead >= GOAL * len(ran) else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("mutants", description="Mutate the code and see whether a test fails.")
    parser.add_argument("--sample", type=int, default=90, help="how many mutants (default: %(default)s)")
    parser.add_argument("--seed", default="1", help="another sample (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=40, help="start no mutant after this time (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of tests per mutant (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time (default: %(default)s)")
    parser.add_argument("--only", default="", help="mutate only files whose path contains this text")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="select from these tests only")
    parser.add_argument("--list", action="store_true", help="show the sample, and run nothing")
    return parser.parse_args()


def _equivalent() -> dict[tuple[str, str, str], str]:
    listed = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text())["mutant"]
    return {(each["file"], _squeezed(each["was"]), _squeezed(each["now"])): each["reason"] for each in listed}


def _key(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.path, _squeezed(mutant.was), _squeezed(mutant.now)


def _squeezed(code: str) -> str:
    """The code without white space: a mutant may differ in it from what somebody would write."""
    return "".join(code.split())


def _described(mutant: Mutant) -> str:
    was, now = (text.replace("\n", "\n      ") for text in (mutant.was, mutant.now))
    return f"{mutant.name}\n    - {was}\n    + {now}"


def _line(one: Outcome) -> str:
    by = f" by {one.by}" if one.by else ""
    return f"{one.result:<11} {one.seconds:5.1f} s {one.tests:4} tests  {one.mutant.name}{by}"


def _report(outcomes: Sequence[Outcome], left: Sequence[tuple[str, Mutant]]) -> str:
    lines = [""]
    for result in ("survived", "not covered", "timed out", "equivalent"):
        found = sorted((each for each in outcomes if each.result == result), key=lambda each: each.mutant.name)
        lines += [f"{result} ({len(found)}):", *(f"  {_described(each.mutant)}" for each in found), ""]
    lines.append(f"{'package':<10} killed  survived  timed out  equivalent  dead")
    for package in (*PACKAGES, "all"):
        here = [each for each in outcomes if package in ("all", each.package)]
        counts = {
            result: sum(each.result == result for each in here) for result in ("killed", "timed out", "equivalent")
        }
        alive = sum(each.result in ("survived", "not covered") for each in here)
        ran = len(here) - counts["equivalent"]
        share = f"{sum(each.is_dead for each in here) / ran:.0%}" if ran else "-"
        lines.append(
            f"{package:<10} {counts['killed']:6} {alive:9} {counts['timed out']:10} {counts['equivalent']:11}  {share}"
        )
    if left:
        lines.append(f"{len(left)} mutants were not run, because the time was up")
    return "\n".join(lines)


def _minutes(started: float) -> str:
    return f"{(time.monotonic() - started) / 60:.1f} minutes"


if __name__ == "__main__":
    main()
