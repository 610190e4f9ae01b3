"""Results of queries as people and programs see them."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from skiway.presentation.results import json_values, shown_rows, with_whole_numbers


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("hugeint", [78312, -1, None], "BIGINT"),
        ("hugeint", [2**127 - 1, -(2**127)], "HUGEINT"),
        ("uhugeint", [2**128 - 1, None], "HUGEINT"),
        ("hugeint", [None], "BIGINT"),
    ],
)
def test_sums_of_duckdb_are_numbers(name: str, values: list[int | None], shown: str) -> None:
    stored = [None if each is None else each.to_bytes(16, "little", signed=name == "hugeint") for each in values]
    kind = pa.opaque(pa.binary(16), name, "DuckDB")
    column = pa.ExtensionArray.from_storage(kind, pa.array(stored, pa.binary(16)))
    rows = with_whole_numbers(pa.table({"n": range(len(values)), "total": column}))
    found = shown_rows(rows)
    assert [each["type"] for each in found["columns"]] == ["BIGINT", shown]
    assert [row[1] for row in found["rows"]] == values
    assert [row[0] for row in found["rows"]] == list(range(len(values)))


def test_other_opaque_values_stay_as_they_are() -> None:
    kind = pa.opaque(pa.binary(), "bit", "DuckDB")
    rows = pa.table({"bits": pa.ExtensionArray.from_storage(kind, pa.array([b"x"]))})
    assert with_whole_numbers(rows).equals(rows)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("DATE '-infinity'", "-infinity"),
        ("INTERVAL '1 day'", "1 day"),
        ("'101'::BIT", "101"),
        ("[1::HUGEINT, NULL]", ["1", None]),
        ("{'t': TIMETZ '12:00:00+02'}", {"t": "12:00:00+02"}),
        ("0.1::FLOAT", 0.1),
        ("row(1::HUGEINT)", "(1)"),
    ],
)
def test_values_that_python_lacks_are_text_of_duckdb(value: str, shown: object) -> None:
    with duckdb.connect(config={"arrow_lossless_conversion": "true"}) as database:
        rows = database.sql(f"SELECT {value} AS v, {value} AS v").to_arrow_table()
    assert shown_rows(rows)["rows"] == [[shown, shown]]


def test_decimals_have_no_exponents_in_json() -> None:
    zero, small = Decimal("0E-10"), Decimal("-1E-9")
    shown = json_values({"a": zero, "b": [small, (zero, {"c": zero})], small: 1})
    assert shown == {
        "a": "0.0000000000",
        "b": ["-0.000000001", ["0.0000000000", {"c": "0.0000000000"}]],
        "-0.000000001": 1,
    }
