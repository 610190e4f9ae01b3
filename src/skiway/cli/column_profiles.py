"""What is known of a column: figures, each with the word for how far it can be trusted, and a little picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from skiway.model import v1

__all__ = ["ColumnProfile", "Distinct", "TopValue", "bars", "position"]

BLOCKS: Final = "▁▂▃▄▅▆▇█"
BINS: Final = 16


@dataclass(frozen=True, slots=True)
class Distinct:
    """How many distinct values there are; an estimate lies between its bounds with the confidence told."""

    value: int
    lower: int | None = None
    upper: int | None = None
    confidence: float | None = None

    @classmethod
    def of(cls, ndv: v1.Ndv) -> Distinct | None:
        """As it is stored; None where it is not known."""
        match ndv.WhichOneof("mode"):
            case "exact":
                return cls(ndv.exact)
            case "approx":
                told = ndv.approx
                return cls(
                    round(told.estimate),
                    round(told.confidence_lower) if told.HasField("confidence_lower") else None,
                    round(told.confidence_upper) if told.HasField("confidence_upper") else None,
                    told.confidence_level if told.HasField("confidence_level") else None,
                )
        return None


@dataclass(frozen=True, slots=True)
class TopValue:
    """A frequent value and how often it is there."""

    value: str | None
    count: int


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """A column in one snapshot. `quality` says of each figure: exact, estimate or bound; what is None is unknown."""

    name: str
    type: str
    values: int
    nulls: int | None
    nans: int | None
    distinct: Distinct | None
    min: str | None
    max: str | None
    bounds: tuple[str, ...]
    counts: tuple[int, ...]
    quantiles: dict[str, str]
    top_values: tuple[TopValue, ...]
    avg_width_bytes: float | None
    rows_profiled: int | None
    rows_total: int | None
    quality: dict[str, str]
    errors: str | None

    @classmethod
    def of(cls, stats: v1.ColumnStats, type_name: str) -> ColumnProfile:
        """What the metastore keeps of it."""
        noted = stats.properties
        return cls(
            stats.column_name,
            type_name,
            stats.value_count,
            stats.null_count if stats.HasField("null_count") else None,
            stats.nan_count if stats.HasField("nan_count") else None,
            Distinct.of(stats.ndv),
            stats.min if stats.HasField("min") else None,
            stats.max if stats.HasField("max") else None,
            tuple(stats.histogram.bounds),
            tuple(stats.histogram.counts),
            json.loads(noted.get("quantiles", "{}")),
            tuple(TopValue(value, count) for value, count in json.loads(noted.get("top_values", "[]"))),
            float(noted["avg_width_bytes"]) if "avg_width_bytes" in noted else None,
            int(noted["rows.profiled"]) if "rows.profiled" in noted else None,
            int(noted["rows.total"]) if "rows.total" in noted else None,
            _quality(noted),
            noted.get("errors"),
        )

    @classmethod
    def of_files(cls, name: str, type_name: str, parts: Sequence[v1.ColumnStats]) -> ColumnProfile:
        """What the statistics of all files of a snapshot say together, where it was not profiled: bounds, no more."""
        nulls = [part.null_count for part in parts if part.HasField("null_count")]
        lows = [part.min for part in parts if part.HasField("min")]
        highs = [part.max for part in parts if part.HasField("max")]
        filled = [part for part in parts if not part.HasField("null_count") or part.null_count < part.value_count]
        return cls(
            name=name,
            type=type_name,
            values=sum(part.value_count for part in parts),
            nulls=sum(nulls) if len(nulls) == len(parts) else None,
            nans=None,
            distinct=None,
            min=min(lows, key=_order) if lows and len(lows) >= len(filled) else None,
            max=max(highs, key=_order) if highs and len(highs) >= len(filled) else None,
            bounds=(),
            counts=(),
            quantiles={},
            top_values=(),
            avg_width_bytes=None,
            rows_profiled=0,
            rows_total=None,
            quality=dict.fromkeys(("max", "min", "null_count", "value_count"), "bound"),
            errors=None,
        )

    @property
    def null_share(self) -> float | None:
        """Which part of the values is NULL."""
        return self.nulls / self.values if self.nulls is not None and self.values else None

    def picture(self, bins: int = BINS) -> str:
        """The histogram as blocks, in bins of equal width from minimum to maximum; "" where there is none."""
        places = [position(bound) for bound in self.bounds]
        known = [place for place in places if place is not None]
        return bars(known, self.counts, bins) if known and len(known) == len(self.counts) + 1 else ""


def _quality(noted: Mapping[str, str]) -> dict[str, str]:
    words = {key.removeprefix("quality."): word for key, word in noted.items() if key.startswith("quality.")}
    return dict(sorted(words.items()))


def _order(text: str) -> tuple[int, Decimal, str]:
    """Numbers by size, all else as texts: moments are written so that this is their order, too."""
    try:
        return 0, Decimal(text), ""
    except InvalidOperation:
        return 1, Decimal(0), text


def bars(places: Sequence[float], counts: Sequence[int], bins: int) -> str:
    """Counts between places, spread evenly over each stretch, as `bins` blocks; a bin with nothing in it is blank.

    >>> bars([0.0, 1.0, 2.0], [10, 30], 4)
    '▃▃██'
    """
    low, high = places[0], places[-1]
    if high <= low:
        return BLOCKS[-1]
    width = (high - low) / bins
    heights = [0.0] * bins
    for start, end, count in zip(places, places[1:], counts, strict=False):
        for number in range(bins):
            left, right = low + number * width, low + (number + 1) * width
            if end > start:
                heights[number] += count * max(0.0, min(end, right) - max(start, left)) / (end - start)
            elif left <= start < right or (start == high and number == bins - 1):
                heights[number] += count
    top = max(heights)
    return "".join(BLOCKS[min(int(height / top * 8), 7)] if height > 0 else " " for height in heights)


def position(text: str) -> float | None:
    """Where a bound lies on the line of numbers, or of moments."""
    try:
        return float(text)
    except ValueError:
        pass
    for kind in (datetime.fromisoformat, time.fromisoformat):
        try:
            return _seconds(kind(text))
        except ValueError:
            continue
    return None


def _seconds(moment: datetime | time) -> float:
    if isinstance(moment, datetime):
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return datetime.combine(date(1970, 1, 1), moment.replace(tzinfo=UTC)).timestamp()
