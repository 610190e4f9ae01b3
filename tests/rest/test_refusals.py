"""What is wrong with a body: the message names the field and its value, also where PyIceberg says neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest.rest_server import RestServer, opened
from skiway.storage import open_stores

TABLES = "/v1/lake/namespaces/s/tables"
FIELD: dict[str, Any] = {"id": 1, "name": "a", "required": False, "type": "int"}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    folder: Path = tmp_path_factory.mktemp("refusals")
    with open_stores("memory://") as stores, opened(stores, folder) as server:
        server.call("POST", "/v1/lake/namespaces", {"namespace": ["s"]})
        server.call("POST", TABLES, {"name": "t", "schema": {"type": "struct", "fields": [FIELD]}})
        yield server


def refused(shop: RestServer, path: str, body: Any) -> str:
    answer = shop.call("POST", path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "BadRequestException"
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"type": "intt"}, 'schema.fields.0.type is "intt": Unsupported field type'),
        ({"type": 5}, "schema.fields.0.type is 5: send an object"),
        ({"type": {"type": "array"}}, 'schema.fields.0.type.type is "array": Unsupported field type'),
        ({"type": "decimal(50,2)"}, 'schema.fields.0.type is "decimal(50,2)": Decimal precision must be between 1 and 38'),
        ({"type": "fixed[x]"}, 'schema.fields.0.type is "fixed[x]": '),
        ({"type": "geography(OGC:CRS84, flat)"}, 'schema.fields.0.type is "geography(OGC:CRS84, flat)": '),
        ({"type": {"type": "list", "element-id": 2}}, 'schema.fields.0.type is {"element-id": 2, "type": "list"}: it lacks a field'),
        ({"id": "x"}, 'schema.fields.0.id is "x": it should be a valid integer'),
        ({"id": None}, "schema.fields.0.id is null: it should be a valid integer"),
        ({"required": "maybe"}, 'schema.fields.0.required is "maybe": '),
        ({"write-default": [1]}, "schema.fields.0.write-default is [1]: "),
    ],
)  # fmt: skip
def test_column(shop: RestServer, change: dict[str, Any], expected: str) -> None:
    body = {"name": "new", "schema": {"type": "struct", "fields": [{**FIELD, **change}]}}
    assert refused(shop, TABLES, body).startswith(expected)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"schema": None}, "schema is missing: add it"),
        ({"schema": "x"}, 'schema is "x": send an object'),
        ({"properties": []}, "properties is []: it has the wrong type; compare it with the specification"),
        ({"stage-create": "perhaps"}, 'stage-create is "perhaps": '),
        ({"location": 5}, "location is 5: it should be a valid string"),
    ],
)
def test_table(shop: RestServer, part: dict[str, Any], expected: str) -> None:
    body = {"name": "new", "schema": {"type": "struct", "fields": [FIELD]}, **part}
    assert refused(shop, TABLES, body).startswith(expected)


def spec(transform: str) -> dict[str, Any]:
    return {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "transform": transform, "name": "p"}]}


def order(**part: str) -> dict[str, Any]:
    field = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    return {"order-id": 1, "fields": [{**field, **part}]}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"partition-spec": spec("bucket[x]")}, 'partition-spec.fields.0.transform is "bucket[x]": '),
        ({"partition-spec": spec("weekly")}, "the table is not possible: the transform 'weekly' is unknown: use "),
        ({"partition-spec": spec("day")}, "the table is not possible: Invalid source field a with type int for transform: day"),
        ({"write-order": order(direction="up")}, "write-order.fields.0.direction is \"up\": it should be 'asc' or 'desc'"),
        ({"write-order": order(transform="weekly")}, "the table is not possible: the transform 'weekly' is unknown"),
        ({"write-order": order(transform="day")}, "the table is not possible: Invalid source field a with type int"),
    ],
)  # fmt: skip
def test_partitions_and_order(shop: RestServer, part: dict[str, Any], expected: str) -> None:
    body = {"name": "new", "schema": {"type": "struct", "fields": [FIELD]}, **part}
    assert refused(shop, TABLES, body).startswith(expected)


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        ({"action": "add-shema"}, 'updates.0.action is "add-shema": did you mean add-schema'),
        ({}, "updates.0.action is missing: add it"),
        ("x", 'updates.0 is "x": send an object'),
        ({"action": "set-location", "location": 5}, "updates.0.location is 5: it should be a valid string"),
        ({"action": "add-snapshot", "snapshot": {}}, "updates.0.snapshot.snapshot-id is missing: add it"),
        ({"action": "add-spec", "spec": spec("weekly")}, "the update is not possible: the transform 'weekly' is unknown"),
        ({"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": ["x"]}}, 'updates.0.sort-order.fields is ["x"]: '),
    ],
)  # fmt: skip
def test_update(shop: RestServer, update: Any, expected: str) -> None:
    assert refused(shop, f"{TABLES}/t", {"requirements": [], "updates": [update]}).startswith(expected)


def test_long_values_are_cut(shop: RestServer) -> None:
    message = refused(shop, "/v1/lake/namespaces", {"namespace": "x" * 10_000})
    assert message == f'namespace is "{"x" * 79}…: send a list'


def test_many_values_are_not_searched_for_long(shop: RestServer) -> None:
    """The search for a value that PyIceberg cannot name ends after a hundred attempts."""
    fields = [{**FIELD, "id": number, "name": f"c{number}"} for number in range(1, 2000)]
    fields[-1]["type"] = "decimal(50,2)"
    message = refused(shop, TABLES, {"name": "new", "schema": {"type": "struct", "fields": fields}})
    assert message.startswith("schema.fields is [")
    assert "Decimal precision must be between 1 and 38" in message
