"""Values in cells: geometries as shapes on a plain map and as WKT, nested values as trees, everything else as text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from markupsafe import Markup

from skiway.presentation.results import json_values

MAX_CELL: Final = 200
MAX_MEMBERS: Final = 100
MAX_WKT: Final = 2000
MAX_POINTS: Final = 20_000
_PARTS: Final = re.compile(r"(POINT|LINESTRING|POLYGON)|\(([^()]+)\)")
NUMERIC: Final = frozenset(
    f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
) | {"FLOAT", "DOUBLE"}
Point = tuple[float, float]


def cell(value: Any) -> str:
    """A value of a row as text, shortened."""
    if isinstance(value, bytes):
        text = value.hex(" ")
    elif isinstance(value, Decimal):
        text = format(value, "f")
    elif isinstance(value, (Mapping, list, tuple)):
        text = json.dumps(json_values(value), ensure_ascii=False)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def is_numeric(type_name: str) -> bool:
    """Whether values of a type of DuckDB are numbers, which are aligned at the right."""
    return type_name in NUMERIC or (type_name.startswith("DECIMAL(") and type_name.endswith(")"))


def shown(value: Any, type_name: str = "") -> Markup:
    """A value as markup."""
    if value is None:
        return Markup('<span class="null">NULL</span>')
    if type_name.startswith("GEOMETRY") and isinstance(value, str):
        return _geometry(value)
    if isinstance(value, (Mapping, list, tuple)):
        return _tree(value)
    return Markup("{}").format(cell(value))


def _tree(value: Any) -> Markup:
    """A nested value that can be opened, part by part."""
    if not isinstance(value, (Mapping, list, tuple)):
        return shown(value)
    is_map = isinstance(value, list) and value and all(isinstance(each, tuple) and len(each) == 2 for each in value)
    parts = list(value.items()) if isinstance(value, Mapping) else value if is_map else list(enumerate(value, start=1))
    if not parts:
        return Markup("<code>{}</code>").format("{}" if isinstance(value, Mapping) else "[]")
    members = Markup("").join(
        Markup("<li><b>{}</b> {}</li>").format(cell(name), _tree(part)) for name, part in parts[:MAX_MEMBERS]
    )
    more = Markup("<li>… {} more</li>").format(len(parts) - MAX_MEMBERS) if len(parts) > MAX_MEMBERS else ""
    return Markup("<details class=nested><summary>{}</summary><ul>{}{}</ul></details>").format(
        cell(value)[:60], members, more
    )


# --- geometries -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """A geometry as lists of points. Areas are closed, and single points are dots."""

    kind: str
    points: tuple[Point, ...]


def shapes_of(text: str) -> list[Shape]:
    """The shapes in a WKT text; none if it is empty, or no WKT."""
    found, kind = [], ""
    for word, inside in _PARTS.findall(text):
        if word:
            kind = word
            continue
        try:
            points = tuple((float(x), float(y)) for x, y, *_ in (each.split() for each in inside.split(",")))
        except ValueError:
            continue
        if all(math.isfinite(each) for point in points for each in point):
            found.append(Shape(kind, points))
    return found


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the points of some shapes are in a picture. Degrees are narrower in the north, so the map is about true to shape."""

    left: float
    top: float
    scale: float
    squeeze: float
    pad_x: float
    pad_y: float

    @classmethod
    def around(cls, shapes: Sequence[Shape], width: float, height: float, margin: float) -> Frame:
        """The frame in which all shapes fit into a picture of this size."""
        xs = [x for shape in shapes for x, _ in shape.points]
        ys = [y for shape in shapes for _, y in shape.points]
        left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)
        is_degrees = left >= -180 and right <= 180 and bottom >= -90 and top <= 90
        squeeze = max(math.cos(math.radians((bottom + top) / 2)), 0.05) if is_degrees else 1.0
        wide, tall = (right - left) * squeeze, top - bottom
        scale = min(
            (width - 2 * margin) / wide if wide else math.inf, (height - 2 * margin) / tall if tall else math.inf
        )
        scale = scale if math.isfinite(scale) else 1.0
        return cls(left, top, scale, squeeze, (width - wide * scale) / 2, (height - tall * scale) / 2)

    def place(self, point: Point) -> Point:
        """Where a point is."""
        return self.pad_x + (point[0] - self.left) * self.squeeze * self.scale, self.pad_y + (
            self.top - point[1]
        ) * self.scale


def _drawn(shapes: Iterable[Shape], frame: Frame) -> Iterator[Markup]:
    for shape in shapes:
        places = [frame.place(each) for each in shape.points]
        if shape.kind == "POINT":
            yield from (
                Markup('<circle class="dot" cx="{}" cy="{}" r="3"/>').format(f"{x:.1f}", f"{y:.1f}") for x, y in places
            )
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places) + ("Z" if shape.kind == "POLYGON" else "")
        yield Markup('<path class="{}" d="{}"/>').format("area" if shape.kind == "POLYGON" else "way", path)


def _geometry(text: str) -> Markup:
    """A geometry as a small picture, and its WKT."""
    shapes = shapes_of(text)
    points = sum(len(each.points) for each in shapes)
    kind = text.partition("(")[0].strip() or "GEOMETRY"
    picture = Markup("")
    if shapes and points <= MAX_POINTS:
        frame = Frame.around(shapes, 44, 28, 4)
        picture = Markup('<svg class="shape" aria-hidden="true" viewBox="0 0 44 28">{}</svg>').format(
            Markup("").join(_drawn(shapes, frame))
        )
    wkt = text if len(text) <= MAX_WKT else f"{text[:MAX_WKT]}…"
    return Markup(
        '<details class="nested geometry"><summary>{}{} <small>{} {}</small></summary><code>{}</code></details>'
    ).format(picture, kind.title(), f"{points:,}", "point" if points == 1 else "points", wkt)


WIDTH: Final = 760.0
HEIGHT: Final = 340.0


def plain_map(columns: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[Any]]) -> Markup:
    """The geometries of some rows on a plain map with coordinates; empty if there are none, or too many points."""
    place = next((number for number, each in enumerate(columns) if each["type"].startswith("GEOMETRY")), None)
    if place is None:
        return Markup("")
    label = next((number for number, each in enumerate(columns) if each["type"] == "VARCHAR"), None)
    items = [
        (shapes_of(row[place]), row[label] if label is not None else "") for row in rows if isinstance(row[place], str)
    ]
    every = [shape for shapes, _ in items for shape in shapes]
    if not every or sum(len(each.points) for each in every) > MAX_POINTS:
        return Markup("")
    frame = Frame.around(every, WIDTH, HEIGHT, 28)
    drawn = [
        Markup("<g><title>{}</title>{}</g>").format(name, Markup("").join(_drawn(shapes, frame)))
        for shapes, name in items
        if shapes
    ]
    return Markup('<svg class="axes map" role="img" aria-label="{}" viewBox="0 0 {} {}">{}{}</svg>').format(
        f"map of {len(drawn)} geometries of {columns[place]['name']}",
        WIDTH,
        HEIGHT,
        Markup("").join(_graticule(frame)),
        Markup("").join(drawn),
    )


def _graticule(frame: Frame) -> Iterator[Markup]:
    """Lines at round coordinates."""
    for is_x, size, pad in ((True, WIDTH, frame.pad_x), (False, HEIGHT, frame.pad_y)):
        unit = frame.scale * (frame.squeeze if is_x else 1.0)
        if not 1e-9 < unit < 1e9:
            return
        first = frame.left - pad / unit if is_x else frame.top + pad / unit - size / unit
        step = next(
            part * 10.0**power for power in range(-9, 13) for part in (1, 2, 5) if part * 10.0**power * unit >= 90
        )
        for number in range(math.ceil(first / step), math.floor((first + size / unit) / step) + 1):
            x, y = frame.place((number * step, number * step))
            text = f"{round(number * step, 9):.10g}"
            line = Markup('<path class="rule" d="M{} {}{}{}"/><text x="{}" y="{}">{}</text>')
            ends = (x, 0, "V", HEIGHT, x + 4, HEIGHT - 5, text) if is_x else (0, y, "H", WIDTH, 4, y - 4, text)
            yield line.format(*(f"{each:.1f}" if isinstance(each, float) else each for each in ends))
