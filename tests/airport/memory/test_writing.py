"""INSERT, UPDATE and DELETE: what is stored, returned and rejected."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airport.memory.tables import begin, catalog_of, content, delete, insert, people, update, write
from skiway.airport.memory import MemoryTable
from skiway.airport.tables import ScanOptions
from skiway.errors import Conflict, InvalidArgument, NotFound, NullRowId


def row_ids(table: MemoryTable) -> list[int]:
    ids: list[int] = table.scan(ScanOptions(columns=["rowid"])).read_all()["rowid"].to_pylist()
    return ids


def filled(**rules: Any) -> MemoryTable:
    table = people(**rules)
    insert(table, {"id": [1, 2, 3], "name": ["Ada", "Grace", "Joan"]})
    return table


def test_inserted_rows_are_visible_only_after_the_commit() -> None:
    table = people()
    statement = begin(table, "insert", table.projected_schema(["id", "name"]))
    assert statement.apply(pa.record_batch({"id": [1], "name": ["Ada"]})) is None
    assert content(table) == []
    assert statement.commit() == 1
    assert content(table) == [(1, "Ada")]


def test_aborted_statement_changes_nothing() -> None:
    table = people()
    statement = begin(table, "insert", table.projected_schema(["id", "name"]))
    statement.apply(pa.record_batch({"id": [1], "name": ["Ada"]}))
    statement.abort()
    assert content(table) == []


def test_insert_returns_one_batch_with_all_visible_columns_per_batch() -> None:
    table = people()
    batches = [
        pa.record_batch({"name": ["Ada", "Grace"], "id": [1, 2]}),
        pa.record_batch({"name": ["Joan"], "id": [3]}),
    ]
    count, returned = write(table, "insert", batches)
    assert count == 3
    assert [batch.schema.names for batch in returned] == [["id", "name"]] * 2
    assert [batch.to_pydict() for batch in returned] == [
        {"id": [1, 2], "name": ["Ada", "Grace"]},
        {"id": [3], "name": ["Joan"]},
    ]


def test_omitted_columns_get_their_default_or_null() -> None:
    default = pa.field("name", pa.string(), metadata={"default": "'nobody ' || 1 + 1"})
    table = people(schema=pa.schema([pa.field("id", pa.int64()), default, pa.field("age", pa.int32())]))
    _, returned = write(table, "insert", [pa.record_batch({"id": [1, 2]})])
    assert returned[0].to_pylist() == [{"id": i, "name": "nobody 2", "age": None} for i in (1, 2)]
    assert content(table) == [(1, "nobody 2", None), (2, "nobody 2", None)]


def test_volatile_default_is_evaluated_for_each_row() -> None:
    table = people(
        schema=pa.schema([pa.field("id", pa.int64()), pa.field("key", pa.uuid(), metadata={"default": "uuid()"})])
    )
    insert(table, {"id": list(range(100))})
    assert len({key for _, key in content(table)}) == 100


def test_unknown_column_is_rejected_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"no column 'nam'; it has 'id', 'name'"):
        insert(people(), {"id": [1], "nam": ["Ada"]})


def test_duplicate_column_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="'ID' of table 'people' occurs twice in the input"):
        insert(people(), {"id": [1], "ID": [2]})


def test_statements_without_batches_create_no_version() -> None:
    table = filled()
    before = catalog_of(table).version()
    for operation in ("insert", "update", "delete"):
        assert begin(table, operation, table.schema.remove(2) if operation == "insert" else table.schema).commit() == 0
    assert catalog_of(table).version() == before


def test_empty_batches_return_empty_batches_and_create_no_version() -> None:
    table = filled()
    before = catalog_of(table).version()
    for operation, schema in {
        "insert": pa.schema({"id": pa.int64(), "name": pa.string()}),
        "update": pa.schema({"name": pa.string(), "rowid": pa.int64()}),
        "delete": pa.schema({"rowid": pa.int64()}),
    }.items():
        count, (returned,) = write(table, operation, [pa.RecordBatch.from_pylist([], schema=schema)])  # type: ignore[arg-type]
        assert (count, returned.num_rows) == (0, 0)
        assert returned.schema.names == (schema.names if operation == "update" else ["id", "name"])
    assert catalog_of(table).version() == before


def test_update_changes_the_given_rows_and_keeps_their_order() -> None:
    table = filled()
    assert update(table, {"name": ["GRACE", "ADA"], "rowid": [1, 0]}) == 2
    assert content(table) == [(1, "ADA"), (2, "GRACE"), (3, "Joan")]
    assert row_ids(table) == [0, 1, 2]


def test_update_returns_its_input_columns_in_order_with_the_row_id_last() -> None:
    table = filled()
    batch = pa.record_batch({"name": ["x"], "id": [9], "rowid": pa.array([1], pa.int64())})
    _, (returned,) = write(table, "update", [batch])
    assert returned.equals(batch)
    marked = pa.schema([pa.field("key", pa.int64(), metadata={"is_rowid": "1"}), pa.field("name", pa.string())])
    _, (returned,) = write(table, "update", [pa.record_batch([[2], ["y"]], schema=marked)])
    assert returned.schema.names == ["name", "key"]
    assert returned.to_pylist() == [{"name": "y", "key": 2}]
    assert content(table) == [(1, "Ada"), (9, "x"), (3, "y")]


def test_last_of_two_updates_of_a_row_in_one_statement_wins() -> None:
    table = filled()
    batches = [
        pa.record_batch({"name": ["a", "b"], "rowid": [1, 1]}),
        pa.record_batch({"name": ["c", "d"], "rowid": [0, 1]}),
    ]
    count, returned = write(table, "update", batches)
    assert count == 2
    assert [batch.num_rows for batch in returned] == [2, 2]
    assert content(table) == [(1, "c"), (2, "d"), (3, "Joan")]


def test_delete_returns_the_deleted_rows_in_the_requested_order() -> None:
    table = filled()
    batches = [pa.record_batch({"rowid": [2, 0]}), pa.record_batch({"rowid": [2]})]
    count, returned = write(table, "delete", batches)
    assert count == 2
    assert [batch.to_pylist() for batch in returned] == [
        [{"id": 3, "name": "Joan"}, {"id": 1, "name": "Ada"}],
        [{"id": 3, "name": "Joan"}],
    ]
    assert content(table) == [(2, "Grace")]


def test_row_ids_are_never_reused() -> None:
    table = filled()
    delete(table, [2])
    aborted = begin(table, "insert", table.projected_schema(["id", "name"]))
    aborted.apply(pa.record_batch({"id": [8], "name": ["x"]}))
    aborted.abort()
    insert(table, {"id": [9], "name": ["y"]})
    assert row_ids(table) == [0, 1, 4]


@pytest.mark.parametrize("data_type", [pa.int64(), pa.int32(), pa.uint64()])
def test_row_ids_are_accepted_in_three_integer_types(data_type: pa.DataType) -> None:
    table = filled()
    write(table, "delete", [pa.record_batch({"rowid": pa.array([1], data_type)})])
    assert content(table) == [(1, "Ada"), (3, "Joan")]


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_invalid_row_ids_are_rejected_and_change_nothing(operation: Any) -> None:
    table = filled()

    def attempt(ids: pa.Array, name: str = "rowid") -> None:
        columns = {"id": [7] * len(ids)} if operation == "update" else {}
        write(table, operation, [pa.record_batch({**columns, name: ids})])

    with pytest.raises(NullRowId):
        attempt(pa.array([1, None], pa.int64()))
    with pytest.raises(NotFound, match="no row with id 77"):
        attempt(pa.array([1, 77], pa.int64()))
    with pytest.raises(NotFound):
        attempt(pa.array([2**63], pa.uint64()))
    with pytest.raises(InvalidArgument, match="rowid must be integer type"):
        attempt(pa.array(["1"]))
    with pytest.raises(InvalidArgument, match=f"{operation.upper()} requires rowid column"):
        attempt(pa.array([1], pa.int64()), "id" if operation == "delete" else "name")
    assert content(table) == [(1, "Ada"), (2, "Grace"), (3, "Joan")]


def test_first_of_two_concurrent_updates_wins_and_the_second_changes_nothing() -> None:
    table = filled()
    batch = pa.record_batch({"name": ["second", "second"], "rowid": [0, 1]})
    second = begin(table, "update", batch.schema)
    second.apply(batch)
    update(table, {"name": ["first"], "rowid": [1]})
    with pytest.raises(Conflict, match="row 1 of people was changed or deleted"):
        second.commit()
    assert content(table) == [(1, "Ada"), (2, "first"), (3, "Joan")]


@pytest.mark.parametrize("operation", ["update", "delete"])
def test_concurrently_deleted_row_is_a_conflict(operation: Any) -> None:
    table = filled()
    batch = pa.record_batch({"id": [5], "rowid": [1]}) if operation == "update" else pa.record_batch({"rowid": [1]})
    late = begin(table, operation, batch.schema)
    late.apply(batch)
    delete(table, [1])
    with pytest.raises(Conflict):
        late.commit()
    assert content(table) == [(1, "Ada"), (3, "Joan")]


def test_row_inserted_after_the_statement_began_is_a_conflict() -> None:
    table = filled()
    late = begin(table, "update", pa.schema({"name": pa.string(), "rowid": pa.int64()}))
    insert(table, {"id": [4], "name": ["Edith"]})
    with pytest.raises(Conflict, match="was inserted after this statement began"):
        late.apply(pa.record_batch({"name": ["x"], "rowid": [3]}))


def test_concurrent_statements_on_different_rows_do_not_conflict() -> None:
    table = filled()
    batch = pa.record_batch({"name": ["ADA"], "rowid": [0]})
    late = begin(table, "update", batch.schema)
    late.apply(batch)
    insert(table, {"id": [4], "name": ["Edith"]})
    delete(table, [1])
    update(table, {"name": ["JOAN"], "rowid": [2]})
    assert late.commit() == 1
    assert content(table) == [(1, "ADA"), (3, "JOAN"), (4, "Edith")]


def test_statement_on_a_concurrently_altered_table_is_a_conflict() -> None:
    table = filled()
    late = begin(table, "insert", table.projected_schema(["id", "name"]))
    late.apply(pa.record_batch({"id": [4], "name": ["Edith"]}))
    table.add_column(pa.field("age", pa.int32()))
    with pytest.raises(Conflict, match="altered or dropped"):
        late.commit()
    assert len(content(table)) == 3


def test_statement_does_not_write_to_a_recreated_table() -> None:
    table = filled()
    schema = catalog_of(table).schema("public")
    assert schema
    late = begin(table, "insert", table.projected_schema(["id", "name"]))
    late.apply(pa.record_batch({"id": [4], "name": ["Edith"]}))
    schema.drop_table("people")
    people(catalog_of(table))
    with pytest.raises(Conflict):
        late.commit()
    assert content(table) == []
