"""DuckDB relies on the statistics of columns: its filters must find the rows of a full scan, however the columns came to be.

`lake.evolved_tables` makes a table for every place that keeps statistics.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lake.evolved_tables import TABLES, Stage, add_catalogs, evolved_table, filters
from lake.lakes import Lake, opened_lake
from live.clients import Client, Session

AT_ONCE = 10


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with opened_lake(tmp_path_factory.mktemp("lake")) as lake:
        add_catalogs(lake)
        yield lake


def attach(lake: Lake, catalog: str) -> str:
    return f"ATTACH '{catalog}' AS db (TYPE airport, LOCATION '{lake.location}')"


def conditions(schema: pa.Schema) -> Iterator[list[str]]:
    """All conditions on the columns, and on the fields of structs, a few at a time."""
    for field in schema:
        is_struct = pa.types.is_struct(field.type)
        leaves = (
            [((field.name, child.name), child.type) for child in field.type]
            if is_struct
            else [((field.name,), field.type)]
        )
        for path, of in leaves:
            asked = list(filters(path, of))
            yield from (asked[first : first + AT_ONCE] for first in range(0, len(asked), AT_ONCE))


def matching(session: Session, table: str, asked: list[str]) -> list[list[str | None]]:
    """The rows that match each condition. Each one has a scan of its own, with its own statistics."""
    parts = [f"SELECT {number} AS n, id FROM {table} WHERE {condition}" for number, condition in enumerate(asked)]
    return session.rows(" UNION ALL ".join(parts) + " ORDER BY ALL")


@pytest.mark.parametrize(("catalog", "stage"), TABLES, ids=lambda each: each if isinstance(each, str) else each.name)
def test_filters_return_the_rows_of_a_full_scan(client: Client, lake: Lake, catalog: str, stage: Stage) -> None:
    table = evolved_table(lake, catalog, stage)
    wrong: list[str] = []
    with client.session(attach(lake, catalog)) as session:
        session.need(f"CREATE TEMP TABLE everything AS SELECT * FROM db.{table.name}")
        count = 0
        for asked in conditions(table.handle.schema.arrow):
            count += len(asked)
            found, expected = (matching(session, name, asked) for name in (f"db.{table.name}", "everything"))
            if found != expected:
                numbers = {row[0] for row in found} ^ {row[0] for row in expected}
                wrong += [asked[int(number or 0)] for number in numbers] or asked
    assert wrong == []
    assert count > 350


def test_rows_with_a_default_are_deleted_and_updated(client: Client, lake: Lake) -> None:
    """A profile of files that are older than a column must not hide rows that have its default."""
    stage = Stage("written", ("profile", "change", "append", "profile"))
    evolved_table(lake, "managed", stage)
    with client.session(attach(lake, "managed")) as session:
        select = "SELECT count(*) FROM db.s.written WHERE default_int = 42"
        assert session.rows(select) == [["5"]]
        session.need("UPDATE db.s.written SET added = 1000 WHERE default_int = 42")
        assert session.rows("SELECT count(*) FROM db.s.written WHERE added = 1000") == [["5"]]
        session.need("DELETE FROM db.s.written WHERE default_int = 42")
        assert session.rows(select) == [["0"]]
        assert session.rows("SELECT count(*) FROM db.s.written") == [["3"]]
