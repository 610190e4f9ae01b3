"""Measure the CPU time of each test, with that of the processes that it starts, and choose the slow ones.

    PYTHONPATH=tests CPU_TIMES=/tmp/times pytest -p cpu_times --numprocesses 2 tests
    python tests/cpu_times.py /tmp/times.* > tests/slow_tests.txt

Times of waiting do not count: on a busy machine they say little, and other tests run meanwhile. Lines of the old list that
begin with `#` name tests that stay in `make test` although they are slow.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest

TICKS = os.sysconf("SC_CLK_TCK")
SLOW_S = 0.35
LIST = Path(__file__).parent / "slow_tests.txt"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = used()
    try:
        return (yield)
    finally:
        with Path(f"{os.environ['CPU_TIMES']}.{os.getpid()}").open("a") as file:
            file.write(f"{used() - before:.3f}\t{item.nodeid.partition('[')[0]}\n")


def used() -> float:
    """The CPU seconds of this process and of all that it has started."""
    return sum(os.times()[:4]) + sum(of_process(each) for each in descendants("self"))


def of_process(pid: str) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def descendants(pid: str) -> Iterator[str]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child)


def slow(files: Iterable[str]) -> Iterator[str]:
    """The lines of the list: what stays, and the tests whose cases take long on average."""
    kept = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    times = defaultdict(list)
    for file in files:
        for line in Path(file).read_text().splitlines():
            seconds, _, name = line.partition("\t")
            times[name].append(float(seconds))
    yield from kept
    found = sorted(name for name, taken in times.items() if sum(taken) / len(taken) >= SLOW_S)
    yield from (name for name in found if f"# {name}" not in kept)


if __name__ == "__main__":
    print("\n".join(slow(sys.argv[1:])))
