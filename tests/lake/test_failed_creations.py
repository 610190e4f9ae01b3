"""A client lists the table of its failed CREATE TABLE … AS until it drops it or attaches again."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, PreconditionFailed

GOOD = pa.table({"d": pa.array([1], pa.date32())})
INFINITE = pa.table({"d": pa.array([2**31 - 1], pa.int32()).view(pa.date32())})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        yield db


def create_as(db: AirportClient, rows: pa.Table) -> None:
    """What DuckDB calls for CREATE TABLE s.t AS …, if it does not list the table yet."""
    with db.transaction():
        db.create_table("s.t", rows.schema)
        db.insert("s.t", rows)


@pytest.fixture
def failed(db: AirportClient) -> AirportClient:
    """A client whose CREATE TABLE … AS has failed."""
    with pytest.raises(InvalidArgument, match="infinite"):
        create_as(db, INFINITE)
    return db


@pytest.mark.parametrize("name", ["s.t", "s.T"])
@pytest.mark.parametrize("on_conflict", ["error", "ignore"])
def test_the_table_cannot_be_created_without_its_rows(failed: AirportClient, name: str, on_conflict: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"still lists the table .* run DROP TABLE, or DETACH and ATTACH"):
        failed.create_table(name, GOOD.schema, on_conflict=on_conflict)  # type: ignore[arg-type]


def test_after_drop_table_it_can_be_created(failed: AirportClient) -> None:
    failed.drop_table("s.t")
    create_as(failed, GOOD)
    assert failed.scan("s.t").read_all() == GOOD


def test_after_attach_it_can_be_created(failed: AirportClient) -> None:
    failed.reload()
    create_as(failed, GOOD)
    assert failed.scan("s.t").read_all() == GOOD


def test_drop_table_drops_no_table_of_somebody_else(lake: Lake, failed: AirportClient) -> None:
    with lake.rest() as rest:
        rest.create_table("s.t", GOOD.schema)
        failed.drop_table("s.t")
        assert rest.table_exists("s.t")
        failed.reload()
        failed.drop_table("s.t")
        assert not rest.table_exists("s.t")


def test_create_table_as_in_one_step_is_not_affected(failed: AirportClient) -> None:
    failed.create_table_as("s.t", GOOD)
    assert failed.scan("s.t").read_all() == GOOD
