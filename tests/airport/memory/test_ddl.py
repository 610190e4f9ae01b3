"""CREATE, DROP and ALTER with every option; names, defaults and type conversions."""

from __future__ import annotations

import duckdb
import msgspec
import pyarrow as pa
import pytest

from airport.memory.tables import PEOPLE, catalog_of, content, insert, people, update
from skiway.airport.catalog import CreateTable
from skiway.airport.memory import MemoryCatalog, MemorySchema, MemoryTable
from skiway.airport.tables import TimePoint
from skiway.errors import (
    AlreadyExists,
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    SchemaNotEmpty,
)


def public() -> MemorySchema:
    schema = MemoryCatalog("scratch", schemas=["public"]).schema("public")
    assert schema
    return schema


def filled(**rules: object) -> MemoryTable:
    table = people(**rules)
    insert(table, {"id": [1, 2], "name": ["10", None]})
    return table


def version(table: MemoryTable) -> int:
    return catalog_of(table).version().version


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_new_catalog_is_empty() -> None:
    catalog = MemoryCatalog("scratch")
    assert catalog.name == "scratch"
    assert catalog.schemas() == []
    assert catalog.schema("public") is None
    assert catalog.version().version == 0


def test_schema_names_are_unique_and_case_insensitive() -> None:
    catalog = MemoryCatalog()
    catalog.create_schema("Sales", comment="orders", tags={"owner": "Ada"})
    found = catalog.schema("sALES")
    assert found
    assert (found.name, found.comment, found.tags) == ("Sales", "orders", {"owner": "Ada"})
    with pytest.raises(AlreadyExists, match="SALES"):
        catalog.create_schema("SALES")
    assert [schema.name for schema in catalog.schemas()] == ["Sales"]


@pytest.mark.parametrize("name", ["main", "MAIN"])
def test_a_schema_that_duckdb_cannot_query_is_rejected(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"cannot be named '{name}', because DuckDB cannot query it"):
        MemoryCatalog("scratch").create_schema(name)
    with pytest.raises(InvalidArgument, match="choose another name"):
        MemoryCatalog("scratch", schemas=[name])


def test_names_are_case_insensitive_for_ascii_letters_only_as_in_duckdb() -> None:
    duck = duckdb.connect()
    duck.execute('CREATE SCHEMA "Ä"; CREATE SCHEMA "ä"')
    catalog = MemoryCatalog(schemas=["Ä", "ä"])
    assert len(catalog.schemas()) == 2


def test_only_an_empty_schema_can_be_dropped() -> None:
    table = people()
    catalog = catalog_of(table)
    with pytest.raises(SchemaNotEmpty, match="'people'"):
        catalog.drop_schema("public")
    schema = catalog.schema("public")
    assert schema
    schema.drop_table("people")
    catalog.drop_schema("PUBLIC")
    assert catalog.schemas() == []


def test_dropping_a_missing_schema_fails_without_if_exists() -> None:
    catalog = MemoryCatalog()
    with pytest.raises(NotFound, match="'nope'"):
        catalog.drop_schema("nope")
    catalog.drop_schema("nope", if_exists=True)
    assert catalog.version().version == 0


# -- tables -----------------------------------------------------------------------------------------------------------


def test_creating_an_existing_table_fails_is_ignored_or_replaces_it() -> None:
    schema = public()
    schema.create_table(CreateTable("People", PEOPLE))
    other = pa.schema({"x": pa.int8()})
    with pytest.raises(AlreadyExists, match=r"public\.PEOPLE"):
        schema.create_table(CreateTable("PEOPLE", other))
    assert schema.create_table(CreateTable("PEOPLE", other, on_conflict="ignore")).name == "People"
    replaced = schema.create_table(CreateTable("PEOPLE", other, on_conflict="replace"))
    assert (replaced.name, replaced.schema.names) == ("PEOPLE", ["x", "rowid"])
    assert [table.name for table in schema.tables()] == ["PEOPLE"]


def test_replacing_a_table_keeps_the_history_of_the_old_one() -> None:
    table = filled()
    schema = catalog_of(table).schema("public")
    assert schema
    before = version(table)
    replaced = schema.create_table(CreateTable("people", pa.schema({"x": pa.int8()}), on_conflict="replace"))
    assert replaced.row_count() == 0
    past = replaced.at(TimePoint("version", str(before)))
    assert past
    assert past.to_arrow()["id"].to_pylist() == [1, 2]


def test_table_can_be_renamed_even_if_only_the_case_changes() -> None:
    table = filled()
    schema = catalog_of(table).schema("public")
    assert schema
    schema.rename_table("people", "People")
    assert [t.name for t in schema.tables()] == ["People"]
    schema.create_table(CreateTable("other", PEOPLE))
    with pytest.raises(AlreadyExists, match="'OTHER'"):
        schema.rename_table("People", "OTHER")
    schema.rename_table("people", "persons")
    renamed = schema.table("persons")
    assert renamed
    assert content(renamed) == [(1, "10"), (2, None)]
    assert schema.table("people") is None
    with pytest.raises(NotFound):
        schema.rename_table("people", "x")
    schema.rename_table("people", "x", if_exists=True)


def test_dropping_a_missing_table_fails_without_if_exists() -> None:
    schema = public()
    with pytest.raises(NotFound, match=r"public\.nope"):
        schema.drop_table("nope")
    schema.drop_table("nope", if_exists=True)


def test_dropped_table_cannot_be_read_through_an_old_object() -> None:
    table = filled()
    schema = catalog_of(table).schema("public")
    assert schema
    schema.drop_table("people")
    with pytest.raises(NotFound, match=r"public\.people"):
        table.row_count()


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (pa.schema([]), "at least one column"),
        (pa.schema({"rowid": pa.int64()}), "row id"),
        (pa.schema([pa.field("x", pa.int64(), metadata={"is_rowid": "1"})]), "row id"),
        (pa.schema([("a", pa.int8()), ("A", pa.int8())]), "already has a column 'a'"),
        (pa.schema({"": pa.int8()}), "empty"),
        (pa.schema({"half": pa.float16()}), "halffloat"),
        (pa.schema({"wide": pa.decimal256(50, 2)}), "decimal256"),
    ],
)
def test_invalid_columns_are_rejected(schema: pa.Schema, complaint: str) -> None:
    with pytest.raises((InvalidArgument, AlreadyExists), match=complaint):
        public().create_table(CreateTable("t", schema))


def test_invalid_defaults_are_rejected_when_the_table_is_created() -> None:
    for default in ("nope", "1; SELECT 2", "(SELECT 1)"):
        with pytest.raises(InvalidArgument):
            public().create_table(
                CreateTable("t", pa.schema([pa.field("a", pa.int64(), metadata={"default": default})]))
            )


# -- columns ----------------------------------------------------------------------------------------------------------


def test_every_schema_change_creates_a_version_unless_it_was_ignored() -> None:
    table = filled()
    before = version(table)
    table.add_column(pa.field("age", pa.int32()))
    assert version(table) == before + 1
    table.add_column(pa.field("AGE", pa.int32()), if_not_exists=True)
    table.remove_column("nope", if_exists=True)
    assert version(table) == before + 1


def test_new_column_is_null_or_has_its_default_in_existing_rows() -> None:
    table = filled()
    table.add_column(pa.field("age", pa.int32()))
    table.add_column(pa.field("score", pa.float64(), metadata={"default": "1 + 0.5"}))
    assert content(table) == [(1, "10", None, 1.5), (2, None, None, 1.5)]
    assert table.schema.field("score").metadata == {b"default": b"1 + 0.5"}
    with pytest.raises(AlreadyExists, match="'age'"):
        table.add_column(pa.field("Age", pa.int32()))


def test_new_not_null_column_needs_a_default_if_there_are_rows() -> None:
    table = filled()
    with pytest.raises(ConstraintViolation, match=r"people\.age"):
        table.add_column(pa.field("age", pa.int32(), nullable=False))
    table.add_column(pa.field("age", pa.int32(), nullable=False, metadata={"default": "7"}))
    assert [row[2] for row in content(table)] == [7, 7]
    empty = people()
    empty.add_column(pa.field("age", pa.int32(), nullable=False))
    assert not empty.schema.field("age").nullable


def test_column_is_removed_unless_it_is_the_last_one() -> None:
    table = filled()
    table.remove_column("ID")
    assert content(table) == [("10",), (None,)]
    with pytest.raises(NotFound, match="no column 'id'; it has 'name'"):
        table.remove_column("id")
    with pytest.raises(PreconditionFailed, match="only column"):
        table.remove_column("name")


@pytest.mark.parametrize("rules", [{"primary_key": ("id",)}, {"unique": (("id", "name"),)}, {"checks": ("id > 0",)}])
def test_column_of_a_constraint_is_only_removed_together_with_it(rules: dict[str, tuple[str, ...]]) -> None:
    table = people(**rules)
    insert(table, {"id": [1], "name": ["x"]})
    with pytest.raises(PreconditionFailed, match="depends on it"):
        table.remove_column("id")
    with pytest.raises(PreconditionFailed, match="depends on it"):
        table.change_column_type(pa.field("id", pa.int32()), "id")
    table.remove_column("id", cascade=True)
    assert table.schema.metadata is None
    insert(table, {"name": ["x"]})
    assert content(table) == [("x",), ("x",)]


def test_renamed_column_keeps_its_constraints() -> None:
    table = people(primary_key=("id",), unique=(("name", "id"),), checks=("id > 0 AND length(name) > 1",))
    insert(table, {"id": [1], "name": ["Ada"]})
    table.rename_column("id", "Person No")
    assert table.schema.names == ["Person No", "name", "rowid"]
    announced = msgspec.msgpack.decode(table.schema.metadata[b"check_constraints"])["constraints"]
    assert announced == ['(("Person No" > 0) AND (length("name") > 1))']
    with pytest.raises(ConstraintViolation, match='"Person No: 1" violates primary key'):
        insert(table, {"Person No": [1], "name": ["Bob"]})
    with pytest.raises(ConstraintViolation, match="CHECK"):
        insert(table, {"Person No": [0], "name": ["Bob"]})
    insert(table, {"Person No": [2], "name": ["Bob"]})


def test_column_cannot_take_the_name_of_another() -> None:
    table = filled()
    for name in ("NAME", "name"):
        with pytest.raises(AlreadyExists, match="'name'"):
            table.rename_column("id", name)
    for name in ("rowid", "ROWID", ""):
        with pytest.raises(InvalidArgument):
            table.rename_column("id", name)
    table.rename_column("id", "ID")
    assert table.schema.names == ["ID", "name", "rowid"]


def test_type_change_uses_the_given_expression() -> None:
    table = filled()
    table.change_column_type(pa.field("name", pa.int32()), "CAST(name AS INTEGER) * id + 1")
    assert content(table) == [(1, 11), (2, None)]
    assert table.schema.field("name").type == pa.int32()
    table.change_column_type(pa.field("id", pa.uuid()), "CAST(lpad(id::VARCHAR, 32, '0') AS UUID)")
    assert [str(key)[-2:] for key, _ in content(table)] == ["01", "02"]


def test_type_change_without_an_expression_is_a_cast() -> None:
    table = filled()
    table.change_column_type(pa.field("name", pa.decimal128(9, 2)), "")
    assert str(content(table)[0][1]) == "10.00"


@pytest.mark.parametrize("expression", ["nope + 1", "id +", "1; DROP TABLE people", "name, id", "sum(id)"])
def test_invalid_conversion_expression_is_rejected_with_or_without_rows(expression: str) -> None:
    for table in (filled(), people()):
        before = version(table)
        with pytest.raises(InvalidArgument):
            table.change_column_type(pa.field("id", pa.int32()), expression)
        assert version(table) == before


def test_conversion_that_fails_for_a_row_changes_nothing_and_explains_why() -> None:
    table = people()
    insert(table, {"id": [1], "name": ["Ada"]})
    with pytest.raises(InvalidArgument, match=r"^Conversion Error: Could not convert string 'Ada' to INT32") as refused:
        table.change_column_type(pa.field("name", pa.int32()), "CAST(name AS INTEGER)")
    assert "\n" not in refused.value.message
    assert content(table) == [(1, "Ada")]


def test_not_null_is_set_and_dropped() -> None:
    table = filled()
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: people\.name"):
        table.set_not_null("name")
    assert table.schema.field("name").nullable
    update(table, {"name": ["x"], "rowid": [1]})
    table.set_not_null("name")
    with pytest.raises(ConstraintViolation):
        insert(table, {"id": [3]})
    table.drop_not_null("name")
    insert(table, {"id": [3]})
    with pytest.raises(NotFound, match="'nope'"):
        table.set_not_null("nope")


def test_primary_key_remains_not_null() -> None:
    with pytest.raises(PreconditionFailed, match="primary key"):
        people(primary_key=("id",)).drop_not_null("id")


def test_default_applies_to_later_rows_and_can_be_dropped() -> None:
    table = filled()
    table.set_default("name", "upper('x')")
    insert(table, {"id": [3]})
    table.set_default("name", "")
    insert(table, {"id": [4]})
    assert content(table)[2:] == [(3, "X"), (4, None)]
    assert not table.schema.field("name").metadata


@pytest.mark.parametrize("expression", ["nope", "id + 1", "1; SELECT 2", "(SELECT 1)", "1, 2"])
def test_invalid_default_is_rejected(expression: str) -> None:
    table = filled()
    with pytest.raises(InvalidArgument):
        table.set_default("id", expression)
    assert table.schema.field("id").metadata is None


@pytest.mark.parametrize("target", [pa.int64(), pa.date32(), pa.struct({"x": pa.int64()})])
def test_default_that_does_not_fit_the_type_fails_only_when_it_is_used_as_in_duckdb(target: pa.DataType) -> None:
    table = people(
        schema=pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), metadata={"default": "''"})])
    )
    table.change_column_type(pa.field("name", target), "NULL")
    table.set_default("id", "'x'")
    table.add_column(pa.field("more", pa.int64(), metadata={"default": "'y'"}))
    with pytest.raises(InvalidArgument):
        insert(table, {"id": [1], "more": [2]})
    with pytest.raises(InvalidArgument):
        insert(table, {"name": pa.nulls(1, target), "more": [2]})
    insert(table, {"id": [1], "name": pa.nulls(1, target), "more": [2]})
    with pytest.raises(InvalidArgument):  # now there is a row to fill
        table.add_column(pa.field("last", pa.int64(), metadata={"default": "'z'"}))
    assert content(table) == [(1, None, 2)]


def test_constraint_can_be_added_if_the_rows_satisfy_it() -> None:
    table = filled()
    table.add_constraint("CHECK (id < 10)")
    table.add_constraint("CONSTRAINT one_name UNIQUE (name, id)")
    table.add_constraint("PRIMARY KEY (id)")
    assert not table.schema.field("id").nullable
    for row in ({"id": [11], "name": ["x"]}, {"id": [1], "name": ["x"]}):
        with pytest.raises(ConstraintViolation):
            insert(table, row)
    assert len(content(table)) == 2


def test_constraint_that_rows_violate_is_rejected() -> None:
    table = people()
    insert(table, {"id": [1, 1], "name": ["x", None]})
    for constraint in ("CHECK (id > 1)", "UNIQUE (id)", "PRIMARY KEY (id)", "PRIMARY KEY (name)"):
        with pytest.raises(ConstraintViolation):
            table.add_constraint(constraint)
    assert insert(table, {"id": [1], "name": ["x"]}) == 1


@pytest.mark.parametrize(
    "constraint",
    ["", "NONSENSE", "CHECK (id > 0), extra INTEGER", "CHECK (id > 0), UNIQUE (id)", "extra INTEGER",
     "UNIQUE (nope)", "CHECK (id > 0)); DROP TABLE probe; CREATE TABLE x (a INTEGER"],
)  # fmt: skip
def test_anything_but_a_single_constraint_is_rejected(constraint: str) -> None:
    with pytest.raises(InvalidArgument):
        people().add_constraint(constraint)


# -- struct members ---------------------------------------------------------------------------------------------------

ADDRESS = """
    CREATE TABLE t (id INTEGER, s STRUCT(a INTEGER, b STRUCT(c INTEGER)), l STRUCT(a INTEGER)[],
                    m MAP(VARCHAR, STRUCT(a INTEGER)));
    INSERT INTO t VALUES (1, {'a': 1, 'b': {'c': 2}}, [{'a': 1}, NULL], MAP {'k': {'a': 1}, 'n': NULL}),
                         (2, {'a': NULL, 'b': NULL}, [], MAP {}), (3, NULL, NULL, NULL)
"""


def beside_duckdb() -> tuple[duckdb.DuckDBPyConnection, MemoryTable]:
    duck = duckdb.connect()
    duck.execute(ADDRESS)
    return duck, public().add_table("t", duck.execute("FROM t").to_arrow_table())


def same(duck: duckdb.DuckDBPyConnection, table: MemoryTable) -> bool:
    actual = duck.from_arrow(table.to_arrow())
    expected = duck.table("t")
    return bool(actual.types == expected.types and actual.fetchall() == expected.fetchall())


def test_struct_members_are_added_renamed_and_removed_as_in_duckdb() -> None:
    duck, table = beside_duckdb()
    assert same(duck, table)
    duck.execute("ALTER TABLE t ADD COLUMN s.k INTEGER")
    table.add_field(["s"], pa.field("k", pa.int32()))
    assert same(duck, table)
    duck.execute("ALTER TABLE t ADD COLUMN s.b.d INTEGER DEFAULT 7")
    table.add_field(["S", "B"], pa.field("d", pa.int32(), metadata={"default": "7"}))
    assert same(duck, table)
    duck.execute("ALTER TABLE t ADD COLUMN l.element.k VARCHAR")
    table.add_field(["l", "element"], pa.field("k", pa.string()))
    assert same(duck, table)
    duck.execute("ALTER TABLE t ADD COLUMN m.value.k VARCHAR")
    table.add_field(["m", "value"], pa.field("k", pa.string()))
    assert same(duck, table)
    duck.execute("ALTER TABLE t RENAME COLUMN s.b.c TO q")
    table.rename_field(["s", "b", "c"], "q")
    assert same(duck, table)
    duck.execute("ALTER TABLE t DROP COLUMN s.a")
    table.remove_field(["s", "a"])
    assert same(duck, table)
    duck.execute("ALTER TABLE t DROP COLUMN l.element.a")
    table.remove_field(["l", "element", "a"])
    assert same(duck, table)


def test_rows_written_after_a_member_was_added_have_it() -> None:
    _, table = beside_duckdb()
    table.add_field(["s", "b"], pa.field("d", pa.int32()))
    insert(table, {"id": pa.array([4], pa.int32()), "s": [{"a": 1, "b": {"c": 2, "d": 3}}]})
    assert content(table)[-1] == (4, {"a": 1, "b": {"c": 2, "d": 3}}, None, None)


def test_member_changes_are_rejected_where_duckdb_rejects_them() -> None:
    _, table = beside_duckdb()
    member = pa.field("a", pa.int32())
    with pytest.raises(AlreadyExists, match="'A'"):
        table.add_field(["s"], member.with_name("A"))
    for path in (["id"], ["l"], ["m"], []):
        with pytest.raises(InvalidArgument):
            table.add_field(path, member.with_name("z"))
    with pytest.raises(NotFound, match="has 'key' or 'value', not 'nope'"):
        table.add_field(["m", "nope"], member.with_name("z"))
    with pytest.raises(NotFound, match="no field 'nope'; it has 'a', 'b'"):
        table.add_field(["s", "nope"], member)
    with pytest.raises(NotFound):
        table.rename_field(["s", "nope"], "x")
    with pytest.raises(AlreadyExists):
        table.rename_field(["s", "a"], "B")
    with pytest.raises(NotFound):
        table.remove_field(["s", "nope"])
    with pytest.raises(PreconditionFailed, match="only field"):
        table.remove_field(["l", "element", "a"])
    before = version(table)
    table.remove_field(["s", "nope"], if_exists=True)
    table.add_field(["s"], member, if_not_exists=True)
    assert version(table) == before


@pytest.mark.parametrize(
    "path", [["nope", "a"], ["s", "nope"], ["s", "nope", "a"], ["l", "nope", "a"], ["m", "nope", "a"]]
)
def test_member_that_does_not_exist_can_be_removed_if_it_exists_as_in_duckdb(path: list[str]) -> None:
    duck, table = beside_duckdb()
    duck.execute(f"ALTER TABLE t DROP COLUMN IF EXISTS {'.'.join(path)}")
    with pytest.raises(NotFound):
        table.remove_field(path)
    table.remove_field(path, if_exists=True)
    assert same(duck, table)


def test_members_of_a_checked_column_are_only_removed_with_the_check() -> None:
    table = people(
        schema=pa.schema({"s": pa.struct({"a": pa.int32(), "b": pa.int32()})}), checks=("struct_extract(s, 'a') > 0",)
    )
    for refused in (lambda: table.rename_field(["s", "a"], "z"), lambda: table.remove_field(["s", "a"])):
        with pytest.raises(PreconditionFailed, match=r"cannot \w+ s\.a of table 'people'"):
            refused()
    table.remove_field(["s", "a"], cascade=True)
    insert(table, {"s": [{"b": 1}]})
    assert content(table) == [({"b": 1},)]
