"""How copied tables follow the columns of their sources."""

from __future__ import annotations

import pyarrow as pa
import pytest

from metastore.resource_factory import expect_error
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.changes.evolution import AddColumn, WidenColumn
from skiway.metastore.ingest.rows import column_changes, key_fields_of, stored_columns

TABLE = pa.schema({"id": pa.int32(), "price": pa.decimal128(9, 2), "at": pa.struct({"x": pa.float32()})})


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        (TABLE, []),
        (pa.schema({"ID": pa.int32()}), []),
        (pa.schema({"id": pa.int64()}), [WidenColumn("id", pa.int64())]),
        (pa.schema({"price": pa.decimal128(12, 2)}), [WidenColumn("price", pa.decimal128(12, 2))]),
        (pa.schema({"price": pa.decimal128(5, 2)}), []),
        (pa.schema({"name": pa.string()}), [AddColumn("name", pa.string())]),
        (
            pa.schema({"at": pa.struct({"x": pa.float64(), "y": pa.int32()})}),
            [WidenColumn(("at", "x"), pa.float64()), AddColumn(("at", "y"), pa.int32())],
        ),
    ],
)
def test_table_follows_its_source(source, changes):
    assert column_changes(TABLE, source, follows=True) == changes


@pytest.mark.parametrize(
    "of", [pa.string(), pa.int64(), pa.decimal128(9, 3), pa.list_(pa.int32())], ids=["text", "whole", "scale", "list"]
)
def test_types_that_do_not_fit_are_refused_by_every_policy(of):
    for follows in (True, False):
        with expect_error(PreconditionFailed, "ingest.schema.incompatible", column="price"):
            column_changes(TABLE, pa.schema({"price": of}), follows=follows)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pa.schema([*TABLE, pa.field("new", pa.int32())]), "column 'new' is new"),
        (pa.schema([*TABLE]).set(0, pa.field("id", pa.int64())), "column 'id' has a wider type"),
        (pa.schema(list(TABLE)[:2]), "column 'at' is missing"),
    ],
)
def test_policy_reject_names_each_difference(source, message):
    with expect_error(PreconditionFailed, "ingest.schema.changed") as raised:
        column_changes(TABLE, source, follows=False)
    assert message in raised.value.message


def test_stored_columns_are_nullable_and_have_types_of_iceberg():
    source = pa.schema(
        [pa.field("id", pa.uint32(), nullable=False), pa.field("t", pa.dictionary(pa.int8(), pa.string()))]
    )
    assert [(each.name, each.type, each.nullable) for each in stored_columns(source)] == [
        ("id", pa.int64(), True),
        ("t", pa.string(), True),
    ]


@pytest.mark.parametrize("name", ["at", "x"])
def test_keys_must_be_columns_that_can_be_compared(name):
    table = pa.schema([*TABLE, pa.field("x", pa.float64())])
    with expect_error(InvalidArgument, "ingest.key.type", column=name):
        key_fields_of(table, (name,))
