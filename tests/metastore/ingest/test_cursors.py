"""Which rows of a database are new, and when its cursor column went backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metastore.resource_factory import expect_error
from skiway.errors import PreconditionFailed
from skiway.metastore.ingest.positions import CursorFacts, CursorRange, Transactions, cursor_range, overlap_starts

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
    found = cursor_range("t", "id", position, facts)
    assert (None if found is None else replace(found, more={}, unmoved={})) == expected


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
    found = cursor_range("t", "id", SEEN, replace(facts, rows=7))
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
    assert cursor_range("t", "id", position, facts) is None


def test_rows_of_ended_transactions_below_the_position_are_an_error():
    facts = CursorFacts("20", 4, transactions=Transactions(105, 100, 1, "0:0", "1:102"))
    with expect_error(PreconditionFailed, "ingest.cursor.backward", column="id"):
        cursor_range("t", "id", SEEN, facts)


OVERLAPPING = {**LOADED, "rows": 10, "from": "12", "below": 4, "content": "6:77", "marks": [["20", 1000]]}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (CursorFacts("20", 10, below=4, content="6:77"), None),
        (CursorFacts("20", 9, below=3, content="6:77"), None),
        (CursorFacts("30", 10, below=4, content="6:77"), CursorRange("id", "20", "30", 10)),
        (CursorFacts("20", 11, below=4, content="7:88"), CursorRange("id", "20", "20", 4, repeats=True, overlap="12")),
        (CursorFacts("20", 10, below=4, content="6:88"), CursorRange("id", "20", "20", 4, repeats=True, overlap="12")),
        (CursorFacts("30", 9, below=3, content="6:88"), CursorRange("id", "20", "30", 3, repeats=True, overlap="12")),
    ],
    ids=["same", "purged", "new", "late", "late and deleted", "new and late and deleted"],
)
def test_overlap_is_read_again_if_its_rows_have_changed(facts, expected):
    """A late row is seen although as many rows were deleted."""
    found = cursor_range("t", "id", OVERLAPPING, facts)
    assert (None if found is None else replace(found, more={}, unmoved={})) == expected


@pytest.mark.parametrize("position", [None, OVERLAPPING])
def test_overlap_does_not_move_if_rows_appear_below_the_next_one_during_a_load(position):
    """The load may have read them, so that they are no error, or not, so that the next load reads them."""
    facts = CursorFacts("30", 10, below=4, below_next=6, content="6:77", content_next="9:99", recent="12", at=9000)
    found = cursor_range("t", "id", position, facts)
    below = 4 if position is None else 6
    expected = {"from": "12", "below": below, "content": "9:99"}
    assert {name: found.position(5, below)[name] for name in expected} == expected
    assert found.position(5, below - 1)["from"] == "12"  # rows were deleted
    unmoved = {"from": None if position is None else "12", "below": 0 if position is None else 4, "content": ""}
    after = found.position(5, below + 1)
    assert {name: after[name] for name in unmoved} == unmoved
    again = cursor_range("t", "id", after, CursorFacts("30", 16, below=unmoved["below"], content="11:5"))
    assert (again.repeats, again.overlap) == (True, unmoved["from"])


def test_overlap_of_a_small_table_has_no_lowest_value():
    found = cursor_range("t", "id", None, CursorFacts("30", recent="7", content_next="3:5"))
    assert (found.next_overlap, found.position(3)["from"], overlap_starts(found.position(3))) == (
        None,
        None,
        (None, None),
    )


def test_rows_below_the_overlap_are_an_error():
    with expect_error(PreconditionFailed, "ingest.cursor.backward", column="id"):
        cursor_range("t", "id", OVERLAPPING, CursorFacts("30", 11, below=5, content="6:77"))


@pytest.mark.parametrize("every_s", [60, 600, 86_400])
def test_overlap_lasts_at_least_an_hour_and_moves_on(every_s):
    """Values are times of the source. A load reads again what was new up to an hour before the last load, and not much more."""
    start, hour = 1_000_000, 3600
    position = CursorRange(
        "at", None, str(start), more={"from": "0", "below": 0, "marks": [[str(start), start]]}
    ).position(1)
    for now in range(start + every_s, start + 40 * every_s + 4 * hour, every_s):
        facts = CursorFacts(str(now), known=position["rows"], below=position["below"], content="changed", at=now)
        found = cursor_range("t", "at", position, facts)
        assert found is not None
        assert int(found.overlap) <= now - every_s - min(hour, now - every_s - start)
        position = found.position(1)
        assert len(position["marks"]) <= 2 + hour // 300 + 1
    assert int(overlap_starts(position)[0]) >= now - 2 * hour - 3 * every_s
