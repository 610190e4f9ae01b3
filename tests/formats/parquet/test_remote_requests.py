"""Scans of a file in S3 (moto) take few requests: to open it, for the needed ranges, and for the footer the first time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.pushed_filters import sent_filter
from skiway.client import col
from skiway.client.airport.predicates import Predicate
from skiway.formats.files import FileCache, Files, Reach
from skiway.formats.readers import remote
from skiway.formats.readers.parquet import parquet_batches
from skiway.formats.readers.remote import Ranges, merged
from skiway.formats.readers.scanning import DataFile, Scan
from storage.homes import AWS, running_aws

ROWS, GROUP = 120_000, 6000
LATENCY_S = 0.02


class Requests:
    """Counts the requests for the file, which take 20 ms each."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def wrapped(self, app: Any) -> Any:
        def serve(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"].endswith("t.parquet") and environ["REQUEST_METHOD"] in ("GET", "HEAD"):
                self.seen.append(environ["REQUEST_METHOD"])
                time.sleep(LATENCY_S)
            return app(environ, start_response)

        return serve


def made() -> pa.Table:
    rng = np.random.default_rng(1)
    columns = {
        "id": pa.array(range(ROWS), pa.int64()),
        **{f"c{number}": pa.array(rng.integers(0, 1 << 40, ROWS), pa.int64()) for number in range(8)},
        "name": pa.array([None if number % 7 == 0 else f"name {number}" for number in range(ROWS)]),
    }
    schema = pa.schema(
        [
            pa.field(name, of.type, metadata={b"PARQUET:field_id": str(place).encode()})
            for place, (name, of) in enumerate(columns.items(), 1)
        ]
    )
    return pa.table(list(columns.values()), schema=schema)


TABLE = made()


class Bucket:
    """Scans of the file, and the requests that they took."""

    def __init__(self, endpoint: str, requests: Requests) -> None:
        self.requests = requests
        self._properties = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
        self._properties |= {"s3.access-key-id": "key", "s3.secret-access-key": "any"}
        self.files = Files(self._properties, Reach(()))

    def read(self, condition: Predicate | None = None, *, batches: int | None = None, **options: Any) -> pa.Table:
        """The rows of the first batches, or of all; `requests.seen` are their requests."""
        self.requests.seen.clear()
        options.setdefault("columns", TABLE.schema.names)
        chosen = None if condition is None else sent_filter(condition, TABLE.schema)
        scan = Scan(self.files, TABLE.schema, assign_ids=lambda schema, _: schema, filter=chosen, **options)
        rows = parquet_batches(scan, DataFile("s3://skiway-test/t.parquet", 0))
        found = list(islice(rows, batches))
        rows.close()
        return pa.Table.from_batches(found, scan.output_schema).select(options["columns"])

    def count(self) -> dict[str, int]:
        """The requests of the last scan."""
        return dict(Counter(self.requests.seen))


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    import boto3

    path = tmp_path_factory.mktemp("t") / "t.parquet"
    pq.write_table(TABLE, path, row_group_size=GROUP, compression="zstd", use_dictionary=False)
    requests = Requests()
    with running_aws(wrap=requests.wrapped) as endpoint:
        client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint, **AWS)
        client.upload_file(str(path), "skiway-test", "t.parquet")
        client.close()
        yield Bucket(endpoint, requests)


ONE: Final = col("id") == 87_654
OPEN: Final = {"HEAD": 1}


def test_a_row_takes_two_requests_for_its_columns_and_the_first_time_one_for_the_footer(bucket: Bucket) -> None:
    bucket.files = replace(bucket.files, cache=FileCache())
    assert bucket.read(ONE) == TABLE.slice(87_654, 1)
    assert bucket.count() == OPEN | {"GET": 3}
    assert bucket.read(ONE) == TABLE.slice(87_654, 1)
    assert bucket.count() == OPEN | {"GET": 2}, "its id, and the other columns"


def test_all_rows_take_a_request_for_several_row_groups(bucket: Bucket) -> None:
    assert bucket.read() == TABLE
    assert bucket.count()["GET"] < 12, "of 20 row groups with 10 columns each"


def test_few_columns_take_one_request_per_row_group_at_most(bucket: Bucket) -> None:
    assert bucket.read(columns=["c2", "c3"]) == TABLE.select(["c2", "c3"])
    assert bucket.count()["GET"] <= 20


def test_first_rows_take_the_first_row_group(bucket: Bucket) -> None:
    assert bucket.read(batches=1, first_batch_rows=1000) == TABLE.slice(0, 1000)
    assert bucket.count() == OPEN | {"GET": 1}


def test_nothing_is_requested_if_no_row_group_matches(bucket: Bucket) -> None:
    bucket.read(ONE)
    assert bucket.read(col("id") > 2 * ROWS).num_rows == 0
    assert bucket.count() == {}


@pytest.mark.parametrize("name", ["HELD", "GAP"])
def test_rows_are_the_same_with_any_size_of_requests(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(remote, "MAX_HELD_BYTES" if name == "HELD" else "_GAP_BYTES", 0)
    few = (col("id") >= 5990) & (col("id") < 6010)
    assert bucket.read(few) == TABLE.slice(5990, 20)
    assert bucket.read() == TABLE


def test_the_footer_of_another_version_is_read_again(bucket: Bucket) -> None:
    scan = Scan(bucket.files, TABLE.schema, ["id"], lambda schema, _: schema)
    requests = []
    for etag in ("one", "one", "other"):
        bucket.requests.seen.clear()
        rows = parquet_batches(scan, DataFile("s3://skiway-test/t.parquet", 0, etag=etag))
        assert next(rows).num_rows
        rows.close()
        requests.append(bucket.count()["GET"])
    assert requests == [2, 1, 2]


# -- ranges -----------------------------------------------------------------------------------------------------------


class Recorded:
    """A file that records what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data, self.reads = data, list[tuple[int, int]]()

    def size(self) -> int:
        return len(self.data)

    def read_at(self, nbytes: int, offset: int) -> bytes:
        self.reads.append((offset, nbytes))
        return self.data[offset : offset + nbytes]


@given(
    st.lists(st.lists(st.tuples(st.integers(-5, 70), st.integers(-5, 70)), max_size=5), max_size=4), st.integers(0, 80)
)
def test_reads_return_the_bytes_of_the_file_whatever_was_fetched(
    fetched: list[list[tuple[int, int]]], most: int
) -> None:
    file = Recorded(bytes(range(64)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "MAX_HELD_BYTES", most)
        patch.setattr(remote, "_GAP_BYTES", 3)
        ranges = Ranges(file)
        for each in fetched:
            ranges.fetch(each)
            assert sum(len(data) for _, data in ranges._held) <= most
            for start in range(0, 64, 7):
                assert ranges.read_at(9, start) == file.data[start : start + 9]


def test_what_is_at_hand_is_not_requested_again() -> None:
    file = Recorded(bytes(1000))
    ranges = Ranges(file)
    ranges.fetch([(100, 200)])
    ranges.fetch([(100, 200), (200, 300), (900, 950)])
    assert file.reads == [(100, 100), (200, 750)]
    assert ranges.read_at(30, 110) == bytes(30)
    assert len(file.reads) == 2


def test_ranges_close_to_each_other_become_one() -> None:
    assert merged([(50, 60), (0, 10), (12, 20), (5, 8)], gap=2) == [(0, 20), (50, 60)]
    assert merged([], gap=2) == []
