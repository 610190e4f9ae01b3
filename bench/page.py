"""`python -m bench.page`: copy the latest figures from results/ into docs/reference/benchmarks.md."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from bench.report import RESULTS, Figure, Latency, Measured, load_results, number

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "benchmarks.md"
PARTS: Final = Path(__file__).with_name("parts.toml")
BEGIN: Final = "<!-- page: generated, do not edit -->\n"
END: Final = "<!-- end of page -->\n"


def renew() -> None:
    """Replace the figures on the page with the latest ones."""
    PAGE.write_text(renewed(PAGE.read_text()))


def renewed(page: str) -> str:
    """The page `text` with the latest figures."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures()}\n{END}{after}"


def figures() -> str:
    """What the parts compare, and all figures in results/, part by part."""
    return "\n".join([_parts(), *(_part(path.stem) for path in sorted(RESULTS.glob("*.json")))])


def _parts() -> str:
    head = "## Parts\n\n| part | Skiway | peer | target | duration |\n| --- | --- | --- | --- | --- |\n"
    parts = tomllib.loads(PARTS.read_text())
    return head + "".join(f"| `{name}` | {' | '.join(part.values())} |\n" for name, part in parts.items())


def _part(name: str) -> str:
    facts, found = load_results(name)
    where = (
        f"Python {facts['python']}, {facts['cores']} cores, load average {facts['load_before']:.1f} before it began."
    )
    tables = (_table(list(group)) for _, group in groupby(found, type))
    return f"## {name}\n\n{where}\n\n" + "\n".join(tables)


def _table(found: Sequence[Measured]) -> str:
    rows = map(_row, found)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (*_head(found[0]), *rows))


def _head(first: Measured) -> Iterator[Sequence[str]]:
    if isinstance(first, Latency):
        yield "", "clients", "p50 ms", "p99 ms", "calls/s", "store operations", "aim"
        yield "---", "--:", "--:", "--:", "--:", "--:", "---"
    else:
        yield "", "ours", "peer", "unit", "ratio", "aim", "the peer"
        yield "---", "--:", "--:", "---", "--:", "---", "---"


def _row(figure: Measured) -> Sequence[str]:
    if isinstance(figure, Figure):
        peer, ratio = ("" if value is None else number(value) for value in (figure.peer, figure.ratio))
        about = "" if figure.peer is None else figure.peer_is
        return figure.name, number(figure.ours), peer, figure.unit, ratio, figure.verdict(), about
    cost = "" if figure.store_operations is None else str(figure.store_operations)
    rate = f"{figure.calls_per_s:,.0f}"
    times = f"{figure.p50_ms:.3f}", f"{figure.p99_ms:.3f}"
    return figure.name, str(figure.clients), *times, rate, cost, figure.verdict()


if __name__ == "__main__":
    renew()
