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


def report(name: str, figures: Iterable[Figure]) -> None:
    """Print each figure as it comes and keep all in results/."""
    load = os.getloadavg()[0]
    print(f"{name} (load average {load:.1f} on {os.cpu_count()} cores)")
    print(f"{'':<44} {'ours':>10} {'peer':>10} {'unit':<5} {'ratio':>6}")
    kept = []
    for figure in figures:
        print(figure.line(), flush=True)
        kept.append(asdict(figure))
    RESULTS.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "cores": os.cpu_count(), "load_before": load, "figures": kept}
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
