"""Ranges of snapshots: the rows that were appended between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import Lake
from lake.policed_lake import policed_lake
from skiway.client import AirportClient, col
from skiway.errors import NotFound, PreconditionFailed, SkiwayError
from skiway.sql import QueryEngine

COLUMNS = pa.schema({"id": pa.int64()})


def insert(client: AirportClient, *numbers: int) -> int:
    """Insert rows; returns the new snapshot."""
    client.insert("s.t", pa.table({"id": list(numbers)}, COLUMNS))
    return history(client, "t")[-1]


def history(client: AirportClient, table: str) -> list[int]:
    rows = client.scan("skiway.snapshots").read_all().to_pylist()
    own = sorted((each for each in rows if each["table_name"] == table), key=lambda each: each["sequence_number"])
    return [each["snapshot_id"] for each in own]


def ids(client: AirportClient, between: str, **more: object) -> Sequence[int]:
    found = client.scan("s.t", columns=["id"], at_version=between, **more).read_all()  # type: ignore[arg-type]
    return sorted(found["id"].to_pylist())


def test_ranges_have_the_appended_rows(lake: Lake) -> None:
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", COLUMNS)
        one, two, three = insert(client, 1, 2), insert(client, 3), insert(client, 4, 5)
        assert ids(client, f"{one}..{three}") == [3, 4, 5]
        assert ids(client, f"{two}..{three}") == [4, 5]
        assert ids(client, f"..{two}") == [1, 2, 3]
        assert ids(client, f"{two}..{two}") == []
        assert ids(client, f"{one}..{three}", where=col("id") > 3) == [4, 5]
        for sql, expected in (("count(*)", 3), ("max(id)", 5), ("min(id)", 3)):
            query = f"SELECT {sql} AS n FROM s.t AT (VERSION => '{one}..{three}')"
            assert client.call("skiway.query", query).read_all()["n"].to_pylist() == [expected]
        parts = client.bind("s.t", at_version=f"{one}..{two}").parts()
        assert [row for part in parts for row in client.read_part(part).read_all()["id"].to_pylist()] == [3]


def test_ranges_with_other_changes_or_unknown_snapshots_are_refused(lake: Lake) -> None:
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", COLUMNS)
        one, two = insert(client, 1, 2), insert(client, 3)
        client.delete("s.t", where=col("id") == 1)
        three = history(client, "t")[-1]
        four = insert(client, 4)
        for between in (f"{one}..{four}", f"{two}..{three}", f"..{four}"):
            with pytest.raises(PreconditionFailed, match=f"snapshot {three} is the result of") as refused:
                ids(client, between)
            assert refused.value.key == "snapshot.range"
        assert ids(client, f"{three}..{four}") == [4]
        with pytest.raises(PreconditionFailed, match=f"snapshot {one} of table 't' does not follow snapshot {two}"):
            ids(client, f"{two}..{one}")
        for between in (f"99..{four}", f"{one}..99"):
            with pytest.raises(NotFound, match="no snapshot with id 99"):
                ids(client, between)
        with pytest.raises(SkiwayError, match=r"has no snapshot called '1\.\.x'"):
            ids(client, "1..x")


def test_policies_apply_to_ranges(tmp_path: Path, queries: QueryEngine) -> None:
    with policed_lake(tmp_path, queries) as policed:
        policed.filter("region = 'EU'")
        with policed.lake.client() as owner, policed.lake.client(token="reader") as reader:
            one, two, *_ = history(owner, "people")
            found = reader.scan("s.people", columns=["id"], at_version=f"{one}..{two}").read_all()
            assert sorted(found["id"].to_pylist()) == [each for each in range(10, 20) if each % 4]
