"""Equality deletes: by field id, NULLs included, only in older files, whatever the scan reads."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import NestedField

from formats.delete_files import add_equality_deletes, add_position_deletes
from formats.iceberg.test_deletes import now, read, with_small_row_groups
from formats.managed import LooseTable
from formats.pushed_filters import pushed_filter
from skiway.errors import Unsupported
from skiway.formats.iceberg.changes.commits import append, plain
from skiway.formats.iceberg.changes.evolution import AddColumn, DropColumn, RenameColumn, WidenColumn, evolve
from skiway.formats.iceberg.deletes import EqualityDeletes
from skiway.formats.readers.scanning import ROW_POSITION
from skiway.formats.schemas import with_id

PEOPLE = pa.schema({"id": pa.int32(), "name": pa.string(), "part": pa.int64()})


def people(*rows: tuple[int, str | None, int | None]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    return pa.table(
        [pa.array(list(column), field.type) for column, field in zip(columns, PEOPLE, strict=True)], schema=PEOPLE
    )


def with_people(folder: Path) -> LooseTable:
    table = LooseTable(folder, PEOPLE)
    table.append(people((1, "a", 1), (2, None, 1), (3, "a", None), (4, None, None), (5, "b", 1)))
    return table


def ids(table: LooseTable, **options: Any) -> list[int]:
    return sorted(read(table, **options)["id"].to_pylist())


@pytest.mark.parametrize(
    ("keys", "columns", "expected"),
    [
        ({"name": ["a"]}, [2], [2, 4, 5]),
        ({"name": [None]}, [2], [1, 3, 5]),
        ({"name": ["a", None], "part": [None, 1]}, [2, 3], [1, 4, 5]),
        ({"part": [1], "name": ["a"]}, [3, 2], [2, 3, 4, 5]),
        ({"name": ["a", "b"], "part": [7, None]}, [2, 3], [1, 2, 3, 4, 5]),
        ({"name": [None], "part": [None]}, [2, 3], [1, 2, 3, 5]),
        ({"id": [5, 5, 1], "name": ["b", "b", "x"]}, [1, 2], [1, 2, 3, 4]),
        ({"name": []}, [2], [1, 2, 3, 4, 5]),
    ],
    ids=str,
)
def test_rows_are_deleted_if_all_columns_equal_those_of_one_key(
    tmp_path: Path, keys: dict[str, list[Any]], columns: list[int], expected: list[int]
) -> None:
    table = with_people(tmp_path)
    rows = pa.table({name: pa.array(values, PEOPLE.field(name).type) for name, values in keys.items()})
    add_equality_deletes(table, rows, columns)
    assert ids(table) == expected


@pytest.mark.needs("duckdb extensions")
def test_tables_with_equality_deletes_have_the_rows_that_duckdb_reads(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    """Without NULLs: DuckDB 1.5.5 also deletes rows that have one in a compared column."""
    table = LooseTable(tmp_path, PEOPLE)
    table.append(people((1, "a", 1), (2, "a", 2), (3, "b", 1)))
    add_equality_deletes(table, pa.table({"name": ["a"], "part": [1]}), [2, 3])
    table.append(people((6, "a", 1)))
    expected = duck.execute("SELECT id FROM iceberg_scan(?) ORDER BY id", [table.location]).fetchall()
    assert [(number,) for number in ids(table)] == expected == [(2,), (3,), (6,)]


def test_equality_deletes_apply_to_older_files_only(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    add_equality_deletes(table, pa.table({"name": ["a"]}), [2])
    table.append(people((6, "a", 1)))
    add_equality_deletes(table, pa.table({"id": pa.array([6, 7], pa.int32())}), [1])
    table.append(people((7, "a", 1)))
    assert ids(table) == [2, 4, 5, 7]


def test_rows_of_the_same_commit_are_not_deleted(tmp_path: Path) -> None:
    """An engine that upserts commits the deleted keys together with the new rows."""
    table = with_people(tmp_path)
    written = table.write(people((1, "new", 1)))

    def produce(metadata: Any, files: Any, clock: Any) -> Any:
        from formats.delete_files import equality_delete_manifest
        from skiway.formats.iceberg.changes.commits import Change
        from skiway.formats.iceberg.changes.snapshots import NewSnapshot

        snapshot = NewSnapshot(metadata, files, clock=clock)
        snapshot.add(written)
        keys = pa.table({"id": pa.array([1], pa.int32())})
        equality_delete_manifest(table, snapshot, keys, [1])
        return Change(snapshot.requirements, snapshot.finish("overwrite", {}))

    table.change(produce)
    assert sorted(read(table)["name"].to_pylist(), key=str) == [None, None, "a", "b", "new"]
    assert ids(table) == [1, 2, 3, 4, 5]


def test_renamed_columns_are_compared_by_id(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    table.change(evolve([RenameColumn("name", "old"), RenameColumn("part", "name")]))
    add_equality_deletes(table, pa.table({"old": ["a"]}), [2])
    assert ids(table, schema=table.handle.schema.arrow) == [2, 4, 5]


def test_dropped_columns_are_still_compared(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    add_equality_deletes(table, pa.table({"name": ["a"]}), [2])
    table.change(evolve([DropColumn("name")]))
    found = read(table, schema=table.handle.schema.arrow)
    assert found.column_names == ["id", "part"]
    assert sorted(found["id"].to_pylist()) == [2, 4, 5]


def test_column_that_a_file_does_not_have_is_null_in_it(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    table.change(evolve([AddColumn("extra", pa.int64())]))
    more = pa.table({"id": pa.array([8, 9], pa.int32()), "extra": [None, 9]})
    table.append(more.append_column("name", pa.nulls(2, pa.string())).append_column("part", pa.nulls(2, pa.int64())))
    add_equality_deletes(
        table, pa.table({"id": pa.array([1, 8, 9], pa.int32()), "extra": pa.nulls(3, pa.int64())}), [1, 4]
    )
    assert ids(table) == [2, 3, 4, 5, 9]


def test_column_that_a_file_does_not_have_has_its_default(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, PEOPLE, format_version="3")
    table.append(people((1, "a", 1), (2, "b", 1)))
    schema = table.metadata.schema()
    added = NestedField(4, "extra", "int", required=False, initial_default=7, write_default=7)
    changed = type(schema)(*schema.fields, added, schema_id=1)
    table.change(plain([], [AddSchemaUpdate(schema=changed), SetCurrentSchemaUpdate(schema_id=-1)]))
    keys = pa.table({"id": pa.array([1, 2], pa.int32()), "extra": pa.array([7, None], pa.int32())})
    add_equality_deletes(table, keys, [1, 4])
    assert ids(table) == [2]


def test_keys_of_a_widened_column_match(tmp_path: Path) -> None:
    """Keys and rows from before and after the change, in all combinations."""
    table = with_people(tmp_path)
    add_equality_deletes(table, pa.table({"id": pa.array([1], pa.int32())}), [1])
    table.change(evolve([WidenColumn("id", pa.int64())]))
    table.append(pa.table({"id": [2**40, 2], "name": ["x", "y"], "part": [1, 1]}))
    add_equality_deletes(table, pa.table({"id": pa.array([2, 2**40])}), [1])
    assert ids(table, schema=table.handle.schema.arrow) == [3, 4, 5]


def test_fields_of_structs_are_compared(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "st": pa.struct({"k": pa.int32(), "in": pa.struct({"z": pa.string()})})})
    table = LooseTable(tmp_path, schema)
    table.append(
        pa.Table.from_pylist(
            [
                {"id": 1, "st": {"k": 1, "in": {"z": "a"}}},
                {"id": 2, "st": {"k": 1, "in": None}},
                {"id": 3, "st": None},
                {"id": 4, "st": {"k": 2, "in": {"z": "a"}}},
            ],
            schema=schema,
        )
    )
    stored = table.handle.schema.arrow.field("st")
    inner = stored.type.field("in")
    only_z = with_id(pa.field("in", pa.struct([inner.type.field("z")])), 4)
    keys = pa.table(
        {
            "st": pa.array(
                [{"k": 1, "in": {"z": "a"}}, {"k": None, "in": None}], pa.struct([stored.type.field("k"), only_z])
            )
        }
    )
    keys = keys.cast(pa.schema([with_id(pa.field("st", keys.schema.field("st").type), 2)]))
    add_equality_deletes(table, keys, [2], equality_ids=[3, 5])
    assert ids(table) == [2, 4]


VALUES = [
    (pa.int64(), [1, 2]),
    (pa.string(), ["a", "ä"]),
    (pa.binary(), [b"", b"\0"]),
    (pa.bool_(), [True, False]),
    (pa.date32(), [date(2026, 1, 1), date(1969, 1, 1)]),
    (pa.timestamp("us"), [datetime(2026, 1, 1), datetime(1900, 1, 1)]),
    (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, 1), datetime(1900, 1, 1)]),
    (pa.time64("us"), [1, 2]),
    (pa.decimal128(20, 3), [Decimal("1.5"), Decimal("-2.125")]),
    (pa.float64(), [float("nan"), 1.0]),
    (pa.uuid(), [UUID(int=1).bytes, UUID(int=2).bytes]),
    (pa.binary(3), [b"abc", b"abd"]),
]


@pytest.mark.parametrize(("of", "values"), VALUES, ids=lambda each: str(each) if isinstance(each, pa.DataType) else "")
def test_values_of_every_type_are_compared(tmp_path: Path, of: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema({"n": pa.int64(), "v": of})
    table = LooseTable(tmp_path, schema)
    table.append(pa.table({"n": [0, 1, 2], "v": pa.array([*values, None], of)}, schema=schema))
    add_equality_deletes(table, pa.table({"v": pa.array(values[:1], of)}), [2])
    assert sorted(read(table)["n"].to_pylist()) == [1, 2]
    add_equality_deletes(table, pa.table({"v": pa.array([None], of)}), [2])
    assert read(table)["n"].to_pylist() == [1]


@pytest.mark.parametrize("columns", [None, ["x"], ["note"], []], ids=str)
@pytest.mark.parametrize("predicate", ["", "x > 21 AND x < 60", "x = 40", "note = 'n41'", "x >= 0"])
def test_rows_stay_deleted_whatever_is_read(tmp_path: Path, predicate: str, columns: list[str] | None) -> None:
    """Equality and position deletes together; the compared column is not always read."""
    table, path = with_small_row_groups(tmp_path, "2")
    add_equality_deletes(table, pa.table({"note": [f"n{number}" for number in range(0, 100, 4)]}), [2])
    add_position_deletes(table, path, 1, 41, 42)
    remaining = [number for number in range(100) if number % 4 and number not in (1, 41, 42)]
    matching = {"": remaining, "x > 21 AND x < 60": [each for each in remaining if 21 < each < 60], "x >= 0": remaining}
    condition = pushed_filter(predicate, pa.schema({"x": pa.int64(), "note": pa.string()})) if predicate else None
    found = read(table, filter=condition, columns=columns, positions=True, batch_rows=7)
    assert found[ROW_POSITION].to_pylist() == matching.get(predicate, [])
    if columns is None:
        assert found["x"].to_pylist() == matching.get(predicate, [])


def test_number_of_deleted_rows_is_unknown(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    add_equality_deletes(table, pa.table({"name": ["a"]}), [2])
    files = table.handle.plan(now(table))
    assert files["deleted_rows"].to_pylist() == [None]


def test_files_with_equality_deletes_are_not_plain_files(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    assert table.handle.plain_files(now(table), table.handle.plan(now(table))) is not None
    add_equality_deletes(table, pa.table({"name": ["a"]}), [2])
    assert table.handle.plain_files(now(table), table.handle.plan(now(table))) is None


def test_delete_by_a_column_that_the_table_never_had_is_rejected(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    add_equality_deletes(table, pa.table({"ghost": ["a"]}), [99])
    with pytest.raises(Unsupported, match=r"equality deletes by a column with id 99, which none of its schemas has"):
        read(table)


def test_many_keys_are_found() -> None:
    """Combinations of values that occur, but not together, are not keys."""
    field, other = (with_id(pa.field(name, pa.int64()), number) for name, number in (("a", 1), ("b", 2)))
    numbers = list(range(1000))
    keys = EqualityDeletes.of((field, other), [pa.table({"a": numbers, "b": [each * 7 % 1000 for each in numbers]})])
    rows = [pa.array([5, 5, None, 999, 1000]), pa.array([35, 36, 35, 993, 0])]
    assert keys.matches(rows).to_pylist() == [True, False, False, True, False]


def test_field_of_a_null_struct_is_null() -> None:
    """Whatever value is stored below the NULL."""
    nulls = pa.StructArray.from_arrays([pa.array([1, 1])], names=["k"], mask=pa.array([False, True]))
    field = with_id(pa.field("st", nulls.type), 1)
    keys = EqualityDeletes.of((field,), [pa.table({"st": pa.array([{"k": 1}], nulls.type)})])
    assert keys.matches([nulls]).to_pylist() == [True, False]


def test_appended_files_are_read_without_the_deletes(tmp_path: Path) -> None:
    table = with_people(tmp_path)
    add_equality_deletes(table, pa.table({"name": ["a"]}), [2])
    table.change(append(table.write(people((1, "a", 1)))))
    assert ids(table) == [1, 2, 4, 5]
