"""Run the tests of mutants, in copies of the repository."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Condition
from typing import Final

from recording import Coverage, environment
from sites import Module, Mutant

__all__ = ["Outcome", "copied", "run_all"]

_OPTIONS: Final = ("-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no")
_FACTOR: Final = 6  # a mutant may be this much slower than the code
_START_S: Final = 60


def copied(root: Path, *trees: Path) -> None:
    """Copy the files of the repository, as they are in the working tree, into new folders. All copies are the same."""
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)
    first, *others = trees
    listed = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in filter(None, subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")):
        if (root / name).is_file():
            (first / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, first / name)
    for other in others:
        shutil.copytree(first, other)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: `killed`, `survived`, `timed out`, `not covered` or `equivalent`."""

    mutant: Mutant
    package: str
    result: str
    tests: int = 0
    seconds: float = 0.0
    by: str = ""

    @property
    def is_dead(self) -> bool:
        return self.result in ("killed", "timed out")


@dataclass
class _Busy:
    """The mutants that wait, of which no two of one file run at the same time."""

    waiting: list[tuple[str, Mutant]]
    deadline: float
    files: set[str] = field(default_factory=set)
    changed: Condition = field(default_factory=Condition)

    def take(self) -> tuple[str, Mutant] | None:
        with self.changed:
            while self.waiting and time.monotonic() < self.deadline:
                for number, (_, mutant) in enumerate(self.waiting):
                    if mutant.path not in self.files:
                        self.files.add(mutant.path)
                        return self.waiting.pop(number)
                self.changed.wait(1)
            return None

    def done(self, mutant: Mutant) -> None:
        with self.changed:
            self.files.discard(mutant.path)
            self.changed.notify_all()


def run_all(
    mutants: Sequence[tuple[str, Mutant]],
    trees: Sequence[Path],
    coverage: Coverage,
    *,
    deadline: float,
    limit_s: float,
    report: Callable[[Outcome], None],
) -> tuple[list[Outcome], list[tuple[str, Mutant]]]:
    """Run the mutants, one at a time per tree, until `deadline`. Return the outcomes, and the mutants that were not run."""
    busy = _Busy(list(mutants), deadline)
    outcomes: SimpleQueue[Outcome] = SimpleQueue()

    def work(tree: Path) -> None:
        while (found := busy.take()) is not None:
            package, mutant = found
            try:
                outcome = _run(tree, package, mutant, coverage, limit_s)
            finally:
                busy.done(mutant)
            report(outcome)
            outcomes.put(outcome)

    with ThreadPoolExecutor(len(trees)) as threads:
        for running in [threads.submit(work, tree) for tree in trees]:
            running.result()
    return [outcomes.get() for _ in range(outcomes.qsize())], busy.waiting


def _run(tree: Path, package: str, mutant: Mutant, coverage: Coverage, limit_s: float) -> Outcome:
    file = tree / mutant.path
    original = file.read_text()
    tests = coverage.tests_for(Module(mutant.path, original), mutant.line, limit_s=limit_s)
    if not tests:
        return Outcome(mutant, package, "not covered")
    started = time.monotonic()
    timeout = _START_S + _FACTOR * sum(coverage.seconds[test] for test in tests)
    try:
        _write(file, mutant.text)
        result, by = _tested(tree, tests, timeout)
    finally:
        _write(file, original)
    return Outcome(mutant, package, result, len(tests), round(time.monotonic() - started, 1), by)


def _write(file: Path, text: str) -> None:
    """Write a module, and delete its bytecode: Python compares times in seconds only."""
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()
    file.write_text(text)


def _tested(tree: Path, tests: Sequence[str], timeout: float) -> tuple[str, str]:
    arguments = tree / ".mutant-tests"
    arguments.write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", *_OPTIONS, f"@{arguments}"]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that servers that tests have started end with it
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return "timed out", ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if process.returncode == 0:
        return "survived", ""
    return "killed", failed[0].split(" ", 1)[1].split(" - ")[0] if failed else f"exit {process.returncode}"
