"""Delta tables with column mapping, and lists, maps and structs in each other. DuckDB reads the same tables independently."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from formats.foreign_tables import duck
from formats.odd_tables import NESTED, write_delta
from formats.oracles import assert_same_rows
from formats.test_contents import now
from skiway.formats import TableHandle, open_source
from skiway.formats.schemas import element_leaves, field_id, leaves

__all__ = ["duck"]

MODES = [("none", False), ("name", False), ("name", True), ("id", False), ("id", True)]


def opened(folder: Path) -> TableHandle:
    return open_source("delta", str(folder)).load((), "t")


def ids_by_path(schema: pa.Schema) -> dict[str, int]:
    return {".".join(leaf.path): leaf.id for leaf in (*leaves(schema), *element_leaves(schema))}


@pytest.mark.parametrize(("mode", "nested_ids"), MODES)
def test_duckdb_reads_the_same_rows(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, mode: str, nested_ids: bool
) -> None:
    write_delta(tmp_path / "t", NESTED, mode=mode, nested_ids=nested_ids)
    table = opened(tmp_path)
    rows = table.read(now(table)).read_all()
    assert_same_rows(rows, NESTED)
    assert_same_rows(rows, duck.execute(f"FROM delta_scan('{tmp_path}/t')").to_arrow_table())


@pytest.mark.parametrize(("mode", "nested_ids"), MODES)
def test_all_fields_have_distinct_ids_in_the_table_and_in_its_files(
    tmp_path: Path, mode: str, nested_ids: bool
) -> None:
    write_delta(tmp_path / "t", NESTED, mode=mode, nested_ids=nested_ids)
    table = opened(tmp_path)
    found = ids_by_path(table.schema.arrow)
    assert len(set(found.values())) == len(found) == 18
    assert "null" not in table.schema.json
    (path,) = table.files(now(table))["path"].to_pylist()
    stored = table.file_schema(now(table), path)
    assert sorted(ids_by_path(stored).values()) == sorted(found.values())


@pytest.mark.parametrize("mode", ["name", "id"])
def test_ids_of_elements_are_those_of_the_writer_or_derived_from_the_column(tmp_path: Path, mode: str) -> None:
    column = pa.table({"li": pa.array([[1]], pa.list_(pa.int32()))})
    ids = []
    for place, (name, nested_ids) in enumerate((("li", False), ("renamed", False), ("li", True))):
        write_delta(tmp_path / str(place) / "t", column.rename_columns([name]), mode=mode, nested_ids=nested_ids)
        field = opened(tmp_path / str(place)).schema.arrow.field(0)
        ids.append((field_id(field), field_id(field.type.value_field)))
    assert ids[0] == ids[1]
    assert ids[2] == (1, 2)
    assert ids[0] != ids[2]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_renamed_and_added_fields_in_lists_are_followed(tmp_path: Path, mode: str) -> None:
    rows = pa.table({"ls": pa.array([[{"a": 1}]], pa.list_(pa.struct({"a": pa.int32()})))})
    write_delta(tmp_path / "t", rows, mode=mode)
    log = tmp_path / "t" / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    metadata = next(each["metaData"] for each in first if "metaData" in each)
    schema = json.loads(metadata["schemaString"])
    fields = schema["fields"][0]["type"]["elementType"]["fields"]
    fields[0]["name"] = "b"
    mapping = {"delta.columnMapping.id": 9, "delta.columnMapping.physicalName": "col-9"}
    fields.append({"name": "a", "type": "string", "nullable": True, "metadata": mapping})
    schema["fields"][0]["name"] = "renamed"
    metadata["schemaString"] = json.dumps(schema)
    (log / f"{1:020d}.json").write_text(json.dumps({"metaData": metadata}))
    table = opened(tmp_path)
    assert table.read(now(table)).read_all().to_pylist() == [{"renamed": [{"b": 1, "a": None}]}]
