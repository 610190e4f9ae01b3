"""Tables of an Iceberg catalog, written without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from skiway.errors import InvalidArgument, NotFound
from skiway.formats import open_source


def test_tables_of_a_sql_catalog_are_listed_and_read(tmp_path: Path) -> None:
    (tmp_path / "warehouse").mkdir()
    uri, rows = f"sqlite:///{tmp_path}/catalog.db", pa.table({"id": [1, 2]})
    with SqlCatalog("lake", uri=uri, warehouse=f"file://{tmp_path}/warehouse") as catalog:
        catalog.create_namespace("sales")
        catalog.create_table("sales.people", rows.schema).append(rows)
    with open_source(
        "iceberg", uri, options={"warehouse": str(tmp_path / "warehouse"), "catalog-name": "lake"}
    ) as source:
        assert source.namespaces() == [("sales",)]
        assert source.tables(("sales",)) == ["people"]
        table = source.load(("sales",), "people")
        assert table.read(table.snapshots()[-1]).read_all()["id"].to_pylist() == [1, 2]
        with pytest.raises(NotFound, match=r"no 'sales\.nothing'"):
            source.load(("sales",), "nothing")


def test_address_of_a_hive_metastore_names_the_right_kind() -> None:
    with pytest.raises(InvalidArgument, match="needs a connector of kind hive") as raised:
        open_source("iceberg", "thrift://metastore.example.com:9083")
    assert raised.value.key == "location.refused"
