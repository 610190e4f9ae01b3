"""Figures, printed and kept."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """A rate (or time) of ours beside that of a peer in the same run."""

    name: str
    unit: str
    ours: float
    peer: float
    ratio: float | None = None
    aim: float | None = None
    aim_below: float | None = None
    peer_is: str = "bare pyarrow Flight"

    def line(self) -> str:
        """The figure as a row of the table."""
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else ""
        return f"{self.name:<44} {self.ours:>10,.1f} {self.peer:>10,.1f} {self.unit:<5} {ratio:>6}  {self.verdict()}"

    def verdict(self) -> str:
        """How it stands to the aim."""
        if self.aim is not None and self.ratio is not None:
            return f"aim {self.aim:.2f} {'reached' if self.ratio >= self.aim else 'missed'}"
        if self.aim_below is not None:
            return f"aim < {self.aim_below:g} {self.unit} {'reached' if self.ours < self.aim_below else 'missed'}"
        return ""


@dataclass(frozen=True)
class Latency:
    """How long calls of one kind take, with one or more clients at once, and how much of the store each of them needs."""

    name: str
    clients: int
    p50_ms: float
    p99_ms: float
    calls_per_s: float
    store_operations: int | None = None
    aim_p50_ms: float | None = None

    def line(self) -> str:
        """The figure as a row of the table."""
        cost = "" if self.store_operations is None else f"{self.store_operations}"
        return (
            f"{self.name:<44} {self.clients:>3} {self.p50_ms:>9.3f} {self.p99_ms:>9.3f} {self.calls_per_s:>10,.0f} "
            f"{cost:>5}  {self.verdict()}"
        )

    def verdict(self) -> str:
        """How it stands to the aim."""
        if self.aim_p50_ms is None:
            return ""
        return f"aim p50 < {self.aim_p50_ms:g} ms {'reached' if self.p50_ms < self.aim_p50_ms else 'missed'}"


HEADERS = {
    Figure: f"{'':<44} {'ours':>10} {'peer':>10} {'unit':<5} {'ratio':>6}",
    Latency: f"{'':<44} {'n':>3} {'p50 ms':>9} {'p99 ms':>9} {'calls/s':>10} {'store':>5}",
}


def report(name: str, figures: Iterable[Figure] | Iterable[Latency]) -> None:
    """Print each figure as it comes and keep all in results/."""
    load = os.getloadavg()[0]
    print(f"{name} (load average {load:.1f} on {os.cpu_count()} cores)")
    kept: list[dict[str, object]] = []
    for figure in figures:
        if not kept:
            print(HEADERS[type(figure)])
        print(figure.line(), flush=True)
        kept.append(asdict(figure))
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "cores": os.cpu_count(), "load_before": load, "figures": kept}
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
