"""A pushed-down filter is parsed at most once per call, however often the table uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from airport.filters.building import column, compare, constant
from airport.raw import Raw
from skiway.airport import (
    CatalogBuilder,
    FunctionCall,
    FunctionCallRequest,
    Planned,
    ScanOptions,
    Server,
    Table,
    TableRef,
    filters,
)
from skiway.airport.filters import parsing
from skiway.airport.memory import MemoryCatalog
from skiway.airport.tables import with_parsed_filter

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
FILTER = json.dumps(
    {
        "filters": [compare(column(0, "BIGINT"), "GREATERTHAN", constant("BIGINT", 1))],
        "column_binding_names_by_index": ["id"],
    }
)


def use(options: ScanOptions | FunctionCallRequest) -> None:
    """Use the filter several times, as tables do."""
    assert options.filter
    assert options.filter is options.filter
    filters.to_sql(options.filter)
    filters.to_arrow(options.filter)


class Scanned(Table):
    name = "scanned"
    schema = SCHEMA

    def scan(self, options: ScanOptions) -> pa.Table:
        use(options)
        return SCHEMA.empty_table()


class InParts(Scanned, Planned):
    name = "in_parts"

    def plan(self, options: ScanOptions) -> Sequence[bytes]:
        use(options)
        return [b"0", b"1"]


class Reference(TableRef):
    name = "reference"
    schema = SCHEMA

    def function_calls(self, request: FunctionCallRequest) -> Sequence[FunctionCall]:
        use(request)
        return [FunctionCall("read_csv", "people.csv")]


@pytest.fixture
def server() -> Iterator[Server]:
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table(Scanned())
    schema.table(InParts())
    schema.table_ref(Reference())

    @schema.table_function(schema=SCHEMA)
    def function(scan: ScanOptions) -> pa.Table:
        use(scan)
        return SCHEMA.empty_table()

    memory = MemoryCatalog("memory", schemas=["s"])
    rows = memory.schema("s")
    assert rows is not None
    rows.add_table("people", pa.table({"id": [1, 2], "name": ["Ada", "Grace"]}, SCHEMA))
    with Server([builder.build(), memory], port=0) as running:
        yield running


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The number of filters parsed since the last call."""
    counted: list[str] = []
    decode = msgspec.json.decode

    def counting(text: Any, *args: Any, **options: Any) -> Any:
        if text == FILTER:
            counted.append(text)
        return decode(text, *args, **options)

    monkeypatch.setattr(parsing.msgspec.json, "decode", counting)  # type: ignore[attr-defined]

    def count() -> int:
        number = len(counted)
        counted.clear()
        return number

    return count


@pytest.mark.parametrize("path", [("demo", "s", "scanned"), ("demo", "s", "in_parts"), ("memory", "s", "people")])
def test_endpoints_and_do_get_each_parse_once(
    server: Server, parses: Callable[[], int], path: tuple[str, str, str]
) -> None:
    with Raw(server.location) as raw:
        endpoints = raw.endpoints(*path, columns=[0, 1], json_filters=FILTER)
        assert parses() == 1
        for endpoint in endpoints:
            list(raw.get(endpoint.ticket.ticket))
            assert parses() == 1


def test_a_table_function_parses_once_per_call(server: Server, parses: Callable[[], int]) -> None:
    with Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "function", "table_function", "", json_filters=FILTER)
        assert parses() == 1
        list(raw.get(endpoint.ticket.ticket))
        assert parses() == 1


def test_a_table_reference_parses_once(server: Server, parses: Callable[[], int]) -> None:
    with Raw(server.location) as raw:
        assert len(raw.endpoints("demo", "s", "reference", json_filters=FILTER)) == 1
    assert parses() == 1


def test_options_created_directly_parse_once_and_only_on_demand(parses: Callable[[], int]) -> None:
    options = ScanOptions(json_filters=FILTER)
    assert parses() == 0
    use(options)
    assert parses() == 1
    use(with_parsed_filter(ScanOptions(json_filters=FILTER), options.filter))
    assert parses() == 0
