"""Mirrored tables in the Iceberg format are served as they are, read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from metastore.mirrors import connector
from rest.rest_server import RestServer, listening, opened
from skiway.formats import OpenedTable, open_source
from skiway.metastore import Realm, catalogs, namespaces
from skiway.model import v1
from skiway.request_path import Access
from skiway.rest import RestApp
from skiway.security import PermissionAuthorizer
from skiway.storage import Stores

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", "Edsger"]})
HERE = "/v1/mirror/namespaces/sales/tables"
GENERIC = "/polaris/v1/mirror/namespaces/sales/generic-tables"


@dataclass
class Upstream:
    """A source with one Iceberg table."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        catalog = SqlCatalog("up", uri=f"sqlite:///{self.folder}/up.db", warehouse=f"file://{self.folder}")
        catalog.create_namespace("sales")
        self.table = catalog.create_table("sales.people", PEOPLE.schema, location=f"file://{self.folder}/sales/people")
        self.table.append(PEOPLE)
        catalog.close()

    def __call__(self, realm: Realm, table: v1.Table) -> OpenedTable:
        with open_source("iceberg", str(self.folder)) as source:
            handle = source.load(tuple(table.upstream.namespace_path), table.upstream.table_display_name)
            return OpenedTable(handle, handle.current())


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path / "upstream")


@pytest.fixture
def rest_server(stores: Stores, tmp_path: Path, upstream: Upstream) -> Iterator[RestServer]:
    """A server with a catalog `mirror` of a connector `partner` that has one table."""
    with opened(stores, tmp_path, mirrors=upstream) as rest_server:
        partner = connector(rest_server.factory, "partner", uri=f"file://{upstream.folder}")
        mirror = rest_server.factory.catalog("mirror", connector_ref=partner.resource_id.id)
        place = rest_server.factory.namespace("sales", catalog=mirror)
        rest_server.factory.table("people", namespace=place, upstream=ref(partner, v1.TF_ICEBERG))
        yield rest_server


def ref(of: v1.Connector, kind: Any) -> v1.UpstreamRef:
    return v1.UpstreamRef(
        connector_id=of.resource_id,
        uri=of.uri,
        namespace_path=["sales"],
        table_display_name="people",
        format=kind,
    )


def test_rows_equal_those_of_the_source(rest_server: RestServer, upstream: Upstream) -> None:
    catalog = rest_server.pyiceberg("mirror")
    assert catalog.list_tables("sales") == [("sales", "people")]
    assert catalog.load_table("sales.people").scan().to_arrow().to_pylist() == PEOPLE.to_pylist()
    etag = rest_server.call("GET", f"{HERE}/people").headers["etag"]
    assert rest_server.call("GET", f"{HERE}/people", if_none_match=etag).status_code == 304
    upstream.table.append(PEOPLE)
    assert rest_server.call("GET", f"{HERE}/people", if_none_match=etag).status_code == 200
    assert catalog.load_table("sales.people").scan().to_arrow().num_rows == 6


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{HERE}/people", {"requirements": [], "updates": []}),
        ("DELETE", f"{HERE}/people", None),
        ("POST", HERE, {"name": "new", "schema": {"type": "struct", "fields": []}}),
        ("POST", "/v1/mirror/namespaces", {"namespace": ["new"]}),
        ("DELETE", "/v1/mirror/namespaces/sales", None),
        ("POST", "/v1/mirror/namespaces/sales/properties", {"updates": {"a": "b"}}),
        (
            "POST",
            "/v1/mirror/tables/rename",
            {
                "source": {"namespace": ["sales"], "name": "people"},
                "destination": {"namespace": ["sales"], "name": "p"},
            },
        ),
    ],
)
def test_changes_are_rejected_with_the_name_of_the_connector(
    rest_server: RestServer, method: str, path: str, body: Any
) -> None:
    answer = rest_server.call(method, path, body)
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "ForbiddenException"
    assert "connector partner" in answer.json()["error"]["message"]


def test_mirrored_table_among_managed_ones_is_read_only(rest_server: RestServer, upstream: Upstream) -> None:
    partner = connector(rest_server.factory, "friend", uri=f"file://{upstream.folder}")
    place = rest_server.factory.namespace("sales", catalog=rest_server.factory.first_catalog())
    rest_server.factory.table("people", namespace=place, upstream=ref(partner, v1.TF_ICEBERG))
    table = rest_server.pyiceberg().load_table("sales.people")
    before = len(upstream.table.metadata.snapshots)
    with pytest.raises(ForbiddenError, match="connector friend"):
        table.append(PEOPLE)
    assert len(upstream.table.refresh().metadata.snapshots) == before
    rename = {
        "source": {"namespace": ["sales"], "name": "people"},
        "destination": {"namespace": ["sales"], "name": "p"},
    }
    assert rest_server.call("POST", "/v1/lake/tables/rename", rename).status_code == 403
    assert rest_server.call("DELETE", "/v1/lake/namespaces/sales/tables/people").status_code == 403


def delta_table(server: RestServer, upstream: Upstream, name: str, **more: Any) -> None:
    partner = connector(server.factory, name, uri=f"file://{upstream.folder}")
    catalog = catalogs.find(server.factory.home, "mirror")
    assert catalog is not None
    place = namespaces.lookup(server.factory.home, catalog.value.resource_id, ["sales"])
    server.factory.table(name, namespace=place, upstream=ref(partner, v1.TF_DELTA), **more)


def test_generic_tables_are_those_in_other_formats(rest_server: RestServer, upstream: Upstream) -> None:
    mapped = {"properties": {"delta.columnMapping.mode": "name"}, "description": "read it with Delta"}
    delta_table(rest_server, upstream, "mapped", **mapped)
    delta_table(rest_server, upstream, "plain", properties={"delta.columnMapping.mode": "none"})
    answer = rest_server.call("GET", GENERIC).json()
    assert [each["name"] for each in answer["identifiers"]] == ["mapped"]
    found = rest_server.call("GET", f"{GENERIC}/mapped").json()["table"]
    assert (found["format"], found["doc"]) == ("delta", "read it with Delta")
    assert "doc" not in rest_server.call("GET", f"{GENERIC}/plain").json()["table"]
    refused = rest_server.call("GET", f"{GENERIC}/people")
    assert refused.status_code == 404
    assert "load it as an Iceberg table" in refused.json()["error"]["message"]
    rest_server.pyiceberg().create_namespace("ns")
    rest_server.pyiceberg().create_table("ns.managed", PEOPLE.schema)
    for path in ("", "/managed"):
        managed = rest_server.call("GET", f"/polaris/v1/lake/namespaces/ns/generic-tables{path}")
        assert managed.json().get("identifiers", managed.status_code) in ([], 404)


def test_without_connectors_only_managed_tables_are_served(
    stores: Stores, rest_server: RestServer, upstream: Upstream
) -> None:
    delta_table(rest_server, upstream, "mapped", properties={"delta.columnMapping.mode": "name"})
    alone = RestApp(
        Access(lambda caller: Realm(stores, caller.account_id), rest_server.callers, PermissionAuthorizer()),
        warehouse=rest_server.warehouse,
    )
    with closing(alone), listening(alone) as uri:
        assert httpx.get(f"{uri}{HERE}").json()["identifiers"] == []
        assert httpx.get(f"{uri}{HERE}/people").status_code == 404
        assert httpx.get(f"{uri}{GENERIC}").json()["identifiers"] == []
        assert httpx.get(f"{uri}{GENERIC}/mapped").status_code == 404
