"""A client that attached before a table was changed sees the old schema, or an error that tells it to attach again."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import PreconditionFailed

COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("x", pa.float32())])


@pytest.fixture
def old(lake: Lake) -> Iterator[AirportClient]:
    """A client that attached to a table `s.t` of two rows."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", COLUMNS)
        db.insert("s.t", pa.table({"id": [1, 2], "name": ["a", "b"], "x": [0.5, 1.5]}, COLUMNS))
        yield db


@pytest.fixture
def new(lake: Lake, old: AirportClient) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.schemas()
        yield db


def test_dropped_column_is_null(old: AirportClient, new: AirportClient) -> None:
    new.remove_column("s.t", "name")
    assert rows(old) == [{"id": 1, "name": None, "x": 0.5}, {"id": 2, "name": None, "x": 1.5}]
    assert rows(new) == [{"id": 1, "x": 0.5}, {"id": 2, "x": 1.5}]


def test_renamed_column_keeps_its_old_name(old: AirportClient, new: AirportClient) -> None:
    new.rename_column("s.t", "name", "title")
    new.insert("s.t", pa.table({"id": [3], "title": ["c"], "x": [2.5]}))
    assert [row["name"] for row in rows(old)] == ["a", "b", "c"]
    assert old.scan("s.t", where=col("name") == "c").read_all()["id"].to_pylist() == [3]


def test_new_column_with_the_old_name_is_not_confused_with_the_old_one(old: AirportClient, new: AirportClient) -> None:
    new.remove_column("s.t", "name")
    new.add_column("s.t", pa.field("name", pa.string()))
    new.update("s.t", {"name": "other"})
    assert {row["name"] for row in rows(old)} == {None}


def test_new_column_is_invisible_and_stays_null(old: AirportClient, new: AirportClient) -> None:
    new.add_column("s.t", pa.field("y", pa.int64()))
    old.insert("s.t", pa.table({"id": [3], "name": ["c"], "x": [2.5]}))
    assert old.scan("s.t").read_all().column_names == ["id", "name", "x"]
    assert [row["y"] for row in rows(new)] == [None] * 3


def test_insert_under_an_old_name_writes_the_renamed_column(old: AirportClient, new: AirportClient) -> None:
    new.rename_column("s.t", "name", "title")
    old.insert("s.t", pa.table({"id": [3], "name": ["c"], "x": [2.5]}))
    old.update("s.t", {"name": "z"}, where=col("id") == 1)
    assert [row["title"] for row in rows(new)] == ["z", "b", "c"]


def test_widened_column_requires_a_new_attach(old: AirportClient, new: AirportClient) -> None:
    new.change_column_type("s.t", "id", pa.int64())
    with pytest.raises(PreconditionFailed, match=r"the table changed .*'id' is int64 now.*DETACH and ATTACH again"):
        rows(old)
    old.reload()
    assert [row["id"] for row in rows(old)] == [1, 2]


def test_dropped_not_null_column_requires_a_new_attach(lake: Lake) -> None:
    with lake.client() as old, lake.client() as new:
        old.create_schema("s")
        old.create_table("s.t", COLUMNS, not_null=["x"])
        old.insert("s.t", pa.table({"id": [1], "name": ["a"], "x": [0.5]}, COLUMNS))
        new.drop_not_null("s.t", "x")
        with pytest.raises(PreconditionFailed, match="'x' may be NULL now"):
            rows(old)
        new.remove_column("s.t", "x")
        with pytest.raises(PreconditionFailed, match="'x' was dropped"):
            rows(old)


def test_writing_a_dropped_column_requires_a_new_attach(old: AirportClient, new: AirportClient) -> None:
    new.remove_column("s.t", "name")
    with pytest.raises(PreconditionFailed, match="the table changed"):
        old.insert("s.t", pa.table({"id": [3], "name": ["c"], "x": [2.5]}))
    assert len(rows(new)) == 2


def test_replaced_table_requires_a_new_attach(old: AirportClient, new: AirportClient) -> None:
    new.drop_table("s.t")
    new.create_table("s.t", COLUMNS)
    with pytest.raises(PreconditionFailed, match="replaced by another"):
        rows(old)


def test_server_resolves_a_schema_that_it_never_announced(lake: Lake, old: AirportClient, new: AirportClient) -> None:
    """The descriptor alone is enough; here it is sent to a server that has just started."""
    descriptor = list(old.table("s.t").descriptor.path)
    new.remove_column("s.t", "x")
    new.rename_column("s.t", "name", "title")
    with lake.served() as location, AirportClient(location, "managed") as elsewhere:
        seen = elsewhere.take_flight(descriptor, headers={"airport-catalog": "managed"}).read_all()
        assert seen.column_names == ["id", "name", "x"]
        assert seen["name"].to_pylist() == ["a", "b"]
        unknown = [*descriptor[:-1], descriptor[-1].replace("@", "@0", 1)]
        with pytest.raises(PreconditionFailed, match="no longer known"):
            elsewhere.take_flight(unknown, headers={"airport-catalog": "managed"}).read_all()


def test_columns_that_differ_only_in_case_can_all_be_read(lake: Lake) -> None:
    """Other engines create such tables; DuckDB would reject the entire catalog."""
    from skiway.formats.schemas import TableSchema, with_ids
    from skiway.lake.reading.columns import columns_of

    schema = with_ids(pa.schema({"a": pa.int64(), "A": pa.int64(), "ROWID": pa.int64()}))
    assert columns_of(TableSchema.of(schema).json).announced.names == ["a", "A_1", "ROWID_1", "rowid"]


def rows(db: AirportClient) -> list[dict[str, object]]:
    found: list[dict[str, object]] = db.scan("s.t").read_all().sort_by("id").to_pylist()
    return found
