"""Joins by key on Spark find the same rows as those in this process, whatever the types of the keys."""

from __future__ import annotations

import datetime
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from metastore.ingest.copies import Here
from skiway.errors import ConstraintViolation
from skiway.metastore.ingest.keys import PLACE, Places, WithoutNulls, comparable, joined_columns
from skiway.spark_jobs.key_joins import SparkJoins
from spark_jobs.lakes import SPARK

pytestmark = SPARK
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks do not have the modules of tests

DAY = datetime.date(1969, 12, 30)
MOMENT = datetime.datetime(1969, 12, 31, 23, 59)
KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "long": (pa.int64(), lambda n: n - 20),
    "text": (pa.string(), lambda n: f"Ä{n}" if n % 2 else f"ä{n}"),
    "decimal": (pa.decimal128(38, 2), lambda n: Decimal(n).scaleb(-2)),
    "day": (pa.date32(), lambda n: DAY + datetime.timedelta(n)),
    "moment": (pa.timestamp("us"), lambda n: MOMENT + datetime.timedelta(microseconds=n)),
    "nanos": (pa.timestamp("ns"), lambda n: n - 3),
    "instant": (pa.timestamp("us", "UTC"), lambda n: n),
    "time": (pa.time64("us"), lambda n: n),
    "bytes": (pa.binary(), lambda n: bytes([n])),
    "fixed": (pa.binary(3), lambda n: bytes([n, 0, 255])),
    "uuid": (pa.uuid(), lambda n: UUID(int=2**127 + n).bytes),
    "flag": (pa.bool_(), lambda n: bool(n % 2)),
}


@dataclass(frozen=True)
class Rows:
    """Rows of one file."""

    keys: pa.Schema
    values: list[tuple[Any, ...]]
    part: int
    file: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        schema = joined_columns(self.keys)
        for first in range(0, len(self.values), 7):
            some = self.values[first : first + 7]
            columns = [pa.array([row[place] for row in some], key.type) for place, key in enumerate(self.keys)]
            keys = [comparable(column, of.type) for column, of in zip(columns, schema, strict=False)]
            place = [[self.part] * len(some), [self.file] * len(some), range(first, first + len(some))]
            arrays = [*keys, *(pa.array(each, of.type) for each, of in zip(place, PLACE, strict=True))]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def found(places: Places) -> list[tuple[int, list[int]]]:
    return [(file, positions.tolist()) for file, positions in places]


def flat(results: list[list[tuple[int, list[int]]]]) -> list[tuple[int, list[int]]]:
    return sorted(place for result in results for place in result if place[1])


@pytest.fixture
def joins(spark) -> SparkJoins:
    return SparkJoins(lambda: spark)


@pytest.mark.parametrize("names", [["long"], ["text", "day"], list(KEYS)], ids=["one", "two", "all"])
def test_spark_finds_the_same_rows_as_this_process(joins, names):
    rng = random.Random(len(names))
    keys = pa.schema({name: KEYS[name][0] for name in names})

    def some(file: int, most: int) -> Rows:
        numbers = [rng.randrange(40) for _ in range(rng.randrange(most))]
        return Rows(keys, [tuple(KEYS[name][1](n) for name in names) for n in numbers], file // 2, file)

    rows, others = [some(file, 30) for file in range(5)], [some(file, 9) for file in range(3)]
    parts = [0, 0, 1, 1, 2]
    expected = flat(Here().last_rows(rows, keys, parts, found))
    last = joins.last_rows(rows, keys, parts, found)
    assert flat(last) == expected
    assert expected
    assert sorted(file for part in last for file, _ in part) == [0, 1, 2, 3, 4], "each file is in one call"
    assert {0, 1} in [{file for file, _ in part} for part in last]
    matches = flat(Here().matches(rows, others, keys, found, are_few=True))
    assert matches
    for are_few in (True, False):
        assert flat(joins.matches(rows, others, keys, found, are_few=are_few)) == matches


def test_error_of_a_task_that_reads_keys_is_raised_as_it_is(joins):
    keys = pa.schema({"id": pa.int64()})
    rows = WithoutNulls(Rows(keys, [(1,), (None,)], 0, 0), keys)
    with pytest.raises(ConstraintViolation, match="the key column 'id' is NULL in 1 rows of the source"):
        joins.last_rows([rows], keys, [0], found)
