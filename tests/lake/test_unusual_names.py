"""Names of all kinds, from CREATE to DROP over Airport, and read by PyIceberg through REST in between."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lake.lakes import Lake
from scope import sample
from skiway.airport.wire import protocol
from skiway.client import col
from skiway.errors import AlreadyExists, LimitExceeded, NotFound
from skiway.foundation.resources import schema_name

NAMES = {
    "blanks": "my table of 2025",
    "quotes": 'it\'s "quoted" `so`',
    "dots": "v1.2.final",
    "three dots": "...",
    "slashes": "a/b\\c/../d",
    "percent": "100%25 %2e%2e %zz",
    "letters of others": "Größe_表_таблица",
    "emoji": "🛬❄️ landing",
    "255 characters": "n" * 255,
    "255 emoji": "🧊" * 255,
    "SQL": "select; DROP TABLE x --",
    "JSON": '{"a": [1]}',
    "question and hash": "a?b=c&d#e+f",
    "right to left": "\u0634\u062c\u0631\u0629",
}


@pytest.mark.parametrize("name", sample(NAMES.values(), every=3), ids=NAMES)
def test_name_works_for_a_table_its_schema_and_a_column(lake: Lake, name: str) -> None:
    schema, path = schema_name([name]), (name,)
    table = (schema, name)
    columns = pa.schema({"id": pa.int64(), name: pa.string()})
    with lake.client() as db, lake.rest() as rest:
        db.create_schema(schema)
        db.create_table(table, columns)
        db.insert(table, pa.table({"id": [1, 2, 3], name: ["a", "b", "c"]}, schema=columns))
        db.update(table, {name: "B"}, where=col("id") == 2)
        db.delete(table, where=col(name) == "c")

        read = db.scan(table, columns=[name], where=col(name) != "a").read_all()
        assert read.to_pydict() == {name: ["B"]}
        assert db.statistics(table, "id").max == 2
        found = rest.load_table((*path, name)).scan().to_arrow().sort_by("id")
        assert found.to_pydict() == {"id": [1, 2], name: ["a", "B"]}
        assert rest.list_tables(path) == [(*path, name)]

        with lake.client() as another:
            assert [each.name for each in another.schemas() if each.name != "skiway"] == [schema]
            assert another.scan(table).read_all().num_rows == 2
        db.drop_table(table)
        db.drop_schema(schema)
        assert rest.list_namespaces() == []


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_duckdb_gets_no_path_that_its_headers_cannot_carry(lake: Lake, name: str) -> None:
    with lake.client() as db:
        db.create_schema(schema_name([name]))
        db.create_table((schema_name([name]), name), pa.schema({"id": pa.int64()}))
    with lake.client() as db:
        descriptor = db.table((schema_name([name]), name)).descriptor
        assert protocol.can_carry("/".join(descriptor.path))
        assert bool(descriptor.path) == name.isascii()


@pytest.mark.parametrize("name", ["Größe", "🛬"])
def test_name_works_for_a_catalog(lake: Lake, name: str) -> None:
    lake.catalog(name)
    rows = pa.table({name: [1, 2]})
    with lake.client(name) as db:
        db.create_schema(name)
        db.create_table((name, name), rows.schema)
        db.insert((name, name), rows)
        db.update((name, name), {name: 3}, where=col(name) == 2)
        assert db.scan((name, name)).read_all().to_pydict() == {name: [1, 3]}


def test_names_that_differ_only_in_case_are_rejected(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.Straße", pa.schema({"id": pa.int64()}))
        for variant in ("STRASSE", "straße", "Straße"):
            with pytest.raises(AlreadyExists):
                db.create_table(("s", variant), pa.schema({"id": pa.int64()}))


def test_names_longer_than_255_characters_are_rejected(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        with pytest.raises(LimitExceeded, match="255"):
            db.create_table(("s", "n" * 256), pa.schema({"id": pa.int64()}))
        with pytest.raises(NotFound):
            db.scan(("s", "n" * 256)).read_all()
