"""Charts as SVG, drawn by the server: they need no script, follow the theme, and can be read aloud.

Colors come from the style sheet by class. Text of callers is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from markupsafe import Markup, escape

from skiway.presentation.table_records import numeric_position

__all__ = ["bars", "flow", "graph", "histogram", "line", "share"]

WIDTH: Final = 240
HEIGHT: Final = 48
GAP: Final = 1.0
BOX: Final = 220
SPACE: Final = 60
ROW: Final = 36
MAX_LABEL: Final = 30


def histogram(bounds: Sequence[str], counts: Sequence[int], *, name: str) -> Markup:
    """A histogram with bars as wide as their ranges; empty if the bounds are no numbers, dates or times."""
    positions = [numeric_position(bound) for bound in bounds]
    known = [each for each in positions if each is not None]
    if len(known) != len(counts) + 1 or not counts:
        return Markup()
    low, high = known[0], known[-1]
    if high <= low:
        return _chart(f"{name}: all values are {bounds[0]}", [_bar(0, WIDTH, 1.0, f"{bounds[0]}: {counts[0]:,}")])
    widths = [(end - start) / (high - low) * WIDTH for start, end in pairwise(known)]
    # The height of a bar is a density: ranges of different widths would mislead otherwise.
    heights = [count / max(width, 1.0) for count, width in zip(counts, widths, strict=True)]
    top = max(heights) or 1.0
    drawn, left = [], 0.0
    for number, (width, height) in enumerate(zip(widths, heights, strict=True)):
        label = f"{bounds[number]} to {bounds[number + 1]}: {counts[number]:,}"
        drawn.append(_bar(left, max(width - GAP, 0.5), height / top, label))
        left += width
    return _chart(f"{name}: histogram from {bounds[0]} to {bounds[-1]}", drawn)


def bars(items: Sequence[tuple[str, float]], *, name: str) -> Markup:
    """Bars of equal width, one per item."""
    if not items:
        return Markup()
    top = max(value for _, value in items) or 1.0
    width = WIDTH / len(items)
    drawn = [
        _bar(number * width, max(width - GAP, 0.5), max(value, 0) / top, f"{label}: {value:,.10g}")
        for number, (label, value) in enumerate(items)
    ]
    return _chart(f"{name}: {len(items)} bars", drawn)


def line(items: Sequence[tuple[str, float]], *, name: str) -> Markup:
    """A line through values in their order."""
    if len(items) < 2:
        return bars(items, name=name)
    values = [value for _, value in items]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    step = (WIDTH - 4) / (len(items) - 1)
    points = [
        (2 + number * step, HEIGHT - 4 - (value - low) / span * (HEIGHT - 8)) for number, value in enumerate(values)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [
        # A stroke without length: a circle would be stretched together with the chart.
        Markup('<path class="dot" d="M{} {}h0"><title>{}: {}</title></path>').format(
            f"{x:.1f}", f"{y:.1f}", label, f"{value:,.10g}"
        )
        for (x, y), (label, value) in zip(points, items, strict=True)
    ]
    drawn = [Markup('<polyline class="line" points="{}"/>').format(path), *(dots if len(dots) <= 60 else [])]
    return _chart(f"{name}: from {values[0]:,.10g} to {values[-1]:,.10g}", drawn)


def graph(layers: Sequence[Sequence[str]], tables: Sequence[Mapping[str, Any]]) -> Markup:
    """Tables in layers, with lines to each table of `tables` from those that it reads."""
    height = max((len(each) for each in layers), default=1) * ROW
    places = {
        name: (depth * (BOX + SPACE), (number + 0.5) * height / len(layer))
        for depth, layer in enumerate(layers)
        for number, name in enumerate(layer)
    }
    drawn = []
    for table in tables:
        left, at = places[table["table"]]
        for source in table["reads"]:
            begin, above = places[source][0] + BOX, places[source][1]
            middle = (begin + left) / 2
            drawn.append(
                Markup('<path class="line" d="M{} {}C{} {} {} {} {} {}"/>').format(
                    begin, f"{above:.1f}", middle, f"{above:.1f}", middle, f"{at:.1f}", left, f"{at:.1f}"
                )
            )
    own = {table["table"]: table["link"] for table in tables}
    drawn += [
        _box(left, at, name, own.get(name, ""), "own" if name in own else "other")
        for name, (left, at) in places.items()
    ]
    label = f"{len(own)} tables and the {len(places) - len(own)} tables that they are made from"
    width = max(len(layers) * (BOX + SPACE) - SPACE, BOX)
    return Markup('<svg class="flow" role="group" aria-label="{}" viewBox="-1 -1 {} {}">{}</svg>').format(
        label, width + 2, height + 2, Markup("").join(drawn)
    )


def flow(sources: Sequence[tuple[str, str]], name: str, targets: Sequence[tuple[str, str]]) -> Markup:
    """What flows into something, and where it flows to: names with their links, on its left and on its right."""
    count = max(len(sources), len(targets), 1)
    height = count * ROW
    middle = height / 2
    drawn = [_box(BOX + SPACE, middle, name, "", "own")]
    for items, left, joins in (
        (sources, 0, (BOX, BOX + SPACE)),
        (targets, 2 * (BOX + SPACE), (2 * BOX + 2 * SPACE, 2 * BOX + SPACE)),
    ):
        for number, (label, link) in enumerate(items):
            at = (number + 0.5) * height / len(items)
            drawn.append(
                Markup('<path class="line" d="M{} {}C{} {} {} {} {} {}"/>').format(
                    joins[0],
                    f"{at:.1f}",
                    (joins[0] + joins[1]) / 2,
                    f"{at:.1f}",
                    (joins[0] + joins[1]) / 2,
                    f"{middle:.1f}",
                    joins[1],
                    f"{middle:.1f}",
                )
            )
            drawn.append(_box(left, at, label, link, "other"))
    label = f"{name}: made from {len(sources)} tables, used in {len(targets)} tables"
    return Markup('<svg class="flow" role="group" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        label, 3 * BOX + 2 * SPACE, height, Markup("").join(drawn)
    )


def _box(left: float, middle: float, label: str, link: str, kind: str) -> Markup:
    shown = label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
    box = Markup(
        '<rect class="box {}" x="{}" y="{}" width="{}" height="{}" rx="5"/><text x="{}" y="{}">{}<title>{}</title></text>'
    ).format(kind, left, f"{middle - ROW / 2 + 4:.1f}", BOX, ROW - 8, left + 8, f"{middle + 4:.1f}", shown, label)
    return Markup('<a href="{}">{}</a>').format(link, box) if link else box


def share(part: float, *, name: str) -> Markup:
    """A bar that is filled to a share between 0 and 1."""
    filled = max(0.0, min(part, 1.0)) * 100
    return Markup(
        '<svg class="share" role="img" aria-label="{}" viewBox="0 0 100 8" preserveAspectRatio="none">'
        '<rect class="track" width="100" height="8"/><rect class="fill" width="{}" height="8"/></svg>'
    ).format(f"{name}: {part:.1%}", f"{filled:.2f}")


def _bar(left: float, width: float, height: float, label: str) -> Markup:
    tall = max(height * (HEIGHT - 2), 1.0 if height > 0 else 0.0)
    # Pages have hundreds of bars, and `Markup.format` takes ten times as long as this: numbers need no escaping.
    return Markup(  # noqa: S704 - the label is escaped
        f'<rect class="bar" x="{left:.2f}" y="{HEIGHT - tall:.2f}" width="{width:.2f}" height="{tall:.2f}">'
        f"<title>{escape(label)}</title></rect>"
    )


def _chart(label: str, drawn: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(escape(label), WIDTH, HEIGHT, Markup("").join(drawn))
