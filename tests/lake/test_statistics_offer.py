"""The property `statistics.offer` says whether listings tell clients to ask for statistics; the nearest one wins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import Lake, call_function
from skiway.errors import InvalidArgument
from skiway.metastore.resources import catalogs, namespaces, tables
from skiway.model import v1

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})
OFFER = "statistics.offer"


def set_catalog(lake: Lake, offer: str) -> None:
    found = catalogs.find(lake.realm, "managed")
    assert found is not None
    spec = v1.CatalogSpec(properties={OFFER: offer} if offer else {})
    request = v1.UpdateCatalogRequest(catalog_id=found.value.resource_id, spec=spec)
    request.update_mask.paths.append("properties")
    catalogs.update(lake.realm, request)


def set_namespace(lake: Lake, path: tuple[str, ...], offer: str, catalog: str = "managed") -> None:
    of = catalogs.find(lake.realm, catalog)
    assert of is not None
    found = next(
        each
        for each in namespaces.scan(lake.realm, of.value.resource_id.id)
        if (*each.parents, each.display_name) == path
    )
    spec = v1.NamespaceSpec(properties={OFFER: offer} if offer else {})
    request = v1.UpdateNamespaceRequest(namespace_id=found.resource_id, spec=spec)
    request.update_mask.paths.append("properties")
    namespaces.update(lake.realm, request)


def is_offered(lake: Lake, table: Any, catalog: str = "managed") -> bool:
    """Whether a client that attaches now would ask for statistics."""
    with lake.client(catalog) as db:
        return db.table(table).has_statistics


@pytest.mark.parametrize(
    ("catalog", "above", "schema", "table", "expected"),
    [
        ("", "", "", "", False),
        ("auto", "", "", "", False),
        ("always", "", "", "", True),
        ("always", "never", "", "", False),
        ("never", "always", "", "", True),
        ("always", "never", "always", "", True),
        ("always", "always", "auto", "", False),
        ("never", "never", "never", "always", True),
        ("always", "always", "always", "never", False),
    ],
)
def test_the_nearest_property_wins(
    lake: Lake, catalog: str, above: str, schema: str, table: str, expected: bool
) -> None:
    with lake.client() as db:
        db.create_schema("a.b")
    set_catalog(lake, catalog)
    set_namespace(lake, ("a",), above)
    set_namespace(lake, ("a", "b"), schema)
    with lake.rest() as rest:
        rest.create_table(("a", "b", "t"), ROWS.schema, properties={OFFER: table} if table else {})
    with lake.client() as db:
        db.insert(("a.b", "t"), ROWS)
        assert db.table(("a.b", "t")).has_statistics is expected
        found = db.statistics(("a.b", "t"), "id")  # whoever asks gets an answer
        assert (found.min, found.max) == (1, 2)


def test_a_change_reaches_the_next_client_that_attaches(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table_as("s.t", ROWS)
        assert not db.table("s.t").has_statistics
    for offer, expected in (("always", True), ("never", False), ("", False)):
        set_namespace(lake, ("s",), offer)
        assert is_offered(lake, "s.t") is expected
    with lake.rest() as rest:
        rest.load_table(("s", "t")).transaction().set_properties({OFFER: "always"}).commit_transaction()
    assert is_offered(lake, "s.t")


def test_mirrored_tables_inherit_the_offer(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "files" / "t").mkdir(parents=True)
    pq.write_table(ROWS, tmp_path / "files" / "t" / "0.parquet")
    lake.mirror("parquet", str(tmp_path / "files"))
    assert not is_offered(lake, "root.t", "parquet")
    set_namespace(lake, ("root",), "always", "parquet")
    assert is_offered(lake, "root.t", "parquet")


def test_simple_views_inherit_the_offer(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table_as("s.t", ROWS)
        call_function(db, "create_view", "s.v", "SELECT id FROM s.t")
    assert not is_offered(lake, "s.v")
    set_namespace(lake, ("s",), "always")
    assert is_offered(lake, "s.v")


def test_other_values_are_refused_wherever_the_property_is_set(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table_as("s.t", ROWS)
    message = "property statistics.offer is 'sometimes', but must be auto, always or never"
    with pytest.raises(InvalidArgument, match=message):
        set_catalog(lake, "sometimes")
    with pytest.raises(InvalidArgument, match=message):
        set_namespace(lake, ("s",), "sometimes")
    managed = catalogs.find(lake.realm, "managed")
    assert managed is not None
    (schema,) = namespaces.scan(lake.realm, managed.value.resource_id.id)
    spec = v1.TableSpec(display_name="u", schema_json="{}", properties={OFFER: "sometimes"})
    spec.catalog_id.CopyFrom(managed.value.resource_id)
    spec.namespace_id.CopyFrom(schema.resource_id)
    with pytest.raises(InvalidArgument, match=message):
        tables.create(lake.realm, v1.CreateTableRequest(spec=spec))
    with lake.rest() as rest, pytest.raises(Exception, match="offer is 'sometimes'"):
        rest.load_table(("s", "t")).transaction().set_properties({OFFER: "sometimes"}).commit_transaction()
