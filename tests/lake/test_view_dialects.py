"""The SQL of views: DuckDB's own definition is preferred, and others are translated."""

from __future__ import annotations

import pytest

from skiway.errors import InvalidArgument
from skiway.lake.views import duckdb_sql
from skiway.model import v1


def sql(*definitions: tuple[str, str]) -> str:
    return duckdb_sql([v1.ViewSql(dialect=dialect, sql=text) for dialect, text in definitions])


def test_definition_of_duckdb_is_used_as_it_is() -> None:
    assert sql(("spark", "SELECT `a` FROM t"), ("duckdb", "select  A from T")) == "select  A from T"
    assert sql(("duckdb", "not even SQL")) == "not even SQL"


def test_first_other_dialect_is_translated() -> None:
    assert sql(("spark", "SELECT `a b` FROM t"), ("trino", "SELECT 2")) == 'SELECT "a b" FROM t'


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (("spark", "SELECT FROM WHERE (\nx"), "its SQL in the dialect spark cannot be translated"),
        (("klingon", "SELECT 1"), "its SQL in the dialect klingon cannot be translated"),
        (("spark", "SELECT 1; SELECT 2"), "it has 2 statements: a view is one query"),
    ],
)
def test_definitions_that_cannot_be_translated_are_rejected(definition: tuple[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        sql(definition)
    assert "\n" not in refused.value.message
