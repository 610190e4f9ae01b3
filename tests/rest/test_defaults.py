"""Default values of columns in requests are stored in format version 3, and rejected in older ones."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rest.rest_server import RestServer

SORTED = {
    "order-id": 1,
    "fields": [{"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}],
}
PARTITIONED = {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "part", "transform": "identity"}]}
EMPTY_SPEC = {"spec-id": 0, "fields": []}
NESTED: dict[str, Any] = {
    "type": "struct",
    "fields": [{"id": 9, "name": "y", "required": False, "type": "int", "initial-default": 7, "write-default": 8}],
}
VALUES: dict[str, Any] = {
    "boolean": True,
    "int": 2147483647,
    "long": 9223372036854775807,
    "float": 3.5,
    "double": 3.25,
    "decimal(10, 4)": "132435.1234",
    "date": "1983-06-13",
    "time": "13:24:53",
    "timestamp": "2013-10-25T21:52:45",
    "timestamptz": "2025-09-22T08:00:00+00:00",
    "timestamp_ns": "2013-10-25T21:52:45.123456789",
    "timestamptz_ns": "2025-09-22T08:00:00.123456789+00:00",
    "string": "this is a long string",
    "uuid": "cfc548bf-df8e-424c-99a6-72ac95b2dcc4",
    "binary": "aabbcc",
    "fixed[2]": "aabb",
}


@pytest.fixture
def shop(rest_server: RestServer) -> RestServer:
    assert rest_server.call("POST", "/v1/lake/namespaces", {"namespace": ["s"]}).status_code == 200
    return rest_server


def schema(*fields: dict[str, Any]) -> dict[str, Any]:
    first = {"id": 1, "name": "id", "required": False, "type": "long"}
    numbered = [
        {"id": number, "name": f"c{number}", "required": False, **each} for number, each in enumerate(fields, 2)
    ]
    return {"type": "struct", "schema-id": 0, "fields": [first, *numbered]}


def create(shop: RestServer, wanted: dict[str, Any], *, version: str = "3", **more: Any) -> httpx.Response:
    body = {"name": "t", "schema": wanted, "properties": {"format-version": version}, **more}
    return shop.call("POST", "/v1/lake/namespaces/s/tables", body)


def defaults(response: httpx.Response) -> list[tuple[Any, Any]]:
    """The default values of all columns but the first, as they were sent, in the current schema."""
    metadata = response.json()["metadata"]
    current = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    return [(each.get("initial-default"), each.get("write-default")) for each in current["fields"][1:]]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"partition-spec": EMPTY_SPEC},
        {"partition-spec": PARTITIONED},
        {"write-order": SORTED},
        {"partition-spec": EMPTY_SPEC, "write-order": {"order-id": 0, "fields": []}, "stage-create": True},
    ],
    ids=["plain", "unpartitioned", "partitioned", "sorted", "staged"],
)
def test_defaults_of_all_types_are_stored(shop: RestServer, more: dict[str, Any]) -> None:
    fields = [{"type": of, "initial-default": value, "write-default": value} for of, value in VALUES.items()]
    made = create(shop, schema(*fields), **more)
    assert made.status_code == 200, made.text
    stored = dict(zip(VALUES, defaults(made), strict=True))
    # PyIceberg writes times with all digits.
    padded = {"time": "13:24:53", "timestamp": "2013-10-25T21:52:45", "timestamptz": "2025-09-22T08:00:00+00:00"}
    for of, value in VALUES.items():
        expected = [value, *([padded[of]] if of in padded else [])]
        assert all(each in expected for each in stored[of]), (of, stored[of])
    if "stage-create" not in more:
        loaded = shop.call("GET", "/v1/lake/namespaces/s/tables/t")
        assert defaults(loaded) == defaults(made)


def test_defaults_of_nested_fields_are_stored(shop: RestServer) -> None:
    made = create(
        shop,
        schema(
            {"type": NESTED},
            {
                "type": {
                    "type": "list",
                    "element-id": 20,
                    "element-required": False,
                    "element": NESTED | {"fields": [NESTED["fields"][0] | {"id": 21}]},
                }
            },
        ),
    )
    assert made.status_code == 200, made.text
    struct, of_list = made.json()["metadata"]["schemas"][0]["fields"][1:]
    for field in (struct["type"]["fields"][0], of_list["type"]["element"]["fields"][0]):
        assert (field["initial-default"], field["write-default"]) == (7, 8)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("kind", ["initial-default", "write-default"])
@pytest.mark.parametrize("more", [{}, {"partition-spec": EMPTY_SPEC}], ids=["plain", "spec"])
def test_older_versions_have_no_defaults(shop: RestServer, version: str, kind: str, more: dict[str, Any]) -> None:
    refused = create(shop, schema({"type": "int", kind: 5}), version=version, **more)
    assert refused.status_code == 400
    assert f"column 'c2' has the {kind} '5'" in refused.json()["error"]["message"]
    assert "format version 3" in refused.json()["error"]["message"]
    assert shop.call("HEAD", "/v1/lake/namespaces/s/tables/t").status_code == 404


@pytest.mark.parametrize(
    ("of", "value"),
    [
        ("long", "5"),
        ("long", True),
        ("int", 2**40),
        ("boolean", 1),
        ("string", 5),
        ("double", "x"),
        ("timestamp_ns", 5),
    ],
)
def test_defaults_of_another_type_are_rejected(shop: RestServer, of: str, value: Any) -> None:
    refused = create(shop, schema({"type": of, "write-default": value}))
    assert refused.status_code == 400
    assert "not a value of type" in refused.json()["error"]["message"]


def commit(shop: RestServer, *updates: dict[str, Any], creates: bool = False) -> httpx.Response:
    requirements = [{"type": "assert-create"}] if creates else []
    return shop.call("POST", "/v1/lake/namespaces/s/tables/t", {"requirements": requirements, "updates": updates})


def added(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"action": "add-schema", "schema": wanted, "last-column-id": 2},
        {"action": "set-current-schema", "schema-id": -1},
    ]


@pytest.mark.parametrize("version", [2, 3])
def test_staged_tables_keep_defaults_of_version_3_only(shop: RestServer, version: int) -> None:
    updates = [
        {"action": "assign-uuid", "uuid": "7d0cb4e1-2d4a-4d22-8b41-2b2ad2b9d1a5"},
        {"action": "upgrade-format-version", "format-version": version},
        *added(schema({"type": "int", "initial-default": 5, "write-default": 6})),
        {"action": "add-spec", "spec": EMPTY_SPEC},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]
    made = commit(shop, *updates, creates=True)
    if version == 2:
        assert made.status_code == 400
        assert "format version 3" in made.json()["error"]["message"]
    else:
        assert made.status_code == 200, made.text
        assert defaults(made) == [(5, 6)]
        assert defaults(shop.call("GET", "/v1/lake/namespaces/s/tables/t")) == [(5, 6)]


def test_added_schemas_keep_defaults_of_version_3_only(shop: RestServer) -> None:
    assert create(shop, schema(), version="2").status_code == 200
    wanted = added(schema({"type": "int", "initial-default": 5, "write-default": 6}))
    refused = commit(shop, *wanted)
    assert refused.status_code == 400
    assert "format version 3" in refused.json()["error"]["message"]
    upgrade = {"action": "upgrade-format-version", "format-version": 3}
    assert defaults(commit(shop, upgrade, *wanted)) == [(5, 6)]
    # The same columns with another default are another schema.
    assert defaults(commit(shop, *added(schema({"type": "int", "initial-default": 5, "write-default": 7})))) == [(5, 7)]


def test_replaced_tables_keep_defaults(shop: RestServer) -> None:
    assert create(shop, schema({"type": "int"})).status_code == 200
    replaced = commit(
        shop,
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        *added(schema({"type": "int", "initial-default": 5, "write-default": 6})),
    )
    assert defaults(replaced) == [(5, 6)]


def test_types_of_version_3_cannot_be_added_to_older_tables(shop: RestServer) -> None:
    assert create(shop, schema(), version="2").status_code == 200
    refused = commit(shop, *added(schema({"type": "timestamp_ns"})))
    assert refused.status_code == 400
    assert "only supported in 3" in refused.json()["error"]["message"]
