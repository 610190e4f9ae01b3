"""`POST …/metrics`: reports of clients on their scans and commits."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from skiway.metastore.metrics_reports import MetricsReport, add_report
from skiway.rest import resolve
from skiway.rest.bodies import decoded
from skiway.rest.calls import NO_CONTENT, RestRequest, RestResponse

__all__ = ["report"]


class Metric(BaseModel):
    """A counter has a value, a timer a total duration, here in its own unit."""

    value: int | None = None
    duration: Annotated[int | None, Field(alias="total-duration")] = None
    unit: Annotated[str, Field(alias="time-unit")] = "nanoseconds"

    @property
    def number(self) -> int | None:
        """The value of a counter, or the nanoseconds of a timer; None if it is neither."""
        if self.duration is None:
            return self.value
        return min(self.duration * _NANOSECONDS.get(self.unit.lower(), 1), 2**63 - 1)


_NANOSECONDS = {
    "nanoseconds": 1,
    "microseconds": 10**3,
    "milliseconds": 10**6,
    "seconds": 10**9,
    "minutes": 60 * 10**9,
    "hours": 3600 * 10**9,
    "days": 86400 * 10**9,
}


class ReportBody(BaseModel):
    """A scan report or a commit report; fields that are not stored are ignored."""

    model_config = ConfigDict(frozen=True)

    kind: Annotated[Literal["scan-report", "commit-report"], Field(alias="report-type")]
    snapshot_id: Annotated[int | None, Field(alias="snapshot-id")] = None
    operation: str = ""
    filter: Any = None
    columns: Annotated[tuple[str, ...], Field(alias="projected-field-names")] = ()
    metrics: dict[str, Metric] = {}


def report(request: RestRequest) -> RestResponse:
    """Store a report on a table that the caller may read. A report on a commit counts as one if the caller may write."""
    table = resolve.table(request, resolve.catalog(request))
    sent = decoded(request.body, ReportBody)
    is_commit = sent.kind == "commit-report"
    stored = MetricsReport(
        "commit" if is_commit else "scan",
        request.realm.caller,
        sent.snapshot_id,
        sent.operation,
        "" if sent.filter is None else json.dumps(sent.filter, separators=(",", ":")),
        sent.columns,
        {name: number for name, each in sent.metrics.items() if (number := each.number) is not None},
    )
    may_commit = request.decision is None or request.decision.may("table.write", table)
    add_report(request.realm, table.resource_id.id, stored, counts=may_commit or not is_commit)
    return NO_CONTENT
