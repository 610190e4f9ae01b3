"""Lazy schemas of a large account: each client sees in them exactly what a listing at once shows to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake, call_function, opened_lake
from lake.policed_lake import PolicedLake, policed_lake
from skiway.airport.wire.protocol import CatalogRequest, CatalogRoot, encode, unseal
from skiway.client import AirportClient
from skiway.lake import service
from skiway.lake.context import Versions
from skiway.metastore import grants, tables
from skiway.model import v1
from skiway.sql import QueryEngine
from skiway.storage import PointerStore

CALLERS = ("writer", "reader", "analyst", "nothing", "stranger")
"""Callers with all rights, with a role, under policies, with a grant, and with nothing."""


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[PolicedLake]:
    """A lake with lazy schemas, however few tables it has. Its version changes only with its contents, not every minute."""
    monkeypatch.setattr(service, "Versions", partial(Versions, renewed_s=math.inf))
    with policed_lake(tmp_path, queries, max_listed_at_once=0) as lake:
        yield lake


@contextmanager
def eager(lake: Lake) -> Iterator[str]:
    """Another server of the lake, which lists all schemas at once."""
    options, lake.options = lake.options, {**lake.options, "max_listed_at_once": 1000}
    with lake.served() as location:
        lake.options = options
        yield location


def seen(location: str, token: str) -> list[Any]:
    """Everything that a client learns about the schemas of the catalog, their tables and their functions."""
    with AirportClient(location, "managed", token=token) as client:
        return [
            (
                schema.name,
                schema.comment,
                [
                    (each.name, each.comment, each.schema.serialize(), each.descriptor.SerializeToString())
                    for each in schema.tables
                ],
                [(each.name, each.parameters.serialize()) for each in schema.functions],
            )
            for schema in client.schemas()
        ]


def left_out(location: str, token: str = "writer") -> list[str]:
    """The schemas whose objects the listing leaves out."""
    with AirportClient(location, "managed", token=token) as client:
        (body,) = client.action("list_schemas", encode(CatalogRequest("managed")))
    return [each.name for each in unseal(body, CatalogRoot, "x").schemas if each.contents.serialized is None]


def test_all_callers_see_in_lazy_schemas_what_they_see_in_a_listing_at_once(policed: PolicedLake) -> None:
    lake = policed.lake

    def drop_table() -> None:
        with lake.client() as owner:
            owner.drop_table("s.more")

    def create_table() -> None:
        with lake.client() as owner:
            owner.create_table("s.more", pa.schema({"a": pa.int32(), "rowid_": pa.string()}))

    def create_view() -> None:
        with lake.client() as owner:
            call_function(owner, "create_view", "s.some", "SELECT id, email FROM s.people")

    def create_schema() -> None:
        with lake.client() as owner:
            owner.create_schema("empty")

    def grant() -> None:
        request = v1.AddGrantRequest(object_id=policed.table.resource_id, grantee="user:nothing", privilege=v1.PV_READ)
        grants.add(lake.realm, request)

    def rename_over_the_api() -> None:
        spec = v1.TableSpec(display_name="persons")
        request = v1.UpdateTableRequest(table_id=policed.table.resource_id, spec=spec)
        request.update_mask.paths.append("display_name")
        tables.update(lake.realm, request)

    def mask() -> None:
        policed.mask(subjects=["user:analyst"])

    changes = (create_table, create_view, grant, mask, drop_table, rename_over_the_api, create_schema)
    with eager(lake) as location:
        for change in changes:
            change()
            assert "s" in left_out(lake.location), change
            for token in CALLERS:
                expected = seen(location, token)
                assert seen(lake.location, token) == expected, (change, token)
                assert seen(lake.location, token) == expected, (change, token, "from the cache")
            assert left_out(lake.location) == []
    names = {
        token: [table[0] for schema in seen(lake.location, token)[:-1] for table in schema[2]] for token in CALLERS
    }
    assert names == {
        "writer": ["persons", "some"],
        "reader": ["persons", "some"],
        "analyst": ["persons", "some"],
        "nothing": ["persons"],
        "stranger": [],
    }


def test_listing_of_one_caller_is_not_shown_to_another(policed: PolicedLake) -> None:
    location = policed.lake.location
    seen(location, "writer")
    assert left_out(location, "writer") == []
    assert all("people" not in str(schema) for schema in seen(location, "stranger"))


def test_system_schema_is_never_lazy(policed: PolicedLake) -> None:
    assert left_out(policed.lake.location) == ["s"]


def test_schemas_are_lazy_if_the_account_has_many_tables(tmp_path: Path) -> None:
    with opened_lake(tmp_path, max_listed_at_once=2) as lake, lake.client() as owner:
        owner.create_schema("s")
        for number in range(3):
            assert left_out(lake.location) == []
            owner.create_table(f"s.t{number}", pa.schema({"a": pa.int32()}))
        assert left_out(lake.location) == ["s"]


def test_schemas_are_listed_at_once_if_the_store_cannot_tell_that_nothing_has_changed(
    policed: PolicedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointers: Any = policed.lake.stores.pointers
    monkeypatch.setattr(type(pointers), "state", PointerStore.state)
    assert left_out(policed.lake.location) == []
