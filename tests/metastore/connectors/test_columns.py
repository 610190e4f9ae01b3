"""Selection of the columns of a table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from skiway.formats import TableSchema
from skiway.formats.schemas import leaves, with_ids
from skiway.metastore.connectors.specs import EVERY_COLUMN, ColumnChoice, chosen_columns
from skiway.model import v1

IDS = {("id",): 1, ("home",): 2, ("home", "city"): 3, ("home", "at"): 4, ("home", "at", "x"): 5, ("tags",): 6}
HOME = pa.struct({"city": pa.string(), "at": pa.struct({"x": pa.float64()})})
SCHEMA = TableSchema.of(
    with_ids(pa.schema({"id": pa.int64(), "home": HOME, "tags": pa.list_(pa.string())}), lambda path: IDS.get(path))
)


def selected_columns(choice: ColumnChoice) -> list[str]:
    return [".".join(leaf.path) for leaf in leaves(choice.of(SCHEMA).arrow)]


@pytest.mark.parametrize(
    ("columns", "excluded", "requested", "expected"),
    [
        ([], [], [], ["id", "home.city", "home.at.x"]),
        (["id"], [], [], ["id"]),
        (["#3"], [], [], ["home.city"]),
        (["home"], [], [], ["home.city", "home.at.x"]),
        (["#4"], [], [], ["home.at.x"]),
        ([], ["home.at"], [], ["id", "home.city"]),
        ([], ["#2"], [], ["id"]),
        (["home"], ["home.city"], [], ["home.at.x"]),
        (["home", "id"], [], ["home.city", "other"], ["home.city"]),
        (["id"], [], ["home.city"], []),
        ([], ["id"], ["id"], []),
        (["nowhere"], [], [], []),
        ([], ["nowhere"], [], ["id", "home.city", "home.at.x"]),
        (["hom"], [], [], []),
    ],
)
def test_columns_are_selected_by_name_or_id_and_structs_include_their_fields(columns, excluded, requested, expected):
    source = v1.ConnectorSource(columns=columns, exclude_columns=excluded)
    choice = chosen_columns(source, requested)
    assert selected_columns(choice) == expected
    everything = {leaf.id for leaf in leaves(SCHEMA.arrow)}
    assert choice.left_out(SCHEMA) == everything - {leaf.id for leaf in leaves(choice.of(SCHEMA).arrow)}


def test_selected_columns_keep_their_ids():
    selected = ColumnChoice((frozenset({"home.at.x"}),)).of(SCHEMA)
    assert [leaf.id for leaf in leaves(selected.arrow)] == [5]
    assert selected.id == SCHEMA.id


def test_selecting_every_column_returns_the_same_schema():
    assert EVERY_COLUMN.of(SCHEMA) is SCHEMA
