"""Metrics reports of clients are stored, if the caller may read the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest.rest_server import RestServer, opened
from skiway.metastore import Realm
from skiway.metastore.usage import MetricsReport, reports_of, usage_of
from skiway.storage import Stores

SCAN = {
    "report-type": "scan-report",
    "table-name": "lake.sales.people",
    "snapshot-id": 7,
    "filter": {"type": "eq", "term": "id", "value": "(hash-1)"},
    "schema-id": 0,
    "projected-field-ids": [1],
    "projected-field-names": ["id"],
    "metrics": {
        "total-planning-duration": {"count": 1, "time-unit": "milliseconds", "total-duration": 2},
        "result-data-files": {"unit": "count", "value": 3},
        "total-file-size-in-bytes": {"unit": "bytes", "value": 100},
        "empty": {},
    },
}
COMMIT = {
    "report-type": "commit-report",
    "table-name": "t",
    "snapshot-id": 8,
    "sequence-number": 2,
    "operation": "append",
    "metrics": {"attempts": {"unit": "count", "value": 1}},
}


@pytest.fixture
def server(stores: Stores, tmp_path: Path) -> Iterator[RestServer]:
    with opened(stores, tmp_path) as running:
        assert running.call("POST", "/v1/lake/namespaces", {"namespace": ["sales"]}).status_code == 200
        body = {"name": "people", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
        assert running.call("POST", "/v1/lake/namespaces/sales/tables", body).status_code == 200
        yield running


def send(server: RestServer, body: Any, caller: str = "anybody") -> int:
    path = "/v1/lake/namespaces/sales/tables/people/metrics"
    return server.call("POST", path, body, authorization=f"Bearer {caller}").status_code


def table_id(server: RestServer) -> str:
    found = server.call("GET", "/v1/lake/namespaces/sales/tables/people").json()
    return str(found["metadata"]["location"].rpartition("/")[2])


def test_reports_are_stored_with_their_caller(server: RestServer, stores: Stores) -> None:
    assert send(server, SCAN, "reader") == 204
    assert send(server, COMMIT) == 204
    found = [each for _, each in reports_of(Realm(stores, "a1"), table_id(server))]
    metrics = {"total-planning-duration": 2_000_000, "result-data-files": 3, "total-file-size-in-bytes": 100}
    assert found == [
        MetricsReport("scan", "reader", 7, "", '{"type":"eq","term":"id","value":"(hash-1)"}', ["id"], metrics),
        MetricsReport("commit", "anybody", 8, "append", "", [], {"attempts": 1}),
    ]


def test_readers_cannot_report_commits_as_use(server: RestServer, stores: Stores) -> None:
    assert send(server, COMMIT, "reader") == 204
    assert list(usage_of(Realm(stores, "a1"), table_id(server))) == []
    assert send(server, COMMIT) == 204
    ((_, used),) = usage_of(Realm(stores, "a1"), table_id(server))
    assert used.writes == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"report-type": "other"}, 400),
        ({"report-type": "scan-report", "metrics": {"a": 1}}, 400),
        ({"report-type": "scan-report", "metrics": {"a": {"value": "x"}}}, 400),
        ({"report-type": "scan-report", "snapshot-id": "x"}, 400),
        ({"report-type": "scan-report", "projected-field-names": [1]}, 400),
        ({"report-type": "scan-report", "metrics": {"a": {"total-duration": 2**62, "time-unit": "days"}}}, 204),
    ],
)
def test_invalid_reports_are_rejected(server: RestServer, stores: Stores, body: Any, status: int) -> None:
    assert send(server, body) == status
    assert len(list(reports_of(Realm(stores, "a1"), table_id(server)))) == (status == 204)


def test_reports_need_the_permission_to_read(server: RestServer, stores: Stores) -> None:
    assert send(server, SCAN, "nobody") == 403
    assert send(server, SCAN, "stranger") == 404
    assert list(reports_of(Realm(stores, "a1"), table_id(server))) == []
