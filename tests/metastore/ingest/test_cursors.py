"""Which rows of a database are new, and when its cursor column went backward."""

from __future__ import annotations

import pytest

from metastore.resource_factory import expect_error
from skiway.errors import PreconditionFailed
from skiway.metastore.ingest.cursors import CursorFacts, CursorRange, cursor_range

LOADED = {"kind": "cursor", "column": "id", "value": "20", "rows": 2}


@pytest.mark.parametrize(
    ("position", "facts", "expected"),
    [
        (None, CursorFacts(None), None),
        (None, CursorFacts("20"), CursorRange("id", None, "20")),
        (LOADED, CursorFacts("20", known=2), None),
        (LOADED, CursorFacts("30", known=2), CursorRange("id", "20", "30", 2)),
        (LOADED, CursorFacts("30", known=1), CursorRange("id", "20", "30", 1)),
    ],
    ids=["empty", "first", "same", "new", "deleted"],
)
def test_rows_above_the_position_are_loaded(position, facts, expected):
    assert cursor_range("t", "id", position, facts) == expected


def test_position_counts_the_rows_up_to_it():
    assert CursorRange("id", "20", "30", 1).position(5) == {"kind": "cursor", "column": "id", "value": "30", "rows": 6}


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        (CursorFacts("30", known=3), "ingest.cursor.backward"),
        (CursorFacts("10", known=2, is_lower=True), "ingest.cursor.backward"),
        (CursorFacts(None), "ingest.cursor.backward"),
        (CursorFacts("30", known=2, without=1), "ingest.cursor.null"),
    ],
    ids=["added below", "lower", "empty", "null"],
)
def test_cursor_that_goes_backward_is_an_error(facts, key):
    with expect_error(PreconditionFailed, key, column="id"):
        cursor_range("t", "id", LOADED, facts)


@pytest.mark.parametrize("position", [{**LOADED, "column": "at"}, {"kind": "all"}])
def test_other_mode_or_column_needs_a_full_load(position):
    with expect_error(PreconditionFailed, "ingest.position.other"):
        cursor_range("t", "id", position, CursorFacts("30"))
