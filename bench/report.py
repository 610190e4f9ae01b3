"""Figures: printed as they are measured, stored in results/, and compared with their targets at the end."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table

RESULTS: Final = Path(__file__).parent / "results"
WIDTH: Final = 56  # of the names


@dataclass(frozen=True)
class Figure:
    """A rate or time of ours, that of a peer in the same run, and the target for their ratio.

    `aim` is the smallest acceptable ratio, `aim_at_most` the largest; `aim_below` and `aim_above` are limits for our own figure.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    aim: float | None = None
    aim_at_most: float | None = None
    aim_below: float | None = None
    aim_above: float | None = None
    peer_is: str = "bare pyarrow Flight"

    def line(self) -> str:
        """The figure as a line of the table."""
        ratio = "" if self.ratio is None else number(self.ratio)
        peer = "" if self.peer is None else number(self.peer)
        return f"{self.name:<{WIDTH}} {number(self.ours):>12} {peer:>12} {self.unit:<5} {ratio:>8}  {self.verdict()}"

    def wanted(self) -> str:
        """The target as text; empty if there is none."""
        if self.aim is not None:
            return f"ratio >= {self.aim:g}"
        if self.aim_at_most is not None:
            return f"ratio <= {self.aim_at_most:g}"
        if self.aim_above is not None:
            return f">= {self.aim_above:g} {self.unit}"
        return "" if self.aim_below is None else f"< {self.aim_below:g} {self.unit}"

    def share(self) -> float | None:
        """The result relative to the target: 1 is exactly the target, 2 is twice as good. None without a target."""
        if self.aim is not None and self.ratio is not None:
            return self.ratio / self.aim
        if self.aim_at_most is not None and self.ratio is not None:
            return self.aim_at_most / self.ratio
        if self.aim_above is not None:
            return self.ours / self.aim_above
        return None if self.aim_below is None else self.aim_below / self.ours

    def verdict(self) -> str:
        """Whether the target is reached; empty if there is none."""
        return _verdict(self)


@dataclass(frozen=True)
class Latency:
    """The latency of one kind of call with one or more concurrent clients, and the number of store operations per call."""

    name: str
    clients: int
    p50_ms: float
    p99_ms: float
    calls_per_s: float
    store_operations: int | None = None
    aim_p50_ms: float | None = None

    def line(self) -> str:
        """The figure as a line of the table."""
        cost = "" if self.store_operations is None else f"{self.store_operations}"
        return (
            f"{self.name:<{WIDTH}} {self.clients:>3} {self.p50_ms:>9.3f} {self.p99_ms:>9.3f} {self.calls_per_s:>10,.0f} "
            f"{cost:>5}  {self.verdict()}"
        )

    def wanted(self) -> str:
        """The target as text; empty if there is none."""
        return "" if self.aim_p50_ms is None else f"p50 < {self.aim_p50_ms:g} ms"

    def share(self) -> float | None:
        """The result relative to the target; None without a target."""
        return None if self.aim_p50_ms is None else self.aim_p50_ms / self.p50_ms

    def verdict(self) -> str:
        """Whether the target is reached; empty if there is none."""
        return _verdict(self)


Measured: TypeAlias = Figure | Latency

HEADERS: Final[Mapping[type, str]] = {
    Figure: f"{'':<{WIDTH}} {'ours':>12} {'peer':>12} {'unit':<5} {'ratio':>8}",
    Latency: f"{'':<{WIDTH}} {'n':>3} {'p50 ms':>9} {'p99 ms':>9} {'calls/s':>10} {'store':>5}",
}


def number(value: float) -> str:
    """The value with three significant digits, and all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _verdict(figure: Measured) -> str:
    share = figure.share()
    return "" if share is None else f"{figure.wanted()}: {'reached' if share >= 1 else 'missed'}"


def report(name: str, figures: Iterable[Measured]) -> list[Measured]:
    """Print each figure as it is measured, and store all of them in results/."""
    load = os.getloadavg()[0]
    print(f"\n{name} (load average {load:.1f} on {os.cpu_count()} cores)")
    found: list[Measured] = []
    for figure in figures:
        if not found or type(figure) is not type(found[-1]):
            print(HEADERS[type(figure)])
        print(figure.line(), flush=True)
        found.append(figure)
    RESULTS.mkdir(exist_ok=True)
    facts = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": load,
        "figures": [asdict(figure) for figure in found],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
    return found


def load_results(name: str) -> tuple[dict[str, Any], list[Measured]]:
    """The figures that the last complete run of a part stored in results/, and facts about the machine."""
    facts = json.loads((RESULTS / f"{name}.json").read_text())
    return facts, [Latency(**each) if "p50_ms" in each else Figure(**each) for each in facts.pop("figures")]


def summary(parts: Mapping[str, Sequence[Measured]], failed: Mapping[str, str], console: Console | None = None) -> None:
    """Print all figures that have a target and how they compare with it, then the parts that failed."""
    table = Table(title="aims", title_justify="left", pad_edge=False)
    for heading in ("part", "figure"):
        table.add_column(heading)
    for heading in ("ours", "aim"):
        table.add_column(heading, justify="right")
    table.add_column("beside the aim")
    for part, figures in parts.items():
        for figure in figures:
            if (share := figure.share()) is not None:
                table.add_row(part, figure.name, _shown(figure), figure.wanted(), _bar(share))
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    if table.row_count:
        console.print(table)
    for part, reason in failed.items():
        console.print(f"[bold red]{part} failed:[/] {escape(reason)}", highlight=False)


def _shown(figure: Measured) -> str:
    if isinstance(figure, Latency):
        return f"{figure.p50_ms:.3g} ms"
    return number(figure.ratio) if figure.aim_below is None and figure.ratio else f"{number(figure.ours)} {figure.unit}"


def _bar(share: float) -> str:
    """A bar of twenty characters; half of them are filled when the target is exactly reached."""
    full = max(1, min(20, round(10 * share)))
    colour, mark = ("green", "✓") if share >= 1 else ("red", "✗")
    return f"[{colour}]{mark} {'━' * full}[/][dim]{'─' * (20 - full)}[/]"
