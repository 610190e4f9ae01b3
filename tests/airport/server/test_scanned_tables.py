"""The calls of one scan share its table and its responses, for as long as nothing changes."""

from __future__ import annotations

from collections.abc import Hashable

import pyarrow as pa
import pytest

from skiway.airport import Request, ScanOptions, Table
from skiway.airport.server.host import OpenedTable, ScannedTables
from skiway.airport.server.tickets import ObjectPath
from skiway.errors import NotFound

PATH = ObjectPath("demo", "s", "t")
REQUEST = {"trace_id": "scan", "identity": "ada", "transaction_id": "t1"}


class Numbers(Table):
    name = "t"
    schema = pa.schema({"a": pa.int64()})

    def scan(self, options: ScanOptions) -> pa.Table:
        raise NotImplementedError


class Finding:
    """A function that finds a new table each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> OpenedTable:
        self.count += 1
        return OpenedTable(Numbers(), Numbers.schema, PATH)


@pytest.fixture
def find() -> Finding:
    return Finding()


def test_calls_of_one_scan_find_the_table_once(find: Finding) -> None:
    tables = ScannedTables(lambda: 1)
    first = tables.of(Request(**REQUEST), PATH, find)
    assert tables.of(Request(**REQUEST), PATH, find) is first
    assert find.count == 1


@pytest.mark.parametrize(
    "other", [{"trace_id": "other"}, {"identity": "bob"}, {"transaction_id": "t2"}, {"trace_id": ""}]
)
def test_calls_of_other_scans_callers_and_transactions_find_their_own(find: Finding, other: dict[str, str]) -> None:
    tables = ScannedTables(lambda: 1)
    first = tables.of(Request(**REQUEST), PATH, find)
    assert tables.of(Request(**REQUEST | other), PATH, find) is not first
    assert tables.of(Request(**REQUEST), ObjectPath("demo", "s", "t", signature="b"), find) is not first


def test_changed_state_finds_the_table_again(find: Finding) -> None:
    states: list[Hashable] = [1, 2]
    tables = ScannedTables(lambda: states.pop(0))
    assert tables.of(Request(**REQUEST), PATH, find) is not tables.of(Request(**REQUEST), PATH, find)


def test_state_is_read_before_the_table(find: Finding) -> None:
    state = [1]

    def find_and_change() -> OpenedTable:
        state[0] += 1
        return find()

    tables = ScannedTables(lambda: state[0])
    old = tables.of(Request(**REQUEST), PATH, find_and_change)
    assert tables.of(Request(**REQUEST), PATH, find) is not old


@pytest.mark.parametrize("state", [None, lambda: None], ids=["no state", "unknown"])
def test_without_a_state_every_call_finds_its_table_and_nothing_is_kept(find: Finding, state: object) -> None:
    tables = ScannedTables(state, max_bytes=10)  # type: ignore[arg-type]
    for _ in range(3):
        scanned = tables.of(Request(**REQUEST), PATH, find)
        assert tables.response(scanned, "a", lambda _: b"response" * 10) == b"response" * 10
    assert find.count == 3
    assert not scanned.responses


def test_responses_are_made_once_for_what_is_requested(find: Finding) -> None:
    tables = ScannedTables(lambda: 1)
    made: list[str] = []
    for requested in ("a", "b", "a", "b"):
        scanned = tables.of(Request(**REQUEST), PATH, find)
        response = tables.response(scanned, requested, lambda _, it=requested: (made.append(it), it.encode())[1])  # type: ignore[misc]
        assert response == requested.encode()
    assert made == ["a", "b"]


def test_failures_are_not_kept(find: Finding) -> None:
    tables = ScannedTables(lambda: 1)

    def fail(*_: object) -> OpenedTable:
        raise NotFound("gone")

    with pytest.raises(NotFound):
        tables.of(Request(**REQUEST), PATH, fail)
    scanned = tables.of(Request(**REQUEST), PATH, find)
    with pytest.raises(NotFound):
        tables.response(scanned, "a", fail)  # type: ignore[arg-type]
    assert tables.response(scanned, "a", lambda _: b"now") == b"now"


def test_oldest_tables_are_forgotten_first(find: Finding) -> None:
    tables = ScannedTables(lambda: 1, max_tables=2)
    first, second, _ = (tables.of(Request(**REQUEST | {"trace_id": name}), PATH, find) for name in "abc")
    assert tables.of(Request(**REQUEST | {"trace_id": "b"}), PATH, find) is second
    assert tables.of(Request(**REQUEST | {"trace_id": "a"}), PATH, find) is not first


def test_size_of_all_responses_is_limited(find: Finding) -> None:
    tables = ScannedTables(lambda: 1, max_bytes=100)
    scans = {name: tables.of(Request(**REQUEST | {"trace_id": name}), PATH, find) for name in "abc"}
    for name, scanned in scans.items():
        tables.response(scanned, "x", lambda _: b"x" * 40)
        assert tables.of(Request(**REQUEST | {"trace_id": name}), PATH, find) is scanned
    assert tables.of(Request(**REQUEST | {"trace_id": "a"}), PATH, find) is not scans["a"], "120 bytes are too many"
    assert tables.of(Request(**REQUEST | {"trace_id": "b"}), PATH, find) is scans["b"]
    tables.response(scans["a"], "y", lambda _: b"y" * 40)  # of a call that still runs
    assert tables.of(Request(**REQUEST | {"trace_id": "b"}), PATH, find) is scans["b"], "forgotten tables do not count"
