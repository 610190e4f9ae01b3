"""Which rows of a database are new, and when its cursor column went backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metastore.resource_factory import expect_error
from skiway.errors import PreconditionFailed
from skiway.metastore.ingest.cursors import (
    OVERLAP_S,
    CursorFacts,
    CursorRange,
    Transactions,
    cursor_range,
    overlap_starts,
)
from skiway.metastore.ingest.settings import CopyMode

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
    found = cursor_range("t", "id", position, facts, CopyMode.APPEND)
    assert (None if found is None else replace(found, more={})) == expected


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
        cursor_range("t", "id", LOADED, facts, CopyMode.APPEND)


@pytest.mark.parametrize("position", [{**LOADED, "column": "at"}, {"kind": "all"}])
def test_other_mode_or_column_needs_a_full_load(position):
    with expect_error(PreconditionFailed, "ingest.position.other"):
        cursor_range("t", "id", position, CursorFacts("30"), CopyMode.APPEND)


# --- rows that commit late ----------------------------------------------------------------------------------------------

SEEN = {**LOADED, "transaction": 100, "pending": "0:0"}


@pytest.mark.parametrize(
    ("facts", "since"),
    [
        (CursorFacts("20", 2, transactions=Transactions(105, 100, 0, "0:0", "0:0")), ...),
        (CursorFacts("20", 3, transactions=Transactions(105, 100, 1, "0:0", "1:102")), 100),
        (CursorFacts("30", 2, transactions=Transactions(105, 100, 0, "1:103", "1:103")), None),
        (
            CursorFacts("30", 2, transactions=Transactions(105, 100, 1, "0:0", "2:205")),
            100,
        ),  # a row was deleted as well
        (CursorFacts("30", 2, transactions=Transactions(9, 0, 2, "0:0", "2:11")), 0),
    ],
    ids=["same", "late", "new", "late and deleted", "restored"],
)
def test_rows_of_transactions_that_were_running_are_read_again(facts, since):
    found = cursor_range("t", "id", SEEN, replace(facts, rows=7), CopyMode.APPEND)
    assert (... if found is None else found.since) == since
    if found is not None:
        assert found.position(1) == {
            **LOADED,
            "value": facts.highest,
            "rows": 7,
            "transaction": facts.transactions.oldest,
            "pending": facts.transactions.pending,
        }


def test_pending_rows_that_were_loaded_do_not_count_as_new():
    position = {**SEEN, "pending": "1:102"}
    facts = CursorFacts("20", 2, transactions=Transactions(100, 100, 1, "1:102", "1:102"))
    assert cursor_range("t", "id", position, facts, CopyMode.UPSERT) is None


def test_rows_of_ended_transactions_below_the_position_are_an_error():
    facts = CursorFacts("20", 4, transactions=Transactions(105, 100, 1, "0:0", "1:102"))
    with expect_error(PreconditionFailed, "ingest.cursor.backward", column="id"):
        cursor_range("t", "id", SEEN, facts, CopyMode.UPSERT)


OVERLAPPING = {**LOADED, "rows": 10, "from": "12", "below": 4, "marks": [["20", 1000]]}


@pytest.mark.parametrize(
    ("mode", "facts", "expected"),
    [
        (CopyMode.APPEND, CursorFacts("20", 10, below=4), None),
        (CopyMode.APPEND, CursorFacts("20", 9, below=3), None),
        (CopyMode.APPEND, CursorFacts("30", 10, below=4), CursorRange("id", "20", "30", 10)),
        (CopyMode.APPEND, CursorFacts("20", 11, below=4), CursorRange("id", "20", "20", 4, overlap="12")),
        (CopyMode.APPEND, CursorFacts("30", 10, below=3), CursorRange("id", "20", "30", 3, overlap="12")),
        (CopyMode.UPSERT, CursorFacts("20", 10, below=4), None),
        (CopyMode.UPSERT, CursorFacts("30", 10, below=4), CursorRange("id", "20", "30", 4, overlap="12")),
    ],
    ids=["same", "purged", "new", "late", "late and purged", "same keys", "new keys"],
)
def test_overlap_is_read_again_if_it_may_have_late_rows(mode, facts, expected):
    found = cursor_range("t", "id", OVERLAPPING, facts, mode)
    assert (None if found is None else replace(found, more={})) == expected


def test_rows_below_the_overlap_are_an_error():
    with expect_error(PreconditionFailed, "ingest.cursor.backward", column="id"):
        cursor_range("t", "id", OVERLAPPING, CursorFacts("30", 11, below=5), CopyMode.UPSERT)


@pytest.mark.parametrize("every_s", [60, 600, 86_400])
def test_overlap_lasts_at_least_an_hour_and_moves_on(every_s):
    """Values are times of the source. A load reads again what was new up to an hour before the last load, and not much more."""
    start = 1_000_000
    position = CursorRange(
        "at", None, str(start), more={"from": "0", "below": 0, "marks": [[str(start), start]]}
    ).position(1)
    for now in range(start + every_s, start + 40 * every_s + 4 * OVERLAP_S, every_s):
        facts = CursorFacts(str(now), known=position["rows"], below=position["below"], at=now)
        found = cursor_range("t", "at", position, facts, CopyMode.UPSERT)
        assert found is not None
        assert int(found.overlap) <= now - min(OVERLAP_S, now - start)
        position = found.position(1)
        assert len(position["marks"]) <= 2 + OVERLAP_S // 300 + 1
    assert int(overlap_starts(position)[0]) >= now - 2 * OVERLAP_S - 3 * every_s
