"""A home directory with spaces in its path: every engine reads and writes the tables in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from formats.foreign_tables import duck
from runtime.servers import started
from skiway.client import AirportClient, Metastore, col
from skiway.errors import InvalidArgument
from skiway.formats.iceberg.warehouse import Warehouse, uri_of

if TYPE_CHECKING:
    import duckdb

__all__ = ["duck"]

PEOPLE = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", None]})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "my lake" / "in  two words"


@pytest.mark.needs("duckdb extensions")
def test_airport_pyiceberg_and_duckdb_share_the_tables(home: Path, duck: duckdb.DuckDBPyConnection) -> None:
    with started(home) as server:
        with AirportClient(server.addresses["airport"], "lake") as db:
            db.create_schema("shop")
            db.create_table("shop.people", PEOPLE.schema)
            db.insert("shop.people", PEOPLE)
            db.update("shop.people", {"name": "Mary"}, where=col("id") == 3)
        peer = RestCatalog("lake", uri=f"{server.addresses['http']}/iceberg", warehouse="lake")
        table = peer.load_table("shop.people")
        assert table.location().startswith(f"file://{home}/warehouse/")
        table.append(pa.table({"id": [4], "name": ["by PyIceberg"]}))
        peer.create_table("shop.theirs", pa.schema({"x": pa.int64()})).append(pa.table({"x": [7]}))
        assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
        read = duck.execute("SELECT list(id ORDER BY id) FROM iceberg_scan(?)", [table.metadata_location]).fetchone()
        assert read == ([1, 2, 3, 4],)
        with AirportClient(server.addresses["airport"], "lake") as db:
            assert db.delete("shop.people", where=col("id") == 4).count == 1
            assert db.scan("shop.theirs").read_all().to_pydict() == {"x": [7]}
            paths = db.scan(("skiway", "files")).read_all()["path"].to_pylist()
        assert all(Path(path.removeprefix("file://")).is_file() for path in paths)


def test_folder_of_a_connector_may_have_spaces(home: Path) -> None:
    data = home.parent / "the data"
    data.mkdir(parents=True)
    pq.write_table(PEOPLE, data / "two words.parquet")
    with started(home, "--set", "reconciler.backend=remote") as server, Metastore(server.address) as lake:
        lake.connectors.create("files", kind="parquet", uri=str(data), catalog="lake", namespace="raw")
        captured = lake.connectors.capture("files")
        assert (captured.tables_changed, captured.errors) == (1, 0)
        with AirportClient(server.addresses["airport"], "lake") as db:
            assert db.scan(("raw", "two words")).read_all().num_rows == 3


@pytest.mark.parametrize("letter", ["?", "#", "%", "\\", "\t", "\u00a0"])
def test_other_letters_that_engines_interpret_differently_are_rejected(letter: str) -> None:
    with pytest.raises(InvalidArgument, match=r"which engines interpret differently|control characters"):
        Warehouse.at(f"/srv/a{letter}b")


def test_spaces_are_neither_encoded_nor_allowed_in_s3() -> None:
    assert uri_of(Warehouse.at("/srv/a b").root) == "file:///srv/a b"
    with pytest.raises(InvalidArgument, match="without spaces"):
        Warehouse.at("s3://bucket/a b")
