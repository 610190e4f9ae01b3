"""Lineage as OpenLineage events. Each event is validated against the JSON schemas that it names.

`openlineage.json` has these schemas by address, as OpenLineage publishes them (Apache-2.0), without descriptions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.resource_factory import ResourceFactory
from skiway.errors import Cancelled, Unavailable
from skiway.metastore.ingest.copying import CopyPlace
from skiway.metastore.ingest.lineage import describe_copy, source_namespace
from skiway.metastore.reconcile.outcomes import Control
from skiway.model import v1
from skiway.telemetry.lineage import Dataset, Lineage

SCHEMAS: Mapping[str, Any] = json.loads((Path(__file__).parent / "openlineage.json").read_text())
REGISTRY: Registry[Any] = Registry().with_resources(
    (url, Resource.from_contents(each)) for url, each in SCHEMAS.items()
)

NOTES = "models:\n  - name: totals\n    expect:\n      - unique: region\n      - {name: small, condition: total < 5, on_failure: warn}"


def valid(event: dict[str, Any]) -> dict[str, Any]:
    """The event, after it was compared with its schema, and each facet with its own."""
    _validate(event["schemaURL"], event)
    for part in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for facets in ("facets", "inputFacets", "outputFacets"):
            for facet in part.get(facets, {}).values():
                _validate(facet["_schemaURL"], facet)
    return event


def _validate(url: str, value: Any) -> None:
    validator = Draft202012Validator(
        {"$ref": url}, registry=REGISTRY, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)] == []


def events(file: Path) -> list[dict[str, Any]]:
    return [valid(json.loads(line)) for line in file.read_text().splitlines()]


@pytest.fixture
def lake(factory: ResourceFactory, tmp_path: Path) -> PipelineLake:
    factory.catalog()
    found = PipelineLake(ManagedTableFactory.at(factory, tmp_path))
    found.queries = {"totals": "SELECT region, sum(price) AS total FROM orders GROUP BY region", "notes.yml": NOTES}
    found.append(found.create(), (1, "eu", 3), (2, "us", 1), (3, "eu", 5))
    return found


def run(lake: PipelineLake, lineage: Lineage, control: Control | None = None) -> None:
    made = lake.pipeline()
    tables = replace(made.tables, reconciler=replace(made.tables.reconciler, lineage=lineage))
    with lineage:
        replace(made, tables=tables).run(lake.engine, control or Control())


def test_a_run_of_a_pipeline_is_described(lake: PipelineLake, tmp_path: Path) -> None:
    file = tmp_path / "lineage.jsonl"
    run(lake, Lineage.to(file=file, namespace="mine"))
    start, done, whole, end = events(file)
    assert [each["eventType"] for each in (start, done, whole, end)] == ["START", "COMPLETE", "START", "COMPLETE"]
    assert (done["job"]["name"], end["job"]["name"]) == ("sales.sales.totals", "sales")
    assert done["run"]["facets"]["parent"]["run"]["runId"] == end["run"]["runId"]
    assert "sum(price)" in done["job"]["facets"]["sql"]["query"].lower()
    (read,), (made,) = done["inputs"], done["outputs"]
    catalog = lake.lake.factory.first_catalog().display_name
    assert (read["namespace"], read["name"], made["name"]) == (
        "mine",
        f"{catalog}.sales.orders",
        f"{catalog}.sales.totals",
    )
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 3
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert [each["name"] for each in made["facets"]["schema"]["fields"]] == ["region", "total"]
    assert made["facets"]["version"]["datasetVersion"] == str(lake.table("totals").metadata.current_snapshot_id)
    sources = made["facets"]["columnLineage"]["fields"]["total"]["inputFields"]
    assert [(each["name"], each["field"]) for each in sources] == [(f"{catalog}.sales.orders", "price")]
    found = {
        each["name"]: (each["success"], each["severity"])
        for each in made["facets"]["dataQualityAssertions"]["assertions"]
    }
    assert found == {"unique_region": (True, "error"), "small": (False, "warn")}
    run(lake, Lineage.to(file=file))
    assert len(events(file)) == 4, "a run without changes says nothing"


def test_a_failed_and_a_cancelled_run_are_described(lake: PipelineLake, tmp_path: Path) -> None:
    lake.queries["notes.yml"] = NOTES.replace("warn", "fail")
    run(lake, Lineage.to(file=tmp_path / "failed"))
    found = events(tmp_path / "failed")
    assert [each["eventType"] for each in found] == ["START", "FAIL", "START", "COMPLETE"]
    assert "1 of 2 rows break small" in found[1]["run"]["facets"]["errorMessage"]["message"]
    assert "outputStatistics" not in found[1]["outputs"][0]["outputFacets"]

    class Stopping(Control):
        calls = 0

        def check(self) -> None:
            self.calls += 1
            if self.calls == 2:
                raise Cancelled("stop", key="job.cancelled")

    with pytest.raises(Cancelled):
        run(lake, Lineage.to(file=tmp_path / "cancelled"), Stopping())
    assert [each["eventType"] for each in events(tmp_path / "cancelled")] == ["START", "ABORT", "START", "ABORT"]


def test_a_copy_is_described_without_the_password_of_its_source(factory: ResourceFactory, tmp_path: Path) -> None:
    factory.catalog()
    lake = ManagedTableFactory.at(factory, tmp_path)
    before = lake.append(lake.create("people"), 1)
    made = lake.append(lake.append(before, 2, 3), 4)
    connector = v1.Connector(uri="postgresql://me:secret@db.example:5432/shop?password=secret")
    place = CopyPlace("c", "public.people", before.table.namespace_id, "people")
    with Lineage.to(file=tmp_path / "copies") as lineage, lineage.run("c.people", "COPY", later=True) as copy:
        describe_copy(lake.home, copy, connector, place, made, before)
    assert "secret" not in (tmp_path / "copies").read_text()
    _, done = events(tmp_path / "copies")
    assert (done["inputs"][0]["namespace"], done["inputs"][0]["name"]) == (
        "postgresql://db.example:5432/shop",
        "public.people",
    )
    assert done["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3
    with Lineage.to(file=tmp_path / "copies") as lineage, lineage.run("c.people", "COPY", later=True) as copy:
        describe_copy(lake.home, copy, connector, place, None, before)
    assert len(events(tmp_path / "copies")) == 2, "a load without changes says nothing"


@pytest.mark.parametrize(
    ("uri", "namespace"),
    [
        ("s3://bucket/path", "s3://bucket/path"),
        ("/data/files", "file:///data/files"),
        ("jdbc:postgresql://u:p@h:1/d", "postgresql://h:1/d"),
        ("grpc+tls://h:9/", "grpc+tls://h:9"),
    ],
)
def test_a_source_is_named_by_its_address(uri: str, namespace: str) -> None:
    assert source_namespace(uri) == namespace


@contextmanager
def endpoint(status: int) -> Iterator[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    """An endpoint, and the requests that it gets."""
    found: list[tuple[str, str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.append((self.path, self.headers.get("Authorization", ""), json.loads(body)))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", found
        server.shutdown()


def test_events_are_sent_to_an_endpoint(lake: PipelineLake) -> None:
    with endpoint(200) as (url, found):
        run(lake, Lineage.to(url, api_key="key"))
    assert [valid(event)["eventType"] for _, _, event in found] == ["START", "COMPLETE", "START", "COMPLETE"]
    assert {(path, key) for path, key, _ in found} == {("/api/v1/lineage", "Bearer key")}


def test_an_endpoint_that_refuses_events_fails_no_run(lake: PipelineLake, caplog: pytest.LogCaptureFixture) -> None:
    with endpoint(400) as (url, _):
        run(lake, Lineage.to(url))
    assert lake.rows("totals") == [("eu", 8), ("us", 1)]
    assert "an event of lineage was not sent" in caplog.text


def test_an_event_that_cannot_be_made_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        raise Unavailable("away", key="x")

    with Lineage(broken) as lineage, lineage.run("j", "MODEL") as made:
        made.output = Dataset("t", pa.schema({"x": pa.int64()}))
    assert "the lineage of j was not sent" in caplog.text
