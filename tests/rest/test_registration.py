"""Tables from existing metadata files, locations that operators approved, files that existed before, and version 1."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from rest.rest_server import RestServer, opened
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed, tables
from skiway.metastore.maintenance import Checker
from skiway.storage import Stores

ROWS = pa.table({"id": [1, 2], "name": ["Ada", "Grace"]})
NS = "/v1/lake/namespaces/ns"
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}


@pytest.fixture
def approved(tmp_path: Path) -> Path:
    (tmp_path / "approved").mkdir()
    return tmp_path / "approved"


@pytest.fixture
def server(stores: Stores, tmp_path: Path, approved: Path) -> Iterator[RestServer]:
    properties = {"table-default.owner": "lake", "table-default.color": "blue", "table-override.tier": "gold"}
    with opened(stores, tmp_path, approved=approved, properties=properties) as server:
        assert server.call("POST", "/v1/lake/namespaces", {"namespace": ["ns"]}).status_code == 200
        yield server


def foreign(folder: Path, *, version: str = "2", name: str = "t") -> Table:
    """A table with rows in a catalog of PyIceberg."""
    catalog = SqlCatalog("other", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
    catalog.create_namespace("ns")
    made = catalog.create_table(f"ns.{name}", ROWS.schema, properties={"format-version": version})
    made.append(ROWS)
    return catalog.load_table(f"ns.{name}")


def register(server: RestServer, name: str, location: str, **more: Any) -> Any:
    return server.call("POST", f"{NS}/register", {"name": name, "metadata-location": location, **more})


def message(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


def read(server: RestServer, name: str) -> list[dict[str, Any]]:
    return server.pyiceberg().load_table(f"ns.{name}").scan().to_arrow().sort_by("id").to_pylist()


def handle_rows(server: RestServer, name: str) -> int:
    """The number of rows that the server itself reads."""
    namespace = server.factory.first_namespace()
    table = tables.find(server.factory.home, namespace.resource_id.id, name)
    assert table is not None
    found = managed.load(server.factory.home, server.warehouse, table.resource_id).handle
    return int(found.read(found.current(), schema=found.schema.arrow).read_all().num_rows)


@pytest.mark.parametrize("version", ["1", "2"])
def test_registered_table_has_its_rows_and_can_be_written(server: RestServer, approved: Path, version: str) -> None:
    other = foreign(approved, version=version)
    answer = register(server, "t", other.metadata_location)
    assert answer.status_code == 200, answer.text
    loaded = server.call("GET", f"{NS}/tables/t").json()
    assert (loaded["metadata-location"], loaded["metadata"]["table-uuid"]) == (
        other.metadata_location,
        str(other.metadata.table_uuid),
    )
    assert read(server, "t") == ROWS.to_pylist()
    server.pyiceberg().load_table("ns.t").append(ROWS)
    assert (len(read(server, "t")), handle_rows(server, "t")) == (4, 4)
    assert server.call("GET", f"{NS}/tables/t").json()["metadata"]["format-version"] == int(version)
    assert not list(Checker(server.factory.stores, server.warehouse).defects())


def test_table_of_version_3_at_a_chosen_location_is_registered_after_it_was_dropped(
    server: RestServer, approved: Path
) -> None:
    realm, namespace = server.factory.home, server.factory.first_namespace()
    made = managed.create(
        realm,
        server.warehouse,
        namespace_id=namespace.resource_id,
        name="t",
        schema=ROWS.schema,
        properties={"format-version": "3"},
        location=f"file://{approved}/t",
    )
    with DataFileWriter(made.files, made.metadata) as writer:
        writer.write(ROWS.to_batches()[0])
        managed.change(realm, server.warehouse, made.table.resource_id, append(writer.close()))
    location = server.call("GET", f"{NS}/tables/t").json()["metadata-location"]
    assert server.call("DELETE", f"{NS}/tables/t").status_code == 204
    assert register(server, "again", location).json()["metadata"]["format-version"] == 3
    assert handle_rows(server, "again") == 2


def test_registration_is_limited_to_approved_locations(server: RestServer, approved: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    outside = foreign(tmp_path / "private")
    status, text = message(register(server, "t", outside.metadata_location))
    assert (status, "not approved" in text) == (400, True)
    # A copy in an approved location that names files elsewhere.
    copy = approved / "copy" / "x.metadata.json"
    copy.parent.mkdir()
    shutil.copy(outside.metadata_location.removeprefix("file://"), copy)
    assert message(register(server, "t", f"file://{copy}"))[0] == 400
    assert message(register(server, "t", "s3://"))[0] == 400
    assert register(server, "t", f"file://{approved}/none.metadata.json").status_code in (400, 404, 409)
    assert server.call("HEAD", f"{NS}/tables/t").status_code == 404


def test_a_folder_belongs_to_one_table(server: RestServer, approved: Path) -> None:
    other = foreign(approved)
    assert register(server, "a", other.metadata_location).status_code == 200
    status, text = message(register(server, "b", other.metadata_location))
    assert (status, "a table that was not dropped from this namespace" in text) == (400, True)
    assert message(register(server, "a", other.metadata_location)) == (
        409,
        "Table already exists: ns.a; choose another name, or use the existing table",
    )


def test_dropped_table_is_registered_again_where_it_was_dropped(server: RestServer) -> None:
    catalog = server.pyiceberg()
    table = catalog.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    location = catalog.load_table("ns.t").metadata_location
    assert message(register(server, "twice", location))[0] == 400  # it exists
    catalog.drop_table("ns.t")
    server.call("POST", "/v1/lake/namespaces", {"namespace": ["other"]})
    answer = server.call("POST", "/v1/lake/namespaces/other/register", {"name": "t", "metadata-location": location})
    assert message(answer)[0] == 400
    assert register(server, "again", location).status_code == 200
    assert read(server, "again") == ROWS.to_pylist()


def test_overwriting_gives_a_table_an_older_state(server: RestServer, approved: Path) -> None:
    catalog = server.pyiceberg()
    table = catalog.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    before = catalog.load_table("ns.t").metadata_location
    table.append(ROWS)
    assert message(register(server, "t", before))[0] == 409
    assert register(server, "t", before, overwrite=True).status_code == 200
    assert (read(server, "t"), handle_rows(server, "t")) == (ROWS.to_pylist(), 2)
    # By the state of a foreign table, too, but not by that of another table of the lake.
    other = foreign(approved)
    assert register(server, "t", other.metadata_location, overwrite=True).status_code == 200
    assert read(server, "t") == ROWS.to_pylist()
    catalog.create_table("ns.u", ROWS.schema)
    own = catalog.load_table("ns.u").metadata_location
    assert message(register(server, "t", own, overwrite=True))[0] == 400


def test_existing_files_are_added_from_approved_locations(server: RestServer, approved: Path, tmp_path: Path) -> None:
    catalog = server.pyiceberg()
    table = catalog.create_table("ns.t", ROWS.schema)
    for file in (approved / "old.parquet", tmp_path / "private.parquet"):
        pq.write_table(ROWS, file)
    table.add_files([f"file://{approved}/old.parquet"])
    assert (read(server, "t"), handle_rows(server, "t")) == (ROWS.to_pylist(), 2)
    with pytest.raises(Exception, match="is not in the table's folder"):
        catalog.load_table("ns.t").add_files([f"file://{tmp_path}/private.parquet"])
    catalog.purge_table("ns.t")
    assert (approved / "old.parquet").exists()


def test_files_of_other_tables_cannot_be_added(server: RestServer, approved: Path) -> None:
    catalog = server.pyiceberg()
    victim = catalog.create_table("ns.victim", ROWS.schema, location=f"file://{approved}/victim")
    victim.append(ROWS)
    (file,) = (each.file.file_path for each in victim.scan().plan_files())
    thief = catalog.create_table("ns.thief", ROWS.schema)
    with pytest.raises(Exception, match="is not in the table's folder"):
        thief.add_files([file])
    hidden = catalog.create_table("ns.hidden", ROWS.schema)
    hidden.append(ROWS)
    (file,) = (each.file.file_path for each in hidden.scan().plan_files())
    with pytest.raises(Exception, match="is not in the table's folder"):
        thief.add_files([file])


def set_location(location: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-location", "location": location}]}


def test_moved_table_keeps_its_rows(server: RestServer, approved: Path) -> None:
    catalog = server.pyiceberg()
    table = catalog.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    before = Path(table.location().removeprefix("file://"))
    for folder in ("one", "two"):
        answer = server.call("POST", f"{NS}/tables/t", set_location(f"file://{approved}/{folder}"))
        assert answer.status_code == 200, answer.text
        catalog.load_table("ns.t").append(ROWS)
    assert catalog.load_table("ns.t").location() == f"file://{approved}/two"
    assert (len(read(server, "t")), handle_rows(server, "t")) == (6, 6)
    assert list((approved / "one").rglob("*.parquet"))
    assert not list(Checker(server.factory.stores, server.warehouse).defects())
    catalog.purge_table("ns.t")
    assert not [each for each in (*approved.rglob("*"), *before.rglob("*")) if each.is_file()]
    catalog.create_table("ns.new", ROWS.schema, location=f"file://{approved}/one")


@pytest.mark.parametrize("given", ["{private}/t", "{approved}", "{approved}/other", "{approved}/other/inside"])
def test_table_is_moved_only_to_free_approved_folders(
    server: RestServer, approved: Path, tmp_path: Path, given: str
) -> None:
    catalog = server.pyiceberg()
    catalog.create_table("ns.other", ROWS.schema, location=f"file://{approved}/other")
    catalog.create_table("ns.t", ROWS.schema)
    before = server.call("GET", f"{NS}/tables/t").json()
    folder = given.format(private=tmp_path / "private", approved=approved)
    answer = server.call("POST", f"{NS}/tables/t", set_location(f"file://{folder}"))
    assert answer.status_code in (400, 409), answer.text
    assert server.call("GET", f"{NS}/tables/t").json() == before


def test_failed_move_releases_the_folder(server: RestServer, approved: Path) -> None:
    catalog = server.pyiceberg()
    catalog.create_table("ns.t", ROWS.schema)
    body = set_location(f"file://{approved}/free")
    body["updates"].append({"action": "set-current-schema", "schema-id": 7})
    assert server.call("POST", f"{NS}/tables/t", body).status_code == 400
    catalog.create_table("ns.u", ROWS.schema, location=f"file://{approved}/free")


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_paths_of_writers_are_checked(server: RestServer, approved: Path, tmp_path: Path, name: str) -> None:
    def sent(method: str, path: str) -> int:
        if method == "create":
            body: dict[str, Any] = {"name": "x", "schema": SCHEMA, "properties": {name: path}}
            return server.call("POST", f"{NS}/tables", body).status_code
        update = {"action": "set-properties", "updates": {name: path}}
        return server.call("POST", f"{NS}/tables/t", {"requirements": [], "updates": [update]}).status_code

    server.pyiceberg().create_table("ns.t", ROWS.schema)
    server.pyiceberg().create_table("ns.other", ROWS.schema, location=f"file://{approved}/other")
    for method in ("create", "commit"):
        for path in (f"file://{tmp_path}/private", f"file://{approved}/other/data"):
            assert sent(method, path) == 400
    # Data may be elsewhere in approved locations; the server itself writes only to the folder of the table.
    assert sent("commit", f"file://{approved}/data") == (400 if name == "write.metadata.path" else 200)


def test_catalog_has_defaults_and_overrides_for_tables(server: RestServer) -> None:
    body = {"name": "t", "schema": SCHEMA, "properties": {"color": "red", "tier": "lead"}}
    made = server.call("POST", f"{NS}/tables", body).json()
    properties = made["metadata"]["properties"]
    assert {name: properties[name] for name in ("owner", "color", "tier")} == {
        "owner": "lake",
        "color": "red",
        "tier": "gold",
    }
    config = server.call("GET", "/v1/config?warehouse=lake").json()
    assert config["defaults"] == {"table-default.color": "blue", "table-default.owner": "lake"}
    assert config["overrides"] == {"prefix": "lake", "table-override.tier": "gold"}


def test_version_1_is_written_by_the_server(server: RestServer) -> None:
    catalog = server.pyiceberg()
    catalog.create_table("ns.t", ROWS.schema, properties={"format-version": "1"})
    catalog.load_table("ns.t").append(ROWS)
    catalog.load_table("ns.t").delete("id = 1")
    assert (read(server, "t"), handle_rows(server, "t")) == (ROWS.to_pylist()[1:], 1)
    assert catalog.load_table("ns.t").metadata.format_version == 1


def test_missing_metadata_file_is_reported_although_it_is_cached(server: RestServer) -> None:
    table = server.pyiceberg().create_table("ns.t", ROWS.schema)
    assert server.call("GET", f"{NS}/tables/t").status_code == 200
    Path(table.metadata_location.removeprefix("file://")).unlink()
    answer = server.call("GET", f"{NS}/tables/t")
    assert answer.json()["error"]["type"] == "NotFoundException"
    assert message(answer)[1].startswith(f"Failed to open input stream for file: {table.metadata_location}")


def test_unknown_type_is_named_and_nothing_is_called_corrupt(server: RestServer, approved: Path) -> None:
    location = foreign(approved, version="2").metadata_location
    metadata = Path(location.removeprefix("file://"))
    document = json.loads(metadata.read_text())
    document["schemas"][0]["fields"][1]["type"] = "hypercube"
    metadata.write_text(json.dumps(document))
    status, text = message(register(server, "t", location))
    assert "column 'name' has type hypercube, which is not supported; drop the column" in text
    assert (status, "corrupt" in text) == (406, False)
    assert server.call("GET", f"{NS}/tables").json()["identifiers"] == []
