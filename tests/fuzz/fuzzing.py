"""Fuzz targets for some time: start a worker for each, notice crashes and hangs, and collect what was found."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.cases import Finding, from_json

TESTS = Path(__file__).resolve().parents[1]
HANG_S = 20.0
"""How long one case may take, with all servers of the machine busy."""
START_S = 120.0


@dataclass
class Result:
    """What fuzzing a target gave: outcomes of cases, and one finding for each signature, with how often it occurred."""

    target: str
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    occurrences: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding, number: int) -> None:
        self.occurrences[finding.signature] += 1
        if finding.signature not in self.findings:
            self.findings[finding.signature], self.numbers[finding.signature] = finding, number


def fuzz(
    target: str, *, seed: int, seconds: float, first: int = 0, limit: int = 1 << 40, hang_s: float = HANG_S
) -> Result:
    """Run cases of one target for some time, or up to the case with the number `limit`. One may take `hang_s` seconds."""
    result = Result(target)
    deadline = time.monotonic() + seconds
    while first < limit and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory(prefix="skiway-fuzz-") as folder:
            first = _until_a_worker_ends(result, seed, (first, limit), deadline, hang_s, Path(folder))
    return result


def _until_a_worker_ends(
    result: Result, seed: int, numbers: tuple[int, int], deadline: float, hang_s: float, folder: Path
) -> int:
    """Start a worker and follow it. Return the number of the first case that did not run."""
    first, limit = numbers
    number, began = first - 1, False
    with _worker(result.target, seed, first, limit, folder) as (process, lines):
        while time.monotonic() < deadline:
            try:
                line = lines.get(timeout=hang_s if began else START_S)
            except queue.Empty:
                result.add(_lost(result.target, "hang", folder), number)
                return number + 1
            if line is None:
                if (code := process.wait()) == 0:
                    return limit
                if not began:
                    raise RuntimeError(f"the worker of {result.target} ended before its first case: {_printed(folder)}")
                result.add(_lost(result.target, f"crash: {_ended(code)}", folder), number)
                return number + 1
            if "started" in line:
                number, began = line["started"], True
                result.cases += 1
            elif "outcome" in line:
                result.outcomes[line["outcome"]] += 1
            elif "fault" in line:
                found = Finding(result.target, line["fault"], from_json(line["cases"]), line["detail"])
                result.add(found, line["number"])
    return limit


def _lost(target: str, signature: str, folder: Path) -> Finding:
    """The finding of a case that did not return. What the worker printed last tells crashes apart."""
    printed = _printed(folder)
    reason = re.sub(r"\d+", "#", printed.strip().rpartition("\n")[2].strip()) if "crash" in signature else ""
    case = from_json(json.loads((folder / "current").read_text()))
    return Finding(target, f"{signature} {reason}".strip(), [case], printed)


def _printed(folder: Path) -> str:
    return (folder / "errors").read_text(errors="replace")


def _ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextmanager
def _worker(
    target: str, seed: int, first: int, limit: int, folder: Path
) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[dict[str, Any] | None]]]:
    command = [sys.executable, "-m", "fuzz.worker", target, str(seed), str(first), str(limit), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            command,
            cwd=TESTS,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        try:
            yield process, lines
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            reader.join()


def _read(process: subprocess.Popen[str], lines: queue.Queue[dict[str, Any] | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            lines.put(json.loads(line))
    lines.put(None)


def report(results: Sequence[Result], seed: int) -> str:
    """A readable summary, with the command that repeats each finding."""
    lines = [f"{'target':10} {'cases':>8}  outcomes"]
    for result in results:
        often = ", ".join(f"{count:,} {name}" for name, count in result.outcomes.most_common(6))
        lines.append(f"{result.target:10} {result.cases:8,}  {often}")
    found = [(result, signature) for result in results for signature in result.findings]
    lines.append(f"{sum(result.cases for result in results):,} cases, seed {seed}: {len(found) or 'no'} findings")
    for result, signature in found:
        times, number = result.occurrences[signature], result.numbers[signature]
        lines += [
            f"\n{result.target}: {signature} ({times} times)",
            f"  repeat: make fuzz ARGS='--target {result.target} --seed {seed} --case {number}'",
            *(f"  | {line}" for line in result.findings[signature].detail.splitlines()[-14:]),
        ]
    return "\n".join(lines)
