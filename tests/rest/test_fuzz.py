"""Any input gets a response defined by the specification, never an internal error."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rest.rest_server import RestServer, opened
from skiway.storage import open_stores
from skiway.vending import S3Keys, S3Service, Signer, Vending

HERE = "/v1/lake/namespaces/sales/tables"


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    vending = Vending({}, Signer(lambda: S3Keys("key", "secret"), S3Service("")))
    with open_stores("memory://") as stores, opened(stores, folder, vending=vending) as rest_server:
        rest_server.pyiceberg().create_namespace("sales")
        view = {"name": "few", "schema": SCHEMA, "view-version": VERSION, "properties": {}}
        assert rest_server.call("POST", VIEWS, view).status_code == 200
        rest_server.pyiceberg().create_table("sales.people", pa.schema({"id": pa.int64()})).append(
            pa.table({"id": [1]})
        )
        yield rest_server


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
SCHEMA = {
    "type": "struct",
    "schema-id": 1,
    "identifier-field-ids": [1],
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {
            "id": 2,
            "name": "tags",
            "required": False,
            "type": {"type": "list", "element-id": 3, "element": "string", "element-required": False},
        },
    ],
}
SPEC = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "bucket[4]"}]}
ORDER = {
    "order-id": 1,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
}
UPDATES: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"},
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "add-schema", "schema": SCHEMA, "last-column-id": 3},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": SPEC},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": ORDER},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": 5,
            "parent-snapshot-id": 4,
            "sequence-number": 9,
            "timestamp-ms": 1_900_000_000_000,
            "manifest-list": "file:///nowhere/list.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
        },
    },
    {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5},
    {"action": "remove-snapshots", "snapshot-ids": [5]},
    {"action": "remove-snapshot-ref", "ref-name": "main"},
    {"action": "set-location", "location": "file:///nowhere"},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {
        "action": "set-statistics",
        "snapshot-id": 5,
        "statistics": {
            "snapshot-id": 5,
            "statistics-path": "file:///nowhere",
            "file-size-in-bytes": 1,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        },
    },
    {"action": "remove-statistics", "snapshot-id": 5},
    {"action": "remove-partition-specs", "spec-ids": [1]},
    {"action": "remove-schemas", "schema-ids": [1]},
]
REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
]
VIEWS = "/v1/lake/namespaces/sales/views"
VERSION: dict[str, Any] = {
    "version-id": 1,
    "schema-id": -1,
    "timestamp-ms": 1,
    "summary": {"operation": "replace"},
    "representations": [{"type": "sql", "sql": "SELECT id FROM people", "dialect": "spark"}],
    "default-namespace": ["sales"],
}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/lake/namespaces", {"namespace": ["sales", "eu"], "properties": {"a": "b"}}),
    ("/v1/lake/namespaces/sales/properties", {"removals": ["a"], "updates": {"b": "c"}}),
    (
        HERE,
        {
            "name": "new",
            "schema": SCHEMA,
            "partition-spec": SPEC,
            "write-order": ORDER,
            "stage-create": True,
            "properties": {"a": "b"},
            "location": None,
        },
    ),
    (
        "/v1/lake/tables/rename",
        {"source": {"namespace": ["sales"], "name": "x"}, "destination": {"namespace": ["sales"], "name": "y"}},
    ),
    (
        f"{HERE}/people/metrics",
        {
            "report-type": "scan-report",
            "snapshot-id": 1,
            "filter": True,
            "projected-field-names": ["id"],
            "metrics": {
                "a": {"unit": "count", "value": 1},
                "b": {"total-duration": 1, "time-unit": "seconds", "count": 1},
            },
        },
    ),
    (
        f"{HERE}/people/plan",
        {
            "select": ["id"],
            "case-sensitive": False,
            "filter": {
                "type": "and",
                "left": {"type": "not", "child": {"type": "eq", "term": "id", "value": 1}},
                "right": {"type": "in", "child": {"type": "reference", "name": "id"}, "values": [1, 2]},
            },
        },
    ),
    (f"{HERE}/people/tasks", {"plan-task": "00000000000000000000-x.1"}),
    (
        f"{HERE}/people/sign",
        {
            "region": "us-east-1",
            "uri": "https://s3.amazonaws.com/lake/tables/a1/t1/x",
            "method": "GET",
            "headers": {"range": ["bytes=0-1"]},
            "body": None,
            "provider": "s3",
        },
    ),
    (
        "/v1/lake/namespaces/sales/register",
        {"name": "old", "metadata-location": "file:///nowhere/v1.metadata.json", "overwrite": True},
    ),
    (VIEWS, {"name": "adults", "schema": SCHEMA, "view-version": VERSION, "properties": {"a": "b"}}),
    (
        f"{VIEWS}/few",
        {
            "requirements": [{"type": "assert-view-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"}],
            "updates": [
                {"action": "add-schema", "schema": SCHEMA},
                {"action": "add-view-version", "view-version": VERSION},
                {"action": "set-current-view-version", "view-version-id": -1},
                {"action": "set-properties", "updates": {"a": "b"}},
                {"action": "remove-properties", "removals": ["a"]},
            ],
        },
    ),
    (
        "/v1/lake/views/rename",
        {"source": {"namespace": ["sales"], "name": "x"}, "destination": {"namespace": ["sales"], "name": "y"}},
    ),
    (
        "/v1/lake/namespaces/sales/register-view",
        {"name": "old", "metadata-location": "file:///nowhere/v1.metadata.json"},
    ),
]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all parts of a JSON value."""
    yield path
    container = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in container:
        yield from paths_in(inner, (*path, name))


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The value with one part replaced by anything or removed."""
    changed = copy.deepcopy(value)
    *way, last = draw(st.sampled_from([path for path in paths_in(value) if path]))
    container = changed
    for step in way:
        container = container[step]
    if draw(st.booleans()) and isinstance(container, dict):
        del container[last]
    else:
        container[last] = draw(ANYTHING)
    return changed


COMMITS = st.builds(
    lambda requirements, updates: {"requirements": requirements, "updates": updates},
    st.lists(st.sampled_from(REQUIREMENTS), max_size=2),
    st.lists(st.sampled_from(UPDATES), max_size=4),
)
TRANSACTIONS = st.lists(
    st.builds(
        lambda name, commit: {"identifier": {"namespace": ["sales"], "name": name}, **commit},
        st.sampled_from(["people", "new", "another"]),
        COMMITS,
    ),
    max_size=3,
).map(lambda changes: {"table-changes": changes})
CALLS = st.one_of(
    st.sampled_from(BODIES).flatmap(lambda each: st.tuples(st.just(each[0]), mutated(each[1]) | ANYTHING)),
    st.tuples(st.sampled_from([f"{HERE}/people", f"{HERE}/new"]), COMMITS),
    st.tuples(st.just(f"{HERE}/people"), COMMITS.flatmap(mutated)),
    st.tuples(st.just("/v1/lake/transactions/commit"), TRANSACTIONS | TRANSACTIONS.flatmap(mutated)),
)


@given(call=CALLS)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_body_causes_an_internal_error(rest_server: RestServer, call: tuple[str, Any]) -> None:
    path, body = call
    answer = rest_server.call("POST", path, json.dumps(body).encode())
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.json()["error"]["code"] == answer.status_code
    assert rest_server.call("GET", f"{HERE}/people").status_code in (200, 404)


@given(
    path=st.text(st.characters(max_codepoint=127, exclude_categories=["Cc"]), max_size=30),
    method=st.sampled_from(["GET", "POST", "DELETE", "HEAD"]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_path_causes_an_internal_error(rest_server: RestServer, path: str, method: str) -> None:
    from urllib.parse import quote

    for where in (f"/{quote(path, safe='/%+')}", f"/v1/lake/namespaces/{quote(path, safe='%+')}"):
        assert rest_server.call(method, where).status_code < 500


@given(body=st.binary(max_size=60))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_bytes_cause_an_internal_error(rest_server: RestServer, body: bytes) -> None:
    assert rest_server.call("POST", f"{HERE}/people", body).status_code == 400
