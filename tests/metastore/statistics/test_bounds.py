from __future__ import annotations

import doctest

import pytest

from metastore.resource_factory import behavior
from skiway.metastore.statistics import bounds
from skiway.metastore.statistics.bounds import bound, logical_type


@behavior(65)
@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("bool", " TRUE", "true"),
        ("bigint", " -007 ", "-7"),
        ("INT", str(2**80), str(2**80)),
        ("double", "-0.0", "0.0"),
        ("real", "1e3", "1000.0"),
        ("double precision", "nan", "NaN"),
        ("double", "-inf", "-Infinity"),
        ("decimal(10,2)", "1.50", "1.5"),
        ("decimal(10,2)", "100", "100"),
        ("numeric", "1E+2", "100"),
        ("decimal(3,2)", "-0.00", "0"),
        ("date", "2024-02-29", "2024-02-29"),
        ("date", "-1", "1969-12-31"),
        ("time", "01:02:03.5", "01:02:03.500000"),
        ("time(3)", "01:02:03.5", "01:02:03.500"),
        ("timestamp", "2024-01-01 00:00:00", "2024-01-01T00:00:00"),
        ("timestamp(0)", "2024-01-01T00:00:00.9", "2024-01-01T00:00:00"),
        ("timestamptz", "2024-01-01T01:00:00+02:00", "2023-12-31T23:00:00Z"),
        ("timestamp with time zone", "2024-01-01T00:00:00.000001Z", "2024-01-01T00:00:00.000001Z"),
        ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("varchar", " as it is ", " as it is "),
        ("text", "", ""),
        ("blob", "AAE=", "AAE="),
    ],
)
def test_bounds_are_stored_in_canonical_form(kind, text, expected):
    assert bound(logical_type(kind), text).text == expected


@behavior(65)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", "yes"),
        ("int", "1.5"),
        ("double", "one"),
        ("decimal(3,1)", "Infinity"),
        ("decimal(3,1)", "x"),
        ("date", "yesterday"),
        ("timestamp", "1700000000"),
        ("timestamp", "2024-01-01T00:00:00+02:00"),
        ("timestamptz", "2024-01-01T00:00:00"),
        ("time", "12:00:00Z"),
        ("uuid", "x"),
        ("binary", "not base64"),
    ],
)
def test_invalid_bounds_are_rejected(kind, text):
    with pytest.raises(ValueError):  # noqa: PT011 - of every kind
        bound(logical_type(kind), text)


@behavior(65)
@pytest.mark.parametrize(
    ("kind", "lower", "upper"),
    [
        ("int", "9", "10"),
        ("decimal", "-10", "-9.5"),
        ("double", "-Infinity", "0"),
        ("date", "1999-12-31", "2000-01-01"),
        ("timestamptz", "2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00Z"),
        ("binary", "AA==", "/w=="),
        ("string", "a", "b"),
        ("boolean", "false", "true"),
    ],
)
def test_bounds_are_compared_as_values(kind, lower, upper):
    assert bound(logical_type(kind), lower).value < bound(logical_type(kind), upper).value


@pytest.mark.parametrize("text", ["", "point", "decimal(2,3)", "timestamp(9)", "decimal(0,0)"])
def test_unknown_types_are_rejected(text):
    with pytest.raises(ValueError):  # noqa: PT011 - of every kind
        logical_type(text)


def test_nested_types_have_no_order():
    assert not logical_type("array<int>").ordered
    assert not logical_type("JSONB").ordered


def test_docstring_examples_are_correct():
    assert doctest.testmod(bounds).failed == 0
