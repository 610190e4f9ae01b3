"""Charts as SVG, drawn by the server: they need no script, follow the theme, and can be read aloud.

Colors come from the style sheet by class. Text of callers is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup, escape

from skiway.presentation.tables import format_size, numeric_position

WIDTH: Final = 240
HEIGHT: Final = 48
GAP: Final = 1.0
BOX: Final = 220
SPACE: Final = 60
ROW: Final = 36
MAX_LABEL: Final = 30


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
    dots = [_dot(f"{x:.1f},{y:.1f}", *item) for (x, y), item in zip(points, items, strict=True)]
    drawn = [Markup('<polyline class="line" points="{}"/>').format(path), *(dots if len(dots) <= 60 else [])]
    return _chart(f"{name}: from {values[0]:,.10g} to {values[-1]:,.10g}", drawn)


TREND: Final = (420.0, 130.0)


def trend(items: Sequence[tuple[str, float]], *, name: str, is_size: bool = False) -> Markup:
    """Values over time as steps from zero on, because each value holds until the next one, with both axes."""
    times = [numeric_position(label) or 0.0 for label, _ in items]
    width, height = TREND
    top = max(value for _, value in items) or 1.0
    span = (times[-1] - times[0]) or 1.0
    write = format_size if is_size else "{:,.0f}".format
    left, bottom, right = 62.0, height - 24, width - 8

    def at(moment: float, value: float) -> tuple[float, float]:
        return left + (moment - times[0]) / span * (right - left), bottom - value / top * (bottom - 14)

    places = [at(moment, value) for moment, (_, value) in zip(times, items, strict=True)]
    path = f"M{places[0][0]:.1f} {bottom:.1f}V{places[0][1]:.1f}"
    path += "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:]) + f"V{bottom:.1f}Z"
    dots = [_dot(f"{x:.1f},{y:.1f}", *item) for (x, y), item in zip(places, items, strict=True)]
    texts = [
        _text(left - 8, 18, write(top), anchor="end"),
        _text(left - 8, bottom + 4, write(0), anchor="end"),
        _text(left, height - 6, items[0][0][:16]),
        _text(right, height - 6, items[-1][0][:16], anchor="end"),
    ]
    area = Markup('<path class="area" d="{}"/>').format(path)
    title = f"{name}: from {write(items[0][1])} to {write(items[-1][1])}"
    return Markup('<svg class="axes trend" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        title, width, height, Markup("").join([area, *(dots if len(dots) <= 60 else []), *texts])
    )


def _dot(point: str, label: str, value: float) -> Markup:
    """A point of a line: a stroke without length, because a circle would be stretched together with the chart."""
    place = point.replace(",", " ")
    return Markup('<path class="dot" d="M{}h0"><title>{}: {}</title></path>').format(place, label, f"{value:,.10g}")


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}<title>{}</title></text>').format(
        x, y, anchor, _label(text), text
    )


def _label(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


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
            drawn.append(_curve(places[source][0] + BOX, places[source][1], left, at))
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


def _curve(x: float, y: float, end_x: float, end_y: float) -> Markup:
    middle = (x + end_x) / 2
    return Markup('<path class="line" d="M{} {}C{} {} {} {} {} {}"/>').format(
        x, f"{y:.1f}", middle, f"{y:.1f}", middle, f"{end_y:.1f}", end_x, f"{end_y:.1f}"
    )


def _box(left: float, middle: float, label: str, link: str, kind: str) -> Markup:
    box = Markup(
        '<rect class="box {}" x="{}" y="{}" width="{}" height="{}" rx="5"/><text x="{}" y="{}">{}<title>{}</title></text>'
    ).format(
        kind, left, f"{middle - ROW / 2 + 4:.1f}", BOX, ROW - 8, left + 8, f"{middle + 4:.1f}", _label(label), label
    )
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
