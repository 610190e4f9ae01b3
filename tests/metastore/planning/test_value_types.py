"""Planning by values of every ordered type: bounds and literals are compared as values, not as texts."""

from __future__ import annotations

import base64

import pytest

from metastore.planning.test_planner import column, facts, file, predicate, remaining_files
from skiway.metastore.planning.planner import plan
from skiway.model import v1


def b64(*data: bytes) -> list[str]:
    return [base64.b64encode(each).decode() for each in data]


VALUES = {
    "BOOLEAN": ["false", "true"],
    "INT": ["-10", "-9", "9", "10", "100", "9223372036854775807"],
    "FLOAT": ["-Infinity", "-1.5", "0.5", "2.5", "10.0", "Infinity"],
    "DOUBLE": ["-Infinity", "-1.5", "0.5", "2.5", "10.0", "Infinity"],
    "DECIMAL(9,2)": ["-10.00", "-9.00", "9.50", "10.00", "100.00"],
    "DATE": ["0001-01-01", "1969-12-31", "1970-01-01", "2026-02-28", "9999-12-31"],
    "TIME": ["00:00:00", "09:00:00.000001", "10:00:00", "23:59:59.999999"],
    "TIMESTAMP": ["1969-12-31T23:59:59", "1970-01-01T00:00:00", "2026-01-01T00:00:00.000001"],
    "TIMESTAMPTZ": ["1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z"],
    "STRING": ["", "A", "B", "a", "ß", "\U0001f600"],
    "UUID": ["00000000-0000-0000-0000-000000000000", "0f000000-0000-0000-0000-000000000000", "f0000000-0000-0000-0000-000000000000"],
    "BINARY": b64(b"\x00", b"\x0a\xff", b"\x7f", b"\x80", b"\xff\xff"),
}  # fmt: skip


@pytest.mark.parametrize("of", VALUES)
def test_every_value_is_found_in_its_file_and_in_no_other(of: str) -> None:
    values = VALUES[of]
    found = facts(*(file(f"{n}", column(of=of, min=v, max=v, null_count=0, nan_count=0)) for n, v in enumerate(values)))
    names = [str(number) for number in range(len(values))]
    for place, value in enumerate(values):
        assert remaining_files(found, predicate(v1.PO_EQ, value)) == [names[place]]
        assert remaining_files(found, predicate(v1.PO_LT, value)) == names[:place]
        assert remaining_files(found, predicate(v1.PO_LTE, value)) == names[: place + 1]
        assert remaining_files(found, predicate(v1.PO_GT, value)) == names[place + 1 :]
        assert remaining_files(found, predicate(v1.PO_GTE, value)) == names[place:]
        assert remaining_files(found, predicate(v1.PO_NEQ, value)) == names[:place] + names[place + 1 :]
    assert remaining_files(found, predicate(v1.PO_BETWEEN, values[0], values[1])) == names[:2]


@pytest.mark.parametrize("of", [each for each in VALUES if each not in ("STRING", "UUID", "BOOLEAN")])
def test_invalid_and_missing_bounds_prove_nothing(of: str) -> None:
    low, high = VALUES[of][0], VALUES[of][-1]
    found = facts(
        file("low", column(of=of, min=low, max=low, null_count=0, nan_count=0)),
        file("none", column(of=of, null_count=0, nan_count=0)),
        file("invalid", column(of=of, min="?", max="?", null_count=0, nan_count=0)),
        file("no max", column(of=of, min=low, null_count=0, nan_count=0)),
        file("no min", column(of=of, max=high, null_count=0, nan_count=0)),
    )
    assert remaining_files(found, predicate(v1.PO_EQ, high)) == ["none", "invalid", "no max", "no min"]
    assert remaining_files(found, predicate(v1.PO_LT, low)) == ["none", "invalid", "no min"]
    assert remaining_files(found, predicate(v1.PO_EQ, "?")) == ["low", "none", "invalid", "no max", "no min"]


@pytest.mark.parametrize("of", ["FLOAT", "DOUBLE"])
def test_nan_as_a_literal_or_as_a_bound_proves_nothing(of: str) -> None:
    found = facts(
        file("numbers", column(of=of, min="1.0", max="2.0", null_count=0, nan_count=0)),
        file("nan", column(of=of, min="NaN", max="NaN", null_count=0, nan_count=0)),
    )
    assert remaining_files(found, predicate(v1.PO_EQ, "NaN")) == ["numbers", "nan"]
    assert remaining_files(found, predicate(v1.PO_EQ, "5.0")) == ["nan"]


def test_in_lists_are_compared_value_by_value_up_to_64_values() -> None:
    """Longer lists are compared by their minimum and maximum."""
    found = facts(file("gap", column(min="1000", max="1000", null_count=0)))
    for count, kept in ((64, []), (65, ["gap"])):
        values = [*map(str, range(count - 1)), "2000"]
        assert remaining_files(found, predicate(v1.PO_IN, *values)) == kept


@pytest.mark.parametrize(
    ("nulls", "rows", "is_null", "not_null"),
    [(0, 10, [], ["f"]), (1, 10, ["f"], ["f"]), (9, 10, ["f"], ["f"]), (10, 10, ["f"], []), (0, 0, [], ["f"])],
)
def test_null_counts_decide_about_nulls(nulls: int, rows: int, is_null: list[str], not_null: list[str]) -> None:
    found = facts(file("f", column(min="1", max="9", null_count=nulls), row_count=rows))
    assert remaining_files(found, predicate(v1.PO_IS_NULL)) == is_null
    assert remaining_files(found, predicate(v1.PO_IS_NOT_NULL)) == not_null
    assert remaining_files(found, predicate(v1.PO_EQ, "5")) == not_null, "NULL equals nothing"


def test_tasks_have_128_megabytes_and_are_limited() -> None:
    size = 128 * 1024 * 1024
    for total, tasks in ((1, 1), (size, 1), (size + 1, 2), (2 * size, 2), (2 * size + 1, 3)):
        parts = [total // 4, total // 4, total // 4, total - 3 * (total // 4)]
        found = plan(facts(*(file(str(n), size_bytes=part) for n, part in enumerate(parts))))
        assert len(set(found.tasks.tolist())) == tasks
        assert sorted(found.tasks.tolist()) == found.tasks.tolist()
        assert found.bytes == total
    many = facts(*(file(f"{number:05}", size_bytes=1) for number in range(10_002)))
    assert plan(many, tasks=20_000).tasks.max() == 9_999
    assert plan(many, tasks=3).tasks.tolist() == [0] * 3334 + [1] * 3334 + [2] * 3334
    empty = facts(*(file(str(number), size_bytes=0) for number in range(4)))
    assert plan(empty, tasks=2).tasks.tolist() == [0, 0, 1, 1]
    assert plan(empty, tasks=9).tasks.tolist() == [0, 1, 2, 3]
    assert plan(empty).tasks.tolist() == [0, 0, 0, 0]
