"""Columns with a `write-default` have it in rows that are inserted without them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate, UpgradeFormatVersionUpdate
from pyiceberg.types import BooleanType, DateType, LongType, NestedField, StringType

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.errors import ConstraintViolation
from skiway.metastore import managed

FIELDS = [
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=True, initial_default="old", write_default="it's new"),
    NestedField(3, "day", DateType(), required=False, initial_default="2026-01-02", write_default="2026-03-04"),
    NestedField(4, "good", BooleanType(), required=False, write_default=True),
    NestedField(5, "plain", LongType(), required=False),
]


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """A client that attached before the columns were added."""
    with lake.client() as client:
        client.create_schema("s")
        table_id = lake.managed_table(pa.schema({"id": pa.int64()}))
        client.reload()
        client.insert("s.t", pa.table({"id": [1]}))
        changes = [
            UpgradeFormatVersionUpdate(format_version=3),
            AddSchemaUpdate(schema=Schema(*FIELDS)),
            SetCurrentSchemaUpdate(schema_id=-1),
        ]
        managed.commit(lake.realm, lake.warehouse, table_id, [], changes)
        yield client


NEW = {"name": "it's new", "day": date(2026, 3, 4), "good": True, "plain": None}


def test_rows_without_the_columns_have_their_write_defaults(lake: Lake, db: AirportClient) -> None:
    db.insert("s.t", pa.table({"id": [2]}))
    db.reload()
    db.insert("s.t", pa.table({"id": [3], "name": ["given"], "day": [date(2026, 5, 6)], "good": [False]}))
    found = sorted(db.scan("s.t").read_all().to_pylist(), key=lambda row: row["id"])
    assert [{key: value for key, value in row.items() if key != "rowid"} for row in found] == [
        {"id": 1, "name": "old", "day": date(2026, 1, 2), "good": None, "plain": None},
        {"id": 2, **NEW},
        {"id": 3, "name": "given", "day": date(2026, 5, 6), "good": False, "plain": None},
    ]


def test_defaults_are_announced_to_clients(db: AirportClient) -> None:
    db.reload()
    announced = {field.name: (field.metadata or {}).get(b"default") for field in db.table("s.t").schema}
    assert {name: text and text.decode() for name, text in announced.items() if name != "rowid"} == {
        "id": None,
        "name": "CAST('it''s new' AS VARCHAR)",
        "day": "CAST('2026-03-04' AS DATE)",
        "good": "CAST('true' AS BOOLEAN)",
        "plain": None,
    }


def test_null_is_not_replaced(db: AirportClient) -> None:
    db.reload()
    with pytest.raises(ConstraintViolation, match="NOT NULL constraint failed"):
        db.insert("s.t", pa.table({"id": [2], "name": pa.array([None], pa.string())}))
