"""ALTER TABLE for columns and members of structs: names in any case, IF EXISTS, and what is not supported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.errors import ConstraintViolation, NotFound, Unsupported
from skiway.formats.iceberg.changes import evolution
from skiway.formats.iceberg.changes.evolution import AddColumn, DropColumn, MakeOptional, RenameColumn
from skiway.lake.reading.columns import Columns
from skiway.lake.reading.state import TableInCall
from skiway.lake.writing.writable import NothingToChange, WritableTable, _is_plain_cast, _type
from skiway.model import v1

INNER = pa.struct([("X", pa.int64()), ("t", pa.struct({"Y": pa.int64()}))])


class Altered(WritableTable):
    """A table that remembers changes instead of committing them."""

    _changes = cast(Any, None)

    def __init__(self) -> None:
        columns = Columns("1", pa.schema([("A", pa.int64()), ("S", INNER)]))
        super().__init__(TableInCall(cast(Any, None), v1.Table(), catalog="c", schema_name="s", bound_columns=columns))
        self.made: list[Any] = []
        self._changes = SimpleNamespace(check_allowed=lambda: None, commit=self.made.extend)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Altered:
    monkeypatch.setattr(evolution, "evolve", lambda changes: changes)
    return Altered()


@pytest.mark.parametrize(
    ("path", "stored"),
    [(["s", "x"], ("S", "X")), (["S", "T", "y"], ("S", "t", "Y")), (["s", "T"], ("S", "t")), (["s", "z"], ("S", "z"))],
)
def test_members_are_found_in_any_case(table: Altered, path: list[str], stored: tuple[str, ...]) -> None:
    table.remove_field(path)
    table.rename_field(path, "new")
    assert table.made == [DropColumn(stored), RenameColumn(stored, "new")]


@pytest.mark.parametrize(
    ("path", "exists"),
    [
        (["s", "x"], True),
        (["s", "t", "y"], True),
        (["s", "z"], False),
        (["s", "t", "x"], False),
        (["s", "y"], False),
        (["a", "x"], False),
        (["q", "x"], False),
    ],
)
def test_missing_members_are_no_error_if_the_statement_says_so(table: Altered, path: list[str], exists: bool) -> None:
    table.remove_field(path, if_exists=True)
    assert len(table.made) == exists
    table.made.clear()
    table.add_field(path[:-1], pa.field(path[-1], pa.int64()), if_not_exists=True)
    assert len(table.made) == (not exists)


def test_members_are_added_to_the_stored_struct(table: Altered) -> None:
    table.add_field(["s", "T"], pa.field("new", pa.int32(), metadata={"comment": "text"}))
    assert table.made == [AddColumn(("S", "t", "new"), pa.int32(), "text")]


def test_columns_are_made_optional_in_any_case(table: Altered) -> None:
    table.drop_not_null("a")
    table.drop_not_null("other")
    assert table.made == [MakeOptional("A"), MakeOptional("other")]


def test_rules_that_iceberg_does_not_have_are_rejected(table: Altered) -> None:
    with pytest.raises(ConstraintViolation, match="column 'n' cannot be added as NOT NULL"):
        table.add_field(["s"], pa.field("n", pa.int64(), nullable=False))
    with pytest.raises(Unsupported, match="a default of column 'n' is not supported"):
        table.add_field(["s"], pa.field("n", pa.int64(), metadata={"default": "1"}))
    with pytest.raises(Unsupported, match="DEFAULT 1 of column 'a' is not supported"):
        table.set_default("a", "1")
    with pytest.raises(Unsupported, match="UNIQUE \\(a\\) is not supported"):
        table.add_constraint("UNIQUE (a)")
    assert table.made == []


def test_uuids_are_recognized_by_their_metadata() -> None:
    named = pa.field("u", pa.binary(16), metadata={"ARROW:extension:name": "arrow.uuid"})
    assert [_type(each) for each in (named, pa.field("u", pa.binary(16)))] == [pa.uuid(), pa.binary(16)]


@pytest.mark.parametrize(
    ("expression", "is_cast"),
    [
        ("CAST(a AS BIGINT)", True),
        ('CAST("a" AS DECIMAL(9, 2))', True),
        ("(cast(A as bigint))", True),
        ("a::BIGINT", True),
        ("a", True),
        ("CAST(b AS BIGINT)", False),
        ("CAST(a + 1 AS BIGINT)", False),
        ("a + 1", False),
        ("ab", False),
    ],
)
def test_type_changes_are_plain_casts_or_rejected(expression: str, is_cast: bool) -> None:
    assert _is_plain_cast(expression, "a") == is_cast


def test_table_without_rows_has_no_row_ids() -> None:
    nothing = NothingToChange("t")
    with pytest.raises(NotFound, match="table 't' has no row with id 7"):
        nothing.apply(pa.record_batch({"x": [1], "rowid": [7]}))
    nothing.abort()
    assert nothing.commit() == 0
