"""Templates and their filters. All text is escaped; only charts are markup."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from skiway.presentation.results import json_values
from skiway.presentation.tables import format_size
from skiway.web import charts, distributions, values
from skiway.web.graphs import network
from skiway.web.navigation import GROUPS

AGES: Final = ((60, "s"), (60, "min"), (24, "h"), (365, "d"))


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """A template with its values."""
    return _environment().get_template(template).render(values)


def json_text(value: Any) -> str:
    """The data of a page as JSON."""
    return json.dumps(json_values(value), indent=2, ensure_ascii=False) + "\n"


def path_to(kind: str, *names: str) -> str:
    """The path of a page: each name is a segment.

    >>> path_to("tables", "lake", "sales", "a/b")
    '/tables/lake/sales/a%2Fb'
    """
    path = "/".join(["", kind, *(quote(name, safe="") for name in names)])
    return f"{path[:-5]}%2Ejson" if path.endswith(".json") else path  # the suffix would mean the data of the page


def icon(name: str) -> Markup:
    """One of the icons in `static/icons-1.33.0.svg`, as decoration of a text next to it."""
    return Markup('<svg class="icon" aria-hidden="true"><use href="/static/icons-1.33.0.svg#{}"/></svg>').format(name)


def containers(path: Sequence[str]) -> list[tuple[str, str]]:
    """The names and paths of what contains an object, from its catalog on."""
    return [(name, path_to("catalogs", *path[:depth])) for depth, name in enumerate(path[:-1], start=1)]


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("skiway.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(size=_size, count=_count, when=_when, age=_age, percent=_percent, pairs=_pairs, lines=lines)
    made.filters.update(cell=values.cell, shown=values.shown, is_numeric=values.is_numeric)
    made.globals.update(charts=charts, distributions=distributions, network=network, plain_map=values.plain_map)
    made.globals.update(path_to=path_to, containers=containers, groups=GROUPS, icon=icon)
    return made


def _pairs(items: Sequence[Mapping[str, Any]], label: str, value: str) -> list[tuple[str, float]]:
    """The points of a chart. Items without a value are left out."""
    return [(str(each[label]), float(each[value])) for each in items if each[value] is not None]


def lines(text: str) -> list[dict[str, Any]]:
    """The lines of a file with their numbers."""
    return [{"number": number, "text": line} for number, line in enumerate(text.splitlines(), 1)]


def _size(value: float | None) -> str:
    return "–" if value is None else format_size(value)


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    if value is None:
        return "–"
    return "0 %" if value == 0 else "<0.1 %" if value < 0.001 else f"{value:.1%}".replace("%", " %")


def _when(value: datetime | str | None) -> str:
    """A moment, to the second, in UTC."""
    if not value:
        return "–"
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@pass_context
def _age(context: Context, value: datetime | None) -> str:
    """How long ago a moment was, in its largest unit."""
    if not value:
        return "–"
    left = max(0.0, (context["shell"]["now"] - value).total_seconds())
    for size, unit in AGES:
        if left < size or unit == AGES[-1][1]:
            return f"{left:.0f} {unit} ago"
        left /= size
    raise AssertionError
