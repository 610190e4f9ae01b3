"""Updates that remove what does not exist, or set what is set, change nothing, as in Iceberg's Java library."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from rest.rest_server import RestServer

ROWS = pa.table({"id": [1]})


@pytest.fixture
def table(rest_server: RestServer) -> Table:
    """A table with three snapshots and two schemas."""
    catalog = rest_server.pyiceberg()
    catalog.create_namespace("s")
    made = catalog.create_table("s.t", ROWS.schema)
    for _ in range(3):
        made.append(ROWS)
    with made.update_schema() as update:
        update.add_column("x", made.schema().find_type("id"))
    return made


def commit(server: RestServer, *updates: dict[str, Any]) -> Any:
    response = server.call("POST", "/v1/lake/namespaces/s/tables/t", {"requirements": [], "updates": updates})
    assert response.status_code == 200, response.text
    return response.json()


def rejected(server: RestServer, *updates: dict[str, Any]) -> str:
    response = server.call("POST", "/v1/lake/namespaces/s/tables/t", {"requirements": [], "updates": updates})
    assert response.status_code == 400
    return str(response.json()["error"]["message"])


NOTHING: dict[str, dict[str, Any]] = {
    "snapshot": {"action": "remove-snapshots", "snapshot-ids": [7]},
    "ref": {"action": "remove-snapshot-ref", "ref-name": "nothing"},
    "statistics": {"action": "remove-statistics", "snapshot-id": 7},
    "partition statistics": {"action": "remove-partition-statistics", "snapshot-id": 7},
    "spec": {"action": "remove-partition-specs", "spec-ids": [7]},
    "schema": {"action": "remove-schemas", "schema-ids": [7]},
    "properties": {"action": "remove-properties", "removals": ["nothing"]},
    "key": {"action": "remove-encryption-key", "key-id": "nothing"},
    "current schema": {"action": "set-current-schema", "schema-id": 1},
    "current spec": {"action": "set-default-spec", "spec-id": 0},
    "current order": {"action": "set-default-sort-order", "sort-order-id": 0},
    "same version": {"action": "upgrade-format-version", "format-version": 2},
}


@pytest.mark.parametrize("update", NOTHING.values(), ids=NOTHING)
def test_update_that_changes_nothing_succeeds(rest_server: RestServer, table: Table, update: dict[str, Any]) -> None:
    made = commit(rest_server, update)
    assert made["metadata-location"] == table.metadata_location
    # Together with another update, it does not keep that from being made.
    made = commit(rest_server, update, {"action": "set-properties", "updates": {"a": "b"}})
    assert made["metadata"]["properties"]["a"] == "b"


def test_same_location_and_ref_change_nothing(rest_server: RestServer, table: Table) -> None:
    head = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    made = commit(
        rest_server,
        {"action": "set-location", "location": table.location()},
        {**head, "snapshot-id": table.metadata.current_snapshot_id},
        {"action": "assign-uuid", "uuid": str(table.metadata.table_uuid)},
    )
    assert made["metadata-location"] == table.metadata_location


def test_snapshot_can_expire_twice_and_leaves_no_gap_in_the_history(rest_server: RestServer, table: Table) -> None:
    first, second, third = (each.snapshot_id for each in table.metadata.snapshots)
    made = commit(rest_server, {"action": "remove-snapshots", "snapshot-ids": [second, 7]})
    assert [each["snapshot-id"] for each in made["metadata"]["snapshots"]] == [first, third]
    # The first snapshot was not current when the second one was.
    assert [each["snapshot-id"] for each in made["metadata"]["snapshot-log"]] == [third]
    again = commit(rest_server, {"action": "remove-snapshots", "snapshot-ids": [second]})
    assert again["metadata-location"] == made["metadata-location"]


def test_removed_snapshots_take_their_statistics_along(rest_server: RestServer, table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    path = f"{table.location()}/metadata/statistics"
    size = {"file-size-in-bytes": 10}
    statistics = {"snapshot-id": first, "statistics-path": path, **size}
    made = commit(
        rest_server,
        {
            "action": "set-statistics",
            "snapshot-id": first,
            "statistics": {**statistics, "file-footer-size-in-bytes": 5, "blob-metadata": []},
        },
        {"action": "set-partition-statistics", "partition-statistics": statistics},
    )["metadata"]
    assert len(made["statistics"]) == len(made["partition-statistics"]) == 1
    made = commit(rest_server, {"action": "remove-snapshots", "snapshot-ids": [first]})["metadata"]
    assert made["statistics"] == made["partition-statistics"] == []


def test_what_is_in_use_is_not_removed(rest_server: RestServer, table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    assert "current schema" in rejected(rest_server, {"action": "remove-schemas", "schema-ids": [1]})
    assert "default partition spec" in rejected(rest_server, {"action": "remove-partition-specs", "spec-ids": [0]})
    message = rejected(rest_server, {"action": "remove-schemas", "schema-ids": [0]})
    assert f"schema 0 is that of snapshot {first}" in message
    tag = {"action": "set-snapshot-ref", "ref-name": "main", "type": "tag", "snapshot-id": first}
    assert "main is a branch" in rejected(rest_server, tag)
    assert rest_server.pyiceberg().load_table("s.t").scan().to_arrow().num_rows == 3


def test_snapshots_that_were_never_current_are_not_in_the_history(rest_server: RestServer, table: Table) -> None:
    with table.transaction() as transaction:
        transaction.append(ROWS.append_column("x", [[1]]))
        transaction.append(ROWS.append_column("x", [[2]]))
    assert len(table.metadata.snapshots) == 5
    assert [each.snapshot_id for each in table.metadata.snapshot_log] == [
        *(each.snapshot_id for each in table.metadata.snapshots[:3]),
        table.metadata.current_snapshot_id,
    ]


def test_upgrade_of_the_format_is_recorded_in_the_history(rest_server: RestServer, table: Table) -> None:
    made = commit(rest_server, {"action": "upgrade-format-version", "format-version": 3})["metadata"]
    assert made["format-version"] == 3
    assert made["metadata-log"][-1]["metadata-file"] == table.metadata_location
