"""`skiway.reports`: metrics reports of Iceberg clients."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.metastore.usage import MetricsReport, add_report

SCHEMA = pa.schema({"id": pa.int64()})


def rows(db: AirportClient) -> list[dict[str, Any]]:
    return list(db.scan("skiway.reports").read_all().to_pylist())


def test_reports_are_shown_to_callers_who_may_read_the_table(lake: Lake) -> None:
    with lake.client() as db, lake.client(token="reader") as reader, lake.client(token="nothing") as other:
        db.create_schema("s")
        db.create_table("s.people", SCHEMA)
        table_id = db.scan("skiway.tables").read_all()["table_id"][0].as_py()
        for caller in ("writer", "reader"):
            add_report(
                lake.realm, table_id, MetricsReport("scan", caller, 7, "", "f", ["id"], {"result-data-files": 3})
            )
        first, second = rows(db)
        assert (first["schema_name"], first["table_name"], first["kind"], first["snapshot_id"]) == (
            "s",
            "people",
            "scan",
            7,
        )
        assert (first["columns"], first["metrics"]) == (["id"], [("result-data-files", 3)])
        assert [(each["caller"], each["filter"]) for each in (first, second)] == [("writer", "f"), ("reader", "f")]
        assert [(each["caller"], each["filter"]) for each in rows(reader)] == [(None, None), ("reader", "f")]
        assert rows(other) == []
