"""Decorators keep the types of functions and objects. mypy checks this file as part of `make lint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, assert_type

import pyarrow as pa

from skiway.airport import (
    CatalogBuilder,
    FunctionCall,
    FunctionCallRequest,
    ScalarFunction,
    ScanOptions,
    Table,
    TableFunction,
    TableRef,
    submit,
    with_request,
)

ROWS = pa.schema({"id": pa.int64()})


class Numbers(Table):
    name = "numbers"

    def __init__(self, upto: int) -> None:
        self.schema = ROWS
        self.upto = upto

    def scan(self, options: ScanOptions) -> dict[str, range]:
        return {"id": range(self.upto)}


class Archive(TableRef):
    def __init__(self) -> None:
        self.name, self.schema = "archive", ROWS

    def function_calls(self, request: FunctionCallRequest) -> list[FunctionCall]:
        return []


class Shout(ScalarFunction):
    name, returns = "shout", pa.string()

    def execute(self, arguments: pa.RecordBatch) -> pa.Array:
        return arguments


class Words(TableFunction):
    name = "words"

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        return ROWS

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Any:
        return ()


def test_decorated_functions_keep_their_types() -> None:
    sales = CatalogBuilder("demo").schema("sales")

    @sales.table(schema=ROWS)
    def people(scan: ScanOptions) -> dict[str, list[int]]:
        return {"id": [1]}

    @sales.table_ref(schema=ROWS)
    def files(request: FunctionCallRequest) -> FunctionCall:
        return FunctionCall("read_parquet", "people.parquet")

    @sales.scalar_function
    def double(value: pa.Int64Array) -> pa.Int64Array:
        return value

    @sales.scalar_function(name="half", returns=pa.int64())
    def halved(value: pa.Int64Array) -> int:
        return 1

    @sales.table_function(schema=ROWS)
    def upto(count: int, *, step: int = 1) -> list[dict[str, int]]:
        return [{"id": number} for number in range(0, count, step)]

    assert_type(people(ScanOptions()), dict[str, list[int]])
    assert_type(files(FunctionCallRequest()), FunctionCall)
    assert_type(halved(None), int)
    assert_type(upto(3, step=2), list[dict[str, int]])
    double_again: Callable[[pa.Int64Array], pa.Int64Array] = double
    assert upto(3, step=2) == [{"id": 0}, {"id": 2}]
    assert double_again is double


def test_added_objects_keep_their_types() -> None:
    sales = CatalogBuilder("demo").schema("sales")
    numbers, archive = sales.table(Numbers(3)), sales.table_ref(Archive())
    shout, words = sales.scalar_function(Shout()), sales.table_function(Words())
    assert_type(numbers, Numbers)
    assert_type(archive, Archive)
    assert_type(shout, Shout)
    assert_type(words, Words)
    assert numbers.upto == 3


def test_work_in_threads_keeps_its_type() -> None:
    def count(text: str, *, start: int = 0) -> int:
        return start + len(text)

    with ThreadPoolExecutor(1) as pool:
        executor: Executor = pool
        assert_type(submit(executor, count, "ab", start=1), Future[int])
        assert_type(with_request(count)("ab"), int)
        assert submit(pool, count, "ab", start=1).result() == 3
