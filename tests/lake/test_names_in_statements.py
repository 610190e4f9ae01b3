"""Names in DDL: found in any case, as in SELECT; stored as they are given or rejected, through every door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import BadRequestError

from lake.lakes import Lake
from skiway.airport.wire.protocol import encode
from skiway.client import AirportClient
from skiway.errors import AlreadyExists, InvalidArgument

COLUMNS = pa.schema({"Id": pa.int32(), "Place": pa.struct({"City": pa.string(), "Zip": pa.int32()})})
FIELD = pa.schema({"Note": pa.string()}).serialize().to_pybytes()


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("Sales")
        db.create_table("Sales.Orders", COLUMNS)
        yield db


def act(db: AirportClient, action: str, **body: Any) -> None:
    """Call an action as DuckDB does, which sends names as they are written in the statement."""
    db.action(action, encode(body))


def alter(db: AirportClient, action: str, **body: Any) -> None:
    names = {"catalog": "managed", "schema": "SALES", "name": "orders", "ignore_not_found": False}
    act(db, action, **{**names, **body})


def columns(lake: Lake, table: str = "Sales.Orders") -> list[str]:
    with lake.client() as fresh:
        schema = fresh.table(table).schema
    inner = [f"Place.{field.name}" for field in schema.field("Place").type] if "Place" in schema.names else []
    return [*(name for name in schema.names if name not in ("rowid", "Place")), *inner]


def test_alter_finds_schema_table_columns_and_fields_in_any_case(lake: Lake, db: AirportClient) -> None:
    alter(db, "add_column", column_schema=FIELD, if_column_not_exists=False)
    alter(db, "rename_column", old_name="NOTE", new_name="Remark")
    alter(db, "rename_field", column_path=["PLACE", "CITY"], new_name="Town")
    alter(db, "remove_field", column_path=["place", "ZIP"], if_column_exists=False, cascade=False)
    assert columns(lake) == ["Id", "Remark", "Place.Town"]
    alter(db, "remove_column", removed_column="remark", if_column_exists=False, cascade=False)
    alter(db, "add_column", column_schema=pa.schema({"ID": pa.string()}).serialize().to_pybytes(), if_column_not_exists=True)  # fmt: skip
    assert columns(lake) == ["Id", "Place.Town"]


def test_rename_and_drop_find_schema_and_table_in_any_case(lake: Lake, db: AirportClient) -> None:
    alter(db, "rename_table", new_table_name="Bills")
    assert columns(lake, "Sales.Bills") == ["Id", "Place.City", "Place.Zip"]
    drop = {"catalog_name": "managed", "ignore_not_found": False}
    act(db, "drop_table", **drop, type="table", schema_name="sales", name="BILLS")
    act(db, "drop_schema", **drop, type="schema", schema_name="", name="SALES")
    with lake.client() as fresh:
        assert [schema.name for schema in fresh.schemas()] == ["skiway"]


def test_exact_name_wins_over_another_case(lake: Lake, tmp_path: Any) -> None:
    """A connector mirrors names that differ in case only."""
    source = tmp_path / "source"
    for name in ("t", "T"):
        (source / name).mkdir(parents=True)
        pa.parquet.write_table(pa.table({name: [1]}), source / name / "a.parquet")
    lake.mirror("parquet", str(source))
    with lake.client("parquet") as db:
        assert {name: db.scan(f"root.{name}").read_all().column_names for name in ("t", "T")} == {
            "t": ["t"],
            "T": ["T"],
        }


NOT_NORMAL = {" padded": "padded", "two  words": "two words", "ﬁle": "file", "Ａ": "A", "tab\tbed": "tab bed"}


@pytest.mark.parametrize("name", NOT_NORMAL)
def test_name_that_normalization_would_change_is_rejected_with_the_normal_form(
    lake: Lake, db: AirportClient, name: str
) -> None:
    expected = rf"the name {name!r} cannot be stored as it is: use {NOT_NORMAL[name]!r} \("
    for attempt in (
        lambda: db.create_schema(name),
        lambda: db.create_schema(f"Sales.{name}"),
        lambda: db.create_table(("Sales", name), COLUMNS),
        lambda: db.create_table(("Sales", name), COLUMNS, on_conflict="ignore"),
        lambda: db.create_table_as(("Sales", name), COLUMNS.empty_table()),
        lambda: db.rename_table("Sales.Orders", name),
        lambda: lake.catalog(name),
    ):
        with pytest.raises(InvalidArgument, match=expected.replace("\\t", "\\\\t")):
            attempt()
    with lake.rest() as rest:
        for call in (
            lambda: rest.create_namespace((name,)),
            lambda: rest.create_table(("Sales", name), COLUMNS),
            lambda: rest.rename_table(("Sales", "Orders"), ("Sales", name)),
        ):
            with pytest.raises(BadRequestError, match="cannot be stored as it is"):
                call()
    with lake.client() as fresh:
        assert [schema.name for schema in fresh.schemas()] == ["Sales", "skiway"]
        assert [table.name for schema in fresh.schemas() if schema.name == "Sales" for table in schema.tables] == [
            "Orders"
        ]


def test_names_of_columns_are_stored_as_given(lake: Lake, db: AirportClient) -> None:
    names = list(NOT_NORMAL)
    db.create_table("Sales.Odd", pa.schema({name: pa.int32() for name in names}))
    assert columns(lake, "Sales.Odd") == names


def test_names_that_differ_in_case_only_are_the_same(db: AirportClient) -> None:
    with pytest.raises(AlreadyExists):
        act(db, "create_table", catalog_name="managed", schema_name="SALES", table_name="ORDERS",
            arrow_schema=COLUMNS.serialize().to_pybytes(), on_conflict="error", not_null_constraints=[],
            unique_constraints=[], check_constraints=[], primary_key_columns=[], unique_columns=[],
            multi_key_primary_keys=[], extra_constraints=[])  # fmt: skip


def test_table_created_over_rest_is_in_the_next_listing(lake: Lake, db: AirportClient) -> None:
    with lake.rest() as rest:
        for number in range(5):
            with lake.client() as before:
                before.schemas()
            rest.create_table(("Sales", f"t{number}"), pa.schema({"id": pa.int64()}))
            with lake.client() as after:
                assert after.table(f"Sales.t{number}").schema.names == ["id", "rowid"]
