"""ALTER TABLE IF EXISTS and DROP … IF EXISTS of tables and schemas that somebody else dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pytest

from skiway.airport import Server
from skiway.airport.memory import MemoryCatalog
from skiway.client import AirportClient
from skiway.errors import NotFound

COLUMNS = pa.schema({"a": pa.int64(), "s": pa.struct({"x": pa.int64(), "z": pa.int64()})})

Alter = Callable[[AirportClient, bool], object]
ALTERATIONS: Mapping[str, Alter] = {
    "add_column": lambda db, flag: db.add_column("s.t", pa.field("b", pa.int64()), if_exists=flag),
    "remove_column": lambda db, flag: db.remove_column("s.t", "a", if_exists=flag),
    "rename_column": lambda db, flag: db.rename_column("s.t", "a", "b", if_exists=flag),
    "change_column_type": lambda db, flag: db.change_column_type("s.t", "a", pa.string(), if_exists=flag),
    "set_not_null": lambda db, flag: db.set_not_null("s.t", "a", if_exists=flag),
    "drop_not_null": lambda db, flag: db.drop_not_null("s.t", "a", if_exists=flag),
    "set_default": lambda db, flag: db.set_default("s.t", "a", "1", if_exists=flag),
    "add_constraint": lambda db, flag: db.add_constraint("s.t", "CHECK (a > 0)", if_exists=flag),
    "add_field": lambda db, flag: db.add_field("s.t", ["s"], pa.field("y", pa.int64()), if_exists=flag),
    "rename_field": lambda db, flag: db.rename_field("s.t", ["s", "x"], "y", if_exists=flag),
    "remove_field": lambda db, flag: db.remove_field("s.t", ["s", "x"], if_exists=flag),
    "rename_table": lambda db, flag: db.rename_table("s.t", "u", if_exists=flag),
    "drop_table": lambda db, flag: db.drop_table("s.t", if_exists=flag),
}


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog("m", schemas=["s"])


@pytest.fixture
def stale(catalog: MemoryCatalog) -> Iterator[AirportClient]:
    """A client that knows the table `s.t`."""
    with Server(catalog, port=0) as server, AirportClient(server.location, "m") as db:
        db.create_table("s.t", COLUMNS)
        yield db


@pytest.mark.parametrize("also_the_schema", [False, True])
@pytest.mark.parametrize("name", ALTERATIONS)
def test_every_change_of_a_table_that_is_gone_can_be_ignored(
    name: str, stale: AirportClient, catalog: MemoryCatalog, also_the_schema: bool
) -> None:
    schema = catalog.schema("s")
    assert schema is not None
    schema.drop_table("t")
    if also_the_schema:
        catalog.drop_schema("s")
    version = catalog.version()
    with pytest.raises(NotFound):
        ALTERATIONS[name](stale, False)
    ALTERATIONS[name](stale, True)
    assert catalog.version() == version
    if name != "drop_table":
        with pytest.raises(NotFound):
            stale.count("s.t")


@pytest.mark.parametrize("name", ALTERATIONS)
def test_if_exists_changes_a_table_that_exists(name: str, stale: AirportClient, catalog: MemoryCatalog) -> None:
    version = catalog.version()
    ALTERATIONS[name](stale, True)
    assert (catalog.version() == version) == (name == "drop_not_null"), "which it is already"


def test_if_exists_does_not_hide_that_a_column_is_missing(stale: AirportClient) -> None:
    with pytest.raises(NotFound, match="no column 'nope'"):
        stale.rename_column("s.t", "nope", "b", if_exists=True)
    with pytest.raises(NotFound, match="no column 'nope'"):
        stale.set_not_null("s.t", "nope", if_exists=True)
