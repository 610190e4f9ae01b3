"""The graph of a lineage as SVG: boxes with their columns in layers, and lines between tables and between columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

BOX: Final = 184.0
SPACE: Final = 72.0
HEAD: Final = 40.0
ROW: Final = 19.0
GAP: Final = 18.0
MAX_COLUMNS: Final = 14
MAX_LABEL: Final = 24


def network(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> Markup:
    """The nodes in their layers, from left to right. Lines and columns have ids, so that a script can follow them."""
    columns = {each["id"]: _columns_of(each["id"], edges) for each in nodes}
    layers = sorted({each["layer"] for each in nodes})
    tall = {name: HEAD + ROW * len(found) + (8 if found else 0) for name, found in columns.items()}
    stacks = [[each for each in nodes if each["layer"] == layer] for layer in layers]
    height = max(sum(tall[each["id"]] + GAP for each in stack) - GAP for stack in stacks)
    places: dict[str, tuple[float, float]] = {}
    for number, stack in enumerate(stacks):
        top = (height - sum(tall[each["id"]] + GAP for each in stack) + GAP) / 2
        for each in stack:
            places[each["id"]] = (number * (BOX + SPACE), top)
            top += tall[each["id"]] + GAP
    lines = [line for edge in edges for line in _lines(edge, places, columns)]
    boxes = [_box(each, *places[each["id"]], tall[each["id"]], columns[each["id"]]) for each in nodes]
    width = len(layers) * (BOX + SPACE) - SPACE
    return Markup(
        '<svg class="network" role="group" aria-label="{}" width="{}" height="{}" viewBox="-2 -2 {} {}">{}{}</svg>'
    ).format(
        f"{len(nodes)} objects and {len(edges)} connections",
        round(width + 4),
        round(height + 4),
        width + 4,
        height + 4,
        Markup("").join(lines),
        Markup("").join(boxes),
    )


def _columns_of(name: str, edges: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of a node that lines begin or end at."""
    found = [source for edge in edges if edge["from"] == name for source, _ in edge["columns"]]
    found += [column for edge in edges if edge["to"] == name for _, column in edge["columns"]]
    return list(dict.fromkeys(found))[:MAX_COLUMNS]


def _lines(
    edge: Mapping[str, Any], places: Mapping[str, tuple[float, float]], columns: Mapping[str, list[str]]
) -> list[Markup]:
    start, end = edge["from"], edge["to"]
    (left, top), (right, bottom) = places[start], places[end]
    found = [_curve(left + BOX, top + HEAD / 2, right, bottom + HEAD / 2, start, end, "line")]
    for source, target in edge["columns"]:
        if source in columns[start] and target in columns[end]:
            y = top + HEAD + ROW * (columns[start].index(source) + 0.5)
            end_y = bottom + HEAD + ROW * (columns[end].index(target) + 0.5)
            found.append(_curve(left + BOX, y, right, end_y, f"{start}/{source}", f"{end}/{target}", "line column"))
    return found


def _curve(x: float, y: float, end_x: float, end_y: float, start: str, end: str, kind: str) -> Markup:
    middle = (x + end_x) / 2
    return Markup('<path class="{}" data-from="{}" data-to="{}" d="M{} {}C{} {} {} {} {} {}"/>').format(
        kind, start, end, *(f"{each:.1f}" for each in (x, y, middle, y, middle, end_y, end_x, end_y))
    )


def _box(node: Mapping[str, Any], left: float, top: float, tall: float, columns: Sequence[str]) -> Markup:
    texts = [
        Markup('<text class="column" tabindex="0" data-node="{}" x="{}" y="{}">{}</text>').format(
            f"{node['id']}/{name}", left + 12, f"{top + HEAD + ROW * (number + 0.5) + 4:.1f}", _short(name)
        )
        for number, name in enumerate(columns)
    ]
    return Markup(
        '<g data-node="{0}"><rect class="box {1}" x="{2}" y="{3}" width="{4}" height="{5}" rx="7"/>'
        '<a href="{6}" data-node="{0}"><title>{0}</title><text class="name" x="{7}" y="{8}">{9}</text>'
        '<text class="place" x="{7}" y="{10}">{11}</text></a>{12}</g>'
    ).format(
        node["id"],
        "own" if node["is_here"] else node["kind"],
        left,
        f"{top:.1f}",
        BOX,
        f"{tall:.1f}",
        node["link"],
        left + 12,
        f"{top + 17:.1f}",
        _short(node["name"]),
        f"{top + 32:.1f}",
        _short(f"{node['kind']} {node['place']}".strip()),
        Markup("").join(texts),
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
