"""How the values of a column are distributed, as SVG: bins of equal width or frequent values, small or with axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from markupsafe import Markup, escape

from skiway.presentation.tables import equal_bins, numeric_position

BINS: Final = 28
MAX_DISCRETE: Final = 20
SMALL: Final = (220.0, 40.0)
LARGE: Final = (760.0, 240.0)
LEFT, BOTTOM, TOP, RIGHT = 64.0, 26.0, 22.0, 16.0
STEPS_S: Final = (1, 5, 15, 60, 300, 900, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 1209600)
MAX_TICKS: Final = 7
FIRST, LAST = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (1, 9999))
"""The first and the last moment on an axis."""


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of equal width from `low` on, and how many values are in each. `is_exact` if each bin is one value."""

    low: float
    width: float
    heights: tuple[float, ...]
    is_time: bool
    last: float
    """The greatest value, where the last bin may end later."""
    is_exact: bool = False

    @property
    def high(self) -> float:
        return self.low + self.width * len(self.heights)

    def label(self, number: int) -> str:
        """What is in a bin, for people."""
        start, count = self.low + number * self.width, self.heights[number]
        if self.is_exact:
            return f"{_text(start + self.width / 2, self)}: {count:,.0f}"
        return f"{_text(start, self)} to {_text(start + self.width, self)}: {'about ' if count % 1 else ''}{count:,.0f}"


def bins_of(profile: Mapping[str, Any], type_name: str, bins: int = BINS) -> Bins | None:
    """The distribution of a column of numbers or times; None for others, and if it is not known."""
    values = profile["top_values"]
    if profile["distinct"] and len(values) >= profile["distinct"] and profile["quality"].get("ndv") != "sample":
        found = _discrete(values)
        if found is not None:
            return found
    positions = [each for each in map(numeric_position, profile["bounds"]) if each is not None and math.isfinite(each)]
    counts = profile["counts"]
    if not counts or len(positions) != len(counts) + 1:
        return None
    is_time = not _is_number(profile["bounds"][0])
    span = positions[-1] - positions[0]
    if span <= 0:
        return Bins(positions[0] - 0.5, 1.0, (float(sum(counts)),), is_time, positions[0], is_exact=True)
    unit = 86400.0 if type_name == "DATE" else 1.0 if type_name.endswith(("INT", "INTEGER")) else 0.0
    width = max(math.ceil(span / bins / unit), 1) * unit if unit else span / bins
    number = min(int(span / width) + 1, bins + 1) if unit else bins
    return Bins(positions[0], width, tuple(equal_bins(positions, counts, number, width)), is_time, positions[-1])


def _discrete(values: Sequence[Mapping[str, Any]]) -> Bins | None:
    """One bar per value, if all values are whole numbers close to each other."""
    known = {str(each["value"]): each["count"] for each in values if each["value"] is not None}
    if not known or not all(text.lstrip("-").isdecimal() and len(text) < 15 for text in known):
        return None
    numbers = {int(text): count for text, count in known.items()}
    low, high = min(numbers), max(numbers)
    if high - low >= MAX_DISCRETE:
        return None
    heights = tuple(float(numbers.get(each, 0)) for each in range(low, high + 1))
    return Bins(low - 0.5, 1.0, heights, is_time=False, last=float(high), is_exact=True)


def small(bins: Bins, *, name: str) -> Markup:
    """A histogram without axes, for a row of a table. Its ends are written below it."""
    width, height = SMALL
    step, top = width / len(bins.heights), max(bins.heights) or 1.0
    drawn = [
        _bar(number * step, height, max(step - 1, 0.8), count / top * (height - 1), bins.label(number))
        for number, count in enumerate(bins.heights)
        if count
    ]
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(_title(name, bins), width, height, Markup("").join(drawn))


def large(bins: Bins, *, name: str, is_log: bool = False, marks: Mapping[str, float] | None = None) -> Markup:
    """A histogram with axes. `marks` are lines at some values, with their names; a logarithmic axis shows rare values."""
    width, height = LARGE
    inner, tall, top = width - LEFT - RIGHT, height - BOTTOM - TOP, max(bins.heights) or 1.0
    scale = inner / (bins.high - bins.low)

    def y_of(count: float) -> float:
        share = math.log10(1 + count) / math.log10(1 + top) if is_log else count / top
        return height - BOTTOM - share * tall

    drawn = []
    for count in _counts(top, is_log=is_log):
        y = y_of(count)
        drawn.append(_line(LEFT, y, width - RIGHT, y))
        drawn.append(_label(LEFT - 8, y + 4, f"{count:,.0f}", "end"))
    step = bins.width * scale
    for number, count in enumerate(bins.heights):
        if count:
            y = y_of(count)
            drawn.append(
                _bar(
                    LEFT + number * step + 0.5,
                    height - BOTTOM,
                    max(step - 1, 0.8),
                    height - BOTTOM - y,
                    bins.label(number),
                )
            )
    for place, text in _ticks(bins):
        x = LEFT + (place - bins.low) * scale
        drawn.append(_line(x, height - BOTTOM, x, height - BOTTOM + 4))
        drawn.append(_label(x, height - 7, text, "middle"))
    for text, place in (marks or {}).items():
        x = LEFT + (place - bins.low) * scale
        drawn.append(Markup('<path class="mark" d="M{} {}V{}"/>').format(f"{x:.1f}", TOP, height - BOTTOM))
        drawn.append(_label(x, TOP - 8, text, "middle"))
    return Markup('<svg class="axes" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        _title(name, bins), width, height, Markup("").join(drawn)
    )


def _title(name: str, bins: Bins) -> str:
    first = bins.low + (bins.width / 2 if bins.is_exact else 0)
    return f"{name}: histogram from {_text(first, bins)} to {_text(bins.last, bins)}"


def _text(place: float, bins: Bins) -> str:
    """A place on the axis as its value."""
    if not bins.is_time:
        return number_text(place)
    return _moment(place).strftime("%Y-%m-%d %H:%M" if bins.width < 86400 else "%Y-%m-%d")


def number_text(value: float) -> str:
    """A number for people: with a comma after the thousands, and without digits that mean nothing."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _counts(top: float, *, is_log: bool) -> Iterator[float]:
    if is_log:
        yield from (10.0**power for power in range(int(math.log10(max(top, 1))) + 1))
        return
    step = _step(top, 4)
    yield from (number * step for number in range(int(top / step) + 1))


def _step(span: float, most: int) -> float:
    """A round number that is at most `most` times in a span."""
    power = 10 ** math.floor(math.log10(span / most)) if span > 0 else 1.0
    return next((each * power for each in (1, 2, 2.5, 5, 10) if span / (each * power) <= most), 10 * power)


def _ticks(bins: Bins) -> Iterator[tuple[float, str]]:
    """Round places on the axis, with their texts."""
    span = bins.high - bins.low
    if bins.is_time:
        yield from _time_ticks(bins.low, bins.high, span)
        return
    step = max(_step(span, MAX_TICKS), 1.0 if bins.is_exact else 0.0)
    first = math.ceil(bins.low / step)
    for number in range(first, first + 2 * MAX_TICKS):
        if number * step <= bins.high:
            yield number * step, number_text(round(number * step, 10))


def _time_ticks(low: float, high: float, span: float) -> Iterator[tuple[float, str]]:
    step = next((each for each in STEPS_S if span / each <= MAX_TICKS), 0)
    if step:
        form = "%H:%M:%S" if step < 60 else "%H:%M" if span <= 86400 else "%d %b %H:%M" if step < 86400 else "%d %b"
        for number in range(math.ceil(low / step), math.floor(high / step) + 1):
            yield float(number * step), _moment(number * step).strftime(form)
        return
    months = next((each for each in (1, 3, 6, 12, 24, 60, 120, 600, 1200) if span / 2.63e6 / each <= MAX_TICKS), 24000)
    first = _moment(low)
    number = max((first.year * 12 + first.month - 1) // months * months, 12)
    while number // 12 < 9999:
        at = datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)
        place = (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
        if place > high:
            return
        if place >= low:
            yield place, at.strftime("%Y" if months >= 12 else "%b %Y")
        number += months


def _moment(place: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=min(max(place, FIRST), LAST))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _bar(left: float, bottom: float, width: float, tall: float, label: str) -> Markup:
    tall = max(tall, 1.0)
    # Pages have hundreds of bars, and `Markup.format` takes ten times as long as this: numbers need no escaping.
    return Markup(  # noqa: S704 - the label is escaped
        f'<rect class="bar" x="{left:.2f}" y="{bottom - tall:.2f}" width="{width:.2f}" height="{tall:.2f}">'
        f"<title>{escape(label)}</title></rect>"
    )


def _line(x: float, y: float, end_x: float, end_y: float) -> Markup:
    return Markup('<path class="rule" d="M{} {}L{} {}"/>').format(*(f"{each:.1f}" for each in (x, y, end_x, end_y)))


def _label(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(f"{x:.1f}", f"{y:.1f}", anchor, text)
