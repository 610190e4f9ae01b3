"""Runs the cases of one target in a process of its own: `python -m fuzz.worker TARGET SEED FIRST LIMIT FOLDER`.

It prints one JSON object per line: the number of each case before it runs, its outcome, and what it found. The process that
started it sees from the missing lines that a case crashed or does not end. The case that runs is also in the file `current`.

Cases have numbers. A case depends on the seed, the target and its number, and every `BATCH` cases the target starts with a new
state. So a fault that depends on the state needs at most the cases of its batch.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from fuzz.cases import to_json
from fuzz.target import Case, Fault, Target
from fuzz.targets import target_called

BATCH = 250
MEMORY_LIMIT = 512 * 1024 * 1024
"""How much memory one case may take at most, beyond what the process had before."""
ADDRESS_SPACE = 12 * 1024**3
"""Protects the machine from a case that takes all its memory; threads and allocators reserve much more than they use."""


def case_of(target: Target, seed: int, number: int) -> Case:
    return target.case(Random(f"{seed}/{target.name}/{number}"))


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Target]:
    target = target_called(name)(folder)
    target.open()
    try:
        yield target
    finally:
        target.close()


def run(name: str, seed: int, first: int, limit: int, folder: Path) -> None:
    """Run the cases from `first` up to `limit`, without it."""
    current = folder / "current"
    known: set[str] = set()
    while first < limit:
        start = first - first % BATCH
        end = min(start + BATCH, limit)
        with tempfile.TemporaryDirectory(dir=folder) as place, opened(name, Path(place)) as target:
            ran: list[Case] = []
            for number in range(first, end):
                case = case_of(target, seed, number)
                current.write_text(json.dumps(to_json(case)))
                report(started=number)
                found = outcome(target, case)
                ran.append(case)
                if isinstance(found, str):
                    report(outcome=found)
                else:
                    cases = [case] if found.signature in known else shortened(name, found, ran, folder)
                    known.add(found.signature)
                    report(fault=found.signature, detail=found.detail, cases=to_json(cases), number=number)
        first = end
    report(done=limit)


def outcome(target: Target, case: Case) -> str | Fault:
    """The outcome of a case, or the fault. A case that takes too much memory is one, too."""
    before = _reset_peak()
    try:
        status = target.run(case)
    except Fault as fault:
        return fault
    except TimeoutError as error:
        return Fault(f"hang: {str(error).split(' ')[0]}", str(error))
    if (taken := _peak() - before) > MEMORY_LIMIT:
        return Fault(f"memory: {status}", f"the case took {taken >> 20} MiB")
    return status


def shortened(name: str, fault: Fault, ran: Sequence[Case], folder: Path) -> list[Case]:
    """The shortest end of the cases that gives the same fault with a new state."""
    size = 1
    while size < len(ran):
        with tempfile.TemporaryDirectory(dir=folder) as place, opened(name, Path(place)) as target:
            results = [outcome(target, case) for case in ran[-size:]]
        if any(isinstance(each, Fault) and each.signature == fault.signature for each in results):
            return list(ran[-size:])
        size *= 4
    return list(ran)


def report(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _reset_peak() -> int:
    """Forget the highest use of memory, and return the current one."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    """A figure of this process in bytes; 0 where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def main(name: str, seed: str, first: str, limit: str, folder: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run(name, int(seed), int(first), int(limit), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
