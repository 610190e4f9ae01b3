"""Tables created through the API of the metastore: in a managed catalog they can be written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, PreconditionFailed
from skiway.metastore import catalogs, managed
from skiway.model import v1

COLUMNS = [
    {"id": 7, "name": "id", "required": True, "type": "long"},
    {"id": 9, "name": "name", "required": False, "type": "string"},
]


def _catalog(lake: Lake) -> v1.Catalog:
    return next(each for each in catalogs.scan(lake.realm) if each.display_name == "managed")


def _create(lake: Lake, namespace: v1.Namespace, fields: Any = COLUMNS, *, key: str = "", **more: Any) -> v1.Table:
    spec = v1.TableSpec(
        display_name="people",
        catalog_id=namespace.catalog_id,
        namespace_id=namespace.resource_id,
        schema_json=json.dumps({"type": "struct", "fields": fields}),
        **more,
    )
    request = v1.CreateTableRequest(spec=spec, idempotency=v1.IdempotencyKey(key=key))
    return managed.create_requested(lake.realm, request, warehouse=lake.warehouse).table


def test_a_table_without_an_upstream_can_be_written(lake: Lake) -> None:
    table = _create(lake, lake.namespace(_catalog(lake), ["sales"]), description="who", properties={"a": "b"})
    assert table.metadata_location
    assert (table.description, table.properties["a"]) == ("who", "b")
    with lake.client() as db, lake.rest() as catalog:
        db.insert("sales.people", pa.table({"id": [1, 2], "name": ["Ada", None]}))
        db.delete("sales.people", [db.scan("sales.people", columns=["rowid"]).read_all()["rowid"][0].as_py()])
        assert db.scan("sales.people", columns=["id", "name"]).read_all().to_pydict() == {"id": [2], "name": [None]}
        assert catalog.load_table("sales.people").scan().to_arrow().num_rows == 1


def test_a_repeated_request_creates_one_table(lake: Lake) -> None:
    namespace = lake.namespace(_catalog(lake), ["sales"])
    first = _create(lake, namespace, key="once")
    assert _create(lake, namespace, key="once") == first
    with pytest.raises(Conflict):
        _create(lake, namespace, COLUMNS[:1], key="once")
    with pytest.raises(AlreadyExists):
        _create(lake, namespace)
    assert len(list((lake.folder / "warehouse").rglob("*.metadata.json"))) == 1


def test_a_table_with_an_upstream_stays_a_record(lake: Lake) -> None:
    upstream = v1.UpstreamRef(uri="file:///elsewhere", format=v1.TF_ICEBERG)
    table = _create(lake, lake.namespace(_catalog(lake), ["sales"]), upstream=upstream)
    assert not table.metadata_location


def test_a_table_in_a_mirrored_catalog_stays_a_record(lake: Lake) -> None:
    mirrored = lake.catalog("mirrored", connector_ref="files")
    assert not _create(lake, lake.namespace(mirrored, ["sales"])).metadata_location


def test_a_table_without_columns_is_only_a_name(lake: Lake) -> None:
    assert not _create(lake, lake.namespace(_catalog(lake), ["sales"]), []).metadata_location


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["id"], "schema_json"),
        ([{"id": 1, "name": "a", "required": True, "type": "imaginary"}], "schema_json"),
        ([{**COLUMNS[0]}, {**COLUMNS[1], "type": "timestamp_ns"}], "timestamp_ns"),
    ],
)
def test_invalid_columns_are_rejected(lake: Lake, fields: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        _create(lake, lake.namespace(_catalog(lake), ["sales"]), fields)


def test_files_cannot_be_directed_elsewhere(lake: Lake) -> None:
    with pytest.raises((InvalidArgument, PreconditionFailed), match="not in the table's folder"):
        _create(lake, lake.namespace(_catalog(lake), ["sales"]), properties={"write.data.path": "file:///elsewhere"})
