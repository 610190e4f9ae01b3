"""Tables of an Iceberg catalog, written without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from formats.odd_tables import iceberg_folder
from formats.rest_catalog import TOKEN, serving
from skiway.errors import InvalidArgument, NotFound, Unsupported
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


class _Upstream:
    """What `serving` needs of a catalog, with the metadata file of one table as another engine wrote it."""

    def __init__(self, metadata: Path) -> None:
        self.metadata_location, self._text = f"file://{metadata}", metadata.read_text()
        self.metadata = self

    def model_dump_json(self, **_: object) -> str:
        return self._text

    def load_table(self, _: object) -> _Upstream:
        return self


@pytest.mark.parametrize("name", ["variant", "geometry_plain", "simple"])
def test_tables_of_rest_catalogs_may_have_types_that_pyiceberg_cannot_parse(tmp_path: Path, name: str) -> None:
    rows = iceberg_folder(tmp_path, name)[name]
    newest = max((tmp_path / name / "account" / "table" / "metadata").glob("*.metadata.json"))
    catalog: Any = _Upstream(newest)
    with serving(catalog) as uri:
        options = {"warehouse": str(tmp_path)}
        with open_source("iceberg", uri, options=options, credentials={"token": TOKEN}) as source:
            table = source.load(("s",), "t")
            current = table.current()
            assert current is not None
            assert table.read(current).read_all().to_pylist() == rows.to_pylist()  # type: ignore[union-attr]
            assert (table.plain_files(current, table.plan(current)) is None) == (name == "variant")


@pytest.mark.parametrize("name", ["hypercube", "list_of_hypercubes"])
def test_column_of_an_unknown_type_is_named(tmp_path: Path, name: str) -> None:
    iceberg_folder(tmp_path, name)
    with (
        open_source("iceberg", str(tmp_path / name)) as source,
        pytest.raises(Unsupported, match="column 'v' has type hypercube, which is not supported; drop the column"),
    ):
        source.load(("account",), "table")
