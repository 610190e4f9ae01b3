"""How the tables and views of a query are found, without running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.airport import ScanOptions, Table
from skiway.errors import InvalidArgument
from skiway.sandbox.relations import NamedTable, Parsed, Relation, StoredQuery
from skiway.sql.relations import SqlView, resolved


class View(Table, SqlView):
    """A view with a text that `Process` understands: the name of what it reads."""

    schema = pa.schema([])

    def __init__(self, name: str, reads: str) -> None:
        self.name, self._reads = name, reads

    @property
    def sql(self) -> str:
        return self._reads

    def scan(self, options: ScanOptions) -> pa.Table:
        raise NotImplementedError


class Numbers(Table):
    """A table that records the conditions of its scans."""

    name, schema = "numbers", pa.schema({"n": pa.int64()})

    def __init__(self) -> None:
        self.conditions: list[bool] = []

    def scan(self, options: ScanOptions) -> pa.Table:
        self.conditions.append(bool(options.filter))
        return self.schema.empty_table()


def parse(sql: str, _prefix: str) -> Parsed:
    """Take a text for the name of the only table of a query."""
    return Parsed(f"FROM {sql}", [NamedTable(("c", "s", sql))])


def find(depth: int) -> Callable[[str, str, str], Table | None]:
    """A lookup of `depth` views, of which each reads the next one, and the last one a table."""

    def found(_catalog: str, _schema: str, name: str) -> Table | None:
        number = int(name.removeprefix("v")) if name.startswith("v") else depth
        return View(name, f"v{number + 1}" if number + 1 < depth else "numbers") if number < depth else Numbers()

    return found


def resolve(named: NamedTable, depth: int) -> tuple[list[Relation], list[StoredQuery]]:
    return resolved(parse, Parsed("SELECT", [named]), cast(Any, find(depth)), ("c", "s"), plan=False)


def test_each_view_follows_what_it_reads() -> None:
    tables, views = resolve(NamedTable(("c", "s", "v0")), 3)
    assert [each.name for each in tables] == [("c", "s", "numbers")]
    assert [each.name[2] for each in views] == ["v2", "v1", "v0"]


def test_views_are_nested_up_to_a_limit() -> None:
    assert len(resolve(NamedTable(("c", "s", "v0")), 32)[1]) == 32
    with pytest.raises(InvalidArgument, match=r"nested more than 32 deep: c\.s\.v32 is the last") as error:
        resolve(NamedTable(("c", "s", "v0")), 33)
    assert error.value.key == "view.depth"


def test_views_have_no_history() -> None:
    with pytest.raises(InvalidArgument, match=r"view c\.s\.v0 has no history: write AT after the tables") as error:
        resolve(NamedTable(("c", "s", "v0"), "VERSION", "1", "then 0"), 1)
    assert error.value.key == "view.at"


@pytest.mark.parametrize(
    ("sql", "names", "has_condition"),
    [
        ("SELECT n FROM c.s.numbers WHERE n = 1", ["numbers"], True),
        ("SELECT n FROM c.s.numbers WHERE n = 1 OR random() > 1", ["numbers"], False),
        ("FROM c.s.numbers WHERE n = 1 UNION ALL FROM c.s.numbers", ["numbers", "numbers"], False),
        ("FROM c.s.numbers WHERE n = 1 UNION ALL FROM c.s.v0", ["numbers", "v0"], False),
        ("FROM c.s.v0 UNION ALL (FROM c.s.numbers WHERE n = 1)", ["v0", "numbers"], False),
        ("FROM c.s.other LEFT JOIN c.s.numbers USING (n) WHERE n = 1", ["numbers"], False),
    ],
)
def test_condition_reaches_a_table_that_only_this_part_of_the_query_reads(
    sql: str, names: list[str], has_condition: bool
) -> None:
    numbers = Numbers()

    def found(_catalog: str, _schema: str, name: str) -> Table:
        return View(name, "numbers") if name == "v0" else numbers

    parsed = Parsed(sql, [NamedTable(("c", "s", name)) for name in names])
    (relation,), _ = resolved(parse, parsed, cast(Any, found), ("c", "s"), plan=True)
    assert list(relation.scan(["n"])) == []
    assert numbers.conditions == [has_condition]
