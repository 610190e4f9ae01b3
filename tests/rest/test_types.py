"""Types that PyIceberg lacks or spells in its own way: clients get exactly what they have sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import IntegerType

from formats.iceberg.test_version_3 import VARIANTS, with_variants
from rest.rest_server import RestServer, opened
from skiway.errors import Unsupported
from skiway.formats.iceberg.changes.maintenance import CompactionRules, file_groups
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed, tables
from skiway.storage import Stores

TABLES = "/v1/lake/namespaces/s/tables"
SENT: dict[str, Any] = {
    "variant": "variant",
    "geometry": "geometry",
    "geometry(srid:4326)": "geometry(srid:4326)",
    "geometry('EPSG:3857')": "geometry(EPSG:3857)",
    "geography": "geography",
    "geography(EPSG:4326)": "geography(EPSG:4326)",
    "geography(OGC:CRS84,vincenty)": "geography(OGC:CRS84, vincenty)",
}


@pytest.fixture
def shop(rest_server: RestServer) -> RestServer:
    assert rest_server.call("POST", "/v1/lake/namespaces", {"namespace": ["s"]}).status_code == 200
    return rest_server


def column(of: Any, **more: Any) -> dict[str, Any]:
    return {"id": 2, "name": "c", "required": False, "type": of, **more}


def schema(*columns: dict[str, Any]) -> dict[str, Any]:
    first = {"id": 1, "name": "id", "required": False, "type": "long"}
    return {"type": "struct", "schema-id": 0, "fields": [first, *columns]}


def create(shop: RestServer, *columns: dict[str, Any], version: str = "3") -> Any:
    body = {"name": "t", "schema": schema(*columns), "properties": {"format-version": version, "type": "variant"}}
    return shop.call("POST", TABLES, body)


def shown(shop: RestServer) -> Any:
    metadata = shop.call("GET", f"{TABLES}/t").json()["metadata"]
    (current,) = (each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    return {each["name"]: each["type"] for each in current["fields"]}


@pytest.mark.parametrize(("sent", "stored"), SENT.items())
def test_new_table_has_the_types_that_were_sent(shop: RestServer, sent: str, stored: str) -> None:
    answer = create(shop, column(sent))
    assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["properties"]["type"] == "variant"  # a property, not a type
    assert shown(shop)["c"] == stored
    file = Path(answer.json()["metadata-location"].removeprefix("file://"))
    assert json.loads(file.read_text())["schemas"][0]["fields"][1]["type"] == stored


@pytest.mark.parametrize(("sent", "stored"), SENT.items())
def test_table_that_was_staged_has_the_types(shop: RestServer, sent: str, stored: str) -> None:
    body = {"name": "t", "schema": schema(column(sent)), "properties": {"format-version": "3"}, "stage-create": True}
    metadata = shop.call("POST", TABLES, body).json()["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "add-schema", "schema": metadata["schemas"][0], "last-column-id": 2},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]
    wanted = {"requirements": [{"type": "assert-create"}], "updates": updates}
    answer = shop.call("POST", f"{TABLES}/t", wanted)
    assert answer.status_code == 200, answer.text
    assert shown(shop)["c"] == stored


@pytest.mark.parametrize("of", ["geometry(srid:0)", "geography(OGC:CRS84, vincenty)"])
def test_pyiceberg_can_parse_the_types_and_sends_them_back(shop: RestServer, of: str) -> None:
    create(shop, column(of))
    table = shop.pyiceberg().load_table("s.t")
    with table.update_schema() as update:
        update.add_column("later", IntegerType())
    assert shown(shop) == {"id": "long", "c": of, "later": "int"}


@pytest.mark.parametrize(("sent", "stored"), SENT.items())
def test_added_column_has_the_type_that_was_sent(shop: RestServer, sent: str, stored: str) -> None:
    create(shop)
    updates = [
        {"action": "add-schema", "schema": schema(column(sent))},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    answer = shop.call("POST", f"{TABLES}/t", {"requirements": [], "updates": updates})
    assert answer.status_code == 200, answer.text
    assert shown(shop) == {"id": "long", "c": stored}


def test_types_are_kept_inside_of_other_types(shop: RestServer) -> None:
    inner = {"id": 3, "name": "v", "required": False, "type": "variant"}
    nested = {
        "type": "map",
        "key-id": 4,
        "key": "string",
        "value-id": 5,
        "value-required": False,
        "value": {
            "type": "list",
            "element-id": 6,
            "element-required": False,
            "element": {"type": "struct", "fields": [inner]},
        },
    }
    assert create(shop, column(nested)).status_code == 200
    assert shown(shop)["c"]["value"]["element"]["fields"][0]["type"] == "variant"


@pytest.mark.parametrize("of", ["variant", "geometry(srid:4326)", "geography"])
def test_older_tables_cannot_have_the_types(shop: RestServer, of: str) -> None:
    answer = create(shop, column(of), version="2")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestException")
    assert of.partition("(")[0] in answer.json()["error"]["message"]


@pytest.mark.parametrize("of", ["variant", "geometry(srid:4326)", "geography"])
def test_columns_of_the_types_have_no_default_value(shop: RestServer, of: str) -> None:
    answer = create(shop, column(of, **{"initial-default": "1", "write-default": "1"}))
    assert answer.status_code == 400
    assert f"columns of type {of} have no default value: remove '1'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("of", ["hypercube", "geometry(", "decimal(x)"])
def test_error_names_the_type_that_is_unknown(shop: RestServer, of: str) -> None:
    answer = create(shop, column(of))
    assert (answer.status_code, of in answer.json()["error"]["message"]) == (400, True)


def test_variants_that_an_engine_has_written_are_json_and_not_written_here(stores: Stores, tmp_path: Path) -> None:
    folder = tmp_path / "approved"
    folder.mkdir()
    location = with_variants(folder, VARIANTS).metadata_location
    with opened(stores, tmp_path, approved=folder) as shop:
        shop.call("POST", "/v1/lake/namespaces", {"namespace": ["s"]})
        wanted = {"name": "t", "metadata-location": location}
        assert shop.call("POST", "/v1/lake/namespaces/s/register", wanted).status_code == 200
        assert shown(shop) == {"id": "long", "v": "variant"}
        home = shop.factory.home
        record = tables.find(home, shop.factory.first_namespace().resource_id.id, "t")
        assert record is not None
        table = managed.load(home, shop.warehouse, record.resource_id)
        rows = table.handle.read(table.handle.current(), schema=table.handle.schema.arrow).read_all()
        assert rows.sort_by("id")["v"].to_pylist() == ['{"a":1}', '"text"', "[1,2]"]
        with (
            DataFileWriter(table.files, table.metadata) as writer,
            pytest.raises(Unsupported, match="column 'v' has type variant, which Skiway reads as JSON"),
        ):
            writer.write(pa.record_batch({"id": [4], "v": ["1"]}))
        current = table.handle.current()
        assert current is not None
        assert file_groups(table.handle, current, CompactionRules.of(table.metadata, min_files=1)) == []
        shop.call("POST", f"{TABLES}/t", {"requirements": [], "updates": [{"action": "set-properties", "updates": {}}]})
        assert shown(shop)["v"] == "variant"


def test_namespace_has_a_location_and_tables_wanted_there_get_folders_of_their_own(shop: RestServer) -> None:
    properties = shop.call("GET", "/v1/lake/namespaces/s").json()["properties"]
    where = properties.pop("location")
    assert (properties, where.startswith("file://")) == ({}, True)
    body = {"name": "t", "schema": schema(), "location": f"{where}/t-1"}
    answer = shop.call("POST", TABLES, body)
    assert answer.status_code == 200
    assert not answer.json()["metadata"]["location"].startswith(where)
    assert shop.call("POST", TABLES, body | {"name": "u", "location": f"{where}x/t"}).status_code == 400
    for name in ("t", "u"):
        assert shop.call("POST", TABLES, body | {"name": name, "location": f"{where}/../t"}).status_code in (400, 409)
    changed = shop.call("POST", "/v1/lake/namespaces/s/properties", {"updates": {"location": "s3://own"}})
    assert changed.json()["updated"] == ["location"]
    assert shop.call("GET", "/v1/lake/namespaces/s").json()["properties"] == {"location": "s3://own"}
