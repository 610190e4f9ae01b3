"""What a load test measured: latencies by account and statement, memory over time, and what was violated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

GROWTH = 1.05
"""By how much the memory of the server may grow from the middle third of the run to the last one."""
SLACK_BYTES = 24 << 20
"""A smaller growth is noise of the allocators."""


def percentile(seconds: Iterable[float], share: float) -> float:
    found = sorted(seconds)
    return found[min(int(len(found) * share), len(found) - 1)] if found else 0.0


@dataclass
class Figures:
    """All figures of a run."""

    clients: int
    seconds: float
    latencies: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    refused: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    fairness: list[tuple[float, float]] = field(default_factory=list)

    def add(self, account: str, measured: dict[str, Any]) -> None:
        """Add what a client measured."""
        for kind, seconds in measured["seconds"].items():
            self.latencies[account][kind] += seconds
        self.refused.update(measured["refused"])
        self.violations += [f"{account}: {each}" for each in measured["violations"]]

    @property
    def statements(self) -> int:
        return sum(len(seconds) for kinds in self.latencies.values() for seconds in kinds.values())

    def memory_thirds(self) -> tuple[float, float, float]:
        """The median memory in each third of the run."""
        size = len(self.memory) // 3
        parts = (self.memory[:size], self.memory[size : 2 * size], self.memory[2 * size :])
        first, middle, last = (median(part) if part else 0.0 for part in parts)
        return first, middle, last

    def failures(self) -> list[str]:
        """What must not be: other errors than conflicts and limits, memory that grows, unfairness, no work at all."""
        found = [f"{count} times: {text}" for text, count in Counter(self.violations).most_common(20)]
        _, middle, last = self.memory_thirds()
        if last > max(middle * GROWTH, middle + SLACK_BYTES):
            found.append(
                f"the memory of the server grew from {_mib(middle)} to {_mib(last)} MiB in the last two thirds"
            )
        if self.fairness and all(flooded >= 3 * alone for alone, flooded in self.fairness):
            found.append("an account that exceeds its quotas slows down another one by three times or more")
        if self.statements < self.clients:
            found.append(f"{self.clients} clients ran only {self.statements} statements")
        return found


def report(figures: Figures) -> str:
    """A readable summary."""
    lines = [
        f"{figures.clients} clients, {figures.seconds:.0f} s: {figures.statements:,} statements, "
        f"{figures.statements / figures.seconds:.0f} per second",
        f"refused: {', '.join(f'{count:,} {name}' for name, count in figures.refused.most_common()) or 'none'}",
        "",
        f"{'account':10} {'statement':14} {'count':>8} {'p50 ms':>8} {'p99 ms':>8}",
    ]
    for account, kinds in sorted(figures.latencies.items()):
        everything = [each for seconds in kinds.values() for each in seconds]
        lines += [_line(account, kind, seconds) for kind, seconds in sorted(kinds.items())]
        lines.append(_line(account, "all", everything))
    first, middle, last = map(_mib, figures.memory_thirds())
    highest = _mib(max(figures.memory, default=0))
    lines += ["", f"memory of the server, by thirds of the run: {first}, {middle}, {last} MiB; highest {highest} MiB"]
    for alone, flooded in figures.fairness:
        lines.append(
            f"p99 of another account: {1000 * alone:.1f} ms alone, {1000 * flooded:.1f} ms while one account exceeds its quotas"
        )
    failures = figures.failures()
    return "\n".join([*lines, "", *(f"VIOLATION {each}" for each in failures), "failed" if failures else "passed"])


def _line(account: str, kind: str, seconds: Sequence[float]) -> str:
    p50, p99 = 1000 * percentile(seconds, 0.5), 1000 * percentile(seconds, 0.99)
    return f"{account:10} {kind:14} {len(seconds):8,} {p50:8.1f} {p99:8.1f}"


def _mib(size: float) -> int:
    return round(size / (1 << 20))
