"""Clients of Iceberg REST do not change main of a protected catalog, and do not try again; they change branches of it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ForbiddenError

from metastore.resource_factory import mask
from rest.rest_server import RestServer
from skiway.metastore import branches, catalogs
from skiway.model import v1

ROWS = pa.table({"id": [1]})


def test_main_is_refused_and_branches_are_written(rest_server: RestServer) -> None:
    main = rest_server.pyiceberg()
    main.create_namespace("s")
    table = main.create_table("s.t", ROWS.schema)
    table.append(ROWS)
    realm = rest_server.factory.home
    (catalog,) = catalogs.scan(realm)
    request = v1.UpdateCatalogRequest(
        catalog_id=catalog.resource_id, spec=v1.CatalogSpec(protected=True), update_mask=mask("protected")
    )
    catalogs.update(realm, request)
    for change in (
        lambda: table.append(ROWS),
        lambda: table.transaction().set_properties({"a": "b"}).commit_transaction(),
        lambda: main.create_table("s.new", ROWS.schema),
        lambda: main.create_namespace("more"),
        lambda: main.rename_table("s.t", "s.other"),
        lambda: main.drop_table("s.t"),
        lambda: main.drop_namespace("s"),
    ):
        with pytest.raises(Exception, match="is protected") as raised:
            change()
        assert isinstance(raised.value, ForbiddenError), raised.value
    assert main.load_table("s.t").scan().to_arrow()["id"].to_pylist() == [1]
    branches.create(realm, v1.CreateBranchRequest(name="lake@dev"))
    dev = rest_server.pyiceberg("lake@dev")
    dev.load_table("s.t").append(ROWS)
    dev.create_table("s.new", ROWS.schema).append(ROWS)
    branches.merge(realm, v1.MergeBranchRequest(name="lake@dev"), warehouse=rest_server.warehouse)
    assert main.load_table("s.t").scan().to_arrow()["id"].to_pylist() == [1, 1]
    assert main.load_table("s.new").scan().to_arrow()["id"].to_pylist() == [1]
