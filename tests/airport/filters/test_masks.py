"""Masks keep the same rows as the pyarrow expressions that they replace."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from airport.filters.recorded import WITH_FILTER, random_rows, special_rows
from skiway.airport import filters
from skiway.airport.filters.arrow import row_mask

SCHEMA = special_rows(1).schema
PAIRS = [(each.predicate, filters.to_arrow(each.filter, SCHEMA), row_mask(each.filter, SCHEMA)) for each in WITH_FILTER]


def check(rows: pa.Table) -> None:
    """Compare every recorded predicate on these rows."""
    batch = rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], SCHEMA)
    for predicate, expression, mask in PAIRS:
        if expression is not None and mask is not None:
            expected = rows.filter(expression)["rowid"].to_pylist()
            assert batch.filter(mask(batch)).column("rowid").to_pylist() == expected, predicate


def test_both_express_the_same_predicates() -> None:
    different = [predicate for predicate, expression, mask in PAIRS if (expression is None) != (mask is None)]
    assert not different
    assert sum(mask is not None for _, _, mask in PAIRS) > 100


def test_special_rows() -> None:
    check(special_rows())


@given(random_rows())
@settings(max_examples=settings.default.max_examples // 10)
def test_random_rows(rows: pa.Table) -> None:
    check(rows)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", None, "y"]).dictionary_encode(),
        pa.array(["x", None, "y"], pa.large_string()),
    ],
    ids=["dictionary", "large_string"],
)
def test_other_layouts_of_text(column: pa.Array) -> None:
    rows = pa.record_batch({"s": column})
    sent = next(each.filter for each in WITH_FILTER if each.predicate == "s = 'x'")
    mask, expression = row_mask(sent, rows.schema), filters.to_arrow(sent, rows.schema)
    assert mask is not None
    assert expression is not None
    assert rows.filter(mask(rows)).num_rows == rows.filter(expression).num_rows == 1
