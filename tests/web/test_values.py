"""Values and distributions as the explorer draws them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from skiway.presentation.tables import duckdb_type, equal_bins, nested_types
from skiway.web import distributions, values

SCRIPT = "<script>alert(1)</script>"


def profile(**facts: Any) -> dict[str, Any]:
    return {"top_values": [], "distinct": None, "quality": {}, "bounds": (), "counts": (), **facts}


def test_ranges_become_bins_of_equal_width_with_the_same_total() -> None:
    assert equal_bins([0.0, 1.0, 9.0], [90, 10], 3, 3.0) == [92.5, 3.75, 3.75]
    assert sum(equal_bins([0.0, 0.0, 0.1, 7.0], [5, 2, 3], 9, 7 / 9)) == pytest.approx(10)


def test_bins_of_integers_and_dates_have_whole_widths() -> None:
    numbers = distributions.bins_of(profile(bounds=("0", "50", "100"), counts=(40, 60)), "INTEGER")
    assert numbers is not None
    assert (numbers.width, sum(numbers.heights)) == (4.0, pytest.approx(100))
    days = distributions.bins_of(profile(bounds=("2026-01-01", "2026-03-01"), counts=(59,)), "DATE")
    assert days is not None
    assert (days.width, days.is_time) == (3 * 86400.0, True)


def test_few_whole_numbers_have_a_bar_each() -> None:
    counted = [{"value": "1", "count": 5}, {"value": "3", "count": 2}]
    found = distributions.bins_of(profile(top_values=counted, distinct=2), "INTEGER")
    assert found is not None
    assert (found.heights, found.is_exact) == ((5.0, 0.0, 2.0), True)
    assert "1: 5" in distributions.small(found, name="n")


@pytest.mark.parametrize("bounds", [(), ("a", "b"), ("nan", "inf")])
def test_what_has_no_places_on_an_axis_is_not_drawn(bounds: tuple[str, ...]) -> None:
    assert distributions.bins_of(profile(bounds=bounds, counts=(1,) if bounds else ()), "VARCHAR") is None


@pytest.mark.parametrize(
    ("bounds", "type_name", "ticks"),
    [
        (("0", "100"), "DOUBLE", ["0", "20", "40", "60", "80", "100"]),
        (("2026-01-10", "2026-05-20"), "DATE", ["Feb 2026", "Mar 2026", "Apr 2026", "May 2026"]),
        (("2000-01-01", "2020-01-01"), "DATE", ["2000", "2005", "2010", "2015", "2020"]),
        (("2026-01-01T08:00:00", "2026-01-01T11:00:00"), "TIMESTAMP", ["08:00", "09:00", "10:00", "11:00"]),
    ],
)
def test_axis_has_round_places(bounds: tuple[str, ...], type_name: str, ticks: list[str]) -> None:
    bins = distributions.bins_of(profile(bounds=bounds, counts=(10,)), type_name)
    assert bins is not None
    texts = re.findall(r'text-anchor="middle">([^<]+)<', distributions.large(bins, name="x"))
    assert texts[: len(ticks)] == ticks


def test_logarithmic_axis_shows_what_is_rare() -> None:
    bins = distributions.Bins(0.0, 1.0, (100_000.0, 1.0), is_time=False, last=2.0)
    linear, log = (
        [
            float(each)
            for each in re.findall(
                r'class="bar".*?height="([^"]+)"', distributions.large(bins, name="x", is_log=is_log)
            )
        ]
        for is_log in (False, True)
    )
    assert linear[1] == 1.0
    assert log[1] > 10


@pytest.mark.parametrize(
    ("bounds", "type_name"),
    [
        (("1000000000000000000", "1000000000000000128"), "BIGINT"),
        (("-1e300", "1e300"), "DOUBLE"),
        (("0", "1e-300"), "DOUBLE"),
        (("0001-01-01", "9999-12-31"), "DATE"),
    ],
)
def test_extreme_ranges_are_drawn(bounds: tuple[str, ...], type_name: str) -> None:
    bins = distributions.bins_of(profile(bounds=bounds, counts=(10,)), type_name)
    assert bins is not None
    assert "<rect" in distributions.large(bins, name="x", is_log=True)
    assert "<rect" in distributions.small(bins, name="x")


def test_far_places_are_on_the_map() -> None:
    text = "LINESTRING (-1e300 0, 1e300 1e9, 5e11 -1e12)"
    assert 'class="way"' in values.plain_map([{"name": "g", "type": "GEOMETRY"}], [[text]])


def test_geometries_are_drawn_and_written() -> None:
    shown = values.shown("POLYGON ((0 0, 2 0, 2 1, 0 0))", "GEOMETRY")
    assert '<path class="area" d="M' in shown
    assert 'Z"/>' in shown
    assert "POLYGON ((0 0, 2 0, 2 1, 0 0))" in shown
    points = values.shapes_of("MULTIPOINT ((1 2), (3 4))")
    assert [(each.kind, each.points) for each in points] == [("POINT", ((1.0, 2.0),)), ("POINT", ((3.0, 4.0),))]
    assert values.shapes_of("POINT EMPTY") == values.shapes_of(SCRIPT) == []
    assert "&lt;script&gt;" in values.shown(SCRIPT, "GEOMETRY")
    line = "LINESTRING (7.9 46.1, 7.95 46.15)"
    drawn = values.plain_map([{"name": "t", "type": "VARCHAR"}, {"name": "g", "type": "GEOMETRY"}], [[SCRIPT, line]])
    assert "map of 1 geometries of g" in drawn
    assert ">7.95<" in drawn
    assert "<script" not in drawn


def test_one_point_is_on_the_map() -> None:
    assert 'class="dot"' in values.plain_map([{"name": "g", "type": "GEOMETRY"}], [["POINT (8 47)"]])


def test_nested_values_are_trees() -> None:
    shown = values.shown({"a": [1, {"b": SCRIPT}], "m": [("k", None)]})
    assert shown.count("<details") == 4
    assert "<script" not in shown
    assert values.shown([]) == "<code>[]</code>"
    assert "900 more" in values.shown(list(range(1000)))


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("long", "BIGINT"),
        ("timestamptz", "TIMESTAMP WITH TIME ZONE"),
        ("decimal(9, 2)", "DECIMAL(9,2)"),
        ("fixed[16]", "BLOB"),
        ({"type": "map", "key": "string", "value": {"type": "list", "element": "int"}}, "MAP(VARCHAR, INTEGER[])"),
        ({"type": "struct", "fields": [{"name": "a b", "type": "uuid"}]}, 'STRUCT("a b" UUID)'),
    ],
)
def test_types_have_the_names_of_duckdb(given: Any, shown: str) -> None:
    assert duckdb_type(given) == shown


def test_nested_fields_have_types() -> None:
    element = {"type": "struct", "fields": [{"name": "b", "type": "long"}]}
    schema = {"fields": [{"name": "a", "type": {"type": "list", "element": element}}]}
    assert nested_types(json.dumps(schema)) == {"a.element": "STRUCT(b BIGINT)", "a.element.b": "BIGINT"}
