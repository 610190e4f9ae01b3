"""Folders of CSV and JSON files as tables."""

from __future__ import annotations

import gzip
import pickle
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed
from skiway.formats import TableHandle, open_source


def table(root: Path, kind: str, files: dict[str, str | bytes], **options: str) -> TableHandle:
    """The table `t` with these files."""
    (root / "t").mkdir(exist_ok=True)
    for name, content in files.items():
        (root / "t" / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return open_source(kind, str(root), options=options).load((), "t")


def rows(handle: TableHandle) -> list[dict[str, Any]]:
    current = handle.current()
    assert current is not None
    found: list[dict[str, Any]] = handle.read(current).read_all().to_pylist()
    return found


def test_csv_columns_are_texts_unless_they_are_declared(tmp_path):
    files = {"a.csv": 'id,name,day\n1,"a, ""b""\nc",2026-01-02\n2,,\n', "b.csv": 'name,more\n"",x\n'}
    handle = table(tmp_path, "csv", files, columns="id long, day date")
    assert rows(handle) == [
        {"id": 1, "name": 'a, "b"\nc', "day": date(2026, 1, 2), "more": None},
        {"id": 2, "name": None, "day": None, "more": None},
        {"id": None, "name": "", "day": None, "more": "x"},
    ]


def test_other_delimiters_and_compressed_files(tmp_path):
    handle = table(
        tmp_path, "csv", {"a.csv": "x;y\n1;2\n", "b.csv.gz": gzip.compress(b"x;y\n3;4\n")}, **{"csv.delimiter": ";"}
    )
    assert [tuple(row.values()) for row in rows(handle)] == [("1", "2"), ("3", "4")]


def test_json_columns_have_the_types_of_their_values(tmp_path):
    files = {
        "a.json": '{"id": 1, "at": "2026-01-01T00:00:00", "in": {"x": 1}, "no": null}\n{"id": 2, "tags": ["a"]}\n',
        "b.jsonl": '{"id": 3.5, "in": {"y": true}, "price": "1.25"}\n',
        "c.ndjson": "",
    }
    handle = table(tmp_path, "json", files, columns="price decimal(9,2)")
    types = {each.name: each.type for each in handle.schema.arrow}
    assert (types["id"], types["at"], types["price"]) == (pa.float64(), pa.string(), pa.decimal128(9, 2))
    assert "no" not in types
    found = rows(handle)
    assert [row["id"] for row in found] == [1, 2, 3.5]
    assert (found[0]["in"], found[1]["tags"], found[2]["in"]) == ({"x": 1, "y": None}, ["a"], {"x": None, "y": True})
    assert found[2]["price"] == Decimal("1.25")


def test_only_the_columns_of_the_chosen_files_are_inferred(tmp_path):
    handle = table(tmp_path, "json", {"a.json": '{"x": 1}\n', "b.json": "not JSON\n"})
    files = handle.files(handle.current())
    assert handle.columns_of(files.slice(0, 1)).names == ["x"]
    with pytest.raises(PreconditionFailed, match=r"b\.json"):
        handle.columns_of(files)


def test_tables_can_be_sent_to_other_processes(tmp_path):
    handle = table(tmp_path, "csv", {"a.csv": "x\n1\n"})
    assert rows(pickle.loads(pickle.dumps(handle))) == [{"x": "1"}]


def test_value_of_another_type_names_the_file(tmp_path):
    handle = table(tmp_path, "csv", {"a.csv": "id\none\n"}, columns="id long")
    with pytest.raises(PreconditionFailed, match=r"a\.csv"):
        rows(handle)


def test_changed_file_is_not_read(tmp_path):
    handle = table(tmp_path, "csv", {"a.csv": "x\n1\n"})
    current = handle.current()
    (tmp_path / "t" / "a.csv").write_text("x\n1\n2\n")
    with pytest.raises(Conflict):
        handle.read(current, schema=pa.schema([pa.field("x", pa.string())])).read_all()


def test_mistakes_in_options_are_reported(tmp_path):
    with pytest.raises(InvalidArgument, match="'id lnog' has no type that is known"):
        table(tmp_path, "csv", {"a.csv": "id\n1\n"}, columns="id lnog")
    with pytest.raises(InvalidArgument, match="must be one character"):
        table(tmp_path, "csv", {}, **{"csv.delimiter": "||"})
    with pytest.raises(NotFound):
        open_source("csv", str(tmp_path / "none"))
